//! Keeps the repository in shape: which crate may use which, how long files and functions are, and
//! what may not stay in the sources. Every failure says what to do.

mod arrows;
mod changelog;
mod circles;
mod names;
mod slices;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 600;
const FILE_LINES_AIM: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("the crate lies two levels below the root")
        .to_path_buf()
}

/// A source file: its path below the root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|found| found == extension)
    }
}

/// Every source file of the repository, scripts without an ending included.
fn sources() -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder of the repository is readable") {
            let path = entry
                .expect("a folder of the repository is readable")
                .path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_symlink() || name == ".git" || name.starts_with("target") || name == ".cache"
            {
                continue;
            }
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let mut sources = Vec::new();
    for path in paths {
        // What is not text is not a source.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let known = ["rs", "c", "h", "py", "sh", "go", "toml"];
        let extension = path
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let makefile = path.file_name().is_some_and(|name| name == "Makefile");
        if known.contains(&extension.as_str()) || makefile || text.starts_with("#!") {
            let path = path
                .strip_prefix(&root)
                .expect("it was found below the root");
            sources.push(Source {
                path: path.to_string_lossy().into_owned(),
                text,
            });
        }
    }
    assert!(
        sources.len() > 50,
        "only {} sources found below {}",
        sources.len(),
        root.display()
    );
    sources
}

fn report(problems: Vec<String>, advice: &str) {
    assert!(
        problems.is_empty(),
        "{advice}:\n  {}",
        problems.join("\n  ")
    );
}

#[test]
fn files_are_short() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|source| !source.is("toml")) {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            problems.push(format!("{} has {lines} lines", source.path));
        } else if lines > FILE_LINES_AIM {
            println!("{} has {lines} lines; aim at {FILE_LINES_AIM}", source.path);
        }
    }
    report(
        problems,
        &format!("split what is over {FILE_LINES_MAX} lines, by what it explains"),
    );
}

#[test]
fn lines_and_functions_are_short() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|source| source.is("rs")) {
        for (number, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                problems.push(format!(
                    "{}:{} has {columns} columns",
                    source.path,
                    number + 1
                ));
            }
        }
        for (name, number, lines) in functions(&source.text) {
            if lines > FUNCTION_LINES_MAX {
                problems.push(format!("{}:{number} {name} has {lines} lines", source.path));
            }
        }
    }
    report(
        problems,
        &format!(
            "break lines over {COLUMNS_MAX} columns, and give parts of functions over \
             {FUNCTION_LINES_MAX} lines names of their own"
        ),
    );
}

/// The functions of a formatted source: name, first line, number of lines. The formatter puts the
/// closing brace at the column where the function's first line begins.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let words = ["pub", "const", "unsafe", "async", "extern", "\"C\""];
        let mut rest = body.split_whitespace().skip_while(|word| {
            words.contains(word) || word.starts_with("pub(") || word.ends_with(')')
        });
        if rest.next() != Some("fn") {
            continue;
        }
        let name = rest.next().unwrap_or_default();
        let name = name.split(['(', '<']).next().unwrap_or_default().to_owned();
        let after = &lines[number..];
        // A function without a body, or with one on the same line, is short.
        let ends = |line: &&str| line.len() == indent + 1 && line.ends_with('}');
        let opens = after
            .iter()
            .position(|line| line.ends_with('{') || line.ends_with(';'));
        if opens.is_some_and(|at| after[at].ends_with('{'))
            && let Some(last) = after.iter().position(ends)
        {
            found.push((name, number + 1, last + 1));
        }
    }
    found
}

#[test]
fn functions_are_measured() {
    let text = [
        "impl X {",
        "    pub(crate) const fn one(",
        "        a: u8,",
        "    ) -> u8 {",
        "        a",
        "    }",
        "    fn two(&self);",
        "}",
        "fn three() {",
        "    if x {",
        "    }",
        "}",
    ];
    let found = functions(&text.join("\n"));
    assert_eq!(found, [("one".into(), 2, 5), ("three".into(), 9, 4)]);
}

#[test]
fn files_say_what_they_are_for() {
    let mut problems = Vec::new();
    for source in sources() {
        let lines = source.text.lines();
        let first = lines
            .clone()
            .find(|line| !line.starts_with("#!"))
            .unwrap_or_default();
        let begins = if source.is("rs") {
            first
                .strip_prefix("//! ")
                .is_some_and(|words| words.len() > 8)
        } else if source.is("toml") {
            true
        } else {
            ["# ", "\"\"\"", "/*", "//"]
                .iter()
                .any(|mark| first.starts_with(mark))
        };
        if !begins {
            problems.push(source.path);
        }
    }
    report(
        problems,
        "begin with a sentence on what the file is for (//! in Rust)",
    );
}

#[test]
fn nothing_unfinished_stays() {
    // Spelled in parts, so that this file does not find itself.
    let marks = [
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
        concat!("db", "g!("),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    let mut problems = Vec::new();
    for source in sources() {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
                problems.push(format!("{}:{}: {mark}", source.path, number + 1));
            }
        }
    }
    report(
        problems,
        "finish these or open an issue; they do not stay in the sources",
    );
}

#[test]
fn scripts_are_executable() {
    let mut scripts = vec![root().join(".ci/run"), root().join("tests/run")];
    for folder in ["tests/suites", "tools"] {
        for entry in fs::read_dir(root().join(folder)).expect("the folder is there") {
            scripts.push(entry.expect("the folder is readable").path());
        }
    }
    let mut problems = Vec::new();
    for script in scripts.iter().filter(|path| path.is_file()) {
        let text = fs::read_to_string(script).unwrap_or_default();
        let mode = fs::metadata(script)
            .expect("it was listed")
            .permissions()
            .mode();
        if text.starts_with("#!") && mode & 0o111 != 0o111 {
            problems.push(script.display().to_string());
        }
        if script
            .parent()
            .is_some_and(|folder| folder.ends_with("suites"))
            && script.extension().is_some_and(|kind| kind == "sh")
            && !text.starts_with("#!")
        {
            problems.push(format!("{} has no #! line", script.display()));
        }
    }
    report(problems, "chmod +x these, as tests/run calls them by name");
}
