//! The program of a process in collective calls: two-phase I/O as ROMIO does it.
//!
//! A call divides what all processes need evenly among a few of them, the aggregators. An
//! aggregator goes through its share (its file domain) with one access a round, of as many bytes as
//! its buffer has. For reads it then sends each process its part; for writes it first receives the
//! parts. ROMIO exchanges lists of offsets before the first round and message sizes in each. Both
//! make processes wait for each other, so a barrier stands in for them here, before the first round
//! and between rounds.

use super::calls::Load;
use super::domains::Collective;
use super::grid::{Grid, List};
use super::pattern::bytes_between;
use super::shuffles::{Accessed, Foretold, Messages};
use crate::rng::Rng;
use crate::world::{Access, Part, Program, Step};
use std::sync::Arc;
use tidegate_sched::Direction;

/// Where in an operation a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pause,
    Begin,
    /// Before a round.
    Barrier,
    Call,
    /// What an aggregator does with what it has read.
    Work,
    /// The next rank, or aggregator, to look at.
    Send(u32),
    Receive,
    RoundEnd,
    End,
}

/// One process.
pub(super) struct TwoPhase {
    load: Arc<Load>,
    collective: Arc<Collective>,
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
    pub(super) fn new(load: Arc<Load>, collective: Arc<Collective>, rank: u32) -> TwoPhase {
        TwoPhase {
            aggregator: collective.aggregator(rank, load.processes),
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

    /// Where in the file an aggregator works in this round.
    fn offsets(&self, aggregator: u32) -> Option<(u64, u64)> {
        let cover = self.cover();
        let (from, to) = self.collective.window(&cover, aggregator, self.round)?;
        Some((cover.offset_of(from), cover.offset_of(to - 1) + 1))
    }

    /// How many bytes a process needs between two offsets.
    fn part(&self, rank: u32, offsets: (u64, u64)) -> u64 {
        bytes_between(&*self.load.pattern, rank, self.operation, offsets)
    }

    /// The other processes, from `from` on, that need some of what this aggregator accesses in
    /// this round, and how much.
    fn served(&self, from: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let offsets = self.aggregator.and_then(|own| self.offsets(own));
        let ranks = from..offsets.map_or(0, |_| self.load.processes);
        ranks
            .filter(|rank| *rank != self.rank)
            .map(move |rank| (rank, offsets.map_or(0, |offsets| self.part(rank, offsets))))
            .filter(|(_, bytes)| *bytes > 0)
    }

    /// The other aggregators, from `from` on, that access some of what this process needs in this
    /// round, and how much.
    fn servers(&self, from: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let (pattern, cover) = (&self.load.pattern, self.cover());
        let last = pattern.parts(self.rank, self.operation) - 1;
        let start = pattern.part(self.rank, self.operation, 0).start;
        let end = pattern.part(self.rank, self.operation, last).end();
        let needed = (cover.bytes_before(start), cover.bytes_before(end));
        let domains = self.collective.domains(&cover, needed);
        (from.max(domains.start)..domains.end)
            .filter(|aggregator| Some(*aggregator) != self.aggregator)
            .map(|aggregator| {
                let offsets = self.offsets(aggregator);
                let bytes = offsets.map_or(0, |offsets| self.part(self.rank, offsets));
                (aggregator, bytes)
            })
            .filter(|(_, bytes)| *bytes > 0)
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
            part: self.foretold(aggregator),
        })
    }

    /// The hints of an access: the shuffle that follows it, and those of the others.
    fn foretold(&self, aggregator: u32) -> Option<Part> {
        if self.collective.shuffles.told == Foretold::Not || !self.reads() {
            return None;
        }
        let shuffle_ns = self.shuffle_ns(aggregator);
        let all = 0..self.collective.aggregators;
        let shuffles_ns: Vec<u64> = all.map(|other| self.shuffle_ns(other)).collect();
        let longer = (0..).zip(&shuffles_ns).filter(|(number, other)| {
            // Of equal ones the first counts as longer.
            **other > shuffle_ns || **other == shuffle_ns && *number < aggregator
        });
        Some(Part {
            operation: self.operation,
            shuffle_ns,
            shuffle_max_ns: shuffles_ns.iter().copied().max().unwrap_or(0),
            rank: u16::try_from(longer.count()).unwrap_or(u16::MAX),
            // The shuffle follows as messages.
            with_shuffle: false,
        })
    }

    /// The predicted time of the work and the messages after an aggregator's access of this round,
    /// ns.
    fn shuffle_ns(&self, aggregator: u32) -> u64 {
        let Some(offsets) = self.offsets(aggregator) else {
            return 0;
        };
        let load = &self.load;
        let own = self.collective.rank(aggregator, load.processes);
        let mut messages = Messages::default();
        for rank in (0..load.processes).filter(|rank| *rank != own) {
            messages.add(&load.place, own, rank, self.part(rank, offsets));
        }
        let told = self.collective.shuffles.told;
        self.work_ns(aggregator, offsets) + messages.ns(&load.place, told)
    }

    /// How long an aggregator works after its access of these offsets, ns.
    fn work_ns(&self, aggregator: u32, offsets: (u64, u64)) -> u64 {
        let load = &self.load;
        let accessed = Accessed {
            aggregator,
            operation: self.operation,
            file: load.pattern.file(self.rank, self.operation),
            offset: offsets.0,
        };
        let shuffles = &self.collective.shuffles;
        shuffles.work_ns(&accessed, &load.place, load.seed)
    }

    /// The work of this process after its access, if it is an aggregator that has one.
    fn work(&self) -> Option<Step> {
        let own = self.aggregator?;
        let ns = self.work_ns(own, self.offsets(own)?);
        (ns > 0).then_some(Step::Think(ns))
    }

    fn reads(&self) -> bool {
        self.load.pattern.direction(self.operation) == Direction::Read
    }

    /// The next message of this round, from number `from` on: an aggregator sends to ranks for a
    /// read, a rank to aggregators for a write.
    fn send(&self, from: u32) -> Option<(u32, Step)> {
        if self.reads() {
            let (rank, bytes) = self.served(from).next()?;
            return Some((rank + 1, Step::Send { rank, bytes }));
        }
        let (aggregator, bytes) = self.servers(from).next()?;
        let rank = self.collective.rank(aggregator, self.load.processes);
        Some((aggregator + 1, Step::Send { rank, bytes }))
    }

    /// Number of messages that this process receives in this round.
    fn messages(&self) -> u32 {
        let count = match self.reads() {
            true => self.servers(0).count(),
            false => self.served(0).count(),
        };
        count as u32
    }

    /// The step of this stage, if it has one, after moving on to the next stage.
    fn step(&mut self, rng: &mut Rng) -> Option<Step> {
        let reads = self.reads();
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
                let next = if reads { Stage::Work } else { Stage::RoundEnd };
                (next, access.map(Step::Call))
            }
            Stage::Work => (Stage::Send(0), self.work()),
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
