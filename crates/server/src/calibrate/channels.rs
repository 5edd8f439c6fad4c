//! Fits a device with channels to the rates of accesses at several depths.
//!
//! The latency follows from the other numbers: with it a single access of the least length takes
//! what random and sequential ones took on the mean, as far as the channel and the interface do not
//! take longer. The others are searched for: each trial runs all cells on the model, in virtual
//! time.

use super::cells::{Cell, Sample};
use super::{modelled, search};
use crate::device::{DeviceOptions, OptionsError};
use tidegate_sched::Direction;

/// Accesses of a cell in a trial, while it is sought where to look closer, and then.
const TRIAL_ACCESSES: [usize; 2] = [100, 300];

/// The first and the last step of the search, in logarithms: where to look closer, and there.
const STEPS: [(f64, f64); 2] = [(0.7, 0.3), (0.35, 0.02)];

/// How many places are looked at closer.
const CLOSER: usize = 2;

/// Accesses of a cell when model and device are compared.
const COMPARED_ACCESSES: usize = 4000;

/// Where the places of a comparison begin, which are others than those of trials.
const COMPARED_SEED: u64 = 1 << 32;

/// The model is a SATA SSD with other numbers.
const PRESET: &str = "ssd-sata";

/// The sizes of a stripe that are tried.
const STRIPES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];

/// The numbers of channels from which the search begins: from a single one it can end at half of
/// the channels with twice the speed.
const CHANNELS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 48.0];

/// Where the other numbers begin: the time that an access keeps a channel in us, the channel's
/// rates and that of the interface in MB/s.
const START: [f64; 4] = [20.0, 200.0, 200.0, 1000.0];

/// Of channels and the other numbers.
const RANGES: [(f64, f64); 5] = [
    (1.0, 256.0),
    (0.25, 1e5),
    (1.0, 1e5),
    (1.0, 1e5),
    (1.0, 1e6),
];

/// Why no model was fitted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// There is nothing to fit it to.
    #[error("no rate was measured: no model is fitted")]
    NoRates,
    /// The model refused its numbers.
    #[error("device: {0}")]
    Options(OptionsError),
}

/// A device with channels, and how well it fits.
#[derive(Clone, Debug)]
pub struct FittedDevice {
    /// The preset of which it is made.
    pub preset: &'static str,
    /// All its numbers.
    pub options: DeviceOptions,
    /// The mean deviation from the rates that it was fitted to, in percent of them.
    pub error_percent: f64,
    /// The size in bytes of the file whose places it is asked for.
    bytes: u64,
}

impl FittedDevice {
    /// How many accesses of a cell end in a second by the model.
    pub fn per_second(&self, cell: &Cell) -> Result<f64, FitError> {
        let slice = modelled::run(
            &self.options,
            cell,
            self.bytes,
            COMPARED_SEED,
            COMPARED_ACCESSES,
        );
        Ok(slice.map_err(FitError::Options)?.per_second)
    }

    /// The numbers that are not those of the preset.
    pub fn own(&self) -> Vec<(&'static str, u64)> {
        let preset = DeviceOptions::preset(self.preset).expect("it is one");
        let pairs = self.options.numbers().into_iter().zip(preset.numbers());
        let own = pairs.filter(|(own, preset)| own.value != preset.value);
        own.map(|(own, _)| (own.name, own.value)).collect()
    }
}

/// Fits a device to samples of a file of `bytes`.
pub fn fit_device(samples: &[Sample], bytes: u64) -> Result<FittedDevice, FitError> {
    if samples.is_empty() {
        return Err(FitError::NoRates);
    }
    let singles = [Direction::Read, Direction::Write].map(|direction| single(samples, direction));
    let look = |stripe: u64, start: [f64; 5], closer: usize| {
        let mut cost = |at: &[f64; 5]| match device(stripe, at, singles) {
            Ok(options) => squares(&options, samples, bytes, TRIAL_ACCESSES[closer]),
            Err(_) => f64::INFINITY,
        };
        let (at, least) = search::search(start, RANGES, STEPS[closer], &mut cost);
        (least, stripe, at)
    };
    let mut found = Vec::new();
    for stripe in STRIPES {
        for channels in CHANNELS {
            let [busy_us, read, write, interface] = START;
            found.push(look(stripe, [channels, busy_us, read, write, interface], 0));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let closer = found.into_iter().take(CLOSER);
    let closer = closer.map(|(_, stripe, at)| look(stripe, at, 1));
    let best = closer.min_by(|a, b| a.0.total_cmp(&b.0));
    let (_, stripe, at) = best.expect("some were found");
    let options = device(stripe, &at, singles).map_err(FitError::Options)?;
    let mut fitted = FittedDevice {
        preset: PRESET,
        options,
        error_percent: 0.0,
        bytes,
    };
    let mut errors = 0.0;
    for sample in samples {
        errors += (fitted.per_second(&sample.cell)? / sample.per_second - 1.0).abs();
    }
    fitted.error_percent = 100.0 * errors / samples.len() as f64;
    Ok(fitted)
}

/// How long an access of the least length takes alone, in us: the mean of random and sequential,
/// which the model has one latency for.
fn single(samples: &[Sample], direction: Direction) -> (u64, f64) {
    let of = |sample: &&Sample| sample.cell.direction == direction && sample.cell.depth == 1;
    let len = samples.iter().filter(of).map(|it| it.cell.len).min();
    let len = len.unwrap_or(0);
    let of = samples.iter().filter(of).filter(|it| it.cell.len == len);
    let times: Vec<f64> = of.map(|it| 1e6 / it.per_second).collect();
    (len, times.iter().sum::<f64>() / times.len().max(1) as f64)
}

/// The device with these numbers, in which single accesses take the time that they took, or what
/// channel and interface need if that is longer.
fn device(
    stripe: u64,
    at: &[f64; 5],
    singles: [(u64, f64); 2],
) -> Result<DeviceOptions, OptionsError> {
    let [channels, busy_us, read_mb_s, write_mb_s, interface_mb_s] = at.map(f64::round);
    let latency = |(len, single_us): (u64, f64), rate_mb_s: f64| {
        let moved_us = (busy_us + len as f64 / rate_mb_s).max(len as f64 / interface_mb_s);
        (single_us - moved_us).max(0.0).round() as u64
    };
    let mut options = DeviceOptions::preset(PRESET)?;
    for (name, value) in [
        ("channels", channels as u64),
        ("stripe_bytes", stripe),
        ("channel_busy_us", busy_us as u64),
        ("channel_read_mb_s", read_mb_s as u64),
        ("channel_write_mb_s", write_mb_s as u64),
        ("interface_mb_s", interface_mb_s as u64),
        ("read_us", latency(singles[0], read_mb_s)),
        ("write_us", latency(singles[1], write_mb_s)),
    ] {
        options.set(name, value)?;
    }
    Ok(options)
}

/// The sum of squares of the logarithms of model by measured: half and double count the same.
fn squares(options: &DeviceOptions, samples: &[Sample], bytes: u64, accesses: usize) -> f64 {
    let mut sum = 0.0;
    for sample in samples {
        let slice = modelled::run(options, &sample.cell, bytes, 0, accesses);
        let Ok(slice) = slice else {
            return f64::INFINITY;
        };
        let log = (slice.per_second / sample.per_second).ln();
        sum += log * log;
    }
    sum
}

#[cfg(test)]
mod tests;
