//! How many accesses end in a second, at each depth: what a model of the device is fitted to and
//! compared with.
//!
//! Rounds go through all cells in turns, each for a short time, so that other load on the device
//! meets all of them alike. A model is fitted to every second round and compared with the others.

use super::at_once::{Limits, Slice};
use super::scratch::Scratch;
use super::{Access, CalibrateError, DEPTHS, FILL_PART, Plan, Route, fit};
use std::path::Path;
use std::time::Instant;
use tidegate_sched::Direction;

/// The lengths of accesses, in bytes.
const LENGTHS: [u64; 2] = [4 << 10, 64 << 10];

/// Rounds, half of them to fit and half of them to compare.
const ROUNDS: u32 = 10;

/// Accesses of a cell in a round, however long they take.
const ROUND_ACCESSES: u32 = 2 * ACCESSES_MIN / ROUNDS;

/// Each half has so many of each cell.
const ACCESSES_MIN: u32 = 20;

/// A rate with a round that is farther off the median, in percent of it, is not known well.
pub const SPREAD_PERCENT: f64 = 20.0;

/// One kind of access at one depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Whether it reads or writes.
    pub direction: Direction,
    /// Whether an access begins where the one before began to end: all that run at a time are one
    /// stream.
    pub sequential: bool,
    /// The length in bytes.
    pub len: u64,
    /// How many run at a time.
    pub depth: u32,
}

impl Cell {
    /// All cells, in the order of tables.
    pub fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for len in LENGTHS {
            for (direction, sequential) in fit::KINDS {
                cells.extend(DEPTHS.map(|depth| Cell {
                    direction,
                    sequential,
                    len,
                    depth,
                }));
            }
        }
        cells
    }

    pub(super) fn access(&self, by: Route) -> Access {
        let Cell {
            direction,
            sequential,
            len,
            ..
        } = *self;
        Access {
            direction,
            sequential,
            len,
            by,
        }
    }
}

/// How fast accesses of a cell end.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Of which accesses.
    pub cell: Cell,
    /// How many end in a second: the median of rounds.
    pub per_second: f64,
    /// The least and the most of a round.
    pub spread: (f64, f64),
    /// How many there were.
    pub accesses: usize,
}

impl Sample {
    /// Whether all rounds are near the median.
    pub fn is_steady(&self) -> bool {
        let (least, most) = self.spread;
        let off = f64::max(self.per_second - least, most - self.per_second);
        100.0 * off <= SPREAD_PERCENT * self.per_second
    }
}

/// The rounds of a measurement.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Why direct I/O does not work, if it does not.
    pub no_direct: Option<String>,
    /// By cell, by round.
    pub(super) slices: Vec<(Cell, Vec<Slice>)>,
}

impl Rounds {
    /// The samples for a model to be fitted to.
    pub fn to_fit(&self) -> Vec<Sample> {
        self.samples(0)
    }

    /// The samples for a model to be compared with: others.
    pub fn to_compare(&self) -> Vec<Sample> {
        self.samples(1)
    }

    fn samples(&self, first: usize) -> Vec<Sample> {
        let sample = |(cell, slices): &(Cell, Vec<Slice>)| {
            let slices = slices.iter().skip(first).step_by(2);
            let accesses = slices.clone().map(|slice| slice.accesses).sum();
            let mut rates: Vec<f64> = slices.map(|slice| slice.per_second).collect();
            rates.sort_by(f64::total_cmp);
            Some(Sample {
                cell: *cell,
                per_second: *rates.get(rates.len() / 2)?,
                spread: (*rates.first()?, *rates.last()?),
                accesses,
            })
        };
        self.slices.iter().filter_map(sample).collect()
    }
}

/// Measures `dir` at all depths. Passes to `progress` which part of the work is done, from 0 to 1.
/// A slow device takes longer than the plan says, by as much as a few accesses of each cell need.
pub fn measure_depths(
    dir: &Path,
    plan: &Plan,
    progress: &dyn Fn(f64),
) -> Result<Rounds, CalibrateError> {
    let start = Instant::now();
    let end = start + plan.time;
    let mut scratch = Scratch::new(dir, plan.bytes)?;
    progress(0.0);
    let filled = start + plan.time.mul_f64(FILL_PART);
    scratch.fill(filled, &|done| progress(done * FILL_PART))?;
    let mut rounds = Rounds {
        bytes: scratch.bytes(),
        no_direct: scratch.probe_direct()?,
        slices: Cell::all()
            .into_iter()
            .map(|cell| (cell, Vec::new()))
            .collect(),
    };
    let by = match rounds.no_direct {
        None => Route::Direct,
        Some(_) => Route::Buffered,
    };
    let mut left = ROUNDS * rounds.slices.len() as u32;
    for round in 0..ROUNDS {
        for (index, (cell, slices)) in rounds.slices.iter_mut().enumerate() {
            let now = Instant::now();
            let passed = now.duration_since(start).as_secs_f64();
            progress((passed / plan.time.as_secs_f64()).min(1.0));
            let limits = Limits {
                depth: cell.depth,
                least: ROUND_ACCESSES,
                time: end.saturating_duration_since(now) / left,
            };
            left -= 1;
            let access = cell.access(by);
            scratch.begin(&access)?;
            slices.push(scratch.together(&access, seed(round, index), limits)?);
        }
    }
    progress(1.0);
    Ok(rounds)
}

/// Determines the places of a cell in a round. No two have the same, so none finds in a cache what
/// another has read.
fn seed(round: u32, index: usize) -> u64 {
    u64::from(round) << 32 | index as u64
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Stream;
    use super::*;
    use std::collections::HashSet;

    /// Where the first accesses of each worker of a cell are.
    fn places(round: u32, index: usize, cell: &Cell) -> HashSet<u64> {
        let access = cell.access(Route::Direct);
        let workers = if cell.sequential { 1 } else { cell.depth };
        let stream = |worker| {
            let mut stream = Stream::new(&access, 1 << 40, seed(round, index), worker);
            (0..100).map(move |_| stream.next().0)
        };
        (0..workers).flat_map(stream).collect()
    }

    #[test]
    fn no_two_cells_of_a_round_and_no_two_rounds_have_the_same_places() {
        let mut seen: HashSet<u64> = HashSet::new();
        let (mut all, cells) = (0, Cell::all());
        for round in 0..2 {
            for (index, cell) in cells.iter().enumerate() {
                let places = places(round, index, cell);
                all += places.len();
                seen.extend(places);
            }
        }
        // A few of so many are the same by chance.
        assert!(seen.len() * 100 > all * 99, "{} of {all}", seen.len());
    }
}
