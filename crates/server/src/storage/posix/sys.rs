//! Small translations between system calls and the types of `forward` and `wire`.

use rustix::fs::{AtFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp};
use std::os::fd::{AsFd, AsRawFd};
use tidegate_forward::{Access, Errno};
use tidegate_wire::{Attr, Handle};

/// The result of a primitive call.
pub(super) type Done<T> = Result<T, Access>;

pub(super) const ENXIO: Errno = Errno(6);
pub(super) const E2BIG: Errno = Errno(7);
pub(super) const EFBIG: Errno = Errno(27);
pub(super) const EXDEV: Errno = Errno(18);

/// The bits of a mode that give the type.
pub(super) const KIND: u32 = libc::S_IFMT;
pub(super) const REGULAR: u32 = libc::S_IFREG;
pub(super) const DIRECTORY: u32 = libc::S_IFDIR;

/// Names are looked up one component at a time, below the root, without following links, on one
/// file system.
pub(super) const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The refusal of a system call.
pub(in crate::storage) fn no(error: rustix::io::Errno) -> Access {
    Access::Errno(Errno(error.raw_os_error() as u16))
}

/// A refusal that std reports.
pub(super) fn no_std(error: &std::io::Error) -> Access {
    let errno = error.raw_os_error().and_then(|e| u16::try_from(e).ok());
    Access::Errno(errno.map_or(Errno::EIO, Errno))
}

/// A path that leads to the file behind a descriptor, also an `O_PATH` one, for calls that take no
/// descriptor.
pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// statx of a descriptor's file.
pub(super) fn stat(fd: impl AsFd) -> rustix::io::Result<Statx> {
    stat_at(fd, c"", AtFlags::EMPTY_PATH)
}

/// statx of a name in a directory; follows nothing.
pub(super) fn stat_at(
    fd: impl AsFd,
    name: impl rustix::path::Arg,
    flags: AtFlags,
) -> rustix::io::Result<Statx> {
    ask(fd, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

/// The size of a descriptor's file, in bytes. Asks servers for nothing else.
pub(super) fn size(fd: impl AsFd, flags: AtFlags) -> rustix::io::Result<u64> {
    let stat = ask(fd, c"", flags | AtFlags::EMPTY_PATH, StatxFlags::SIZE)?;
    Ok(stat.stx_size)
}

fn ask(
    fd: impl AsFd,
    name: impl rustix::path::Arg,
    flags: AtFlags,
    what: StatxFlags,
) -> rustix::io::Result<Statx> {
    #[cfg(test)]
    ASKED.set(ASKED.get() + 1);
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(fd, name, flags, what)
}

#[cfg(test)]
thread_local! {
    static ASKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Runs `act`, and counts how often it asks for attributes: each time may need a server.
#[cfg(test)]
pub(super) fn asked<T>(act: impl FnOnce() -> T) -> (T, u32) {
    let before = ASKED.get();
    let result = act();
    (result, ASKED.get() - before)
}

/// The handle of a file.
pub(super) fn handle_of(stat: &Statx) -> Handle {
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth = if known {
        nanoseconds(&stat.stx_btime)
    } else {
        0
    };
    Handle {
        inode: stat.stx_ino,
        birth: u64::try_from(birth).unwrap_or(0),
    }
}

/// The device on which a file lies.
pub(super) fn device_of(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

/// The attributes in the form of the protocol.
pub(super) fn attr_of(stat: &Statx) -> Attr {
    Attr {
        handle: handle_of(stat),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime_ns: nanoseconds(&stat.stx_atime),
        mtime_ns: nanoseconds(&stat.stx_mtime),
        ctime_ns: nanoseconds(&stat.stx_ctime),
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: encode_device(stat.stx_rdev_major, stat.stx_rdev_minor),
        block_size: stat.stx_blksize,
    }
}

/// A time in ns since 1970, saturating in the years 1677 and 2262.
pub(super) fn nanoseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(time.tv_nsec))
}

/// A device number in the kernel's 32 bits: 12 of major, 20 of minor.
fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`encode_device`], in the form mknod takes.
pub(super) fn decode_device(encoded: u32) -> rustix::fs::Dev {
    let major = (encoded >> 8) & 0xfff;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xfff00);
    rustix::fs::makedev(major, minor)
}

/// Checks that a name is one path component that can exist.
pub(super) fn check_name(name: &[u8]) -> Done<()> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL.into()),
        _ if name.len() > tidegate_wire::NAME_MAX => Err(Errno::ENAMETOOLONG.into()),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::EINVAL.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_way_there_and_back() {
        for (major, minor) in [(1, 3), (8, 17), (259, 300), (4095, 0xf_ffff)] {
            let dev = decode_device(encode_device(major, minor));
            assert_eq!(
                (rustix::fs::major(dev), rustix::fs::minor(dev)),
                (major, minor)
            );
        }
    }

    #[test]
    fn only_single_components_are_names() {
        assert_eq!(check_name(b"a b"), Ok(()));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", b"/"] {
            assert_eq!(check_name(bad), Err(Errno::EINVAL.into()));
        }
        assert_eq!(check_name(&[b'x'; 256]), Err(Errno::ENAMETOOLONG.into()));
    }
}
