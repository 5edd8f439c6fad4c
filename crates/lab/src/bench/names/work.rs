//! What a program does with names, and how long each kind of it takes. One process does it for all
//! ways to the files, so that they differ in nothing else.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Bytes of a small file.
const SMALL: usize = 100;
/// When the files of a tree were changed last, since 1970.
const OLD: Duration = Duration::from_secs(1_000_000_000);
/// Files of one directory of a tree.
const OF_DIRECTORY: usize = 50;

/// One kind of operations, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    StatFirst,
    StatAgain,
    ReadFirst,
    ReadAgain,
    List,
    ListLong,
    ListLongAgain,
    Make,
    Rename,
    Remove,
    MakeDirectory,
    RemoveDirectory,
    GitFirst,
    GitAgain,
    Unpack,
}

pub const KINDS: [Kind; 15] = [
    Kind::StatFirst,
    Kind::StatAgain,
    Kind::ReadFirst,
    Kind::ReadAgain,
    Kind::List,
    Kind::ListLong,
    Kind::ListLongAgain,
    Kind::Make,
    Kind::Rename,
    Kind::Remove,
    Kind::MakeDirectory,
    Kind::RemoveDirectory,
    Kind::GitFirst,
    Kind::GitAgain,
    Kind::Unpack,
];

impl Kind {
    /// The row of a table.
    pub fn words(self) -> &'static str {
        match self {
            Kind::StatFirst => "stat, first use",
            Kind::StatAgain => "stat, again",
            Kind::ReadFirst => "open, read, close, first use",
            Kind::ReadAgain => "open, read, close, again",
            Kind::List => "readdir, an entry",
            Kind::ListLong => "readdir and stat, first use, an entry",
            Kind::ListLongAgain => "readdir and stat, again, an entry",
            Kind::Make => "create, write, close",
            Kind::Rename => "rename",
            Kind::Remove => "unlink",
            Kind::MakeDirectory => "mkdir",
            Kind::RemoveDirectory => "rmdir",
            Kind::GitFirst => "git status, first, a file",
            Kind::GitAgain => "git status, again, a file",
            Kind::Unpack => "tar x, a file",
        }
    }

    /// The program that does it, where it is one.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Kind::GitFirst | Kind::GitAgain => Some("git"),
            Kind::Unpack => Some("tar"),
            _ => None,
        }
    }
}

/// Numbers of files.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of the files that are looked at, and of those that are made.
    pub files: usize,
    /// Of a tree that programs work on.
    pub tree: usize,
}

/// What is there before the work of one turn begins, put there beside the way that is measured.
pub fn prepare(dir: &Path, sizes: Sizes) -> io::Result<()> {
    for folder in ["stat", "read", "long", "new"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    for folder in ["stat", "read", "long"] {
        for number in 0..sizes.files {
            fs::write(file(dir, folder, number), [7; SMALL])?;
        }
    }
    if has("git") {
        let tree = dir.join("tree");
        make_tree(&tree, sizes.tree)?;
        for words in [
            &["init", "-q"][..],
            &["add", "-A"],
            &["commit", "-q", "-m", "all"],
            // Else it would look into files that are as new as its list of them.
            &["update-index", "--refresh"],
        ] {
            run(git(&tree, words))?;
        }
    }
    if has("tar") {
        let tree = dir.join("packed");
        make_tree(&tree, sizes.tree)?;
        let mut pack = Command::new("tar");
        pack.arg("cf").arg(dir.join("packed.tar"));
        run(pack.arg("-C").arg(&tree).arg("."))?;
        fs::remove_dir_all(tree)?;
        fs::create_dir(dir.join("unpacked"))?;
    }
    Ok(())
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| dir.join(program).is_file())
}

fn make_tree(tree: &Path, files: usize) -> io::Result<()> {
    for number in 0..files {
        let dir = tree.join(format!("d{}", number / OF_DIRECTORY));
        if number % OF_DIRECTORY == 0 {
            fs::create_dir_all(&dir)?;
        }
        let mut file = File::create_new(dir.join(format!("f{number}")))?;
        file.write_all(format!("file {number}\n").as_bytes())?;
        // Git reads files that are as young as its list of them.
        file.set_modified(SystemTime::UNIX_EPOCH + OLD)?;
    }
    Ok(())
}

fn file(dir: &Path, folder: &str, number: usize) -> PathBuf {
    dir.join(folder).join(format!("f{number}"))
}

/// Git, away from the settings and locks of whoever runs this.
fn git(tree: &Path, words: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree).args(words);
    for of in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{of}_NAME"), "bench");
        git.env(format!("GIT_{of}_EMAIL"), "bench@localhost");
    }
    git.env("GIT_CONFIG_GLOBAL", "/dev/null");
    git.env("GIT_CONFIG_SYSTEM", "/dev/null");
    // Else it writes its list of files anew, once.
    git.env("GIT_OPTIONAL_LOCKS", "0");
    git
}

fn run(mut command: impl std::borrow::BorrowMut<Command>) -> io::Result<()> {
    let command = command.borrow_mut();
    let done = command.stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let words = String::from_utf8_lossy(&done.stderr);
            let name = command.get_program().to_string_lossy().into_owned();
            Err(io::Error::other(format!("{name}: {}", words.trim())))
        }
    }
}

/// Does all of it in a directory that was prepared; the ns of one operation of each kind.
pub fn perform(dir: &Path, sizes: Sizes) -> io::Result<Vec<(Kind, f64)>> {
    let mut done = Vec::new();
    for kind in KINDS {
        if kind.program().is_none_or(has) {
            let began = Instant::now();
            let count = one(dir, kind, sizes)?;
            done.push((kind, began.elapsed().as_nanos() as f64 / count as f64));
        }
    }
    Ok(done)
}

/// Does one kind, and says how many operations that were.
fn one(dir: &Path, kind: Kind, sizes: Sizes) -> io::Result<usize> {
    let files = sizes.files;
    let each = |perform: &dyn Fn(usize) -> io::Result<()>| (0..files).try_for_each(perform);
    match kind {
        Kind::StatFirst | Kind::StatAgain => {
            each(&|number| fs::symlink_metadata(file(dir, "stat", number)).map(|_| ()))?;
        }
        Kind::ReadFirst | Kind::ReadAgain => each(&|number| {
            let mut bytes = [0; 2 * SMALL];
            let len = File::open(file(dir, "read", number))?.read(&mut bytes)?;
            whole(len, SMALL)
        })?,
        Kind::List => whole(fs::read_dir(dir.join("read"))?.count(), files)?,
        Kind::ListLong | Kind::ListLongAgain => {
            for entry in fs::read_dir(dir.join("long"))? {
                fs::symlink_metadata(entry?.path())?;
            }
        }
        Kind::Make => {
            each(&|number| File::create_new(file(dir, "new", number))?.write_all(&[7; SMALL]))?;
        }
        Kind::Rename => {
            each(&|number| fs::rename(file(dir, "new", number), moved(dir, number)))?;
        }
        Kind::Remove => each(&|number| fs::remove_file(moved(dir, number)))?,
        Kind::MakeDirectory => each(&|number| fs::create_dir(file(dir, "new", number)))?,
        Kind::RemoveDirectory => each(&|number| fs::remove_dir(file(dir, "new", number)))?,
        Kind::GitFirst | Kind::GitAgain => {
            run(git(&dir.join("tree"), &["status", "--porcelain"]))?;
            return Ok(sizes.tree);
        }
        Kind::Unpack => {
            let mut unpack = Command::new("tar");
            unpack.arg("xf").arg(dir.join("packed.tar"));
            run(unpack.arg("-C").arg(dir.join("unpacked")))?;
            return Ok(sizes.tree);
        }
    }
    Ok(files)
}

fn moved(dir: &Path, number: usize) -> PathBuf {
    dir.join("new").join(format!("moved-{number}"))
}

fn whole(found: usize, expected: usize) -> io::Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(io::Error::other(format!("{found} instead of {expected}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_can_be_measured() {
        let dir = std::env::temp_dir().join(format!("tidegate-names-{}", std::process::id()));
        let sizes = Sizes {
            files: 60,
            tree: 120,
        };
        prepare(&dir, sizes).unwrap();
        let done = perform(&dir, sizes).unwrap();
        assert!(
            done.len() >= 12 && done.iter().all(|it| it.1 > 0.0),
            "{done:?}"
        );
        assert!(fs::read_dir(dir.join("new")).unwrap().next().is_none());
        if has("tar") {
            let unpacked = fs::read_dir(dir.join("unpacked")).unwrap().count();
            assert_eq!(unpacked, sizes.tree.div_ceil(OF_DIRECTORY));
        }
        // What is not there is told.
        fs::remove_file(file(&dir, "stat", 7)).unwrap();
        assert!(perform(&dir, sizes).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
