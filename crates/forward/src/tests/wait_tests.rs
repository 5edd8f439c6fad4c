//! What the forwarder says requests waited for, on a device with a clock: each of these loads loses
//! its time to one cause.

use super::share_tests::{named, rules};
use super::*;
use crate::share_rules::Rules;
use std::string::ToString;
use tidegate_sched::{
    AppId, Cause, CostModel, FileId, Observed, PolicyOptions, Prediction, Rate, Share, mix64,
};
use tidegate_wire::Hints;

const SEEDS: u64 = 3;

/// A forwarder, its clients by application, and a device that takes as long as a test says.
struct Lab {
    host: Host,
    testers: BTreeMap<&'static str, Tester>,
    file: Handle,
    other: Handle,
    /// By the request: who sent it, and when.
    sent: BTreeMap<(ConnId, u64), (&'static str, Time)>,
    /// When each job that runs ends, the oldest first.
    ends: VecDeque<Time>,
    /// How long a call takes, ns.
    call_ns: u64,
    /// The times of all requests of each application, ns.
    took: BTreeMap<&'static str, u64>,
    random: u64,
}

impl Lab {
    fn new(seed: u64, adjust: impl FnOnce(&mut Config)) -> Lab {
        let mut world = World::new();
        let mut config = world.config(0, 1);
        config.record = false;
        config.lease_ns = 1000 * SECOND;
        config.pool_bytes_max = 64 << 20;
        config.scheduler.depth = 1;
        adjust(&mut config);
        let mut host = Host::new(&world, config);
        host.give_seat(&mut world, 0);
        let mut first = Tester::new(&mut host, 99);
        let file = first.create(&mut host, "file");
        let other = first.create(&mut host, "other");
        first.call(&mut host, named("a")).expect("named");
        first.call(&mut host, named("b")).expect("named");
        host.hold_jobs = true;
        Lab {
            host,
            testers: BTreeMap::new(),
            file,
            other,
            sent: BTreeMap::new(),
            ends: VecDeque::new(),
            call_ns: 10 * MS,
            took: BTreeMap::new(),
            random: seed,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = mix64(self.random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.random % below
    }

    /// An application sends a request now.
    fn sends(&mut self, app: &'static str, op: Op, hints: Hints) {
        let host = &mut self.host;
        let number = 1 + self.testers.len() as u64;
        let tester = self.testers.entry(app);
        let tester = tester.or_insert_with(|| Tester::new(host, number));
        let payload = match &op {
            Op::Write { extents, .. } => extents.bytes() as usize,
            _ => 0,
        };
        let app_id = AppId::from_name(app).0;
        let request = Request {
            hints: Some(Hints {
                app: app_id,
                ..hints
            }),
            ..tester.request(op, payload)
        };
        self.sent
            .insert((tester.conn, request.id), (app, self.host.now));
        let conn = tester.conn;
        while !self.host.receive(conn, request.clone(), &vec![0; payload]) {
            // The pool is full.
            self.passes(MS);
        }
        self.settle();
    }

    fn reads(&mut self, app: &'static str, offset: u64, len: u64) {
        let op = read(self.file, offset, len);
        self.sends(app, op, Hints::default());
    }

    /// Jobs that were started begin now; replies are taken.
    fn settle(&mut self) {
        while self.ends.len() < self.host.jobs.len() {
            self.ends.push_back(self.host.now + self.call_ns);
        }
        while let Some((conn, reply, _)) = self.host.replies.pop_front() {
            assert!(reply.result.is_ok(), "{:?}", reply.result);
            let (app, at) = self.sent.remove(&(conn, reply.id)).expect("it was sent");
            *self.took.entry(app).or_default() += self.host.now.since(at);
        }
    }

    /// Lets time pass.
    fn passes(&mut self, ns: u64) {
        let until = self.host.now + ns;
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= until) {
            let wakes = self.host.forwarder.wake_at();
            if wakes.is_some_and(|at| at < end) {
                let step = wakes.expect("looked at").since(self.host.now);
                self.host.advance(step);
                self.settle();
                continue;
            }
            self.host.now = end;
            self.host.run_job();
            self.ends.pop_front();
            self.settle();
        }
        while self.host.now < until {
            let wakes = self.host.forwarder.wake_at().filter(|at| *at < until);
            let step = wakes.unwrap_or(until).since(self.host.now);
            self.host.advance(step);
            self.settle();
            if let Some(end) = self.ends.front().copied().filter(|end| *end <= until) {
                return self.passes(until.since(self.host.now).max(end.since(self.host.now)));
            }
        }
    }

    /// Lets all requests end.
    fn ends(&mut self) {
        for _ in 0..200_000 {
            if self.sent.is_empty() {
                return;
            }
            self.passes(MS);
        }
        panic!("{} requests never end", self.sent.len());
    }

    /// Checks that the causes of each application sum up to its requests' time, and that one of
    /// them has so much of what an application lost; and which neighbour has most of it.
    fn lost(&mut self, app: &'static str, cause: Cause, neighbour: Option<&str>) {
        let took = core::mem::take(&mut self.took);
        for (app, took_ns) in took {
            let (ns, _) = self.host.forwarder.waits_of(AppId::from_name(app).0);
            assert_eq!(ns.iter().sum::<u64>(), took_ns, "{app}: {ns:?}");
        }
        let (ns, neighbours) = self.host.forwarder.waits_of(AppId::from_name(app).0);
        let service_ns = ns[Cause::Service as usize];
        let lost_ns = match cause {
            Cause::Service => ns.iter().sum(),
            _ => ns.iter().sum::<u64>() - service_ns,
        };
        let its_ns = ns[cause as usize];
        assert!(its_ns * 10 >= lost_ns * 8, "{app} {}: {ns:?}", cause.name());
        assert!(lost_ns > 20 * MS, "{app} has lost little: {ns:?}");
        let Some(neighbour) = neighbour else {
            return;
        };
        let id = AppId::from_name(neighbour).0;
        let caused = neighbours.iter().find(|one| (one.0, one.1) == (id, cause));
        let caused_ns = caused.map_or(0, |one| one.2);
        assert!(caused_ns * 10 >= its_ns * 8, "{neighbour}: {neighbours:?}");
    }
}

fn policy(config: &mut Config, name: &str) {
    let depth = config.scheduler.depth;
    config.scheduler = Options::for_policy(name);
    config.scheduler.depth = depth;
}

fn limited(name: &str, max: &str) -> Rules {
    let max: Rate = max.parse().expect("a rate");
    let share = Share {
        max: Some(max),
        ..Share::default()
    };
    rules(name, share)
}

#[test]
fn a_neighbour_s_checkpoint_has_the_device() {
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |_| {});
        for round in 0..10 {
            for part in 0..12 {
                lab.reads("b", (round * 12 + part) << 20, 1 << 20);
            }
            let pause = lab.random(20 * MS);
            lab.passes(pause);
            lab.reads("a", 0, 4096);
            lab.passes(150 * MS);
        }
        lab.ends();
        lab.lost("a", Cause::Device, Some("b"));
        lab.lost("b", Cause::Device, Some("b"));
    }
}

#[test]
fn many_calls_at_once_wait_for_the_device_too() {
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |config| config.scheduler.depth = 4);
        for round in 0..300 {
            lab.reads("b", round << 20, 1 << 20);
            if round % 10 == 0 {
                lab.reads("a", 0, 4096);
            }
            let pause = lab.random(3 * MS);
            lab.passes(pause);
        }
        lab.ends();
        lab.lost("a", Cause::Device, Some("b"));
    }
}

#[test]
fn a_maximum_holds_an_application_back() {
    for seed in 0..SEEDS {
        for neighbour in [false, true] {
            let mut lab = Lab::new(seed, |config| {
                policy(config, "dsfq");
                config.shares = limited("a", "20op/s");
            });
            for round in 0..40 {
                lab.reads("a", round << 20, 4096);
                if neighbour {
                    lab.reads("b", round << 20, 4096);
                }
                let pause = lab.random(30 * MS);
                lab.passes(pause);
            }
            lab.ends();
            lab.lost("a", Cause::Limit, None);
        }
    }
}

#[test]
fn a_slow_device_takes_its_time() {
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |_| {});
        for round in 0..20 {
            lab.call_ns = 50 * MS + lab.random(100 * MS);
            lab.reads("a", round << 20, 4096);
            lab.ends();
        }
        lab.lost("a", Cause::Service, None);
    }
}

#[test]
fn an_overlapping_request_is_before_it() {
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |config| config.scheduler.depth = 8);
        for _ in 0..10 {
            let op = write(lab.file, 0, 1 << 16);
            lab.sends("b", op, Hints::default());
            let pause = lab.random(2 * MS);
            lab.passes(pause);
            lab.reads("a", 4096, 4096);
            lab.reads("a", 8192, 4096);
            // Another look does not change who is named.
            lab.host.forwarder.waits_of(0);
            lab.ends();
        }
        lab.lost("a", Cause::Overlap, Some("b"));
    }
}

#[test]
fn a_whole_file_operation_is_before_it() {
    let mut lab = Lab::new(1, |config| config.scheduler.depth = 8);
    for _ in 0..10 {
        let op = Op::Fallocate {
            handle: lab.file,
            mode: 0,
            offset: 0,
            len: 4096,
        };
        lab.sends("b", op, Hints::default());
        lab.reads("a", 4096, 4096);
        lab.ends();
    }
    lab.lost("a", Cause::Overlap, Some("b"));
}

#[test]
fn the_window_of_another_application_is_earlier() {
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |config| policy(config, "window"));
        // Nobody may be ahead by more than a window's length.
        lab.passes(3 * SECOND);
        for _ in 0..6 {
            let now = lab.host.now.0;
            let stamped = |stamp_ns| Hints {
                stamp_ns,
                ..Hints::default()
            };
            let window = now / (250 * MS) * 250 * MS;
            let (before, after) = (window - 200 * MS, window);
            lab.reads("b", 0, 4096);
            for part in 0..4 {
                let op = read(lab.file, part << 20, 4096);
                lab.sends("a", op, stamped(after));
            }
            for part in 0..20 {
                let op = read(lab.other, part << 20, 4096);
                lab.sends("b", op, stamped(before));
            }
            lab.ends();
            let pause = lab.random(300 * MS);
            lab.passes(pause);
        }
        lab.lost("a", Cause::Window, Some("b"));
    }
}

#[test]
fn shares_give_others_the_turn() {
    for (seed, looks) in (0..SEEDS).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut lab = Lab::new(seed, |config| {
            policy(config, "wfq");
            let weights = PolicyOptions::default()
                .with("weights", "b=1000")
                .with("turn_seeks", 0u64);
            config.scheduler.table = weights;
        });
        for round in 0..4 {
            lab.reads("a", round << 20, 4096);
        }
        // One that always has a request here goes first each time.
        for round in 0..200 {
            lab.reads("b", round << 20, 4096);
            let pause = lab.random(MS);
            lab.passes(9 * MS + pause);
            // Who looks changes nothing.
            if looks && round % 3 == 0 {
                lab.host.forwarder.waits_of(0);
            }
        }
        lab.ends();
        lab.lost("a", Cause::Share, Some("b"));
    }
}

#[test]
fn a_wait_for_more_of_a_run_is_on_purpose() {
    let observed = |offset, at_ns| Observed {
        file: FileId(0),
        direction: Direction::Read,
        offset,
        len: 8192,
        at_ns,
    };
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |_| {});
        let runs = (0..40).map(|run| (8192 * 3 * run, 50 * MS * run));
        let pairs = runs.flat_map(|(at, began)| [(at, began), (at + 8192, began + 4 * MS)]);
        let inode = FileId(lab.file.inode);
        let trace: Vec<Observed> = pairs
            .map(|(offset, at)| Observed {
                file: inode,
                ..observed(offset, at)
            })
            .collect();
        let prediction = Prediction::new(&[trace], &CostModel::default());
        let mut options = Options::for_policy("aioli");
        options.table.set("prediction", "recorded");
        options.depth = 1;
        options.prediction = Some(Arc::new(prediction));
        lab.host.tell(Input::PolicyFound(options));
        lab.call_ns = MS / 2;
        for run in 0..40 {
            lab.reads("a", 8192 * 3 * run, 8192);
            let pause = lab.random(MS);
            lab.passes(4 * MS + pause);
            lab.reads("a", 8192 * 3 * run + 8192, 8192);
            lab.ends();
        }
        lab.lost("a", Cause::Prediction, None);
    }
}

#[test]
fn a_chunk_waits_for_the_one_before_it() {
    let mut lab = Lab::new(1, |config| {
        config.scheduler.depth = 8;
        config.pipelining = Pipelining::Serial;
    });
    for operation in 1..8 {
        for chunk in 0..3 {
            let hints = Hints {
                operation,
                operation_bytes: 3 * 4096,
                ..Hints::default()
            };
            let op = read(lab.file, chunk * 4096, 4096);
            lab.sends("a", op, hints);
        }
        lab.ends();
    }
    lab.lost("a", Cause::Overlap, Some("a"));
}

#[test]
fn payload_waits_for_memory() {
    for seed in 0..SEEDS {
        let mut lab = Lab::new(seed, |config| {
            config.pool_bytes_max = 1 << 20;
            config.scheduler.depth = 8;
        });
        for round in 0..10 {
            lab.reads("b", round << 20, 1 << 20);
            let pause = lab.random(3 * MS);
            lab.passes(pause);
            lab.reads("a", 0, 4096);
            lab.ends();
        }
        lab.lost("a", Cause::Memory, None);
    }
}

#[test]
fn a_user_sees_no_name_of_another_s_application() {
    let mut lab = Lab::new(1, |_| {});
    lab.host.hold_jobs = false;
    for (app, uid) in [("a", 1000), ("b", 1001)] {
        let mut tester = Tester::of(&mut lab.host, uid.into(), peer(uid));
        tester.find(&mut lab.host, "file");
        tester.call(&mut lab.host, named(app)).expect("named");
        lab.testers.insert(app, tester);
    }
    // Rights are known afterwards.
    for app in ["a", "b"] {
        lab.reads(app, 0, 1);
    }
    lab.host.hold_jobs = true;
    for _ in 0..4 {
        lab.reads("b", 0, 4096);
    }
    lab.reads("a", 0, 4096);
    lab.ends();
    let mut seen = |app: &str| {
        let tester = lab.testers.get_mut(app).expect("it is there");
        match tester.call(&mut lab.host, Op::Status) {
            Ok(Outcome::Text(text)) => String::from_utf8(text.into()).expect("text"),
            other => panic!("no status: {other:?}"),
        }
    };
    let text = seen("a");
    assert!(text.contains(r#""name":"a","uid":1000"#), "{text}");
    let wanted = r#""neighbours":[{"others":true,"ns":{"device":"#;
    assert!(text.contains(wanted), "{text}");
    assert!(!text.contains(r#""name":"b""#), "{text}");
    let hidden = AppId::from_name("b").of_user(1001).0;
    assert!(!text.contains(&alloc::format!("{hidden:016x}")), "{text}");
    let all = share_tests::status(&mut lab.host);
    assert!(
        all.contains(r#""name":"b","uid":1001,"ns":{"device":"#),
        "{all}"
    );
}

#[test]
fn who_waits_now_is_in_it() {
    let mut lab = Lab::new(1, |_| {});
    lab.call_ns = 100 * SECOND;
    lab.reads("b", 0, 4096);
    lab.reads("a", 0, 4096);
    lab.passes(40 * SECOND);
    let (ns, neighbours) = lab.host.forwarder.waits_of(AppId::from_name("a").0);
    assert_eq!(ns[Cause::Device as usize], 40 * SECOND);
    let b = AppId::from_name("b").0;
    assert_eq!(neighbours, [(b, Cause::Device, 40 * SECOND)]);
    lab.passes(10 * SECOND);
    let text = share_tests::status(&mut lab.host);
    let of = |app: &str| alloc::format!(r#""name":"{app}""#);
    let wanted = [
        r#""waits":{"requests":0,"ns":{"device":50000000000},"histogram_us":[],"#.to_string(),
        alloc::format!(
            r#""neighbours":[{{"app":"{b:016x}",{},"uid":0,"ns":{{"device":50000000000}}}}]}}"#,
            of("b")
        ),
        r#""prediction":0,"device":50000000000,"service":50000000000},"#.to_string(),
    ];
    for part in wanted {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    lab.ends();
    lab.lost("a", Cause::Device, Some("b"));
}

#[test]
fn what_an_ended_client_leaves_has_no_place() {
    let mut lab = Lab::new(1, |config| {
        config.scheduler.queued_max = 1;
        config.credits = 1000;
    });
    let extents: Vec<(u64, u64)> = (0..200).map(|at| (at * 2, 1)).collect();
    for app in ["a", "b"] {
        for _ in 0..4 {
            let op = data_tests::list(lab.file, &extents, false);
            lab.sends(app, op, Hints::default());
        }
    }
    assert!(lab.host.forwarder.waits_in_use().0 > 4);
    let tester = lab.testers.get_mut("b").expect("it is there");
    tester.send(&mut lab.host, Op::Bye, &[]);
    lab.host.replies.clear();
    let conn = tester.conn;
    lab.sent.retain(|(of, _), _| *of != conn);
    lab.ends();
    assert_eq!(lab.host.forwarder.waits_in_use(), (0, 0));
}

#[test]
fn who_waits_for_its_checks_now_is_in_it() {
    let mut lab = Lab::new(1, |_| {});
    lab.host.hold_jobs = false;
    let mut tester = Tester::of(&mut lab.host, 1000, peer(1000));
    tester.find(&mut lab.host, "file");
    tester.call(&mut lab.host, named("a")).expect("named");
    lab.testers.insert("a", tester);
    lab.host.hold_jobs = true;
    // The back end does not say whether the user may read the file.
    lab.call_ns = 100 * SECOND;
    lab.reads("a", 0, 1);
    lab.passes(40 * SECOND);
    let app = AppId::from_name("a").of_user(1000).0;
    for _ in 0..2 {
        let (ns, _) = lab.host.forwarder.waits_of(app);
        assert_eq!(ns[Cause::Checks as usize], 40 * SECOND);
        assert_eq!(ns.iter().sum::<u64>(), 40 * SECOND);
    }
    lab.ends();
    let (ns, _) = lab.host.forwarder.waits_of(app);
    assert_eq!(ns.iter().sum::<u64>(), lab.took["a"]);
}
