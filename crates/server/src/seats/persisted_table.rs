//! A reply table in the memory of this process, which is written to the file of its seat's lease.
//! What is persisted survives a crash of the node.
//!
//! A store marks its pages. [`SeatTable::persist`] writes the marked pages, for all threads that
//! wait for it together. Pages that may be lost with the node ([`SeatTable::store_later`]) are
//! written when the lease is renewed. Nothing is written after the lease has expired. A write that
//! comes too late has no effect either, because the next holder has a file of its own.
//!
//! The reply slots of clients lie far apart in the table, and most clients use one page. So the
//! file has the pages in the order of their first use, one after another behind the record's page.
//! Each page names itself in its spare bytes: its number plus one, or zero where none was written.
//! A page keeps its place as long as the file exists.

use super::mapped_table::{MAPPED_BYTES, TableMemory};
use super::marks::Marks;
use super::room::{Room, is_full};
use super::uncached::{PAGE, Page, UncachedFile};
use crate::lock::lock;
use crate::storage::Permit;
use crate::storage::posix::NOT_HELD;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use tidegate_forward::{ENTRIES_BYTES, Errno, SEGMENT_BYTES, SPARE_AT, SeatTable, used_ranges};

/// The offset of the table in the file: behind the record's page.
const TABLE_AT: u64 = PAGE as u64;
/// The most pages that one call reads or writes: 1 MiB.
const TOGETHER: usize = 256;
/// How long to wait before looking again whether another thread still writes.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// The number of pages of the largest table.
const PAGES_MAX: usize = MAPPED_BYTES / PAGE;

/// A reply table that is written to the file of a lease.
pub(super) struct WrittenTable {
    memory: TableMemory,
    file: Arc<UncachedFile>,
    permit: Permit,
    /// Whether the back end has room, for all tables of this forwarder.
    room: Room,
    /// Pages to persist at once; a second set marks those that can wait.
    now: Marks,
    later: Marks,
    /// Unused pages, whose room in the file is to be given back.
    unused: Marks,
    /// Where pages lie in the file. Locked while pages are written.
    places: Mutex<Places>,
    /// Held by the thread that gets the places next. Without it, a thread that releases and takes
    /// the mutex at once would starve the others.
    next: Mutex<()>,
    /// Whether the seat was released or lost.
    closed: AtomicBool,
    /// Whether the file still lacks pages that the last holder's file has. Nothing counts as
    /// persisted then.
    partial: AtomicBool,
    /// What the lease's record says about clients for which the table has no room.
    lack: AtomicU8,
    /// Whether the table was taken over with a record that says that clients may be missing.
    inherits_lack: bool,
}

/// The record says that no client is missing.
const LACKS_NONE: u8 = 0;
/// Threads wait until the record says that clients may be missing.
const LACKS_SOME: u8 = 1;
/// The record says that clients may be missing.
const LACK_RECORDED: u8 = 2;

/// The place in the file of each page.
#[derive(Default)]
struct Places(BTreeMap<usize, usize>);

impl Places {
    /// The place of a page. A page without one gets the next free place.
    fn of(&mut self, page: usize) -> usize {
        let next = self.0.len();
        *self.0.entry(page).or_insert(next)
    }
}

/// Pages that lie next to each other in the file, with their places.
type Run = Vec<(usize, usize)>;

impl WrittenTable {
    fn new(file: Arc<UncachedFile>, inherits_lack: bool) -> io::Result<WrittenTable> {
        let table = WrittenTable {
            memory: TableMemory::private(SEGMENT_BYTES)?,
            file,
            permit: Permit::default(),
            room: Room::default(),
            now: Marks::new(PAGES_MAX),
            later: Marks::new(PAGES_MAX),
            unused: Marks::new(PAGES_MAX),
            places: Mutex::default(),
            next: Mutex::default(),
            closed: AtomicBool::new(false),
            partial: AtomicBool::new(false),
            lack: AtomicU8::new(LACKS_NONE),
            inherits_lack,
        };
        // Clients that come later then find room for their entries, however full the back end is.
        table.mark(&table.now, 0, ENTRIES_BYTES);
        Ok(table)
    }

    /// Whether the next record must say that the table may lack clients.
    pub(super) fn lacks_some(&self) -> bool {
        self.lack.load(Ordering::Acquire) != LACKS_NONE
    }

    /// Notes that the record says so.
    pub(super) fn lack_recorded(&self) {
        self.lack.store(LACK_RECORDED, Ordering::Release);
    }

    /// Notes whether the back end had no room for all of the table, so that the record names the
    /// file which has it.
    pub(super) fn set_partial(&self, partial: bool) {
        self.partial.store(partial, Ordering::Release);
    }

    /// Writes all marked pages. Begins no call after `until`. Clients that find no room from now on
    /// wait until the record says again that the table lacks some.
    pub(super) fn write_all(&self, until: Instant) -> io::Result<AllWritten> {
        let lack = self.lack.swap(LACKS_NONE, Ordering::AcqRel);
        let written = self.write_until(true, Some(until));
        if !matches!(written, Ok(true)) {
            self.lack.fetch_max(lack, Ordering::AcqRel);
        }
        Ok(match (written?, lack) {
            (false, _) => AllWritten::GoesOn,
            (true, LACKS_NONE) => AllWritten::Yes,
            (true, _) => AllWritten::LacksNoneNow,
        })
    }

    /// Writes the marked pages; with `all` also those that can wait.
    pub(super) fn write(&self, all: bool) -> io::Result<()> {
        self.write_until(all, None).map(|_| ())
    }

    /// Does the same, but begins no call after `until`. True if nothing is left to write. Other
    /// threads that wait to write have their turn between two calls.
    pub(super) fn write_until(&self, all: bool, until: Option<Instant>) -> io::Result<bool> {
        let Some(mut places) = self.turn_until(until) else {
            return Ok(false);
        };
        if !all && self.room.is_out(self.permit.fence().now()) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut runs = self.runs(&mut places, all);
        self.check_held()?;
        if let Some(run) = runs.pop_front() {
            self.write_run(&mut places, &run)?;
        }
        drop(places);
        for run in runs {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            let Some(mut places) = self.turn_until(until) else {
                return Ok(false);
            };
            self.check_held()?;
            // Another thread may have written the page meanwhile.
            if run.iter().any(|(_, page)| self.is_marked(*page)) {
                self.write_run(&mut places, &run)?;
            }
        }
        // The write may have taken so long that the next holder has not seen it.
        self.check_held()?;
        Ok(true)
    }

    fn check_held(&self) -> io::Result<()> {
        match self.is_held() {
            true => Ok(()),
            false => Err(io::Error::other(NOT_HELD)),
        }
    }

    /// Waits for this thread's turn to write.
    fn turn(&self) -> MutexGuard<'_, Places> {
        let _next = lock(&self.next);
        lock(&self.places)
    }

    /// Does the same, but waits at most until `until`. A full back end may take a second to refuse
    /// another thread's write, and leases must be renewed meanwhile.
    fn turn_until(&self, until: Option<Instant>) -> Option<MutexGuard<'_, Places>> {
        let Some(until) = until else {
            return Some(self.turn());
        };
        let _next = try_until(&self.next, until)?;
        try_until(&self.places, until)
    }

    fn is_marked(&self, page: usize) -> bool {
        self.now.is_set(page) || self.later.is_set(page)
    }

    /// The marked pages as calls. Reply slots come before entries: an entry that gives reply slots
    /// to its client must not be found beside the slots of the client before it.
    fn runs(&self, places: &mut Places, all: bool) -> VecDeque<Run> {
        let pages = self.memory.len() / PAGE;
        let mut marked: Vec<usize> = self.now.set_below(pages).collect();
        if all {
            marked.extend(self.later.set_below(pages));
            marked.sort_unstable();
            marked.dedup();
        }
        let (entries, reply_slots): (Vec<usize>, Vec<usize>) =
            marked.into_iter().partition(|page| has_entries(*page));
        let mut runs = side_by_side(places, &reply_slots);
        runs.extend(side_by_side(places, &entries));
        runs
    }

    /// Writes pages that lie next to each other. A page that is stored to meanwhile is marked
    /// again. Reply slots that entries refer to by now are written before the entries, even if they
    /// were not in this run.
    fn write_run(&self, places: &mut Places, run: &[(usize, usize)]) -> io::Result<()> {
        let pages = self.load_run(run);
        if has_entries(run[0].1) {
            let marked = self.now.set_below(self.memory.len() / PAGE);
            let reply_slots: Vec<usize> = marked.filter(|page| !has_entries(*page)).collect();
            for reply_slots in side_by_side(places, &reply_slots) {
                let pages = self.load_run(&reply_slots);
                self.put_run(&reply_slots, &pages)
                    .inspect_err(|_| self.mark_run(run))?;
            }
        }
        self.put_run(run, &pages)
    }

    /// The pages of a run as they are now.
    fn load_run(&self, run: &[(usize, usize)]) -> Vec<Page> {
        let mut pages = vec![Page::ZERO; run.len()];
        for ((_, page), bytes) in run.iter().zip(&mut pages) {
            self.now.clear(*page);
            self.later.clear(*page);
            self.unused.clear(*page);
            self.memory.load(page * PAGE, &mut bytes.0);
            let number = *page as u32 + 1;
            bytes.0[SPARE_AT..SPARE_AT + 4].copy_from_slice(&number.to_le_bytes());
        }
        pages
    }

    fn put_run(&self, run: &[(usize, usize)], pages: &[Page]) -> io::Result<()> {
        let written = self.file.write(place_at(run[0].0), pages);
        written.inspect_err(|error| {
            self.mark_run(run);
            if is_full(error) {
                self.room.refused(self.permit.fence().now());
            }
        })
    }

    fn mark_run(&self, run: &[(usize, usize)]) {
        run.iter().for_each(|(_, page)| self.now.set(*page));
    }

    /// Gives back the room in the file of unused pages. Begins no call after `until`.
    pub(super) fn punch_until(&self, until: Instant) {
        while Instant::now() < until {
            let Some(places) = self.turn_until(Some(until)) else {
                return;
            };
            if !self.is_held() {
                return;
            }
            let mut unused = Vec::new();
            for page in self.unused.set_below(PAGES_MAX) {
                match places.0.get(&page) {
                    Some(place) if !self.is_marked(page) => unused.push((*place, page)),
                    // The page is in use again, or was never written.
                    _ => self.unused.clear(page),
                }
            }
            unused.sort_unstable();
            let Some(run) = gather(unused, usize::MAX).pop_front() else {
                return;
            };
            run.iter().for_each(|(_, page)| self.unused.clear(*page));
            let len = (run.len() * PAGE) as u64;
            // Room that cannot be given back does no harm: it is used again.
            if let Err(error) = self.file.punch(place_at(run[0].0), len) {
                tracing::debug!(%error, "reply slots of a seat's reply table keep their room");
            }
        }
    }

    /// Closes the table, because the seat was released or lost. No call begins and nothing is
    /// persisted any more. A call under way may hang, and is not waited for.
    pub(super) fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.permit.close();
        }
    }

    fn mark(&self, marks: &Marks, at: usize, len: usize) {
        for page in at / PAGE..(at + len).div_ceil(PAGE) {
            marks.set(page);
        }
    }
}

/// The lock, if it can be taken before `until`.
fn try_until<T>(mutex: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(TRY_AGAIN),
        }
    }
}

/// What came of writing all marked pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllWritten {
    /// The time ended first.
    GoesOn,
    Yes,
    /// All were written, and the record need not say any more that clients may be missing.
    LacksNoneNow,
}

/// How many pages the next holder's file needs: for the record, the entries, and the reply slots in
/// use.
pub(super) fn pages_needed(table: &WrittenTable) -> usize {
    let entries = table.len() / SEGMENT_BYTES * ENTRIES_BYTES;
    let reply_slots: usize = used_ranges(table).iter().map(ExactSizeIterator::len).sum();
    1 + (entries + reply_slots) / PAGE
}

/// The offset of a place in the file.
fn place_at(place: usize) -> u64 {
    TABLE_AT + (place * PAGE) as u64
}

/// Whether a page holds entries of clients, and not reply slots.
fn has_entries(page: usize) -> bool {
    page * PAGE % SEGMENT_BYTES < ENTRIES_BYTES
}

/// Groups pages into runs of places that one call can write.
fn side_by_side(places: &mut Places, pages: &[usize]) -> VecDeque<Run> {
    let mut placed: Run = pages.iter().map(|page| (places.of(*page), *page)).collect();
    placed.sort_unstable();
    gather(placed, TOGETHER)
}

/// Groups places, which are in order, into runs of at most `most` pages.
fn gather(placed: Run, most: usize) -> VecDeque<Run> {
    let mut runs = VecDeque::<Run>::new();
    for (place, page) in placed {
        match runs.back_mut() {
            Some(run) if run.len() < most && run[run.len() - 1].0 + 1 == place => {
                run.push((place, page));
            }
            _ => runs.push_back(vec![(place, page)]),
        }
    }
    runs
}

/// Copies a table from the file of one lease to the next, in calls of 1 MiB. The caller renews its
/// leases between them.
pub(super) struct TakeOver {
    table: WrittenTable,
    reading: Option<Reading>,
}

/// The file of the last holder.
struct Reading {
    file: UncachedFile,
    len: u64,
    at: u64,
    seen: Marks,
}

impl TakeOver {
    /// Begins to copy from the last complete table, if there is one, to the file of a new lease.
    /// `lacks` says that the last record admits missing clients.
    pub(super) fn begin(
        file: Arc<UncachedFile>,
        last: Option<UncachedFile>,
        lacks: bool,
    ) -> io::Result<TakeOver> {
        let reading = last.map(|file| {
            Ok::<_, io::Error>(Reading {
                len: file.len()?,
                file,
                at: TABLE_AT,
                seen: Marks::new(PAGES_MAX),
            })
        });
        Ok(TakeOver {
            table: WrittenTable::new(file, lacks)?,
            reading: reading.transpose()?,
        })
    }

    /// Makes one call. True when the copy is complete. After an error it cannot be continued.
    pub(super) fn go_on(&mut self) -> io::Result<bool> {
        if let Some(mut reading) = self.reading.take() {
            match reading.at < reading.len {
                true => {
                    reading.go_on(&self.table)?;
                    self.reading = Some(reading);
                }
                false => reading.mark_used(&self.table),
            }
            return Ok(false);
        }
        // Nobody else has the table yet, and nobody reads its file before the record says that the
        // seat is held. So the write needs no fence.
        let mut places = self.table.turn();
        let mut runs = self.table.runs(&mut places, true);
        match runs
            .pop_front()
            .map_or(Ok(()), |run| self.table.write_run(&mut places, &run))
        {
            // The last complete table stays where it is until there is room.
            Err(error) if is_full(&error) => {
                self.table.set_partial(true);
                Ok(true)
            }
            written => written.map(|()| runs.is_empty()),
        }
    }

    /// Whether the back end has no room for all of it.
    pub(super) fn is_partial(&self) -> bool {
        self.table.partial.load(Ordering::Acquire)
    }

    /// The table, when it is complete, for a forwarder that may serve the seat now.
    pub(super) fn done(self, permit: Permit, room: Room) -> WrittenTable {
        WrittenTable {
            permit,
            room,
            ..self.table
        }
    }
}

impl Reading {
    fn go_on(&mut self, table: &WrittenTable) -> io::Result<()> {
        let rest = (self.len - self.at).div_ceil(PAGE as u64);
        let mut pages = vec![Page::ZERO; rest.min(TOGETHER as u64) as usize];
        self.file.read_below(self.len, self.at, &mut pages)?;
        for page in &mut pages {
            let spare = &mut page.0[SPARE_AT..SPARE_AT + 4];
            let number = u32::from_le_bytes(spare.try_into().expect("four bytes"));
            spare.fill(0);
            let Some(number) = number.checked_sub(1).map(|number| number as usize) else {
                continue;
            };
            if number >= PAGES_MAX || self.seen.is_set(number) {
                let what = format!("the last holder's reply table is damaged (page {number})");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            self.seen.set(number);
            let segments = number * PAGE / SEGMENT_BYTES + 1;
            let memory = &table.memory;
            memory.set_len(memory.len().max(segments * SEGMENT_BYTES));
            memory.store(number * PAGE, &page.0);
        }
        self.at += (pages.len() * PAGE) as u64;
        Ok(())
    }

    /// Marks the reply slots that their clients' entries call used.
    fn mark_used(&self, table: &WrittenTable) {
        let used = Marks::new(PAGES_MAX);
        for range in used_ranges(table) {
            used.set(range.start / PAGE);
        }
        for page in self.seen.set_below(PAGES_MAX) {
            if has_entries(page) || used.is_set(page) {
                table.now.set(page);
            } else {
                // The bytes are memory. If the kernel cannot free them, they keep their values.
                let _ = table.memory.drop_pages(page * PAGE, PAGE);
            }
        }
    }
}

impl SeatTable for WrittenTable {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        self.memory.load(at, bytes);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
        self.mark(&self.now, at, bytes.len());
    }

    fn store_later(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
        self.mark(&self.later, at, bytes.len());
    }

    fn store_here(&self, at: usize, bytes: &[u8]) {
        self.memory.store(at, bytes);
    }

    fn must_persist(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<(), Errno> {
        if self.partial.load(Ordering::Acquire) {
            return Err(Errno::ENOSPC);
        }
        self.write(false).map_err(|error| {
            let errno = error.raw_os_error().and_then(|errno| errno.try_into().ok());
            tracing::warn!(%error, "a reply table cannot be written");
            errno.map_or(Errno::EIO, Errno)
        })
    }

    fn is_held(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && !self.permit.is_closed()
    }

    fn persist_holders(&self) -> Result<(), Errno> {
        let persisted = self.persist();
        if !matches!(persisted, Err(Errno::ENOSPC | Errno::EDQUOT)) {
            return persisted;
        }
        match self.lack.fetch_max(LACKS_SOME, Ordering::AcqRel) {
            LACK_RECORDED => Ok(()),
            // The next renewal records the change.
            _ => persisted,
        }
    }

    fn may_lack_holders(&self) -> bool {
        self.inherits_lack
    }

    fn reserve(&self, at: usize, len: usize) -> bool {
        // The file may contain the reply slots of an earlier client.
        self.mark(&self.now, at, len);
        true
    }

    /// Only frees memory: the caller is the loop's thread, which must not wait for the back end.
    fn give_back(&self, at: usize, len: usize) {
        let pages = at / PAGE..(at + len) / PAGE;
        self.now.clear_all(pages.clone());
        self.later.clear_all(pages.clone());
        // Memory that cannot be freed does no harm: it is used again.
        let _ = self.memory.drop_pages(at, len);
        self.unused.set_all(pages);
    }

    fn grow(&self) -> bool {
        let len = self.memory.len();
        if len >= MAPPED_BYTES {
            return false;
        }
        self.memory.set_len(len + SEGMENT_BYTES);
        // The pages in the file tell how many segments there are.
        self.now.set(len / PAGE);
        true
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

#[cfg(test)]
mod tests;
