//! Measures what recording costs (Boito et al., ICPADS'13, on overhead): the same load on a
//! forwarder that writes a trace and on one that does not.

use super::cluster::{Cluster, Shape};
use super::performance::column::{Column, Way, fill};
use super::performance::workload::{Measured, Workload};
use super::statistics::{change_percent, median};
use super::workplace::Workplace;
use super::{Access, Claim, Common};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;

/// The paper's throughput with traces, against without.
const PAPER_PERCENT: f64 = -10.98;
/// What recording may cost here.
const LOST_PERCENT_MAX: f64 = 2.0;
const BYTES: usize = 4 << 10;
const FILE_BYTES: u64 = 4 << 20;

/// 4 KiB requests through the client library, with and without recording: throughput and processor
/// time (Boito et al., ICPADS'13: 10.98 % of the throughput).
///
/// Each repetition starts two forwarders over folders of their own, one with `[trace]` and one
/// without, and gives them the same load in short slices: without, with, with, without, and the
/// other way round, so that what changes on the machine meanwhile hits both. Compared are the two
/// sides of such a quartet; reported is the median of all. Quartets of reads and writes take turns.
/// Claimed is that recording costs at most 2 % of the throughput.
#[derive(clap::Args, Clone, Debug)]
pub struct Tracing {
    /// Clients, each with a session and a file of its own, and one request at a time
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    clients: u32,
    /// Pairs of forwarders, one after the other: where a process lies in memory makes a difference
    #[arg(long, value_name = "N", default_value_t = 40,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Quartets of slices on each pair of forwarders
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    quartets: u32,
    /// Length of a slice, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(5..=10_000))]
    slice_ms: u32,
    #[command(flatten)]
    common: Common,
}

/// The two sides of a quartet of slices.
#[derive(Clone, Copy)]
struct Pair {
    off: Measured,
    on: Measured,
}

impl Tracing {
    /// Measures, and prints the table.
    pub fn perform(mut self) -> Result<ExitCode, Fail> {
        if self.common.quick {
            (self.repetitions, self.quartets, self.slice_ms) = (1, 2, 20);
        }
        let mut pairs = Vec::new();
        let mut records = 0;
        for number in 0..self.repetitions {
            records += self.repetition(number, &mut pairs)?;
        }
        let claims = self.common.claims(|| vec![claim(&pairs)]);
        Ok(self.common.conclude(
            &claims,
            || self.json(&pairs, records),
            || self.text(&pairs, records),
        ))
    }

    /// All quartets on one pair of forwarders; returns how many requests were recorded.
    fn repetition(&self, number: u32, into: &mut Vec<Pair>) -> Result<u64, Fail> {
        let place = Workplace::make(&self.common.dir, "bench")?;
        let trace = toml::Value::String(place.dir().join("trace").display().to_string());
        let off = || Cluster::start(&place, &Shape::one("off", &|_| String::new()));
        let recording = |_| format!("[trace]\nfile = {trace}\n");
        let on = || Cluster::start(&place, &Shape::one("on", &recording));
        // Neither is always the first of the two.
        let (off, on) = match number % 2 {
            0 => (off()?, on()?),
            _ => {
                let on = on()?;
                (off()?, on)
            }
        };
        fill(off.export(), FILE_BYTES)?;
        fill(on.export(), FILE_BYTES)?;
        let side = |name, cluster| {
            let way = Way::Client(Cluster::text(cluster));
            Column::start(&place, name, &way, Some(cluster))
        };
        let sides = [side("off", &off)?, side("on", &on)?];
        // Connections, memory and the clients' threads have seen some work before it counts.
        for access in [Access::Read, Access::Write] {
            for side in &sides {
                self.slice(side, access)?;
            }
        }
        for quartet in 0..self.quartets {
            let access = [Access::Read, Access::Write][quartet as usize % 2];
            let first = ((number / 2 + quartet / 2) % 2) as usize;
            let mut slices = [Vec::new(), Vec::new()];
            for side in [first, 1 - first, 1 - first, first] {
                slices[side].push(self.slice(&sides[side], access)?);
            }
            let [off, on] = slices.map(|slices| mean(&slices));
            into.push(Pair { off, on });
        }
        recorded(&on)
    }

    fn slice(&self, side: &Column<'_>, access: Access) -> Result<Measured, Fail> {
        let workload = Workload {
            access,
            len: BYTES,
            clients: self.clients as usize,
            in_flight: 1,
        };
        let time = Duration::from_millis(self.slice_ms.into());
        side.measure(&workload, time, FILE_BYTES)
    }

    fn text(&self, pairs: &[Pair], records: u64) -> String {
        let row = |what: &str, value: fn(&Measured) -> f64, digits: usize, paper: String| {
            let of = |side: fn(&Pair) -> Measured| {
                let middle = median(pairs.iter().map(|pair| value(&side(pair))));
                format!("{middle:.digits$}")
            };
            let change = changes(pairs, value);
            vec![
                what.to_string(),
                of(|pair| pair.off),
                of(|pair| pair.on),
                format!("{:+.2} %", median(change.iter().copied())),
                format!(
                    "{:+.1} to {:+.1} %",
                    quarter(&change, 1),
                    quarter(&change, 3)
                ),
                paper,
            ]
        };
        let rows = [
            row(
                "requests a second",
                |side| side.per_second,
                0,
                format!("{PAPER_PERCENT:+.2} %"),
            ),
            row(
                "processor time, us a request",
                |side| side.processor_us,
                2,
                String::new(),
            ),
        ];
        format!(
            "{} clients, reads and writes of 4 KiB through the library, one forwarder on a local \
             folder;\nmedians of {} comparisons, each of two slices of {} ms with recording and \
             two without; {records} records\n{}",
            self.clients,
            pairs.len(),
            self.slice_ms,
            lay_out(
                &["", "off", "on", "change", "half of them", "the paper"],
                &rows
            )
        )
    }

    fn json(&self, pairs: &[Pair], records: u64) -> serde_json::Value {
        let side = |side: fn(&Pair) -> Measured| {
            let middle =
                |value: fn(&Measured) -> f64| median(pairs.iter().map(|pair| value(&side(pair))));
            json!({
                "requests_per_second": middle(|side| side.per_second),
                "processor_us_per_request": middle(|side| side.processor_us),
            })
        };
        json!({
            "bench": "tracing",
            "clients": self.clients,
            "comparisons": pairs.len(),
            "slice_ms": self.slice_ms,
            "records": records,
            "off": side(|pair| pair.off),
            "on": side(|pair| pair.on),
            "throughput_change_percent": median(changes(pairs, |side| side.per_second)),
            "processor_change_percent": median(changes(pairs, |side| side.processor_us)),
            "paper_throughput_change_percent": PAPER_PERCENT,
        })
    }
}

fn mean(slices: &[Measured]) -> Measured {
    let count = slices.len() as f64;
    Measured {
        per_second: slices.iter().map(|slice| slice.per_second).sum::<f64>() / count,
        processor_us: slices.iter().map(|slice| slice.processor_us).sum::<f64>() / count,
        ..Measured::default()
    }
}

/// With recording against without, in percent, for each comparison.
fn changes(pairs: &[Pair], value: fn(&Measured) -> f64) -> Vec<f64> {
    let change = |pair: &Pair| change_percent(value(&pair.on), value(&pair.off));
    pairs.iter().map(change).collect()
}

/// The first (`quarters` 1) or third quartile.
fn quarter(values: &[f64], quarters: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * quarters / 4]
}

fn claim(pairs: &[Pair]) -> Claim {
    let change = median(changes(pairs, |side| side.per_second));
    Claim::new(
        format!("recording changes throughput by {change:+.2} %, at most -{LOST_PERCENT_MAX} %"),
        change >= -LOST_PERCENT_MAX,
    )
}

/// Requests that the forwarder has recorded; none may be missing.
fn recorded(cluster: &Cluster<'_>) -> Result<u64, Fail> {
    let client = cluster.client("bench", |_| {})?;
    let status = cluster.status(&client, 0)?;
    let count = |what: &str| status["trace"][what].as_u64();
    match (count("recorded"), count("buffered"), count("dropped")) {
        (Some(recorded), Some(buffered), Some(0)) if recorded + buffered > 0 => {
            Ok(recorded + buffered)
        }
        _ => Err(Fail::runtime(format!(
            "the trace is not complete, so its cost means nothing: {}",
            status["trace"]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_of_its_own_quartet() {
        let measured = |per_second, processor_us| Measured {
            per_second,
            processor_us,
            ..Measured::default()
        };
        let pair = |off, on| Pair {
            off: measured(off, 10.0),
            on: measured(on, 10.5),
        };
        // The machine became twice as slow, which is none of recording's doing.
        let pairs = [pair(1000.0, 990.0), pair(500.0, 495.0)];
        let change = median(changes(&pairs, |side| side.per_second));
        assert!((change + 1.0).abs() < 1e-9);
        assert!(claim(&pairs).holds);
        assert!(!claim(&[pair(1000.0, 979.0)]).holds);
        let mean = mean(&[measured(1.0, 3.0), measured(3.0, 5.0)]);
        assert_eq!((mean.per_second, mean.processor_us), (2.0, 4.0));
    }
}
