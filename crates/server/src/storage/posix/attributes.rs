//! Attributes, permissions and extended attributes of files by handle.

use super::PosixFiles;
use super::handle_table::Known;
use super::sys::{self, Done, EFBIG, attr_of, no};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use tidegate_forward::Errno;
use tidegate_wire::{Attr, Caller, Handle, SetAttr, SetTime, XATTR_MAX};

const NS: i64 = 1_000_000_000;

impl PosixFiles {
    /// The file's attributes by fstat. The hidden name is not counted.
    pub(super) fn attr_of_known(&self, known: &Known) -> Done<Attr> {
        let mut attr = attr_of(&self.export.stat(&known.path).map_err(no)?);
        self.leave_out_hidden_name_of(known, &mut attr);
        Ok(attr)
    }

    /// Corrects the attributes of a known file: the hidden name is not counted.
    pub(super) fn leave_out_hidden_name_of(&self, known: &Known, attr: &mut Attr) {
        if known.is_open() && known.kind == sys::REGULAR {
            self.count_out_hidden_name(attr);
        } else {
            self.leave_out_hidden_name(attr);
        }
    }

    /// Does the same as [`Self::count_out_hidden_name`], where a single name is known to be an
    /// ordinary one.
    pub(super) fn leave_out_hidden_name(&self, attr: &mut Attr) {
        if attr.nlink > 1 && attr.mode & sys::KIND == sys::REGULAR {
            self.count_out_hidden_name(attr);
        }
    }

    /// Subtracts the hidden name, if there is one, from the number of names.
    pub(super) fn count_out_hidden_name(&self, attr: &mut Attr) {
        if attr.nlink > 0 && self.export.opens.has_hidden_name(attr.handle) {
            attr.nlink -= 1;
        }
    }

    pub(super) fn set_attributes(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        set: &SetAttr,
    ) -> Done<Attr> {
        let known = self.export.known(handle)?;
        if set.uid.is_some() || set.gid.is_some() {
            let _acting = self.export.own.act_as(caller)?;
            self.permit.begin()?;
            change_owner(&known, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            let _acting = self.export.own.act_as(caller)?;
            let mode = Mode::from_raw_mode(mode & 0o7777);
            self.permit.begin()?;
            rustix::fs::chmod(sys::proc_path(&known.path), mode).map_err(no)?;
        }
        if let Some(size) = set.size {
            self.truncate(caller, &known, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            let _acting = self.export.own.act_as(caller)?;
            self.permit.begin()?;
            rustix::fs::utimensat(&known.path, c"", &times, AtFlags::EMPTY_PATH).map_err(no)?;
        }
        self.attr_of_known(&known)
    }

    pub(super) fn truncate(&self, caller: Option<&Caller>, known: &Known, size: u64) -> Done<()> {
        if i64::try_from(size).is_err() {
            return Err(EFBIG.into());
        }
        let fd = self.write_fd(known)?;
        self.check_open(caller, known, false, true)?;
        // As the caller, so that the kernel takes set-id bits away from whoever may not keep them.
        let _acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&fd, size)).map_err(no)
    }

    /// Whether the caller may open the file with these rights. The owner always may: the owner may
    /// have opened the file before its mode changed, and could change the mode back.
    pub(super) fn check_open(
        &self,
        caller: Option<&Caller>,
        known: &Known,
        read: bool,
        write: bool,
    ) -> Done<()> {
        let uid = self.export.own.effective_uid(caller);
        if uid == 0 || self.export.stat(&known.path).map_err(no)?.stx_uid == uid {
            return Ok(());
        }
        let mask = if read { 4 } else { 0 } | if write { 2 } else { 0 };
        self.check_access(caller, known, mask)
    }

    /// access(2) with the caller's effective ids.
    pub(super) fn check_access(
        &self,
        caller: Option<&Caller>,
        known: &Known,
        mask: u32,
    ) -> Done<()> {
        if mask & !7 != 0 {
            return Err(Errno::EINVAL.into());
        }
        let mask = rustix::fs::Access::from_bits_truncate(mask as _);
        let path = sys::proc_path(&known.path);
        let _acting = self.export.own.act_as(caller)?;
        rustix::fs::accessat(rustix::fs::CWD, path, mask, AtFlags::EACCESS).map_err(no)
    }

    pub(super) fn xattr(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
    ) -> Done<Box<[u8]>> {
        let known = self.export.known(handle)?;
        let path = sys::proc_path(&known.path);
        let _acting = self.export.own.act_as(caller)?;
        fill(|buffer| rustix::fs::getxattr(&path, name, buffer))
    }

    pub(super) fn set_xattr(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Done<()> {
        if value.len() > XATTR_MAX {
            return Err(sys::E2BIG.into());
        }
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let known = self.export.known(handle)?;
        let path = sys::proc_path(&known.path);
        let _acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        rustix::fs::setxattr(path, name, value, flags).map_err(no)
    }

    pub(super) fn list_xattr(&self, caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>> {
        let known = self.export.known(handle)?;
        let path = sys::proc_path(&known.path);
        let _acting = self.export.own.act_as(caller)?;
        fill(|buffer| rustix::fs::listxattr(&path, buffer))
    }

    pub(super) fn remove_xattr(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
    ) -> Done<()> {
        let known = self.export.known(handle)?;
        let path = sys::proc_path(&known.path);
        let _acting = self.export.own.act_as(caller)?;
        self.permit.begin()?;
        rustix::fs::removexattr(path, name).map_err(no)
    }
}

fn change_owner(known: &Known, uid: Option<u32>, gid: Option<u32>) -> Done<()> {
    // u32::MAX means "unchanged" to the kernel, and is no id.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::EINVAL.into());
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(&known.path, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(no)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        Some(SetTime::At(ns)) => Timespec {
            tv_sec: ns.div_euclid(NS),
            tv_nsec: ns.rem_euclid(NS),
        },
    }
}

/// Reads a value of unknown length: first into a small buffer, as most fit or are not there at all.
fn fill(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Done<Box<[u8]>> {
    let mut small = [0; 256];
    match read(&mut small) {
        Ok(len) => return Ok(small[..len].into()),
        Err(rustix::io::Errno::RANGE) => {}
        Err(error) => return Err(no(error)),
    }
    let mut large = vec![0; XATTR_MAX];
    let len = read(&mut large).map_err(no)?;
    large.truncate(len);
    Ok(large.into())
}
