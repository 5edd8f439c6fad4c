//! Whether the mount of the back end is dead: its process was killed, its server shut it out.
//!
//! Calls to a dead mount fail with errors that say nothing of the file. A program must not be told
//! them: what it asked for may have taken effect, and another forwarder can tell. So the thread
//! whose call failed looks at the export's root before it hands its result on. One file alone may
//! honestly be out of reach, where a part of the back end is; the root is not.

use super::{Faults, PosixFiles};
use std::io;
use std::sync::{Arc, OnceLock};
use tidegate_forward::{Access, Errno, JobResult};

/// Errors of calls that may be those of a dead mount. Others are the file's.
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
/// Of them, those that prove it where the root itself answers so. A root that says EIO is that of a
/// bad disk, and programs are to know.
const PROVE: [i32; 7] = [
    libc::ENODEV,
    libc::ESTALE,
    libc::ECONNABORTED,
    libc::EHOSTDOWN,
    libc::ENOTCONN,
    libc::ESHUTDOWN,
    libc::ETIMEDOUT,
];

/// What is known of the mount. Clones know the same.
#[derive(Clone, Default)]
pub(crate) struct DeadMount {
    found: Arc<OnceLock<String>>,
}

impl DeadMount {
    /// Why nothing of this mount may be told any more; None while it lives.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.found.get().map(String::as_str)
    }

    /// Looks at a result before it is handed on.
    pub(super) fn look(&self, files: &PosixFiles, faults: &Faults, result: &JobResult) {
        let suspect = match result {
            JobResult::Io { parts, .. } => parts.iter().any(may_tell),
            JobResult::Op(result) => may_tell(result),
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

/// What the root says if the mount is dead.
pub(crate) fn proof(files: &PosixFiles) -> Option<io::Error> {
    let error = files.look_at_root().err()?;
    let proves = |errno: i32| PROVE.contains(&errno);
    error.raw_os_error().is_some_and(proves).then_some(error)
}

/// Whether a call that ended so shows, with what the root says, that the mount is dead.
pub(super) fn is_proven(files: &PosixFiles, ended: Access) -> bool {
    may_tell::<()>(&Err(ended)) && proof(files).is_some()
}

/// For the log and the last line of the forwarder.
pub(crate) fn words(error: &io::Error) -> String {
    format!(
        "the mount of the back end is dead ({error}): mount it again and start this forwarder again"
    )
}

fn may_tell<T>(result: &Result<T, Access>) -> bool {
    matches!(result, Err(Access::Errno(Errno(errno))) if MAY_TELL.contains(&i32::from(*errno)))
}
