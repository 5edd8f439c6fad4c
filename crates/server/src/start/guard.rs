//! Checks that only the forwarder's own user can take the hidden folder or a socket away.
//!
//! Whoever may write to the root of the export can rename `.tidegate`, unless the root has the
//! sticky bit. A forwarder that starts after that makes another one, and takes seats that are held
//! by way of the first.

use super::StartError;
use crate::acting::Acting;
use crate::config::{Config, Place};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// Refuses to listen in a directory in which others could put a socket of their own in the place of
/// the forwarder's, and so receive what clients ask and answer it.
pub(super) fn check_sockets(config: &Config) -> Result<(), StartError> {
    let own = rustix::process::geteuid();
    for address in &config.listen {
        let Place::Unix(path) = &address.place else {
            continue;
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // Binding tells what else is wrong.
        let Ok(found) = std::fs::metadata(parent) else {
            continue;
        };
        let is_foreign = ![0, own.as_raw()].contains(&found.uid());
        let others = is_foreign || is_unguarded(found.mode(), found.gid(), own.is_root());
        if others && !config.unguarded_sockets {
            return Err(StartError::NotFit(format!(
                "listen \"{address}\": others may replace the socket by one of their own; take \
                 from them the right to write {parent} (or choose another directory), or set \
                 unguarded_sockets = true if nobody will",
                parent = parent.display()
            )));
        }
    }
    Ok(())
}

/// Refuses to start where there are callers as whom this process, though it is root, cannot act.
pub(super) fn check_acting() -> Result<(), StartError> {
    match Acting::of_process() {
        Acting::Refused(why) => return Err(StartError::NotFit(why.into())),
        Acting::Alone(why) => tracing::warn!("serves its own user only: {why}"),
        Acting::ForCallers(_) | Acting::ForItself => {}
    }
    Ok(())
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
    use crate::storage::scratch::Scratch;

    #[test]
    fn a_socket_is_not_made_where_others_could_replace_it() {
        let scratch = Scratch::new("guard-sockets");
        let at = scratch.path().join("run");
        std::fs::create_dir(&at).expect("room");
        let address = format!("unix:{}/socket", at.display());
        let address = address.parse().expect("an address");
        let mut config = Config::local(scratch.path(), address);
        let mut checked = |mode, unguarded| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&at, mode).expect("it is ours");
            config.unguarded_sockets = unguarded;
            check_sockets(&config)
        };
        assert!(checked(0o755, false).is_ok());
        assert!(checked(0o1777, false).is_ok());
        let refused = checked(0o777, false)
            .expect_err("others may write")
            .to_string();
        assert!(refused.contains("unguarded_sockets"), "{refused}");
        assert!(checked(0o777, true).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&at, Some(12_345), None).expect("root may");
            assert!(checked(0o755, false).is_err(), "its owner may write");
        }
    }

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
