//! Phases: an application computes for some time, then all its processes move bytes, and so on, as
//! in studies of whole applications' I/O (Aupy, Gainaru, Le Fevre).

use super::blocks::Sharing;
use super::grid::{Grid, List};
use super::keys::{Impossible, Keys, positive, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{Benchmark, Way, check_blocks, check_total, direction};
use crate::units::Bytes;
use tidegate_sched::Direction;
use tidegate_wire::{Extent, Extents};

/// The load of an application in phases.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// Reads or writes.
    pub direction: Direction,
    /// Bytes of all processes in one phase.
    pub bytes: Bytes,
    /// Bytes of one call; the last one of a phase may have fewer.
    pub request: Bytes,
    /// Phases.
    pub repeats: u64,
    /// One file or one each.
    pub file: Sharing,
    /// Computing before each phase; calls in flight.
    pub pace: Pace,
}

impl Phases {
    pub(super) fn read(keys: &mut Keys) -> Phases {
        Phases {
            direction: direction(keys),
            bytes: keys.required("bytes"),
            request: keys.required("request"),
            repeats: keys.or("repeats", 1),
            file: keys.or("file", Sharing::Shared),
            pace: Pace {
                barrier: true,
                in_flight: keys.or("in_flight", 1),
                ..Pace::read_think(keys)
            },
        }
    }
}

struct Moves {
    load: Phases,
    processes: u32,
    file_base: u64,
}

impl Pattern for Moves {
    fn operations(&self) -> u64 {
        self.load.repeats
    }

    fn file(&self, rank: u32, _operation: u64) -> u64 {
        match self.load.file {
            Sharing::Shared => self.file_base,
            Sharing::Each => self.file_base + u64::from(rank),
        }
    }

    fn direction(&self, _operation: u64) -> Direction {
        self.load.direction
    }

    /// Each phase's bytes lie behind those of the phase before.
    fn part(&self, rank: u32, operation: u64, _part: u32) -> Grid {
        let bytes = self.load.bytes.0;
        let border = |rank: u32| {
            let border = u128::from(bytes) * u128::from(rank) / u128::from(self.processes);
            border as u64
        };
        let (start, len) = (border(rank), border(rank + 1) - border(rank));
        match self.load.file {
            Sharing::Shared => Grid::one(operation * bytes + start, len),
            Sharing::Each => Grid::one(operation * len, len),
        }
    }

    fn calls(&self, rank: u32, operation: u64) -> u64 {
        let bytes = self.part(rank, operation, 0).bytes();
        bytes.div_ceil(self.load.request.0)
    }

    fn call(&self, rank: u32, operation: u64, call: u64) -> Extents {
        let part = self.part(rank, operation, 0);
        let first = call * self.load.request.0;
        let mut list = List::default();
        list.push(Extent {
            offset: part.start + first,
            len: self.load.request.0.min(part.len - first),
        });
        list.into_extents()
    }
}

impl Benchmark for Phases {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        check_blocks(1, self.request, 1, None)?;
        positive("repeats", self.repeats)?;
        require(self.bytes.0 >= processes.into(), "bytes", || {
            format!("each of the {processes} processes moves at least 1 byte in a phase")
        })?;
        check_total("repeats", &[self.bytes.0, self.repeats])
    }

    fn pattern(&self, processes: u32, file_base: u64, _seed: u64) -> Box<dyn Pattern> {
        Box::new(Moves {
            load: *self,
            processes,
            file_base,
        })
    }

    fn way(&self) -> Way {
        Way {
            pace: self.pace,
            collective: None,
            thinks: 0..self.repeats,
            request: self.request.0,
        }
    }
}
