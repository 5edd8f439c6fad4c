//! IOR: every process reads or writes blocks of one size, in a shared file or its own. And
//! mpi-io-test, the benchmark of PVFS that AGIOS and HIO use, which can do less: contiguous or
//! strided blocks of a shared file.

use super::blocks::{Blocks, Order, Sharing};
use super::domains::Collective;
use super::keys::{Impossible, Keys, require};
use super::pace::Pace;
use super::pattern::Pattern;
use super::{BETWEEN, Benchmark, Way, check_blocks, check_total, direction};
use crate::rng::Rng;
use crate::units::Bytes;
use crate::world::CALL_BYTES_MAX;
use tidegate_sched::Direction;

/// IOR's load.
#[derive(Clone, Debug)]
pub struct Ior {
    /// The order of blocks.
    pub pattern: Order,
    /// Reads or writes.
    pub direction: Direction,
    /// Bytes of one call.
    pub request: Bytes,
    /// Standard deviation of the logarithm of what `request` is multiplied by, for each copy of the
    /// application: its calls have one size. 0: that of `request`.
    pub request_sigma: f64,
    /// Calls of each process.
    pub requests: u64,
    /// One file or one each.
    pub file: Sharing,
    /// When calls are made.
    pub pace: Pace,
    /// Calls are collective.
    pub collective: Option<Collective>,
    /// The benchmark has blocks in random order.
    random: bool,
}

impl Ior {
    pub(super) fn read(keys: &mut Keys) -> Ior {
        Ior {
            file: keys.or("file", Sharing::Shared),
            random: true,
            ..Ior::read_mpi_io_test(keys)
        }
    }

    pub(super) fn read_mpi_io_test(keys: &mut Keys) -> Ior {
        Ior {
            pattern: keys.or("pattern", Order::Contiguous),
            direction: direction(keys),
            request: keys.required("request"),
            request_sigma: keys.or("request_sigma", 0.0),
            requests: keys.or("requests", 1),
            file: Sharing::Shared,
            pace: Pace::read(keys),
            collective: Collective::read(keys),
            random: false,
        }
    }
}

/// A copy's calls are at most so many times as large as `request`, or as small.
const FACTOR_MAX: f64 = 64.0;

/// Sizes that were drawn are multiples of this.
const DRAWN_UNIT: u64 = 4096;

impl Ior {
    fn check_sigma(&self, processes: u32) -> Result<(), Impossible> {
        let key = "request_sigma";
        require((0.0..=4.0).contains(&self.request_sigma), key, || {
            "0 to 4 are possible".into()
        })?;
        if self.request_sigma == 0.0 {
            return Ok(());
        }
        require(self.pace.timed_by().is_none(), key, || {
            "calls at given times have the size of request".into()
        })?;
        let most = self.request.0.saturating_mul(FACTOR_MAX as u64);
        check_total(key, &[most, self.requests, processes.into()])
    }

    /// The size of the calls of the copy with this seed.
    fn request_of(&self, seed: u64) -> u64 {
        if self.request_sigma == 0.0 {
            return self.request.0;
        }
        let mut rng = Rng::new(seed);
        let factor = exp(rng.normal() * self.request_sigma);
        let bytes = self.request.0 as f64 * factor.clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        let whole = (bytes as u64).max(1).next_multiple_of(DRAWN_UNIT);
        // In collective calls the aggregators' buffers bound calls.
        match self.collective {
            Some(_) => whole,
            None => whole.min(CALL_BYTES_MAX),
        }
    }
}

/// The exponential function to 1/100000, by multiplications alone: those of a library differ from
/// machine to machine in the last bits.
fn exp(x: f64) -> f64 {
    (0..24).fold(1.0 + x / f64::from(1 << 24), |power, _| power * power)
}

impl Benchmark for Ior {
    fn check(&self, processes: u32) -> Result<(), Impossible> {
        check_blocks(processes, self.request, self.requests, self.collective)?;
        self.check_sigma(processes)?;
        let (shared, alone) = (self.file == Sharing::Shared, self.collective.is_none());
        let random = self.pattern == Order::Random;
        require(self.random || !random, "pattern", || {
            "contiguous and strided are possible; ior has random too".into()
        })?;
        require(shared || self.pattern != Order::Strided, "pattern", || {
            "strided blocks are in a shared file".into()
        })?;
        require(alone || shared, "file", || {
            "collective calls are on a shared file".into()
        })?;
        require(alone || !random, "pattern", || {
            "random blocks are not accessed collectively; contiguous and strided ones are".into()
        })
    }

    fn pattern(&self, processes: u32, file_base: u64, seed: u64) -> Box<dyn Pattern> {
        Box::new(Blocks {
            order: self.pattern,
            direction: self.direction,
            request: self.request_of(seed),
            requests: self.requests,
            sharing: self.file,
            processes,
            file_base,
            seed,
        })
    }

    fn way(&self) -> Way {
        Way {
            pace: self.pace,
            collective: self.collective,
            thinks: BETWEEN,
            request: self.request.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_sizes_are_log_normal() {
        let mut ior = Ior {
            request: Bytes(1 << 20),
            request_sigma: 1.0,
            ..Ior::read(&mut Keys::new(toml::Table::new()))
        };
        let mut sizes: Vec<u64> = (0..4000).map(|seed| ior.request_of(seed)).collect();
        assert_eq!(sizes[7], ior.request_of(7));
        sizes.sort_unstable();
        // The median is `request`, and a sixth lies above e times that.
        let share = |bytes: u64| sizes.partition_point(|size| *size <= bytes) as f64 / 4000.0;
        let shares = [(1.0, 0.5), (1.0f64.exp(), 0.841), ((-1.0f64).exp(), 0.159)];
        for (factor, expected) in shares {
            let found = share((1048576.0 * factor) as u64);
            assert!((found - expected).abs() < 0.03, "{factor}: {found}");
        }
        assert!(sizes.iter().all(|size| size % DRAWN_UNIT == 0));
        assert!((exp(2.5) / 2.5f64.exp() - 1.0).abs() < 1e-5);
        ior.request_sigma = 4.0;
        assert!((0..4000).all(|seed| (1..=CALL_BYTES_MAX).contains(&ior.request_of(seed))));
    }
}
