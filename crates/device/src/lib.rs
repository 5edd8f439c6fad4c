//! Models of disks, SSDs and storage servers: how long accesses take. The simulator runs them in
//! virtual time; a forwarder's emulated device, a disk or an SSD, sleeps for what they say.
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
mod server;
mod ssd;

pub use options::{DeviceOptions, Number, OptionsError, PRESETS};
pub use server::{Server, ServerOptions};

use alloc::boxed::Box;
use alloc::vec::Vec;
use disk::Disk;
use disk::queued::QueuedDisk;
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
///
/// Its user gives it calls by [`submit`](Device::submit), each under a number of the user's choice.
/// Where the end of a call depends on calls that may still come, `submit` does not know it: then
/// the user calls [`advance`](Device::advance) whenever [`next_ns`](Device::next_ns) has come.
/// Times never go back.
pub struct Device {
    model: Model,
    depth: u32,
}

/// Number of a call that is alone.
const ALONE: u64 = u64::MAX;

enum Model {
    Disk(Disk),
    Queued(Box<QueuedDisk>),
    Ssd(Ssd),
    Ideal(Ideal),
}

impl Device {
    /// A device at rest. Refused when the options contradict each other.
    pub fn new(options: &DeviceOptions) -> Result<Device, OptionsError> {
        options.check()?;
        let model = match &options.model {
            options::Model::Disk(disk) if disk.is_plain() => {
                Model::Disk(Disk::new(disk, options.capacity_bytes()))
            }
            options::Model::Disk(disk) => {
                let disk = QueuedDisk::new(disk, options.capacity_bytes());
                Model::Queued(Box::new(disk))
            }
            options::Model::Ssd(ssd) => Model::Ssd(Ssd::new(ssd)),
            options::Model::Ideal(ideal) => Model::Ideal(Ideal::new(ideal, options.depth())),
        };
        Ok(Device {
            model,
            depth: options.depth(),
        })
    }

    /// Gives the device a call at `now_ns`. Returns when it ends, if that is certain; None if
    /// [`advance`](Device::advance) will tell. A disk without a queue performs the call's extents
    /// in the given order, after all earlier calls; others share the device among calls and
    /// extents as their model says.
    pub fn submit(&mut self, now_ns: u64, call: u64, accesses: &[Access]) -> Option<u64> {
        match &mut self.model {
            Model::Disk(disk) => Some(disk.serve(now_ns, accesses)),
            Model::Queued(disk) => {
                disk.submit(now_ns, call, accesses);
                None
            }
            Model::Ssd(ssd) => Some(ssd.serve(now_ns, accesses)),
            Model::Ideal(ideal) => Some(ideal.serve(now_ns, accesses)),
        }
    }

    /// Asks the device to make durable what the calls wrote that have ended. It ends as a call
    /// does.
    pub fn flush(&mut self, now_ns: u64, call: u64) -> Option<u64> {
        match &mut self.model {
            Model::Queued(disk) => {
                disk.flush(now_ns, call);
                None
            }
            Model::Disk(_) | Model::Ssd(_) | Model::Ideal(_) => Some(now_ns),
        }
    }

    /// When [`advance`](Device::advance) must be called at the latest, if a call is left whose end
    /// `submit` did not know.
    pub fn next_ns(&self) -> Option<u64> {
        match &self.model {
            Model::Queued(disk) => disk.next_ns(),
            Model::Disk(_) | Model::Ssd(_) | Model::Ideal(_) => None,
        }
    }

    /// Lets the device work until `now_ns`. Appends the calls that have ended by then, whose end
    /// `submit` did not know, each with its end.
    pub fn advance(&mut self, now_ns: u64, ended: &mut Vec<(u64, u64)>) {
        if let Model::Queued(disk) = &mut self.model {
            disk.advance(now_ns, ended);
        }
    }

    /// Performs one call that begins at `start_ns`, with no other beside it, and returns when it
    /// ends.
    pub fn serve(&mut self, start_ns: u64, accesses: &[Access]) -> u64 {
        let end_ns = self.submit(start_ns, ALONE, accesses);
        end_ns.unwrap_or_else(|| self.wait())
    }

    /// When all that was written is durable, with no call beside it.
    pub fn flushed(&mut self, start_ns: u64) -> u64 {
        let end_ns = self.flush(start_ns, ALONE);
        end_ns.unwrap_or_else(|| self.wait())
    }

    /// Lets the device work until the call that is alone ends.
    fn wait(&mut self) -> u64 {
        let mut ended = Vec::new();
        loop {
            let next_ns = self.next_ns().expect("a call is left");
            self.advance(next_ns, &mut ended);
            if let Some((_, end_ns)) = ended.iter().find(|(call, _)| *call == ALONE) {
                return *end_ns;
            }
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
