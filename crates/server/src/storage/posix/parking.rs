//! Closes descriptors of files that are not used while the process is short of them, and opens the
//! files again when they are next used.
//!
//! A file that is open at clients first loses the descriptors of its data, then the `O_PATH` one.
//! Then only its place is kept. The last descriptor stays where nothing else leads to the file: it
//! has lost its last name, and got no hidden one. It also stays where the back end has no birth
//! times, for a file that is made later may get its name and its number, and would be taken for it.
//!
//! The kernel tells an error of write-back to each descriptor that was there before, and to a later
//! one only if nobody was told. So before the descriptor that wrote a file is closed, the file's
//! bytes are written back, and an error waits for the next sync (`untold.rs`).

use super::descriptor::Descriptor;
use super::export::Export;
use super::handle_table::{Known, Writers};
use super::place::Place;
use super::removals::Removed;
use super::sys::{self, Done, no};
use super::untold::tells_loss;
use crate::lock::lock;
use rustix::io::retry_on_intr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_forward::{Access, Errno};
use tidegate_wire::Handle;

/// The part of the descriptors that are closed at once when there are too many.
const AT_ONCE: usize = 64;

/// How often a call that finds no free descriptor is repeated, and the pause before.
const SHORT_TRIES: u32 = 200;
const SHORT_PAUSE: Duration = Duration::from_millis(5);

impl Export {
    /// Closes descriptors if there are too many. The thread must act for nobody.
    pub(super) fn make_room(&self) -> Done<()> {
        let too_many = self.table.too_many();
        if too_many == 0 {
            return Ok(());
        }
        self.own.act_as_itself()?;
        self.table.set_short(false);
        let before = self.table.fds();
        let wanted = too_many + self.table.fds_max() / AT_ONCE;
        let mut syncs = Syncs::default();
        // Each file gets a second chance once, so two looks find all that can go.
        for _ in 0..2 {
            let unused = self.table.unused(wanted);
            self.begin_to_write_back(&unused);
            for known in unused.into_iter().filter(|it| syncs.may(self, it)) {
                self.let_go(known);
            }
            if self.table.too_many() == 0 {
                break;
            }
        }
        if self.table.fds() >= before {
            self.table.wait_with_room();
        }
        if self.table.parked() > 0 {
            self.tell_full();
        }
        Ok(())
    }

    /// Runs a call that opens a descriptor. If the process has none left, waits until idle ones are
    /// closed.
    pub(super) fn with_room<T>(&self, open: impl Fn() -> rustix::io::Result<T>) -> Done<T> {
        for _ in 0..SHORT_TRIES {
            match open() {
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    self.table.set_short(true);
                    let closed = self.close_some();
                    if !closed {
                        std::thread::sleep(SHORT_PAUSE);
                    }
                }
                result => return result.map_err(no),
            }
        }
        Err(ENFILE.into())
    }

    /// Opens a file of which only the place is kept. Such a file may be elsewhere by now, so what
    /// is found is compared.
    pub(super) fn unpark(&self, handle: Handle) -> Done<Option<Arc<Known>>> {
        let Some(place) = self.table.place(handle) else {
            return Ok(None);
        };
        self.own.act_as_itself()?;
        match self.reach_place(handle, &place)? {
            Some(fd) => Ok(Some(self.adopt(fd)?.0)),
            None => Ok(None),
        }
    }

    /// Closes data descriptors of unused files, without a look at their names.
    pub(super) fn close_some(&self) -> bool {
        let close = |known: Arc<Known>| {
            self.write_back(&known)
                && match known.is_open() {
                    true => close_data(&known),
                    false => self.table.park(known, None),
                }
        };
        (0..2).any(|_| {
            let mut syncs = Syncs::default();
            let unused = self.table.unused(AT_ONCE).into_iter();
            let unused = unused.filter(|it| syncs.may(self, it));
            unused.map(close).fold(false, |some, closed| some | closed)
        })
    }

    /// Closes the data descriptors of files that are not open here and that no call uses. Clients
    /// may have them open all the same: a forwarder that serves a part of a file is not told.
    pub(super) fn let_go_of_data(&self, idle: &[Arc<Known>]) {
        self.begin_to_write_back(idle);
        let mut syncs = Syncs::default();
        for known in idle.iter().filter(|it| syncs.may(self, it)) {
            if self.write_back(known) {
                close_data(known);
            }
        }
    }

    /// Drops files that forwarders of this node have removed. Of open files those drop what they
    /// have with whom they are open.
    pub(super) fn let_go_of_removed(&self) {
        let removed = match self.removals.take() {
            Removed::Files(handles) => handles
                .into_iter()
                .filter_map(|handle| self.table.look(handle))
                .filter(|known| !known.is_open())
                .collect(),
            Removed::Any => self.table.not_open(),
        };
        for known in removed {
            if sys::stat(&known.path).is_ok_and(|stat| stat.stx_nlink == 0) {
                self.forget(known.handle);
            }
        }
    }

    /// Runs a call that takes room. If there is none and forwarders of this node have removed files
    /// since a call last waited in vain, waits until they have let go of them.
    pub(super) fn with_space<T>(&self, mut call: impl FnMut() -> Done<T>) -> Done<T> {
        let result = call();
        if !is_full(&result) {
            return result;
        }
        let again = self.removals.wait_for_room(|| {
            self.let_go_of_removed();
            Some(call()).filter(|result| !is_full(result))
        });
        again.unwrap_or(result)
    }

    /// Registers a file as no longer open.
    pub(super) fn closed(&self, handle: Handle) {
        self.table.closed(handle);
        self.untold.closed(handle);
    }

    /// Drops a file that has lost its last name, unless it is open.
    pub(super) fn forget(&self, handle: Handle) {
        if self.table.forget(handle) {
            self.untold.take(handle);
        }
    }

    fn let_go(&self, known: Arc<Known>) {
        if !known.is_open() {
            if !self.write_back(&known) {
                return;
            }
            let place = self.keeps_place(&known).then(|| self.place_of(&known));
            self.table.park(known, place.flatten());
            return;
        }
        if !known.data().is_empty() {
            if self.write_back(&known) {
                close_data(&known);
            }
            return;
        }
        if known.handle.birth != 0
            && let Some(place) = self.place_of(&known)
        {
            self.table.park(known, Some(place));
        }
    }

    /// Whether the place of a file that is not open is worth the look: a client that had to say it
    /// would lose time with each use of a directory.
    fn keeps_place(&self, known: &Known) -> bool {
        known.kind == sys::DIRECTORY || self.table.fds_max() < SMALL
    }

    /// The place of a file, if the file can be found there.
    fn place_of(&self, known: &Known) -> Option<Place> {
        let ask = |path: &[u8]| self.handle_at(path);
        let path = self.path_of(&known.path).filter(|path| !path.is_empty());
        let path = path.filter(|path| !known.is_open() || ask(path) == Some(known.handle));
        if let Some(place) = path.and_then(|path| self.places.of(&path, ask)) {
            return Some(place);
        }
        // Its hidden name is looked at wherever its place is, and goes where a removal fails.
        let hidden = known.is_open() && self.opens.has_hidden_name(known.handle);
        hidden.then(|| Place {
            dir: None,
            name: super::orphans::hidden_name(known.handle)
                .into_bytes()
                .into(),
        })
    }

    /// Has the kernel begin to write back the bytes of all these files.
    fn begin_to_write_back(&self, unused: &[Arc<Known>]) {
        let unsynced = unused.iter().filter(|it| it.is_unsynced());
        for known in unsynced.filter(|_| self.is_local) {
            let fd = known.data().write.clone();
            if let Some(fd) = fd
                && let Err(error) = sync_pages(&fd, libc::SYNC_FILE_RANGE_WRITE)
            {
                self.note(known, error);
            }
        }
    }

    /// Writes back what was written by the file's descriptor. False if the descriptor must stay.
    fn write_back(&self, known: &Known) -> bool {
        if !known.is_unsynced() {
            return true;
        }
        let Ok(_syncing) = known.syncing.try_write() else {
            // It is just being synced, so it is in use.
            return false;
        };
        let written_back = self.write_back_by(&known.sync_begins());
        let failed = written_back.into_iter().filter_map(Result::err);
        let mut may_go = true;
        for error in failed {
            self.note(known, error);
            may_go &= tells_loss(no(error));
        }
        if !may_go {
            known.set_unsynced();
        }
        may_go
    }

    /// Notes an error of write-back for the next sync: the kernel tells it once, whatever it is.
    pub(super) fn note(&self, known: &Known, error: rustix::io::Errno) {
        if OF_THE_CALL.contains(&error) {
            return;
        }
        self.untold.add(known.handle, no(error), known.is_open());
        if !known.is_open() {
            // It was closed meanwhile.
            self.untold.closed(known.handle);
        }
    }

    /// What became of the bytes that each descriptor wrote.
    fn write_back_by(&self, writers: &Writers) -> [rustix::io::Result<()>; 2] {
        let pages = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let Writers { buffered, direct } = writers;
        let buffered = buffered.as_deref();
        if self.is_local {
            // What was written directly is not held back.
            let synced = buffered.map(|fd| retry_on_intr(|| sync_pages(fd, pages)));
            return [synced.unwrap_or(Ok(())), Ok(())];
        }
        let both = [buffered, direct.as_deref().map(|direct| &direct.fd)];
        both.map(|fd| match fd {
            Some(fd) => retry_on_intr(|| rustix::fs::fdatasync(fd)),
            None => Ok(()),
        })
    }

    fn tell_full(&self) {
        let mut told = lock(&self.told_full);
        if told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        let fds = self.table.fds_max();
        tracing::warn!(
            "more files are open than this forwarder has descriptors for ({fds}): those that are \
             not used are closed and opened again, which takes time; a higher hard limit of open \
             files helps (ulimit -Hn, LimitNOFILE=)"
        );
    }
}

/// How often the log says that there are too few descriptors.
const TOLD_EVERY: Duration = Duration::from_secs(3600);

/// Errors that say nothing of the file's bytes.
const OF_THE_CALL: [rustix::io::Errno; 5] = [
    rustix::io::Errno::BADF,
    rustix::io::Errno::INVAL,
    rustix::io::Errno::SPIPE,
    rustix::io::Errno::OPNOTSUPP,
    rustix::io::Errno::INTR,
];

/// The files that one call syncs, each of which a distributed file system may take long for.
#[derive(Default)]
pub(super) struct Syncs(u32);

impl Syncs {
    pub(super) const MAX: u32 = 16;

    /// Whether the call may let go of this file. What the kernel itself writes back has begun.
    fn may(&mut self, export: &Export, known: &Known) -> bool {
        if export.is_local || !known.is_unsynced() {
            return true;
        }
        self.0 += 1;
        self.0 <= Syncs::MAX
    }
}

/// Whether the call has failed for want of room, or of the user's part of it.
fn is_full<T>(result: &Done<T>) -> bool {
    let full = [Errno::ENOSPC, Errno::EDQUOT];
    matches!(result, Err(Access::Errno(errno)) if full.contains(errno))
}

/// The answer where no descriptor became free.
const ENFILE: Errno = Errno(23);

/// A table with fewer descriptors keeps the place of every file.
const SMALL: usize = 512;

fn close_data(known: &Known) -> bool {
    // Descriptors are closed outside the lock.
    let closed = known.take_idle_data();
    closed.is_some_and(|data| !data.is_empty())
}

/// Writes back the pages of a whole file. Tells an error of write-back, as a sync does.
fn sync_pages(fd: &Descriptor, how: libc::c_uint) -> rustix::io::Result<()> {
    // SAFETY: the call takes numbers alone, and the descriptor is open.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, how) } {
        0 => Ok(()),
        _ => Err(
            rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::IO),
        ),
    }
}
