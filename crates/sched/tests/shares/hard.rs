//! Promises that cannot be kept together, clients that lie, and shares that change often.

use crate::world::{BYTES, Client, MS, SECOND, World, options};
use crate::{promised, weight};
use tidegate_sched::{AccessCost, AppId, AppShare, CostModel, Rate, Share, Time};

fn minimum(min: Rate) -> Share {
    Share {
        min: Some(min),
        ..Share::default()
    }
}

fn member(share: Share) -> AppShare {
    AppShare {
        share,
        group: Some(0),
    }
}

#[test]
fn a_minimum_that_is_impossible_starves_nobody() {
    for policy in ["dsfq", "two-level"] {
        // The first and the second in a group, or all by themselves.
        for in_group in [false, true] {
            let greedy = minimum(Rate::Bytes(1_000_000_000_000));
            let mut options = options(policy, 1, &[(1, greedy)]);
            if in_group {
                options.shares.groups = vec![weight(1)];
                options.shares.apps.insert(AppId(1), member(greedy));
                options.shares.apps.insert(AppId(2), member(weight(1)));
            }
            let clients = [1, 2, 3].map(|app| Client::new(app, 8, &[0]));
            let mut world = World::new(&options, &clients);
            world.run(60 * SECOND);
            for app in [2, 3] {
                for from in (0..60).step_by(5) {
                    let got = world.share(app, from * SECOND, (from + 5) * SECOND, None);
                    assert!(got > 0, "{policy}, {in_group}: {app} nothing from {from} s");
                }
            }
            let greedy = world.share(1, 0, 60 * SECOND, None);
            assert!(
                greedy >= 57 * SECOND,
                "{policy}: {} ms of 60 s",
                greedy / MS
            );
        }
    }
}

#[test]
fn turns_are_of_weights_and_reservations_have_none() {
    // A disk on which 18 of the 20 ms of a request are the seek, so a turn has 8 requests. What
    // three are promised adds up to a third of it.
    let bytes = |base_ns| AccessCost {
        base_ns,
        ns_per_mib: 2 * MS * (1 << 20) / BYTES,
    };
    let cost = CostModel {
        read_random: bytes(18 * MS),
        read_sequential: bytes(0),
        write_random: bytes(18 * MS),
        write_sequential: bytes(0),
    };
    for policy in ["dsfq", "two-level"] {
        let tenth = |app| (app, minimum(Rate::Device(100)));
        let mut options = options(policy, 1, &[tenth(1), tenth(2), tenth(3)]);
        options.cost = cost;
        let clients = [1, 2, 3, 4].map(|app| Client::new(app, 8, &[0]));
        let mut world = World::new(&options, &clients);
        world.run(60 * SECOND);
        let all: u64 = (1..5)
            .map(|app| world.share(app, 0, 60 * SECOND, None))
            .sum();
        let got = world.share(4, 0, 60 * SECOND, None);
        assert!(
            got * 5 > all,
            "{policy}: {} % without a promise",
            got * 100 / all
        );
    }
}

#[test]
fn a_group_is_as_urgent_as_its_first_request() {
    // Two in a group take turns, so it always waits; beside it one that is promised as much.
    let mut options = options("two-level", 1, &[(3, promised(50_000_000, 1000))]);
    options.shares.groups = vec![promised(50_000_000, 1000)];
    for app in [1, 2] {
        options.shares.apps.insert(AppId(app), member(weight(1)));
    }
    let clients = [1, 2, 3].map(|app| Client::new(app, 1, &[0]));
    let mut world = World::new(&options, &clients);
    world.run(20 * SECOND);
    let [one, two, other] = [1, 2, 3].map(|app| world.share(app, 0, 20 * SECOND, None));
    assert!(
        other * 4 >= one + two,
        "the group {} ms, the other {} ms",
        (one + two) / MS,
        other / MS
    );
}

#[test]
fn a_limit_that_was_far_too_low_is_forgotten_when_it_is_changed() {
    for policy in ["dsfq", "two-level"] {
        let limited = |rate| Share {
            min: Some(Rate::Bytes(rate)),
            max: Some(Rate::Bytes(rate)),
            ..Share::default()
        };
        for in_group in [false, true] {
            let shares = |rate| {
                let mut options = options(policy, 1, &[(1, limited(rate))]);
                if in_group {
                    options.shares.groups = vec![limited(rate)];
                    options.shares.apps.insert(AppId(1), member(weight(1)));
                }
                options
            };
            let clients = [Client::new(1, 8, &[0]), Client::new(2, 8, &[0])];
            let mut world = World::new(&shares(1), &clients);
            world.run(5 * SECOND);
            let corrected = shares(25 * BYTES).shares;
            for forwarder in &mut world.forwarders {
                let set = forwarder.set_shares(Time(5 * SECOND), &corrected);
                set.expect("they are shares");
            }
            world.run(8 * SECOND);
            let got = world.share(1, 6 * SECOND, 8 * SECOND, None);
            assert!(
                got >= 900 * MS,
                "{policy}, {in_group}: {} ms of 2 s",
                got / MS
            );
        }
    }
}

#[test]
fn applications_that_come_and_go_change_nothing_for_the_others() {
    for policy in ["dsfq", "two-level"] {
        let mut options = options(policy, 1, &[]);
        let group = Share {
            max: Some(Rate::Bytes(10 * BYTES)),
            ..Share::default()
        };
        options.shares.groups = vec![group];
        options.shares.apps.insert(AppId(1), member(weight(1)));
        for (app, weight_of) in [(2, 1), (3, 3)] {
            let single = AppShare {
                share: weight(weight_of),
                group: None,
            };
            options.shares.apps.insert(AppId(app), single);
        }
        let clients = [1, 2, 3].map(|app| Client::new(app, 8, &[0]));
        let mut world = World::new(&options, &clients);
        let mut shares = options.shares.clone();
        for step in 0..200 {
            world.run((step + 1) * 50 * MS);
            // Who comes has no requests here yet.
            shares.apps.insert(AppId(1000 + step), AppShare::default());
            let set = world.forwarders[0].set_shares(Time(world.now), &shares);
            set.expect("they are shares");
        }
        let got = [1, 2, 3].map(|app| world.share(app, 2 * SECOND, 10 * SECOND, None) / MS);
        let [limited, one, three] = got;
        // A fifth of the device, and of the rest a quarter and three quarters.
        assert!(limited <= 1700, "{policy}: {got:?}");
        assert!(one.abs_diff(1600) <= 160, "{policy}: {got:?}");
        assert!(three.abs_diff(4800) <= 480, "{policy}: {got:?}");
    }
}

#[test]
fn what_one_client_makes_up_delays_nobody_else() {
    for policy in ["dsfq", "two-level"] {
        for lies in [None, Some(0), Some(SECOND), Some(u64::MAX)] {
            let options = options(policy, 4, &[]);
            let mut liar = Client::new(1, 250, &[0, 1, 2, 3]);
            liar.tells_ns = lies;
            let mut clients = vec![liar, Client::new(2, 250, &[0, 1, 2, 3])];
            // Short jobs, each of another name.
            clients.extend((0..10).map(|job| Client {
                active: ((5 + 2 * job) * SECOND, (6 + 2 * job) * SECOND),
                ..Client::new(10 + job, 4, &[0])
            }));
            let mut world = World::new(&options, &clients);
            world.run(30 * SECOND);
            for job in 0..10 {
                let (from, to) = ((5 + 2 * job) * SECOND, (6 + 2 * job) * SECOND);
                let got = world.share(10 + job, from, to, Some(0));
                // Three wait there: a third, less a twentieth of it.
                assert!(
                    got >= 316 * MS,
                    "{policy}, {lies:?}: job {job} {} ms of a second",
                    got / MS
                );
            }
        }
    }
}

#[test]
fn who_goes_from_forwarder_to_forwarder_gets_its_maximum_and_no_more() {
    for policy in ["dsfq", "two-level"] {
        for (count, processes, rate) in [
            (2, 1, 10),
            (4, 1, 10),
            (4, 3, 10),
            (4, 20, 20),
            (8, 20, 20),
            (8, 20, 40),
            (8, 20, 80),
        ] {
            let limited = Share {
                max: Some(Rate::Bytes(rate * BYTES)),
                ..Share::default()
            };
            let all: Vec<usize> = (0..count).collect();
            let options = options(policy, count as u32, &[(1, limited)]);
            let clients = Client::walkers(1, processes, &all);
            let mut world = World::new(&options, &clients);
            world.run(30 * SECOND);
            let got = world.share(1, 5 * SECOND, 30 * SECOND, None) / MS;
            let most = rate * 25 * 20;
            assert!(
                (most * 95 / 100..=most * 102 / 100).contains(&got),
                "{policy}, {count} forwarders, {processes} processes: {got} ms, not {most}"
            );
        }
    }
}
