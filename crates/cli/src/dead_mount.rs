//! A mount whose process is gone: every access says ENOTCONN, and nothing can be mounted in its
//! place before it is taken away.

use crate::errln;
use crate::processes::detach;
use crate::set_mounts;
use rustix::io::Errno;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// For the question whether a mount is dead. One whose forwarders hang answers nothing.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Mounts over one another at one place that are taken away at most.
const STACKED_MAX: usize = 16;

/// Whether a mount of Tidegate is at this place whose process is gone.
pub fn is_dead(point: &Path) -> bool {
    is_tidegates(point) && says_not_connected(point)
}

/// Takes away mounts at this place that this user made with Tidegate and whose processes are gone;
/// prints that it did.
pub fn mend(point: &Path) {
    for _ in 0..STACKED_MAX {
        if !(is_own(point) && says_not_connected(point) && detach(point)) {
            return;
        }
        let point = point.display();
        errln!("tidegate: the mount {point} was dead, its process is gone: took it away");
    }
}

/// What to say of a dead mount, and what to do.
pub fn advice(point: &Path) -> String {
    let point = point.display();
    format!(
        "the mount {point} is dead, its process is gone: `tidegate mount {point}`, with the same \
         options for the forwarders, takes it away and mounts anew"
    )
}

/// The user who mounted what is at this place, if Tidegate did.
fn owner(point: &Path) -> Option<u32> {
    let mount = set_mounts::at(point)?;
    mount.is_tidegates().then_some(mount.owner)
}

/// Whether what is mounted at this place is Tidegate's.
pub fn is_tidegates(point: &Path) -> bool {
    owner(point).is_some()
}

fn is_own(point: &Path) -> bool {
    owner(point) == Some(rustix::process::getuid().as_raw())
}

/// Whether the kernel says that nobody serves the mount. It caches no answer to this question.
fn says_not_connected(point: &Path) -> bool {
    let (answer, answers) = mpsc::channel();
    let point = point.to_path_buf();
    // On its own, so that it may be left behind.
    std::thread::spawn(move || {
        let asked = rustix::fs::statfs(&point);
        // The latter if it has ended just now.
        let dead = [Errno::NOTCONN, Errno::CONNABORTED];
        let _ = answer.send(asked.is_err_and(|errno| dead.contains(&errno)));
    });
    answers.recv_timeout(ANSWER_MAX).unwrap_or(false)
}
