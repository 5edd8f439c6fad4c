//! Hints of an open file. They say which requests belong to a collective operation that an MPI
//! program has begun on many nodes, the operation's number, and what work follows the requests.
//!
//! The client keeps hints by open file and range of the file, not by thread: a nonblocking
//! collective issues its requests later, from wherever the program waits, or from threads of libc.
//! Whoever does the file's I/O looks each request up. An MPI library may do something else than it
//! predicted. So the first request that does not fit ends the predictions for the file.

/// Bytes of a hint, as device control calls and the short-cut's functions pass it.
pub const HINT_LEN: usize = 80;

/// Number of operations of one file that may be under way at once; beyond it the hints forget the
/// oldest.
const OPERATIONS_MAX: usize = 16;

/// Every request must fit while this hint is there.
const EXCLUSIVE: u32 = 1;
/// Its steps are predicted, and may be wrong.
const PREDICTED: u32 = 2;

/// The collective operation of a whole parallel program to which a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Number of the operation, the same on all ranks.
    pub operation: u64,
    /// Bytes that all ranks together move in it; 0: not known.
    pub bytes: u64,
    /// When it began, in ns since 1970 on the forwarders' clock; the same on all ranks.
    pub stamp_ns: u64,
    /// Time of the shuffle that follows the requests before the operation is done, in microseconds.
    pub shuffle_us: u32,
    /// The longest shuffle of all parts of the operation, in microseconds.
    pub shuffle_max_us: u32,
    /// Number of aggregators of the operation that have a longer shuffle.
    pub shuffle_rank: u16,
}

/// Requests that a program is going to make on one open file. Each lies within one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The operation to which they belong.
    pub collective: Collective,
    /// First byte of the range.
    pub first: u64,
    /// Last byte of the range.
    pub last: u64,
    /// Bytes of a step, at least 1. Steps begin at `first` and at each multiple of this after it.
    pub step: u64,
    flags: u32,
}

/// How many requests an open file's hints matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCounts {
    /// Requests that carried hints.
    pub hinted: u64,
    /// Requests that should have fitted a step and did not.
    pub off_grid: u64,
}

impl Hint {
    /// Decodes a hint of the MPI shim (`mpi/src/hint.h`); None if it makes no sense.
    pub fn decode(bytes: &[u8]) -> Option<Hint> {
        if bytes.len() < HINT_LEN {
            return None;
        }
        let long = |i: usize| u64::from_le_bytes(eight(bytes, 8 * i));
        let short = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let hint = Hint {
            collective: Collective {
                operation: long(0),
                bytes: long(1),
                stamp_ns: long(2),
                shuffle_us: short(48),
                shuffle_max_us: short(72),
                shuffle_rank: short(76).min(u32::from(u16::MAX)) as u16,
            },
            first: long(3),
            last: long(4),
            step: long(5),
            flags: short(52),
        };
        (hint.step > 0 && hint.first <= hint.last).then_some(hint)
    }

    /// Number of the operation in an encoded hint, whatever else it says.
    pub fn operation_in(bytes: &[u8]) -> Option<u64> {
        (bytes.len() >= HINT_LEN).then(|| u64::from_le_bytes(eight(bytes, 0)))
    }

    fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether all of these bytes lie within one step; there is one at least.
    fn holds(&self, offset: u64, len: u64) -> bool {
        let last = offset.saturating_add(len - 1);
        if offset < self.first || last > self.last {
            return false;
        }
        (offset - self.first) / self.step == (last - self.first) / self.step
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        offset <= self.last && offset.saturating_add(len - 1) >= self.first
    }

    /// The same hint without its prediction: all requests of the file belong to the operation.
    fn unpredicted(self) -> Hint {
        Hint {
            collective: Collective {
                shuffle_us: 0,
                shuffle_max_us: 0,
                shuffle_rank: 0,
                ..self.collective
            },
            first: 0,
            last: u64::MAX - 1,
            step: u64::MAX,
            flags: self.flags & !PREDICTED,
        }
    }
}

fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i])
}

impl HintCounts {
    /// Writes the counts where the shim reads them.
    pub fn put_into(self, bytes: &mut [u8]) {
        if bytes.len() >= HINT_LEN {
            bytes[56..64].copy_from_slice(&self.hinted.to_le_bytes());
            bytes[64..72].copy_from_slice(&self.off_grid.to_le_bytes());
        }
    }
}

/// The hints of one open file. Looking a request up allocates nothing.
#[derive(Debug, Default)]
pub struct Hints {
    hints: [Option<(Hint, u64)>; OPERATIONS_MAX],
    /// Counts hints.
    published: u64,
    /// A request has not fitted: the hints ignore predictions from then on.
    is_off: bool,
    counts: HintCounts,
}

impl Hints {
    /// Adds the hint of an operation. It replaces a hint of the same operation. An exclusive hint
    /// also replaces another exclusive one, whose operation must have ended without a notice.
    pub fn publish(&mut self, hint: Hint) {
        let place = self.hints.iter().position(|held| {
            held.is_some_and(|(held, _)| {
                held.collective.operation == hint.collective.operation
                    || (held.is(EXCLUSIVE) && hint.is(EXCLUSIVE))
            })
        });
        let oldest = || {
            let ages = self.hints.iter().enumerate();
            let oldest = ages.min_by_key(|(_, held)| held.map_or(0, |(_, age)| age));
            oldest.map_or(0, |(place, _)| place)
        };
        let place = place.unwrap_or_else(oldest);
        self.published += 1;
        let hint = match self.is_off && hint.is(PREDICTED) {
            true if hint.is(EXCLUSIVE) => hint.unpredicted(),
            true => return,
            false => hint,
        };
        self.hints[place] = Some((hint, self.published));
    }

    /// Removes the hint of an operation that has ended.
    pub fn end(&mut self, operation: u64) {
        for held in &mut self.hints {
            if held.is_some_and(|(held, _)| held.collective.operation == operation) {
                *held = None;
            }
        }
    }

    /// The operation to which a request belongs.
    pub fn find(&mut self, offset: u64, len: u64) -> Option<Collective> {
        if len == 0 {
            return None;
        }
        let mut held = self.hints.iter().flatten();
        if let Some((hint, _)) = held.find(|(hint, _)| hint.holds(offset, len)) {
            self.counts.hinted += 1;
            return Some(hint.collective);
        }
        let misses = |hint: &Hint| hint.is(EXCLUSIVE) || hint.overlaps(offset, len);
        let mut held = self.hints.iter().flatten();
        if held.any(|(hint, _)| hint.is(PREDICTED) && misses(hint)) {
            self.go_off();
        }
        None
    }

    /// Whether there are no hints.
    pub fn is_empty(&self) -> bool {
        self.hints.iter().all(Option::is_none)
    }

    /// How many requests the hints matched.
    pub fn counts(&self) -> HintCounts {
        self.counts
    }

    fn go_off(&mut self) {
        self.counts.off_grid += 1;
        self.is_off = true;
        for held in &mut self.hints {
            if held.is_some_and(|(hint, _)| hint.is(PREDICTED)) {
                *held = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(operation: u64, first: u64, last: u64, step: u64, flags: u32) -> Hint {
        let collective = Collective {
            operation,
            bytes: 0,
            stamp_ns: 5,
            shuffle_us: 7,
            shuffle_max_us: 8,
            shuffle_rank: 1,
        };
        Hint {
            collective,
            first,
            last,
            step,
            flags,
        }
    }

    fn found(hints: &mut Hints, offset: u64, len: u64) -> Option<u64> {
        hints.find(offset, len).map(|found| found.operation)
    }

    #[test]
    fn what_the_shim_writes_is_read() {
        let mut bytes = [0u8; HINT_LEN];
        for (i, number) in [9u64, 100, 3, 10, 29, 10].into_iter().enumerate() {
            bytes[8 * i..8 * i + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[48..52].copy_from_slice(&77u32.to_le_bytes());
        bytes[52..56].copy_from_slice(&3u32.to_le_bytes());
        bytes[72..76].copy_from_slice(&99u32.to_le_bytes());
        bytes[76..80].copy_from_slice(&4u32.to_le_bytes());
        let hint = Hint::decode(&bytes).expect("it is whole");
        let Collective {
            operation,
            bytes: moved,
            stamp_ns,
            shuffle_us,
            shuffle_max_us,
            shuffle_rank,
        } = hint.collective;
        assert_eq!((operation, moved, stamp_ns, shuffle_us), (9, 100, 3, 77));
        assert_eq!((shuffle_max_us, shuffle_rank), (99, 4));
        assert_eq!((hint.first, hint.last, hint.step), (10, 29, 10));
        assert!(hint.is(EXCLUSIVE) && hint.is(PREDICTED));
        assert_eq!(Hint::operation_in(&bytes), Some(9));
        assert_eq!(Hint::decode(&bytes[1..]), None);
        bytes[40..48].fill(0);
        assert_eq!(Hint::decode(&bytes), None, "a step of nothing");
        let counts = HintCounts {
            hinted: 4,
            off_grid: 1,
        };
        counts.put_into(&mut bytes);
        assert_eq!((bytes[56], bytes[64]), (4, 1));
    }

    #[test]
    fn a_request_in_one_step_is_the_operation_s() {
        let mut hints = Hints::default();
        hints.publish(hint(1, 100, 349, 100, EXCLUSIVE | PREDICTED));
        assert_eq!(found(&mut hints, 100, 100), Some(1));
        assert_eq!(found(&mut hints, 310, 40), Some(1));
        assert_eq!(found(&mut hints, 120, 1), Some(1));
        assert_eq!(hints.counts().hinted, 3);
        hints.end(1);
        assert!(hints.is_empty());
        // Something else that the program does.
        assert_eq!(found(&mut hints, 150, 100), None);
        assert_eq!(hints.counts().off_grid, 0);
    }

    #[test]
    fn a_request_off_the_grid_ends_the_predictions_and_is_counted() {
        for (offset, len) in [(150, 100), (50, 60), (0, 1), (340, 20), (u64::MAX - 1, 9)] {
            let mut hints = Hints::default();
            hints.publish(hint(1, 100, 349, 100, EXCLUSIVE | PREDICTED));
            assert_eq!(found(&mut hints, offset, len), None);
            assert_eq!(found(&mut hints, 100, 100), None, "it is believed no more");
            assert_eq!(hints.counts().off_grid, 1);
            // The next operation has its number and its stamp, but no shuffle.
            hints.publish(hint(2, 100, 349, 100, EXCLUSIVE | PREDICTED));
            let collective = hints.find(7, 1000).expect("whatever it is");
            assert_eq!((collective.operation, collective.shuffle_us), (2, 0));
            hints.publish(hint(3, 100, 349, 100, PREDICTED));
            assert_eq!(found(&mut hints, 100, 100), Some(2));
        }
    }

    #[test]
    fn what_is_not_exclusive_lets_others_pass_and_lies_beside_others() {
        let mut hints = Hints::default();
        for operation in 0..20 {
            let first = 1000 * operation;
            hints.publish(hint(operation, first, first + 99, 100, PREDICTED));
        }
        assert_eq!(found(&mut hints, 500, 10), None);
        assert_eq!(found(&mut hints, 3000, 10), None, "the oldest is forgotten");
        assert_eq!(found(&mut hints, 4000, 10), Some(4));
        assert_eq!(found(&mut hints, 19_000, 100), Some(19));
        assert_eq!(hints.counts().off_grid, 0);
        assert_eq!(found(&mut hints, 5090, 20), None);
        assert_eq!(hints.counts().off_grid, 1);
        assert!(hints.is_empty());
    }

    #[test]
    fn what_lies_at_the_end_of_all_numbers_is_no_harm() {
        let mut hints = Hints::default();
        hints.publish(hint(1, u64::MAX, u64::MAX, 1, 0));
        for (offset, len) in [(0, 1), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
            let is_found = found(&mut hints, offset, len).is_some();
            assert_eq!(is_found, offset == u64::MAX, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn an_exclusive_operation_takes_the_place_of_the_last() {
        let mut hints = Hints::default();
        hints.publish(hint(1, 0, u64::MAX - 1, u64::MAX, EXCLUSIVE));
        hints.publish(hint(2, 0, u64::MAX - 1, u64::MAX, EXCLUSIVE));
        assert_eq!(found(&mut hints, 1 << 40, 1 << 20), Some(2));
        hints.end(2);
        assert!(hints.is_empty());
    }
}
