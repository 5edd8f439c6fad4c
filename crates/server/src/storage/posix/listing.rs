//! Directory listings, one part per call, continued by the back end's own cookies.

use super::PosixFiles;
use super::handle_table::Known;
use super::sys::{self, Done, no};
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tidegate_forward::{Access, Errno};
use tidegate_wire::{Caller, Entry, Handle, Listing, Name};

/// How many bytes an entry counts for besides its name.
const ENTRY_BYTES: usize = 32;
/// Bytes of kernel entries read at once. While the kernel reads them from a file system of this
/// node, the directory is locked against changes, and few kernels let another thread have this
/// processor: so not many there. Elsewhere each call may be a trip.
const BUFFER_BYTES: usize = 32 * 1024;
const LOCAL_BUFFER_BYTES: usize = 4 * 1024;

/// How long the entries of one listing are looked up. Each can be a trip to the back end.
const LOOKS_MAX: Duration = Duration::from_millis(10);

impl PosixFiles {
    pub(super) fn list(
        &self,
        caller: Option<&Caller>,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        xattrs: Option<&[Name]>,
    ) -> Done<Listing> {
        let known = self.export.known(handle)?;
        if known.kind != sys::DIRECTORY {
            return Err(Errno::ENOTDIR.into());
        }
        // Opened anew each time: the place in a directory belongs to the description.
        let dir = self.open_directory(caller, &known)?;
        if cookie != 0 {
            rustix::fs::seek(&dir, SeekFrom::Start(cookie)).map_err(no)?;
        }
        let mut listing = self.read_entries(&known, &dir, bytes_max as usize)?;
        if xattrs.is_some() {
            self.export.make_room()?;
        }
        let _acting = self.export.own.act_as(caller)?;
        if let Some(xattrs) = xattrs {
            self.look_up_all(&dir, &mut listing, xattrs, Instant::now() + LOOKS_MAX);
        }
        let unknown = kind_number(FileType::Unknown);
        for entry in listing.entries.iter_mut().filter(|it| it.kind == unknown) {
            if let Ok(stat) = self.export.stat_at(&dir, &*entry.name) {
                entry.kind = kind_of(stat.stx_mode.into());
            }
        }
        Ok(listing)
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

    fn read_entries(&self, known: &Known, dir: &OwnedFd, bytes_max: usize) -> Done<Listing> {
        let at_once = match self.export.is_local {
            true => LOCAL_BUFFER_BYTES,
            false => BUFFER_BYTES,
        };
        let mut buffer = vec![MaybeUninit::uninit(); at_once];
        let mut raw = RawDir::new(dir, &mut buffer);
        let mut listing = Listing {
            entries: Vec::new(),
            ended: true,
        };
        let entries = &mut listing.entries;
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
                listing.ended = false;
                break;
            }
            entries.push(Entry {
                name: name.into(),
                inode: entry.ino(),
                kind: kind_number(entry.file_type()),
                cookie: entry.next_entry_cookie(),
                attr: None,
                lacks: 0,
                lent: false,
            });
        }
        Ok(listing)
    }

    /// Looks entries up until a time. At least one stays in the listing.
    pub(super) fn look_up_all(
        &self,
        dir: &OwnedFd,
        listing: &mut Listing,
        xattrs: &[Name],
        until: Instant,
    ) {
        for (at, entry) in listing.entries.iter_mut().enumerate() {
            if at > 0 && Instant::now() >= until {
                listing.entries.truncate(at);
                listing.ended = false;
                return;
            }
            self.look_up(dir, entry, xattrs);
        }
    }

    /// Looks an entry up, and which of the extended attributes its file lacks. The entry may have
    /// been removed meanwhile, or the caller may look nothing up here.
    fn look_up(&self, dir: &OwnedFd, entry: &mut Entry, xattrs: &[Name]) {
        let Ok((known, mut attr)) = self.look_at(dir, &entry.name) else {
            return;
        };
        self.leave_out_hidden_name(&mut attr);
        entry.kind = kind_of(attr.mode);
        entry.attr = Some(attr);
        let path = sys::proc_path(&known.path);
        for (at, name) in xattrs.iter().enumerate() {
            let size = rustix::fs::getxattr(&path, &**name, &mut [0_u8; 0]);
            entry.lacks |= u8::from(size == Err(rustix::io::Errno::NODATA)) << at;
        }
    }
}

/// The number of the type of a file with this mode.
fn kind_of(mode: u32) -> u8 {
    kind_number(FileType::from_raw_mode(mode))
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
