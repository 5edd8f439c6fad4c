//! The round robin of the I/O forwarding layer (Ohta et al. 2010, figures 6 and 7): many clients
//! that write small interleaved records of one file, and how many calls reach the back end.

use super::cluster::{Cluster, Shape, at};
use super::statistics::change_percent;
use super::workplace::Workplace;
use super::{Claim, Common, claims_json, judge};
use crate::fail::Fail;
use crate::table::lay_out;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use tidegate_client::fs::{File, OpenHow};
use tidegate_client::{Bytes, Client, Context};

const RECORD: usize = 32 << 10;
const CALLS_PERCENT_MAX: f64 = 25.0;
const POLICIES: [&str; 2] = ["fifo", "round-robin"];

/// 64 clients write interleaved records of 32 KiB to one file, through one forwarder (Ohta et al.
/// 2010).
///
/// The clients belong to one application; record `k` of client `c` is number `64 k + c` of the
/// file, and each client writes its next record when the one before is acknowledged. The forwarder
/// has an emulated disk that does one thing at a time. `fifo` makes one call to the back end for
/// each record; `round-robin` takes up to a quantum of the file's requests in one turn and joins
/// those that touch. The calls are counted by the forwarder, not timed, so the result does not
/// depend on the machine; the file is compared with what was written.
#[derive(clap::Args, Clone, Debug)]
pub struct Hbrr {
    /// Clients, each with a session of its own
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=240))]
    clients: u32,
    /// Records of each client
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    records: u32,
    /// Exit with 1 if a claim does not hold
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    common: Common,
}

/// What one policy did.
struct Run {
    calls: u64,
    seconds: f64,
    identical: bool,
}

impl Hbrr {
    /// Measures, and prints the table.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let place = Workplace::make(&self.common.dir, "bench")?;
        let model = if self.common.quick {
            "ideal"
        } else {
            "hdd-7200"
        };
        let sections =
            |_| format!("[device]\nmodel = \"{model}\"\ndepth = 1\n[log]\nlevel = \"warn\"\n");
        let shape = Shape {
            name: "hbrr",
            forwarders: 1,
            stripe: 1 << 20,
            nice: 0,
            sections: &sections,
        };
        let cluster = Cluster::start(&place, &shape)?;
        let clients = (0..self.clients)
            .map(|_| cluster.client("ior", |_| {}))
            .collect::<Result<Vec<_>, Fail>>()?;
        let records = if self.common.quick {
            self.records.min(2)
        } else {
            self.records
        };
        let mut runs = Vec::new();
        for policy in POLICIES {
            cluster.set_policy(&clients[0], &format!("policy = \"{policy}\"\ndepth = 1\n"))?;
            runs.push(run(&cluster, &clients, policy, records)?);
        }
        let claims = claims(&runs[0], &runs[1]);
        match self.common.json {
            true => println!("{}", self.json(&runs, records, &claims)),
            false => print!("{}", self.text(&runs, records)),
        }
        Ok(judge(&claims, self.check, self.common.json))
    }

    fn bytes(&self, records: u32) -> u64 {
        u64::from(self.clients) * u64::from(records) * RECORD as u64
    }

    fn json(&self, runs: &[Run], records: u32, claims: &[Claim]) -> serde_json::Value {
        let one = |run: &Run| {
            let Run {
                calls,
                seconds,
                identical,
            } = run;
            json!({ "calls": calls, "seconds": seconds, "identical": identical })
        };
        json!({
            "bench": "hbrr",
            "clients": self.clients,
            "records": records,
            "record_bytes": RECORD,
            "fifo": one(&runs[0]),
            "round-robin": one(&runs[1]),
            "claims": claims_json(claims),
        })
    }

    fn text(&self, runs: &[Run], records: u32) -> String {
        let rate = |run: &Run| self.bytes(records) as f64 / 1e6 / run.seconds;
        let row = |what: &str, paper: &str, show: &dyn Fn(&Run) -> String, change: String| {
            vec![
                what.to_string(),
                paper.to_string(),
                show(&runs[0]),
                show(&runs[1]),
                change,
            ]
        };
        let calls = change_percent(runs[1].calls as f64, runs[0].calls as f64);
        let gain = change_percent(rate(&runs[1]), rate(&runs[0]));
        let rows = [
            row(
                "calls to the back end",
                "",
                &|run| run.calls.to_string(),
                format!("{calls:+.1} %"),
            ),
            row(
                "MB/s",
                "+48.6 %",
                &|run| format!("{:.2}", rate(run)),
                format!("{gain:+.1} %"),
            ),
        ];
        let heading = ["", "paper", "fifo", "round-robin", "change"];
        format!(
            "{} clients, {records} records of {} KiB each, one shared file, one forwarder\n{}\
             The paper's figure (IO-F6, writes of 32 KiB) is bandwidth on a file system of four\n\
             servers; ours depends on the emulated disk. The claim is about calls.\n",
            self.clients,
            RECORD >> 10,
            lay_out(&heading, &rows)
        )
    }
}

fn claims(fifo: &Run, round_robin: &Run) -> Vec<Claim> {
    let percent = round_robin.calls as f64 / fifo.calls as f64 * 100.0;
    let identical = fifo.identical && round_robin.identical;
    vec![
        Claim::new(
            format!(
                "calls under round-robin {percent:.1} % of fifo's, at most {CALLS_PERCENT_MAX} %"
            ),
            percent <= CALLS_PERCENT_MAX,
        ),
        Claim::new(
            "both files are as they were written, by checksum".to_string(),
            identical,
        ),
    ]
}

fn run(
    cluster: &Cluster<'_>,
    clients: &[Arc<Client>],
    policy: &str,
    records: u32,
) -> Result<Run, Fail> {
    let name = format!("shared.{policy}");
    let context = Context::default();
    let open = |client: &Arc<Client>| {
        client
            .open_path(&context, name.as_bytes(), &OpenHow::create())
            .map_err(|errno| Fail::runtime(format!("{name}: {errno}")))
    };
    let files = clients.iter().map(open).collect::<Result<Vec<_>, Fail>>()?;
    let before = write_calls(cluster, &clients[0])?;
    let barrier = Barrier::new(files.len());
    let started = Instant::now();
    let written: Vec<_> = std::thread::scope(|scope| {
        let write = |(number, file)| {
            let (barrier, context, of) = (&barrier, &context, files.len());
            scope.spawn(move || write_records(file, context, barrier, (number, of), records))
        };
        let threads: Vec<_> = files.iter().enumerate().map(write).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a writer panicked"))
            .collect()
    });
    written.into_iter().collect::<Result<Vec<()>, Fail>>()?;
    let seconds = started.elapsed().as_secs_f64();
    let calls = write_calls(cluster, &clients[0])? - before;
    let identical = is_as_written(&cluster.export().join(&name), files.len(), records)?;
    Ok(Run {
        calls,
        seconds,
        identical,
    })
}

fn write_calls(cluster: &Cluster<'_>, client: &Client) -> Result<u64, Fail> {
    let status = cluster.status(client, 0)?;
    let calls = status["calls"]["write"].as_u64();
    calls.ok_or_else(|| Fail::runtime("the forwarder does not say how many calls it made"))
}

fn write_records(
    file: &File,
    context: &Context,
    barrier: &Barrier,
    (client, of): (usize, usize),
    records: u32,
) -> Result<(), Fail> {
    barrier.wait();
    for record in 0..records as usize {
        let number = record * of + client;
        let offset = (number * RECORD) as u64;
        file.pwrite(context, offset, Bytes::from(content(number)))
            .map_err(|errno| Fail::runtime(format!("writing record {number}: {errno}")))?;
    }
    Ok(())
}

/// The bytes of a record: different in every record, and at every place of it.
fn content(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut words = Vec::with_capacity(RECORD);
    while words.len() < RECORD {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        words.extend_from_slice(&state.to_le_bytes());
    }
    words
}

/// Compares checksums, of the file on the back end and of what should be in it.
fn is_as_written(path: &Path, clients: usize, records: u32) -> Result<bool, Fail> {
    let found = std::fs::read(path).map_err(at(path))?;
    let numbers = 0..clients * records as usize;
    let wanted = numbers.fold(CHECKSUM_START, |sum, number| {
        checksum(sum, &content(number))
    });
    Ok(checksum(CHECKSUM_START, &found) == wanted)
}

const CHECKSUM_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, going on from a checksum of what comes before.
fn checksum(start: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(start, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_differ_and_the_checksum_sees_their_order() {
        let (a, b) = (content(0), content(1));
        assert_eq!(a.len(), RECORD);
        assert_ne!(a, b);
        let sum = |first: &[u8], second: &[u8]| checksum(checksum(CHECKSUM_START, first), second);
        assert_ne!(sum(&a, &b), sum(&b, &a));
        assert_eq!(sum(&a, &b), checksum(CHECKSUM_START, &[a, b].concat()));
    }

    #[test]
    fn a_quarter_of_the_calls_is_enough_and_a_wrong_byte_too_many() {
        let run = |calls, identical| Run {
            calls,
            seconds: 1.0,
            identical,
        };
        let holds = |fifo: &Run, robin: &Run| claims(fifo, robin).iter().all(|claim| claim.holds);
        assert!(holds(&run(512, true), &run(128, true)));
        assert!(!holds(&run(512, true), &run(129, true)));
        assert!(!holds(&run(512, true), &run(64, false)));
    }
}
