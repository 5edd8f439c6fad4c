//! `tidegate bench`, `sim`, `report`, `demo`, `completions` and `man` become `tidegate-lab`,
//! wherever it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with a `tidegate` in it.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Installed {
        let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("elsewhere")).expect("the temporary directory is ours");
        let installed = Installed(dir);
        let program = env!("CARGO_BIN_EXE_tidegate");
        installed.make("cp \"$1\" \"$0\"", "tidegate", program);
        installed
    }

    /// Has a shell make the file $0 of $1. A descriptor for writing of this process could be
    /// inherited by another test's child, and then the kernel refuses to run the file.
    fn make(&self, script: &str, file: &str, of: &str) {
        let mut shell = Command::new("sh");
        let made = shell.arg("-c").arg(script).arg(self.0.join(file)).arg(of);
        assert!(made.status().expect("there is a shell").success(), "{file}");
    }

    /// A laboratory that prints what it is asked, and ends with 7.
    fn add_lab(&self, folder: &str) {
        let path = Path::new(folder).join("tidegate-lab");
        let path = path.to_str().expect("it is ASCII");
        let program = "#!/bin/sh\nprintf '[%s]' \"$@\"\nexit 7\n";
        self.make(
            "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"",
            path,
            program,
        );
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.0.join("elsewhere").display());
        Command::new(self.0.join("tidegate"))
            .args(arguments)
            .env("PATH", path)
            .output()
            .expect("it can be run")
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the laboratory was asked.
fn asked(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_argument_is_handed_over() {
    for place in ["", "elsewhere"] {
        let installed = Installed::new(&format!("lab{}", place.len()));
        installed.add_lab(place);
        let cases: [(&[&str], &str); 4] = [
            (&["sim"], "[sim]"),
            (&["bench", "--help"], "[bench][--help]"),
            (&["demo", "--json", "--", "-x"], "[demo][--json][--][-x]"),
            (&["report", "a b", "--svg", ""], "[report][a b][--svg][]"),
        ];
        for (arguments, expected) in cases {
            assert_eq!(asked(&installed.run(arguments)), expected);
        }
    }
}

#[test]
fn without_it_one_line_says_what_to_install() {
    let installed = Installed::new("nolab");
    let output = installed.run(&["sim", "--list"]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    let place = Path::new(&installed.0).display().to_string();
    for word in [
        "`tidegate sim`",
        "tidegate-lab",
        &place,
        "PATH",
        "make build",
    ] {
        assert!(line.contains(word), "{line} does not say {word}");
    }
    assert_eq!(line.lines().count(), 1, "{line}");
}

#[test]
fn the_help_lists_its_commands() {
    let output = Installed::new("labhelp").run(&["--help"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for command in ["sim", "report", "bench", "demo", "completions", "man"] {
        assert!(text.contains(&format!("\n  {command} ")), "{text}");
    }
}
