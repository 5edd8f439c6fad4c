//! A disk with an arm and platters that serves calls in order of arrival, each to its end: no queue
//! of its own, and no cache for writes. [`queued`] is the disk that has them.

mod cache;
mod geometry;
mod mechanism;
pub(crate) mod queued;
mod segments;

use crate::Access;
use crate::options::DiskOptions;
use mechanism::{Arm, Mechanism};

pub(crate) struct Disk {
    mechanism: Mechanism,
    arm: Arm,
    /// When the last call ends.
    free_ns: u64,
}

impl Disk {
    pub(crate) fn new(options: &DiskOptions, capacity_bytes: u64) -> Disk {
        Disk {
            mechanism: Mechanism::new(options, capacity_bytes),
            arm: Arm::REST,
            free_ns: 0,
        }
    }

    pub(crate) fn serve(&mut self, start_ns: u64, accesses: &[Access]) -> u64 {
        let command_ns = self.mechanism.geometry.options.command_us * 1000;
        let mut now_ns = start_ns.max(self.free_ns).saturating_add(command_ns);
        for access in accesses {
            let access = self.mechanism.on_disk(access);
            now_ns = self.mechanism.make(&mut self.arm, now_ns, &access);
        }
        self.free_ns = now_ns;
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceOptions};

    fn options() -> DeviceOptions {
        DeviceOptions::preset("hdd-7200").unwrap()
    }

    fn disk() -> Disk {
        let crate::options::Model::Disk(disk) = options().model else {
            panic!("not a disk")
        };
        Disk::new(&disk, options().capacity_bytes())
    }

    /// A fixed sequence of numbers that look random.
    fn random(i: u64) -> u64 {
        crate::address::mix(i + 1)
    }

    fn mean_us(count: u64, mut time_ns: impl FnMut(u64) -> u64) -> u64 {
        (0..count).map(&mut time_ns).sum::<u64>() / count / 1000
    }

    #[test]
    fn the_mean_rotation_is_half_a_turn() {
        let mut disk = disk();
        disk.mechanism.geometry.options.command_us = 0;
        let mut now_ns = 0;
        let mean_us = mean_us(50_000, |i| {
            now_ns += random(i) % 20_000_000;
            // The arm is on the cylinder already, so what is left is rotation and one sector.
            let address = random(i + 7) % (disk.mechanism.geometry.options.track_bytes - 512);
            disk.arm.stream.write = true;
            let finish_ns = disk.serve(
                now_ns,
                &[Access {
                    address,
                    len: 512,
                    write: false,
                }],
            );
            let taken_ns = finish_ns - now_ns - disk.mechanism.geometry.pass_ns(0, 512);
            now_ns = finish_ns;
            taken_ns
        });
        assert!(mean_us.abs_diff(4167) < 60, "{mean_us}");
    }

    #[test]
    fn random_small_accesses_take_seek_and_rotation() {
        for write in [false, true] {
            let mut device = Device::new(&options()).unwrap();
            let mut now_ns = 0;
            let mean_us = mean_us(5000, |i| {
                let address = random(i) % 249_000_000_000 / 4096 * 4096;
                let start_ns = now_ns;
                now_ns = device.serve(
                    now_ns,
                    &[Access {
                        address,
                        len: 4096,
                        write,
                    }],
                );
                now_ns - start_ns
            });
            assert!((12_000..13_500).contains(&mean_us), "{mean_us}");
        }
    }

    /// MB/s of 64 MiB in accesses of `len`, each `gap_ns` after the one before.
    fn stream_mb_s(options: &DeviceOptions, len: u64, gap_ns: u64, write: bool) -> u64 {
        let mut device = Device::new(options).unwrap();
        let mut now_ns = 0;
        for i in 0..(64 << 20) / len {
            let access = Access {
                address: (1 << 35) + i * len,
                len,
                write,
            };
            now_ns = device.serve(now_ns, &[access]) + gap_ns;
        }
        (64 << 20) * 1000 / now_ns
    }

    #[test]
    fn sequential_accesses_stream() {
        for len in [4096, 65_536, 1 << 20] {
            // The buffer hides a gap from reads as long as it does not fill up.
            let rate = stream_mb_s(&options(), len, 0, false);
            assert!(
                (if len > 4096 { 69 } else { 30 }..=73).contains(&rate),
                "{len}: {rate}"
            );
        }
        let rate = stream_mb_s(&options(), 1 << 20, 300_000, false);
        assert!((69..=73).contains(&rate), "{rate}");
        let rate = stream_mb_s(&options(), 1 << 20, 0, true);
        assert!((69..=73).contains(&rate), "{rate}");
        // After a long pause a write has lost its turn.
        let rate = stream_mb_s(&options(), 65_536, 2_000_000, true);
        assert!((5..=12).contains(&rate), "{rate}");
    }

    #[test]
    fn alternating_streams_lose_their_bandwidth() {
        // Why coordination pays: two files read in turns of 64 KiB against one after the other.
        let mut device = Device::new(&options()).unwrap();
        let mut now_ns = 0;
        for i in 0..256u64 {
            let address = (i % 2) * 100_000_000_000 + i / 2 * 65_536;
            now_ns = device.serve(
                now_ns,
                &[Access {
                    address,
                    len: 65_536,
                    write: false,
                }],
            );
        }
        let rate = 256 * 65_536 * 1000 / now_ns;
        assert!(rate < 8, "{rate}");
    }

    #[test]
    fn the_buffer_serves_what_the_head_has_passed() {
        let mut device = Device::new(&options()).unwrap();
        let read = |address, len| {
            [Access {
                address,
                len,
                write: false,
            }]
        };
        let first_ns = device.serve(0, &read(1 << 35, 65_536));
        let later_ns = first_ns + 5_000_000;
        let hit_ns = device.serve(later_ns, &read((1 << 35) + 65_536, 65_536)) - later_ns;
        assert!(hit_ns < 400_000, "{hit_ns}");
        let again_ns = later_ns + 10_000_000;
        let again_ns = device.serve(again_ns, &read(1 << 35, 65_536)) - again_ns;
        assert!(again_ns < 400_000, "{again_ns}");
    }

    #[test]
    fn the_rotation_seed_decides_the_start_angle() {
        let first_ns = |seed| {
            let mut options = options();
            options.set("rotation_seed", seed).unwrap();
            let access = Access {
                address: 0,
                len: 512,
                write: false,
            };
            Device::new(&options).unwrap().serve(0, &[access])
        };
        assert_eq!(first_ns(5), first_ns(5));
        assert_ne!(first_ns(5), first_ns(6));
    }
}
