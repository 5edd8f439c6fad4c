//! The loads of simulated applications: what the processes of known benchmarks read and write, and
//! when. `docs/workloads.md` describes every key.

mod blocks;
mod calls;
mod collective;
mod grid;
mod ior;
mod keys;
mod pace;
mod pattern;
mod permutation;

pub use blocks::{Order, Sharing};
pub use collective::Collective;
pub use ior::Ior;
pub use pace::Pace;

use crate::rng::Rng;
use crate::units::Bytes;
use crate::world::{CALL_BYTES_MAX, Program};
use calls::{Calls, Load};
use collective::TwoPhase;
use keys::{Impossible, Keys, positive, require};
use pattern::Pattern;
use std::sync::Arc;
use tidegate_sched::Direction;

/// The load of one application.
#[derive(Clone, Debug)]
pub enum Workload {
    /// IOR: blocks of one size.
    Ior(Ior),
}

/// Files of one instance of an application are numbered from its `file_base` on, below this many.
pub const FILES_MAX: u64 = 1 << 20;

impl Workload {
    /// The names of all workloads.
    pub const NAMES: &[&str] = &["ior"];

    /// Reads a workload's keys. The message names the key that is wrong, and what is possible.
    pub fn read(name: &str, table: toml::Table) -> Result<Workload, String> {
        let mut keys = Keys::new(table);
        let workload = match name {
            "ior" => Workload::Ior(Ior::read(&mut keys)),
            _ => {
                return Err(format!(
                    "{name:?} is no workload; possible are {}",
                    Workload::NAMES.join(", ")
                ));
            }
        };
        keys.finish(workload)
    }

    /// What is impossible with so many processes: the key, and why.
    pub fn check(&self, processes: u32) -> Result<(), (String, String)> {
        let limits = 1..=FILES_MAX as u32;
        require(limits.contains(&processes), "processes", || {
            format!("1 to {FILES_MAX} are possible")
        })?;
        let way = self.benchmark().way();
        way.pace.check()?;
        if let Some(collective) = way.collective {
            collective.check(processes)?;
            if let Some(key) = way.pace.timed_by() {
                let reason = "collective calls wait for each other".to_owned();
                return Err((key.to_owned(), reason));
            }
            require(way.pace.in_flight <= 1, "in_flight", || {
                "a process has one collective call at a time".into()
            })?;
        }
        self.benchmark().check(processes)
    }

    /// The programs of the processes, by rank, after [`Workload::check`]. Files are numbered from
    /// `file_base` on, at most [`FILES_MAX`] of them.
    pub fn programs(&self, processes: u32, file_base: u64, rng: &mut Rng) -> Vec<Box<dyn Program>> {
        let way = self.benchmark().way();
        let load = Arc::new(Load {
            pattern: self.benchmark().pattern(processes, file_base, rng.draw()),
            pace: way.pace,
            processes,
            thinks_first: way.thinks_first,
            request: way.request,
        });
        let program = |rank| -> Box<dyn Program> {
            let load = Arc::clone(&load);
            match way.collective {
                Some(collective) => Box::new(TwoPhase::new(load, collective, rank)),
                None => Box::new(Calls::new(load, rank)),
            }
        };
        (0..processes).map(program).collect()
    }

    /// Bytes of all accesses of all processes. In collective calls each byte is accessed once,
    /// even if several processes need it.
    pub fn total_bytes(&self, processes: u32) -> u64 {
        let pattern = self.benchmark().pattern(processes, 0, 0);
        let bytes = match self.benchmark().way().collective {
            Some(_) => pattern.cover(0).bytes(),
            None => (0..processes)
                .map(|rank| pattern::bytes(&*pattern, rank, 0))
                .sum(),
        };
        bytes * pattern.operations()
    }

    /// Accesses of all processes; of the aggregators in collective calls.
    pub fn total_calls(&self, processes: u32) -> u64 {
        let pattern = self.benchmark().pattern(processes, 0, 0);
        let operations = pattern.operations();
        match self.benchmark().way().collective {
            Some(collective) => (0..operations)
                .map(|operation| collective.accesses(&*pattern, operation))
                .sum(),
            None => {
                let calls = (0..processes).map(|rank| pattern.calls(rank, 0));
                calls.sum::<u64>() * operations
            }
        }
    }

    fn benchmark(&self) -> &dyn Benchmark {
        match self {
            Workload::Ior(ior) => ior,
        }
    }
}

/// What each workload says of itself. Every operation has as many bytes as every other.
trait Benchmark {
    /// What is impossible, beyond pace and collective calls.
    fn check(&self, processes: u32) -> Result<(), Impossible>;

    /// What processes access.
    fn pattern(&self, processes: u32, file_base: u64, seed: u64) -> Box<dyn Pattern>;

    /// How and when.
    fn way(&self) -> Way;
}

/// How and when processes access what they do.
struct Way {
    pace: Pace,
    collective: Option<Collective>,
    /// The time between operations comes before the first one too.
    thinks_first: bool,
    /// Bytes of a call, for the times of calls.
    request: u64,
}

/// No workload accesses more bytes than this, so that sums of offsets do not overflow.
const BYTES_MAX: u64 = 1 << 60;

fn direction(keys: &mut Keys) -> Direction {
    #[derive(Default, serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Written {
        #[default]
        Read,
        Write,
    }
    match keys.or("direction", Written::Read) {
        Written::Read => Direction::Read,
        Written::Write => Direction::Write,
    }
}

/// Checks the size of a call, the number of calls, and their product.
fn check_blocks(
    processes: u32,
    request: Bytes,
    requests: u64,
    collective: Option<Collective>,
) -> Result<(), Impossible> {
    positive("request", request.0)?;
    positive("requests", requests)?;
    // In collective calls the aggregators' buffers bound calls.
    require(
        collective.is_some() || request.0 <= CALL_BYTES_MAX,
        "request",
        || format!("a call has at most {CALL_BYTES_MAX} bytes"),
    )?;
    check_total("requests", &[request.0, requests, processes.into()])
}

/// Checks a product of sizes and counts.
fn check_total(key: &str, factors: &[u64]) -> Result<(), Impossible> {
    let total = factors
        .iter()
        .try_fold(1u64, |total, factor| total.checked_mul(*factor));
    let fits = total.is_some_and(|total| total <= BYTES_MAX);
    require(fits, key, || {
        format!("all processes together would access more than {BYTES_MAX} bytes")
    })
}

#[cfg(test)]
mod tests;
