//! The fit is tried on emulated devices, whose numbers are known: on other accesses than it was
//! fitted to it must be as fast as they are.

use super::super::cells::Rounds;
use super::*;

const BYTES: u64 = 256 << 20;

/// What a measurement of the device would find, with other places in each round.
fn rounds(truth: &DeviceOptions) -> Rounds {
    let cells = Cell::all().into_iter();
    let slices = cells.map(|cell| {
        let slice = |seed: u64| modelled::run(truth, &cell, BYTES, 100 + seed, 1000).unwrap();
        (cell, (0..2).map(slice).collect())
    });
    Rounds {
        bytes: BYTES,
        no_direct: None,
        slices: slices.collect(),
    }
}

fn ssd(preset: &str, numbers: &[(&str, u64)]) -> DeviceOptions {
    let mut options = DeviceOptions::preset(preset).unwrap();
    for (name, value) in numbers {
        options.set(name, *value).unwrap();
    }
    options
}

/// The cells in which the fitted device is farthest from the samples, percent.
fn farthest(fitted: &FittedDevice, samples: &[Sample]) -> (f64, Cell) {
    let off = samples.iter().map(|sample| {
        let ratio = fitted.per_second(&sample.cell).unwrap() / sample.per_second;
        (100.0 * (ratio - 1.0).abs(), sample.cell)
    });
    off.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn an_emulated_ssd_is_found_again() {
    for truth in [
        ssd("ssd-sata", &[]),
        ssd("ssd-pcie", &[("channels", 16), ("stripe_bytes", 4096)]),
        ssd("ssd-sata", &[("channels", 2), ("write_us", 400)]),
    ] {
        let rounds = rounds(&truth);
        let fitted = fit_device(&rounds.to_fit(), BYTES).unwrap();
        let (percent, cell) = farthest(&fitted, &rounds.to_compare());
        assert!(
            percent < 15.0,
            "{percent:.1} % at {cell:?}: {:?}",
            fitted.own()
        );
    }
}

#[test]
fn a_device_without_channels_does_not_look_like_one_with_them() {
    let fitted = |channels| {
        let truth = ssd("ssd-sata", &[("channels", channels)]);
        fit_device(&rounds(&truth).to_fit(), BYTES).unwrap()
    };
    let (one, many) = (fitted(1), rounds(&ssd("ssd-sata", &[])));
    let (percent, _) = farthest(&one, &many.to_compare());
    assert!(percent > 50.0, "{percent}");
}

#[test]
fn nothing_is_fitted_to_nothing() {
    assert_eq!(fit_device(&[], BYTES).unwrap_err(), FitError::NoRates);
}

#[test]
fn a_single_access_takes_what_random_and_sequential_ones_took_on_the_mean() {
    let sample = |sequential, per_second| Sample {
        cell: Cell {
            direction: Direction::Read,
            sequential,
            len: 4096,
            depth: 1,
        },
        per_second,
        spread: (per_second, per_second),
        accesses: 100,
    };
    let single = single(
        &[sample(false, 5000.0), sample(true, 20_000.0)],
        Direction::Read,
    );
    assert_eq!(single, (4096, 125.0));
    let at = |busy_us| [8.0, busy_us, 4096.0, 4096.0, 1e6];
    let read_us = |busy_us| {
        let options = device(4096, &at(busy_us), [single, single]).unwrap();
        let numbers = options.numbers();
        numbers
            .iter()
            .find(|number| number.name == "read_us")
            .map(|number| number.value)
    };
    assert_eq!(read_us(24.0), Some(100));
    // A channel that takes longer leaves nothing.
    assert_eq!(read_us(200.0), Some(0));
}
