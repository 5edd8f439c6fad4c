//! Tells the other forwarders of the node which files have lost their last name, so that they close
//! what they have open of them and the room is free at once.
//!
//! The notes are a ring in shared memory of the node (`ring_memory.rs`). A note is three words: its
//! number, which is stored last, and the handle. Who finds another number than the one that is due
//! has missed notes, and looks at all files that it knows. Forwarders on other nodes get no notes:
//! they find removed files when they tidy.

use super::ring_memory::{NAMED, RingMemory};
use crate::node_memory::own_folder;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_wire::Handle;

/// How many notes the ring holds.
const NOTES: u64 = 1024;

/// The words of a note.
const NOTE_WORDS: usize = 3;

/// The words before the first note: how many notes there were ever, the bell, and unused ones.
const HEADER_WORDS: usize = 8;

/// The words of the ring.
const WORDS: usize = HEADER_WORDS + NOTES as usize * NOTE_WORDS;

/// How long a call that finds no room waits before each new try: other forwarders are waked when a
/// file is removed, and let go of it within milliseconds.
const PAUSES_MS: [u64; 5] = [0, 2, 10, 30, 60];

/// So long calls may wait for room one after another, and for a tenth of the time in the long run:
/// a call that waits keeps its thread from the work of others, and there may be none of what is
/// removed all the time for somebody who is over a quota.
const WAITS_MAX: Duration = Duration::from_secs(1);
const WAITS_SHARE: u32 = 10;

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
    /// Held by the one call that waits for room.
    waits: Mutex<Waits>,
}

/// How calls have waited for room.
#[derive(Default)]
struct Waits {
    /// How many notes there were when a call last waited in vain.
    in_vain: u64,
    /// How long calls have waited lately, and when that was so.
    spent: Duration,
    at: Option<Instant>,
}

impl Removals {
    /// Shares the notes of the forwarders of this node whose export has this name.
    pub(super) fn open(export: &str) -> Removals {
        let name = format!("{NAMED}{export}");
        Removals::of(own_folder().and_then(|folder| RingMemory::share(&folder, &name, WORDS)))
    }

    fn of(memory: io::Result<RingMemory>) -> Removals {
        match memory {
            Ok(memory) => {
                let ring = Ring { memory };
                let noted = ring.noted().load(Ordering::Acquire);
                Removals {
                    ring: Some(ring),
                    taken: Mutex::new(noted),
                    waits: Mutex::new(Waits {
                        in_vain: noted,
                        ..Waits::default()
                    }),
                    ..Removals::default()
                }
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the room of files that other forwarders remove is free only after a while"
                );
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

    /// Has a call wait for the room of removed files, of which there were others since a call last
    /// waited in vain. Calls `again` until it finds room; None if it does not. One call waits at a
    /// time.
    pub(super) fn wait_for_room<T>(&self, mut again: impl FnMut() -> Option<T>) -> Option<T> {
        let ring = self.ring.as_ref()?;
        let mut waits = self.waits.try_lock().ok()?;
        let noted = ring.noted().load(Ordering::Acquire);
        let (now, in_vain) = (Instant::now(), waits.in_vain);
        let since = waits.at.map_or(Duration::ZERO, |at| now.duration_since(at));
        let spent = waits.spent.saturating_sub(since / WAITS_SHARE);
        if noted == in_vain || spent >= WAITS_MAX {
            return None;
        }
        let found = PAUSES_MS.into_iter().find_map(|pause| {
            std::thread::sleep(Duration::from_millis(pause));
            again()
        });
        *waits = Waits {
            in_vain: found.as_ref().map_or(noted, |_| in_vain),
            spent: spent + now.elapsed(),
            at: Some(Instant::now()),
        };
        found
    }

    fn bell(&self) -> &AtomicU32 {
        match &self.ring {
            Some(ring) => ring.bell(),
            None => &self.bell,
        }
    }
}

/// The notes in shared memory.
struct Ring {
    memory: RingMemory,
}

impl Ring {
    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 9 }
    }

    fn two(name: &str) -> (Removals, Removals) {
        let name = format!("test-{name}-{}", std::process::id());
        let open = || Removals::open(&name);
        (open(), open())
    }

    #[test]
    fn each_forwarder_gets_each_note_once() {
        let (one, other) = two("removals");
        let rung = other.rung();
        one.note(file(5));
        one.note(file(6));
        // The bell was rung, so that this does not wait.
        other.wait(rung, Duration::from_secs(600));
        for removals in [&one, &other] {
            assert_eq!(removals.take(), Removed::Files(vec![file(5), file(6)]));
            assert_eq!(removals.take(), Removed::Files(Vec::new()));
        }
    }

    #[test]
    fn a_call_waits_for_room_where_files_were_removed() {
        let (one, other) = two("room");
        let wait = |room_at: usize| {
            let mut tries = 0;
            let found = other.wait_for_room(|| {
                tries += 1;
                (tries == room_at).then_some(())
            });
            (found.is_some(), tries)
        };
        assert_eq!(wait(1), (false, 0), "nothing was removed");
        one.note(file(5));
        assert_eq!(wait(2), (true, 2));
        assert_eq!(wait(9), (false, 5));
        assert_eq!(wait(1), (false, 0), "one has waited for it in vain");
        one.note(file(6));
        let held = other.waits.lock().expect("free");
        assert_eq!(wait(1), (false, 0), "another one waits");
        drop(held);
        let spend = |spent| other.waits.lock().expect("free").spent = spent;
        spend(WAITS_MAX + Duration::from_secs(60));
        assert_eq!(wait(1), (false, 0), "calls have waited for long");
        spend(Duration::ZERO);
        assert_eq!(wait(1), (true, 1));
    }

    #[test]
    fn who_misses_notes_looks_at_all() {
        let (one, other) = two("removals-missed");
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
    fn without_memory_nothing_is_noted() {
        let removals = Removals::default();
        removals.note(file(1));
        assert_eq!(removals.take(), Removed::Files(Vec::new()));
        assert_eq!(removals.wait_for_room(|| Some(())), None);
        let rung = removals.rung();
        removals.ring_bell();
        removals.wait(rung, Duration::from_secs(600));
    }
}
