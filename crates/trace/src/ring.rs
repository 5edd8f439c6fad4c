//! A bounded queue of blocks between one writing and one reading thread, without locks or waits.

use crate::format::{BLOCK_LEN, Bytes};
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = BLOCK_LEN / 8;

/// A block as words, so that two threads can share it without unsafe code.
type Cell = [AtomicU64; WORDS];

/// A counter alone on its line of the cache.
#[repr(align(64))]
#[derive(Default)]
struct Counter(AtomicU64);

/// The queue. One thread calls [`Ring::push`], one [`Ring::pop`].
pub(crate) struct Ring {
    cells: Box<[Cell]>,
    pushed: Counter,
    popped: Counter,
}

impl Ring {
    /// Room for so many blocks, at least one.
    pub(crate) fn new(len: usize) -> Ring {
        let cell = |_| Cell::default();
        Ring {
            cells: (0..len.max(1)).map(cell).collect(),
            pushed: Counter::default(),
            popped: Counter::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        let pushed = self.pushed.0.load(Ordering::Acquire);
        (pushed - self.popped.0.load(Ordering::Acquire).min(pushed)) as usize
    }

    pub(crate) fn len_max(&self) -> usize {
        self.cells.len()
    }

    /// Whether there is room for so many blocks.
    pub(crate) fn has_room(&self, blocks: u64) -> bool {
        let pushed = self.pushed.0.load(Ordering::Relaxed);
        // Acquire: the other side has read the cell before it is written again.
        let popped = self.popped.0.load(Ordering::Acquire);
        pushed - popped + blocks <= self.cells.len() as u64
    }

    /// Adds a block; false if there is no room.
    pub(crate) fn push(&self, bytes: &Bytes) -> bool {
        if !self.has_room(1) {
            return false;
        }
        let pushed = self.pushed.0.load(Ordering::Relaxed);
        let cell = &self.cells[(pushed % self.cells.len() as u64) as usize];
        for (word, bytes) in cell.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.pushed.0.store(pushed + 1, Ordering::Release);
        true
    }

    /// Takes the oldest block.
    pub(crate) fn pop(&self) -> Option<Bytes> {
        let popped = self.popped.0.load(Ordering::Relaxed);
        if self.pushed.0.load(Ordering::Acquire) == popped {
            return None;
        }
        let cell = &self.cells[(popped % self.cells.len() as u64) as usize];
        let mut bytes = [0; BLOCK_LEN];
        for (word, bytes) in cell.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        self.popped.0.store(popped + 1, Ordering::Release);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_out_whole_and_in_order_between_threads() {
        const COUNT: u64 = 200_000;
        let ring = Ring::new(7);
        let block = |number: u64| {
            let words = std::array::from_fn::<_, WORDS, _>(|at| (number ^ at as u64).to_le_bytes());
            <Bytes>::try_from(words.concat()).expect("twelve words")
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    while !ring.push(&block(number)) {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..COUNT {
                let bytes = loop {
                    match ring.pop() {
                        Some(bytes) => break bytes,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(bytes, block(number));
            }
        });
        assert_eq!((ring.len(), ring.pop()), (0, None));
    }

    #[test]
    fn a_full_ring_takes_nothing() {
        let ring = Ring::new(2);
        let taken: Vec<_> = (0..3).map(|byte| ring.push(&[byte; BLOCK_LEN])).collect();
        assert_eq!(taken, [true, true, false]);
        assert_eq!((ring.len(), ring.len_max()), (2, 2));
        assert_eq!(ring.pop(), Some([0; BLOCK_LEN]));
        assert!(ring.push(&[9; BLOCK_LEN]));
    }
}
