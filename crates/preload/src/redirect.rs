//! Leads names of the exported directory itself to the mount, so that a program that was given such
//! a name works through the forwarders. `names.rs` has the calls that take names.
//!
//! A name is looked at as the text that it is: one that leads to the directory by a symbolic link
//! elsewhere is left alone (`count` tells of files that are written so). Relative names that climb
//! out of the mount by `..` lead to what is above the directory, where the user began. Other
//! programs' names cost the comparison of a few bytes.

use crate::mounted::Mount;
use crate::paths::{absolute, begins, below, climb, stays};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, Ordering};

/// Bytes of a path with its NUL, as in Linux.
pub(crate) const PATH_MAX: usize = 4096;

/// Room for most paths. Threads and signal handlers may have little stack: there is more room on it
/// only for what needs more.
pub(crate) const PATH_USUAL: usize = 512;

/// Lowest and highest address that can be a program's, on any machine: an aarch64 has its heap and
/// stack above 1 << 47. The kernel says EFAULT for others.
const ADDRESSES: std::ops::Range<usize> = 4096..(1 << 56);

/// The directory and the mount, without `.`, `..` and repeated slashes.
struct Places {
    /// Empty if it is not known.
    export: Vec<u8>,
    mount: Vec<u8>,
    /// What `..` of the mount stands for; None if for the folder where the mount is.
    above: Option<Vec<u8>>,
    /// Where names are led; None if they are left as they are.
    target: Option<Mount>,
}

static PLACES: AtomicPtr<Places> = AtomicPtr::new(ptr::null_mut());

/// Where the process works.
static HERE: AtomicU8 = AtomicU8::new(ELSEWHERE);
const ELSEWHERE: u8 = 0;
/// In the exported directory or above it, so that a relative name may lead into it.
const NEAR: u8 = 1;
const IN_MOUNT: u8 = 2;

/// The process that looked where it works. A vfork child shares the memory, but may work elsewhere.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// What a name may have to do with the forwarders' files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Nothing, as a name.
    None,
    /// It begins with the exported directory.
    Export,
    /// It is relative, and may lead into the exported directory.
    Near,
    /// It is a name of the mount.
    Mount,
    /// It is relative to a descriptor.
    Folder,
}

/// A variable of the environment. Only before the program runs, and changes it.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a variable is a string; nobody changes the environment yet.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Reads from the environment where directory and mount are.
pub(crate) fn begin() {
    let path = |name: &CStr| {
        let bytes = variable(name)?.to_bytes();
        let is_root = bytes == b"/";
        let bytes = bytes
            .strip_suffix(b"/")
            .filter(|_| !is_root)
            .unwrap_or(bytes);
        (bytes.starts_with(b"/") && bytes.len() < PATH_MAX).then(|| bytes.to_vec())
    };
    let Some(mount) = path(c"TIDEGATE_MOUNT") else {
        return;
    };
    let export = path(c"TIDEGATE_EXPORT").unwrap_or_default();
    if is_ours() {
        // A forwarder opens what it exports.
        return;
    }
    let is_off = variable(c"TIDEGATE_REDIRECT").is_some_and(|it| it == c"off");
    let redirects = !is_off && !export.is_empty();
    let places = Box::new(Places {
        above: path(c"TIDEGATE_ABOVE").filter(|_| redirects),
        target: redirects.then(|| Mount::new(&mount, &export)).flatten(),
        export,
        mount,
    });
    PLACES.store(Box::into_raw(places), Ordering::Release);
    forked();
    look_around();
}

/// Whether this program is of Tidegate.
fn is_ours() -> bool {
    let mut room = [0u8; PATH_MAX];
    let path = link(c"/proc/self/exe", &mut room);
    let name = path.rsplit(|byte| *byte == b'/').next();
    [Some(&b"tidegate"[..]), Some(b"tidegate-lab")].contains(&name)
}

/// Where a symbolic link leads; nothing if that is not known.
pub(crate) fn link<'a>(name: &CStr, room: &'a mut [u8; PATH_MAX]) -> &'a [u8] {
    // SAFETY: a string, and room of that size.
    let len = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            name.as_ptr(),
            room.as_mut_ptr(),
            room.len(),
        )
    };
    &room[..usize::try_from(len).unwrap_or(0).min(PATH_MAX)]
}

/// Runs in a fork child.
pub(crate) fn forked() {
    // SAFETY: it cannot fail.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

fn places() -> Option<&'static Places> {
    // SAFETY: places that were stored are never freed.
    unsafe { PLACES.load(Ordering::Acquire).as_ref() }
}

/// Looks where the process works, which it has just chosen.
pub(crate) fn look_around() {
    let Some(places) = places() else {
        return;
    };
    // SAFETY: it cannot fail.
    if unsafe { libc::getpid() } != PROCESS.load(Ordering::Relaxed) {
        return;
    }
    let mut room = [0u8; PATH_MAX];
    let here = match working_directory(&mut room) {
        None => ELSEWHERE,
        Some(here) if below(here, &places.mount).is_some() => IN_MOUNT,
        Some(_) if places.export.is_empty() => ELSEWHERE,
        Some(here) => {
            let is_above = here == b"/" || below(&places.export, here).is_some();
            match is_above || below(here, &places.export).is_some() {
                true => NEAR,
                false => ELSEWHERE,
            }
        }
    };
    HERE.store(here, Ordering::Relaxed);
}

/// The working directory, without its NUL.
fn working_directory(room: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: there is room of that size.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, room.as_mut_ptr(), room.len()) };
    let len = usize::try_from(len).ok()?.checked_sub(1)?;
    // The kernel writes `(unreachable)` before one that cannot be reached.
    room.get(..len).filter(|path| path.starts_with(b"/"))
}

/// What a name that a program gives to a call may have to do with the forwarders' files; `folder`
/// is what a relative name is relative to.
///
/// # Safety
/// `path` is a string, or an address for which the kernel would say EFAULT.
#[inline]
pub(crate) unsafe fn concern(folder: c_int, path: *const c_char) -> Concern {
    match places() {
        // SAFETY: the caller says so.
        Some(places) if may_be_read(path) => unsafe { concern_in(places, folder, path) },
        _ => Concern::None,
    }
}

/// Whether an address may be a program's.
#[inline]
pub(crate) fn may_be_read(path: *const c_char) -> bool {
    ADDRESSES.contains(&path.addr())
}

unsafe fn concern_in(places: &Places, folder: c_int, path: *const c_char) -> Concern {
    // SAFETY: the caller says that it is a string.
    unsafe {
        match *path.cast::<u8>() {
            0 => Concern::None,
            b'/' if begins(path, &places.mount) => Concern::Mount,
            b'/' if !places.export.is_empty() && begins(path, &places.export) => Concern::Export,
            b'/' => Concern::None,
            _ if folder != libc::AT_FDCWD => Concern::Folder,
            first => {
                // The string does not end before: the first byte is no NUL.
                let may_climb = may_climb([first, *path.add(1).cast()]);
                match HERE.load(Ordering::Relaxed) {
                    IN_MOUNT if !may_climb || places.above.is_none() => Concern::Mount,
                    NEAR => Concern::Near,
                    _ if may_climb => Concern::Near,
                    _ => Concern::None,
                }
            }
        }
    }
}

/// Calls `call` with the name in the mount for a name of the exported directory, and with the name
/// itself for any other.
///
/// # Safety
/// As [`concern`].
#[inline]
pub(crate) unsafe fn led<T>(
    folder: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> T,
) -> T {
    // SAFETY: the caller says so.
    let concern = unsafe { concern(folder, path) };
    match places() {
        Some(places)
            if places.target.is_some() && [Concern::Export, Concern::Near].contains(&concern) =>
        {
            // SAFETY: there is a concern, so it is a string.
            lead(places, unsafe { CStr::from_ptr(path) }, call)
        }
        _ => call(path),
    }
}

/// Whether there is a mount to lead to.
fn is_there(places: &Places) -> bool {
    places.target.as_ref().is_some_and(Mount::is_there)
}

#[cold]
#[inline(never)]
fn lead<T>(places: &Places, path: &CStr, call: impl FnOnce(*const c_char) -> T) -> T {
    let mut call = Some(call);
    let mut result = None;
    let mut run = |path: *const c_char| result = call.take().map(|call| call(path));
    if !lead_in::<PATH_USUAL>(places, path, &mut run) {
        lead_in::<PATH_MAX>(places, path, &mut run);
    }
    result.expect("the larger room is enough, and `run` was called")
}

/// Calls `run` once, with the name that the path leads to, or with the path itself. Returns false
/// instead if that would need more room than `ROOM` bytes and there is more.
#[inline(never)]
fn lead_in<const ROOM: usize>(
    places: &Places,
    path: &CStr,
    run: &mut dyn FnMut(*const c_char),
) -> bool {
    let mut room = [0u8; ROOM];
    match to_mount(places, path.to_bytes(), &mut room) {
        None if ROOM < PATH_MAX => return false,
        Some(true) if is_there(places) => run(room.as_ptr().cast()),
        _ => run(path.as_ptr()),
    }
    true
}

/// Writes the path that a path stands for, with a NUL at its end: one in the mount for one of the
/// exported directory, and one above that directory for one that climbs out of the mount. False if
/// it stands for itself. None if there is too little room to tell.
#[inline(never)]
fn to_mount<const ROOM: usize>(
    places: &Places,
    path: &[u8],
    room: &mut [u8; ROOM],
) -> Option<bool> {
    if path.starts_with(b"/") {
        return in_mount(places, path, room);
    }
    let mut whole = [[0u8; ROOM]; 2];
    let whole = whole.as_flattened_mut();
    let here = working_directory(room)?;
    let (len, has_climbed) = as_begun(places, here, path, whole)?;
    let is_led = in_mount(places, &whole[..len], room)?;
    if has_climbed && !is_led {
        room.get_mut(..=len)?[..len].copy_from_slice(&whole[..len]);
        room[len] = 0;
    }
    Some(is_led || has_climbed)
}

/// Writes the absolute path that a relative one means; returns the length, and whether it has
/// climbed out of the mount, and so lies where the user began. None if there is too little room.
fn as_begun(places: &Places, here: &[u8], path: &[u8], whole: &mut [u8]) -> Option<(usize, bool)> {
    let above = places.above.as_deref();
    match above.zip(out_of_mount(places, here, path)) {
        Some((above, rest)) => Some((absolute(above, rest, whole)?, true)),
        None => Some((absolute(here, path, whole)?, false)),
    }
}

/// Calls `call` with a name that stands for the same as the given one and is in no mount, for a
/// file that is not to be used by [`led`]: as it is, one that climbs out of the mount stands for
/// another.
///
/// # Safety
/// As [`concern`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn plain<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller says so.
    let is_near = unsafe { concern(libc::AT_FDCWD, path) } == Concern::Near;
    let Some(places) = places().filter(|places| is_near && places.above.is_some()) else {
        return call(path);
    };
    // SAFETY: there is a concern, so it is a string.
    let text = unsafe { CStr::from_ptr(path) };
    let mut call = Some(call);
    let mut result = None;
    let mut run = |path: *const c_char| result = call.take().map(|call| call(path));
    if !plain_in::<PATH_USUAL>(places, text, &mut run) {
        plain_in::<PATH_MAX>(places, text, &mut run);
    }
    result.expect("the larger room is enough, and `run` was called")
}

/// As [`lead_in`].
#[inline(never)]
fn plain_in<const ROOM: usize>(
    places: &Places,
    path: &CStr,
    run: &mut dyn FnMut(*const c_char),
) -> bool {
    let (mut room, mut whole) = ([0u8; ROOM], [0u8; ROOM]);
    let here = working_directory(&mut room);
    let begun = here.and_then(|here| as_begun(places, here, path.to_bytes(), &mut whole));
    match begun.filter(|(len, _)| *len < ROOM) {
        None if ROOM < PATH_MAX => return false,
        Some((len, true)) => {
            whole[len] = 0;
            run(whole.as_ptr().cast());
        }
        _ => run(path.as_ptr()),
    }
    true
}

/// What is left of a relative path when it has climbed out of the mount, in which `here` is; None
/// if it does not.
fn out_of_mount<'a>(places: &Places, here: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let inside = below(here, &places.mount)?;
    let parts = inside.split(|byte| *byte == b'/');
    let depth = parts.filter(|part| !part.is_empty()).count();
    (0..=depth).try_fold(path, |path, _| climb(path))
}

/// [`to_mount`] for an absolute path.
fn in_mount(places: &Places, path: &[u8], room: &mut [u8]) -> Option<bool> {
    if below(path, &places.mount).is_some() {
        return Some(false);
    }
    let Some(rest) = below(path, &places.export).filter(|rest| stays(rest)) else {
        return Some(false);
    };
    let mount = &places.mount;
    let len = mount.len() + usize::from(!rest.is_empty()) + rest.len();
    if len >= room.len() {
        return None;
    }
    room[..mount.len()].copy_from_slice(mount);
    if !rest.is_empty() {
        room[mount.len()] = b'/';
        room[mount.len() + 1..len].copy_from_slice(rest);
    }
    room[len] = 0;
    Some(true)
}

/// Whether a name climbs out of the mount. As it is it names something else than it stands for.
///
/// # Safety
/// As [`concern`].
pub(crate) unsafe fn climbs(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller says so; where there is a concern, it is a string.
    unsafe {
        let is_near = concern(folder, path) == Concern::Near;
        let places = places().filter(|places| is_near && places.above.is_some());
        places.is_some_and(|places| {
            let mut room = [0u8; PATH_MAX];
            let here = working_directory(&mut room);
            let path = CStr::from_ptr(path).to_bytes();
            here.is_some_and(|here| out_of_mount(places, here, path).is_some())
        })
    }
}

/// Whether a path, without links, is below the exported directory and not in the mount.
pub(crate) fn is_past(path: &[u8]) -> bool {
    places().is_some_and(|places| {
        !places.export.is_empty()
            && below(path, &places.export).is_some()
            && below(path, &places.mount).is_none()
    })
}

/// Whether names in a folder may be some of the exported directory, or stand for others than they
/// seem to.
pub(crate) fn may_hold(folder: &[u8]) -> bool {
    places().is_some_and(|places| match folder.starts_with(b"/") {
        true => below(folder, &places.export).is_some() && below(folder, &places.mount).is_none(),
        false => match HERE.load(Ordering::Relaxed) {
            NEAR => true,
            IN_MOUNT => may_leave(folder),
            _ => folder.first_chunk().copied().is_some_and(may_climb),
        },
    })
}

/// Whether a folder that is relative to a working directory in the mount may be one out of it.
pub(crate) fn may_leave(folder: &[u8]) -> bool {
    let is_in_mount = HERE.load(Ordering::Relaxed) == IN_MOUNT;
    let may_climb = folder.first_chunk().copied().is_some_and(may_climb);
    is_in_mount && may_climb && places().is_some_and(|places| places.above.is_some())
}

/// Whether a relative name with these first bytes may climb.
fn may_climb(first: [u8; 2]) -> bool {
    matches!(first, [b'.', b'.' | b'/'])
}

/// Whether a program that this process starts cannot reach the mount.
pub(crate) fn is_closed() -> bool {
    let target = places().and_then(|places| places.target.as_ref());
    target.is_some_and(Mount::is_closed)
}

/// Whether there is a mount to which this process can lead names.
pub(crate) fn leads() -> bool {
    places().is_some_and(is_there)
}

/// Whether names of the exported directory are led to the mount.
pub(crate) fn redirects() -> bool {
    places().is_some_and(|places| places.target.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &[u8]) -> Option<Vec<u8>> {
        let places = Places {
            export: b"/work/data".to_vec(),
            mount: b"/work/data/mnt".to_vec(),
            above: None,
            target: None,
        };
        let mut room = [0; PATH_MAX];
        in_mount(&places, path, &mut room).filter(|is_led| *is_led)?;
        let end = room.iter().position(|byte| *byte == 0);
        Some(room[..end.expect("it has an end")].to_vec())
    }

    #[test]
    fn names_of_the_directory_lead_to_the_mount() {
        let pairs: [(&[u8], Option<&[u8]>); 13] = [
            (b"/work/data", Some(b"/work/data/mnt")),
            (b"/work/data/", Some(b"/work/data/mnt")),
            (b"/work/data/f", Some(b"/work/data/mnt/f")),
            (b"//work/./data//a/f/", Some(b"/work/data/mnt/a/f/")),
            (b"/work/data/./f", Some(b"/work/data/mnt/f")),
            (b"/work/data/a/../f", Some(b"/work/data/mnt/a/../f")),
            (b"/work/data/a/../../f", None),
            (b"/work/data/..", None),
            (b"/work/data/mnt/f", None),
            (b"/work/data/mnt", None),
            (b"/work/data2/f", None),
            (b"/work", None),
            (b"/elsewhere/../work/data/f", None),
        ];
        for (path, wanted) in pairs {
            let name = String::from_utf8_lossy(path);
            assert_eq!(of(path).as_deref(), wanted, "{name}");
            let text = std::ffi::CString::new(path).expect("no NUL");
            // SAFETY: a string.
            let begins = unsafe { begins(text.as_ptr(), b"/work/data") };
            assert_eq!(begins, below(path, b"/work/data").is_some(), "{name}");
        }
        let long = [b"/work/data/".as_slice(), &[b'x'; PATH_MAX - 12]].concat();
        assert_eq!(of(&long), None, "it is too long in the mount");
    }

    #[test]
    fn high_addresses_are_a_programs_too() {
        for address in [
            4096,
            1 << 40,
            (1 << 47) - 1,
            1 << 47,
            (1 << 48) - 4096,
            1 << 52,
        ] {
            let name = std::ptr::without_provenance::<c_char>(address);
            assert!(may_be_read(name), "{address:x}");
        }
        for address in [0, 1, 4095, 1 << 63, usize::MAX] {
            let name = std::ptr::without_provenance::<c_char>(address);
            assert!(!may_be_read(name), "{address:x}");
        }
    }

    #[test]
    fn names_that_climb_out_of_the_mount_stand_for_what_is_above_the_directory() {
        let places = Places {
            export: b"/work/data".to_vec(),
            mount: b"/run/7/mnt".to_vec(),
            above: Some(b"/work".to_vec()),
            target: None,
        };
        type Case<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);
        let cases: [Case<'_>; 10] = [
            (b"/run/7/mnt", b"../f", Some(b"f")),
            (b"/run/7/mnt", b"..", Some(b"")),
            (b"/run/7/mnt", b".././/../f", Some(b"../f")),
            (b"/run/7/mnt/a", b"../f", None),
            (b"/run/7/mnt/a", b"../../f", Some(b"f")),
            (b"/run/7/mnt/a/b", b"../../..", Some(b"")),
            (b"/run/7/mnt", b"..f", None),
            (b"/run/7/mnt", b"a/../../f", None),
            (b"/run/7", b"../f", None),
            (b"/run/7/mnt2", b"../f", None),
        ];
        for (here, path, wanted) in cases {
            assert_eq!(out_of_mount(&places, here, path), wanted);
        }
    }
}
