//! Detects that the mount of the back end is dead: its process was killed, or its server has
//! evicted it.
//!
//! Calls to a dead mount fail with errors that have nothing to do with the file. A program must not
//! see them: its operation may have taken effect, and another forwarder can find out. So the thread
//! whose call failed looks at the export's root before it reports the result. If only a part of the
//! back end is down, a single file may be unreachable, but the root is not.

use super::PosixFiles;
use crate::storage::Faults;
use std::io;
use std::sync::{Arc, OnceLock};
use tidegate_forward::{Access, Errno, JobResult};

/// Errors that a call may return because the mount is dead. Any other error concerns the file.
const MAY_TELL: [i32; 14] = [
    libc::EIO,
    libc::ENODEV,
    libc::EPIPE,
    libc::ESTALE,
    libc::ECONNABORTED,
    libc::ECONNREFUSED,
    libc::ECONNRESET,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::ENETDOWN,
    libc::ENETUNREACH,
    libc::ENOTCONN,
    libc::ESHUTDOWN,
    libc::ETIMEDOUT,
];
/// Those of these errors that prove a dead mount if the root itself returns them. A root that
/// returns EIO is on a bad disk, and programs must learn of that.
const PROVE: [i32; 7] = [
    libc::ENODEV,
    libc::ESTALE,
    libc::ECONNABORTED,
    libc::EHOSTDOWN,
    libc::ENOTCONN,
    libc::ESHUTDOWN,
    libc::ETIMEDOUT,
];

/// Whether the mount is known to be dead. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct DeadMount {
    found: Arc<OnceLock<String>>,
}

impl DeadMount {
    /// Why no result of this mount may be reported any more; None while it lives.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.found.get().map(String::as_str)
    }

    /// Checks a result before it is reported.
    pub(in crate::storage) fn look(&self, files: &PosixFiles, faults: &Faults, result: &JobResult) {
        let suspect = match result {
            JobResult::Io { parts, .. } => parts.iter().any(may_tell),
            JobResult::Op(result) | JobResult::Change { result, .. } => may_tell(result),
            JobResult::Done => false,
        };
        if !suspect || self.reason().is_some() {
            return;
        }
        let answer = match faults.mount_is_dead() {
            true => Some(io::Error::from_raw_os_error(libc::ENOTCONN)),
            false => proof(files),
        };
        if let Some(error) = answer {
            let why = words(&error);
            tracing::error!("{why}");
            let _ = self.found.set(why);
        }
    }
}

/// The error of the export's root, if the mount is dead.
pub(crate) fn proof(files: &PosixFiles) -> Option<io::Error> {
    let error = files.look_at_root().err()?;
    let proves = |errno: i32| PROVE.contains(&errno);
    error.raw_os_error().is_some_and(proves).then_some(error)
}

/// Whether a call that failed with this error proves, together with what the root returns, that the
/// mount is dead.
pub(super) fn is_proven(files: &PosixFiles, ended: Access) -> bool {
    may_tell::<()>(&Err(ended)) && proof(files).is_some()
}

/// The message for the log and for the forwarder's last line.
pub(crate) fn words(error: &io::Error) -> String {
    format!(
        "the mount of the back end is dead ({error}): mount it again and start this forwarder again"
    )
}

fn may_tell<T>(result: &Result<T, Access>) -> bool {
    matches!(result, Err(Access::Errno(Errno(errno))) if MAY_TELL.contains(&i32::from(*errno)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::ExportOptions;
    use crate::storage::scratch::Scratch;
    use tidegate_wire::Layout;

    #[test]
    fn after_an_error_that_a_dead_mount_gives_the_root_decides() {
        let scratch = Scratch::new("dead");
        let layout = Layout {
            seats: 1,
            stripe: 1 << 20,
        };
        let files = PosixFiles::open(scratch.path(), &ExportOptions::new(layout)).expect("export");
        let is_dead = |faults: &Faults, errno: i32| {
            let mount = DeadMount::default();
            let result = JobResult::Op(Err(Access::Errno(Errno(errno as u16))));
            mount.look(&files, faults, &result);
            mount.reason().is_some()
        };
        let (root_answers, root_is_gone) = (Faults::default(), Faults::dead_mount_at(0));
        for errno in [libc::ESTALE, libc::ENOTCONN, libc::EIO] {
            assert!(!is_dead(&root_answers, errno), "{errno} is of the file");
            assert!(is_dead(&root_is_gone, errno), "{errno} is of the mount");
        }
        assert!(
            !is_dead(&root_is_gone, libc::ENOENT),
            "nobody asks the root"
        );
        assert!(PROVE.contains(&libc::ESTALE) && !PROVE.contains(&libc::EIO));
    }
}
