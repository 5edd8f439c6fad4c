//! The policy `hio` against `window` on random instances: the table of docs/hio.md.
//!
//! Each row is a class of instances, from fixed seeds. The policies order them themselves
//! (`served_by`); what an order is worth is computed. The rows above the line are the
//! ones on which `hio` must never be behind. `TIDEGATE_BLESS=1 cargo test -p tidegate-sim --test
//! hio` writes the table anew.

mod served;

use served::served_by;
use std::fmt::Write;
use std::path::PathBuf;
use tidegate_sched::{
    AccessCost, AppId, Direction, FileId, Input, Options, Output, Request, RequestId, Scheduler,
    Time,
};
use tidegate_sim::bounds::{Instance, Needs};
use tidegate_sim::rng::Rng;

const INSTANCES: u64 = 60;

/// The time that a part takes where all are equal, ns.
const UNIT: f64 = 1e6;

/// How long parts are served.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Equal,
    /// One size for each operation, the same on all servers.
    Lognormal,
    /// Times 0.1 to 2, apart for each server.
    Uneven,
    LognormalUneven,
}

/// What follows them.
#[derive(Clone, Copy, PartialEq)]
enum Shuffles {
    None,
    /// 2 to 6 % of the part's own time.
    Short,
    /// Evenly between nothing and twice the time of a mean part.
    Uniform,
    /// One part of each operation, in turn on each server: as long as all reads of a server.
    Slow,
    /// The same on a server drawn for each operation.
    SlowDrawn,
    /// A quarter of that, in turn.
    SlowShort,
}

struct Class {
    name: &'static str,
    operations: usize,
    servers: usize,
    work: Work,
    shuffles: Shuffles,
}

const fn class(
    name: &'static str,
    operations: usize,
    servers: usize,
    work: Work,
    shuffles: Shuffles,
) -> Class {
    Class {
        name,
        operations,
        servers,
        work,
        shuffles,
    }
}

/// Where operations have equal parts on all servers, or nothing has a shuffle.
const PROMISED: [Class; 14] = [
    class("equal, shuffles 2-6 %", 4, 3, Work::Equal, Shuffles::Short),
    class(
        "equal, shuffles U(0,2)",
        4,
        3,
        Work::Equal,
        Shuffles::Uniform,
    ),
    class(
        "one slow aggregator an operation",
        4,
        3,
        Work::Equal,
        Shuffles::Slow,
    ),
    class("lognormal", 4, 3, Work::Lognormal, Shuffles::None),
    class(
        "lognormal, uneven servers",
        4,
        3,
        Work::LognormalUneven,
        Shuffles::None,
    ),
    class(
        "lognormal, shuffles U(0,2)",
        4,
        3,
        Work::Lognormal,
        Shuffles::Uniform,
    ),
    class("lognormal", 16, 16, Work::Lognormal, Shuffles::None),
    class(
        "lognormal, uneven servers",
        16,
        16,
        Work::LognormalUneven,
        Shuffles::None,
    ),
    class(
        "equal, shuffles U(0,2)",
        16,
        16,
        Work::Equal,
        Shuffles::Uniform,
    ),
    class(
        "one slow aggregator an operation",
        16,
        16,
        Work::Equal,
        Shuffles::Slow,
    ),
    class(
        "one slow, on a drawn server",
        16,
        16,
        Work::Equal,
        Shuffles::SlowDrawn,
    ),
    class(
        "one slow, a quarter as long",
        16,
        16,
        Work::Equal,
        Shuffles::SlowShort,
    ),
    class(
        "one slow, lognormal",
        16,
        16,
        Work::Lognormal,
        Shuffles::Slow,
    ),
    class(
        "lognormal, shuffles U(0,2)",
        16,
        16,
        Work::Lognormal,
        Shuffles::Uniform,
    ),
];

/// Where servers are uneven, so that slack is not known exactly.
const UNEVEN: [Class; 5] = [
    class(
        "uneven, shuffles U(0,2)",
        4,
        3,
        Work::Uneven,
        Shuffles::Uniform,
    ),
    class(
        "uneven, shuffles U(0,2)",
        16,
        16,
        Work::Uneven,
        Shuffles::Uniform,
    ),
    class("uneven, one slow", 16, 16, Work::Uneven, Shuffles::Slow),
    class(
        "uneven, one slow, a quarter as long",
        16,
        16,
        Work::Uneven,
        Shuffles::SlowShort,
    ),
    class(
        "lognormal, uneven, shuffles U(0,2)",
        16,
        16,
        Work::LognormalUneven,
        Shuffles::Uniform,
    ),
];

/// Operations with two equal parts on each server, which differ in their shuffles.
const PAIRED: [Class; 3] = [
    class(
        "two parts a server, shuffles U(0,2)",
        16,
        16,
        Work::Equal,
        Shuffles::Uniform,
    ),
    class(
        "two parts a server, one slow",
        16,
        16,
        Work::Equal,
        Shuffles::Slow,
    ),
    class(
        "two parts a server, one slow, drawn U(0,8)",
        16,
        16,
        Work::Equal,
        Shuffles::SlowDrawn,
    ),
];

fn uniform(rng: &mut Rng, from: f64, to: f64) -> f64 {
    from + (to - from) * rng.below(1 << 53) as f64 / (1u64 << 53) as f64
}

/// `exp` of a variable that is normal enough, by arithmetic that is the same on every machine.
fn lognormal(rng: &mut Rng) -> f64 {
    let normal: f64 = (0..12).map(|_| uniform(rng, 0.0, 1.0)).sum::<f64>() - 6.0;
    (0..12).fold(1.0 + normal / 4096.0, |power, _| power * power)
}

impl Class {
    fn instance(&self, rng: &mut Rng) -> Instance {
        let mut works: Vec<Vec<f64>> = Vec::new();
        for _ in 0..self.operations {
            let size = match self.work {
                Work::Equal | Work::Uneven => 1.0,
                Work::Lognormal | Work::LognormalUneven => lognormal(rng),
            };
            let even = matches!(self.work, Work::Equal | Work::Lognormal);
            let part = |_| if even { 1.0 } else { uniform(rng, 0.1, 2.0) };
            works.push((0..self.servers).map(part).map(|x| x * size).collect());
        }
        let busy: f64 = works.iter().map(|work| work[0]).sum();
        let needs = works.iter().enumerate().map(|(index, work)| {
            let slow = match self.shuffles {
                Shuffles::SlowDrawn => rng.below(self.servers as u64) as usize,
                _ => index % self.servers,
            };
            let shuffle = |server: usize| match self.shuffles {
                Shuffles::None => 0.0,
                Shuffles::Short => work[server] * uniform(rng, 0.02, 0.06),
                Shuffles::Uniform => uniform(rng, 0.0, 2.0),
                _ if server != slow => 0.0,
                Shuffles::SlowShort => busy / 4.0,
                Shuffles::Slow | Shuffles::SlowDrawn => busy,
            };
            // Shuffles are told in microseconds.
            let us = |shuffle: f64| (shuffle * 1e3).round() as u64 * 1000;
            Needs {
                app: index as u64,
                released_ns: 0,
                shuffles_ns: (0..self.servers).map(shuffle).map(us).collect(),
                work_ns: work.iter().map(|work| (work * UNIT) as u64 + 1).collect(),
            }
        });
        let needs = needs.collect();
        Instance::new(self.servers, needs).expect("every operation names every server")
    }

    fn measure(&self) -> Row {
        let mut row = Row::default();
        for seed in 0..INSTANCES {
            let mut rng = Rng::new(seed);
            let instance = self.instance(&mut rng);
            let value = |orders: &[Vec<usize>]| instance.value_per_server(orders).sum_ns as f64;
            let by = |policy: &str, paper_exact: bool| {
                let mut options = Options::for_policy(policy);
                options.table.set("order", "id");
                if paper_exact {
                    options.table.set("paper_exact", true);
                }
                value(&served_by(&instance, &options).expect("it exists"))
            };
            let window = by("window", false);
            let hio = by("hio", false);
            row.window += window;
            row.uncoordinated += value(&instance.random_per_server(&mut rng));
            row.paper_exact += by("hio", true);
            row.hio += hio;
            row.worst = row.worst.max(hio / window);
        }
        row
    }
}

/// An instance of `PAIRED`: the shuffles by operation and aggregator, us. A server has two
/// aggregators that follow each other.
struct Paired {
    shuffles_us: Vec<Vec<u32>>,
}

impl Paired {
    fn new(class: &Class, rng: &mut Rng) -> Paired {
        let aggregators = 2 * class.servers;
        // As long as all reads of a server.
        let slow_us = 2 * class.operations as u32 * 1000;
        let shuffles_us = (0..class.operations).map(|operation| {
            let drawn = rng.below(aggregators as u64) as usize;
            let drawn_us = (uniform(rng, 0.0, 8.0) * 1e3).round() as u32;
            let shuffle_us = |aggregator: usize| match class.shuffles {
                Shuffles::Slow if aggregator == 2 * operation % aggregators => slow_us,
                Shuffles::SlowDrawn if aggregator == drawn => drawn_us,
                Shuffles::Slow | Shuffles::SlowDrawn => 0,
                _ => (uniform(rng, 0.0, 2.0) * 1e3).round() as u32,
            };
            (0..aggregators).map(shuffle_us).collect()
        });
        Paired {
            shuffles_us: shuffles_us.collect(),
        }
    }

    /// What a server is asked for: operation and aggregator.
    fn parts(&self, server: usize) -> Vec<(usize, usize)> {
        let operations = 0..self.shuffles_us.len();
        let both = |operation| [2 * server, 2 * server + 1].map(|part| (operation, part));
        operations.flat_map(both).collect()
    }

    fn request(&self, operation: usize, aggregator: usize) -> Request {
        let shuffles = &self.shuffles_us[operation];
        let longer = shuffles.iter().enumerate().filter(|&(other, shuffle_us)| {
            *shuffle_us > shuffles[aggregator]
                || *shuffle_us == shuffles[aggregator] && other < aggregator
        });
        let (id, app) = (
            RequestId((operation * shuffles.len() + aggregator) as u64),
            AppId(operation as u64),
        );
        Request {
            stamp_ns: operation as u64,
            shuffle_us: shuffles[aggregator],
            shuffle_max_us: *shuffles.iter().max().expect("there are aggregators"),
            shuffle_rank: longer.count() as u16,
            ..Request::new(id, app, FileId(id.0), Direction::Read, 0, UNIT as u64)
        }
    }

    /// The sum of the times at which operations are done, by each server's order, ns.
    fn sum_ns(&self, orders: impl Iterator<Item = Vec<(usize, usize)>>) -> f64 {
        let mut done_ns = vec![0; self.shuffles_us.len()];
        for order in orders {
            let mut at_ns = 0;
            for (operation, aggregator) in order {
                at_ns += UNIT as u64;
                let shuffle_ns = u64::from(self.shuffles_us[operation][aggregator]) * 1000;
                done_ns[operation] = (at_ns + shuffle_ns).max(done_ns[operation]);
            }
        }
        done_ns.iter().sum::<u64>() as f64
    }

    fn served_at(&self, server: usize, options: &Options) -> Vec<(usize, usize)> {
        let mut scheduler = Scheduler::new(options).expect("it exists");
        for (operation, aggregator) in self.parts(server) {
            let request = self.request(operation, aggregator);
            let taken = scheduler.handle(Time(0), Input::Arrived(request));
            taken.expect("fewer than a queue holds");
        }
        let (mut order, mut batch) = (Vec::new(), Vec::new());
        let aggregators = self.shuffles_us[0].len();
        while scheduler.poll(Time(0), &mut batch) == Output::Dispatch {
            for request in &batch {
                let id = request.id.0 as usize;
                order.push((id / aggregators, id % aggregators));
                let finished = scheduler.handle(Time(0), Input::Finished(request.id));
                finished.expect("it runs");
            }
        }
        order
    }

    fn measure(class: &Class) -> Row {
        let mut row = Row::default();
        for seed in 0..INSTANCES {
            let mut rng = Rng::new(seed);
            let paired = Paired::new(class, &mut rng);
            let by = |policy: &str, paper_exact: bool| {
                let mut options = Options::for_policy(policy);
                // A byte takes a nanosecond.
                for sequential in [false, true] {
                    *options.cost.access_mut(Direction::Read, sequential) = AccessCost {
                        base_ns: 0,
                        ns_per_mib: 1 << 20,
                    };
                }
                (options.estimate, options.depth) = (false, 1);
                options.table.set("order", "id");
                if paper_exact {
                    options.table.set("paper_exact", true);
                }
                let orders = (0..class.servers).map(|server| paired.served_at(server, &options));
                paired.sum_ns(orders)
            };
            let (window, hio) = (by("window", false), by("hio", false));
            row.window += window;
            row.paper_exact += by("hio", true);
            row.hio += hio;
            row.worst = row.worst.max(hio / window);
            row.uncoordinated += paired.sum_ns((0..class.servers).map(|server| {
                let mut order = paired.parts(server);
                for i in (1..order.len()).rev() {
                    order.swap(i, rng.below(i as u64 + 1) as usize);
                }
                order
            }));
        }
        row
    }
}

/// Sums of completion times, and the worst instance of `hio` against `window`.
#[derive(Default)]
struct Row {
    window: f64,
    uncoordinated: f64,
    paper_exact: f64,
    hio: f64,
    worst: f64,
}

fn table<'a>(rows: impl Iterator<Item = (&'a Class, &'a Row)>) -> String {
    let mut text = String::from(
        "| operations x servers | instances | no coordination | `hio`, `paper_exact` | `hio` | \
         `hio`, worst of 60 |\n\
         |---|---|---|---|---|---|\n",
    );
    for (class, row) in rows {
        let ratio = |sum: f64| sum / row.window;
        writeln!(
            text,
            "| {} x {} | {} | {:.3} | {:.3} | {:.3} | {:.3} |",
            class.operations,
            class.servers,
            class.name,
            ratio(row.uncoordinated),
            ratio(row.paper_exact),
            ratio(row.hio),
            row.worst
        )
        .expect("a string takes all");
    }
    text
}

/// Replaces, or compares, what stands between two marks.
fn keep(text: &mut String, mark: &str, table: &str) {
    let (from, to) = (
        format!("<!-- {mark} -->\n\n"),
        format!("\n<!-- end of {mark} -->"),
    );
    let start = text.find(&from).expect("docs/hio.md has the mark") + from.len();
    let end = text.find(&to).expect("docs/hio.md has the mark's end");
    text.replace_range(start..end, table);
}

#[test]
fn hio_is_never_behind_window_and_the_table_is_what_it_says() {
    let measured = |classes: &[Class]| -> Vec<Row> { classes.iter().map(Class::measure).collect() };
    let (promised, uneven) = (measured(&PROMISED), measured(&UNEVEN));
    let paired: Vec<Row> = PAIRED.iter().map(Paired::measure).collect();
    let even = || {
        let paired = PAIRED.iter().zip(&paired);
        PROMISED.iter().zip(&promised).chain(paired)
    };
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/hio.md");
    let old = std::fs::read_to_string(&path).expect("docs/hio.md");
    let mut new = old.clone();
    keep(&mut new, "even", &table(even()));
    keep(&mut new, "uneven", &table(UNEVEN.iter().zip(&uneven)));
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, &new).expect("it can be written");
    } else {
        assert_eq!(
            old, new,
            "docs/hio.md is not what is measured; see this file"
        );
    }
    for (class, row) in even() {
        assert!(row.worst <= 1.0, "{}: {} of window", class.name, row.worst);
    }
    for (class, row) in UNEVEN.iter().zip(&uneven) {
        assert!(row.hio <= 1.01 * row.window, "{}", class.name);
    }
    let of = |shuffles: Shuffles| {
        let found = PROMISED.iter().zip(&promised);
        let mut found = found
            .filter(|(class, _)| class.servers == 16 && class.work == Work::Equal)
            .filter(|(class, _)| class.shuffles == shuffles);
        found.next().expect("it is in the table").1
    };
    // The form as in the paper gains as much where one aggregator is slow, and loses
    // half where shuffles are of the length of reads.
    let slow = of(Shuffles::Slow);
    assert!(slow.hio <= 0.82 * slow.window);
    assert!((slow.paper_exact / slow.window - 0.694).abs() < 0.005);
    let short = of(Shuffles::Uniform);
    assert!((short.paper_exact / short.window - 1.53).abs() < 0.02);
}
