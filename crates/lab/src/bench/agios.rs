//! AGIOS's experiment on real forwarders (Boito et al., ICPADS'13, figures 5 and 6): concurrent
//! programs with strided calls that reach the servers in small pieces.

use super::cluster::{Cluster, Shape, at, open};
use super::statistics::{change_percent, largest, median, smallest};
use super::workplace::Workplace;
use super::{Access, Claim, Common};
use serde_json::json;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;
use tidegate_client::fs::{File, OpenHow};
use tidegate_client::{Bytes, Client, Context};

const INSTANCES: usize = 4;
const FORWARDERS: usize = 4;
/// What the paper's NFS client makes of a call.
const PIECE: u64 = 8 << 10;
/// The paper's stripe.
const STRIPE: u64 = 32 << 10;
const CONTEXT: fn() -> Context = Context::default;

/// The columns: a name, and the `[scheduler]` table.
const POLICIES: [(&str, &str); 3] = [
    ("fifo", "policy = \"fifo\"\ndepth = 1\n"),
    (
        "aioli",
        "policy = \"aioli\"\ndepth = 1\nprediction = \"off\"\n",
    ),
    (
        "aioli, online",
        "policy = \"aioli\"\ndepth = 1\nprediction = \"online\"\n",
    ),
];

/// Four programs, each with its own file, make strided calls that reach four forwarders in pieces
/// of 8 KiB (Boito et al., ICPADS'13, figures 5 and 6).
///
/// Every forwarder has an emulated 7200 rpm disk that does one thing at a time. A program has
/// several processes; call n of process p is number n P + p of the program's file. A process makes
/// its next call when all pieces of the last one are answered. Pieces are delayed on their way by a
/// random time, as on a network. Measured is when the slowest program is done: under `fifo`, under
/// `aioli`, which joins pieces that are there, and under `aioli` with online prediction, which may
/// wait for a piece that it expects. Each round uses new files, so what the predictor knows it
/// learned within the round.
#[derive(clap::Args, Clone, Debug)]
pub struct Agios {
    /// Processes of each program
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=16))]
    processes: u32,
    /// Calls of each process
    #[arg(long, value_name = "N", default_value_t = 24,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    calls: u32,
    /// Pieces of 8 KiB of each call
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=32))]
    pieces: u32,
    /// Longest delay of a piece on its way, in microseconds
    #[arg(long, value_name = "US", default_value_t = 3000,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    jitter_us: u32,
    /// Reads instead of writes
    #[arg(long)]
    read: bool,
    /// Rounds of each policy; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    #[command(flatten)]
    common: Common,
}

/// One round under one policy.
struct Round {
    makespan_s: f64,
    calls: u64,
}

impl Agios {
    /// Measures, and prints the table.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        if self.common.quick {
            (self.calls, self.repetitions) = (self.calls.min(2), 1);
        }
        let place = Workplace::make(&self.common.dir, "bench")?;
        let jitter_us = self.jitter_us;
        let sections = |index: usize| {
            format!(
                "[device]\nmodel = \"hdd-7200\"\ndepth = 1\n\
                 [emulation]\nmessage_jitter_us = {jitter_us}\nmessage_jitter_seed = {index}\n"
            )
        };
        let shape = Shape::new("agios", FORWARDERS, STRIPE, &sections);
        let cluster = Cluster::start(&place, &shape)?;
        let count = INSTANCES * self.processes as usize;
        let clients = (0..count)
            .map(|process| cluster.client(&format!("program{}", process % INSTANCES), |_| {}))
            .collect::<Result<Vec<_>, Fail>>()?;
        let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
        for number in 0..self.repetitions {
            for ((name, table), into) in POLICIES.iter().zip(&mut rounds) {
                cluster.set_policy(&clients[0], table)?;
                into.push(self.round(&cluster, &clients, &format!("{name}.{number}"))?);
            }
        }
        let claims = self.common.claims(|| claims(&rounds));
        Ok(self
            .common
            .conclude(&claims, || self.json(&rounds), || self.text(&rounds)))
    }

    fn access(&self) -> Access {
        if self.read {
            Access::Read
        } else {
            Access::Write
        }
    }

    fn file_bytes(&self) -> u64 {
        u64::from(self.processes) * u64::from(self.calls) * u64::from(self.pieces) * PIECE
    }

    fn requests(&self) -> u64 {
        INSTANCES as u64 * self.file_bytes() / PIECE
    }

    /// Runs all programs once, on files of their own.
    fn round(
        &self,
        cluster: &Cluster<'_>,
        clients: &[Arc<Client>],
        name: &str,
    ) -> Result<Round, Fail> {
        let name = |instance: usize| format!("{}.{instance}", name.replace(", ", "-"));
        for instance in 0..INSTANCES {
            let path = cluster.export().join(name(instance));
            std::fs::write(&path, vec![1; self.file_bytes() as usize]).map_err(at(&path))?;
        }
        let open = |(process, client)| open(client, &name(process % INSTANCES), &OpenHow::create());
        let files = clients.iter().enumerate().map(open);
        let files = files.collect::<Result<Vec<File>, Fail>>()?;
        let before = cluster.back_end_calls(&clients[0], self.access())?;
        let start = Barrier::new(files.len() * self.pieces as usize);
        let ends = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, file) in files.iter().enumerate() {
                let rank = (number / INSTANCES) as u64;
                let together = Arc::new(Barrier::new(self.pieces as usize));
                for piece in 0..u64::from(self.pieces) {
                    let (start, together) = (&start, Arc::clone(&together));
                    threads.push(scope.spawn(move || {
                        start.wait();
                        let began = Instant::now();
                        self.program(file, rank, piece, &together)?;
                        Ok(began.elapsed().as_secs_f64())
                    }));
                }
            }
            let joined = threads.into_iter();
            joined
                .map(|thread| thread.join().expect("a process panicked"))
                .collect::<Result<Vec<f64>, Fail>>()
        })?;
        Ok(Round {
            makespan_s: ends.into_iter().fold(0.0, f64::max),
            calls: cluster.back_end_calls(&clients[0], self.access())? - before,
        })
    }

    /// Makes one piece of each call of a process; the threads of a process begin a call together.
    fn program(&self, file: &File, rank: u64, piece: u64, together: &Barrier) -> Result<(), Fail> {
        let content = Bytes::from(vec![2; PIECE as usize]);
        let mut failed = None;
        for call in 0..u64::from(self.calls) {
            together.wait();
            let number = call * u64::from(self.processes) + rank;
            let offset = (number * u64::from(self.pieces) + piece) * PIECE;
            let done = match self.read {
                true => file.pread(&CONTEXT(), offset, PIECE as usize).map(|_| ()),
                false => file.pwrite(&CONTEXT(), offset, content.clone()).map(|_| ()),
            };
            // Going on keeps the others from waiting for this one at the next call for ever.
            failed = failed.or(done.err());
        }
        match failed {
            None => Ok(()),
            Some(errno) => Err(Fail::runtime(format!("a piece of a call: {errno}"))),
        }
    }

    fn text(&self, rounds: &[Vec<Round>; 3]) -> String {
        let heading = ["", POLICIES[0].0, POLICIES[1].0, POLICIES[2].0];
        let row = |what: &str, show: &dyn Fn(&[Round]) -> String| {
            let mut row = vec![what.to_string()];
            row.extend(rounds.iter().map(|rounds| show(rounds)));
            row
        };
        let fifo = makespan(&rounds[0]);
        let base = makespan(&rounds[1]);
        let rows = [
            row("makespan, s", &|rounds| format!("{:.3}", makespan(rounds))),
            row("against fifo", &|rounds| {
                format!("{:+.1} %", change_percent(makespan(rounds), fifo))
            }),
            row("against aioli", &|rounds| {
                format!("{:+.1} %", change_percent(makespan(rounds), base))
            }),
            row("requests a back-end call", &|rounds| {
                format!("{:.2}", self.requests() as f64 / calls(rounds))
            }),
        ];
        format!(
            "{INSTANCES} programs of {} processes, {} calls of {} KiB each in pieces of 8 KiB, {}; \
             {FORWARDERS} forwarders\non emulated disks, pieces up to {:.1} ms late; medians of {} \
             rounds\n{}The paper, against its base: -29.5 % on the mean for writes, -20.7 % for \
             reads.\n",
            self.processes,
            self.calls,
            (u64::from(self.pieces) * PIECE) >> 10,
            if self.read { "read" } else { "written" },
            f64::from(self.jitter_us) / 1000.0,
            self.repetitions,
            lay_out(&heading, &rows)
        )
    }

    fn json(&self, rounds: &[Vec<Round>; 3]) -> serde_json::Value {
        let one = |((name, _), rounds): (&(&str, &str), &Vec<Round>)| {
            json!({
                "policy": name,
                "makespan_s": makespan(rounds),
                "requests_a_call": self.requests() as f64 / calls(rounds),
            })
        };
        let policies: Vec<_> = POLICIES.iter().zip(rounds).map(one).collect();
        json!({
            "bench": "agios-2013-fig6",
            "instances": INSTANCES,
            "processes": self.processes,
            "calls": self.calls,
            "pieces": self.pieces,
            "jitter_us": self.jitter_us,
            "repetitions": self.repetitions,
            "direction": self.access().name(),
            "policies": policies,
        })
    }
}

fn makespan(rounds: &[Round]) -> f64 {
    median(rounds.iter().map(|round| round.makespan_s))
}

fn calls(rounds: &[Round]) -> f64 {
    median(rounds.iter().map(|round| round.calls as f64))
}

fn claims(rounds: &[Vec<Round>; 3]) -> Vec<Claim> {
    let [fifo, base, online] = rounds;
    let claim = |what: &str, ours: &[Round], against: &[Round], most: f64| {
        let pairs = ours.iter().zip(against);
        let changes = pairs.map(|(a, b)| change_percent(a.makespan_s, b.makespan_s));
        let changes: Vec<f64> = changes.collect();
        let change = median(changes.iter().copied());
        let (low, high) = (smallest(&changes), largest(&changes));
        let text = format!(
            "{what} {change:+.1} %, median of rounds from {low:+.1} to {high:+.1} %, at most \
             {most:+} %"
        );
        Claim::new(text, change <= most)
    };
    vec![
        claim("aioli against fifo", base, fifo, -10.0),
        claim("online prediction against aioli", online, base, 2.0),
    ]
}
