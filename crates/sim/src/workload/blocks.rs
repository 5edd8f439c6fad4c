//! Blocks of one size, one a call: contiguous, strided or in random order, in a shared file or one
//! of each process.

use super::grid::Grid;
use super::pattern::Pattern;
use super::permutation::place;
use tidegate_sched::Direction;

/// Which file processes use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One file for all.
    #[default]
    Shared,
    /// Each process has its own.
    Each,
}

/// The order of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each process goes through its own part of the file.
    #[default]
    Contiguous,
    /// In each round, the processes' blocks lie side by side.
    Strided,
    /// Each block is somebody's once, in random order.
    Random,
}

/// See the file's first line.
pub(super) struct Blocks {
    pub(super) order: Order,
    pub(super) direction: Direction,
    pub(super) request: u64,
    pub(super) requests: u64,
    pub(super) sharing: Sharing,
    pub(super) processes: u32,
    pub(super) file_base: u64,
    pub(super) seed: u64,
}

impl Pattern for Blocks {
    fn operations(&self) -> u64 {
        self.requests
    }

    fn file(&self, rank: u32, _operation: u64) -> u64 {
        match self.sharing {
            Sharing::Shared => self.file_base,
            Sharing::Each => self.file_base + u64::from(rank),
        }
    }

    fn direction(&self, _operation: u64) -> Direction {
        self.direction
    }

    fn part(&self, rank: u32, operation: u64, _part: u32) -> Grid {
        let (rank, processes) = (u64::from(rank), u64::from(self.processes));
        let block = match (self.sharing, self.order) {
            (Sharing::Each, Order::Random) => {
                place(self.requests, self.seed.wrapping_add(rank), operation)
            }
            (Sharing::Each, _) => operation,
            (Sharing::Shared, Order::Contiguous) => rank * self.requests + operation,
            (Sharing::Shared, Order::Strided) => operation * processes + rank,
            (Sharing::Shared, Order::Random) => {
                let number = operation * processes + rank;
                place(self.requests * processes, self.seed, number)
            }
        };
        Grid::one(block * self.request, self.request)
    }

    fn cover(&self, operation: u64) -> Grid {
        let first = self.part(0, operation, 0);
        let stride = match self.order {
            Order::Contiguous => self.requests * self.request,
            Order::Strided => self.request,
            Order::Random => unreachable!("random blocks are not accessed collectively"),
        };
        Grid::rows(first.start, self.request, self.processes.into(), stride)
    }
}
