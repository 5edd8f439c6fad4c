//! Where bytes lie on the platters of a disk, and how long it takes to reach and pass them.

use crate::options::DiskOptions;

/// What the skew allows beyond the change of track, as drives do, because to be a moment late
/// costs a whole rotation.
const SKEW_RESERVE_NS: u64 = 50_000;

/// The parts of a disk that do not change.
pub(super) struct Geometry {
    pub(super) options: DiskOptions,
    pub(super) rotation_ns: u64,
    cylinders: u64,
    /// Whole cylinders only.
    pub(super) capacity_bytes: u64,
}

impl Geometry {
    pub(super) fn new(options: &DiskOptions, capacity_bytes: u64) -> Geometry {
        let cylinder_bytes = options.track_bytes * options.heads;
        let cylinders = capacity_bytes / cylinder_bytes;
        Geometry {
            options: options.clone(),
            rotation_ns: 60_000_000_000 / options.rpm,
            cylinders,
            capacity_bytes: cylinders * cylinder_bytes,
        }
    }

    /// The time from one cylinder to another: a square root while the arm speeds up and slows
    /// down, a line once it reaches full speed, at a fifth of the way (Ruemmler and Wilkes 1994
    /// fit both parts to measured disks).
    pub(super) fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let distance = from.abs_diff(to);
        if distance == 0 {
            return 0;
        }
        let min_ns = self.options.seek_min_us * 1000;
        let max_ns = self.options.seek_max_us * 1000;
        // The mean over random pairs of a curve that bends lies below its value at the mean
        // distance, a third of the way, by about 1/16.
        let third_ns = (self.options.seek_mean_us * 1000 * 17 / 16).min(max_ns);
        let all = self.cylinders;
        let line_ns = |distance: u64| {
            let slope_ns = (max_ns - third_ns) * 3 / 2;
            let rise_ns = u128::from(slope_ns) * u128::from(distance) / u128::from(all);
            (third_ns + rise_ns as u64).saturating_sub(slope_ns / 3)
        };
        let knee = all / 5;
        if distance >= knee {
            return line_ns(distance);
        }
        let rise_ns = line_ns(knee).saturating_sub(min_ns);
        // Scaled by 2^20 before the root, so that the root keeps ten bits behind the point.
        let root = |distance: u64| (u128::from(distance) << 20).isqrt();
        let part = u128::from(rise_ns) * root(distance - 1) / root(knee).max(1);
        min_ns + part as u64
    }

    /// The time in which the bytes from `from` to `to` pass under the heads of a stream.
    pub(super) fn pass_ns(&self, from: u64, to: u64) -> u64 {
        let track_bytes = self.options.track_bytes;
        let crossings = (to - 1).max(from) / track_bytes - from / track_bytes;
        let turn_ns = u128::from(to - from) * u128::from(self.rotation_ns);
        let turn_ns = u64::try_from(turn_ns / u128::from(track_bytes)).unwrap_or(u64::MAX);
        turn_ns.saturating_add(crossings.saturating_mul(self.skew_ns()))
    }

    /// The angle at which a byte passes the head, in nanoseconds of rotation.
    pub(super) fn angle_ns(&self, address: u64) -> u64 {
        let (track, offset) = (
            address / self.options.track_bytes,
            address % self.options.track_bytes,
        );
        let skew_ns = track % self.rotation_ns * (self.skew_ns() % self.rotation_ns);
        (skew_ns + offset * self.rotation_ns / self.options.track_bytes) % self.rotation_ns
    }

    pub(super) fn skew_ns(&self) -> u64 {
        self.options.head_switch_us * 1000 + SKEW_RESERVE_NS
    }

    pub(super) fn cylinder_of(&self, address: u64) -> u64 {
        address / (self.options.track_bytes * self.options.heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceOptions;
    use crate::address::mix;

    #[test]
    fn seeks_grow_with_distance_and_have_the_mean_they_should() {
        let options = DeviceOptions::preset("hdd-7200").unwrap();
        let crate::options::Model::Disk(disk) = &options.model else {
            panic!("not a disk")
        };
        let disk = Geometry::new(disk, options.capacity_bytes());
        let mut last_ns = 0;
        for distance in 0..disk.cylinders {
            let seek_ns = disk.seek_ns(0, distance);
            assert!(seek_ns >= last_ns, "shorter at distance {distance}");
            last_ns = seek_ns;
        }
        assert_eq!(disk.seek_ns(0, 1), 800_000);
        assert!(last_ns.abs_diff(17_000_000) < 10_000, "{last_ns}");
        let pair = |i: u64| (mix(2 * i) % disk.cylinders, mix(2 * i + 1) % disk.cylinders);
        let seeks_ns = (1..=100_000)
            .map(pair)
            .map(|(from, to)| disk.seek_ns(from, to));
        let mean_us = seeks_ns.sum::<u64>() / 100_000 / 1000;
        assert!(mean_us.abs_diff(8500) < 8500 / 20, "{mean_us}");
    }
}
