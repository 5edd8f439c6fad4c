//! The program of a process that makes its calls on its own, in a closed loop or at given times.

use super::pace::Pace;
use super::pattern::Pattern;
use super::shuffles::Place;
use crate::rng::Rng;
use crate::world::{Access, Program, Step};
use std::ops::Range;
use std::sync::Arc;

/// What the processes of one application have in common.
pub(super) struct Load {
    pub(super) pattern: Box<dyn Pattern>,
    /// Of the application.
    pub(super) seed: u64,
    pub(super) place: Place,
    pub(super) pace: Pace,
    pub(super) processes: u32,
    /// Before which operations the time between operations passes.
    pub(super) thinks: Range<u64>,
    /// Bytes of a call, for the times of calls.
    pub(super) request: u64,
}

/// Where in an operation a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pause,
    Begin,
    Room,
    Call,
    Drain,
    End,
    Barrier,
}

/// One process.
pub(super) struct Calls {
    load: Arc<Load>,
    rank: u32,
    operation: u64,
    call: u64,
    stage: Stage,
    /// With calls at given times, ns after the program's start.
    clock_ns: u64,
    /// When the next call is due, if it waits for answers, and until when it is made.
    due_ns: (u64, u64),
}

impl Calls {
    pub(super) fn new(load: Arc<Load>, rank: u32) -> Calls {
        Calls {
            load,
            rank,
            operation: 0,
            call: 0,
            stage: Stage::Pause,
            clock_ns: 0,
            due_ns: (0, 0),
        }
    }

    /// The time until the next operation, ns.
    fn pause(&mut self, rng: &mut Rng) -> u64 {
        let load = &self.load;
        if load.pace.timed_by().is_none() {
            return match load.thinks.contains(&self.operation) {
                true => load.pace.think(rng),
                false => 0,
            };
        }
        let processes = u64::from(load.processes);
        let number = self.operation * processes + u64::from(self.rank);
        let calls = load.pattern.operations() * processes;
        let (count, request) = (load.processes, load.request);
        let due = load.pace.due_ns(number, count, calls, request);
        let due = due.saturating_add(rng.below(load.pace.jitter.0 + 1));
        if load.pace.waits {
            let gap = load.pace.gap_ns(number, count, calls, request);
            self.due_ns = (due, due.saturating_add(gap));
            return 0;
        }
        // Issuing takes no time, so pauses add up to the time since the start.
        let pause = due.saturating_sub(self.clock_ns);
        self.clock_ns += pause;
        pause
    }

    fn access(&mut self) -> Access {
        let (rank, operation) = (self.rank, self.operation);
        let pattern = &self.load.pattern;
        let access = Access {
            file: pattern.file(rank, operation),
            direction: pattern.direction(operation),
            extents: pattern.call(rank, operation, self.call),
            part: None,
        };
        self.call += 1;
        self.stage = Stage::Room;
        if self.call >= pattern.calls(rank, operation) {
            self.call = 0;
            self.stage = Stage::Drain;
        }
        access
    }

    /// The step of this stage, if it has one, after moving on to the next stage.
    fn step(&mut self, rng: &mut Rng) -> Option<Step> {
        let pace = self.load.pace;
        // What all processes do together is an operation of the application.
        let marks = pace.barrier;
        let closed = pace.timed_by().is_none();
        let (next, step) = match self.stage {
            Stage::Pause => {
                let pause = self.pause(rng);
                (Stage::Begin, (pause > 0).then_some(Step::Think(pause)))
            }
            Stage::Begin => (Stage::Room, marks.then_some(Step::Begin(self.operation))),
            Stage::Room => {
                let waits = closed && pace.runs_ahead();
                (Stage::Call, waits.then(|| Step::Drain(pace.in_flight - 1)))
            }
            Stage::Call => {
                let access = self.access();
                let step = match pace.between(self.due_ns) {
                    Some((at_ns, until_ns)) => Step::Timed {
                        at_ns,
                        until_ns,
                        access,
                    },
                    None if pace.runs_ahead() => Step::Issue(access),
                    None => Step::Call(access),
                };
                (self.stage, Some(step))
            }
            Stage::Drain => {
                let waits = marks && pace.runs_ahead();
                (Stage::End, waits.then_some(Step::Drain(0)))
            }
            Stage::End => (Stage::Barrier, marks.then_some(Step::End(self.operation))),
            Stage::Barrier => {
                self.operation += 1;
                (Stage::Pause, pace.barrier.then_some(Step::Barrier))
            }
        };
        self.stage = next;
        step
    }
}

impl Program for Calls {
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
