//! `tidegate bench models`: the loads of three benchmarks on real forwarders with emulated devices,
//! beside the same in virtual time.

mod live;
mod loads;

use super::statistics::{change_percent, largest, median, smallest};
use super::workplace::Workplace;
use super::{Claim, Common};
use loads::{EmulatedDevice, Load, LoadName, devices};
use serde_json::{Value, json};
use std::process::ExitCode;
use tidegate_cli::fail::Fail;
use tidegate_cli::table::lay_out;
use tidegate_sim::result::Metric;
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// How far live and virtual time may be apart, percent.
const APART_MAX: f64 = 10.0;

/// Three loads on real forwarders with emulated devices, and the same in virtual time.
///
/// `song`: ten programs read 4 MiB each, at once. `agios`: four programs of four processes read in
/// strides, in pieces of 8 KiB. `shares`: two programs of sixteen processes read at random, with
/// weights of 3 and 1. The devices are a disk with a queue of its own (`hdd-ncq`) and an SSD with
/// channels that is many times slower than `ssd-sata`, so that the device decides and not the
/// processors of this machine. Eight calls run at once at each forwarder.
///
/// Forwarders, clients and devices have the same settings on both sides. Compared are the mean
/// completion of a program and when all is done: live medians of rounds, in virtual time means over
/// as many seeds. A machine with other work wakes threads late, and each request needs several of
/// them one after the other: how late a sleep of 1 ms ended stands below the table.
#[derive(clap::Args, Clone, Debug)]
pub struct Models {
    /// Rounds of each policy, in turns
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// How many times slower than `ssd-sata` the SSD is
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = loads::slower)]
    slower: u32,
    /// One of the loads alone
    #[arg(long, value_name = "LOAD")]
    load: Option<LoadName>,
    #[command(flatten)]
    common: Common,
}

/// A number, live and in virtual time.
struct Pair {
    load: &'static str,
    device: &'static str,
    policy: &'static str,
    what: &'static str,
    /// Of the rounds, ms.
    live: Vec<f64>,
    /// Mean over the seeds, ms.
    simulated: f64,
}

impl Pair {
    fn live_ms(&self) -> f64 {
        median(self.live.iter().copied())
    }

    fn apart_percent(&self) -> f64 {
        change_percent(self.live_ms(), self.simulated)
    }
}

impl Models {
    /// Measures, simulates, and prints the table.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let place = Workplace::make(&self.common.dir, "bench")?;
        let repetitions = self.repetitions();
        let (mut pairs, mut late_ms) = (Vec::new(), Vec::new());
        for load in Load::all(self.common.quick) {
            if self.load.is_some_and(|only| only != load.name) {
                continue;
            }
            for device in &devices(self.slower) {
                let what = format!("{} on {}", load.word, device.name);
                self.common.progress(&what);
                let (live, naps) =
                    live::with_naps(|| live::run(&place, &load, device, repetitions));
                late_ms.extend(naps);
                pairs.extend(compared(&load, device, repetitions, live?)?);
            }
        }
        self.common.progress("");
        let late = Late::of(late_ms);
        let claims = self.common.claims(|| claims(&pairs));
        Ok(self
            .common
            .conclude(&claims, || self.json(&pairs, &late), || text(&pairs, &late)))
    }

    fn repetitions(&self) -> u32 {
        self.common.choose(self.repetitions, 1)
    }

    fn json(&self, pairs: &[Pair], late: &Late) -> Value {
        let pair = |pair: &Pair| {
            json!({
                "load": pair.load, "device": pair.device, "policy": pair.policy,
                "metric": pair.what, "live_ms": pair.live_ms(), "rounds_ms": pair.live,
                "virtual_ms": pair.simulated, "live_over_virtual_percent": pair.apart_percent(),
            })
        };
        json!({
            "bench": "models",
            "repetitions": self.repetitions(), "slower": self.slower,
            "late_ms": { "p50": late.p50, "p95": late.p95, "max": late.max },
            "pairs": pairs.iter().map(pair).collect::<Vec<_>>(),
        })
    }
}

/// How late a thread that slept was awake, ms.
struct Late {
    p50: f64,
    p95: f64,
    max: f64,
}

impl Late {
    fn of(mut late_ms: Vec<f64>) -> Late {
        late_ms.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let index = (late_ms.len() * percent / 100).min(late_ms.len().saturating_sub(1));
            late_ms.get(index).copied().unwrap_or(0.0)
        };
        Late {
            p50: at(50),
            p95: at(95),
            max: at(100),
        }
    }
}

/// Rounds of a load beside the same in virtual time.
fn compared(
    load: &Load,
    device: &EmulatedDevice,
    repetitions: u32,
    live: Vec<Vec<live::Round>>,
) -> Result<Vec<Pair>, Fail> {
    let text = load.scenario(device, repetitions);
    let scenario = Scenario::parse(&text, "models", load.word).map_err(Fail::runtime)?;
    let outcome = runner::run(&scenario, 1, &|_, _| {}).map_err(Fail::runtime)?;
    let mut pairs = Vec::new();
    for (number, (policy, rounds)) in load.policies.iter().zip(live).enumerate() {
        let pair = |what, of: fn(&live::Round) -> f64, metric| Pair {
            load: load.word,
            device: device.name,
            policy: policy.label,
            what,
            live: rounds.iter().map(of).collect(),
            simulated: outcome.get(0, 0, number, metric),
        };
        let mean = Metric::ApplicationCompletionMean;
        pairs.push(pair("completion", |round| round.completion_ms, mean));
        pairs.push(pair(
            "makespan",
            |round| round.makespan_ms,
            Metric::Makespan,
        ));
    }
    Ok(pairs)
}

fn claims(pairs: &[Pair]) -> Vec<Claim> {
    let claim = |pair: &Pair| {
        let percent = pair.apart_percent();
        let Pair {
            load,
            device,
            policy,
            what,
            ..
        } = pair;
        Claim::new(
            format!(
                "{load} on {device} under {policy}: live {what} is {percent:+.1} % off virtual \
                 time, at most {APART_MAX} %"
            ),
            percent.abs() <= APART_MAX,
        )
    };
    pairs.iter().map(claim).collect()
}

fn text(pairs: &[Pair], late: &Late) -> String {
    let heading = [
        "load", "device", "policy", "ms", "live", "rounds", "virtual", "ratio",
    ];
    let row = |pair: &Pair| {
        vec![
            pair.load.to_string(),
            pair.device.to_string(),
            pair.policy.to_string(),
            pair.what.to_string(),
            format!("{:.1}", pair.live_ms()),
            format!("{:.1} to {:.1}", smallest(&pair.live), largest(&pair.live)),
            format!("{:.1}", pair.simulated),
            format!("{:.3}", pair.live_ms() / pair.simulated),
        ]
    };
    let rows: Vec<Vec<String>> = pairs.iter().map(row).collect();
    let Late { p50, p95, max } = late;
    format!(
        "{}A sleep of 1 ms ended {p50:.2} ms late (median; 95 % {p95:.2}, most {max:.1}).\n",
        lay_out(&heading, &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_judged_by_the_median_of_its_rounds() {
        let pair = |live: [f64; 3]| Pair {
            load: "song",
            device: "hdd-ncq",
            policy: "fifo",
            what: "makespan",
            live: live.into(),
            simulated: 100.0,
        };
        let pairs = [
            [500.0, 109.0, 1.0],
            [91.0, 91.0, 91.0],
            [111.0, 111.0, 100.0],
        ]
        .map(pair);
        let holds = claims(&pairs)
            .iter()
            .map(|claim| claim.holds)
            .collect::<Vec<_>>();
        assert_eq!(holds, [true, true, false]);
        let late = Late::of((0..100).rev().map(f64::from).collect());
        let text = text(&pairs, &late);
        assert!(text.contains("1.0 to 500.0"), "{text}");
        assert!(
            text.contains("50.00 ms late (median; 95 % 95.00, most 99.0)"),
            "{text}"
        );
    }
}
