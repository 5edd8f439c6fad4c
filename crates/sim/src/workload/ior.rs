//! IOR: every process reads or writes blocks of one size, in a shared file or its own. And
//! mpi-io-test, the benchmark of PVFS that AGIOS and HIO use, which can do less: contiguous or
//! strided blocks of a shared file.

use super::blocks::{Blocks, Order, Sharing};
use super::domains::Collective;
use super::keys::{Impossible, Keys, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{BETWEEN, Benchmark, Way, check_blocks, direction};
use crate::units::Bytes;
use tidegate_sched::Direction;

/// IOR's load.
#[derive(Clone, Debug)]
pub struct Ior {
    /// The order of blocks.
    pub pattern: Order,
    /// Reads or writes.
    pub direction: Direction,
    /// Bytes of one call.
    pub request: Bytes,
    /// Calls of each process.
    pub requests: u64,
    /// One file or one each.
    pub file: Sharing,
    /// When calls are made.
    pub pace: Pace,
    /// Calls are collective.
    pub collective: Option<Collective>,
    /// The benchmark has blocks in random order.
    random: bool,
}

impl Ior {
    pub(super) fn read(keys: &mut Keys) -> Ior {
        Ior {
            file: keys.or("file", Sharing::Shared),
            random: true,
            ..Ior::read_mpi_io_test(keys)
        }
    }

    pub(super) fn read_mpi_io_test(keys: &mut Keys) -> Ior {
        Ior {
            pattern: keys.or("pattern", Order::Contiguous),
            direction: direction(keys),
            request: keys.required("request"),
            requests: keys.or("requests", 1),
            file: Sharing::Shared,
            pace: Pace::read(keys),
            collective: Collective::read(keys),
            random: false,
        }
    }
}

impl Benchmark for Ior {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        check_blocks(processes, self.request, self.requests, self.collective)?;
        let (shared, alone) = (self.file == Sharing::Shared, self.collective.is_none());
        let random = self.pattern == Order::Random;
        require(self.random || !random, "pattern", || {
            "contiguous and strided are possible; ior has random too".into()
        })?;
        require(shared || self.pattern != Order::Strided, "pattern", || {
            "strided blocks are in a shared file".into()
        })?;
        require(alone || shared, "file", || {
            "collective calls are on a shared file".into()
        })?;
        require(alone || !random, "pattern", || {
            "random blocks are not accessed collectively; contiguous and strided ones are".into()
        })
    }

    fn pattern(&self, processes: u32, file_base: u64, seed: u64) -> Box<dyn Pattern> {
        Box::new(Blocks {
            order: self.pattern,
            direction: self.direction,
            request: self.request.0,
            requests: self.requests,
            sharing: self.file,
            processes,
            file_base,
            seed,
        })
    }

    fn way(&self) -> Way {
        Way {
            pace: self.pace,
            collective: self.collective,
            thinks: BETWEEN,
            request: self.request.0,
        }
    }
}
