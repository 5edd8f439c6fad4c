//! Where runs stand: which are eligible, which wait for a step or a time, and which queue is next.

use super::{Growth, Key, Order, Queue, Runs, STEPS_MAX, Stage, key, queue_of, run_of};
use crate::index::NONE;
use crate::types::{Request, Time};

impl Runs {
    /// A queue that had its turn comes after all others.
    pub(super) fn take_turn(&mut self, queue: u32) {
        self.ranks += 1;
        let entry = &mut self.queues[queue as usize];
        let old = core::mem::replace(&mut entry.rank, self.ranks);
        if entry.next.is_some() {
            self.turns.remove(&(old, queue));
            self.turns.insert((self.ranks, queue), ());
        }
    }

    /// Eligible by now? A run that was stays so.
    pub(super) fn review(&mut self, run: u32) {
        let Stage::Waiting { step: old } = self.runs[run as usize].stage else {
            return;
        };
        let step = self.eligible_at(run);
        if step <= self.step + 1 {
            self.make_eligible(run);
        } else if step != old {
            self.due.remove(&(old, run));
            self.due.insert((step, run), ());
            self.runs[run as usize].stage = Stage::Waiting { step };
        }
    }

    /// The step at which the quantum of a run covers its cost.
    pub(super) fn eligible_at(&self, number: u32) -> u64 {
        let run = &self.runs[number as usize];
        let quanta = self.cost_ns(number).div_ceil(self.quantum_ns);
        let quanta = quanta.min(STEPS_MAX);
        match self.growth {
            // Sum over the requests of (step - its step) * quantum >= cost.
            Growth::Linear => {
                let sum = run.steps_sum.saturating_add(quanta);
                sum.div_ceil(u64::from(run.count))
            }
            // quantum * 2^(steps - 1) >= cost.
            Growth::Doubling => {
                let doublings = quanta.next_power_of_two().trailing_zeros();
                run.step_first + 1 + u64::from(doublings)
            }
        }
    }

    pub(super) fn make_eligible(&mut self, run: u32) {
        self.unplace(run);
        self.runs[run as usize].stage = Stage::Eligible;
        self.place(run);
    }

    /// What is due by step or time becomes eligible.
    pub(super) fn wake(&mut self, now: Time) {
        while let Some(((_, run), ())) = self.due.first().filter(|((at, _), ())| *at <= self.step) {
            self.make_eligible(run);
        }
        while let Some(((_, run), ())) = self.parked.first().filter(|((at, _), ())| *at <= now.0) {
            self.make_eligible(run);
        }
    }

    /// Puts a run where its stage says.
    pub(super) fn place(&mut self, number: u32) {
        let run = &self.runs[number as usize];
        let (queue, at, end) = (run.queue, key(run.queue, run.start, number), run.end);
        match run.stage {
            Stage::Eligible => {
                self.eligible.insert(at, end);
                let entry = &self.queues[queue as usize];
                let order = |key: Key| (key < entry.at, key);
                if entry.next.is_none_or(|next| order(at) < order(next)) {
                    self.set_next(queue, Some(at));
                }
            }
            Stage::Waiting { step } => {
                self.pending.insert(at, end);
                self.due.insert((step, number), ());
            }
            Stage::Parked { until } => {
                self.pending.insert(at, end);
                self.parked.insert((until.0, number), ());
            }
        }
    }

    pub(super) fn unplace(&mut self, number: u32) {
        let run = &self.runs[number as usize];
        let (queue, at) = (run.queue, key(run.queue, run.start, number));
        match run.stage {
            Stage::Eligible => {
                self.eligible.remove(&at);
                if self.queues[queue as usize].next == Some(at) {
                    self.find_next(queue);
                }
            }
            Stage::Waiting { step } => {
                self.pending.remove(&at);
                self.due.remove(&(step, number));
            }
            Stage::Parked { until } => {
                self.pending.remove(&at);
                self.parked.remove(&(until.0, number));
            }
        }
    }

    pub(super) fn find_next(&mut self, queue: u32) {
        let of_queue = |found: Option<(Key, u64)>| {
            let key = found.map(|(key, _)| key);
            key.filter(|key| queue_of(*key) == queue)
        };
        let at = self.queues[queue as usize].at;
        let ahead = of_queue(self.eligible.at_or_after(&at));
        let lowest = || of_queue(self.eligible.at_or_after(&key(queue, 0, 0)));
        self.set_next(queue, ahead.or_else(lowest));
    }

    pub(super) fn set_next(&mut self, queue: u32, next: Option<Key>) {
        let entry = &mut self.queues[queue as usize];
        let rank = match (self.order, next) {
            (Order::Oldest, Some(next)) => self.runs[run_of(next) as usize].oldest,
            _ => entry.rank,
        };
        let had = entry.next.is_some();
        if had && (rank != entry.rank || next.is_none()) {
            self.turns.remove(&(entry.rank, queue));
        }
        if next.is_some() && (rank != entry.rank || !had) {
            self.turns.insert((rank, queue), ());
        }
        (entry.rank, entry.next) = (rank, next);
    }

    pub(super) fn queue_for(&mut self, request: &Request) -> u32 {
        let found = self.by_file[request.direction as usize].find(request.file.0);
        if found != NONE {
            return found;
        }
        self.ranks += 1;
        let queue = Queue {
            file: request.file.0,
            direction: request.direction,
            rank: self.ranks,
            runs: 0,
            at: 0,
            next: None,
        };
        let number = match self.queues_free.pop() {
            Some(number) => {
                self.queues[number as usize] = queue;
                number
            }
            None => {
                self.queues.push(queue);
                self.queues.len() as u32 - 1
            }
        };
        self.by_file[request.direction as usize].insert(request.file.0, number);
        number
    }
}
