//! `auto`: one order for all loads, for sites that do not want to choose. What needs least goes
//! first, everywhere, by whatever is known of it.
//!
//! Of an operation its client knows the size: the most bytes of it on one forwarder count, as in
//! `smallest-bottleneck`, and the longest shuffle that follows, as the bytes that a device could
//! move meanwhile. Of a program that sends piece after piece nobody knows what will follow, but
//! what it has had says something: of what each forwarder gave it, on average, the least bytes of
//! the level count, as in `least-attained`. A request needs the larger of both. Needs within one
//! doubling are alike: then applications go one after the other, in the order of `window`. In a
//! window operations whose shuffles leave slack let others pass, as in `hio`.
//!
//! Only whole levels of what was attained count, and they are wide. So programs that run long
//! beside each other need the same, and each has the devices for a part of a window: its reads in
//! order stay in order. `least-attained` shares by the byte there, which costs seeks on disks, and
//! programs of one size end together, at the end. Only how much later a program's window is goes by
//! each doubling: so small operations need not wait for what a large one sent a second before.
//!
//! Where shares are set, who has one gets it as under `two-level`: its weight, its reservation, its
//! limit, its latency target. All others are one flow beside them, with the weights of those that
//! wait, and in it the order above decides. Deadlines and the depth by feedback are there where
//! somebody has a latency target.
//!
//! Adjacent requests become one call where a call itself costs much, or a seek, by the cost model:
//! see `Merge::limit`. Nobody starves: see `later`.

use super::dsfq::{CREDIT_MS, Dsfq, LOCAL_MIN_PERCENT, REPORT_MS, SYNC};
use super::edf::{FEEDBACK, LATENCY_MS};
use super::hio::{Hio, SLACK_PERCENT};
use super::smallest_bottleneck::bottleneck;
use super::two_level::below;
use super::window::{Key, Ranking};
use crate::attained::{Attained, QUIET_MS};
use crate::epochs::{Epochs, ROTATION_SEED, WINDOW_MS};
use crate::later::{LATER_MS_MAX, LATER_MS_PER_MIB, Later};
use crate::options::Options;
use crate::options_error::OptionsError;
use crate::policy::{Bound, Policy, PolicySpec};
use crate::policy_options::OptionSpec;
use crate::turn::TURN_SEEKS;
use crate::types::{Request, Time};
use alloc::boxed::Box;

/// Wide levels: programs that need about the same end later if they get on equally.
const LEVEL_MIB: OptionSpec = OptionSpec::integer(
    "level_mib",
    64,
    [1, 1 << 20],
    "an application that has had less than so many MiB of each forwarder, on average, is in the \
     first level; each further level reaches ten times as far",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "auto",
    options: &[
        CREDIT_MS,
        FEEDBACK,
        LATENCY_MS,
        LATER_MS_MAX,
        LATER_MS_PER_MIB,
        LEVEL_MIB,
        LOCAL_MIN_PERCENT,
        QUIET_MS,
        REPORT_MS,
        ROTATION_SEED,
        SLACK_PERCENT,
        SYNC,
        TURN_SEEKS,
        WINDOW_MS,
    ],
    merges: true,
    keeps_shares: true,
    make,
};

/// The order by what is needed; under shares as the order of those who are promised nothing.
fn make(options: &Options) -> Result<Box<dyn Policy>, OptionsError> {
    let order = Box::new(Hio::new(options, Needs::new(options)));
    if options.shares.promise_nothing() {
        return Ok(order);
    }
    let below = options.shares.have_targets().then(|| below(options));
    Ok(Box::new(Dsfq::beside(options, below, order)))
}

/// A shuffle counts as the bytes that a device of 100 MB/s moves meanwhile. All forwarders must
/// count alike, so what they measured of their devices does not come in.
const SHUFFLE_US_PER_MIB: u64 = 10_000;

/// What requests need.
struct Needs {
    later: Later,
    attained: Attained,
    forwarders: u64,
}

impl Needs {
    fn new(options: &Options) -> Needs {
        Needs {
            later: Later::new(options),
            attained: Attained::new(options),
            forwarders: u64::from(options.shares.forwarders).max(1),
        }
    }
}

impl Ranking for Needs {
    const COUNTS: bool = true;
    const MERGES_BY_COST: bool = true;
    const KEEPS_SHARES: bool = true;

    fn key(&mut self, request: &Request, arrived: Time) -> Key {
        let before = self.attained.came(request, arrived) / self.forwarders;
        let shuffle = (u64::from(request.shuffle_max_us) << 20) / SHUFFLE_US_PER_MIB;
        let own = bottleneck(request).saturating_add(shuffle);
        let ahead = own.max(self.attained.doubling_start(before));
        let window = self.later.window(request, arrived, ahead);
        let needs = own.max(self.attained.level_start(before));
        let rank = self.later.epochs().rank(request.app, window);
        (window, class(needs), rank)
    }

    fn left(&mut self, request: &Request, now: Time) {
        self.attained.left(request, now);
    }

    fn epochs(&self) -> &Epochs {
        self.later.epochs()
    }

    fn bound(&self) -> Bound {
        self.later.bound()
    }
}

/// One class for each doubling. With narrower ones operations of about one size, of which each
/// application has several, would go by size and not by application, and end later.
fn class(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |log| u64::from(log) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::{drain_at, read};
    use crate::{AppId, CostModel, Input, Latency, Output, RequestId, Scheduler, Shares};
    use alloc::vec::Vec;

    const MIB: u64 = 1 << 20;

    /// The scheduler of one of four forwarders.
    fn scheduler() -> Scheduler {
        let mut options = Options::for_policy("auto");
        options.shares.forwarders = 4;
        Scheduler::new(&options).unwrap()
    }

    fn of(app: u64, file: u64, len: u64) -> Request {
        Request {
            app: AppId(app),
            ..read(file, 0, len)
        }
    }

    fn order(scheduler: &mut Scheduler, now_ms: u64, input: &[Request]) -> Vec<u64> {
        let batches = drain_at(scheduler, Time(now_ms * 1_000_000), input);
        batches.into_iter().flatten().collect()
    }

    #[test]
    fn what_needs_least_goes_first_by_size_shuffle_or_what_it_has_had() {
        let sized = |app: u64, largest: u64| Request {
            operation_bytes_max: largest,
            ..of(app, app, 4096)
        };
        let shuffled = Request {
            shuffle_us: 40_000,
            shuffle_max_us: 40_000,
            ..of(3, 3, 4096)
        };
        // 16 MiB; 1 MiB; as long as 4 MiB take; 2.5 GiB of all forwarders, so 640 MiB of each.
        let long = Request {
            bytes_elsewhere: 3 << 30,
            ..of(4, 4, 4096)
        };
        let mut input = [sized(1, 16 * MIB), sized(2, MIB), shuffled, long];
        assert_eq!(order(&mut scheduler(), 10, &input), [1, 2, 0, 3]);
        // The other forwarders have them in another order.
        input.reverse();
        assert_eq!(order(&mut scheduler(), 10, &input), [2, 1, 3, 0]);
    }

    #[test]
    fn programs_that_run_long_are_served_one_after_the_other() {
        let mut scheduler = scheduler();
        // One has had 60 MiB more than the other, which is no level.
        let before = [of(1, 1, 80 * MIB), of(2, 2, 20 * MIB)];
        assert_eq!(order(&mut scheduler, 0, &before).len(), 2);
        let input: Vec<Request> = (0..8).map(|at| of(1 + at % 2, 1 + at, MIB)).collect();
        let order = order(&mut scheduler, 10, &input);
        let apps: Vec<u64> = order.iter().map(|id| input[*id as usize].app.0).collect();
        assert!(apps[..4].iter().all(|app| *app == apps[0]), "{apps:?}");
        assert!(apps[4..].iter().all(|app| *app == apps[4]), "{apps:?}");
    }

    #[test]
    fn who_has_a_share_gets_it_beside_the_order_of_all_others() {
        let mut options = Options::for_policy("auto");
        let own = options.shares.apps.entry(AppId(1)).or_default();
        own.share.weight = 3;
        let mut scheduler = Scheduler::new(&options).unwrap();
        let large = |app: u64| Request {
            operation_bytes_max: 64 * MIB,
            ..of(app, app, MIB)
        };
        let input: Vec<Request> = (0..200)
            .map(|at: u64| {
                let app = [1, 1, 1, 2, 3][at as usize % 5];
                let size = if app == 3 { 8 * MIB } else { 64 * MIB };
                Request {
                    operation_bytes_max: size,
                    offset: at * 2 * MIB,
                    ..large(app)
                }
            })
            .collect();
        let order = order(&mut scheduler, 10, &input);
        let apps: Vec<u64> = order.iter().map(|id| input[*id as usize].app.0).collect();
        // It has three parts of five while both others wait, and three of four then.
        let served = |until: usize, app| apps[..until].iter().filter(|it| **it == app).count();
        assert!(served(60, 1).abs_diff(36) <= 2, "{apps:?}");
        assert_eq!(served(60, 2), 0, "the smaller operation goes first");
        let later = served(140, 1) - served(100, 1);
        assert!(later.abs_diff(30) <= 2, "{apps:?}");
    }

    #[test]
    fn shares_come_and_go_while_requests_wait() {
        let mut scheduler = scheduler();
        let mut shares = scheduler.options().shares.clone();
        let input: Vec<Request> = (0..40).map(|at| of(1 + at % 2, 1 + at % 2, MIB)).collect();
        for (id, request) in (0..).zip(&input) {
            let request = Request {
                id: RequestId(id),
                offset: id * MIB,
                ..*request
            };
            scheduler
                .handle(Time(0), Input::Arrived(request))
                .expect("there is room");
        }
        let mut batch = Vec::new();
        let mut served = |scheduler: &mut Scheduler, count: usize| -> Vec<u64> {
            let one = |_| {
                assert_eq!(scheduler.poll(Time(0), &mut batch), Output::Dispatch);
                for request in &batch {
                    let finished = Input::Finished(request.id);
                    scheduler.handle(Time(0), finished).expect("it ran");
                }
                batch[0].app.0
            };
            (0..count).map(one).collect()
        };
        let first = served(&mut scheduler, 4);
        assert!(first.iter().all(|app| *app == first[0]), "{first:?}");
        let other = 3 - first[0];
        let own = shares.apps.entry(AppId(other)).or_default();
        own.share.weight = 3;
        scheduler
            .set_shares(Time(0), &shares)
            .expect("they are valid");
        let by_shares = served(&mut scheduler, 16);
        let of_other = by_shares.iter().filter(|app| **app == other).count();
        assert!(of_other.abs_diff(12) <= 1, "{by_shares:?}");
        shares.apps.clear();
        scheduler
            .set_shares(Time(0), &shares)
            .expect("they are valid");
        let last = served(&mut scheduler, 20);
        assert!(
            last.is_sorted() || last.is_sorted_by(|a, b| a >= b),
            "{last:?}"
        );
    }

    #[test]
    fn who_waits_here_when_shares_change_makes_no_difference_to_others() {
        let order_of = |first_waits: bool| {
            let mut scheduler = scheduler();
            let mut shares = scheduler.options().shares.clone();
            shares.apps.entry(AppId(9)).or_default();
            let set = |scheduler: &mut Scheduler, shares: &Shares| {
                let set = scheduler.set_shares(Time(0), shares);
                set.expect("they are valid");
            };
            set(&mut scheduler, &shares);
            // It has had 4 GiB of all forwarders.
            let long = Request {
                bytes_elsewhere: 4 << 30,
                ..of(3, 3, MIB)
            };
            assert_eq!(order(&mut scheduler, 0, &[long]), [0]);
            if first_waits {
                let waits = Request {
                    id: RequestId(100),
                    ..of(1, 1, MIB)
                };
                scheduler
                    .handle(Time(0), Input::Arrived(waits))
                    .expect("there is room");
            }
            shares.apps.entry(AppId(1)).or_default();
            set(&mut scheduler, &shares);
            let mut order = order(&mut scheduler, 10, &[of(3, 3, MIB), of(4, 4, 2 * MIB)]);
            order.retain(|id| *id != 100);
            order
        };
        assert_eq!(order_of(true), [1, 0]);
        assert_eq!(order_of(false), [1, 0]);
    }

    #[test]
    fn what_was_had_counts_by_what_each_forwarder_gave() {
        let mut options = Options::for_policy("auto");
        options.shares.forwarders = 1024;
        let first = |long: u64| {
            let mut scheduler = Scheduler::new(&options).unwrap();
            let input = [1, 2].map(|app| Request {
                bytes_elsewhere: if app == long { 300 * MIB } else { 0 },
                ..of(app, app, 65_536)
            });
            order(&mut scheduler, 0, &input);
            let input = [of(1, 1, 65_536), of(2, 2, 65_536)];
            order(&mut scheduler, 10, &input)[0]
        };
        // A third of a MiB of each is not much, so both stand in the order of the window.
        assert_eq!(first(1), first(2));
    }

    #[test]
    fn what_waits_long_gives_way_by_what_its_program_has_had() {
        let mut scheduler = scheduler();
        let mut arrive = |id: u64, ms: u64, request: Request| {
            let request = Request {
                id: RequestId(id),
                ..request
            };
            let arrived = scheduler.handle(Time(ms * 1_000_000), Input::Arrived(request));
            arrived.expect("there is room");
        };
        // It has had 500 MiB of each forwarder when its second request comes.
        let large = Request {
            bytes_elsewhere: 2000 * MIB,
            ..of(1, 1, MIB)
        };
        arrive(0, 0, large);
        arrive(1, 0, of(1, 2, MIB));
        // A window later, and two.
        arrive(2, 1000, of(2, 3, MIB));
        arrive(3, 2000, of(2, 4, MIB));
        let mut batch = Vec::new();
        let now = Time(2_000_000_000);
        assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
        let ended = scheduler.handle(now, Input::Finished(batch[0].id));
        ended.expect("it ran");
        assert_eq!(batch[0].id, RequestId(2));
        assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
        assert_eq!(batch[0].id, RequestId(3));
    }

    #[test]
    fn requests_become_one_call_where_calls_cost_much() {
        let row: Vec<Request> = (0..8)
            .map(|at| Request {
                offset: at * 65_536,
                len: 65_536,
                ..of(1, 1, 0)
            })
            .collect();
        let disk = CostModel::default();
        let calls = |base_ns: u64, elsewhere_ns: u64, share: Option<Option<Latency>>| {
            let mut options = Options::for_policy("auto");
            let cost = &mut options.cost;
            cost.read_sequential.base_ns = base_ns;
            cost.write_sequential.base_ns = base_ns;
            cost.read_random.base_ns = elsewhere_ns;
            cost.write_random.base_ns = elsewhere_ns;
            if let Some(latency) = share {
                let own = options.shares.apps.entry(AppId(1)).or_default();
                own.share.latency = latency;
            }
            let mut scheduler = Scheduler::new(&options).unwrap();
            drain_at(&mut scheduler, Time(0), &row).len()
        };
        // At 10 ms for a MiB a request takes 0.6 ms.
        let base_ns = disk.read_sequential.base_ns;
        assert_eq!(calls(base_ns, base_ns, None), 8, "0.1 ms wherever it is");
        assert_eq!(calls(400_000, 400_000, None), 4, "two take 1.2 ms");
        assert_eq!(calls(6_000_000, 6_000_000, None), 1);
        // Where a seek takes 8 ms, two take less than a sixth of that, and six less than half.
        let elsewhere_ns = disk.read_random.base_ns;
        assert_eq!(calls(base_ns, elsewhere_ns, None), 4);
        assert_eq!(calls(base_ns, elsewhere_ns, Some(None)), 2);
        // Who is promised a time does not wait for that.
        let latency = Latency {
            ns: 1_000_000_000,
            percentile: 95,
        };
        assert_eq!(calls(base_ns, elsewhere_ns, Some(Some(latency))), 8);
    }
}
