//! The load: a fixed number of ranges of one file is always pending. In each step the range that
//! has been free for the longest goes, and a new one comes. All choices follow from numbers, so the
//! load is the same for all sides.

use super::scan::Scan;
use std::collections::VecDeque;
use tidegate_sched::{AppId, Direction, FileId, Found, Ranges, Request, RequestId, mix64};

/// Ranges begin and end at multiples of this.
const BLOCK: u64 = 4096;
/// The most blocks of a range of random length.
const BLOCKS_MAX: u64 = 16;
/// Blocks of the file for each pending range: about a third of those that come must wait.
const SPREAD: u64 = 34;
/// Blocks of a range in the sequential load.
const BLOCKS_SEQUENTIAL: u64 = 8;

/// Where ranges lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// Anywhere, 4 to 64 KiB long.
    Random,
    /// Each where the one before ends, 32 KiB long.
    Sequential,
}

impl Offsets {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Offsets::Random => "random",
            Offsets::Sequential => "sequential",
        }
    }
}

/// A structure of pending ranges to measure.
pub enum Side {
    /// Ours.
    Ours(Box<Ranges>),
    /// The list.
    Scan(Scan),
}

impl Side {
    fn arrived(&mut self, request: &Request) -> Found {
        match self {
            Side::Ours(ranges) => ranges.arrived(request),
            Side::Scan(scan) => scan.arrived(request),
        }
    }

    fn gone(&mut self, id: RequestId, freed: &mut Vec<RequestId>) {
        match self {
            Side::Ours(ranges) => {
                let known = ranges.gone(id, freed);
                assert!(known, "only free ranges are taken away");
            }
            Side::Scan(scan) => scan.gone(id, freed),
        }
    }
}

/// One side under load.
pub struct Load {
    side: Side,
    offsets: Offsets,
    pending: u64,
    /// Those that wait for nothing, the first to become so in front.
    free: VecDeque<RequestId>,
    freed: Vec<RequestId>,
    arrivals: u64,
    waited: u64,
    /// Of all answers so far.
    digest: u64,
}

impl Load {
    /// A side with `pending` ranges.
    pub fn new(side: Side, offsets: Offsets, pending: u64) -> Load {
        let mut load = Load {
            side,
            offsets,
            pending,
            free: VecDeque::new(),
            freed: Vec::new(),
            arrivals: 0,
            waited: 0,
            digest: 0,
        };
        for id in 0..pending {
            load.arrive(RequestId(id));
        }
        load
    }

    /// Does this number of steps: in each, one range goes and one comes.
    pub fn work(&mut self, operations: u64) {
        for _ in 0..operations {
            let id = self.free.pop_front();
            let id = id.expect("the oldest pending range waits for nothing");
            self.side.gone(id, &mut self.freed);
            for freed in self.freed.drain(..) {
                self.digest = mix64(self.digest ^ freed.0);
                self.free.push_back(freed);
            }
            self.arrive(id);
        }
    }

    /// A number that depends on every answer so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The share of the new ranges that had to wait.
    pub fn waited(&self) -> f64 {
        self.waited as f64 / self.arrivals as f64
    }

    fn arrive(&mut self, id: RequestId) {
        let found = self.side.arrived(&self.next(id));
        self.arrivals += 1;
        self.waited += u64::from(found.waits);
        if !found.waits {
            self.free.push_back(id);
        }
        let name = |id: Option<RequestId>| id.map_or(0, |id| id.0 + 1);
        let found = name(found.before) << 32 | name(found.after) << 1 | u64::from(found.waits);
        self.digest = mix64(self.digest ^ found);
    }

    fn next(&self, id: RequestId) -> Request {
        let random = mix64(self.arrivals + 1);
        let (block, blocks) = match self.offsets {
            Offsets::Random => (
                mix64(random) % (self.pending * SPREAD),
                1 + (random >> 8) % BLOCKS_MAX,
            ),
            Offsets::Sequential => (self.arrivals * BLOCKS_SEQUENTIAL, BLOCKS_SEQUENTIAL),
        };
        let direction = match random % 2 {
            0 => Direction::Read,
            _ => Direction::Write,
        };
        let (offset, len) = (block * BLOCK, blocks * BLOCK);
        Request::new(id, AppId(1), FileId(1), direction, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_give_the_same_answers() {
        for offsets in [Offsets::Random, Offsets::Sequential] {
            for pending in [1, 2, 8, 64, 512, 4096] {
                let ours = Side::Ours(Box::new(Ranges::new()));
                let mut ours = Load::new(ours, offsets, pending);
                let mut scan = Load::new(Side::Scan(Scan::default()), offsets, pending);
                for _ in 0..20 {
                    assert_eq!(ours.digest(), scan.digest(), "{offsets:?} {pending}");
                    for load in [&mut ours, &mut scan] {
                        load.work(200);
                    }
                }
            }
        }
    }

    #[test]
    fn the_random_load_has_ranges_that_wait_and_the_sequential_one_none() {
        let waited = |offsets| {
            let mut load = Load::new(Side::Ours(Box::new(Ranges::new())), offsets, 512);
            load.work(5000);
            load.waited()
        };
        let random = waited(Offsets::Random);
        assert!((0.2..0.5).contains(&random), "{random}");
        assert_eq!(waited(Offsets::Sequential), 0.0);
    }
}
