//! A pid file that proves itself: the process that wrote it keeps it locked as long as it lives.
//!
//! A number in a file may be older than the process that has this number now. The kernel tells who
//! holds a lock, and lets it go with the process. So whoever looks for the process believes the
//! lock, and not the text, which is for people and scripts.

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The pid file of this process.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    /// Holds the lock. The process must not open the file again: closing any descriptor of the file
    /// lets the lock go.
    _file: File,
}

impl PidFile {
    /// Writes the file, readable to all. Fails if the process that wrote it earlier still runs, or
    /// if the path is a symbolic link.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o644);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let mut file = options.open(path)?;
        let locked = match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
                return Err(io::Error::other("the process that wrote it still runs"));
            }
            // A file system without locks: the text alone is left.
            locked => locked.is_ok(),
        };
        file.set_len(0)?;
        fill(&mut file, path, locked)?;
        Ok(PidFile {
            path: path.to_owned(),
            _file: file,
        })
    }

    /// Removes the file. Must be called before another process may write it.
    pub fn remove(self) {
        // Somebody else's clean-up may have been quicker.
        let _ = std::fs::remove_file(&self.path);
    }

    /// The live process that wrote the file; None if there is none.
    pub fn holder(path: &Path) -> Option<Pid> {
        let mut options = File::options();
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let options = options.read(true).custom_flags(flags.bits() as i32);
        let file = options.open(path).ok()?;
        let asked = Flock::from(FlockType::WriteLock);
        let found = fcntl_getlk(&file, &asked).ok()??;
        // To lock it so takes the right to write it.
        found.pid.filter(|_| found.typ == FlockType::WriteLock)
    }
}

/// Writes this process's number. Without room for it, takes a locked file away: a file
/// without a number stands for nobody. One without a lock may be a live process's.
fn fill(file: &mut impl Write, path: &Path, locked: bool) -> io::Result<()> {
    writeln!(file, "{}", std::process::id()).inspect_err(|_| {
        if locked {
            let _ = std::fs::remove_file(path);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;

    #[test]
    fn only_a_locked_file_is_taken_away_where_there_is_no_room() {
        let scratch = Scratch::new("pid-full");
        let path = scratch.path().join("x.pid");
        std::fs::write(&path, "").expect("room");
        // A slice takes no byte more than it has.
        fill(&mut &mut [0_u8; 0][..], &path, false).expect_err("no room");
        assert!(path.exists(), "it may be another's");
        fill(&mut &mut [0_u8; 0][..], &path, true).expect_err("no room");
        assert!(!path.exists());
    }

    #[test]
    fn a_text_alone_names_no_process_and_a_link_is_not_followed() {
        let scratch = Scratch::new("pid");
        let path = scratch.path().join("x.pid");
        std::fs::write(&path, format!("{}\n", std::process::id())).expect("room");
        assert_eq!(PidFile::holder(&path), None, "nobody holds it");
        let (link, aim) = (scratch.path().join("link"), scratch.path().join("aim"));
        std::os::unix::fs::symlink(&aim, &link).expect("room");
        PidFile::write(&link).expect_err("a link");
        assert!(!aim.exists());
        let written = PidFile::write(&path).expect("nobody holds it");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert_eq!(text, format!("{}\n", std::process::id()));
        written.remove();
        assert!(!path.exists());
    }
}
