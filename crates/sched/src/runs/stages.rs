//! Where runs stand: which are eligible, which wait for a step or a time, and which queue is next.

use super::{Growth, Order, Queue, Runs, STEPS_MAX, Stage, index_of, place, run_of, start_of};
use crate::c_scan::{CScan, Place};
use crate::endpoint_index::Edge;
use crate::hash_table::NONE;
use crate::requests::Requests;
use crate::types::{Direction, Request, Time};

impl Runs {
    /// A queue that had its turn comes after all others.
    pub(super) fn take_turn(&mut self, queue: u32) {
        self.ranks += 1;
        let entry = &mut self.queues[queue as usize];
        entry.rank = self.ranks;
        if entry.next.is_some() {
            self.eligible.set(queue, self.ranks);
        }
    }

    /// Eligible by now? A run that was stays so.
    pub(super) fn review(&mut self, requests: &Requests, run: u32) {
        let Stage::Waiting { step: old } = self.runs[run as usize].stage else {
            return;
        };
        let step = self.eligible_at(run);
        if step <= self.step + 1 {
            self.make_eligible(requests, run);
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

    pub(super) fn make_eligible(&mut self, requests: &Requests, run: u32) {
        self.unplace(requests, run);
        self.runs[run as usize].stage = Stage::Eligible;
        self.place(requests, run);
    }

    /// What is due by step or time becomes eligible.
    pub(super) fn wake(&mut self, requests: &Requests, now: Time) {
        while let Some(((_, run), ())) = self.due.first().filter(|((at, _), ())| *at <= self.step) {
            self.make_eligible(requests, run);
        }
        while let Some(((_, run), ())) = self.parked.first().filter(|((at, _), ())| *at <= now.0) {
            self.make_eligible(requests, run);
        }
    }

    /// Where a run lies in the sweep of its queue.
    fn place_of(&self, requests: &Requests, number: u32) -> Place {
        let run = &self.runs[number as usize];
        let first = requests.front(&run.requests);
        place(run.start, number, first.expect("a run has requests"))
    }

    /// Puts a run where its stage says.
    pub(super) fn place(&mut self, requests: &Requests, number: u32) {
        let at = self.place_of(requests, number);
        let run = &self.runs[number as usize];
        let queue = run.queue;
        if !run.closed {
            let stream = u64::from(queue);
            self.endpoints
                .insert(stream, run.start, Edge::Start, number);
            self.endpoints.insert(stream, run.end, Edge::End, number);
        }
        match run.stage {
            Stage::Eligible => {
                let entry = &mut self.queues[queue as usize];
                entry.sweep.insert(&mut self.chunks, at);
                let is_next = |next| entry.sweep.is_before(at, next);
                if !entry.moved && entry.next.is_none_or(is_next) {
                    self.set_next(queue, Some(at));
                }
            }
            Stage::Waiting { step } => self.due.insert((step, number), ()),
            Stage::Parked { until } => self.parked.insert((until.0, number), ()),
        }
    }

    pub(super) fn unplace(&mut self, requests: &Requests, number: u32) {
        self.unborder(number);
        let run = &self.runs[number as usize];
        match run.stage {
            Stage::Eligible => {
                let (at, queue) = (self.place_of(requests, number), run.queue);
                let entry = &mut self.queues[queue as usize];
                entry.sweep.remove(&mut self.chunks, at);
                if entry.next == Some(at) {
                    self.find_next(requests, queue);
                }
            }
            Stage::Waiting { step } => _ = self.due.remove(&(step, number)),
            Stage::Parked { until } => _ = self.parked.remove(&(until.0, number)),
        }
    }

    /// Takes a run out for good; the sweep of its queue goes on from here.
    pub(super) fn leave(&mut self, requests: &Requests, number: u32) {
        let at = self.place_of(requests, number);
        let queue = self.runs[number as usize].queue;
        let entry = &mut self.queues[queue as usize];
        if !entry.moved && entry.next == Some(at) {
            entry.sweep.take_next();
            self.unborder(number);
            self.find_next(requests, queue);
            return;
        }
        self.unplace(requests, number);
        let entry = &mut self.queues[queue as usize];
        // A run that is made at the same place is ahead.
        let at = place(start_of(at), run_of(at), 0);
        entry.sweep.jump(&mut self.chunks, at);
        if !entry.moved {
            entry.moved = true;
            self.moved.push(queue);
        }
    }

    fn unborder(&mut self, number: u32) {
        let run = &self.runs[number as usize];
        if !run.closed {
            let stream = u64::from(run.queue);
            self.endpoints
                .remove(stream, run.start, Edge::Start, number);
            self.endpoints.remove(stream, run.end, Edge::End, number);
        }
    }

    pub(super) fn find_next(&mut self, requests: &Requests, queue: u32) {
        let entry = &mut self.queues[queue as usize];
        let (next, second) = entry.sweep.next(&mut self.chunks);
        if let Some(second) = second {
            core::hint::black_box(self.runs[run_of(second) as usize].oldest);
            requests.prefetch(index_of(second));
            self.endpoints.prefetch(u64::from(queue), start_of(second));
        }
        if let Some(next) = next {
            let end = self.runs[run_of(next) as usize].end;
            self.endpoints.prefetch(u64::from(queue), end);
            requests.prefetch_id(index_of(next));
        }
        self.set_next(queue, next);
    }

    pub(super) fn set_next(&mut self, queue: u32, next: Option<Place>) {
        let entry = &mut self.queues[queue as usize];
        let rank = match (self.order, next) {
            (Order::Oldest, Some(next)) => self.runs[run_of(next) as usize].oldest,
            _ => entry.rank,
        };
        match next {
            Some(_) => self.eligible.set(queue, rank),
            None => self.eligible.remove(queue),
        }
        (entry.rank, entry.next) = (rank, next);
    }

    pub(super) fn queue_for(&mut self, request: &Request) -> u32 {
        let found = self.by_file[request.direction as usize].find(request.file.0);
        if found != NONE {
            return found;
        }
        self.ranks += 1;
        let number = self.queues_free.pop().unwrap_or_else(|| {
            self.queues.push(Queue {
                file: 0,
                direction: Direction::Read,
                rank: 0,
                runs: 0,
                sweep: CScan::new(),
                next: None,
                moved: false,
            });
            self.queues.len() as u32 - 1
        });
        let queue = &mut self.queues[number as usize];
        (queue.file, queue.direction) = (request.file.0, request.direction);
        queue.rank = self.ranks;
        self.by_file[request.direction as usize].insert(request.file.0, number);
        number
    }
}
