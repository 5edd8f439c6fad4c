//! A disk with an arm and platters: seek, rotation, transfer, and the buffer that hides rotation
//! from a sequential stream.
//!
//! Where things are follows from time: the platters turn by themselves, so the angle is the time
//! since a start angle that the seed chooses. Consecutive tracks are skewed by the time that a
//! change of track takes, so a stream that crosses tracks loses that time and no rotation.

mod geometry;

use crate::options::DiskOptions;
use crate::{Access, transfer_ns};
use geometry::Geometry;

pub(crate) struct Disk {
    geometry: Geometry,
    /// Where the platters stand at time 0, in nanoseconds of rotation.
    start_angle_ns: u64,
    /// When the last call ends.
    free_ns: u64,
    /// Where the arm stands.
    cylinder: u64,
    stream: Stream,
    /// When the write cache, if there is one, has written all that it took.
    cache_empty_ns: u64,
}

/// The last access on the platters. A read goes on into the buffer after its end until the buffer
/// is full or another access needs the arm.
#[derive(Clone, Copy)]
struct Stream {
    /// First byte that is in the buffer.
    start: u64,
    /// One past the last byte asked for, which passed the head at `end_ns`.
    end: u64,
    end_ns: u64,
    write: bool,
}

impl Disk {
    pub(crate) fn new(options: &DiskOptions, capacity_bytes: u64) -> Disk {
        let geometry = Geometry::new(options, capacity_bytes);
        Disk {
            // An odd multiplier spreads small seeds over the whole turn.
            start_angle_ns: options.rotation_seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                % geometry.rotation_ns,
            geometry,
            free_ns: 0,
            cylinder: 0,
            stream: Stream {
                start: 0,
                end: 0,
                end_ns: 0,
                write: true,
            },
            cache_empty_ns: 0,
        }
    }

    pub(crate) fn serve(&mut self, start_ns: u64, accesses: &[Access]) -> u64 {
        let mut now_ns = start_ns.max(self.free_ns) + self.geometry.options.command_us * 1000;
        for access in accesses {
            let address = access.address % self.geometry.capacity_bytes;
            let len = access.len.min(self.geometry.capacity_bytes - address);
            now_ns = match (len, access.write) {
                (0, _) => now_ns,
                (_, false) => self.read(now_ns, address, len),
                (_, true) => self.write(now_ns, address, len),
            };
        }
        self.free_ns = now_ns;
        now_ns
    }

    fn read(&mut self, now_ns: u64, address: u64, len: u64) -> u64 {
        let end = address + len;
        let stream = self.stream;
        let buffered_max = stream
            .end
            .saturating_add(self.geometry.options.lookahead_bytes);
        if stream.write || address < stream.start || address >= buffered_max.max(stream.end + 1) {
            return self.seek_and_pass(now_ns, address, len, false);
        }
        let carried_ns = now_ns + transfer_ns(len, self.geometry.options.interface_mb_s);
        if end <= stream.end {
            return carried_ns;
        }
        let full_ns = stream.end_ns + self.geometry.pass_ns(stream.end, buffered_max);
        if end > buffered_max && full_ns < now_ns {
            // The buffer was full and the head went on without reading: the rest needs a turn.
            let rest = buffered_max.max(address);
            return self.seek_and_pass(now_ns, rest, end - rest, false);
        }
        let passed_ns = stream.end_ns + self.geometry.pass_ns(stream.end, end);
        self.cylinder = self.geometry.cylinder_of(end - 1);
        self.stream.end = end;
        self.stream.end_ns = passed_ns;
        self.stream.start = stream
            .start
            .max(end.saturating_sub(self.geometry.options.lookahead_bytes));
        passed_ns.max(carried_ns)
    }

    fn write(&mut self, now_ns: u64, address: u64, len: u64) -> u64 {
        let cache_bytes = self.geometry.options.write_cache_bytes;
        if cache_bytes == 0 {
            return self.write_through(now_ns, address, len);
        }
        // The cache writes in the background, in order. It is full when what it took would need
        // longer than its own size takes to stream; then the host waits for that much.
        let begin_ns = now_ns.max(self.cache_empty_ns);
        self.cache_empty_ns = self.write_through(begin_ns, address, len);
        let carried_ns = now_ns + transfer_ns(len, self.geometry.options.interface_mb_s);
        let room_ns = self.geometry.rotation_ns * cache_bytes / self.geometry.options.track_bytes;
        carried_ns.max(self.cache_empty_ns.saturating_sub(room_ns))
    }

    fn write_through(&mut self, now_ns: u64, address: u64, len: u64) -> u64 {
        let stream = self.stream;
        let gap_ns = now_ns.saturating_sub(stream.end_ns);
        let gap_ns_max =
            (self.geometry.options.stream_gap_us + self.geometry.options.command_us) * 1000;
        if stream.write && address == stream.end && address > 0 && gap_ns <= gap_ns_max {
            // The host keeps a sequential stream going: queued commands let the drive write on
            // without losing a turn between them. The gap itself stays lost.
            let end_ns = now_ns + self.geometry.pass_ns(address, address + len);
            self.cylinder = self.geometry.cylinder_of(address + len - 1);
            self.stream.end = address + len;
            self.stream.end_ns = end_ns;
            return end_ns;
        }
        self.seek_and_pass(now_ns, address, len, true)
    }

    /// Moves the arm, waits for the first byte to come round, and transfers.
    fn seek_and_pass(&mut self, now_ns: u64, address: u64, len: u64, write: bool) -> u64 {
        let end = address + len;
        // A dirty cache must be written before the arm is free for a read.
        let now_ns = now_ns.max(self.cache_empty_ns);
        let there_ns = now_ns
            + self
                .geometry
                .seek_ns(self.cylinder, self.geometry.cylinder_of(address));
        let angle_ns = (there_ns + self.start_angle_ns) % self.geometry.rotation_ns;
        let wanted_ns = self.geometry.angle_ns(address);
        let wait_ns =
            (wanted_ns + self.geometry.rotation_ns - angle_ns) % self.geometry.rotation_ns;
        let end_ns = there_ns + wait_ns + self.geometry.pass_ns(address, end);
        self.cylinder = self.geometry.cylinder_of(end - 1);
        self.stream = Stream {
            start: address,
            end,
            end_ns,
            write,
        };
        end_ns
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
        disk.geometry.options.command_us = 0;
        let mut now_ns = 0;
        let mean_us = mean_us(50_000, |i| {
            now_ns += random(i) % 20_000_000;
            // The arm is on the cylinder already, so what is left is rotation and one sector.
            let address = random(i + 7) % (disk.geometry.options.track_bytes - 512);
            disk.stream.write = true;
            let finish_ns = disk.serve(
                now_ns,
                &[Access {
                    address,
                    len: 512,
                    write: false,
                }],
            );
            let taken_ns = finish_ns - now_ns - disk.geometry.pass_ns(0, 512);
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
    fn a_write_cache_hides_writes_until_it_is_full() {
        let mut options = options();
        options.set("write_cache_bytes", 8 << 20).unwrap();
        let mut device = Device::new(&options).unwrap();
        let mut times_ns = std::vec::Vec::new();
        let mut now_ns = 0;
        for i in 0..100 {
            let access = Access {
                address: random(i) % (1 << 37),
                len: 4096,
                write: true,
            };
            let finish_ns = device.serve(now_ns, &[access]);
            times_ns.push(finish_ns - now_ns);
            now_ns = finish_ns;
        }
        assert!(times_ns[0] < 200_000, "{}", times_ns[0]);
        let late_us = times_ns[50..].iter().sum::<u64>() / 50_000;
        assert!((10_000..14_000).contains(&late_us), "{late_us}");
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
