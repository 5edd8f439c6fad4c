//! The forwarders of the mount that root has made on this node, as the mount tells them: so users
//! of a cluster's node need no configuration of their own.

use crate::fail::Fail;
use crate::state::ClientFile;
use std::path::{Path, PathBuf};
use tidegate_client::shortcut::reached;
use tidegate_client::{Encryption, FuseMount, Options, fuse_mounts};

/// What `tidegate run` sets for programs.
const MOUNT: &str = "TIDEGATE_MOUNT";

/// The forwarders of the mount that is meant, and where users get tickets for them; None if there
/// is no mount of root.
pub(super) fn of_mount() -> Result<Option<ClientFile>, Fail> {
    let mut mounts = fuse_mounts();
    mounts.retain(|mount| mount.owner == 0 && mount.source == crate::processes::MOUNT_SOURCE);
    let Some(point) = choose(mounts)? else {
        return Ok(None);
    };
    let wrong = |what: &dyn std::fmt::Display| {
        let place = point.display();
        Fail::runtime(format!("the mount {place}: {what}"))
    };
    let way = reached(&point).map_err(|error| wrong(&error))?;
    let options = Options::from_text(&way).map_err(|error| wrong(&error))?;
    let encryption = options.encryption;
    Ok(Some(ClientFile {
        forwarders: options.forwarders,
        secret_file: options.secret_file,
        // In a container the mount may be elsewhere than its process says.
        tickets: options.tickets.map(|_| point.clone()),
        encryption: (encryption != Encryption::default()).then(|| encryption.name().to_string()),
        mount: Some(point.clone()),
        told_by: Some(point),
        ..ClientFile::default()
    }))
}

/// The mount under which this process works, else the only one.
fn choose(mounts: Vec<FuseMount>) -> Result<Option<PathBuf>, Fail> {
    let here = [
        std::env::var_os(MOUNT).map(PathBuf::from),
        std::env::current_dir().ok(),
    ];
    let is_at = |place: &Path, mount: &&FuseMount| place.starts_with(&mount.point);
    for place in here.iter().flatten() {
        // The latest hides those before it.
        let at = mounts.iter().filter(|mount| is_at(place, mount));
        if let Some(mount) = at.max_by_key(|mount| mount.point.components().count()) {
            return Ok(Some(mount.point.clone()));
        }
    }
    let mut points: Vec<PathBuf> = mounts.into_iter().map(|mount| mount.point).collect();
    points.sort();
    points.dedup();
    match points.len() {
        0 | 1 => Ok(points.pop()),
        _ => {
            let points: Vec<String> = points.iter().map(|it| it.display().to_string()).collect();
            Err(Fail::usage(format!(
                "there are several mounts ({}); name one in {MOUNT}, or work in one",
                points.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mount_is_meant_and_of_several_none() {
        let mount = |point: &str| FuseMount {
            point: point.into(),
            device: 1,
            source: "tidegate".to_string(),
            owner: 0,
        };
        assert_eq!(choose(Vec::new()).ok(), Some(None));
        let one = choose(vec![mount("/nowhere/a"), mount("/nowhere/a")]).ok();
        assert_eq!(one, Some(Some("/nowhere/a".into())));
        let two = choose(vec![mount("/nowhere/a"), mount("/nowhere/b")]).expect_err("which?");
        assert!(
            two.message.contains("/nowhere/a, /nowhere/b"),
            "{}",
            two.message
        );
        let here = std::env::current_dir().expect("there is one");
        let here = here.to_str().expect("a plain name");
        let nearest = choose(vec![mount(here), mount("/nowhere/b"), mount("/")]).ok();
        assert_eq!(nearest, Some(Some(here.into())));
    }
}
