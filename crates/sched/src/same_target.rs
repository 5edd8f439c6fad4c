//! The requests with one latency target: how long they waited, and how long the device took.

use crate::share::Latency;
use crate::types::Time;
use alloc::vec::Vec;

/// After an interval what was measured before counts for so many eighths.
pub(crate) const KEPT: u64 = 6;

/// What one request counts in a histogram, so that its eighths are whole numbers.
pub(crate) const COUNT: u32 = 64;

/// Classes that have had no request for so long are forgotten.
const FORGOTTEN_NS: u64 = 16_000_000_000;

/// Steps of an octave in the histogram of times, and all its steps.
const STEPS: usize = 8;
const TIMES: usize = 64 * STEPS;

/// The requests with one target.
pub(crate) struct Class {
    pub(crate) target: Latency,
    pub(crate) overloaded: bool,
    pub(crate) queued: u64,
    pub(crate) running: u64,
    /// The histogram of times in the device, each divided by the batches that ran beside it, of the
    /// requests that finished; their number and sum.
    slots: Vec<u32>,
    pub(crate) done: u64,
    slots_ns: u64,
    /// Times in the queue, of the requests that were dispatched: sum and count.
    waited_ns: u64,
    went: u64,
    /// When its last request arrived.
    pub(crate) came_at: Time,
}

impl Class {
    pub(crate) fn new(target: Latency, came_at: Time) -> Class {
        Class {
            target,
            overloaded: false,
            queued: 0,
            running: 0,
            slots: alloc::vec![0; TIMES],
            done: 0,
            slots_ns: 0,
            waited_ns: 0,
            went: 0,
            came_at,
        }
    }

    /// One of its requests was dispatched after that time in the queue.
    pub(crate) fn waited(&mut self, ns: u64) {
        self.went += u64::from(COUNT);
        let ns = ns.saturating_mul(COUNT.into());
        self.waited_ns = self.waited_ns.saturating_add(ns);
    }

    /// One of its requests finished, after that time in the device for each batch that ran.
    pub(crate) fn took(&mut self, slot_ns: u64) {
        let count = &mut self.slots[step_of(slot_ns)];
        *count = count.saturating_add(COUNT);
        self.done += u64::from(COUNT);
        let ns = slot_ns.saturating_mul(COUNT.into());
        self.slots_ns = self.slots_ns.saturating_add(ns);
    }

    /// The mean time in the queue.
    pub(crate) fn mean_wait_ns(&self) -> u64 {
        self.waited_ns.checked_div(self.went).unwrap_or(0)
    }

    /// Whether its requests spend most of their target in the queue.
    pub(crate) fn is_late(&self) -> bool {
        self.done > 0 && self.mean_wait_ns() > self.target.ns / 2
    }

    /// Whether it has no requests, and had none for long.
    pub(crate) fn is_idle(&self, now: Time) -> bool {
        let passed_ns = now.0.saturating_sub(self.came_at.0);
        self.queued == 0 && self.running == 0 && passed_ns >= FORGOTTEN_NS
    }

    /// Lets what was measured count less.
    pub(crate) fn fade(&mut self) {
        self.done = 0;
        for count in &mut self.slots {
            *count = (u64::from(*count) * KEPT / 8) as u32;
            self.done += u64::from(*count);
        }
        self.slots_ns = (u128::from(self.slots_ns) * u128::from(KEPT) / 8) as u64;
        self.waited_ns /= 2;
        self.went /= 2;
    }

    /// The mean time in the device for each batch that ran.
    pub(crate) fn mean_ns(&self) -> u64 {
        (self.slots_ns / self.done.max(1)).max(1)
    }

    /// The target's percentile of those times, to within an eighth.
    pub(crate) fn slot_ns(&self) -> u64 {
        let wanted = (self.done * u64::from(self.target.percentile)).div_ceil(100);
        let mut count = 0;
        for (step, slots) in self.slots.iter().enumerate() {
            count += u64::from(*slots);
            if count >= wanted {
                return time_of(step);
            }
        }
        u64::MAX
    }
}

/// The step of a time in the histogram: eight for each power of two.
fn step_of(ns: u64) -> usize {
    let octave = ns.max(8).ilog2() as usize;
    (octave * STEPS) + ((ns.max(8) >> (octave - 3)) & 7) as usize
}

/// The time in the middle of a step.
fn time_of(step: usize) -> u64 {
    let (octave, eighth) = ((step / STEPS).max(3), (step % STEPS) as u64);
    ((8 + eighth) << (octave - 3)) + (1 << (octave - 3)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_bits() {
        for ns in [8, 9, 1000, 123_456_789, u64::MAX >> 1] {
            let again = time_of(step_of(ns));
            assert!(again.abs_diff(ns) <= ns / 8 + 1, "{ns} became {again}");
        }
        assert!(step_of(u64::MAX) < TIMES && step_of(0) < TIMES);
    }
}
