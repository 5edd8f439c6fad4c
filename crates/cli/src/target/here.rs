//! The forwarders of the mount that root has made on this node, as the mount tells them: so users
//! of a cluster's node need no configuration of their own.

use crate::fail::Fail;
use crate::state::ClientFile;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::{Path, PathBuf};
use tidegate_client::shortcut::reached;
use tidegate_client::{Encryption, FuseMount, Options, fuse_mounts};

/// What `tidegate run` sets for programs.
pub(super) const MOUNT: &str = "TIDEGATE_MOUNT";

/// What there is of root's mounts.
pub(super) enum OfMount {
    /// The forwarders of the one that is meant, and where users get tickets for them.
    Found(Box<ClientFile>),
    /// Of several, none is meant more than the others.
    Several(Vec<PathBuf>),
    /// There is none.
    None,
}

/// Finds the forwarders of the mount that is meant.
pub(super) fn of_mount() -> Result<OfMount, Fail> {
    let mut mounts = fuse_mounts();
    mounts.retain(|mount| mount.owner == 0 && mount.is_tidegates());
    let mut points = choose(mounts, &is_reached);
    let Some(point) = points.pop() else {
        return Ok(OfMount::None);
    };
    if !points.is_empty() {
        points.push(point);
        return Ok(OfMount::Several(points));
    }
    let wrong = |what: &dyn std::fmt::Display| {
        let place = point.display();
        Fail::runtime(format!("the mount {place}: {what}"))
    };
    let way = reached(&point).map_err(|error| wrong(&error))?;
    let options = Options::from_text(&way).map_err(|error| wrong(&error))?;
    let encryption = options.encryption;
    Ok(OfMount::Found(Box::new(ClientFile {
        forwarders: options.forwarders,
        secret_file: options.secret_file,
        // In a container the mount may be elsewhere than its process says.
        tickets: options.tickets.map(|_| point.clone()),
        encryption: (encryption != Encryption::default()).then(|| encryption.name().to_string()),
        mount: Some(point.clone()),
        told_by: Some(point),
        ..ClientFile::default()
    })))
}

/// Whether a mount is what this process finds at its place: others may hide it, or its place be
/// removed or of another user. Asks the kernel alone, for the mount may hang.
fn is_reached(mount: &FuseMount) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let found = statx(CWD, &mount.point, flags, StatxFlags::empty());
    found.is_ok_and(|found| {
        (found.stx_dev_major, u64::from(found.stx_dev_minor)) == (0, mount.device)
    })
}

/// The mount under which this process works, else all that it reaches.
fn choose(mut mounts: Vec<FuseMount>, is_reached: &dyn Fn(&FuseMount) -> bool) -> Vec<PathBuf> {
    let here = [
        std::env::var_os(MOUNT).map(PathBuf::from),
        std::env::current_dir().ok(),
    ];
    let is_at = |place: &Path, mount: &&FuseMount| place.starts_with(&mount.point);
    for place in here.iter().flatten() {
        // The latest hides those before it.
        let at = mounts.iter().filter(|mount| is_at(place, mount));
        if let Some(mount) = at.max_by_key(|mount| mount.point.components().count()) {
            return vec![mount.point.clone()];
        }
    }
    if mounts.len() > 1 {
        mounts.retain(is_reached);
    }
    let mut points: Vec<PathBuf> = mounts.into_iter().map(|mount| mount.point).collect();
    points.sort();
    points.dedup();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mount_is_meant_and_of_several_none() {
        let mount = |point: &str| FuseMount {
            point: point.into(),
            device: 1,
            kind: "fuse.tidegate".to_string(),
            owner: 0,
        };
        let choose = |mounts| choose(mounts, &|mount| mount.point != Path::new("/gone"));
        assert_eq!(choose(Vec::new()), [""; 0].map(PathBuf::from));
        let (a, b) = (PathBuf::from("/nowhere/a"), PathBuf::from("/nowhere/b"));
        let one = choose(vec![mount("/nowhere/a"), mount("/nowhere/a")]);
        assert_eq!(one, std::slice::from_ref(&a));
        let two = choose(vec![mount("/nowhere/a"), mount("/nowhere/b")]);
        assert_eq!(two, [a.clone(), b], "which?");
        // What is wrong with the only one is to be told.
        assert_eq!(choose(vec![mount("/gone")]), [PathBuf::from("/gone")]);
        assert_eq!(choose(vec![mount("/gone"), mount("/nowhere/a")]), [a]);
        let here = std::env::current_dir().expect("there is one");
        let here = here.to_str().expect("a plain name");
        let nearest = choose(vec![mount(here), mount("/nowhere/b"), mount("/")]);
        assert_eq!(nearest, [PathBuf::from(here)]);
    }

    #[test]
    fn a_place_that_is_another_file_system_is_no_mount_that_is_reached() {
        let mount = |point: &str, device| FuseMount {
            point: point.into(),
            device,
            kind: "fuse.tidegate".to_string(),
            owner: 0,
        };
        let found = std::fs::metadata("/proc").expect("it is mounted");
        let device = u64::from(rustix::fs::minor(std::os::unix::fs::MetadataExt::dev(
            &found,
        )));
        assert!(is_reached(&mount("/proc", device)));
        assert!(!is_reached(&mount("/proc", device + 1)));
        assert!(!is_reached(&mount("/nowhere/at/all", device)));
    }
}
