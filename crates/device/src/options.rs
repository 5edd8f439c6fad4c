//! What a device is told at the start: a preset, and numbers that override it.

use crate::address::UNIT_BYTES;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// The names of all presets.
///
/// - `hdd-7200`: a SATA disk of 2005 to 2008, the kind in the nodes of Song et al. (SC'11).
///   Reviews of the Barracuda 7200.8 (250 GB and more) print 4.16 ms latency, 8.0 to 8.5 ms
///   average seek and 65 MB/s sustained; the model streams 72 MB/s. No write cache.
/// - `hdd-ncq`: a SATA disk for servers of about 2015: 4 TB, 188 MB/s, native
///   command queuing with 32 commands, a write cache of 64 MiB, a buffer that keeps 16 streams. Its
///   seeks and its turns are those of `hdd-7200`.
/// - `ssd-sata`: an SSD behind SATA 3: about 520 MB/s, tens of thousands of random reads.
/// - `ssd-pcie`: a PCIe x4 SSD of 2010, as in the same paper: about 740 MB/s.
/// - `ideal`: every call takes the same time.
pub const PRESETS: &[&str] = &["hdd-7200", "hdd-ncq", "ssd-sata", "ssd-pcie", "ideal"];

/// One number of the options.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Its name, with its unit behind.
    pub name: &'static str,
    /// What it is now.
    pub value: u64,
    /// The least that makes sense.
    pub min: u64,
    /// The most that makes sense.
    pub max: u64,
    /// What it says of the device.
    pub help: &'static str,
}

/// Makes a struct of numbers, each with its range and its meaning, and a way to go through them.
macro_rules! numbers {
    ($(#[$about:meta])* struct $name:ident {
        $($(#[doc = $help:literal])* $number:ident: $min:expr, $max:expr;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[doc = $help])* pub(crate) $number: u64,)*
        }

        impl $name {
            fn visit(&mut self, visit: &mut dyn FnMut(Number, &mut u64)) {
                $(
                    let number = Number {
                        name: stringify!($number),
                        value: self.$number,
                        min: $min,
                        max: $max,
                        help: concat!($($help),*).trim_ascii(),
                    };
                    visit(number, &mut self.$number);
                )*
            }
        }
    };
}

const US_MAX: u64 = 60_000_000;
const BYTES_MAX: u64 = 1 << 50;
const RATE_MAX: u64 = 1_000_000;

numbers! {
    /// What every model has.
    struct Common {
        /// Calls that run at once
        depth: 1, 4096;
        /// Bytes of the device, onto which files are mapped
        capacity_bytes: 1 << 20, BYTES_MAX;
        /// Bytes of a file that lie together on the device; small ones make an old, fragmented
        /// file system
        unit_bytes: 4096, BYTES_MAX;
    }
}

numbers! {
    /// A disk with moving parts.
    struct DiskOptions {
        /// Revolutions per minute
        rpm: 60, 100_000;
        /// Bytes of a track
        track_bytes: 4096, 1 << 30;
        /// Tracks of a cylinder
        heads: 1, 64;
        /// Seek to the next cylinder
        seek_min_us: 0, US_MAX;
        /// Mean seek
        seek_mean_us: 0, US_MAX;
        /// Seek over the whole disk; the three must not descend
        seek_max_us: 0, US_MAX;
        /// Change to another head
        head_switch_us: 0, US_MAX;
        /// Fixed cost of a call
        command_us: 0, US_MAX;
        /// Rate of the interface, MB/s
        interface_mb_s: 1, RATE_MAX;
        /// Bytes read ahead into the disk's buffer
        lookahead_bytes: 0, 1 << 30;
        /// Pause after which a sequential stream has to be found again
        stream_gap_us: 0, US_MAX;
        /// Commands in the disk's own queue, of which the arm serves the one next that it reaches
        /// first; 1 serves calls in order of arrival
        queue: 1, 1024;
        /// Age of a command that no other one passes any more
        queue_age_us: 0, US_MAX;
        /// Streams of which the buffer keeps what was read
        segments: 1, 1024;
        /// Bytes of the write cache, which `fsync` waits for; 0 is none
        write_cache_bytes: 0, 1 << 30;
        /// The angle at which the disk starts
        rotation_seed: 0, u64::MAX;
    }
}

numbers! {
    /// A device of parallel flash channels.
    struct SsdOptions {
        /// Flash channels that work beside each other
        channels: 1, 1024;
        /// Bytes of one channel before the next
        stripe_bytes: 512, 1 << 30;
        /// Latency of a read
        read_us: 0, US_MAX;
        /// Latency of a write
        write_us: 0, US_MAX;
        /// Time for which one access keeps its channel
        channel_busy_us: 0, US_MAX;
        /// Reading rate of one channel, MB/s
        channel_read_mb_s: 1, RATE_MAX;
        /// Writing rate of one channel, MB/s
        channel_write_mb_s: 1, RATE_MAX;
        /// Rate of the interface, MB/s
        interface_mb_s: 1, RATE_MAX;
        /// Bytes that a channel writes between two pauses in which it collects garbage; 0 is never
        gc_bytes: 0, BYTES_MAX;
        /// Such a pause
        gc_us: 0, US_MAX;
    }
}

numbers! {
    /// A device of one fixed time.
    struct IdealOptions {
        /// Time of a call
        service_us: 0, US_MAX;
        /// Nanoseconds that each KiB adds
        ns_per_kib: 0, 1_000_000_000;
    }
}

/// A preset and its overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    common: Common,
    pub(crate) model: Model,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    Disk(DiskOptions),
    Ssd(SsdOptions),
    Ideal(IdealOptions),
}

impl DeviceOptions {
    /// The options of the preset called `name`.
    pub fn preset(name: &str) -> Result<DeviceOptions, OptionsError> {
        let ssd = |read_us, write_us, busy_us, read, write, interface_mb_s| {
            Model::Ssd(SsdOptions {
                channels: 8,
                stripe_bytes: 16 << 10,
                read_us,
                write_us,
                channel_busy_us: busy_us,
                channel_read_mb_s: read,
                channel_write_mb_s: write,
                interface_mb_s,
                gc_bytes: 0,
                gc_us: 0,
            })
        };
        let (capacity_bytes, model) = match name {
            "hdd-7200" => (250_000_000_000, Model::Disk(hdd_7200())),
            "hdd-ncq" => (4_000_000_000_000, Model::Disk(hdd_ncq())),
            "ssd-sata" => (480_000_000_000, ssd(70, 40, 60, 180, 140, 520)),
            "ssd-pcie" => (100_000_000_000, ssd(50, 30, 30, 220, 105, 740)),
            "ideal" => {
                let options = IdealOptions {
                    service_us: 1000,
                    ns_per_kib: 0,
                };
                (1 << 40, Model::Ideal(options))
            }
            _ => return Err(OptionsError::UnknownPreset(name.to_string())),
        };
        let common = Common {
            depth: 1,
            capacity_bytes,
            unit_bytes: UNIT_BYTES,
        };
        Ok(DeviceOptions { common, model })
    }

    /// Overrides one number of the preset.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), OptionsError> {
        let mut result = None;
        let mut known = Vec::new();
        self.visit(&mut |number, place| {
            known.push(number.name);
            if number.name == name {
                let (option, min, max) = (number.name, number.min, number.max);
                if (min..=max).contains(&value) {
                    *place = value;
                    result = Some(Ok(()));
                } else {
                    result = Some(Err(OptionsError::OutOfRange {
                        option,
                        value,
                        min,
                        max,
                    }));
                }
            }
        });
        let unknown = OptionsError::UnknownOption {
            option: name.to_string(),
            known: known.join(", "),
        };
        result.unwrap_or(Err(unknown))
    }

    /// All numbers, for the reference.
    pub fn numbers(&self) -> Vec<Number> {
        let mut all = Vec::new();
        self.clone().visit(&mut |number, _| all.push(number));
        all
    }

    /// How many calls run at once: 1 unless set, so that order is decided in the scheduler.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.common.depth).expect("checked against a smaller maximum")
    }

    /// Bytes on the device, for the mapping of files to addresses.
    pub fn capacity_bytes(&self) -> u64 {
        self.common.capacity_bytes
    }

    /// Bytes of a file that lie together on the device, see [`Mapping`](crate::address::Mapping);
    /// small ones make an old, fragmented file system.
    pub fn unit_bytes(&self) -> u64 {
        self.common.unit_bytes
    }

    /// Checks what involves several numbers.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let Model::Disk(disk) = &self.model else {
            return Ok(());
        };
        if disk.seek_min_us > disk.seek_mean_us || disk.seek_mean_us > disk.seek_max_us {
            let text = "seek_min_us, seek_mean_us and seek_max_us must not descend";
            return Err(OptionsError::Contradiction(text));
        }
        if self.common.capacity_bytes < disk.track_bytes * disk.heads * 8 {
            let text = "capacity_bytes must hold eight cylinders of heads * track_bytes";
            return Err(OptionsError::Contradiction(text));
        }
        Ok(())
    }

    fn visit(&mut self, visit: &mut dyn FnMut(Number, &mut u64)) {
        self.common.visit(visit);
        match &mut self.model {
            Model::Disk(disk) => disk.visit(visit),
            Model::Ssd(ssd) => ssd.visit(visit),
            Model::Ideal(ideal) => ideal.visit(visit),
        }
    }
}

impl DiskOptions {
    /// Whether the disk does nothing but one call after the other.
    pub(crate) fn is_plain(&self) -> bool {
        self.queue == 1 && self.segments == 1 && self.write_cache_bytes == 0
    }
}

fn hdd_7200() -> DiskOptions {
    DiskOptions {
        rpm: 7200,
        track_bytes: 1296 * 512,
        heads: 4,
        seek_min_us: 800,
        seek_mean_us: 8500,
        seek_max_us: 17_000,
        head_switch_us: 800,
        command_us: 100,
        interface_mb_s: 250,
        lookahead_bytes: 1 << 20,
        stream_gap_us: 1000,
        queue: 1,
        queue_age_us: 1_000_000,
        segments: 1,
        write_cache_bytes: 0,
        rotation_seed: 1,
    }
}

fn hdd_ncq() -> DiskOptions {
    DiskOptions {
        track_bytes: 3072 * 512,
        heads: 8,
        command_us: 50,
        interface_mb_s: 600,
        lookahead_bytes: 2 << 20,
        queue: 32,
        segments: 16,
        write_cache_bytes: 64 << 20,
        ..hdd_7200()
    }
}

/// Why device options were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// There is no such preset.
    UnknownPreset(String),
    /// The preset has no such number.
    UnknownOption {
        /// The name that was set.
        option: String,
        /// The names it knows, with commas between.
        known: String,
    },
    /// The number is outside of what the option allows.
    OutOfRange {
        /// The option.
        option: &'static str,
        /// What was given.
        value: u64,
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// Two numbers do not go together; the text says which.
    Contradiction(&'static str),
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionsError::UnknownPreset(name) => {
                write!(
                    f,
                    "there is no device \"{name}\"; known: {}",
                    PRESETS.join(", ")
                )
            }
            OptionsError::UnknownOption { option, known } => {
                write!(f, "this device has no option \"{option}\"; known: {known}")
            }
            OptionsError::OutOfRange {
                option,
                value,
                min,
                max,
            } => {
                write!(f, "{option} = {value} is outside of {min} to {max}")
            }
            OptionsError::Contradiction(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for OptionsError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn every_preset_makes_a_device_of_depth_one() {
        for name in PRESETS {
            let options = DeviceOptions::preset(name).unwrap();
            assert_eq!(Device::new(&options).unwrap().depth(), 1, "{name}");
        }
    }

    /// Two numbers at a time at an end of their range: the device is refused, or serves.
    #[test]
    fn a_device_works_at_the_corners_of_its_options() {
        let accesses = [(0, 0), (4096, 4096), (u64::MAX - 9, u64::MAX)];
        let accesses =
            accesses.map(|(address, len)| [true, false].map(|write| (address, len, write)));
        for name in PRESETS {
            let preset = DeviceOptions::preset(name).unwrap();
            let numbers = preset.numbers();
            let corners: Vec<(&str, u64)> = numbers
                .iter()
                .flat_map(|it| [(it.name, it.min), (it.name, it.max)])
                .collect();
            for (one, other) in corners
                .iter()
                .flat_map(|a| corners.iter().map(move |b| (a, b)))
            {
                let mut options = preset.clone();
                options.set(one.0, one.1).unwrap();
                options.set(other.0, other.1).unwrap();
                let Ok(mut device) = Device::new(&options) else {
                    continue;
                };
                let mut now_ns = 0;
                for (address, len, write) in accesses.iter().flatten().copied() {
                    let access = crate::Access {
                        address,
                        len,
                        write,
                    };
                    now_ns = device.serve(now_ns, &[access]).min(1 << 60);
                }
                device.flushed(now_ns);
            }
        }
    }

    #[test]
    fn refusals_name_what_is_known() {
        let error = DeviceOptions::preset("floppy").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no device \"floppy\"; known: hdd-7200, hdd-ncq, ssd-sata, ssd-pcie, ideal"
        );
        let mut ideal = DeviceOptions::preset("ideal").unwrap();
        let error = ideal.set("rpm", 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "this device has no option \"rpm\"; \
             known: depth, capacity_bytes, unit_bytes, service_us, ns_per_kib"
        );
        let error = ideal.set("depth", 0).unwrap_err().to_string();
        assert_eq!(error, "depth = 0 is outside of 1 to 4096");
        let mut disk = DeviceOptions::preset("hdd-7200").unwrap();
        disk.set("seek_max_us", 1).unwrap();
        assert!(matches!(
            Device::new(&disk),
            Err(OptionsError::Contradiction(_))
        ));
    }
}
