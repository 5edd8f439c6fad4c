//! What the processes of an application access, operation by operation: the part of a workload
//! that does not depend on when.

use super::grid::{Grid, List};
use tidegate_sched::Direction;
use tidegate_wire::Extents;

/// What a workload accesses. All functions are cheap and remember nothing, so a process can be at
/// any operation.
pub(super) trait Pattern: Send + Sync {
    /// Operations of each process.
    fn operations(&self) -> u64;

    /// The file that a process uses in an operation.
    fn file(&self, rank: u32, operation: u64) -> u64;

    /// Whether an operation reads or writes.
    fn direction(&self, operation: u64) -> Direction;

    /// How many grids a process's part of an operation has, at least one.
    fn parts(&self, _rank: u32, _operation: u64) -> u32 {
        1
    }

    /// One of the grids; they ascend in the file.
    fn part(&self, rank: u32, operation: u64, part: u32) -> Grid;

    /// With how many calls a process carries out its part on its own.
    fn calls(&self, _rank: u32, _operation: u64) -> u64 {
        1
    }

    /// What one of these calls accesses.
    fn call(&self, rank: u32, operation: u64, _call: u64) -> Extents {
        let mut list = List::default();
        for part in 0..self.parts(rank, operation) {
            let grid = self.part(rank, operation, part);
            grid.list(0, grid.bytes(), &mut list);
        }
        list.into_extents()
    }

    /// What all processes together access in a collective operation, each byte once. Only patterns
    /// that can be accessed collectively have it.
    fn cover(&self, _operation: u64) -> Grid {
        unreachable!("check() refuses collective calls of this pattern");
    }
}

/// How many of the bytes that a process accesses in an operation lie from offset `from` to before
/// offset `to`.
pub(super) fn bytes_between(
    pattern: &dyn Pattern,
    rank: u32,
    operation: u64,
    (from, to): (u64, u64),
) -> u64 {
    // The first part that ends behind `from`, by bisection: parts ascend.
    let parts = pattern.parts(rank, operation);
    let (mut low, mut high) = (0, parts);
    while low < high {
        let middle = low + (high - low) / 2;
        match pattern.part(rank, operation, middle).end() > from {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    (low..parts)
        .map(|part| pattern.part(rank, operation, part))
        .take_while(|grid| grid.start < to)
        .map(|grid| grid.bytes_before(to) - grid.bytes_before(from))
        .sum()
}
