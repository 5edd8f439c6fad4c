//! Cost models of simulated devices. This file measures the device's model, as `tidegate calibrate`
//! measures a real device, or reads what that command has written.

use crate::rng::Rng;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use tidegate_device::{Access, Device, DeviceOptions, OptionsError};
use tidegate_sched::{AccessCost, CostModel, Direction};

/// Two lengths, between which the cost is taken to be a line.
const LENGTHS: [u64; 2] = [4096, 1 << 20];

/// Accesses of each kind and length that are measured.
const COUNT: u64 = 1000;

/// Measures a device's model: mean times of accesses one after the other, first all over the
/// device, then in a row, until a write cache has nothing of them left.
pub fn measured(device: &DeviceOptions) -> Result<CostModel, OptionsError> {
    let mut model = CostModel::default();
    for direction in [Direction::Read, Direction::Write] {
        for sequential in [false, true] {
            let mut means_ns = [0; 2];
            for (mean_ns, len) in means_ns.iter_mut().zip(LENGTHS) {
                *mean_ns = mean(device, direction, sequential, len)?;
            }
            *model.access_mut(direction, sequential) = line(means_ns);
        }
    }
    Ok(model)
}

/// Bytes of a cost model beyond which it is none.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// Reads what `tidegate calibrate` has written. The error says why it cannot be used.
pub fn read(path: &Path) -> Result<CostModel, String> {
    // Looked at before it is opened: a pipe would be waited for.
    let text = std::fs::metadata(path).and_then(|found| match found.is_file() {
        true => {
            let mut text = String::new();
            let file = File::open(path)?;
            file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        }
        false => Err(io::Error::other("is not a file")),
    });
    let text = text.map_err(|error| error.to_string())?;
    CostModel::parse(&text).map_err(|error| error.to_string())
}

/// The line through two means.
fn line([short_ns, long_ns]: [u64; 2]) -> AccessCost {
    let [short, long] = LENGTHS;
    let rise_ns = long_ns.saturating_sub(short_ns);
    let ns_per_mib = u128::from(rise_ns) * (1 << 20) / u128::from(long - short);
    let ns_per_mib = u64::try_from(ns_per_mib).unwrap_or(u64::MAX);
    let moved = AccessCost {
        base_ns: 0,
        ns_per_mib,
    };
    AccessCost {
        base_ns: short_ns.saturating_sub(moved.ns(short)),
        ns_per_mib,
    }
}

/// Mean time of an access, ns.
fn mean(
    device: &DeviceOptions,
    direction: Direction,
    sequential: bool,
    len: u64,
) -> Result<u64, OptionsError> {
    let mut disk = Device::new(device)?;
    let mut rng = Rng::new(1);
    let len = len.min(device.capacity_bytes());
    let places = device.capacity_bytes() / len;
    let write = direction == Direction::Write;
    let mut end_ns = 0;
    for number in 0..COUNT {
        let place = match sequential {
            true => number % places,
            false => rng.below(places),
        };
        let access = Access {
            address: place * len,
            len,
            write,
        };
        end_ns = disk.serve(end_ns, &[access]);
    }
    Ok(disk.flushed(end_ns) / COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> CostModel {
        measured(&DeviceOptions::preset(name).expect("it is one")).expect("it can be built")
    }

    #[test]
    fn a_disk_costs_its_positioning_and_its_rate() {
        let model = of("hdd-7200");
        let random = model.read_random;
        // Seek 8.5 ms, half a turn 4.2 ms; 72 MB/s.
        assert!(
            (12_000_000..13_500_000).contains(&random.base_ns),
            "{model}"
        );
        assert!(
            (13_000_000..17_000_000).contains(&random.ns_per_mib),
            "{model}"
        );
        assert!(model.read_sequential.base_ns < 500_000, "{model}");
        assert!(model.write_sequential.base_ns < 500_000, "{model}");
    }

    #[test]
    fn a_write_cache_makes_no_write_free() {
        let model = of("hdd-ncq");
        let random = model.write_random;
        // The nearest of some of 1000 writes, not each in its turn.
        assert!((2_000_000..12_000_000).contains(&random.base_ns), "{model}");
        assert!(random.ns_per_mib > 4_000_000, "{model}");
        assert!(model.write_sequential.ns_per_mib > 4_000_000, "{model}");
    }

    #[test]
    fn an_ideal_device_has_one_price() {
        let model = of("ideal");
        for cost in [model.read_random, model.write_sequential] {
            // Means are rounded down.
            assert!((999_999..=1_000_000).contains(&cost.base_ns), "{model}");
            assert_eq!(cost.ns_per_mib, 0, "{model}");
        }
    }
}
