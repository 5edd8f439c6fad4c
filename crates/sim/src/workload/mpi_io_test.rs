//! mpi-io-test, the benchmark of PVFS that AGIOS and HIO use: every process reads or writes blocks
//! of a shared file, contiguous or with a stride.

use super::blocks::{Blocks, Order, Sharing};
use super::domains::Collective;
use super::keys::{Impossible, Keys, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{BETWEEN, Benchmark, Way, check_blocks, direction};
use crate::units::Bytes;
use tidegate_sched::Direction;

/// mpi-io-test's load.
#[derive(Clone, Debug)]
pub struct MpiIoTest {
    /// Contiguous or strided.
    pub pattern: Order,
    /// Reads or writes.
    pub direction: Direction,
    /// Bytes of one call.
    pub request: Bytes,
    /// Calls of each process.
    pub requests: u64,
    /// When calls are made.
    pub pace: Pace,
    /// Calls are collective.
    pub collective: Option<Collective>,
}

impl MpiIoTest {
    pub(super) fn read(keys: &mut Keys) -> MpiIoTest {
        MpiIoTest {
            pattern: keys.or("pattern", Order::Contiguous),
            direction: direction(keys),
            request: keys.required("request"),
            requests: keys.or("requests", 1),
            pace: Pace::read(keys),
            collective: Collective::read(keys),
        }
    }
}

impl Benchmark for MpiIoTest {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        check_blocks(processes, self.request, self.requests, self.collective)?;
        require(self.pattern != Order::Random, "pattern", || {
            "contiguous and strided are possible; ior has random too".into()
        })
    }

    fn pattern(&self, processes: u32, file_base: u64, seed: u64) -> Box<dyn Pattern> {
        Box::new(Blocks {
            order: self.pattern,
            direction: self.direction,
            request: self.request.0,
            requests: self.requests,
            sharing: Sharing::Shared,
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
