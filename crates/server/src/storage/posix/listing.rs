//! Directory listings, one part per call, continued by the back end's own cookies.

use super::PosixFiles;
use super::handle_table::Known;
use super::sys::{self, Done, attr_of, no};
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use tidegate_forward::{Access, Errno};
use tidegate_wire::{Caller, Entry, Handle};

/// How many bytes an entry counts for besides its name.
const ENTRY_BYTES: usize = 32;
/// Bytes of kernel entries read at once. While the kernel reads them from a file system of this
/// node, the directory is locked against changes, and few kernels let another thread have this
/// processor: so not many there. Elsewhere each call may be a trip.
const BUFFER_BYTES: usize = 32 * 1024;
const LOCAL_BUFFER_BYTES: usize = 4 * 1024;

impl PosixFiles {
    pub(super) fn list(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Done<Vec<Entry>> {
        let known = self.export.known(handle)?;
        if known.kind != sys::DIRECTORY {
            return Err(Errno::ENOTDIR.into());
        }
        // Opened anew each time: the place in a directory belongs to the description.
        let dir = self.open_directory(caller, &known)?;
        if cookie != 0 {
            rustix::fs::seek(&dir, SeekFrom::Start(cookie)).map_err(no)?;
        }
        let mut entries = self.read_entries(&known, &dir, bytes_max as usize)?;
        let _acting = self.export.own.act_as(caller)?;
        for entry in &mut entries {
            if plus || entry.kind == kind_number(FileType::Unknown) {
                self.look_at(&dir, entry, plus);
            }
        }
        Ok(entries)
    }

    /// Opens a directory for reading as the caller. If the caller owns it, uses the forwarder's
    /// rights, because the caller may have opened the directory before its mode changed.
    fn open_directory(&self, caller: Option<&Caller>, known: &Known) -> Done<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let acting = self.export.own.act_as(caller)?;
        let opened = self.export.reopen(&known.path, flags);
        drop(acting);
        match opened {
            Err(Access::Errno(Errno::EACCES)) => {
                self.check_open(caller, known, true, false)?;
                self.export.reopen(&known.path, flags)
            }
            opened => opened,
        }
    }

    fn read_entries(&self, known: &Known, dir: &OwnedFd, bytes_max: usize) -> Done<Vec<Entry>> {
        let at_once = match self.export.is_local {
            true => LOCAL_BUFFER_BYTES,
            false => BUFFER_BYTES,
        };
        let mut buffer = vec![MaybeUninit::uninit(); at_once];
        let mut raw = RawDir::new(dir, &mut buffer);
        let mut entries = Vec::new();
        let mut bytes = 0;
        while let Some(entry) = raw.next() {
            let entry = entry.map_err(no)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || self.export.is_hidden(known, name) {
                continue;
            }
            bytes += name.len() + ENTRY_BYTES;
            // One entry always, or a caller with a small buffer would take this for the end.
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(Entry {
                name: name.into(),
                inode: entry.ino(),
                kind: kind_number(entry.file_type()),
                cookie: entry.next_entry_cookie(),
                attr: None,
            });
        }
        Ok(entries)
    }

    /// Fills in what the listing did not contain. The entry may have been removed meanwhile.
    fn look_at(&self, dir: &OwnedFd, entry: &mut Entry, plus: bool) {
        let Ok(stat) = self.export.stat_at(dir, &*entry.name) else {
            return;
        };
        entry.kind = kind_number(FileType::from_raw_mode(u32::from(stat.stx_mode)));
        if plus && self.export.is_ours(&stat) {
            let mut attr = attr_of(&stat);
            self.leave_out_hidden_name(&mut attr);
            entry.attr = Some(attr);
        }
    }
}

/// The number of a type as `d_type` gives it.
fn kind_number(kind: FileType) -> u8 {
    match kind {
        FileType::Fifo => libc::DT_FIFO,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::Directory => libc::DT_DIR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::RegularFile => libc::DT_REG,
        FileType::Symlink => libc::DT_LNK,
        FileType::Socket => libc::DT_SOCK,
        FileType::Unknown => libc::DT_UNKNOWN,
    }
}
