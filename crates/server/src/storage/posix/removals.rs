//! Tells the other forwarders of the node which files have lost their last name, so that they close
//! what they have open of them and the room is free at once.
//!
//! The notes are a ring in a file that all these forwarders map. A note is three words: its number,
//! which is stored last, and the handle. Who finds another number than the one that is due has
//! missed notes, and looks at all files that it knows. Forwarders on other nodes get no notes: they
//! find removed files when they tidy.

use super::hidden::open_hidden_file;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tidegate_wire::Handle;

/// How many notes the ring holds.
const NOTES: u64 = 1024;

/// The words of a note.
const NOTE_WORDS: usize = 3;

/// The words before the first note: how many notes there were ever, the bell, and unused ones.
const HEADER_WORDS: usize = 8;

/// The size of the file in bytes; whole pages.
const BYTES: usize =
    ((HEADER_WORDS + NOTES as usize * NOTE_WORDS) * size_of::<u64>()).next_multiple_of(4096);

/// What was noted since the last look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// These files.
    Files(Vec<Handle>),
    /// More than the ring holds.
    Any,
}

/// The notes of this node's forwarders.
#[derive(Default)]
pub(super) struct Removals {
    ring: Option<Ring>,
    /// Rung where there is no ring.
    bell: AtomicU32,
    /// How many notes this forwarder has taken.
    taken: Mutex<u64>,
    /// How many notes there were when a call last waited for room, in vain.
    waited: AtomicU64,
}

impl Removals {
    /// Maps the file of notes. Without room for it there are no notes.
    pub(super) fn open(hidden: BorrowedFd<'_>) -> Removals {
        match Ring::map(hidden) {
            Ok(ring) => {
                let noted = ring.noted().load(Ordering::Acquire);
                Removals {
                    ring: Some(ring),
                    taken: Mutex::new(noted),
                    waited: AtomicU64::new(noted),
                    ..Removals::default()
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the room of removed files is free only after a while");
                Removals::default()
            }
        }
    }

    /// Notes that a file which nobody has open has lost its last name.
    pub(super) fn note(&self, handle: Handle) {
        if let Some(ring) = &self.ring {
            ring.add(handle);
            self.ring_bell();
        }
    }

    /// Ends the waits of all these forwarders.
    pub(super) fn ring_bell(&self) {
        self.bell().fetch_add(1, Ordering::Release);
        // Whoever is not waked looks when its time is over.
        let _ = futex::wake(self.bell(), futex::Flags::empty(), i32::MAX as u32);
    }

    /// How often the bell was rung.
    pub(super) fn rung(&self) -> u32 {
        self.bell().load(Ordering::Acquire)
    }

    /// Waits until the bell is rung again after it was rung that often, `longest` at most.
    pub(super) fn wait(&self, rung: u32, longest: Duration) {
        let longest = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        let _ = futex::wait(self.bell(), futex::Flags::empty(), rung, Some(&longest));
    }

    /// The notes that this forwarder has not taken yet.
    pub(super) fn take(&self) -> Removed {
        let Some(ring) = &self.ring else {
            return Removed::Files(Vec::new());
        };
        let mut taken = crate::lock::lock(&self.taken);
        let noted = ring.noted().load(Ordering::Acquire);
        let from = std::mem::replace(&mut *taken, noted);
        if noted.wrapping_sub(from) > NOTES {
            return Removed::Any;
        }
        let numbers = (0..noted.wrapping_sub(from)).map(|at| from.wrapping_add(at));
        let files: Option<Vec<Handle>> = numbers.map(|number| ring.find(number)).collect();
        files.map_or(Removed::Any, Removed::Files)
    }

    /// How many notes there are, if there were others since a call last waited in vain.
    pub(super) fn news(&self) -> Option<u64> {
        let noted = self.ring.as_ref()?.noted().load(Ordering::Acquire);
        (noted != self.waited.load(Ordering::Relaxed)).then_some(noted)
    }

    /// Notes that a call has waited in vain for what these notes free.
    pub(super) fn waited(&self, noted: u64) {
        self.waited.store(noted, Ordering::Relaxed);
    }

    fn bell(&self) -> &AtomicU32 {
        match &self.ring {
            Some(ring) => ring.bell(),
            None => &self.bell,
        }
    }
}

/// The mapped file.
struct Ring {
    start: NonNull<AtomicU64>,
}

// SAFETY: the memory is mapped for the life of the value and only accessed through atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn map(hidden: BorrowedFd<'_>) -> io::Result<Ring> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = open_hidden_file(hidden, "removed")?;
        allocate(&file)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the place, so no existing memory is touched.
        let start = unsafe { mmap(std::ptr::null_mut(), BYTES, prot, flags, &file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { start })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many bytes are mapped and have blocks in the file, which no forwarder makes
        // shorter; everyone accesses them through atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), BYTES / size_of::<u64>()) }
    }

    fn noted(&self) -> &AtomicU64 {
        &self.words()[0]
    }

    fn bell(&self) -> &AtomicU32 {
        // SAFETY: the word is mapped, aligned, and used as this alone.
        unsafe { AtomicU32::from_ptr(self.words()[1].as_ptr().cast()) }
    }

    fn note_of(&self, number: u64) -> &[AtomicU64] {
        let at = HEADER_WORDS + (number % NOTES) as usize * NOTE_WORDS;
        &self.words()[at..at + NOTE_WORDS]
    }

    fn add(&self, handle: Handle) {
        let number = self.noted().fetch_add(1, Ordering::AcqRel);
        let note = self.note_of(number);
        note[1].store(handle.inode, Ordering::Relaxed);
        note[2].store(handle.birth, Ordering::Relaxed);
        note[0].store(number.wrapping_add(1), Ordering::Release);
    }

    /// The file of a note; None if another note has taken its place, or it is just being made.
    fn find(&self, number: u64) -> Option<Handle> {
        let note = self.note_of(number);
        let due = number.wrapping_add(1);
        if note[0].load(Ordering::Acquire) != due {
            return None;
        }
        let inode = note[1].load(Ordering::Acquire);
        let birth = note[2].load(Ordering::Acquire);
        // A wrong handle, half of another note, leads to no file.
        (note[0].load(Ordering::Acquire) == due).then_some(Handle { inode, birth })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this size, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), BYTES) };
    }
}

/// Gives the file its blocks: a store into a mapped hole raises SIGBUS if the back end is full.
fn allocate(file: impl AsFd) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::empty();
    match rustix::io::retry_on_intr(|| fallocate(&file, flags, 0, BYTES as u64)) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        done => return Ok(done?),
    }
    let has = rustix::fs::fstat(&file)?.st_size;
    match usize::try_from(has).is_ok_and(|has| has >= BYTES) {
        true => Ok(()),
        false => rustix::io::pwrite(&file, &vec![0; BYTES], 0)
            .map(drop)
            .map_err(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 9 }
    }

    fn two(name: &str) -> (Scratch, Removals, Removals) {
        let scratch = Scratch::new(name);
        let dir = std::fs::File::open(scratch.path()).expect("just made");
        let open = || Removals::open(dir.as_fd());
        let (one, other) = (open(), open());
        (scratch, one, other)
    }

    #[test]
    fn each_forwarder_gets_each_note_once() {
        let (_scratch, one, other) = two("removals");
        let rung = other.rung();
        one.note(file(5));
        one.note(file(6));
        // The bell was rung, so that this does not wait.
        other.wait(rung, Duration::from_secs(600));
        for removals in [&one, &other] {
            assert_eq!(removals.take(), Removed::Files(vec![file(5), file(6)]));
            assert_eq!(removals.take(), Removed::Files(Vec::new()));
        }
        assert_eq!(other.news(), Some(2));
        other.waited(2);
        assert_eq!(other.news(), None);
    }

    #[test]
    fn who_misses_notes_looks_at_all() {
        let (_scratch, one, other) = two("removals-missed");
        (0..=NOTES).for_each(|inode| one.note(file(inode)));
        assert_eq!(other.take(), Removed::Any);
        // One that is begun and not yet there.
        let ring = one.ring.as_ref().expect("mapped");
        ring.noted().fetch_add(1, Ordering::AcqRel);
        assert_eq!(other.take(), Removed::Any);
        one.note(file(7));
        assert_eq!(other.take(), Removed::Files(vec![file(7)]));
    }

    #[test]
    fn without_a_file_nothing_is_noted() {
        let removals = Removals::default();
        removals.note(file(1));
        assert_eq!(removals.take(), Removed::Files(Vec::new()));
        assert_eq!(removals.news(), None);
        let rung = removals.rung();
        removals.ring_bell();
        removals.wait(rung, Duration::from_secs(600));
    }
}
