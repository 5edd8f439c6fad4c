//! Measures what pipelining gains (Ohta et al. 2010, section on the transfer of large requests):
//! long reads and writes in chunks, stored and forwarded, in order, and out of order.

use super::cluster::{Cluster, Shape, open};
use super::statistics::median;
use super::workplace::Workplace;
use super::{Claim, Common, processor};
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;
use tidegate_client::fs::{File, OpenHow};
use tidegate_client::wire::Pipelining;
use tidegate_client::{Bytes, Context};

const OPERATION: usize = 64 << 20;
const OPERATION_QUICK: usize = 4 << 20;
/// Of the device: 1024 MB/s, about what two processes on one machine move beside it.
const NS_PER_KIB: u64 = 1000;
const LOST_PERCENT_MAX: f64 = 2.0;
const GAIN_PERCENT_MIN: f64 = 20.0;
const ACCESSES: [&str; 2] = ["write", "read"];
const NONE: usize = 0;
const SERIAL: usize = 1;
const PARALLEL: usize = 2;

/// One client reads and writes 64 MiB in one call, in chunks: without pipelining, in order, and in
/// any order (Ohta et al. 2010).
///
/// Without pipelining a chunk is sent when the one before it is done, so either the network works
/// or the device. With chunks sent ahead both do; in order the device waits for the forwarder
/// between two chunks, in any order it need not. The device is emulated, does one thing at a time
/// and takes 1 us for a KiB (1024 MB/s): nearly as long as the network, here a Unix socket, which
/// is where overlapping the two gains most. The three take turns in one run; what is compared are
/// the medians of the quotients of each turn. Writes overwrite a file, reads find it in the page
/// cache.
#[derive(clap::Args, Clone, Debug)]
pub struct Pipelines {
    /// Turns of each way
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Operations of each way in a turn
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    operations: u32,
    #[command(flatten)]
    common: Common,
}

/// What one way did in one turn.
#[derive(Clone, Copy)]
struct Moved {
    mb_s: f64,
    /// Of client and forwarder.
    processor_ns_per_kib: f64,
}

/// The three ways in one turn, as [`Pipelining::ALL`] has them.
type Turn = [Moved; 3];

impl Pipelines {
    /// Measures, and prints the table.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        let bytes = self.common.choose(OPERATION, OPERATION_QUICK);
        if self.common.quick {
            (self.repetitions, self.operations) = (1, 1);
        }
        let turns = self.measure(bytes)?;
        let of = |at: usize| claims(ACCESSES[at], &turns[at]);
        let claims = self.common.claims(|| (0..2).flat_map(of).collect());
        Ok(self.common.conclude(
            &claims,
            || self.json(bytes, &turns),
            || self.text(bytes, &turns),
        ))
    }

    /// All turns, of writes and of reads.
    fn measure(&self, bytes: usize) -> Result<[Vec<Turn>; 2], Fail> {
        let place = Workplace::make(&self.common.dir, "bench")?;
        let sections = |_| {
            format!(
                "[device]\nmodel = \"ideal\"\ndepth = 1\nservice_us = 0\n\
                 ns_per_kib = {NS_PER_KIB}\n[scheduler]\ndepth = 2\n"
            )
        };
        let cluster = Cluster::start(&place, &Shape::one("pipelining", &sections))?;
        let files = Pipelining::ALL
            .into_iter()
            .map(|mode| file(&cluster, mode))
            .collect::<Result<Vec<_>, Fail>>()?;
        let content = Bytes::from(vec![0x5a; bytes]);
        // What is measured overwrites, and every client has moved something before.
        for (file, write) in files.iter().zip([true, false, false]) {
            moved(&cluster, file, &content, write, 1)?;
        }
        let mut turns = [Vec::new(), Vec::new()];
        for number in 0..self.repetitions as usize {
            for (access, into) in turns.iter_mut().enumerate() {
                let mut turn = [None; 3];
                for step in 0..3 {
                    // None of them is always the first.
                    let way = (number + step) % 3;
                    let write = access == 0;
                    let way_moved = moved(&cluster, &files[way], &content, write, self.operations)?;
                    turn[way] = Some(way_moved);
                }
                into.push(turn.map(|moved| moved.expect("each way had its turn")));
            }
        }
        Ok(turns)
    }

    fn text(&self, bytes: usize, turns: &[Vec<Turn>; 2]) -> String {
        let mut rows = Vec::new();
        for (access, turns) in ACCESSES.iter().zip(turns) {
            for (way, mode) in Pipelining::ALL.into_iter().enumerate() {
                let of = |value: fn(&Moved) -> f64| median(turns.iter().map(|t| value(&t[way])));
                rows.push(vec![
                    access.to_string(),
                    mode.name().to_string(),
                    format!("{:.0}", of(|moved| moved.mb_s)),
                    format!("{:.2}", quotient(turns, way, NONE)),
                    format!("{:.0}", of(|moved| moved.processor_ns_per_kib)),
                ]);
            }
        }
        let heading = ["", "pipelining", "MB/s", "of none", "processor, ns/KiB"];
        format!(
            "operations of {} MiB in chunks of 512 KiB, one client, one forwarder, a device of \
             {:.0} MB/s;\nmedians of {} turns of {} operations; processor time of both sides\n{}",
            bytes >> 20,
            1024.0 * 1e3 / NS_PER_KIB as f64,
            self.repetitions,
            self.operations,
            lay_out(&heading, &rows)
        )
    }

    fn json(&self, bytes: usize, turns: &[Vec<Turn>; 2]) -> serde_json::Value {
        let way = |turns: &[Turn], way: usize| {
            let of = |value: fn(&Moved) -> f64| median(turns.iter().map(|t| value(&t[way])));
            json!({
                "mb_per_second": of(|moved| moved.mb_s),
                "of_none": quotient(turns, way, NONE),
                "processor_ns_per_kib": of(|moved| moved.processor_ns_per_kib),
            })
        };
        let access = |turns: &[Turn]| {
            json!({
                "none": way(turns, NONE),
                "serial": way(turns, SERIAL),
                "parallel": way(turns, PARALLEL),
            })
        };
        json!({
            "bench": "pipelining",
            "operation_bytes": bytes,
            "repetitions": self.repetitions,
            "operations": self.operations,
            "device_ns_per_kib": NS_PER_KIB,
            "write": access(&turns[0]),
            "read": access(&turns[1]),
        })
    }
}

/// Median over all turns of the speed of one way, as a multiple of another's in the same turn.
fn quotient(turns: &[Turn], way: usize, base: usize) -> f64 {
    median(turns.iter().map(|turn| turn[way].mb_s / turn[base].mb_s))
}

fn claims(access: &str, turns: &[Turn]) -> [Claim; 2] {
    let parallel = quotient(turns, PARALLEL, SERIAL);
    let serial = quotient(turns, SERIAL, NONE);
    [
        Claim::new(
            format!(
                "{access}: parallel {parallel:.3} of serial, at least {:.2}",
                1.0 - LOST_PERCENT_MAX / 100.0
            ),
            parallel >= 1.0 - LOST_PERCENT_MAX / 100.0,
        ),
        Claim::new(
            format!(
                "{access}: serial {serial:.3} of none, at least {:.2}",
                1.0 + GAIN_PERCENT_MIN / 100.0
            ),
            serial >= 1.0 + GAIN_PERCENT_MIN / 100.0,
        ),
    ]
}

/// Opens the file with a client of this pipelining mode.
fn file(cluster: &Cluster<'_>, mode: Pipelining) -> Result<File, Fail> {
    let client = cluster.client(mode.name(), |options| {
        options.pipelining = mode;
        // Without a network there is nothing to overlap.
        options.shared_memory_bytes = 0;
    })?;
    open(&client, "file", &OpenHow::create())
}

/// Does a number of operations, one after another.
fn moved(
    cluster: &Cluster<'_>,
    file: &File,
    content: &Bytes,
    write: bool,
    operations: u32,
) -> Result<Moved, Fail> {
    let context = Context::default();
    let processor_before = processor::own_ns() + cluster.processor_ns();
    let started = Instant::now();
    for _ in 0..operations {
        let len = match write {
            true => file.pwrite(&context, 0, content.clone()),
            false => file.pread(&context, 0, content.len()).map(|data| data.len),
        };
        match len {
            Ok(len) if len == content.len() => {}
            Ok(len) => return Err(Fail::runtime(format!("only {len} bytes were moved"))),
            Err(errno) => return Err(Fail::runtime(format!("moving bytes: {errno}"))),
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let processor_ns = processor::own_ns() + cluster.processor_ns() - processor_before;
    let bytes = content.len() as f64 * f64::from(operations);
    Ok(Moved {
        mb_s: bytes / 1e6 / seconds,
        processor_ns_per_kib: processor_ns as f64 / (bytes / 1024.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_is_compared_with_itself() {
        let turn = |rates: [f64; 3]| {
            rates.map(|mb_s| Moved {
                mb_s,
                processor_ns_per_kib: 1.0,
            })
        };
        // The machine is slower from turn to turn, which is none of pipelining's doing.
        let turns = [turn([100.0, 130.0, 140.0]), turn([50.0, 65.0, 70.0])];
        assert!((quotient(&turns, SERIAL, NONE) - 1.3).abs() < 1e-9);
        let holds = |turns: &[Turn]| claims("read", turns).map(|claim| claim.holds);
        assert_eq!(holds(&turns), [true, true]);
        assert_eq!(holds(&[turn([100.0, 119.0, 118.0])]), [true, false]);
        assert_eq!(holds(&[turn([100.0, 130.0, 127.0])]), [false, true]);
    }
}
