//! How fast the simulator is: events per second of a load like Song's figure 7.
//!
//! `cargo run --release -p tidegate-sim --example speed -- FORWARDERS NODES PROCESSES REQUESTS
//! BYTES`

use std::time::Instant;
use tidegate_device::DeviceOptions;
use tidegate_sched::{Direction, Options};
use tidegate_sim::rng::Rng;
use tidegate_sim::world::{
    Access, Application, ForwarderOptions, NetworkOptions, Process, Program, Setup, Step, run,
};
use tidegate_wire::Extent;

struct Sequential {
    file: u64,
    at: u64,
    bytes: u64,
    stride: u64,
    left: u64,
    barrier: bool,
}

impl Program for Sequential {
    fn next(&mut self, _: &mut Rng) -> Step {
        if std::mem::replace(&mut self.barrier, false) {
            return Step::Barrier;
        }
        if self.left == 0 {
            return Step::Exit;
        }
        self.left -= 1;
        self.barrier = true;
        let extent = Extent {
            offset: self.at,
            len: self.bytes,
        };
        self.at += self.stride;
        Step::Call(Access {
            file: self.file,
            direction: Direction::Read,
            extents: extent.into(),
        })
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .map(|number| number.parse().expect("a number"))
        .collect();
    let [forwarders, nodes, processes, requests, bytes] = numbers[..] else {
        panic!("FORWARDERS NODES PROCESSES REQUESTS BYTES");
    };
    for policy in ["fifo", "window"] {
        let applications = (0..10).map(|app| Application {
            name: format!("pio-{app}"),
            processes: (0..processes / 10)
                .map(|rank| Process {
                    node: ((app * processes / 10 + rank) % nodes) as u32,
                    starts_ns: 0,
                    program: Box::new(Sequential {
                        file: app + 10,
                        at: rank * bytes,
                        bytes,
                        stride: bytes * processes / 10,
                        left: requests,
                        barrier: false,
                    }),
                })
                .collect(),
        });
        let setup = Setup {
            seed: 1,
            nodes: nodes as u32,
            clock_skew_ns: 0,
            network: NetworkOptions::preset("gigabit-ethernet").expect("it is one"),
            forwarders: ForwarderOptions {
                count: forwarders as u16,
                stripe: 65536,
                payload_max: 1 << 20,
                pool_bytes: 256 << 20,
                credits: 64,
                merge_blocks: true,
                request_ns: 5_000,
                copy_mb_s: None,
                contention_percent: 0,
                memory_mb_s: 3000,
                device: DeviceOptions::preset("hdd-7200").expect("it is one"),
                scheduler: Options::for_policy(policy),
            },
            turns_disks: true,
            open_sessions: false,
            note_served: false,
            keep_accesses: false,
            record: false,
            records_max: 0,
            predictions: Vec::new(),
            rehearsals: Vec::new(),
            applications: applications.collect(),
            faults: Vec::new(),
            limit_ns: 100_000_000_000_000,
        };
        let start = Instant::now();
        let outcome = run(setup).expect("it ends");
        let seconds = start.elapsed().as_secs_f64();
        let calls: u64 = outcome.work.iter().map(|work| work.calls).sum();
        println!(
            "{policy}: {} events in {seconds:.2} s, {:.2} million/s; {} accesses, {calls} calls, \
             {:.1} s virtual",
            outcome.events,
            outcome.events as f64 / seconds / 1e6,
            outcome.totals.accesses.count(),
            outcome.end_ns as f64 / 1e9,
        );
    }
}
