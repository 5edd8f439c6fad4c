//! Measures what accesses to the files of a directory cost, for the scheduler's cost model.
//!
//! It measures sequential and random reads and writes of 4 KiB to 16 MiB, through the page cache,
//! and past it (O_DIRECT) where that works. It runs accesses one at a time, and then several at
//! once, to see how many the device can use. All accesses go to one file without a name, which
//! disappears with the process however that ends.
//!
//! Apart from that it measures how many accesses end at each depth, and fits a model of a device
//! with channels to them.

mod at_once;
mod cells;
mod channels;
mod fit;
mod modelled;
mod scratch;
mod search;

pub use cells::{Cell, Rounds, SPREAD_PERCENT, Sample, measure_depths};
pub use channels::{FitError, FittedDevice, fit_device};
pub use fit::{Fit, Fitted};

use at_once::Limits;
use scratch::{Scratch, Stream};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_sched::Direction;

/// The least size of the file in bytes, which leaves room for accesses at different places.
pub const BYTES_MIN: u64 = 1 << 20;

/// The lengths of accesses in bytes. The first two suffice to tell base and price if there is no
/// time for more.
const LENGTHS: [u64; 7] = [
    4 << 10,
    1 << 20,
    64 << 10,
    16 << 20,
    16 << 10,
    256 << 10,
    4 << 20,
];

/// How many lengths are measured however long that takes, each with at least one access.
const NEEDED: usize = 2;

/// After this many accesses the median is known well enough.
const ACCESSES_MAX: usize = 4000;

/// How many accesses run at once when depths are compared.
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// A throughput that grows by a smaller factor counts as not growing.
const GROWTH: f64 = 1.1;

/// The parts of the time for filling the file, and for depths. The rest is for single accesses.
const FILL_PART: f64 = 0.25;
const DEPTH_PART: f64 = 0.2;

/// The limits of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The size of the file in bytes; at least [`BYTES_MIN`].
    pub bytes: u64,
    /// The time for everything. A slow device takes longer, by as much as a few single accesses
    /// need.
    pub time: Duration,
}

/// How data reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Past the page cache.
    Direct,
    /// Through the page cache. What is read was dropped from it before; a write includes fdatasync.
    Buffered,
}

/// One kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether it reads or writes.
    pub direction: Direction,
    /// Whether it begins where the last one ended.
    pub sequential: bool,
    /// The length in bytes.
    pub len: u64,
    /// Past the page cache or through it.
    pub by: Route,
}

/// How long one kind of access takes.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The kind of access.
    pub access: Access,
    /// The median, in ns.
    pub ns: u64,
    /// How often it was measured.
    pub count: usize,
}

/// Random accesses of 4 KiB, several at once.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Whether they read or write.
    pub direction: Direction,
    /// How many ran at once.
    pub depth: u32,
    /// How many ended in a second.
    pub per_second: f64,
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Why direct I/O does not work, if it does not.
    pub no_direct: Option<String>,
    /// The times of single accesses.
    pub points: Vec<Point>,
    /// The throughput of several accesses at once.
    pub depths: Vec<Depth>,
}

impl Measured {
    /// The kind of access for the cost model: direct I/O if that works.
    pub fn by(&self) -> Route {
        match self.no_direct {
            None => Route::Direct,
            Some(_) => Route::Buffered,
        }
    }

    /// The depth beyond which throughput does not grow.
    pub fn depth(&self, direction: Direction) -> u32 {
        let of_it = self.depths.iter().filter(|one| one.direction == direction);
        let mut best: Option<&Depth> = None;
        for one in of_it {
            match best {
                Some(best) if one.per_second < best.per_second * GROWTH => {}
                _ => best = Some(one),
            }
        }
        best.map_or(1, |best| best.depth)
    }
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The path is not a directory, or the directory cannot be written.
    #[error("{0}")]
    Directory(String),
    /// The file would be too small.
    #[error("a file of {0} bytes is too small to measure: at least {BYTES_MIN}")]
    TooSmall(u64),
    /// The file system has too little room.
    #[error(
        "{dir}: {free} bytes are free and {bytes} are needed: free some, or give a smaller --size"
    )]
    NoSpace {
        /// The directory.
        dir: String,
        /// How many bytes are free.
        free: u64,
        /// How many bytes are needed.
        bytes: u64,
    },
    /// The device was too slow to write even the least size.
    #[error("{dir}: only {bytes} bytes could be written in time: give more --seconds")]
    TooSlow {
        /// The directory.
        dir: String,
        /// How many bytes were written in the time.
        bytes: u64,
    },
    /// An access failed.
    #[error("{dir}: {what}: {error}")]
    Io {
        /// The directory.
        dir: String,
        /// What was tried.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

/// Measures `dir`. Passes to `progress` which part of the work is done, from 0 to 1.
pub fn measure(
    dir: &Path,
    plan: &Plan,
    progress: &dyn Fn(f64),
) -> Result<Measured, CalibrateError> {
    if plan.bytes < BYTES_MIN {
        return Err(CalibrateError::TooSmall(plan.bytes));
    }
    let start = Instant::now();
    let part = |part: f64| start + plan.time.mul_f64(part);
    let mut scratch = Scratch::new(dir, plan.bytes)?;
    progress(0.0);
    scratch.fill(part(FILL_PART), &|done| progress(done * FILL_PART))?;
    let mut measured = Measured {
        bytes: scratch.bytes(),
        no_direct: scratch.probe_direct()?,
        points: Vec::new(),
        depths: Vec::new(),
    };
    let told = |now: Instant| {
        let passed = now.duration_since(start).as_secs_f64();
        progress((passed / plan.time.as_secs_f64()).min(1.0));
    };
    singles(&mut scratch, &mut measured, part(1.0 - DEPTH_PART), &told)?;
    depths(&mut scratch, &mut measured, part(1.0), &told)?;
    progress(1.0);
    Ok(measured)
}

/// Measures all kinds of single accesses, the most important first. Each gets a part of the time
/// that is left.
fn singles(
    scratch: &mut Scratch,
    measured: &mut Measured,
    end: Instant,
    progress: &dyn Fn(Instant),
) -> Result<(), CalibrateError> {
    let mut accesses = Vec::new();
    // A random access needs more than one place.
    let lengths = LENGTHS.iter().filter(|len| **len <= scratch.bytes() / 4);
    for (at, &len) in lengths.enumerate() {
        for by in [Route::Direct, Route::Buffered] {
            if by == Route::Direct && measured.no_direct.is_some() {
                continue;
            }
            for (direction, sequential) in fit::KINDS {
                let access = Access {
                    direction,
                    sequential,
                    len,
                    by,
                };
                accesses.push((access, at < NEEDED && by == measured.by()));
            }
        }
    }
    let count = accesses.len();
    for (at, (access, needed)) in accesses.into_iter().enumerate() {
        let now = Instant::now();
        progress(now);
        if now >= end && !needed {
            continue;
        }
        let slice = end.saturating_duration_since(now) / (count - at) as u32;
        let mut times = Vec::new();
        let mut stream = Stream::new(&access, scratch.bytes(), at as u64, 0);
        scratch.begin(&access)?;
        while times.is_empty() || times.len() < ACCESSES_MAX && now.elapsed() < slice {
            let (offset, counts) = stream.next();
            let ns = scratch.access(&access, offset)?;
            if counts {
                times.push(ns);
            }
        }
        times.sort_unstable();
        measured.points.push(Point {
            access,
            ns: times[times.len() / 2],
            count: times.len(),
        });
    }
    Ok(())
}

/// Measures more and more accesses at once, as long as the throughput grows.
fn depths(
    scratch: &mut Scratch,
    measured: &mut Measured,
    end: Instant,
    progress: &dyn Fn(Instant),
) -> Result<(), CalibrateError> {
    let mut left = 2 * DEPTHS.len() as u32;
    for direction in [Direction::Read, Direction::Write] {
        let access = Access {
            direction,
            sequential: false,
            len: LENGTHS[0],
            by: measured.by(),
        };
        scratch.begin(&access)?;
        let mut best = 0.0;
        for (at, &depth) in DEPTHS.iter().enumerate() {
            let now = Instant::now();
            progress(now);
            let slice = end.saturating_duration_since(now) / left;
            left -= 1;
            if slice.is_zero() && at > 0 {
                continue;
            }
            let limits = Limits {
                depth,
                least: 1,
                time: slice,
            };
            // What is left is another number each time, and so are the places.
            let per_second = scratch.together(&access, left.into(), limits)?.per_second;
            measured.depths.push(Depth {
                direction,
                depth,
                per_second,
            });
            if per_second < best * GROWTH {
                // The throughput does not grow any more.
                left -= (DEPTHS.len() - at - 1) as u32;
                break;
            }
            best = per_second;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
