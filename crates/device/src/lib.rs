//! Models of disks and SSDs: how long accesses take. The simulator runs them in virtual time, a
//! forwarder's emulated device sleeps for what they say.
//!
//! The models know no clock and use integers only, so the same accesses at the same times take
//! the same time on every machine.
//!
//! ```
//! use tidegate_device::{Access, Device, DeviceOptions};
//!
//! let mut options = DeviceOptions::preset("hdd-7200").unwrap();
//! options.set("capacity_bytes", 500_000_000_000).unwrap();
//! let mut disk = Device::new(&options).unwrap();
//! let access = Access { address: 123 << 30, len: 4096, write: false };
//! let finish_ns = disk.serve(1_000, &[access]);
//! assert!(finish_ns > 100_000);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
mod disk;
mod ideal;
mod options;
mod ssd;

pub use options::{DeviceOptions, Number, OptionsError, PRESETS};

use disk::Disk;
use ideal::Ideal;
use ssd::Ssd;

/// One extent of a call to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// First byte on the device.
    pub address: u64,
    /// Number of bytes.
    pub len: u64,
    /// Write, or else read.
    pub write: bool,
}

/// One device, with its moving parts.
pub struct Device {
    model: Model,
    depth: u32,
}

enum Model {
    Disk(Disk),
    Ssd(Ssd),
    Ideal(Ideal),
}

impl Device {
    /// A device at rest. Refused when the options contradict each other.
    pub fn new(options: &DeviceOptions) -> Result<Device, OptionsError> {
        options.check()?;
        let model = match &options.model {
            options::Model::Disk(disk) => Model::Disk(Disk::new(disk, options.capacity_bytes())),
            options::Model::Ssd(ssd) => Model::Ssd(Ssd::new(ssd)),
            options::Model::Ideal(ideal) => Model::Ideal(Ideal::new(ideal, options.depth())),
        };
        Ok(Device {
            model,
            depth: options.depth(),
        })
    }

    /// Performs one call that starts at `start_ns` and returns when it finishes. The extents run
    /// in the given order. Calls are made in order of their start; one that starts while others
    /// run shares the device with them as the model says (a disk serves it after them).
    pub fn serve(&mut self, start_ns: u64, accesses: &[Access]) -> u64 {
        match &mut self.model {
            Model::Disk(disk) => disk.serve(start_ns, accesses),
            Model::Ssd(ssd) => ssd.serve(start_ns, accesses),
            Model::Ideal(ideal) => ideal.serve(start_ns, accesses),
        }
    }

    /// How many calls the host should have running at once.
    pub fn depth(&self) -> u32 {
        self.depth
    }
}

/// The time `bytes` take at a rate in MB/s, which is bytes per microsecond.
pub(crate) fn transfer_ns(bytes: u64, rate_mb_s: u64) -> u64 {
    // In 128 bits, because a whole-file length times 1000 does not fit in 64.
    let ns = u128::from(bytes) * 1000 / u128::from(rate_mb_s);
    u64::try_from(ns).unwrap_or(u64::MAX)
}
