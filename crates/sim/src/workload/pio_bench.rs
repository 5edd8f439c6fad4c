//! PIO-Bench: the access patterns that parallel programs show most, in a shared file.

use super::grid::Grid;
use super::keys::{Impossible, Keys, positive, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::permutation::mix;
use super::{BETWEEN, Benchmark, Way, check_blocks};
use crate::units::Bytes;
use tidegate_sched::Direction;

/// An access pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PioPattern {
    /// Each process goes through its own part of the file.
    #[default]
    Sequential,
    /// In each round, the processes' blocks lie side by side.
    SimpleStrided,
    /// Groups of processes take stretches of the file in turn; within a stretch, the blocks of the
    /// group's processes lie side by side.
    NestedStrided,
    /// As `SimpleStrided`, with blocks of different lengths.
    RandomStrided,
    /// The file consists of segments; each process goes through its own part of the first segment,
    /// then of the next.
    Segmented,
}

/// What is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PioDirection {
    /// Reads.
    #[default]
    Read,
    /// Writes.
    Write,
    /// Everything is written, then read.
    Both,
}

/// PIO-Bench's load.
#[derive(Clone, Copy, Debug)]
pub struct PioBench {
    /// The access pattern.
    pub pattern: PioPattern,
    /// Reads, writes, or both.
    pub direction: PioDirection,
    /// Bytes of one call; with `random-strided` on average.
    pub request: Bytes,
    /// Calls of each process in each direction.
    pub requests: u64,
    /// Groups of processes, if nested.
    pub groups: Option<u64>,
    /// Calls of a process in one stretch, if nested.
    pub inner: Option<u64>,
    /// Segments of the file, if segmented.
    pub segments: Option<u64>,
    /// When calls are made.
    pub pace: Pace,
}

impl PioBench {
    pub(super) fn read(keys: &mut Keys) -> PioBench {
        PioBench {
            pattern: keys.or("pattern", PioPattern::Sequential),
            direction: keys.or("direction", PioDirection::Read),
            request: keys.required("request"),
            requests: keys.or("requests", 1),
            groups: keys.optional("groups"),
            inner: keys.optional("inner"),
            segments: keys.optional("segments"),
            pace: Pace::read(keys),
        }
    }

    /// A key that one pattern needs, and the others do not have; it divides `whole`.
    fn check_divisor(
        &self,
        key: &str,
        value: Option<u64>,
        pattern: PioPattern,
        whole: (u64, &str),
    ) -> Result<(), Impossible> {
        let Some(value) = value else {
            return require(self.pattern != pattern, key, || {
                "it is missing; this pattern needs it".into()
            });
        };
        require(self.pattern == pattern, key, || {
            "this pattern does not have it".into()
        })?;
        positive(key, value)?;
        require(whole.0.is_multiple_of(value), key, || {
            format!("it must divide the {} {}", whole.0, whole.1)
        })
    }
}

struct Accesses {
    load: PioBench,
    processes: u64,
    file: u64,
    seed: u64,
}

impl Accesses {
    /// How far the block of this number is shifted in random strides. A round's first is not.
    fn shift(&self, number: u64) -> u64 {
        let span = self.load.request.0 / 2 + 1;
        match number % self.processes {
            0 => 0,
            _ => mix(number ^ mix(self.seed)) % span,
        }
    }
}

impl Pattern for Accesses {
    fn operations(&self) -> u64 {
        match self.load.direction {
            PioDirection::Both => 2 * self.load.requests,
            PioDirection::Read | PioDirection::Write => self.load.requests,
        }
    }

    fn file(&self, _rank: u32, _operation: u64) -> u64 {
        self.file
    }

    fn direction(&self, operation: u64) -> Direction {
        match self.load.direction {
            PioDirection::Read => Direction::Read,
            PioDirection::Both if operation >= self.load.requests => Direction::Read,
            PioDirection::Both | PioDirection::Write => Direction::Write,
        }
    }

    fn part(&self, rank: u32, operation: u64, _part: u32) -> Grid {
        let (rank, processes) = (u64::from(rank), self.processes);
        let (request, requests) = (self.load.request.0, self.load.requests);
        let call = operation % requests;
        let side_by_side = call * processes + rank;
        let block = match self.load.pattern {
            PioPattern::Sequential => rank * requests + call,
            PioPattern::SimpleStrided => side_by_side,
            PioPattern::RandomStrided => {
                let start = side_by_side * request + self.shift(side_by_side);
                let end = (side_by_side + 1) * request + self.shift(side_by_side + 1);
                return Grid::one(start, end - start);
            }
            PioPattern::NestedStrided => {
                let (groups, inner) = (self.load.groups, self.load.inner);
                let (groups, inner) = (groups.unwrap_or(1), inner.unwrap_or(1));
                let members = processes / groups;
                let stretch = call / inner * groups + rank / members;
                (stretch * inner + call % inner) * members + rank % members
            }
            PioPattern::Segmented => {
                let calls = requests / self.load.segments.unwrap_or(1);
                (call / calls * processes + rank) * calls + call % calls
            }
        };
        Grid::one(block * request, request)
    }
}

impl Benchmark for PioBench {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        check_blocks(processes, self.request, self.requests, None)?;
        let longest = self.request.0.saturating_add(self.request.0 / 2);
        let random = self.pattern == PioPattern::RandomStrided;
        require(
            !random || longest <= crate::world::CALL_BYTES_MAX,
            "request",
            || {
                "random strides have blocks of up to one and a half of it, too much for a call"
                    .into()
            },
        )?;
        let processes = (u64::from(processes), "processes");
        let requests = (self.requests, "requests");
        self.check_divisor("groups", self.groups, PioPattern::NestedStrided, processes)?;
        self.check_divisor("inner", self.inner, PioPattern::NestedStrided, requests)?;
        self.check_divisor("segments", self.segments, PioPattern::Segmented, requests)
    }

    fn pattern(&self, processes: u32, file_base: u64, seed: u64) -> Box<dyn Pattern> {
        Box::new(Accesses {
            load: *self,
            processes: processes.into(),
            file: file_base,
            seed,
        })
    }

    fn way(&self) -> Way {
        Way {
            pace: self.pace,
            collective: None,
            thinks: BETWEEN,
            request: self.request.0,
        }
    }
}
