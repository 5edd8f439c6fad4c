//! A reply table in memory of this process, written to the file of its lease: what is persisted
//! outlives the node.
//!
//! Stores mark their pages; [`SeatTable::persist`] writes what is marked, for all who wait for it
//! together. Pages that may be lost with the node ([`SeatTable::store_later`]) are written with
//! the lease's renewals. Nothing is written after the lease has run out: the next holder has a
//! file of its own, so what this one wrote too late would change nothing that anybody reads.

use super::memory::{MAPPED_BYTES, TableMemory};
use super::uncached::{PAGE, Page, UncachedFile};
use crate::storage::Permit;
use crate::storage::posix::NOT_HELD;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_forward::{ENTRIES_BYTES, Errno, SEGMENT_BYTES, SEGMENTS_MAX, SeatTable, used_ranges};

/// Bytes of the file before the table: the record's page.
const TABLE_AT: u64 = PAGE as u64;
/// Pages that one call writes at most.
const WRITTEN_TOGETHER: usize = 64;

/// See the file's first line.
pub(super) struct WrittenTable {
    memory: TableMemory,
    file: Arc<UncachedFile>,
    permit: Permit,
    /// Pages that are to be persisted, and those that can wait.
    now: Marks,
    later: Marks,
    /// Held while pages are written.
    writing: Mutex<()>,
    /// The seat was let go or lost.
    closed: AtomicBool,
    /// The file has not got yet what the last holder's has: nothing counts as persisted.
    partial: AtomicBool,
    /// What the lease's record says of clients that the table has no room for.
    lack: AtomicU8,
    /// The table was taken over with such a record.
    inherits_lack: bool,
}

/// The record says nothing of clients that the table may lack.
const LACKS_NONE: u8 = 0;
/// Some wait until it does.
const LACKS_SOME: u8 = 1;
/// It does.
const LACK_RECORDED: u8 = 2;

/// A bit for each page.
struct Marks(Box<[AtomicU64]>);

impl Marks {
    fn new() -> Marks {
        let words = (MAPPED_BYTES / PAGE).div_ceil(64);
        Marks((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, page: usize) {
        self.0[page / 64].fetch_or(1 << (page % 64), Ordering::Release);
    }

    fn clear(&self, page: usize) -> bool {
        let bit = 1 << (page % 64);
        self.0[page / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// The pages that are marked, in order, among the first `pages`.
    fn marked(&self, pages: usize) -> impl Iterator<Item = usize> + '_ {
        let words = self.0.iter().take(pages.div_ceil(64)).enumerate();
        words.flat_map(|(number, word)| {
            let word = word.load(Ordering::Acquire);
            (0..64).filter_map(move |bit| (word >> bit & 1 == 1).then_some(number * 64 + bit))
        })
    }
}

impl WrittenTable {
    /// A table for the file of a new lease, with what the last complete one holds.
    pub(super) fn take_over(
        file: Arc<UncachedFile>,
        permit: Permit,
        last: Option<&UncachedFile>,
        inherits_lack: bool,
    ) -> io::Result<WrittenTable> {
        let table = WrittenTable {
            memory: TableMemory::private(SEGMENT_BYTES)?,
            file,
            permit,
            now: Marks::new(),
            later: Marks::new(),
            writing: Mutex::new(()),
            closed: AtomicBool::new(false),
            partial: AtomicBool::new(false),
            lack: AtomicU8::new(LACKS_NONE),
            inherits_lack,
        };
        // Clients that come later find room for their entries, however full it is by then.
        table.mark(&table.now, 0, ENTRIES_BYTES);
        if let Some(last) = last {
            table.read(last)?;
        }
        Ok(table)
    }

    /// Whether the next record is to say that the table may lack clients.
    pub(super) fn lacks_some(&self) -> bool {
        self.lack.load(Ordering::Acquire) != LACKS_NONE
    }

    /// The record says so now.
    pub(super) fn lack_recorded(&self) {
        self.lack.store(LACK_RECORDED, Ordering::Release);
    }

    /// Writes all that is marked; true if the record need not say any more that clients may be
    /// missing. Those that find no room from now on wait until it says so again.
    pub(super) fn write_all(&self) -> io::Result<bool> {
        let lack = self.lack.swap(LACKS_NONE, Ordering::AcqRel);
        let written = self.write(true);
        if written.is_err() {
            self.lack.fetch_max(lack, Ordering::AcqRel);
        }
        written.map(|()| lack != LACKS_NONE)
    }

    /// The back end had no room for all of it, and the record says where it is.
    pub(super) fn set_partial(&self, partial: bool) {
        self.partial.store(partial, Ordering::Release);
    }

    /// Reads the entries, and of the rows those that they say are used.
    fn read(&self, last: &UncachedFile) -> io::Result<()> {
        let table_bytes = last.len()?.saturating_sub(TABLE_AT) as usize;
        let segments = table_bytes.div_ceil(SEGMENT_BYTES).clamp(1, SEGMENTS_MAX);
        self.memory.set_len(segments * SEGMENT_BYTES);
        for segment in 0..segments {
            let at = segment * SEGMENT_BYTES;
            self.copy(last, at..at + ENTRIES_BYTES)?;
            if segment > 0 {
                // The file tells by its length how many segments there are.
                self.now.set(at / PAGE);
            }
        }
        for range in used_ranges(self) {
            self.copy(last, range)?;
        }
        Ok(())
    }

    fn copy(&self, from: &UncachedFile, range: Range<usize>) -> io::Result<()> {
        let mut pages = vec![Page::ZERO; range.len() / PAGE];
        from.read(TABLE_AT + range.start as u64, &mut pages)?;
        for (number, page) in pages.iter().enumerate() {
            if page.0.iter().any(|byte| *byte != 0) {
                self.store(range.start + number * PAGE, &page.0);
            }
        }
        Ok(())
    }

    /// Writes the marked pages; `all`: those that could wait too.
    pub(super) fn write(&self, all: bool) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_held()?;
        let pages = self.memory.len() / PAGE;
        let mut run: Vec<usize> = Vec::new();
        let mut marked: Vec<usize> = self.now.marked(pages).collect();
        if all {
            marked.extend(self.later.marked(pages));
            marked.sort_unstable();
            marked.dedup();
        }
        for page in marked {
            let goes_on = run.last().is_some_and(|last| last + 1 == page);
            if !run.is_empty() && (!goes_on || run.len() == WRITTEN_TOGETHER) {
                self.write_run(&run)?;
                run.clear();
            }
            run.push(page);
        }
        if !run.is_empty() {
            self.write_run(&run)?;
        }
        // It may have taken so long that the next holder has not found it.
        self.check_held()
    }

    fn check_held(&self) -> io::Result<()> {
        match self.is_held() {
            true => Ok(()),
            false => Err(io::Error::other(NOT_HELD)),
        }
    }

    /// Writes pages that lie side by side. What is stored meanwhile marks its page again.
    fn write_run(&self, run: &[usize]) -> io::Result<()> {
        let mut pages = vec![Page::ZERO; run.len()];
        for (page, bytes) in run.iter().zip(&mut pages) {
            self.now.clear(*page);
            self.later.clear(*page);
            self.memory.load(page * PAGE, &mut bytes.0);
        }
        let written = self.file.write(TABLE_AT + (run[0] * PAGE) as u64, &pages);
        if written.is_err() {
            run.iter().for_each(|page| self.now.set(*page));
        }
        written
    }

    /// The seat is let go or lost: nothing of it begins any more, and nothing is persisted. What is
    /// being written may hang, and is not waited for.
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

/// Numbers of the file's pages that hold entries, or rows that are used.
pub(super) fn pages_with_room(table: &WrittenTable) -> impl Iterator<Item = u64> {
    let segments = (0..table.len()).step_by(SEGMENT_BYTES);
    let entries = segments.map(|at| at..at + ENTRIES_BYTES);
    let ranges: Vec<Range<usize>> = entries.chain(used_ranges(table)).collect();
    let first = TABLE_AT / PAGE as u64;
    let pages = |range: Range<usize>| range.start / PAGE..range.end.div_ceil(PAGE);
    let all = ranges.into_iter().flat_map(pages);
    all.map(move |page| first + page as u64)
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
            // The next renewal records it.
            _ => persisted,
        }
    }

    fn may_lack_holders(&self) -> bool {
        self.inherits_lack
    }

    fn give_back(&self, at: usize, len: usize) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        for page in at / PAGE..(at + len) / PAGE {
            self.now.clear(page);
            self.later.clear(page);
        }
        // Room that stays taken is no harm: it is used again.
        let _ = self.memory.drop_pages(at, len);
        if self.is_held() {
            let _ = self.file.punch(TABLE_AT + at as u64, len as u64);
        }
    }

    fn grow(&self) -> bool {
        let len = self.memory.len();
        if len >= MAPPED_BYTES {
            return false;
        }
        self.memory.set_len(len + SEGMENT_BYTES);
        self.now.set(len / PAGE);
        true
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::uncached::Way;
    use super::*;
    use crate::storage::Fence;
    use crate::storage::scratch::Scratch;
    use std::os::fd::{AsFd, OwnedFd};
    use tidegate_sched::Time;

    fn file(scratch: &Scratch, name: &str) -> Arc<UncachedFile> {
        let dir: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
        let made = UncachedFile::make(dir.as_fd(), name, Way::Past).expect("make");
        Arc::new(made.expect("new"))
    }

    fn table(scratch: &Scratch, name: &str, last: Option<&UncachedFile>) -> WrittenTable {
        let file = file(scratch, name);
        WrittenTable::take_over(file, Permit::default(), last, false).expect("table")
    }

    /// All of the client's pages are used.
    fn entry_of_client_1() -> [u8; 20] {
        let mut entry = [0; 20];
        entry[0] = 1;
        let crc = tidegate_wire::frame::checksum(&entry[..8]);
        entry[8..12].copy_from_slice(&crc.to_le_bytes());
        entry
    }

    #[test]
    fn what_is_persisted_is_found_by_the_next_holder_and_nothing_else() {
        let scratch = Scratch::new("written");
        let first = table(&scratch, "lease.0.1", None);
        first.store(0, &entry_of_client_1());
        first.store(ENTRIES_BYTES, b"a row");
        first.persist().expect("room");
        first.store(ENTRIES_BYTES + 1024, b"lost with the node");
        first.store_later(ENTRIES_BYTES + PAGE, b"later");
        first.persist().expect("room");
        first.store(ENTRIES_BYTES + 2 * PAGE, b"never persisted");
        let next = table(&scratch, "lease.0.2", Some(&first.file));
        let read = |at: usize, len: usize| {
            let mut bytes = vec![0; len];
            next.load(at, &mut bytes);
            bytes
        };
        assert_eq!(read(ENTRIES_BYTES, 5), b"a row");
        assert_eq!(read(ENTRIES_BYTES + 1024, 4), b"lost");
        assert_eq!(read(ENTRIES_BYTES + PAGE, 5), [0; 5]);
        assert_eq!(read(ENTRIES_BYTES + 2 * PAGE, 5), [0; 5]);
        first.write(true).expect("room");
        let third = table(&scratch, "lease.0.3", Some(&first.file));
        let mut later = [0; 5];
        third.load(ENTRIES_BYTES + PAGE, &mut later);
        assert_eq!(&later, b"later");
    }

    #[test]
    fn nothing_is_written_after_the_lease_or_the_release() {
        let scratch = Scratch::new("written-late");
        let fence = Fence::default();
        let file = file(&scratch, "lease.0.1");
        let late =
            WrittenTable::take_over(file.clone(), fence.taken(0), None, false).expect("table");
        late.store(0, &entry_of_client_1());
        fence.opens_until(Time(0));
        assert_eq!(late.persist(), Err(Errno::EIO));
        assert_eq!(file.len().expect("stat"), 0);
        fence.opens_until(Time(u64::MAX));
        late.persist().expect("room");
        late.close();
        late.store(64, b"more");
        assert_eq!(late.persist(), Err(Errno::EIO));
    }

    #[test]
    fn what_took_longer_than_the_lease_to_write_is_not_persisted() {
        let scratch = Scratch::new("written-slow");
        let file = file(&scratch, "lease.0.1");
        // Open when the writing begins, and closed when it has ended.
        let fence = Fence::closing_after(1);
        let slow = WrittenTable::take_over(file, fence.taken(0), None, false).expect("table");
        slow.store(0, &entry_of_client_1());
        assert_eq!(slow.persist(), Err(Errno::EIO));
        assert!(!slow.is_held());
    }

    #[test]
    fn a_lost_seat_is_closed_without_waiting_for_what_is_being_written() {
        let scratch = Scratch::new("written-closed");
        let fence = Fence::default();
        let permit = fence.taken(3);
        let table = WrittenTable::take_over(file(&scratch, "lease.3.1"), permit, None, false);
        let table = table.expect("table");
        let hangs = table.writing.lock().expect("whole");
        table.close();
        drop(hangs);
        assert!(!table.is_held() && fence.is_closed_to(3) && !fence.is_closed_to(2));
        // A later taking of this process has another table.
        fence.taken(3);
        assert!(!table.is_held() && !fence.is_closed_to(3));
        table.close();
        assert!(!fence.is_closed_to(3));
    }

    #[test]
    fn a_table_that_has_grown_is_found_so() {
        let scratch = Scratch::new("written-grown");
        let first = table(&scratch, "lease.0.1", None);
        assert!(first.grow() && first.grow());
        first.persist().expect("room");
        let next = table(&scratch, "lease.0.2", Some(&first.file));
        assert_eq!(next.len(), 3 * SEGMENT_BYTES);
        next.persist().expect("room");
        let third = table(&scratch, "lease.0.3", Some(&next.file));
        assert_eq!(third.len(), 3 * SEGMENT_BYTES);
    }

    #[test]
    fn threads_that_persist_at_once_find_all_they_stored() {
        let scratch = Scratch::new("written-together");
        let shared = Arc::new(table(&scratch, "lease.0.1", None));
        shared.store(0, &entry_of_client_1());
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let shared = shared.clone();
                scope.spawn(move || {
                    for row in 0..16 {
                        let at = ENTRIES_BYTES + (row * 4 + thread) * 1024;
                        shared.store(at, &[thread as u8 + 1; 100]);
                        shared.persist().expect("room");
                        let mut page = [Page::ZERO];
                        let file_at = TABLE_AT + (at / PAGE * PAGE) as u64;
                        shared.file.read(file_at, &mut page).expect("read");
                        assert_eq!(page[0].0[at % PAGE], thread as u8 + 1);
                    }
                });
            }
        });
    }
}
