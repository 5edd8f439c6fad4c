//! What shares promise, on several forwarders that never talk: theory's bounds, and honest and
//! greedy clients.

use std::collections::BTreeMap;
use tidegate_sched::{
    AccessCost, AppId, AppShare, CostModel, Direction, FileId, Given, Input, Latency, Options,
    Output, Rate, Request, RequestId, Scheduler, Share, Shares, Time, mix64,
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// What a request of `BYTES` costs: 50 of them are a second of a device, 50 MB/s.
const COST_NS: u64 = 20 * MS;
const BYTES: u64 = 1_000_000;

/// What an application does.
#[derive(Clone)]
struct Client {
    app: u64,
    /// Requests on their way at each forwarder of its layout.
    outstanding: usize,
    /// Forwarders that hold its data, with how many of its requests each gets.
    layout: Vec<usize>,
    /// From and until when, ns.
    active: (u64, u64),
    /// A request every so many ns, instead of so many outstanding.
    every_ns: Option<u64>,
    /// Tells the forwarders that others gave it nothing.
    forges: bool,
}

impl Client {
    fn new(app: u64, outstanding: usize, layout: &[usize]) -> Client {
        Client {
            app,
            outstanding,
            layout: layout.to_vec(),
            active: (0, u64::MAX),
            every_ns: None,
            forges: false,
        }
    }
}

/// What is known of a request on its way.
struct Way {
    client: usize,
    sent: u64,
}

struct World {
    forwarders: Vec<Scheduler>,
    busy_until: Vec<Option<(u64, Vec<Request>)>>,
    clients: Vec<Client>,
    /// By client and forwarder: device time, bytes, operations that it was given, and of those of
    /// the others how much it told.
    given: BTreeMap<(usize, usize), [u64; 3]>,
    told: BTreeMap<(usize, usize), [u64; 3]>,
    ways: BTreeMap<u64, Way>,
    /// By client: when its next request comes, and where.
    next_at: Vec<u64>,
    turns: Vec<usize>,
    ids: u64,
    now: u64,
    /// By application: service as (end, device ns, forwarder, latency).
    served: BTreeMap<u64, Vec<(u64, u64, usize, u64)>>,
    busy_ns: u64,
}

fn cost() -> CostModel {
    let mut model = CostModel::default();
    for direction in [Direction::Read, Direction::Write] {
        for sequential in [false, true] {
            *model.access_mut(direction, sequential) = AccessCost {
                base_ns: 0,
                ns_per_mib: COST_NS * (1 << 20) / BYTES,
            };
        }
    }
    model
}

fn options(policy: &str, forwarders: u32, shares: &[(u64, Share)]) -> Options {
    let apps = shares.iter().map(|(app, share)| {
        let share = AppShare {
            share: *share,
            group: None,
        };
        (AppId(*app), share)
    });
    Options {
        cost: cost(),
        estimate: false,
        shares: Shares {
            forwarders,
            apps: apps.collect(),
            ..Shares::default()
        },
        ..Options::for_policy(policy)
    }
}

impl World {
    fn new(options: &Options, clients: &[Client]) -> World {
        let count = options.shares.forwarders as usize;
        let scheduler = |_| Scheduler::new(options).unwrap_or_else(|error| panic!("{error}"));
        World {
            forwarders: (0..count).map(scheduler).collect(),
            busy_until: (0..count).map(|_| None).collect(),
            clients: clients.to_vec(),
            given: BTreeMap::new(),
            told: BTreeMap::new(),
            ways: BTreeMap::new(),
            next_at: clients.iter().map(|client| client.active.0).collect(),
            turns: vec![0; clients.len()],
            ids: 0,
            now: 0,
            served: BTreeMap::new(),
            busy_ns: 0,
        }
    }

    fn send(&mut self, client: usize, forwarder: usize) {
        let of = &self.clients[client];
        let mut others = [0; 3];
        for other in (0..self.forwarders.len()).filter(|other| *other != forwarder) {
            let given = self
                .given
                .get(&(client, other))
                .copied()
                .unwrap_or_default();
            (0..3).for_each(|unit| others[unit] += given[unit]);
        }
        let told = self
            .told
            .insert((client, forwarder), others)
            .unwrap_or_default();
        let new = |unit: usize| {
            if of.forges {
                0
            } else {
                others[unit] - told[unit]
            }
        };
        self.ids += 1;
        let app = AppId(of.app);
        let place = mix64(self.ids) % (1 << 30) * BYTES;
        let request = Request {
            charged_elsewhere_ns: new(0),
            bytes_elsewhere: new(1),
            operations_elsewhere: new(2) as u32,
            ..Request::new(
                RequestId(self.ids),
                app,
                FileId(of.app),
                Direction::Read,
                place,
                BYTES,
            )
        };
        self.ways.insert(
            self.ids,
            Way {
                client,
                sent: self.now,
            },
        );
        let at = Time(self.now);
        let arrived = self.forwarders[forwarder].handle(at, Input::Arrived(request));
        arrived.expect("there is room");
    }

    /// Clients that are paced, or begin.
    fn clients_send(&mut self) {
        for client in 0..self.clients.len() {
            while self.next_at[client] <= self.now && self.now < self.clients[client].active.1 {
                let of = self.clients[client].clone();
                match of.every_ns {
                    Some(every_ns) => {
                        self.next_at[client] += every_ns;
                        self.turns[client] += 1;
                        let forwarder = of.layout[self.turns[client] % of.layout.len()];
                        self.send(client, forwarder);
                    }
                    None => {
                        self.next_at[client] = u64::MAX;
                        for forwarder in of.layout {
                            (0..of.outstanding).for_each(|_| self.send(client, forwarder));
                        }
                    }
                }
            }
        }
    }

    fn finish(&mut self, forwarder: usize, batch: &[Request]) {
        for request in batch {
            let at = Time(self.now);
            let done = self.forwarders[forwarder].handle(at, Input::Finished(request.id));
            done.expect("it ran");
            let way = self.ways.remove(&request.id.0).expect("it was sent");
            let given = self.given.entry((way.client, forwarder)).or_default();
            for (unit, amount) in [COST_NS, request.len, 1].into_iter().enumerate() {
                given[unit] += amount;
            }
            let of = &self.clients[way.client];
            let served = self.served.entry(of.app).or_default();
            served.push((self.now, COST_NS, forwarder, self.now - way.sent));
            if of.every_ns.is_none() && self.now < of.active.1 {
                self.send(way.client, forwarder);
            }
        }
    }

    fn tell(&mut self, from: usize, served: Given) {
        let at = Time(self.now);
        let others = self
            .forwarders
            .iter_mut()
            .enumerate()
            .filter(|(number, _)| *number != from);
        others.for_each(|(_, other)| other.handle(at, Input::Heard(served)).expect("it listens"));
    }

    /// Goes on until `until` ns.
    fn run(&mut self, until: u64) {
        let mut batch = Vec::new();
        while self.now < until {
            self.clients_send();
            let mut next = until;
            for forwarder in 0..self.forwarders.len() {
                if let Some((end, _)) = &self.busy_until[forwarder]
                    && *end <= self.now
                {
                    let (_, done) = self.busy_until[forwarder].take().expect("just seen");
                    self.finish(forwarder, &done);
                }
                if self.busy_until[forwarder].is_none() {
                    let mut output = self.forwarders[forwarder].poll(Time(self.now), &mut batch);
                    while let Output::Tell(served) = output {
                        self.tell(forwarder, served);
                        output = self.forwarders[forwarder].poll(Time(self.now), &mut batch);
                    }
                    match output {
                        Output::Dispatch => {
                            let end = self.now + COST_NS * batch.len() as u64;
                            self.busy_ns += end - self.now;
                            self.busy_until[forwarder] = Some((end, batch.clone()));
                        }
                        Output::WaitUntil(time) => next = next.min(time.0),
                        Output::Idle => {}
                        Output::Tell(_) => unreachable!("just told"),
                    }
                }
                if let Some((end, _)) = &self.busy_until[forwarder] {
                    next = next.min(*end);
                }
            }
            for (client, at) in self.next_at.iter().enumerate() {
                if *at < self.clients[client].active.1 {
                    next = next.min((*at).max(self.now + 1));
                }
            }
            self.now = next.max(self.now + 1);
        }
    }

    /// Device time of an application between two times, at one forwarder or at all.
    fn share(&self, app: u64, from: u64, to: u64, at: Option<usize>) -> u64 {
        let served = self.served.get(&app).into_iter().flatten();
        let within = served.filter(|(end, _, forwarder, _)| {
            (from + 1..=to).contains(end) && at.is_none_or(|at| at == *forwarder)
        });
        within.map(|(_, ns, ..)| ns).sum()
    }

    /// The percentile of latencies between two times.
    fn latency(&self, app: u64, from: u64, to: u64, percentile: usize) -> u64 {
        let served = self.served.get(&app).into_iter().flatten();
        let within = served.filter(|(end, ..)| (from + 1..=to).contains(end));
        let mut latencies: Vec<u64> = within.map(|(.., latency)| *latency).collect();
        latencies.sort_unstable();
        let at = (latencies.len() * percentile).div_ceil(100).max(1) - 1;
        latencies[at]
    }
}

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
        world.run(40 * SECOND);
        for from in [10, 20, 30] {
            let (from, to) = (from * SECOND, (from + 10) * SECOND);
            let [one, other] = [1, 2].map(|app| world.share(app, from, to, None));
            let what = format!("{layouts:?} from {from}");
            assert_part(one, one + other, expected[0], 2, &what);
        }
        let idle_ns = 4 * 40 * SECOND - world.busy_ns.min(4 * 40 * SECOND);
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
        let untold = (outstanding * count * 2) as f64 * COST_NS as f64;
        let kept = if fair > most { 0.06 * total } else { 0.0 };
        assert!(
            (other as f64 - expected).abs() <= 0.02 * total + untold + kept,
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
                options.table.set("tell_ms", 200);
            }
            let mut world = World::new(&options, &clients);
            world.run(30 * SECOND);
            for forwarder in 0..4 {
                let part = |app| world.share(app, 10 * SECOND, 30 * SECOND, Some(forwarder));
                let part_of_first = part(1) * 100 / (part(1) + part(2));
                assert!(
                    part_of_first >= 47,
                    "{policy}, {forges}: {part_of_first} % at {forwarder}"
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
