//! The program of a process in collective calls: two-phase I/O as ROMIO does it.
//!
//! What all processes need in one call is divided evenly among a few of them, the aggregators.
//! An aggregator goes through its share (its file domain) with one access a round, of as many
//! bytes as its buffer has. For reads it then sends each process its part; for writes it first
//! receives the parts. ROMIO exchanges lists of offsets before the first round and message sizes
//! in each; both make processes wait for each other, so a barrier stands in for them here, before
//! the first round and between rounds.

use super::calls::Load;
use super::grid::{Grid, List};
use super::keys::{Impossible, Keys, positive, require};
use super::pattern::{Pattern, bytes_between};
use crate::rng::Rng;
use crate::units::Bytes;
use crate::world::{Access, CALL_BYTES_MAX, Program, Step};
use std::sync::Arc;
use tidegate_sched::Direction;

/// How collective calls are carried out.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// How many processes access the file, spread evenly over the ranks.
    pub aggregators: u32,
    /// Bytes that an aggregator accesses in a round.
    pub buffer: Bytes,
    /// Borders of file domains are at multiples of this; 0: wherever they are even.
    pub align: Bytes,
}

/// ROMIO's `cb_buffer_size`.
const BUFFER: Bytes = Bytes(16 << 20);

impl Collective {
    /// None: calls are not collective.
    pub(super) fn read(keys: &mut Keys) -> Option<Collective> {
        let collective = keys.or("collective", false);
        let aggregators = keys.optional("aggregators");
        let buffer = keys.optional("buffer");
        let align = keys.optional("align");
        if !collective {
            for (key, given) in [
                ("aggregators", aggregators.is_some()),
                ("buffer", buffer.is_some()),
                ("align", align.is_some()),
            ] {
                if given {
                    keys.fails(format!("{key}: only collective calls have it"));
                }
            }
            return None;
        }
        if aggregators.is_none() {
            keys.fails("aggregators is missing: how many processes access the file".into());
        }
        Some(Collective {
            aggregators: aggregators.unwrap_or(1),
            buffer: buffer.unwrap_or(BUFFER),
            align: align.unwrap_or_default(),
        })
    }

    pub(super) fn check(&self, processes: u32) -> Result<(), Impossible> {
        positive("aggregators", self.aggregators.into())?;
        require(self.aggregators <= processes, "aggregators", || {
            format!("{} of only {processes} processes", self.aggregators)
        })?;
        let limits = 1..=CALL_BYTES_MAX;
        require(limits.contains(&self.buffer.0), "buffer", || {
            format!("1 to {CALL_BYTES_MAX} bytes are possible")
        })
    }

    /// The rank of an aggregator.
    fn rank(&self, aggregator: u32, processes: u32) -> u32 {
        let rank = u64::from(aggregator) * u64::from(processes) / u64::from(self.aggregators);
        rank as u32
    }

    /// The first aggregator whose rank is not below `rank`.
    fn at(&self, rank: u32, processes: u32) -> u32 {
        let scaled = u64::from(rank) * u64::from(self.aggregators);
        scaled.div_ceil(processes.into()) as u32
    }

    /// Where a file domain begins, in bytes of the cover.
    fn border(&self, cover: &Grid, aggregator: u32) -> u64 {
        let bytes = u128::from(cover.bytes());
        let even = bytes * u128::from(aggregator) / u128::from(self.aggregators);
        let even = even as u64;
        if self.align.0 == 0 || aggregator == 0 || aggregator == self.aggregators {
            return even;
        }
        // The nearest multiple; as even borders ascend, so do these.
        let offset = cover.offset_of(even) + self.align.0 / 2;
        cover.bytes_before(offset / self.align.0 * self.align.0)
    }

    /// What an aggregator accesses in a round, in bytes of the cover.
    fn window(&self, cover: &Grid, aggregator: u32, round: u64) -> Option<(u64, u64)> {
        let (from, to) = (
            self.border(cover, aggregator),
            self.border(cover, aggregator + 1),
        );
        let from = from + round * self.buffer.0;
        (from < to).then(|| (from, to.min(from + self.buffer.0)))
    }

    /// Rounds of one aggregator in an operation.
    fn rounds_of(&self, cover: &Grid, aggregator: u32) -> u64 {
        let bytes = self.border(cover, aggregator + 1) - self.border(cover, aggregator);
        bytes.div_ceil(self.buffer.0)
    }

    fn rounds(&self, cover: &Grid) -> u64 {
        let aggregators = 0..self.aggregators;
        let rounds = aggregators.map(|aggregator| self.rounds_of(cover, aggregator));
        rounds.max().unwrap_or(0)
    }

    /// Accesses of all aggregators in an operation.
    pub(super) fn accesses(&self, pattern: &dyn Pattern, operation: u64) -> u64 {
        let cover = pattern.cover(operation);
        let aggregators = 0..self.aggregators;
        aggregators
            .map(|aggregator| self.rounds_of(&cover, aggregator))
            .sum()
    }
}

/// Where in an operation a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pause,
    Begin,
    /// Before a round.
    Barrier,
    Call,
    /// The next rank, or aggregator, to look at.
    Send(u32),
    Receive,
    RoundEnd,
    End,
}

/// One process.
pub(super) struct TwoPhase {
    load: Arc<Load>,
    collective: Collective,
    rank: u32,
    /// Its number among the aggregators, if it is one.
    aggregator: Option<u32>,
    operation: u64,
    round: u64,
    /// Of the operation.
    rounds: u64,
    stage: Stage,
}

impl TwoPhase {
    pub(super) fn new(load: Arc<Load>, collective: Collective, rank: u32) -> TwoPhase {
        let candidate = collective.at(rank, load.processes);
        let is_one = candidate < collective.aggregators
            && collective.rank(candidate, load.processes) == rank;
        TwoPhase {
            aggregator: is_one.then_some(candidate),
            load,
            collective,
            rank,
            operation: 0,
            round: 0,
            rounds: 0,
            stage: Stage::Pause,
        }
    }

    fn cover(&self) -> Grid {
        self.load.pattern.cover(self.operation)
    }

    /// How many bytes of a process an aggregator accesses in this round.
    fn part(&self, rank: u32, aggregator: u32) -> u64 {
        let cover = self.cover();
        let window = self.collective.window(&cover, aggregator, self.round);
        window.map_or(0, |(from, to)| {
            let offsets = (cover.offset_of(from), cover.offset_of(to - 1) + 1);
            bytes_between(&*self.load.pattern, rank, self.operation, offsets)
        })
    }

    fn access(&self, aggregator: u32) -> Option<Access> {
        let cover = self.cover();
        let (from, to) = self.collective.window(&cover, aggregator, self.round)?;
        let mut list = List::default();
        cover.list(from, to, &mut list);
        let pattern = &self.load.pattern;
        Some(Access {
            file: pattern.file(self.rank, self.operation),
            direction: pattern.direction(self.operation),
            extents: list.into_extents(),
        })
    }

    /// The next message of this round, from number `from` on: an aggregator sends to ranks for a
    /// read, a rank to aggregators for a write.
    fn send(&self, from: u32) -> Option<(u32, Step)> {
        let (load, collective) = (&self.load, &self.collective);
        match load.pattern.direction(self.operation) {
            Direction::Read => {
                let own = self.aggregator?;
                let mut ranks = (from..load.processes).filter(|rank| *rank != self.rank);
                ranks.find_map(|rank| {
                    let bytes = self.part(rank, own);
                    (bytes > 0).then_some((rank + 1, Step::Send { rank, bytes }))
                })
            }
            Direction::Write => {
                let mut aggregators = from..collective.aggregators;
                aggregators.find_map(|aggregator| {
                    let rank = collective.rank(aggregator, load.processes);
                    let bytes = self.part(self.rank, aggregator);
                    (rank != self.rank && bytes > 0)
                        .then_some((aggregator + 1, Step::Send { rank, bytes }))
                })
            }
        }
    }

    /// Messages that come to this process in this round.
    fn messages(&self) -> u32 {
        let (load, collective) = (&self.load, &self.collective);
        let count = match (load.pattern.direction(self.operation), self.aggregator) {
            (Direction::Read, _) => {
                let aggregators = 0..collective.aggregators;
                aggregators
                    .filter(|aggregator| Some(*aggregator) != self.aggregator)
                    .filter(|aggregator| self.part(self.rank, *aggregator) > 0)
                    .count()
            }
            (Direction::Write, Some(own)) => {
                let ranks = (0..load.processes).filter(|rank| *rank != self.rank);
                ranks.filter(|rank| self.part(*rank, own) > 0).count()
            }
            (Direction::Write, None) => 0,
        };
        count as u32
    }

    /// The step of this stage, if it has one, after moving on to the next stage.
    fn step(&mut self, rng: &mut Rng) -> Option<Step> {
        let reads = self.load.pattern.direction(self.operation) == Direction::Read;
        let (next, step) = match self.stage {
            Stage::Pause => {
                let thinks = self.load.thinks.contains(&self.operation);
                let pause = if thinks { self.load.pace.think(rng) } else { 0 };
                (Stage::Begin, (pause > 0).then_some(Step::Think(pause)))
            }
            Stage::Begin => {
                self.round = 0;
                self.rounds = self.collective.rounds(&self.cover());
                (Stage::Barrier, Some(Step::Begin(self.operation)))
            }
            Stage::Barrier => {
                let next = if reads { Stage::Call } else { Stage::Send(0) };
                (next, Some(Step::Barrier))
            }
            Stage::Call => {
                let access = self.aggregator.and_then(|own| self.access(own));
                let next = if reads {
                    Stage::Send(0)
                } else {
                    Stage::RoundEnd
                };
                (next, access.map(Step::Call))
            }
            Stage::Send(from) => match self.send(from) {
                Some((next, step)) => (Stage::Send(next), Some(step)),
                None => (Stage::Receive, None),
            },
            Stage::Receive => {
                let next = if reads { Stage::RoundEnd } else { Stage::Call };
                let count = self.messages();
                (next, (count > 0).then_some(Step::Receive(count)))
            }
            Stage::RoundEnd => {
                self.round += 1;
                let more = self.round < self.rounds;
                (if more { Stage::Barrier } else { Stage::End }, None)
            }
            Stage::End => {
                let step = Step::End(self.operation);
                self.operation += 1;
                (Stage::Pause, Some(step))
            }
        };
        self.stage = next;
        step
    }
}

impl Program for TwoPhase {
    fn next(&mut self, rng: &mut Rng) -> Step {
        loop {
            if self.operation >= self.load.pattern.operations() {
                return Step::Exit;
            }
            if let Some(step) = self.step(rng) {
                return step;
            }
        }
    }
}
