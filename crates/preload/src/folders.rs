//! Paths of a name in the folders of `PATH`, and whether such a path is that of a program.

use crate::redirect::{PATH_MAX, PATH_USUAL};
use libc::{AT_FDCWD, c_char, mode_t};
use std::ffi::CStr;

/// Where glibc looks if the environment has no `PATH`.
const USUAL: &[u8] = b"/bin:/usr/bin";

/// The folders.
///
/// # Safety
/// The program that is calling does not change its environment meanwhile.
pub(crate) unsafe fn folders() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: a variable is a string.
    let path = unsafe {
        let path = libc::getenv(c"PATH".as_ptr());
        match path.is_null() {
            true => USUAL,
            false => CStr::from_ptr(path).to_bytes(),
        }
    };
    path.split(|byte| *byte == b':')
}

/// Calls `run` with the path of a name in a folder, unless that is too long.
pub(crate) fn with_path(folder: &[u8], name: &CStr, run: &mut dyn FnMut(*const c_char)) {
    let folder = if folder.is_empty() { b"." } else { folder };
    let len = folder.len() + 1 + name.to_bytes_with_nul().len();
    if len <= PATH_USUAL {
        joined::<PATH_USUAL>(folder, name, run);
    } else if len <= PATH_MAX {
        joined::<PATH_MAX>(folder, name, run);
    }
}

/// Not inlined: the caller may have little stack.
#[inline(never)]
fn joined<const ROOM: usize>(folder: &[u8], name: &CStr, run: &mut dyn FnMut(*const c_char)) {
    let mut room = [0u8; ROOM];
    let name = name.to_bytes_with_nul();
    let (first, last) = room.split_at_mut(folder.len());
    first.copy_from_slice(folder);
    last[0] = b'/';
    last[1..][..name.len()].copy_from_slice(name);
    run(room.as_ptr().cast());
}

/// The kind and rights of the file of a path, past the hooks.
///
/// # Safety
/// A string.
pub(crate) unsafe fn mode(path: *const c_char) -> mode_t {
    let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a string, and room for the answer.
    unsafe {
        let room = found.as_mut_ptr();
        match libc::syscall(libc::SYS_newfstatat, AT_FDCWD, path, room, 0) {
            0 => found.assume_init().st_mode,
            _ => 0,
        }
    }
}

/// Whether this process may start the file of a path.
///
/// # Safety
/// A string.
pub(crate) unsafe fn is_program(path: *const c_char) -> bool {
    // SAFETY: a string.
    unsafe {
        let is_ours = libc::syscall(libc::SYS_faccessat, AT_FDCWD, path, libc::X_OK) == 0;
        is_ours && mode(path) & libc::S_IFMT == libc::S_IFREG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_follows_its_folder() {
        let of = |folder: &[u8], name: &CStr| {
            let mut found = None;
            with_path(folder, name, &mut |path| {
                // SAFETY: a string.
                found = Some(unsafe { CStr::from_ptr(path) }.to_bytes().to_vec());
            });
            found
        };
        assert_eq!(of(b"/bin", c"sh").as_deref(), Some(&b"/bin/sh"[..]));
        assert_eq!(of(b"", c"sh").as_deref(), Some(&b"./sh"[..]));
        for len in [PATH_USUAL, PATH_MAX] {
            for len in [len - 5, len - 4, len - 3] {
                let found = of(&vec![b'x'; len], c"sh");
                assert_eq!(found.is_some(), len + 4 <= PATH_MAX);
                assert!(found.is_none_or(|found| found.len() == len + 3));
            }
        }
    }
}
