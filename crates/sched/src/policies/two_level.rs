//! The two-level scheduler of the position paper of vPFS: shares above, as in `dsfq`, and deadlines
//! below, as in `edf`.
//!
//! The rules are at the head of `dsfq`, the control of the depth is in `depth`.

use super::dsfq::{Below, CREDIT_MS, Dsfq, LOCAL_MIN_PERCENT, REPORT_MS, SYNC};
use super::edf::{self, FEEDBACK, LATENCY_MS};
use crate::options::Options;
use crate::policy::PolicySpec;
use crate::turn::TURN_SEEKS;
use alloc::boxed::Box;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "two-level",
    options: &[
        CREDIT_MS,
        FEEDBACK,
        LATENCY_MS,
        LOCAL_MIN_PERCENT,
        REPORT_MS,
        SYNC,
        TURN_SEEKS,
    ],
    merges: false,
    keeps_shares: true,
    make: |options| Ok(Box::new(Dsfq::new(options, Some(below(options))))),
};

/// Deadlines below the shares, by the options.
pub(super) fn below(options: &Options) -> Below {
    let default = edf::default_latency(options);
    Below {
        default,
        feedback: edf::feedback(options, default),
        work: options.cost,
    }
}

#[cfg(test)]
mod tests {
    use crate::test::read;
    use crate::{
        AppId, Input, Latency, Options, Output, PolicyOptions, Request, RequestId, Scheduler, Time,
    };
    use std::collections::BinaryHeap;
    use std::vec::Vec;

    /// The median of the requests that run, in the second half of 40 s, on a device with so many
    /// channels that takes 3 to 5 ms for each. So many requests are here all the time, and no
    /// target can be kept. The scheduler learns what requests cost.
    fn settles(channels: usize, requests: u64) -> usize {
        let options = Options {
            depth: 64,
            table: PolicyOptions::default().with("latency_ms", 1u64),
            ..Options::for_policy("two-level")
        };
        let mut scheduler = Scheduler::new(&options).expect("they are valid");
        let (mut now, mut next, mut batch) = (Time(0), 0, Vec::new());
        // The ends of the requests in the device, the first on top; and when channels are free.
        let mut device = BinaryHeap::new();
        let mut free = std::vec![0; channels];
        let mut seen = Vec::new();
        let mut arrive = |scheduler: &mut Scheduler, now| {
            next += 1;
            let request = Request {
                id: RequestId(next),
                app: AppId(1),
                ..read(1, next * 8192, 4096)
            };
            scheduler
                .handle(now, Input::Arrived(request))
                .expect("there is room");
        };
        (0..requests).for_each(|_| arrive(&mut scheduler, now));
        while now < Time(40_000_000_000) {
            while scheduler.poll(now, &mut batch) == Output::Dispatch {
                for request in batch.drain(..) {
                    let channel = (0..channels)
                        .min_by_key(|at| free[*at])
                        .expect("there is one");
                    let takes = 3_000_000 + request.id.0 * 7919 % 2000 * 1000;
                    free[channel] = free[channel].max(now.0) + takes;
                    device.push((core::cmp::Reverse(free[channel]), request.id));
                }
            }
            seen.push(device.len());
            let (core::cmp::Reverse(end), id) = device.pop().expect("something runs");
            now = Time(end);
            scheduler.handle(now, Input::Finished(id)).expect("it ran");
            arrive(&mut scheduler, now);
        }
        let half = seen.len() / 2;
        seen[half..].sort_unstable();
        seen[half + half / 2]
    }

    #[test]
    fn no_more_calls_than_channels_though_costs_are_learned() {
        for channels in [4, 8, 16] {
            for requests in [40, 80, 256] {
                let depth = settles(channels, requests);
                assert_eq!(depth, channels, "{requests} requests");
            }
        }
    }

    #[test]
    fn a_turn_ends_when_somebody_else_with_a_target_waits() {
        let mut options = Options {
            table: PolicyOptions::default().with("feedback", "off"),
            ..Options::for_policy("two-level")
        };
        let mut scheduler = Scheduler::new(&options).expect("they are valid");
        let (mut next, mut batch) = (0, Vec::new());
        let mut arrive = |scheduler: &mut Scheduler, app: u64| {
            next += 1;
            let request = Request {
                id: RequestId(next),
                app: AppId(app),
                ..read(app, next * 8192, 4096)
            };
            let arrived = scheduler.handle(Time(0), Input::Arrived(request));
            arrived.expect("there is room");
        };
        let mut serve = |scheduler: &mut Scheduler| {
            assert_eq!(scheduler.poll(Time(0), &mut batch), Output::Dispatch);
            let ended = scheduler.handle(Time(0), Input::Finished(batch[0].id));
            ended.expect("it ran");
            batch[0].app.0
        };
        (0..40).for_each(|at| arrive(&mut scheduler, 1 + at % 2));
        let served: Vec<u64> = (0..18).map(|_| serve(&mut scheduler)).collect();
        assert_eq!(
            served[..16],
            [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
        );
        // The third application has no target yet.
        (0..9).for_each(|_| arrive(&mut scheduler, 3));
        assert_eq!(serve(&mut scheduler), served[17]);
        let latency = Some(Latency {
            ns: 1_000_000_000,
            percentile: 95,
        });
        let third = options.shares.apps.entry(AppId(3)).or_default();
        third.share.latency = latency;
        let set = scheduler.set_shares(Time(0), &options.shares);
        set.expect("they are valid");
        // The second one is the next by its share. The third one's own turn goes on beside those
        // without a target.
        let served: Vec<u64> = (0..4).map(|_| serve(&mut scheduler)).collect();
        assert_eq!(served, [2, 3, 3, 3]);
    }
}
