//! The loads of simulated applications: what the processes of known benchmarks read and write, and
//! when. `docs/workloads.md` describes every key.

mod blocks;
mod btio;
mod calls;
mod collective;
mod domains;
mod grid;
mod ior;
mod keys;
mod mpi_tile_io;
mod noncontig;
mod pace;
mod pattern;
mod permutation;
mod phases;
mod pio_bench;
mod shuffles;
mod synced;

pub use blocks::{Order, Sharing};
pub use btio::{Btio, Class};
pub use domains::Collective;
pub use ior::Ior;
pub use mpi_tile_io::MpiTileIo;
pub use noncontig::Noncontig;
pub use pace::Pace;
pub use phases::Phases;
pub use pio_bench::{PioBench, PioDirection, PioPattern};
pub use shuffles::{Foretold, Place, Shuffles};
pub(crate) use synced::Synced;

use crate::rng::Rng;
use crate::units::Bytes;
use crate::world::{CALL_BYTES_MAX, Program};
use calls::{Calls, Load};
use collective::TwoPhase;
use keys::{Impossible, Keys, positive, require};
use pattern::Pattern;
use std::ops::Range;
use std::sync::Arc;
use tidegate_sched::Direction;

/// The load of one application.
#[derive(Clone, Debug)]
pub enum Workload {
    /// IOR: blocks of one size; mpi-io-test too.
    Ior(Ior),
    /// PIO-Bench: access patterns of parallel programs.
    PioBench(PioBench),
    /// mpi-tile-io: tiles of a picture.
    MpiTileIo(MpiTileIo),
    /// noncontig: interleaved vectors.
    Noncontig(Noncontig),
    /// NAS BTIO: the solution of a block-tridiagonal solver.
    Btio(Btio),
    /// Computing and moving bytes, in turn.
    Phases(Phases),
}

/// Files of one instance of an application are numbered from its `file_base` on, below this many.
pub const FILES_MAX: u64 = 1 << 20;

impl Workload {
    /// The names of all workloads.
    pub const NAMES: &[&str] = &[
        "ior",
        "pio-bench",
        "mpi-tile-io",
        "noncontig",
        "mpi-io-test",
        "btio",
        "phases",
    ];

    /// Reads a workload's keys. The error names the key that is wrong, and the possible values.
    pub fn read(name: &str, table: toml::Table) -> Result<Workload, String> {
        let mut keys = Keys::new(table);
        let workload = match name {
            "ior" => Workload::Ior(Ior::read(&mut keys)),
            "pio-bench" => Workload::PioBench(PioBench::read(&mut keys)),
            "mpi-tile-io" => Workload::MpiTileIo(MpiTileIo::read(&mut keys)),
            "noncontig" => Workload::Noncontig(Noncontig::read(&mut keys)),
            "mpi-io-test" => Workload::Ior(Ior::read_mpi_io_test(&mut keys)),
            "btio" => Workload::Btio(Btio::read(&mut keys)),
            "phases" => Workload::Phases(Phases::read(&mut keys)),
            _ => {
                return Err(format!(
                    "{name:?} is no workload; possible are {}",
                    Workload::NAMES.join(", ")
                ));
            }
        };
        keys.finish(workload)
    }

    /// Checks the workload for this number of processes. The error has the key and the reason.
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
            require(way.pace.stonewall.is_none(), "stonewall", || {
                "a collective call is made by all processes or by none".into()
            })?;
            require(way.pace.in_flight <= 1, "in_flight", || {
                "a process has one collective call at a time".into()
            })?;
        }
        self.benchmark().check(processes)
    }

    /// The programs of the processes, by rank, after [`Workload::check`]. Files are numbered from
    /// `file_base` on, at most [`FILES_MAX`] of them.
    pub fn programs(
        &self,
        processes: u32,
        file_base: u64,
        place: Place,
        rng: &mut Rng,
    ) -> Vec<Box<dyn Program>> {
        let way = self.benchmark().way();
        let seed = rng.draw();
        let load = Arc::new(Load {
            pattern: self.benchmark().pattern(processes, file_base, seed),
            seed,
            place,
            pace: way.pace,
            processes,
            thinks: way.thinks.clone(),
            request: way.request,
        });
        let collective = way.collective.map(Arc::new);
        let program = |rank| -> Box<dyn Program> {
            let load = Arc::clone(&load);
            match &collective {
                Some(collective) => Box::new(TwoPhase::new(load, Arc::clone(collective), rank)),
                None => Box::new(Calls::new(load, rank)),
            }
        };
        (0..processes).map(program).collect()
    }

    fn benchmark(&self) -> &dyn Benchmark {
        match self {
            Workload::Ior(ior) => ior,
            Workload::PioBench(pio) => pio,
            Workload::MpiTileIo(tiles) => tiles,
            Workload::Noncontig(noncontig) => noncontig,
            Workload::Btio(btio) => btio,
            Workload::Phases(phases) => phases,
        }
    }
}

/// The interface of each workload. All its operations have the same number of bytes.
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
    /// Before which operations the time between operations passes.
    thinks: Range<u64>,
    /// Bytes of a call, for the times of calls.
    request: u64,
}

/// Time passes before every operation but the first.
const BETWEEN: Range<u64> = 1..u64::MAX;

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

/// Largest number of extents of an access, whose list is held in memory.
const EXTENTS_MAX: u64 = 1 << 16;

/// Checks a call of a process on its own that accesses pieces of a file: how many, and all bytes
/// together.
fn check_pieces(key: &str, piece: u64, pieces: u64) -> Result<(), Impossible> {
    require(pieces <= EXTENTS_MAX, key, || {
        format!("a call that is not collective accesses at most {EXTENTS_MAX} pieces")
    })?;
    let bytes = piece.saturating_mul(pieces);
    require(bytes <= CALL_BYTES_MAX, key, || {
        format!("a call that is not collective has at most {CALL_BYTES_MAX} bytes, not {bytes}")
    })
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
