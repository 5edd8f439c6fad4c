//! Where the other programs and libraries of Tidegate are.

use crate::fail::Fail;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File name of the library that `crates/preload` makes.
pub const SHORTCUT: &str = "libtidegate_preload.so";

/// This program, or what was put in its place since it was started, as a new release is.
pub fn own() -> Result<PathBuf, Fail> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Fail::runtime(format!("where this program is: {error}")))?;
    Ok(in_place(own))
}

/// The path under which a program was started, as the kernel tells it: if another file has been put
/// there, or none is there any more, with a word behind it.
fn in_place(told: PathBuf) -> PathBuf {
    let bytes = told.as_os_str().as_bytes();
    match bytes.strip_suffix(b" (deleted)") {
        Some(path) if !told.exists() => Path::new(OsStr::from_bytes(path)).to_path_buf(),
        _ => told,
    }
}

/// A program: beside this one, else on PATH. `needed_for` begins the message if there is none.
pub fn program(name: &str, needed_for: &str) -> Result<PathBuf, Fail> {
    let own = own()?;
    let here = own.parent().unwrap_or(Path::new("/"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(here.to_path_buf()).chain(std::env::split_paths(&path));
    let found = folders.map(|dir| dir.join(name)).find(|it| it.is_file());
    found.ok_or_else(|| {
        Fail::usage(format!(
            "{needed_for} needs the program {name}, which is neither in {} nor on PATH; `make \
             build` builds it: copy it there",
            here.display()
        ))
    })
}

/// A library for LD_PRELOAD: beside this program, as built, or in `../lib`, as installed.
pub fn library(name: &str) -> Option<PathBuf> {
    let own = own().ok()?;
    let here = own.parent()?;
    let installed = here.parent().map(|prefix| prefix.join("lib"));
    let folders = [Some(here.to_path_buf()), installed];
    let mut libraries = folders.into_iter().flatten().map(|dir| dir.join(name));
    // A colon or space ends a name in LD_PRELOAD.
    libraries.find(|path| path.is_file() && !path.to_string_lossy().contains([':', ' ']))
}

/// The library that takes a program's data past the mount, if it is installed.
pub fn shortcut() -> Option<PathBuf> {
    library(SHORTCUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_program_s_place_now_is_it() {
        let there = std::env::current_exe().expect("this one runs");
        assert_eq!(in_place(there.clone()), there);
        let mut told = there.clone().into_os_string();
        told.push(" (deleted)");
        assert_eq!(in_place(told.into()), there);
    }
}
