//! A mount for one test, and the programs that use it.

use crate::local::Local;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_mount::{Checks, MountError, MountOptions, Mounted, mount_over};

/// How long a killed process may stay.
pub const GONE: Duration = Duration::from_secs(1);
/// How long anything else may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A directory, and a mount of it.
pub struct Mount {
    pub local: Arc<Local>,
    pub mounted: Mounted,
    pub base: PathBuf,
}

impl Mount {
    /// A mount, or `None` with a line that says why where none can be made.
    pub fn new(name: &str) -> Option<Self> {
        let base =
            std::env::temp_dir().join(format!("tidegate-files-{name}-{}", std::process::id()));
        fs::create_dir_all(base.join("mnt")).expect("a mount point");
        fs::create_dir_all(base.join("dir")).expect("a directory");
        let local = Local::new(&base.join("dir"));
        let options = MountOptions {
            path: base.join("mnt"),
            allow_other: true,
            checks: Checks::Kernel,
            name: "tidegate-test".into(),
            directory: PathBuf::new(),
            application: None,
            ticket_life: Duration::ZERO,
        };
        match mount_over(Arc::clone(&local) as _, options) {
            Ok(mounted) => Some(Self {
                local,
                mounted,
                base,
            }),
            Err(error @ (MountError::Path { .. } | MountError::Stale(_))) => panic!("{error}"),
            Err(error) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
                panic!("no mount: {error}");
            }
            Err(error) => {
                println!("SKIP: {error}");
                fs::remove_dir_all(&base).expect("removed");
                None
            }
        }
    }

    /// A name on the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.base.join("mnt").join(name)
    }

    /// The same name behind it.
    pub fn behind(&self, name: &str) -> PathBuf {
        self.base.join("dir").join(name)
    }

    pub fn freeze(&self, frozen: bool) {
        self.local.frozen.store(frozen, Ordering::SeqCst);
    }

    pub fn waiting(&self) -> usize {
        self.local.waiting.load(Ordering::SeqCst)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.freeze(false);
        assert!(self.mounted.unmount());
        self.mounted.wait();
        if !std::thread::panicking() {
            assert_eq!(
                self.local.open.load(Ordering::SeqCst),
                0,
                "a file was not closed"
            );
        }
        fs::remove_dir_all(&self.base).expect("removed");
    }
}

pub fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "{what} took more than {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn gone(child: &mut Child) -> bool {
    child.try_wait().expect("our child").is_some()
}

pub fn read_write(path: &Path) -> File {
    let mut options = File::options();
    options.create(true).read(true).write(true).truncate(false);
    options.open(path).expect("opened")
}

/// A Python program with the path of a file as its argument and pipes to and from it, or `None`
/// with a line that says that there is no Python.
pub fn python(program: &str, path: &Path) -> Option<Child> {
    let mut python = Command::new("python3");
    python
        .arg("-c")
        .arg(program)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    match python.spawn() {
        Ok(child) => Some(child),
        Err(error) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
            panic!("no python3: {error}");
        }
        Err(error) => {
            println!("SKIP: no python3: {error}");
            None
        }
    }
}

/// The next line that a program prints.
pub fn line(child: &mut Child) -> String {
    let output = child.stdout.as_mut().expect("a pipe");
    let (mut line, mut byte) = (Vec::new(), [0]);
    while output.read(&mut byte).expect("output") == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}

/// Lets a program that waits for a line go on.
pub fn go_on(child: &mut Child) {
    let input = child.stdin.as_mut().expect("a pipe");
    input.write_all(b"\n").expect("a pipe");
}
