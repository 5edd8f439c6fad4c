//! Checks that only the forwarder's own user can take the hidden folder away.
//!
//! Whoever may write to the root of the export can rename `.tidegate`, unless the root has the
//! sticky bit. A forwarder that starts after that makes another one, and takes seats that are held
//! by way of the first.

use super::StartError;
use crate::config::Config;
use std::os::unix::fs::MetadataExt;

/// The sticky bit: only its owner, and that of the directory, may rename or remove an entry.
const STICKY: u32 = 0o1000;

/// Refuses a root in which others could rename the hidden folder, unless the configuration accepts
/// it.
pub(super) fn check(config: &Config) -> Result<(), StartError> {
    let path = &config.export;
    let found = std::fs::metadata(path).map_err(|error| StartError::Directory {
        path: path.clone(),
        error,
    })?;
    let is_root = rustix::process::geteuid().is_root();
    if config.ownership.unguarded_root || !is_unguarded(found.mode(), found.gid(), is_root) {
        return Ok(());
    }
    Err(StartError::NotFit(format!(
        "export {path}: others may write to its root and so rename .tidegate, after which two \
         forwarders could serve the same files; set the sticky bit (`chmod +t {path}`), or set \
         unguarded_root = true in [ownership] if nobody will",
        path = path.display()
    )))
}

/// Whether others than the owner may rename entries of a directory. The group of root counts as
/// root, and the group of a user's own directory as the user.
fn is_unguarded(mode: u32, gid: u32, is_root: bool) -> bool {
    let group = mode & 0o020 != 0 && is_root && gid != 0;
    mode & STICKY == 0 && (mode & 0o002 != 0 || group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_guarded_by_its_mode_or_the_sticky_bit() {
        for is_root in [false, true] {
            assert!(is_unguarded(0o40777, 0, is_root));
            assert!(is_unguarded(0o40772, 100, is_root));
            assert!(!is_unguarded(0o41777, 100, is_root));
            assert!(!is_unguarded(0o40755, 100, is_root));
            assert!(!is_unguarded(0o40775, 0, is_root));
        }
        assert!(is_unguarded(0o42775, 100, true), "a folder of a project");
        assert!(!is_unguarded(0o40775, 100, false), "a user's own umask");
    }
}
