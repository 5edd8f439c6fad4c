//! A cache of attributes at a client, as the kernel of a mount's node has one: it takes in some
//! answers late, and it is cleared after a while.

use super::plan::LoanMutant;
use std::collections::BTreeMap;
use tidegate_client::Answer;
use tidegate_client::wire::{Attr, Handle, Op, Outcome};

/// See the head of the file.
#[derive(Default)]
pub(super) struct AttrCache {
    entries: BTreeMap<Handle, (Attr, u64)>,
    /// Answers that it will take in, and when, with the time for which they last then.
    late: Vec<(u64, Attr, u64)>,
    /// What is to be cleared: when, the core's number, the files.
    clearing: Vec<(u64, u64, Vec<Handle>)>,
    taken_in: u64,
    mutant: Option<LoanMutant>,
}

impl AttrCache {
    /// A cache that does what the mutant says.
    pub(super) fn without(mutant: Option<LoanMutant>) -> AttrCache {
        AttrCache {
            mutant,
            ..AttrCache::default()
        }
    }

    /// The answer to an operation, if the cache has it.
    pub(super) fn answer(&self, now: u64, op: &Op) -> Option<Outcome> {
        let Op::Getattr { handle } = op else {
            return None;
        };
        let (attr, until) = self.entries.get(handle)?;
        (now < *until).then_some(Outcome::Attr(*attr))
    }

    /// Takes in an answer, soon or late.
    pub(super) fn take_in(&mut self, now: u64, answer: &Answer) {
        let Outcome::Attr(attr) = answer.outcome else {
            return;
        };
        if answer.lasts_ns == 0 {
            return;
        }
        self.taken_in += 1;
        let delay = match pick(self.taken_in) {
            0..=11 => 0,
            12..=14 => 5_000_000,
            _ => 900_000_000,
        };
        self.late.push((now + delay, attr, answer.lasts_ns));
    }

    /// The core asks to clear it of these files.
    pub(super) fn invalidate(&mut self, now: u64, number: u64, files: Vec<Handle>) {
        // Of answers that come later than they last, a cache that is cleared late as well would be
        // old: docs/semantics.md names it.
        let late = self
            .late
            .iter()
            .any(|(_, attr, _)| files.contains(&attr.handle));
        let delay = match pick(number) {
            _ if late || self.mutant == Some(LoanMutant::KeptInCache) => 0,
            0..=9 => 10_000,
            10..=13 => 3_000_000,
            14 => 80_000_000,
            _ => 1_500_000_000,
        };
        self.clearing.push((now + delay, number, files));
    }

    /// Does what is due; returns the numbers of what was cleared.
    pub(super) fn run(&mut self, now: u64) -> Vec<u64> {
        let due = self.late.extract_if(.., |(at, ..)| *at <= now);
        for (at, attr, lasts) in due.collect::<Vec<_>>() {
            self.entries.insert(attr.handle, (attr, at + lasts));
        }
        let due = self.clearing.extract_if(.., |(at, ..)| *at <= now);
        let due: Vec<_> = due.collect();
        for (_, _, files) in &due {
            if self.mutant != Some(LoanMutant::KeptInCache) {
                self.entries.retain(|file, _| !files.contains(file));
                self.late
                    .retain(|(_, attr, _)| !files.contains(&attr.handle));
            }
        }
        due.into_iter().map(|(_, number, _)| number).collect()
    }

    /// When something is due, ns.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let late = self.late.iter().map(|(at, ..)| *at);
        late.chain(self.clearing.iter().map(|(at, ..)| *at)).min()
    }
}

/// One of 16, as if by chance.
fn pick(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60
}
