//! A mount that lasts as long as one `tidegate run`, at a directory that the run makes for it.
//! However the run ends, both go.

use super::watcher::Watcher;
use crate::dead_mount;
use crate::fail::Fail;
use crate::mount;
use crate::state::temporary_folder;
use std::ffi::{CStr, CString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use tidegate_client::Client;
use tidegate_mount::Mounted;
use tidegate_server::config::rule::View;

/// How often a process is tried to be started that unmounts, 100 ms apart.
const FORK_TRIES: u32 = 600;

/// Names that are tried for the directory.
const NAMES_MAX: u32 = 100;

/// See the head of the file.
pub struct OwnMount {
    folder: PathBuf,
    mounted: Option<Mounted>,
    watcher: Option<Watcher>,
}

impl OwnMount {
    /// Makes the directory and mounts there.
    pub fn make(client: &Arc<Client>, view: Option<&View>) -> Result<OwnMount, Fail> {
        let folder = make_folder()?;
        let mut own = OwnMount {
            folder,
            mounted: None,
            watcher: None,
        };
        let path = CString::new(own.folder.as_os_str().as_bytes()).map_err(Fail::runtime)?;
        let watcher = Watcher::start(None, || take_away(&path));
        own.watcher = Some(watcher.map_err(|error| {
            Fail::runtime(format!(
                "the process that is to take the mount away cannot be started: {error}"
            ))
        })?);
        own.mounted = Some(mount::mount(client, &own.folder, view)?);
        Ok(own)
    }

    /// Where it is.
    pub fn point(&self) -> &Path {
        &self.folder
    }

    /// Takes both away.
    pub fn end(self) {}
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmount();
        }
        // Busy while something is still mounted there, as where this user may start no more
        // processes and so no fusermount3. Then the watcher does it when this process has ended.
        let is_gone = match std::fs::remove_dir(&self.folder) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if let Some(watcher) = self.watcher.take().filter(|_| is_gone) {
            watcher.dismiss();
        }
    }
}

/// Makes the directory. Others may have taken its name: a run in another process namespace, or one
/// with the same number before that was killed together with its watcher. What such a one has left
/// is taken away if it is a dead mount of this user's.
fn make_folder() -> Result<PathBuf, Fail> {
    make_in(temporary_folder())
}

fn make_in(folder: PathBuf) -> Result<PathBuf, Fail> {
    // The watcher works elsewhere, and so may the program.
    let folder = std::path::absolute(folder).map_err(Fail::runtime)?;
    let name = format!("tidegate-run-{}", std::process::id());
    let more = (1..NAMES_MAX).map(|i| format!("{name}-{i}"));
    let mut failed = None;
    for name in std::iter::once(name.clone()).chain(more) {
        let path = folder.join(name);
        let mut made = std::fs::create_dir(&path);
        if is_there(&made) && dead_mount::is_dead(&path) {
            dead_mount::mend(&path);
            // Fails if it is another user's, or not taken away.
            if std::fs::remove_dir(&path).is_ok() {
                made = std::fs::create_dir(&path);
            }
        }
        let is_taken = is_there(&made);
        match made {
            Ok(()) => return Ok(path),
            Err(error) => {
                failed = Some(format!(
                    "a directory for this run's own mount, {}: {error}; set TMPDIR to one that \
                     you may write to",
                    path.display()
                ));
            }
        }
        if !is_taken {
            break;
        }
    }
    Err(Fail::runtime(failed.unwrap_or_default()))
}

fn is_there(made: &std::io::Result<()>) -> bool {
    made.as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
}

/// Forks, and tries again for a while if this user has as many processes as he may.
///
/// # Safety
/// As for fork.
unsafe fn fork_in_time() -> libc::pid_t {
    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    for _ in 0..FORK_TRIES {
        // SAFETY: the caller answers for it, and the pause is a constant.
        unsafe {
            let child = libc::fork();
            if child >= 0 {
                return child;
            }
            libc::nanosleep(&raw const pause, null_mut());
        }
    }
    -1
}

/// Takes the mount and its directory away, by system calls alone.
fn take_away(path: &CStr) {
    let flags = libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW;
    // SAFETY: strings, and lists of strings that end.
    unsafe {
        if libc::umount2(path.as_ptr(), flags) != 0 {
            let words = [c"fusermount3", c"-uz", c"--", path].map(CStr::as_ptr);
            let words = [words[0], words[1], words[2], words[3], null()];
            let child = fork_in_time();
            if child == 0 {
                // It has nothing to say that anybody could act on.
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                libc::dup2(null, libc::STDERR_FILENO);
                libc::execvp(words[0], words.as_ptr());
                libc::_exit(127);
            }
            libc::waitpid(child, null_mut(), 0);
        }
        libc::rmdir(path.as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_told_with_the_variable() {
        let fail = make_in("/nowhere/at/all".into()).expect_err("there is none");
        assert!(
            fail.message.contains("/nowhere/at/all/tidegate-run-"),
            "{}",
            fail.message
        );
        assert!(fail.message.contains("set TMPDIR"), "{}", fail.message);
    }
}
