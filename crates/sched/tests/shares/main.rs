//! What shares promise, on several forwarders that never talk: theory's bounds, and honest and
//! greedy clients.

mod change;
mod hard;
mod lies;
mod world;

use tidegate_sched::{
    AppId, AppShare, Direction, FileId, Input, Latency, Options, Output, Rate, Request, RequestId,
    Scheduler, Share, Time, mix64,
};
use world::{BYTES, COST_NS, Client, MS, SECOND, World, cost, options};

fn weight(weight: u32) -> Share {
    Share {
        weight,
        ..Share::default()
    }
}

fn assert_part(ours: u64, of: u64, percent: u64, slack: u64, what: &str) {
    let part = ours * 1000 / of.max(1);
    let (low, high) = ((percent - percent.min(slack)) * 10, (percent + slack) * 10);
    assert!(
        (low..=high).contains(&part),
        "{what}: {part} of 1000, not {percent} %"
    );
}

#[test]
fn weights_hold_over_all_forwarders_whatever_the_layout() {
    // Even; uneven: the first has all, the second two of four; and one that has a single one.
    let all = [0, 1, 2, 3];
    for (layouts, expected) in [
        ([&all[..], &all[..]], [75, 25]),
        ([&all[..], &all[..2]], [75, 25]),
        // All that it can get is a forwarder of four, which is its part.
        ([&all[..], &all[..1]], [75, 25]),
    ] {
        let options = options("dsfq", 4, &[(1, weight(3)), (2, weight(1))]);
        let clients = [Client::new(1, 8, layouts[0]), Client::new(2, 8, layouts[1])];
        let mut world = World::new(&options, &clients);
        world.run(45 * SECOND);
        for from in [15, 25, 35] {
            let (from, to) = (from * SECOND, (from + 10) * SECOND);
            let [one, other] = [1, 2].map(|app| world.share(app, from, to, None));
            let what = format!("{layouts:?} from {from}");
            assert_part(one, one + other, expected[0], 2, &what);
        }
        let idle_ns = 4 * 45 * SECOND - world.busy_ns.min(4 * 45 * SECOND);
        assert!(
            idle_ns <= 4 * SECOND,
            "{layouts:?}: devices idle for {idle_ns}"
        );
    }
}

#[test]
fn many_forwarders_and_layouts_that_cross() {
    // Sixty-four forwarders; every application has half of them, shifted, so that all meet some.
    let layout = |app: u64| {
        (0..32)
            .map(|i| (app as usize * 16 + i) % 64)
            .collect::<Vec<_>>()
    };
    let shares: Vec<_> = (0..4).map(|app| (app, weight(1))).collect();
    let clients: Vec<_> = (0..4)
        .map(|app| Client::new(app, 4, &layout(app)))
        .collect();
    let mut world = World::new(&options("dsfq", 64, &shares), &clients);
    world.run(20 * SECOND);
    let parts: Vec<u64> = (0..4)
        .map(|app| world.share(app, 10 * SECOND, 20 * SECOND, None))
        .collect();
    let sum: u64 = parts.iter().sum();
    parts
        .iter()
        .for_each(|part| assert_part(*part, sum, 25, 2, "crossing layouts"));
}

#[test]
fn processes_that_go_from_forwarder_to_forwarder_get_their_share() {
    // They gather where their application is delayed, and miss what they would get elsewhere; more
    // so the more forwarders there are, and when devices vary.
    for (policy, count, varies) in [
        ("dsfq", 4, false),
        ("dsfq", 4, true),
        ("two-level", 4, true),
        ("dsfq", 16, true),
    ] {
        let all: Vec<usize> = (0..count).collect();
        let shares = [(1, weight(5)), (2, weight(3)), (3, weight(2))];
        let mut clients = Client::walkers(1, 16 * count, &all);
        clients.extend(Client::walkers(2, 24 * count, &all));
        clients.extend(Client::walkers(3, 16 * count, &all));
        let mut world = World::new(&options(policy, count as u32, &shares), &clients);
        world.varies = varies;
        world.run(45 * SECOND);
        for from in [15, 25, 35] {
            let (from, to) = (from * SECOND, (from + 10) * SECOND);
            let parts = [1, 2, 3].map(|app| world.share(app, from, to, None));
            let sum = parts.iter().sum();
            for (part, percent) in parts.into_iter().zip([50, 30, 20]) {
                let what = format!("{policy} on {count}, varies: {varies}");
                assert_part(part, sum, percent, 2, &what);
            }
        }
    }
}

#[test]
fn a_minimum_of_one_leaves_the_weights_of_others() {
    let min = Share {
        min: Some(Rate::Bytes(25_000_000)),
        ..weight(1)
    };
    let shares = [(1, min), (2, weight(3)), (3, weight(1))];
    let mut paced = Client::new(1, 0, &[0]);
    paced.every_ns = Some(40 * MS);
    let clients = [paced, Client::new(2, 8, &[0]), Client::new(3, 8, &[0])];
    let mut world = World::new(&options("dsfq", 1, &shares), &clients);
    world.run(40 * SECOND);
    let part = |app| world.share(app, 10 * SECOND, 40 * SECOND, None);
    assert_part(part(1), 30 * SECOND, 50, 1, "its minimum");
    assert_part(part(2), part(2) + part(3), 75, 2, "the others");
}

#[test]
fn alone_or_with_a_partner_that_pauses_it_gets_all_that_is_free() {
    let options = options("two-level", 2, &[(1, weight(1)), (2, weight(9))]);
    let mut on_off = Client::new(2, 8, &[0, 1]);
    on_off.active = (10 * SECOND, 20 * SECOND);
    let mut world = World::new(&options, &[Client::new(1, 8, &[0, 1]), on_off]);
    world.run(40 * SECOND);
    let part = |app, from, to| world.share(app, from * SECOND, to * SECOND, None);
    assert!(part(1, 1, 10) >= 2 * 9 * SECOND - 4 * COST_NS);
    assert_part(
        part(1, 11, 20),
        part(1, 11, 20) + part(2, 11, 20),
        10,
        2,
        "while both want",
    );
    assert!(
        part(1, 21, 40) >= 2 * 19 * SECOND - 4 * COST_NS,
        "what is left of the other"
    );
}

#[test]
fn the_other_synchronisations_share_the_total_too() {
    // What one has on three forwarders alone counts against it on the fourth.
    for (sync, least, most) in [
        ("total", 240, 260),
        ("threshold", 240, 260),
        ("local", 120, 130),
    ] {
        let mut options = options("dsfq", 4, &[]);
        options.table.set("sync", sync);
        let clients = [Client::new(1, 8, &[0, 1, 2, 3]), Client::new(2, 8, &[0])];
        let mut world = World::new(&options, &clients);
        world.run(30 * SECOND);
        let part = world.share(2, 10 * SECOND, 30 * SECOND, None) * 1000 / (80 * SECOND);
        assert!((least..=most).contains(&part), "{sync}: {part} of 1000");
    }
}

/// SFQ(D): |W_f / phi_f - W_g / phi_g| <= (D + 1) (c_f / phi_f + c_g / phi_g) while both wait.
#[test]
fn the_bound_of_sfq_with_depth_holds_on_one_server() {
    for seed in 0..200 {
        let random = |n: u64| mix64(seed * 100 + n + 1);
        let depth = 1 + random(0) % 6;
        let weights = [1, 2].map(|n| 1 + random(n) % 20);
        let lens = [3, 4].map(|n| 4096 * (1 + random(n) % 64));
        let shares = [
            (0, weight(weights[0] as u32)),
            (1, weight(weights[1] as u32)),
        ];
        let options = Options {
            depth: depth as u32,
            ..options("dsfq", 1, &shares)
        };
        let mut scheduler = Scheduler::new(&options).unwrap();
        let (mut id, mut given, mut running) = (0, [0u64; 2], Vec::new());
        let mut waiting = [0; 2];
        let mut batch = Vec::new();
        let cost = |app: usize| cost().access(Direction::Read, false).ns(lens[app]);
        for step in 0..400 {
            // Both always have requests waiting.
            for app in 0..2u64 {
                while waiting[app as usize] < 5 {
                    waiting[app as usize] += 1;
                    id += 1;
                    let place = mix64(id) % (1 << 40);
                    let (of, len) = (AppId(app), lens[app as usize]);
                    let request =
                        Request::new(RequestId(id), of, FileId(app), Direction::Read, place, len);
                    scheduler
                        .handle(Time(step), Input::Arrived(request))
                        .unwrap();
                }
            }
            if scheduler.poll(Time(step), &mut batch) == Output::Dispatch {
                running.push(batch[0]);
                let app = batch[0].app.0 as usize;
                given[app] += cost(app);
                waiting[app] -= 1;
            } else {
                let at = mix64(seed + step) as usize % running.len();
                let done: Request = running.swap_remove(at);
                scheduler
                    .handle(Time(step), Input::Finished(done.id))
                    .unwrap();
            }
            let normal = [0, 1].map(|app| given[app] as f64 / weights[app] as f64);
            let most = [0, 1].map(|app| cost(app) as f64 / weights[app] as f64);
            let bound = (depth + 1) as f64 * (most[0] + most[1]);
            assert!(
                (normal[0] - normal[1]).abs() <= bound,
                "seed {seed}, step {step}: {normal:?}, at most {bound}"
            );
        }
    }
}

/// DSFQ: the bound of SFQ(D) and, for each application, what its clients have not told yet.
#[test]
fn the_total_service_of_applications_that_wait_everywhere_stays_together() {
    for seed in 0..20 {
        let random = |n: u64| mix64(seed * 1000 + n + 1);
        let count = 2 + (random(0) % 5) as usize;
        let weights = [1, 2].map(|n| 1 + random(n) % 4);
        let shares = [
            (0, weight(weights[0] as u32)),
            (1, weight(weights[1] as u32)),
        ];
        // Each meets the other somewhere, and has forwarders of its own.
        let all: Vec<usize> = (0..count).collect();
        let some: Vec<usize> = all[..1 + (random(3) as usize % count)].to_vec();
        let outstanding = 1 + (random(4) % 8) as usize;
        let clients = [
            Client::new(0, outstanding, &all),
            Client::new(1, outstanding, &some),
        ];
        let options = options("dsfq", count as u32, &shares);
        let mut world = World::new(&options, &clients);
        world.run(30 * SECOND);
        let [one, other] = [0, 1].map(|app| world.share(app, 10 * SECOND, 30 * SECOND, None));
        let total = (one + other) as f64;
        // What the second can get at most are its forwarders, less what the first keeps there.
        let fair = total * weights[1] as f64 / (weights[0] + weights[1]) as f64;
        let most = total * some.len() as f64 / count as f64;
        let expected = fair.min(most);
        let unreported = (outstanding * count * 2) as f64 * COST_NS as f64;
        let kept = if fair > most { 0.06 * total } else { 0.0 };
        assert!(
            (other as f64 - expected).abs() <= 0.02 * total + unreported + kept,
            "seed {seed}: {other} of {total}, not {expected}; {count} forwarders, {some:?}, \
             weights {weights:?}"
        );
    }
}

#[test]
fn a_greedy_client_takes_nothing_from_the_share_of_others() {
    for policy in ["dsfq", "two-level"] {
        let options = options(policy, 4, &[(1, weight(1)), (2, weight(1))]);
        for forges in [false, true] {
            let mut greedy = Client::new(2, 250, &[0, 1, 2, 3]);
            greedy.forges = forges;
            let clients = [Client::new(1, 8, &[0, 1, 2, 3]), greedy];
            let mut options = options.clone();
            if forges {
                // Forwarders that check what clients tell.
                options.table.set("report_ms", 200);
            }
            let mut world = World::new(&options, &clients);
            world.run(30 * SECOND);
            // With honest counters the total counts, however it is spread.
            let everywhere = (None, 475);
            let each = (0..4).map(|it| (Some(it), if forges { 475 } else { 440 }));
            for (forwarder, least) in each.chain([everywhere]) {
                let part = |app| world.share(app, 10 * SECOND, 30 * SECOND, forwarder);
                let part_of_first = part(1) * 1000 / (part(1) + part(2));
                assert!(
                    part_of_first >= least,
                    "{policy}, {forges}: {part_of_first} of 1000 at {forwarder:?}"
                );
            }
        }
        // Beside one that has a single forwarder: with honest counters its total share, with
        // forged ones half of that forwarder.
        for (forges, least) in [(false, 238), (true, 118)] {
            let mut greedy = Client::new(2, 250, &[0, 1, 2, 3]);
            greedy.forges = forges;
            let mut world = World::new(&options, &[Client::new(1, 8, &[0]), greedy]);
            world.run(30 * SECOND);
            let part = world.share(1, 10 * SECOND, 30 * SECOND, None) * 1000 / (80 * SECOND);
            assert!(part >= least, "{policy}, {forges}: {part} of 1000");
        }
    }
}

fn promised(min: u64, latency_ms: u64) -> Share {
    Share {
        min: Some(Rate::Bytes(min)),
        latency: Some(Latency {
            ns: latency_ms * MS,
            percentile: 95,
        }),
        ..Share::default()
    }
}

#[test]
fn minima_and_latencies_that_fit_are_kept_beside_a_greedy_one() {
    for count in [1u64, 4, 16] {
        // 50 MB/s a forwarder: half and a third of it, paced; and one that takes what it can.
        let one = promised(25_000_000 * count, 100);
        let two = promised(15_000_000 * count, 300);
        let options = options("two-level", count as u32, &[(1, one), (2, two)]);
        let layout: Vec<usize> = (0..count as usize).collect();
        let paced = |app, rate: u64| Client {
            every_ns: Some(SECOND * BYTES / (rate * count)),
            ..Client::new(app, 0, &layout)
        };
        let clients = [
            paced(1, 24_500_000),
            paced(2, 14_500_000),
            Client::new(3, 50, &layout),
        ];
        let mut world = World::new(&options, &clients);
        world.run(30 * SECOND);
        for (app, most) in [(1, 100 * MS), (2, 300 * MS)] {
            let mut kept = 0;
            for second in 2..30 {
                let p95 = world.latency(app, second * SECOND, (second + 1) * SECOND, 95);
                kept += u32::from(p95 <= most);
            }
            assert!(
                kept >= 27,
                "{count} forwarders, app {app}: {kept} of 28 windows"
            );
        }
        assert!(world.busy_ns >= count * 29 * SECOND, "devices idle");
    }
}

#[test]
fn maxima_are_those_of_all_forwarders_together() {
    for (max, bytes) in [
        (Rate::Bytes(20_000_000), 20_000_000),
        (Rate::Operations(20), 20_000_000),
        // A tenth of four devices of 50 MB/s.
        (Rate::Device(100), 20_000_000),
    ] {
        let share = Share {
            max: Some(max),
            ..Share::default()
        };
        let options = options("two-level", 4, &[(1, share)]);
        let mut world = World::new(&options, &[Client::new(1, 8, &[0, 1, 2, 3])]);
        world.run(30 * SECOND);
        let got = world.share(1, 10 * SECOND, 30 * SECOND, None) / COST_NS * BYTES / 20;
        let percent = got * 100 / bytes;
        assert!((95..=105).contains(&percent), "{max:?}: {percent} %");
    }
}

#[test]
fn a_group_shares_what_it_has() {
    // A user with three applications and weight 1 beside one application of weight 1.
    let mut options = options("dsfq", 1, &[]);
    options.shares.groups.push(Share {
        max: None,
        ..Share::default()
    });
    for (app, own) in [(1, 1), (2, 1), (3, 2)] {
        let share = AppShare {
            share: weight(own),
            group: Some(0),
        };
        options.shares.apps.insert(AppId(app), share);
    }
    let clients: Vec<_> = (1..=4).map(|app| Client::new(app, 8, &[0])).collect();
    let mut world = World::new(&options, &clients);
    world.run(40 * SECOND);
    let parts = |world: &World, from: u64, to: u64| {
        [1, 2, 3, 4].map(|app| world.share(app, from * SECOND, to * SECOND, None))
    };
    let sum = 30 * SECOND;
    for (part, percent) in parts(&world, 10, 40).into_iter().zip([12, 12, 25, 50]) {
        assert_part(part, sum, percent, 2, "in the group");
    }
    // At run time: the group may have a fifth at most, and a minimum of one in it stands above it.
    options.shares.groups[0].max = Some(Rate::Device(200));
    let at = Time(world.now);
    world.forwarders[0].set_shares(at, &options.shares).unwrap();
    world.run(70 * SECOND);
    let after = parts(&world, 41, 70);
    let group = after[0] + after[1] + after[2];
    assert_part(group, 29 * SECOND, 20, 1, "the group's maximum");
    assert_part(after[3], 29 * SECOND, 80, 1, "the one beside it");
}

#[test]
fn a_change_of_shares_takes_effect_at_once_and_loses_nothing() {
    let mut options = options("two-level", 2, &[(1, weight(1)), (2, weight(1))]);
    let clients = [Client::new(1, 40, &[0, 1]), Client::new(2, 40, &[0, 1])];
    let mut world = World::new(&options, &clients);
    world.run(10 * SECOND);
    options.shares.apps.get_mut(&AppId(1)).unwrap().share.weight = 4;
    for forwarder in &mut world.forwarders {
        forwarder
            .set_shares(Time(10 * SECOND), &options.shares)
            .unwrap();
    }
    world.run(11 * SECOND);
    let part = world.share(1, 10 * SECOND, 11 * SECOND, None);
    assert_part(part, 2 * SECOND, 80, 5, "the first second");
    // Refused: nothing changes.
    let mut wrong = options.shares.clone();
    wrong.others.share.weight = 0;
    for forwarder in &mut world.forwarders {
        let refused = forwarder.set_shares(Time(11 * SECOND), &wrong);
        refused.expect_err("a weight of 0");
        assert_eq!(forwarder.options().shares, options.shares);
    }
    world.run(20 * SECOND);
    let part = world.share(1, 12 * SECOND, 20 * SECOND, None);
    assert_part(part, 16 * SECOND, 80, 3, "after the refusal");
    assert_eq!(world.ways.len(), 160, "all requests are on their way");
}

#[test]
fn a_forwarder_that_comes_back_starves_nobody_and_lets_nobody_burst() {
    let options = options("two-level", 2, &[(1, weight(1)), (2, weight(1))]);
    // The second has both forwarders, and got much at the first one while the other was away.
    let clients = [Client::new(1, 20, &[1]), Client::new(2, 20, &[0, 1])];
    let mut world = World::new(&options, &clients);
    world.run(10 * SECOND);
    world.forwarders[1] = Scheduler::new(&options).unwrap();
    world.busy_until[1] = None;
    let lost: Vec<u64> = world.ways.keys().copied().collect();
    let mut away = Vec::new();
    for id in lost {
        let at_first = world.forwarders[0].waiting().iter().any(|it| it.id.0 == id);
        let runs = world.busy_until[0].as_ref();
        if !at_first && runs.is_none_or(|(_, batch)| batch[0].id.0 != id) {
            away.push(world.ways.remove(&id).expect("just seen").client);
        }
    }
    // For ten seconds only the first forwarder serves.
    let alone = Scheduler::new(&options).unwrap();
    let back = std::mem::replace(&mut world.forwarders[1], alone);
    world.run(20 * SECOND);
    world.forwarders[1] = back;
    away.iter().for_each(|client| world.send(*client, 1));
    world.run(21 * SECOND);
    let [one, two] = [1, 2].map(|app| world.share(app, 20 * SECOND, 21 * SECOND, Some(1)));
    assert!(
        one >= SECOND * 8 / 10,
        "the one that was away longest: {one}"
    );
    assert!(two <= SECOND / 5, "no burst: {two}");
    world.run(22 * SECOND);
    let two = world.share(2, 20 * SECOND, 22 * SECOND, Some(1));
    assert!(two >= SECOND / 50, "the other is not shut out: {two}");
}

#[test]
fn who_has_little_weight_never_starves() {
    for (count, processes, heavy) in [(2, 4, 8), (2, 2, 8), (4, 4, 8), (4, 8, 20), (8, 8, 8)] {
        let all: Vec<usize> = (0..count).collect();
        let mut clients = Client::walkers(1, processes, &all);
        clients.extend(Client::walkers(2, processes, &all));
        let shares = [(1, weight(heavy)), (2, weight(1))];
        let mut world = World::new(&options("two-level", count as u32, &shares), &clients);
        world.varies = true;
        world.run(40 * SECOND);
        for from in 0..20 {
            let (from, to) = (2 * from * SECOND, (2 * from + 2) * SECOND);
            let [one, two] = [1, 2].map(|app| world.share(app, from, to, None));
            let part = 1000 * two / (one + two);
            assert!(
                part >= 40,
                "{count} forwarders, {processes} processes, {heavy} to 1: {part} of 1000"
            );
        }
    }
}

#[test]
fn the_last_requests_of_an_application_do_not_wait_for_what_was_told_long_ago() {
    let options = options("dsfq", 1, &[(1, weight(8)), (2, weight(1))]);
    let mut scheduler = Scheduler::new(&options).unwrap();
    let request = |id: u64, app: u64| {
        let (id, app) = (RequestId(id), AppId(app));
        Request::new(id, app, FileId(app.0), Direction::Read, id.0 * BYTES, BYTES)
    };
    for id in 1..=9 {
        let told = Request {
            charged_elsewhere_ns: SECOND,
            charged_here_ns: MS,
            ..request(id, 2)
        };
        scheduler.handle(Time(0), Input::Arrived(told)).unwrap();
    }
    for id in 10..2000 {
        scheduler
            .handle(Time(0), Input::Arrived(request(id, 1)))
            .unwrap();
    }
    let mut served_at = Vec::new();
    let mut batch = Vec::new();
    for step in 0..600 {
        let now = Time(step * COST_NS);
        assert_eq!(scheduler.poll(now, &mut batch), Output::Dispatch);
        let done = Time(now.0 + COST_NS);
        scheduler
            .handle(done, Input::Finished(batch[0].id))
            .unwrap();
        if batch[0].app == AppId(2) {
            served_at.push(done.0 / MS);
        }
    }
    assert!(served_at.len() == 9 && served_at[1] < 4500, "{served_at:?}");
}
