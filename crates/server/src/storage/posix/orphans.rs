//! Keeps files that are still open after their last name was removed, under a hidden name.
//!
//! A forwarder that has a file registered as open holds a shared lock on byte `inode` of
//! `.tidegate/opens`. A forwarder that removes a name tries an exclusive lock on that byte, through
//! a second description. The file is first linked to `.tidegate/orphans/<inode>-<birth>` in two
//! cases: some forwarder holds the shared lock, or the seat of the file cannot tell whether the
//! file is open, because the seat has no holder or clients are still reclaiming. The last close
//! removes the hidden name. After a seat changed hands a sweep removes the hidden names of files
//! that nobody has reclaimed.
//!
//! Where locks do not reach other nodes (`apart`), only the holder of a file's seat knows whether
//! the file is open. There a forwarder keeps every file whose name it removes, and the holder of
//! the seat sweeps again and again. The same goes for the seats of a forwarder at which so many
//! files are open that it locks no byte for each (`vouching.rs`): the kernel keeps the locks of a
//! file in a list, which it walks at each call.

mod moved;
mod sweeping;
mod vouching;

pub(super) use moved::noted;
pub(crate) use vouching::Vouching;

use super::hidden::{make_folder, open_hidden_file};
use super::removals::Removals;
use super::sys::{self, Done, no, no_std};
use crate::storage::ofd::{self, Kind};
use crate::storage::{Fence, Permit};
use rustix::fs::{AtFlags, CWD};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidegate_forward::Errno;
use tidegate_wire::{Handle, Layout};

/// The byte of a seat's file that its holder locks once it knows which of the seat's files are
/// open.
pub(crate) const SETTLED_BYTE: u64 = 2;

/// A byte beyond those of all files, by which a forwarder finds out whether locks work.
const PROBE_BYTE: u64 = 1 << 62;

/// How many groups files are divided into. A thread locks a file's group while it decides about
/// opens.
const GROUPS: usize = 64;

/// How often a removal waits 1 ms for another forwarder's removal of the same file. After that the
/// file is kept.
const REMOVAL_TRIES: u32 = 50;

/// The most open files whose bytes a forwarder locks.
const LOCKED_MAX: usize = 512;

/// How long an open waits until another forwarder has finished an unlink of the same file.
const UNLINK_WAIT: Duration = Duration::from_secs(5);

/// Which files are open, as far as removals have to know.
pub(super) struct Opens {
    layout: Layout,
    /// Whether locks of two descriptions exclude each other on this back end. If not, only this
    /// forwarder's own opens count.
    locks_work: bool,
    /// Set where locks do not reach forwarders on other nodes: tells until when seats are held
    /// here.
    apart: Option<Fence>,
    /// Seats held here all of whose opens are known. Used only where `apart` is set.
    settled: Mutex<BTreeSet<u16>>,
    /// Hidden names that the last sweep left for the next one.
    left: Mutex<HashSet<Handle>>,
    hidden: OwnedFd,
    orphans: OwnedFd,
    notes: moved::Notes,
    /// Tells other forwarders which files are gone.
    removals: Arc<Removals>,
    /// Holds the shared locks of all files that are open here.
    sharing: OwnedFd,
    /// Tries the exclusive locks.
    excluding: OwnedFd,
    groups: Vec<Mutex<HashSet<Handle>>>,
    /// How many files are in all groups.
    count: AtomicUsize,
    /// Whether further files get no lock, because there are too many.
    crowded: AtomicBool,
    vouching: Arc<Vouching>,
    /// Seats that were swept the last time because this forwarder did not vouch for them, or whose
    /// sweep failed.
    swept: Mutex<Vec<u16>>,
    /// Descriptors of the seats' files, for looking at their locks.
    seats: Mutex<BTreeMap<u16, OwnedFd>>,
}

/// The right to remove a name of a file, until it is dropped.
pub(super) struct Removing<'a> {
    opens: &'a Opens,
    handle: Handle,
    /// Whether the hidden name was made for this removal.
    linked: bool,
    /// Whether the file must stay reachable.
    kept: bool,
    /// Whether somebody may have the file open.
    open: bool,
    permit: &'a Permit,
    /// The lock on the file's group: no other thread of this process decides about its opens.
    group: MutexGuard<'a, HashSet<Handle>>,
}

impl Opens {
    /// Opens the files of the hidden folder that this needs.
    pub(super) fn open(
        hidden: BorrowedFd<'_>,
        layout: Layout,
        apart: Option<Fence>,
        removals: Arc<Removals>,
    ) -> std::io::Result<Opens> {
        let sharing = open_hidden_file(hidden, "opens")?;
        let excluding = open_hidden_file(hidden, "opens")?;
        Ok(Opens {
            layout,
            locks_work: apart.is_none() && exclude_each_other(sharing.as_fd(), excluding.as_fd()),
            apart,
            settled: Mutex::default(),
            left: Mutex::default(),
            hidden: hidden.try_clone_to_owned()?,
            orphans: make_folder(hidden, "orphans")?,
            notes: moved::Notes::open(hidden)?,
            removals,
            sharing,
            excluding,
            groups: (0..GROUPS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            vouching: Arc::default(),
            swept: Mutex::default(),
            seats: Mutex::default(),
        })
    }

    /// Tells other forwarders for which seats this one vouches.
    pub(super) fn vouching(&self) -> &Arc<Vouching> {
        &self.vouching
    }

    /// Whether locks of two descriptions exclude each other here, and are used at all.
    pub(super) fn locks_work(&self) -> bool {
        self.locks_work
    }

    /// Notes whether this forwarder holds a seat and knows all opens of its files.
    pub(super) fn set_settled(&self, seat: u16, settled: bool) {
        let mut all = lock(&self.settled);
        match settled {
            true => all.insert(seat),
            false => all.remove(&seat),
        };
    }

    /// Whether this file, which is to be registered, gets no lock.
    fn is_crowded(&self) -> Done<bool> {
        if self.crowded.load(Ordering::SeqCst) {
            return Ok(true);
        }
        if !self.locks_work || self.count.load(Ordering::SeqCst) < LOCKED_MAX {
            return Ok(false);
        }
        self.vouching.withhold().map_err(|e| no_std(&e))?;
        self.crowded.store(true, Ordering::SeqCst);
        // From now on nobody needs the locks that others have to walk past.
        ofd::unlock_before(self.sharing.as_fd(), PROBE_BYTE).map_err(|e| no_std(&e))?;
        Ok(true)
    }

    /// Locks the byte of each open file again when there are few of them.
    pub(super) fn calm_down(&self) -> Done<()> {
        let Some(began) = self.vouching.began() else {
            return Ok(());
        };
        if self.count.load(Ordering::SeqCst) > LOCKED_MAX / 2 {
            return Ok(());
        }
        self.crowded.store(false, Ordering::SeqCst);
        for group in &self.groups {
            for handle in lock(group).iter() {
                if !self.share(*handle)? {
                    // Another forwarder removes a name of it; the next time will do.
                    return Ok(());
                }
            }
        }
        self.vouching.resume(began).map_err(|e| no_std(&e))
    }

    /// Registers the file as open here.
    pub(super) fn opened(&self, handle: Handle) -> Done<bool> {
        let give_up = Instant::now() + UNLINK_WAIT;
        loop {
            let mut group = self.group(handle);
            if group.contains(&handle) {
                return Ok(false);
            }
            let crowded = self.is_crowded()?;
            if self.share(handle)? {
                if crowded {
                    self.unshare(handle)?;
                }
                group.insert(handle);
                self.count.fetch_add(1, Ordering::SeqCst);
                return Ok(true);
            }
            drop(group);
            // Another forwarder is just removing a name of the file.
            if Instant::now() >= give_up {
                return Err(Errno::ETIMEDOUT.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the registration. Removes the file's hidden name, unless another forwarder may need it.
    pub(super) fn closed(&self, handle: Handle, permit: &Permit) -> Done<()> {
        let mut group = self.group(handle);
        if group.remove(&handle) {
            self.count.fetch_sub(1, Ordering::SeqCst);
            self.unshare(handle)?;
            self.forget_move(&group, handle, permit)?;
        }
        if self.has_hidden_name(handle) && self.lock_if_unused(&group, handle, permit)? {
            let removed = permit.begin().and_then(|()| {
                let name = hidden_name(handle);
                let removed = rustix::fs::unlinkat(&self.orphans, name, AtFlags::empty());
                removed.or_else(ignore_absent).map_err(no)
            });
            self.unlock(handle)?;
            removed?;
            self.gone(handle);
        }
        Ok(())
    }

    /// The seat whose holder knows who has a file open.
    pub(super) fn seat_of(&self, handle: Handle) -> u16 {
        self.layout.seat_of_file(handle)
    }

    /// Does something if the file is registered as open here. The registration ends only after
    /// that.
    pub(super) fn if_open_here(&self, handle: Handle, run: impl FnOnce()) {
        let group = self.group(handle);
        if group.contains(&handle) {
            run();
        }
    }

    /// Ends all registrations of a seat's files, and returns these files. Their hidden names stay,
    /// because clients tell the seat's next holder what they have open.
    pub(super) fn forget_seat(&self, seat: u16) -> Vec<Handle> {
        let mut forgotten = Vec::new();
        for group in &self.groups {
            let mut group = lock(group);
            group.retain(|&handle| {
                let stays = self.layout.seat_of_file(handle) != seat;
                if !stays {
                    forgotten.push(handle);
                    self.count.fetch_sub(1, Ordering::SeqCst);
                    if let Err(error) = self.unshare(handle) {
                        tracing::warn!(inode = handle.inode, ?error, "open file stays locked");
                    }
                }
                stays
            });
        }
        forgotten
    }

    /// Prepares to remove a name of the regular file behind `path`. Links the file to its hidden
    /// name if it may be open somewhere.
    pub(super) fn removing<'a>(
        &'a self,
        handle: Handle,
        path: BorrowedFd<'_>,
        permit: &'a Permit,
        may: impl FnOnce() -> Done<()>,
    ) -> Done<Removing<'a>> {
        let group = self.group(handle);
        let kept = !self.lock_if_unused(&group, handle, permit)?;
        if kept {
            may()?;
        }
        let mut removing = Removing {
            opens: self,
            handle,
            linked: false,
            kept,
            open: kept,
            permit,
            group,
        };
        if !kept {
            return Ok(removing);
        }
        let name = hidden_name(handle);
        let from = sys::proc_path(path);
        match rustix::fs::linkat(CWD, &from, &self.orphans, &name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => removing.linked = true,
            Err(rustix::io::Errno::EXIST) => {}
            // A full disk has no room for one more name, and must not stay full for that. A back
            // end without hard links leaves no choice. The file then survives only where it is
            // open.
            Err(error) => {
                tracing::warn!(inode = handle.inode, %error, "open file loses its last name");
                removing.kept = false;
            }
        }
        Ok(removing)
    }

    /// Whether the file has a hidden name.
    pub(super) fn has_hidden_name(&self, handle: Handle) -> bool {
        sys::stat_at(&self.orphans, hidden_name(handle), AtFlags::empty())
            .is_ok_and(|stat| sys::handle_of(&stat) == handle)
    }

    /// The folder of hidden names.
    pub(super) fn orphans(&self) -> BorrowedFd<'_> {
        self.orphans.as_fd()
    }

    /// Tells other forwarders that a name of a file is gone which nobody has open, or its hidden
    /// name. Where locks do not work, nobody knows whether it is open.
    pub(super) fn gone(&self, handle: Handle) {
        if self.locks_work {
            self.removals.note(handle);
        }
    }

    /// Takes the exclusive lock, if the file is open nowhere and the holder of its seat can tell.
    /// This forwarder counts as one that can tell of its seats, whether or not it vouches for them.
    fn lock_if_unused(
        &self,
        group: &HashSet<Handle>,
        handle: Handle,
        permit: &Permit,
    ) -> Done<bool> {
        let seat = self.layout.seat_of_file(handle);
        if group.contains(&handle) {
            return Ok(false);
        }
        if self.apart.is_some() {
            return Ok(self.is_settled(seat));
        }
        if !self.locks_work {
            return Ok(true);
        }
        let holds = self.holds(seat, permit);
        let fd = self.excluding.as_fd();
        for _ in 0..REMOVAL_TRIES {
            if ofd::try_lock(fd, byte(handle), Kind::Exclusive).map_err(|e| no_std(&e))? {
                // Asked only now: whoever ceases to vouch then waits for this lock.
                let told = holds || self.is_settled(seat);
                if !told {
                    self.unlock(handle)?;
                }
                return Ok(told);
            }
            if let Ok(Some(Kind::Shared)) = ofd::held_elsewhere(fd, byte(handle)) {
                return Ok(false);
            }
            // Another forwarder is removing another name of the file: that takes a system call.
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(false)
    }

    /// Whether this forwarder alone knows of opens of the seat's files.
    fn holds(&self, seat: u16, permit: &Permit) -> bool {
        self.vouching.is_withheld_of(seat) && !permit.fence().is_closed_to(seat)
    }

    fn unlock(&self, handle: Handle) -> Done<()> {
        match self.locks_work {
            true => ofd::unlock(self.excluding.as_fd(), byte(handle)).map_err(|e| no_std(&e)),
            false => Ok(()),
        }
    }

    /// Takes the shared lock. False while another forwarder removes a name of the file.
    fn share(&self, handle: Handle) -> Done<bool> {
        if !self.locks_work {
            return Ok(true);
        }
        ofd::try_lock(self.sharing.as_fd(), byte(handle), Kind::Shared).map_err(|e| no_std(&e))
    }

    fn unshare(&self, handle: Handle) -> Done<()> {
        match self.locks_work {
            true => ofd::unlock(self.sharing.as_fd(), byte(handle)).map_err(|e| no_std(&e)),
            false => Ok(()),
        }
    }

    /// Whether a live forwarder holds the seat and knows all opens of its files.
    fn is_settled(&self, seat: u16) -> bool {
        if let Some(fence) = &self.apart {
            return lock(&self.settled).contains(&seat) && !fence.is_closed_to(seat);
        }
        let mut seats = lock(&self.seats);
        let fd = match seats.entry(seat) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                match open_hidden_file(self.hidden.as_fd(), &format!("seat.{seat}")) {
                    Ok(fd) => entry.insert(fd),
                    Err(_) => return false,
                }
            }
        };
        matches!(ofd::held_elsewhere(fd.as_fd(), SETTLED_BYTE), Ok(Some(_)))
    }

    fn group(&self, handle: Handle) -> MutexGuard<'_, HashSet<Handle>> {
        lock(&self.groups[handle.inode as usize % GROUPS])
    }
}

impl Removing<'_> {
    /// Whether the file keeps a hidden name for those that have it open.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Whether somebody may have the file open.
    pub(super) fn may_be_open(&self) -> bool {
        self.open
    }

    /// Undoes the preparation, because the name was not removed after all.
    pub(super) fn undo(&mut self) {
        if self.linked {
            self.remove_hidden_name();
        }
        self.kept = false;
    }

    /// Ends the removal, after the name was removed. If the file need not be kept, this also
    /// removes a hidden name that a forwarder left which died between the two steps of a removal.
    pub(super) fn done(&mut self, nlink_before: u32) {
        if !self.kept && nlink_before > 1 && self.opens.has_hidden_name(self.handle) {
            self.remove_hidden_name();
        }
    }

    /// Removes the hidden name. If the seat was lost meanwhile the name stays for the sweep of the
    /// next holder, because another forwarder may have removed the file's last name since.
    fn remove_hidden_name(&self) {
        if self.permit.is_closed() {
            return;
        }
        let name = hidden_name(self.handle);
        let removed = rustix::fs::unlinkat(&self.opens.orphans, name, AtFlags::empty());
        match removed.or_else(ignore_absent) {
            Ok(()) => self.opens.gone(self.handle),
            Err(error) => {
                tracing::warn!(inode = self.handle.inode, %error, "hidden name stays");
            }
        }
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        // The last close elsewhere may have come before the hidden name existed.
        if self.kept
            && matches!(
                self.opens
                    .lock_if_unused(&self.group, self.handle, self.permit),
                Ok(true)
            )
        {
            self.remove_hidden_name();
        }
        if let Err(error) = self.opens.unlock(self.handle) {
            tracing::warn!(
                inode = self.handle.inode,
                ?error,
                "removed file stays locked"
            );
        }
    }
}

/// Whether a shared lock of one description keeps the other from an exclusive one. Other forwarders
/// lock the probed byte only in shared mode.
fn exclude_each_other(sharing: BorrowedFd<'_>, excluding: BorrowedFd<'_>) -> bool {
    let shared = ofd::try_lock(sharing, PROBE_BYTE, Kind::Shared);
    let both = ofd::try_lock(excluding, PROBE_BYTE, Kind::Exclusive);
    if matches!(both, Ok(true)) {
        // If descriptions do not exclude each other, leave no lock behind that another node may
        // see.
        let _ = ofd::unlock(excluding, PROBE_BYTE);
    }
    matches!((shared, both), (Ok(true), Ok(false)))
}

/// The byte of the lock file that stands for a file.
fn byte(handle: Handle) -> u64 {
    handle.inode % (1 << 62)
}

pub(super) fn hidden_name(handle: Handle) -> String {
    format!("{}-{}", handle.inode, handle.birth)
}

fn parse_hidden_name(name: &[u8]) -> Option<Handle> {
    let (inode, birth) = std::str::from_utf8(name).ok()?.split_once('-')?;
    Some(Handle {
        inode: inode.parse().ok()?,
        birth: birth.parse().ok()?,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Sets of handles and seats are consistent whatever panicked.
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn ignore_absent(error: rustix::io::Errno) -> rustix::io::Result<()> {
    match error {
        rustix::io::Errno::NOENT => Ok(()),
        error => Err(error),
    }
}
