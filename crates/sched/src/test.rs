//! What several tests of this crate need: short requests, and a host that runs a queue empty.

use crate::types::{AppId, Direction, FileId, Input, Output, Request, RequestId, Time};
use crate::{AccessCost, CostModel, Options, PolicyOptions, Scheduler};
use std::vec::Vec;

/// A read of `file`.
pub(crate) fn read(file: u64, offset: u64, len: u64) -> Request {
    Request::new(
        RequestId(0),
        AppId(0),
        FileId(file),
        Direction::Read,
        offset,
        len,
    )
}

/// A write of `file`.
pub(crate) fn write(file: u64, offset: u64, len: u64) -> Request {
    Request {
        direction: Direction::Write,
        ..read(file, offset, len)
    }
}

/// Options of a policy with quanta of 1000 bytes, on a device that takes a nanosecond for a byte
/// and nothing else.
pub(crate) fn quantum_counts_bytes(policy: &str) -> Options {
    let free = AccessCost {
        base_ns: 0,
        ns_per_mib: 1 << 20,
    };
    Options {
        cost: CostModel {
            read_random: free,
            write_random: free,
            ..CostModel::default()
        },
        table: PolicyOptions::default().with("quantum_bytes", 1000),
        ..Options::for_policy(policy)
    }
}

/// See `drain_at`.
pub(crate) fn drain(scheduler: &mut Scheduler, input: &[Request]) -> Vec<Vec<u64>> {
    drain_at(scheduler, Time(0), input)
}

/// Hands in all requests, numbered from 0, at one time; then runs one batch after the other.
/// Returns the ids of each batch.
pub(crate) fn drain_at(scheduler: &mut Scheduler, now: Time, input: &[Request]) -> Vec<Vec<u64>> {
    for (id, request) in (0..).zip(input) {
        let request = Request {
            id: RequestId(id),
            ..*request
        };
        scheduler.handle(now, Input::Arrived(request)).unwrap();
    }
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    while scheduler.poll(now, &mut batch) == Output::Dispatch {
        batches.push(batch.iter().map(|request| request.id.0).collect());
        for request in &batch {
            scheduler.handle(now, Input::Finished(request.id)).unwrap();
        }
    }
    assert_eq!((scheduler.queued(), scheduler.running()), (0, 0));
    batches
}

/// Numbers that look random and follow from a seed (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(crate::mix64(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }

    /// True in `percent` of the cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
