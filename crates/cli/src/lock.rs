//! The lock of a state directory: one command at a time starts or stops what is in it.
//!
//! The kernel lets it go with the last process that has the descriptor, so a command that is killed
//! leaves nothing locked. The file's text says who has the lock. The file stays, but where its
//! directory is removed: then it goes last, and whoever waited for it looks whether it still has
//! its name, since two processes could otherwise lock two files of one name.

use crate::fail::Fail;
use crate::processes;
use crate::state::{LOCK, StateDir};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// How often the file may have been removed by who had the lock, before this gives up.
const ROUNDS_MAX: usize = 16;

/// The text is read no further.
const TEXT_MAX: u64 = 200;

/// The lock of a state directory, for this process and those to which it is passed on.
#[derive(Debug)]
pub struct StateLock {
    file: File,
}

impl StateLock {
    /// Takes the lock of a state directory that exists, for the command `what`. Waits at most
    /// `patience` for a process that has it, and fails with a message that names that process.
    ///
    /// If the lock was passed on to this process, takes over that one. Fails if the directory is
    /// gone, which [`StateDir::is_gone`] tells.
    pub fn take(state: &StateDir, what: &str, patience: Duration) -> Result<StateLock, Fail> {
        let path = state.file(LOCK);
        let failed = |error: &dyn std::fmt::Display| {
            let path = path.display();
            Fail::usage(format!("{path}: {error}; choose another with --state-dir"))
        };
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits() as i32);
        for _ in 0..ROUNDS_MAX {
            let opened = options.open(state.inside(&path));
            let file = match opened {
                Ok(file) => file,
                Err(_) if state.is_gone() => return Err(Fail::runtime(state.removed())),
                Err(error) => return Err(failed(&error)),
            };
            let mut file = passed_on(&file).unwrap_or(file);
            if !wait_for(&file, patience).map_err(|error| failed(&error))? {
                let (dir, seconds) = (state.path().display(), patience.as_secs());
                let who = said(&mut file);
                return Err(Fail::runtime(format!(
                    "{who} starts or stops what is in {dir}, and has not finished after {seconds} s"
                )));
            }
            if state.is_gone() {
                return Err(Fail::runtime(state.removed()));
            }
            // Else who had it has removed the file, and others may have locked another.
            if is_same(&file, &state.inside(&path)) {
                return Ok(StateLock::of(file, what));
            }
        }
        Err(failed(&format!(
            "{ROUNDS_MAX} times another has removed it"
        )))
    }

    fn of(mut file: File, what: &str) -> StateLock {
        // For people and for the message above: the lock holds without it.
        let text = format!("process {} (`tidegate {what}`)\n", std::process::id());
        let _ = file.rewind();
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()));
        StateLock { file }
    }

    /// The lock as the standard input of a child, which takes it over.
    pub fn into_input(self) -> File {
        self.file
    }
}

/// Locks the file, waiting at most so long; false if another process still has it.
fn wait_for(file: &File, patience: Duration) -> Result<bool, Errno> {
    let mut wrong = None;
    let taken = processes::wait_until(patience, || {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => false,
            Err(error) => {
                wrong = Some(error);
                true
            }
            Ok(()) => true,
        }
    });
    wrong.map_or(Ok(taken), Err)
}

/// Whether the file has this name.
fn is_same(file: &File, path: &Path) -> bool {
    let (one, other) = (file.metadata(), std::fs::symlink_metadata(path));
    let pair = one.ok().zip(other.ok());
    pair.is_some_and(|(one, other)| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// The lock that another process has passed on, if standard input is this file. Nothing is standard
/// input afterwards, so no child of this process gets the lock by chance.
fn passed_on(lock: &File) -> Option<File> {
    let passed = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).ok()?;
    let passed = File::from(passed);
    let (one, other) = (lock.metadata().ok()?, passed.metadata().ok()?);
    if (one.dev(), one.ino()) != (other.dev(), other.ino()) {
        return None;
    }
    let nothing = File::open("/dev/null").ok()?;
    rustix::stdio::dup2_stdin(&nothing).ok()?;
    Some(passed)
}

/// Who has the lock, by the file's text.
fn said(file: &mut File) -> String {
    let mut text = String::new();
    // Another process may just be writing it.
    let _ = file.rewind();
    let _ = file.take(TEXT_MAX).read_to_string(&mut text);
    match text.trim() {
        "" => "another process".to_string(),
        who => who.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_lock_and_the_others_are_told_who() {
        let folder = format!("tidegate-lock-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let state = StateDir::choose(Some(&folder));
        state.create().expect("fresh");
        let lock = StateLock::take(&state, "up /data", Duration::ZERO).expect("it is free");
        let refused = StateLock::take(&state, "down", Duration::ZERO).expect_err("it is taken");
        let who = format!(
            "process {} (`tidegate up /data`) starts",
            std::process::id()
        );
        assert!(refused.message.starts_with(&who), "{}", refused.message);
        let passed = lock.into_input();
        StateLock::take(&state, "down", Duration::ZERO).expect_err("it is passed on");
        drop(passed);
        StateLock::take(&state, "down", Duration::ZERO).expect("it is free again");
        std::fs::remove_dir_all(&folder).expect("ours");
    }
    #[test]
    fn a_lock_that_was_removed_is_not_taken() {
        let folder = format!("tidegate-lock-removed-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let state = StateDir::choose(Some(&folder));
        state.create().expect("fresh");
        let first = StateLock::take(&state, "down", Duration::ZERO).expect("it is free");
        let waiter = std::thread::spawn({
            let state = state.clone();
            move || StateLock::take(&state, "up", Duration::from_secs(60))
        });
        // Most often the other waits by now; the end is the same if not.
        std::thread::sleep(Duration::from_millis(100));
        std::fs::remove_file(folder.join(LOCK)).expect("ours");
        drop(first);
        let second = waiter.join().expect("no panic").expect("it is free");
        assert!(is_same(&second.file, &folder.join(LOCK)));
        StateLock::take(&state, "down", Duration::ZERO).expect_err("it is taken");
        std::fs::remove_dir_all(&folder).expect("ours");
        drop(second);
        let gone = StateLock::take(&state, "up", Duration::ZERO).expect_err("no directory");
        assert!(gone.message.contains("try again"), "{}", gone.message);
    }
}
