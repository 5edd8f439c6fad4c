//! Whether the mount still shows the exported directory. When forwarders or a run have ended, its
//! name may be that of a plain folder, or of nothing: names are not led there. Nor are they where
//! another user has made the mount, in a folder that this process may not search (any more).

use libc::{AT_FDCWD, c_int};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tidegate_client::opened::device;

/// Where names of the directory lead.
pub(crate) struct Mount {
    path: CString,
    export: CString,
    /// What is known of `export`.
    known: AtomicU8,
    device: AtomicU64,
    inode: AtomicU64,
}

/// Nobody has looked yet. No lock: a signal handler or a fork child may look too.
const UNKNOWN: u8 = 0;
/// This node has no such directory.
const NONE: u8 = 1;
const KNOWN: u8 = 2;

/// A directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    device: u64,
    inode: u64,
}

impl Mount {
    pub(crate) fn new(path: &[u8], export: &[u8]) -> Option<Mount> {
        Some(Mount {
            path: CString::new(path).ok()?,
            export: CString::new(export).ok()?,
            known: AtomicU8::new(UNKNOWN),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        })
    }

    /// See the head of the file. A mount that is there and fails is one: its errors are told.
    pub(crate) fn is_there(&self) -> bool {
        // SAFETY: the place of this thread's errno.
        let errno = unsafe { *libc::__errno_location() };
        // Before anybody has asked a mount, the kernel may not know its root's inode.
        let is_there = self.shows(libc::AT_STATX_DONT_SYNC) || self.shows(0);
        // SAFETY: likewise.
        unsafe { *libc::__errno_location() = errno };
        is_there
    }

    /// Whether a program that this process starts will not be allowed to look for it.
    pub(crate) fn is_closed(&self) -> bool {
        // SAFETY: the place of this thread's errno; a string.
        unsafe {
            let errno = *libc::__errno_location();
            // As the real user, and without capabilities, which another user's program has not.
            let path = self.path.as_ptr();
            let result = libc::syscall(libc::SYS_faccessat, AT_FDCWD, path, libc::F_OK);
            let is_closed = result != 0 && *libc::__errno_location() == libc::EACCES;
            *libc::__errno_location() = errno;
            is_closed
        }
    }

    /// The exported directory, as this process has first seen it.
    fn exported(&self) -> Option<Found> {
        if self.known.load(Ordering::Acquire) == UNKNOWN {
            let found = find(&self.export, libc::AT_STATX_DONT_SYNC).ok();
            if let Some(found) = found {
                self.device.store(found.device, Ordering::Relaxed);
                self.inode.store(found.inode, Ordering::Relaxed);
            }
            let known = if found.is_some() { KNOWN } else { NONE };
            self.known.store(known, Ordering::Release);
        }
        (self.known.load(Ordering::Acquire) == KNOWN).then(|| Found {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
        })
    }

    fn shows(&self, flags: c_int) -> bool {
        match (find(&self.path, flags), self.exported()) {
            // The mount's inode numbers are those of the back end.
            (Ok(found), Some(exported)) => {
                found.inode == exported.inode && found.device != exported.device
            }
            (Ok(_), None) => is_fuse(&self.path),
            (Err(errno), _) => ![libc::ENOENT, libc::ENOTDIR, libc::EACCES].contains(&errno),
        }
    }
}

fn find(path: &CStr, flags: c_int) -> Result<Found, c_int> {
    let mut found = MaybeUninit::<libc::statx>::uninit();
    // SAFETY: a string, and room for the answer. Past the hooks.
    let found = unsafe {
        let (name, room, wanted) = (path.as_ptr(), found.as_mut_ptr(), libc::STATX_INO);
        if libc::syscall(libc::SYS_statx, AT_FDCWD, name, flags, wanted, room) != 0 {
            return Err(*libc::__errno_location());
        }
        found.assume_init()
    };
    Ok(Found {
        device: device(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
    })
}

/// Whether a path is on a file system in user space.
fn is_fuse(path: &CStr) -> bool {
    const FUSE: u32 = 0x6573_5546;
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a string, and room for the answer. Past the hooks.
    unsafe {
        let failed = libc::syscall(libc::SYS_statfs, path.as_ptr(), found.as_mut_ptr()) != 0;
        !failed && found.assume_init().f_type as u32 == FUSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_folder_is_no_mount() {
        let is_there = |path: &[u8], export: &[u8]| {
            let mount = Mount::new(path, export).expect("no NUL");
            mount.is_there()
        };
        assert!(!is_there(b"/usr", b"/usr"), "not the directory itself");
        assert!(!is_there(b"/usr", b"/etc"));
        assert!(!is_there(b"/usr", b"/nowhere"));
        assert!(!is_there(b"/nowhere", b"/usr"));
        assert!(!is_there(b"/etc/passwd/x", b"/usr"));
        assert!(!is_there(b"/proc", b"/usr"));
    }
}
