//! noncontig, a benchmark of accesses in many pieces: the processes' vectors are interleaved, so
//! that each call accesses every n-th block of a stretch of the file.

use super::domains::Collective;
use super::grid::Grid;
use super::keys::{Impossible, Keys, positive};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{BETWEEN, Benchmark, Way, check_pieces, check_total, direction};
use crate::units::Bytes;
use tidegate_sched::Direction;

/// noncontig's load.
#[derive(Clone, Copy, Debug)]
pub struct Noncontig {
    /// Reads or writes.
    pub direction: Direction,
    /// Bytes of one block.
    pub block: Bytes,
    /// Blocks of one call.
    pub blocks: u64,
    /// Calls of each process.
    pub requests: u64,
    /// When calls are made.
    pub pace: Pace,
    /// Calls are collective.
    pub collective: Option<Collective>,
}

impl Noncontig {
    pub(super) fn read(keys: &mut Keys) -> Noncontig {
        Noncontig {
            direction: direction(keys),
            block: keys.required("block"),
            blocks: keys.required("blocks"),
            requests: keys.or("requests", 1),
            pace: Pace::read(keys),
            collective: Collective::read(keys),
        }
    }
}

struct Vectors {
    load: Noncontig,
    processes: u32,
    file: u64,
}

impl Pattern for Vectors {
    fn operations(&self) -> u64 {
        self.load.requests
    }

    fn file(&self, _rank: u32, _operation: u64) -> u64 {
        self.file
    }

    fn direction(&self, _operation: u64) -> Direction {
        self.load.direction
    }

    fn part(&self, rank: u32, operation: u64, _part: u32) -> Grid {
        let (block, blocks) = (self.load.block.0, self.load.blocks);
        let stride = block * u64::from(self.processes);
        let start = operation * blocks * stride + u64::from(rank) * block;
        Grid::rows(start, block, blocks, stride)
    }

    fn cover(&self, operation: u64) -> Grid {
        let bytes = self.load.block.0 * self.load.blocks * u64::from(self.processes);
        Grid::one(operation * bytes, bytes)
    }
}

impl Benchmark for Noncontig {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        positive("block", self.block.0)?;
        positive("blocks", self.blocks)?;
        positive("requests", self.requests)?;
        if self.collective.is_none() {
            check_pieces("blocks", self.block.0, self.blocks)?;
        }
        let factors = [self.block.0, self.blocks, self.requests, processes.into()];
        check_total("requests", &factors)
    }

    fn pattern(&self, processes: u32, file_base: u64, _seed: u64) -> Box<dyn Pattern> {
        Box::new(Vectors {
            load: *self,
            processes,
            file: file_base,
        })
    }

    fn way(&self) -> Way {
        Way {
            pace: self.pace,
            collective: self.collective,
            thinks: BETWEEN,
            request: self.block.0.saturating_mul(self.blocks),
        }
    }
}
