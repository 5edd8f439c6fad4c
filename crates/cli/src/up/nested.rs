//! Refuses an export inside another one, around another one, or inside a mount of forwarders: what
//! programs do through the one would go past the forwarders of the other.

use crate::fail::Fail;
use crate::members;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_server::seats::is_served;

/// A configuration is read no further.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Checks a directory that is to be exported, given without links. Sees the mounts of this node,
/// what other forwarders hold above, and this user's forwarders on this node below.
pub fn check(export: &Path) -> Result<(), Fail> {
    let shown = export.display();
    if let Some(point) = mount_of(export) {
        let point = point.display();
        return Err(Fail::usage(format!(
            "{shown} lies in a mount of forwarders, {point}: name the directory that those serve, \
             or one elsewhere"
        )));
    }
    if let Some(outer) = export.ancestors().skip(1).find(|outer| is_served(outer)) {
        let outer = outer.display();
        return Err(Fail::usage(format!(
            "{shown} lies in {outer}, which other forwarders serve: use those, or stop them first"
        )));
    }
    let mut served = members::programs()
        .into_iter()
        .filter_map(|words| export_of(&words));
    match served.find(|one| one != export && one.starts_with(export)) {
        None => Ok(()),
        Some(inner) => {
            let inner = inner.display();
            Err(Fail::usage(format!(
                "{inner} in {shown} is served by other forwarders: stop them first, or name a \
                 directory without it"
            )))
        }
    }
}

/// The mount of forwarders in which a directory lies.
fn mount_of(directory: &Path) -> Option<PathBuf> {
    let device = directory.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut mounts = tidegate_client::fuse_mounts().into_iter();
    let is_it = |device: u64| major == 0 && device == u64::from(minor);
    let mount = mounts.find(|one| one.is_tidegates() && is_it(one.device))?;
    Some(mount.point)
}

/// The state directory of this user's forwarders on this node that serve the directory, if it is
/// not this one.
fn own_set(export: &Path, state: &Path) -> Option<PathBuf> {
    let programs = members::programs().into_iter();
    let mut serving = programs.filter(|words| export_of(words).is_some_and(|one| one == export));
    serving.find_map(|words| members::set_of(&words).filter(|folder| folder != state))
}

/// Fails if forwarders of this user on this node serve the directory: nobody needs to try that.
pub fn refuse_own(export: &Path, state: &Path) -> Result<(), Fail> {
    match is_served(export) && own_set(export, state).is_some() {
        true => Err(served(export, state, "")),
        false => Ok(()),
    }
}

/// That others serve the directory; `how` is seen, in words. Names the state directory of this
/// user's forwarders on this node that do, if it is not this one.
pub fn served(export: &Path, state: &Path, how: &str) -> Fail {
    let (whose, theirs) = match own_set(export, state) {
        Some(folder) => (", which are yours", folder.display().to_string()),
        None => ("", "THEIRS".to_string()),
    };
    let export = export.display();
    Fail::usage(format!(
        "{export} is already served by other forwarders{whose}{how}; use those, or stop them \
         first (`tidegate down --state-dir {theirs}`)"
    ))
}

/// The directory that a forwarder with these arguments serves.
fn export_of(words: &[PathBuf]) -> Option<PathBuf> {
    let file = members::configuration(words)?;
    let found = file.metadata().ok()?;
    if !found.is_file() || found.len() > CONFIG_BYTES_MAX {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let table: toml::Table = toml::from_str(&text).ok()?;
    Path::new(table.get("export")?.as_str()?)
        .canonicalize()
        .ok()
}
