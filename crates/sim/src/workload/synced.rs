//! A program that calls fsync on each file that it wrote before it ends, as IOR does with `-e`.

use crate::rng::Rng;
use crate::world::{Program, Step};
use std::collections::BTreeSet;
use tidegate_sched::Direction;

/// Another program, and the fsyncs behind it.
pub(crate) struct Synced {
    program: Box<dyn Program>,
    /// Files that were written and not synced.
    written: BTreeSet<u64>,
    /// Whether the other program has ended.
    ended: bool,
}

impl Synced {
    /// Has a program call fsync before it ends.
    pub(crate) fn new(program: Box<dyn Program>) -> Synced {
        Synced {
            program,
            written: BTreeSet::new(),
            ended: false,
        }
    }
}

impl Program for Synced {
    fn next(&mut self, rng: &mut Rng) -> Step {
        if !self.ended {
            let step = self.program.next(rng);
            match &step {
                Step::Call(access) | Step::Issue(access) | Step::Timed { access, .. }
                    if access.direction == Direction::Write =>
                {
                    self.written.insert(access.file);
                }
                Step::Exit => {
                    self.ended = true;
                    return Step::Drain(0);
                }
                _ => {}
            }
            return step;
        }
        match self.written.pop_first() {
            Some(file) => Step::Sync(file),
            None => Step::Exit,
        }
    }
}
