//! Smallest bottleneck first: the operation that needs least of the forwarder that it needs most
//! of goes first, everywhere.
//!
//! Operations that are spread over forwarders are *coflows*, or the orders of a *concurrent open
//! shop*: one is done when its last part is. The mean of their completion times is small if all
//! forwarders serve them in one order, the small ones first. Ordering by the largest part (SEBF in
//! the literature on coflows: Chowdhury et al., SIGCOMM'14) needs nothing but what each request
//! carries: `operation_bytes_max`, the most bytes of its operation on one forwarder. A request
//! without that counts with its own length.
//!
//! Sizes are in classes, four for each doubling, and in a class one application goes after the
//! other, as in `window`. So operations of one size are in the order of `window`.
//!
//! Nobody starves: see `later`. A client that says too little of its operation is sooner by at
//! most `later_ms_max` than it would be otherwise.

use super::window::{Key, Ranking, Window};
use crate::epochs::{Epochs, ROTATION_SEED, WINDOW_MS};
use crate::later::{LATER_MS_MAX, LATER_MS_PER_MIB, Later};
use crate::options::Options;
use crate::policy::{Bound, PolicySpec};
use crate::types::{Request, Time};
use alloc::boxed::Box;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "smallest-bottleneck",
    options: &[LATER_MS_MAX, LATER_MS_PER_MIB, ROTATION_SEED, WINDOW_MS],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(Window::new(options, Bottlenecks::new(options)))),
};

struct Bottlenecks {
    later: Later,
}

impl Bottlenecks {
    fn new(options: &Options) -> Bottlenecks {
        Bottlenecks {
            later: Later::new(options),
        }
    }
}

impl Ranking for Bottlenecks {
    fn key(&mut self, request: &Request, arrived: Time) -> Key {
        let bytes = bottleneck(request);
        let window = self.later.window(request, arrived, bytes);
        let rank = self.later.epochs().rank(request.app, window);
        (window, class(bytes), rank)
    }

    fn epochs(&self) -> &Epochs {
        self.later.epochs()
    }

    fn bound(&self) -> Bound {
        self.later.bound()
    }
}

/// The most bytes of a request's operation on one forwarder.
pub(super) fn bottleneck(request: &Request) -> u64 {
    match request.len {
        // It changes the file as a whole, and moves no bytes.
        u64::MAX => 0,
        len => request.operation_bytes_max.max(len),
    }
}

/// Four classes for each doubling.
pub(super) fn class(bytes: u64) -> u64 {
    match bytes.checked_ilog2() {
        Some(log @ 2..) => u64::from(log) * 4 + (bytes >> (log - 2)) % 4,
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::{drain_at, read};
    use crate::{AppId, Input, Output, RequestId, Scheduler};
    use std::vec::Vec;

    const WALL: u64 = 1_700_000_000_000_000_000;
    const MIB: u64 = 1 << 20;

    fn scheduler() -> Scheduler {
        Scheduler::new(&Options {
            wall_offset_ns: WALL,
            ..Options::for_policy("smallest-bottleneck")
        })
        .unwrap()
    }

    /// A part of an operation of `app` that began `stamp_ms` after the wall clock's offset.
    fn part(app: u64, stamp_ms: u64, largest: u64) -> Request {
        Request {
            app: AppId(app),
            stamp_ns: WALL + stamp_ms * 1_000_000,
            operation_bytes_max: largest,
            ..read(app, 0, 4096)
        }
    }

    fn order(now_ms: u64, input: &[Request]) -> Vec<u64> {
        let batches = drain_at(&mut scheduler(), Time(now_ms * 1_000_000), input);
        batches.into_iter().flatten().collect()
    }

    #[test]
    fn classes_ascend_with_bytes_and_join_what_is_alike() {
        let bytes =
            (0..64).chain((6..63).flat_map(|log| [1 << log, (1 << log) + 1, 3 << (log - 1)]));
        let classes: Vec<u64> = bytes.map(class).collect();
        assert!(classes.is_sorted(), "{classes:?}");
        assert_eq!(class(1 << 20), class((5 << 18) - 1));
        assert_ne!(class(1 << 20), class(5 << 18));
        assert!(class(u64::MAX) > class(1 << 62));
    }

    #[test]
    fn two_servers_agree_and_the_smallest_largest_part_goes_first() {
        // The second forwarder has the parts in another order, and small ones of large operations.
        let mut input = [
            part(1, 10, 64 * MIB),
            part(2, 20, MIB),
            part(3, 30, 8 * MIB),
            part(4, 40, 0),
        ];
        assert_eq!(order(50, &input), [3, 1, 2, 0]);
        input.reverse();
        assert_eq!(order(50, &input), [0, 2, 1, 3]);
    }

    #[test]
    fn equal_operations_go_by_application() {
        let input: Vec<_> = (0..12).map(|i| part(i % 3, 10 + i, 4 * MIB + i)).collect();
        let apps: Vec<u64> = order(50, &input).iter().map(|id| id % 3).collect();
        assert!(
            apps.chunks(4)
                .all(|one| one.iter().all(|app| *app == one[0])),
            "{apps:?}"
        );
    }

    #[test]
    fn a_small_one_passes_a_checkpoint_that_began_seconds_before() {
        // 1 GiB at 10 ms for a MiB: ten seconds later.
        let checkpoint = part(1, 0, 1024 * MIB);
        let mut scheduler = scheduler();
        let mut batch = Vec::new();
        let mut arrive = |at_ms: u64, request: Request, id: u64| {
            let request = Request {
                id: RequestId(id),
                ..request
            };
            scheduler
                .handle(Time(at_ms * 1_000_000), Input::Arrived(request))
                .unwrap();
        };
        arrive(0, checkpoint, 0);
        arrive(9000, part(2, 9000, MIB), 1);
        arrive(12_000, part(2, 12_000, MIB), 2);
        let mut picked = Vec::new();
        for _ in 0..3 {
            let now = Time(12_000_000_000);
            assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
            picked.push(batch[0].id.0);
            scheduler.handle(now, Input::Finished(batch[0].id)).unwrap();
        }
        // What comes after the time that it takes itself does not pass it.
        assert_eq!(picked, [1, 0, 2]);
    }
}
