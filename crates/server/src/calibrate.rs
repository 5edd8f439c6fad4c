//! Measures what accesses of a directory's files cost, for the cost model of the scheduler.
//!
//! Sequential and random reads and writes of 4 KiB to 16 MiB, past the page cache (O_DIRECT) where
//! that works, and through it; one at a time, and then several, to see how many the device can use.
//! All of it in one file without a name, which is gone with the process however that ends.

mod fit;
mod scratch;

pub use fit::{Fit, Fitted};

use scratch::{Scratch, Stream};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_sched::Direction;

/// The least size of the file: one access of some length, and others elsewhere.
pub const BYTES_MIN: u64 = 1 << 20;

/// Lengths of accesses. The first two tell base and price where there is no time for more.
const LENGTHS: [u64; 7] = [
    4 << 10,
    1 << 20,
    64 << 10,
    16 << 20,
    16 << 10,
    256 << 10,
    4 << 20,
];

/// Lengths that are measured however long it takes, with one access at least.
const NEEDED: usize = 2;

/// Accesses beyond which the median is known well enough.
const ACCESSES_MAX: usize = 4000;

/// Accesses that run at once when depths are compared.
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Throughput that grows by less is taken not to grow.
const GROWTH: f64 = 1.1;

/// Parts of the time for filling the file, and for depths; the rest is for single accesses.
const FILL_PART: f64 = 0.25;
const DEPTH_PART: f64 = 0.2;

/// What a measurement may use.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Size of the file; at least [`BYTES_MIN`].
    pub bytes: u64,
    /// Time; a slow device takes as much more as a few single accesses need.
    pub time: Duration,
}

/// How data gets to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Past the page cache.
    Direct,
    /// Through the page cache: what is read was dropped from it before, a write includes fdatasync.
    Buffered,
}

/// One kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Read or write.
    pub direction: Direction,
    /// Whether it goes on where the last one ended.
    pub sequential: bool,
    /// Bytes.
    pub len: u64,
    /// Past the page cache or through it.
    pub by: Route,
}

/// What one kind of access took.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// What was done.
    pub access: Access,
    /// The median, in nanoseconds.
    pub ns: u64,
    /// How often it was done.
    pub count: usize,
}

/// Random accesses of 4 KiB, several at a time.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Read or write.
    pub direction: Direction,
    /// How many at a time.
    pub depth: u32,
    /// How many each second.
    pub per_second: f64,
}

/// All that was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Size of the file.
    pub bytes: u64,
    /// Why accesses past the page cache do not work, if they do not.
    pub no_direct: Option<String>,
    /// What accesses took, one at a time.
    pub points: Vec<Point>,
    /// What several at a time came to.
    pub depths: Vec<Depth>,
}

impl Measured {
    /// The kind of access that the cost model is made of: direct if that works.
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

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// It is no directory, or cannot be written.
    #[error("{0}")]
    Directory(String),
    /// The plan makes no sense.
    #[error("a file of {0} bytes is too small to measure: at least {BYTES_MIN}")]
    TooSmall(u64),
    /// There is not enough room.
    #[error(
        "{dir}: {free} bytes are free and {bytes} are needed: free some, or give a smaller --size"
    )]
    NoSpace {
        /// The directory.
        dir: String,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are needed.
        bytes: u64,
    },
    /// The device did not get far enough.
    #[error("{dir}: only {bytes} bytes could be written in time: give more --seconds")]
    TooSlow {
        /// The directory.
        dir: String,
        /// Bytes of the file by then.
        bytes: u64,
    },
    /// An access was answered with an error.
    #[error("{dir}: {what}: {error}")]
    Io {
        /// The directory.
        dir: String,
        /// What was done.
        what: &'static str,
        /// The answer.
        error: io::Error,
    },
}

/// Measures `dir`. `progress` is told how much of the work is done, from 0 to 1.
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

/// All kinds of accesses, in order of importance, each with its part of the time that is left.
fn singles(
    scratch: &mut Scratch,
    measured: &mut Measured,
    end: Instant,
    progress: &dyn Fn(Instant),
) -> Result<(), CalibrateError> {
    let mut accesses = Vec::new();
    // An access elsewhere needs an elsewhere.
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
        let mut stream = Stream::new(&access, scratch.bytes(), at as u64);
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

/// More and more accesses at a time, as long as it helps.
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
            let per_second = scratch.together(&access, depth, slice)?;
            measured.depths.push(Depth {
                direction,
                depth,
                per_second,
            });
            if per_second < best * GROWTH {
                // It does not grow any more.
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
