//! [`PosixFiles`]: the files of one exported directory, and nothing outside it.
//!
//! The root is opened once. Every other file is opened with `openat2`, relative to a directory
//! below the root, without following symbolic or magic links, and only on the root's own file
//! system: a mount point below answers EXDEV. A file is known by its handle, which is inode number
//! and birth time, and the forwarder remembers a path for it. Where the back end keeps no birth
//! times, a handle of a removed file may reach a new file that got its inode number. A forwarder
//! that runs as root acts with each caller's ids; any other one serves its own user only.

mod attributes;
mod bypass;
mod caller;
pub(crate) mod dead;
mod descriptor;
mod direct;
mod doubts;
mod ends;
mod export;
mod groups;
mod handle_table;
mod hidden;
mod learning;
mod listing;
mod name_calls;
mod orphans;
mod parking;
mod place;
mod reach;
mod removals;
mod ring_memory;
mod stamps;
mod sys;
mod untold;
mod whole_files;

pub(crate) use descriptor::Descriptor;
pub(crate) use direct::Direct;
pub(super) use ends::Ends;
pub use export::{ExportError, ExportOptions, Trust};
pub use hidden::HIDDEN;
pub(crate) use hidden::{
    open_hidden_file, open_hidden_with, read_hidden_file, read_or_record, replace_hidden_file,
};
pub(crate) use orphans::{SETTLED_BYTE, Vouching};
pub(crate) use ring_memory::leave as leave_node_memory;
pub(super) use sys::no;

use super::{Fence, FileCounts, Permit};
use export::Export;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use sys::Done;
use tidegate_forward::{Errno, Files};
use tidegate_wire::{Attr, Caller, Handle, Listing, Name, RenameMode, SetAttr, Statfs};

/// The message of an error that has no errno: this forwarder has lost the seat meanwhile.
pub(crate) const NOT_HELD: &str = "the seat is not held any more";

/// The files of an export. Clones share one table of known files; each storage thread has a clone.
#[derive(Clone)]
pub struct PosixFiles {
    export: Arc<Export>,
    /// Says whether the seat of a storage thread's current job is still held. The thread asks
    /// before each call that changes something.
    pub(super) permit: Permit,
    /// On whose behalf the operation of a storage thread's current job takes room; None: of the
    /// forwarder itself.
    pub(super) writer: Option<Arc<Caller>>,
}

impl PosixFiles {
    /// Whether the forwarder knows a file of this handle. Makes no call to the system.
    pub(super) fn knows(&self, handle: Handle) -> bool {
        self.export.table.look(handle).is_some() || self.export.table.place(handle).is_some()
    }

    /// Opens the directory, and makes the hidden folder `.tidegate` in it. The process must run
    /// with umask 0 ([`crate::storage::prepare_process`]), because clients have already applied
    /// their umasks. Fails if the directory cannot be opened or the hidden folder cannot be used.
    pub fn open(dir: &Path, options: &ExportOptions) -> Result<PosixFiles, ExportError> {
        Ok(PosixFiles {
            export: Arc::new(Export::open(dir, options)?),
            permit: Permit::default(),
            writer: None,
        })
    }

    /// Must be called about once a second. Each call looks at one bucket of the known files. It
    /// closes the descriptors of files that were not used since their bucket's last turn, after
    /// what was written by them is written back, and drops files that another forwarder has
    /// removed, so that their space is freed.
    pub fn tidy(&self) {
        let mut named = Vec::new();
        for known in self.export.table.idle() {
            match sys::stat(&known.path) {
                Ok(stat) if stat.stx_nlink > 0 => named.push(known),
                Ok(_) | Err(rustix::io::Errno::STALE) => self.export.forget(known.handle),
                // The back end does not answer now, and may have what was written.
                Err(_) => {}
            }
        }
        self.export.let_go_of_data(&named);
    }

    /// Must be called about once a second: takes over where others have renamed files that are open
    /// here without a descriptor, or directories above them. Ends early where `goes_on`, asked
    /// again and again, says so, as the calls below do.
    pub fn learn_of_moves(&self, goes_on: &mut dyn FnMut() -> bool) -> std::io::Result<()> {
        self.export.learn_of_moves(goes_on).map_err(as_io_error)
    }

    /// Must be called about once a second: removes notes of renames that are too old or too many.
    pub fn trim_notes(&self, goes_on: &mut dyn FnMut() -> bool) {
        self.export.opens.trim_moves(goes_on);
    }

    /// How often the forwarders of this node have told each other that there is something to let go
    /// of, or [`PosixFiles::end_wait`] was called.
    pub fn told_of_removals(&self) -> u32 {
        self.export.removals.rung()
    }

    /// Waits until there is more of that than `told`, `longest` at most.
    pub fn wait_for_removals(&self, told: u32, longest: std::time::Duration) {
        self.export.removals.wait(told, longest);
    }

    /// Ends waits for removals.
    pub fn end_wait(&self) {
        self.export.removals.ring_bell();
    }

    /// Runs a call that takes room, and again if other forwarders free some.
    pub(crate) fn with_space<T>(&self, call: impl FnMut() -> Done<T>) -> Done<T> {
        self.export.with_space(call)
    }

    /// Drops files that other forwarders of this node have removed, so that their space is freed.
    pub fn let_go_of_removed(&self) {
        self.export.let_go_of_removed();
    }

    /// Must be called about once a second: notices that the hidden folder was renamed or removed.
    pub fn look_at_hidden(&self) {
        self.export.look_at_hidden();
    }

    /// Why this forwarder must serve no longer: its seats are kept in a folder that others may not
    /// find. None while all is well.
    pub(crate) fn displaced(&self) -> Option<String> {
        self.export.is_hidden_gone().then(|| {
            let path = self.export.hidden_path.display();
            format!("{path} was renamed or removed, so other forwarders may take the same seats")
        })
    }

    /// Removes the seat's files that have no name and that nobody has reopened, and notes of
    /// renames. Returns the number of removed files. Must be called after
    /// [`PosixFiles::seat_settled`].
    pub fn sweep(&self, seat: u16) -> std::io::Result<u64> {
        let goes_on = &mut || true;
        let removed = self.sweep_removed(seat, goes_on)?;
        self.sweep_notes(&[seat], goes_on).map_err(as_io_error)?;
        Ok(removed)
    }

    fn sweep_removed(&self, seat: u16, goes_on: &mut dyn FnMut() -> bool) -> std::io::Result<u64> {
        let permit = self.permit.fence().permit(Some(seat));
        let removed = self.export.opens.sweep(seat, &permit, goes_on);
        removed.map_err(as_io_error)
    }

    /// Must be called when the grace period of a seat held here has ended.
    pub fn seat_settled(&self, seat: u16) {
        self.export.opens.set_settled(seat, true);
    }

    /// Must be called as soon as a seat is known to be lost: from then on its next holder decides
    /// which of its files are open, and this forwarder no longer knows.
    pub fn seat_lost(&self, seat: u16) {
        self.export.opens.set_settled(seat, false);
    }

    /// Sweeps the seats held here, where other forwarders leave that to the seat's holder.
    pub fn sweep_apart(&self, goes_on: &mut dyn FnMut() -> bool) -> std::io::Result<()> {
        let opens = &self.export.opens;
        let seats = opens.to_sweep();
        let mut swept = Ok(());
        for seat in &seats {
            let removed = self.sweep_removed(*seat, goes_on);
            if removed.is_err() {
                opens.sweep_again(*seat);
            }
            swept = swept.and(removed.map(drop));
        }
        let notes = self.sweep_notes(&seats, goes_on);
        if notes.is_err() {
            seats.iter().for_each(|seat| opens.sweep_again(*seat));
        }
        let calm = opens.calm_down().map_err(as_io_error);
        swept.and(notes.map_err(as_io_error)).and(calm)
    }

    /// Must be called when a seat was released: its next holder registers which of its files are
    /// open.
    pub fn seat_released(&self, seat: u16) {
        self.seat_lost(seat);
        for handle in self.export.opens.forget_seat(seat) {
            self.export.closed(handle);
        }
    }

    /// The same files, for calls that the fence must permit.
    pub fn fenced(mut self, fence: &Fence) -> PosixFiles {
        self.permit = fence.permit(None);
        self
    }

    /// What is known of files now.
    pub(crate) fn counts(&self) -> FileCounts {
        FileCounts {
            descriptors: self.export.table.fds() as u64,
            parked: self.export.table.parked() as u64,
        }
    }

    /// Where the seats tell for which of them this forwarder vouches.
    pub(crate) fn vouching(&self) -> Arc<Vouching> {
        self.export.opens.vouching().clone()
    }

    /// The seat whose holder knows who has a file open.
    pub(crate) fn seat_of(&self, handle: Handle) -> u16 {
        self.export.opens.seat_of(handle)
    }

    /// Whether byte locks of two open descriptions exclude each other on this back end.
    pub(crate) fn locks_work(&self) -> bool {
        self.export.opens.locks_work()
    }

    /// Whether sizes and other attributes that this node's kernel caches are believed.
    pub(crate) fn trusts_attributes(&self) -> bool {
        self.export.trust.attributes
    }

    /// The file's size in bytes.
    pub(crate) fn size_now(&self, handle: Handle) -> Done<u64> {
        // Asked in the midst of calls too, when the thread has the rights of a writer.
        let found = self.export.table.find(handle);
        let known = found.map_or_else(|| self.export.known(handle), Ok)?;
        self.export.size(&known.path).map_err(no)
    }

    /// Asks the back end itself for the root, whatever the kernel has cached of it.
    pub(crate) fn look_at_root(&self) -> std::io::Result<()> {
        use rustix::fs::AtFlags;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        sys::stat_at(&self.export.root.path, c"", flags)?;
        Ok(())
    }

    /// The hidden folder, for the modules that keep seats.
    pub fn hidden(&self) -> BorrowedFd<'_> {
        self.export.hidden()
    }

    /// The path of the hidden folder, for messages.
    pub(crate) fn hidden_path(&self) -> &Path {
        &self.export.hidden_path
    }
}

fn as_io_error(access: tidegate_forward::Access) -> std::io::Error {
    match access {
        tidegate_forward::Access::Errno(Errno(errno)) => {
            std::io::Error::from_raw_os_error(i32::from(errno))
        }
        tidegate_forward::Access::UnknownHandle => std::io::ErrorKind::NotFound.into(),
        tidegate_forward::Access::NotHeld => std::io::Error::other(NOT_HELD),
    }
}

impl Files for PosixFiles {
    fn root(&mut self) -> Done<Attr> {
        self.attr_of_known(&self.export.root)
    }

    fn resolve_path(&mut self, handle: Handle, path: &[u8]) -> Done<Attr> {
        self.walk_path(handle, path)
    }

    fn reach(&mut self, caller: &Caller, handle: Handle, path: &[u8]) -> Done<Attr> {
        self.reach_as(caller, handle, path)
    }

    fn lookup(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<Attr> {
        self.lookup_name(caller, parent, name)
    }

    fn attr(&mut self, handle: Handle) -> Done<Attr> {
        self.attr_of_known(&*self.export.known(handle)?)
    }

    fn size(&mut self, handle: Handle) -> Done<u64> {
        let size = self.size_now(handle)?;
        if let Some(range) = self.export.doubts.of(handle) {
            self.end_copies_alike(handle, size, range)?;
            self.export.doubts.settle(handle);
        }
        Ok(size)
    }

    fn create(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr> {
        self.export
            .with_space(|| self.create_file(caller, parent, name, mode))
    }

    fn mkdir(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
    ) -> Done<Attr> {
        self.export
            .with_space(|| self.make_directory(caller, parent, name, mode))
    }

    fn mknod(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Done<Attr> {
        self.export
            .with_space(|| self.make_node(caller, parent, name, mode, rdev))
    }

    fn symlink(
        &mut self,
        caller: Option<&Caller>,
        parent: Handle,
        name: &[u8],
        target: &[u8],
    ) -> Done<Attr> {
        self.export
            .with_space(|| self.make_symlink(caller, parent, name, target))
    }

    fn link(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        parent: Handle,
        name: &[u8],
    ) -> Done<Attr> {
        self.export
            .with_space(|| self.link_file(caller, handle, parent, name))
    }

    fn unlink(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<()> {
        self.unlink_name(caller, parent, name)
    }

    fn rmdir(&mut self, caller: Option<&Caller>, parent: Handle, name: &[u8]) -> Done<()> {
        self.remove_directory(caller, parent, name)
    }

    fn rename(
        &mut self,
        caller: Option<&Caller>,
        from: (Handle, &[u8]),
        to: (Handle, &[u8]),
        mode: RenameMode,
    ) -> Done<()> {
        self.export
            .with_space(|| self.rename_name(caller, from, to, mode))
    }

    fn readdir(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        cookie: u64,
        bytes_max: u32,
        xattrs: Option<&[Name]>,
    ) -> Done<Listing> {
        self.list(caller, handle, cookie, bytes_max, xattrs)
    }

    fn set_attr(&mut self, caller: Option<&Caller>, handle: Handle, set: &SetAttr) -> Done<Attr> {
        self.set_attributes(caller, handle, set)
    }

    fn opened(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Done<Attr> {
        let known = self.export.known(handle)?;
        if write && known.kind == sys::DIRECTORY {
            return Err(Errno::EISDIR.into());
        }
        self.check_open(caller, &known, read, write)?;
        if known.kind != sys::REGULAR {
            return self.attr_of_known(&known);
        }
        let is_first = self.export.opens.opened(handle)?;
        known.set_open(true);
        let mut attr = sys::attr_of(&self.export.stat(&known.path).map_err(no)?);
        if attr.nlink == 0 && is_first {
            // The file lost its last name just before it was registered. Where it had been
            // registered before, its descriptor is the only way to it, and stays.
            self.closed(handle)?;
            return Err(Errno::ESTALE.into());
        }
        self.count_out_hidden_name(&mut attr);
        Ok(attr)
    }

    fn closed(&mut self, handle: Handle) -> Done<()> {
        // In this order, so that whoever adds the file to the table just now leaves no trace.
        let closed = self.export.opens.closed(handle, &self.permit);
        self.export.closed(handle);
        closed?;
        if let Some(known) = self.export.table.find(handle)
            && self.export.stat(&known.path).map_err(no)?.stx_nlink == 0
        {
            self.export.forget(handle);
            self.export.opens.gone(handle);
        }
        Ok(())
    }

    fn readlink(&mut self, caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>> {
        let known = self.export.known(handle)?;
        if known.kind != libc::S_IFLNK {
            return Err(Errno::EINVAL.into());
        }
        let _acting = self.export.own.act_as(caller)?;
        let target = rustix::fs::readlinkat(&known.path, c"", Vec::new()).map_err(no)?;
        Ok(target.into_bytes().into())
    }

    fn access(&mut self, caller: Option<&Caller>, handle: Handle, mask: u32) -> Done<()> {
        self.check_access(caller, &*self.export.known(handle)?, mask)
    }

    fn fsync(&mut self, handle: Handle, data_only: bool) -> Done<()> {
        self.sync(handle, data_only)
    }

    fn statfs(&mut self) -> Done<Statfs> {
        let state = rustix::fs::fstatvfs(&self.export.root.path).map_err(no)?;
        Ok(Statfs {
            blocks: state.f_blocks,
            blocks_free: state.f_bfree,
            blocks_available: state.f_bavail,
            files: state.f_files,
            files_free: state.f_ffree,
            block_size: u32::try_from(state.f_frsize).unwrap_or(4096),
            name_max: u32::try_from(state.f_namemax).unwrap_or(255),
        })
    }

    fn fallocate(&mut self, handle: Handle, mode: u32, offset: u64, len: u64) -> Done<()> {
        self.export
            .with_space(|| self.allocate(handle, mode, offset, len))
    }

    fn copy_range(&mut self, from: (Handle, u64), to: (Handle, u64), len: u64) -> Done<u64> {
        self.export.with_space(|| self.copy(from, to, len))
    }

    fn seek(&mut self, handle: Handle, offset: u64, whence: u32) -> Done<u64> {
        self.seek_from(handle, offset, whence)
    }

    fn getxattr(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
    ) -> Done<Box<[u8]>> {
        self.xattr(caller, handle, name)
    }

    fn setxattr(
        &mut self,
        caller: Option<&Caller>,
        handle: Handle,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Done<()> {
        self.export
            .with_space(|| self.set_xattr(caller, handle, name, value, flags))
    }

    fn listxattr(&mut self, caller: Option<&Caller>, handle: Handle) -> Done<Box<[u8]>> {
        self.list_xattr(caller, handle)
    }

    fn removexattr(&mut self, caller: Option<&Caller>, handle: Handle, name: &[u8]) -> Done<()> {
        self.remove_xattr(caller, handle, name)
    }

    fn read_at(&mut self, handle: Handle, offset: u64, len: u64) -> Done<Vec<u8>> {
        self.read_whole(handle, offset, len)
    }

    fn write_at(&mut self, handle: Handle, offset: u64, bytes: &[u8]) -> Done<u64> {
        self.export
            .with_space(|| self.write_whole(handle, offset, bytes))
    }

    fn copies_may_differ(&self) -> bool {
        !self.export.trust.copies
    }

    fn doubt_end(&mut self, handle: Handle, range: (u64, u64)) {
        if !self.copies_may_differ() {
            return;
        }
        let inode = handle.inode;
        let what = "copies of a file may differ at its end: an append failed, and so did the look \
                    at what came of it";
        match self.export.doubts.add(handle, range) {
            true => tracing::warn!(inode, "{what}; they are made alike before the next one"),
            false => tracing::error!(inode, "{what}; there are too many to remember this one"),
        }
    }

    fn align_copies(&mut self, handle: Handle, offset: u64, found: &[u8]) -> Done<()> {
        self.write_copies_alike(handle, offset, found)
    }

    fn wall_ns(&mut self) -> i64 {
        self.export.stamps.now_ns(self.export.hidden())
    }
}

#[cfg(test)]
mod tests;
