//! Corrects the cost model at run time, from the times that batches take.
//!
//! Each kind of access (read or write, random or sequential) has two factors: one for the
//! configured base, one for the configured price of a MiB. Least squares fit them to the times of
//! about the last 200 batches of the kind. Each time counts relative to the expected one, so that
//! short and long batches have the same weight. The configured model itself counts as an eighth of
//! a batch. So a factor that the batches do not determine, such as that of the price when all
//! batches have one length, stays near 1. A factor stays between 1/16 and 16.
//!
//! When several batches run at once, each gets a part of the device's time: the time since it was
//! dispatched, or since the batch before it finished, whichever is later. A batch that took more
//! than 20 times the expected time counts as 20 times, with a small weight: a device that stalled
//! once says little about the next access, and a device that became slow is slow again.

use crate::cost::{AccessCost, CostModel, NS_MAX};
use crate::options::Options;
use crate::types::{Direction, FileId, Request, Time};
use alloc::vec;
use alloc::vec::Vec;

/// Earlier batches count half after so many more.
const HALF_LIFE: f64 = 128.0;

/// The weight of the configured model, in batches.
const PRIOR: f64 = 1.0 / 8.0;

/// The bounds of a factor.
const FACTOR_MAX: f64 = 16.0;
const FACTOR_MIN: f64 = 1.0 / FACTOR_MAX;

/// A batch that took more than so many times the expected time is an outlier. Its terms are scaled
/// by `OUTLIER_BY`, so its weight is the square of that.
const OUTLIER: f64 = 20.0;
const OUTLIER_BY: f64 = 0.375;
const OUTLIER_WEIGHT: f64 = OUTLIER_BY * OUTLIER_BY;

/// The factors are fitted anew after so many batches.
const BATCHES: usize = 64;

/// The policy is not told of a change of less than one part in so many.
const CHANGE: u64 = 20;

/// For so many files the end of the last batch is remembered, which tells what is sequential.
const FILES: usize = 1 << (64 - FILES_SHIFT);
const FILES_SHIFT: u32 = 58;

/// The kind of a batch that cannot be compared with a single access.
const NOTHING: u8 = 4;

/// A batch that runs.
#[derive(Clone, Copy)]
struct Batch {
    began: Time,
    len: u64,
    /// A number of `Estimate::kinds`, or `NOTHING`.
    kind: u8,
}

const UNKNOWN: Batch = Batch {
    began: Time(0),
    len: 0,
    kind: NOTHING,
};

/// A batch that finished, and its time in the device.
#[derive(Clone, Copy)]
struct Took {
    len: u64,
    ns: u64,
    kind: u8,
}

/// The estimator. The scheduler tells it when batches begin and end.
pub(crate) struct Estimate {
    /// Whether the options ask for it, and the policy prices requests. While this is off the
    /// scheduler reports no batches.
    pub(crate) on: bool,
    configured: CostModel,
    /// The model that the policy uses now.
    effective: CostModel,
    kinds: [Kind; 4],
    /// By number of a batch.
    batches: Vec<Batch>,
    /// The batches that finished since the last review, at most `BATCHES`.
    took: Vec<Took>,
    /// By hash of the file: the file, and the end of its last batch.
    ends: Vec<(FileId, u64)>,
    last_finished: Time,
}

impl Estimate {
    /// `prices`: whether the policy uses the cost model.
    pub(crate) fn new(options: &Options, prices: bool) -> Estimate {
        Estimate {
            on: options.estimate && prices,
            configured: options.cost,
            effective: options.cost,
            kinds: kinds(&options.cost),
            batches: Vec::new(),
            took: Vec::with_capacity(BATCHES),
            ends: vec![(FileId(0), u64::MAX); FILES],
            last_finished: Time(0),
        }
    }

    /// Takes other options, or another policy. The estimate stays unless the configured cost model
    /// changes or the options turn it off.
    pub(crate) fn configure(&mut self, options: &Options, prices: bool) {
        let on = options.estimate && prices;
        if on != self.on {
            // While this is off the scheduler reports no batches.
            self.batches.clear();
            self.ends.fill((FileId(0), u64::MAX));
        }
        self.on = on;
        if !options.estimate || options.cost != self.configured {
            self.took.clear();
            (self.configured, self.effective) = (options.cost, options.cost);
            self.kinds = kinds(&options.cost);
        }
    }

    /// The model that the policy uses now.
    #[inline]
    pub(crate) fn effective(&self) -> &CostModel {
        &self.effective
    }

    /// Takes note that a batch was dispatched: `requests`, at least one, of one file and direction.
    #[inline]
    pub(crate) fn dispatched(&mut self, batch: u32, now: Time, requests: &[Request]) {
        let begins = self.begins(now, requests);
        match self.batches.get_mut(batch as usize) {
            Some(place) => *place = begins,
            None => {
                self.batches.resize(batch as usize, UNKNOWN);
                self.batches.push(begins);
            }
        }
    }

    /// Takes note that a batch finished. Returns the new model when one is due and differs enough.
    #[inline]
    pub(crate) fn finished(&mut self, batch: u32, now: Time) -> Option<&CostModel> {
        let &Batch { began, len, kind } = self.batches.get(batch as usize)?;
        let ns = now.since(began.max(self.last_finished));
        self.last_finished = self.last_finished.max(now);
        // With a host's clock that stands still there is nothing to learn.
        if now <= began || kind == NOTHING {
            return None;
        }
        self.took.push(Took { len, ns, kind });
        if self.took.len() < BATCHES {
            return None;
        }
        self.review()
    }

    fn begins(&mut self, now: Time, requests: &[Request]) -> Batch {
        let first = &requests[0];
        // The upper bits of a product mix well enough: a clash only forgets an end.
        let place = (first.file.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> FILES_SHIFT) as usize;
        let mut end = first.offset;
        for request in requests {
            // An operation on a whole file, or a batch with gaps, is not a single access.
            if !request.mergeable || request.offset != end {
                return Batch {
                    began: now,
                    ..UNKNOWN
                };
            }
            end = request.end();
        }
        let goes_on = self.ends[place] == (first.file, first.offset);
        self.ends[place] = (first.file, end);
        Batch {
            began: now,
            len: end - first.offset,
            kind: number(first.direction, goes_on) as u8,
        }
    }

    #[cold]
    fn review(&mut self) -> Option<&CostModel> {
        for &Took { len, ns, kind } in &self.took {
            self.kinds[usize::from(kind)].took(len, ns);
        }
        self.took.clear();
        let mut model = self.configured;
        let mut differs = false;
        for (direction, sequential) in KINDS {
            let kind = &mut self.kinds[number(direction, sequential)];
            kind.fit();
            kind.age();
            let new = kind.cost();
            let old = self.effective.access(direction, sequential);
            differs |= far(old.base_ns, new.base_ns) || far(old.ns_per_mib, new.ns_per_mib);
            *model.access_mut(direction, sequential) = new;
        }
        if !differs {
            return None;
        }
        self.effective = model;
        Some(&self.effective)
    }
}

const KINDS: [(Direction, bool); 4] = [
    (Direction::Read, false),
    (Direction::Read, true),
    (Direction::Write, false),
    (Direction::Write, true),
];

fn number(direction: Direction, sequential: bool) -> usize {
    2 * usize::from(direction == Direction::Write) + usize::from(sequential)
}

fn kinds(model: &CostModel) -> [Kind; 4] {
    KINDS.map(|(direction, sequential)| Kind::new(model.access(direction, sequential)))
}

fn far(old: u64, new: u64) -> bool {
    old.abs_diff(new).saturating_mul(CHANGE) > old
}

/// One kind of access. For each batch `f` is the base's part of the configured cost, `g` the rest
/// of it, and `z` the time that it took, as a multiple of the same cost. The fields are sums of
/// products of them.
struct Kind {
    base_ns: f64,
    ns_per_byte: f64,
    ff: f64,
    fg: f64,
    gg: f64,
    fz: f64,
    gz: f64,
    /// The weight of the batches since the last `age`.
    count: f64,
    /// The factors.
    base_by: f64,
    price_by: f64,
}

impl Kind {
    fn new(cost: AccessCost) -> Kind {
        Kind {
            base_ns: cost.base_ns as f64,
            ns_per_byte: cost.ns_per_mib as f64 / (1 << 20) as f64,
            ff: 0.0,
            fg: 0.0,
            gg: 0.0,
            fz: 0.0,
            gz: 0.0,
            count: 0.0,
            base_by: 1.0,
            price_by: 1.0,
        }
    }

    #[inline]
    fn took(&mut self, len: u64, ns: u64) {
        let price_ns = float(len) * self.ns_per_byte;
        let scale = 1.0 / (self.base_ns + price_ns).max(1.0);
        let (f, g, z) = (self.base_ns * scale, price_ns * scale, float(ns) * scale);
        let most = OUTLIER * (self.base_by * f + self.price_by * g);
        let (f, g, z, weight) = match z > most {
            // Weights are those of squares.
            true => (
                f * OUTLIER_BY,
                g * OUTLIER_BY,
                most * OUTLIER_BY,
                OUTLIER_WEIGHT,
            ),
            false => (f, g, z, 1.0),
        };
        self.count += weight;
        self.ff += f * f;
        self.fg += f * g;
        self.gg += g * g;
        self.fz += f * z;
        self.gz += g * z;
    }

    /// Reduces the weight of all earlier batches by the number that came since the last call.
    fn age(&mut self) {
        let keep = HALF_LIFE / (HALF_LIFE + self.count);
        self.count = 0.0;
        let sums = [
            &mut self.ff,
            &mut self.fg,
            &mut self.gg,
            &mut self.fz,
            &mut self.gz,
        ];
        for sum in sums {
            *sum *= keep;
        }
    }

    /// The factors x and y for which a x^2 + 2 b x y + c y^2 - 2 d x - 2 e y is least.
    fn fit(&mut self) {
        let (a, b, c) = (self.ff + PRIOR, self.fg, self.gg + PRIOR);
        let (d, e) = (self.fz + PRIOR, self.gz + PRIOR);
        // Positive, since ff gg >= fg^2.
        let determinant = a * c - b * b;
        let x = (d * c - e * b) / determinant;
        let y = (a * e - b * d) / determinant;
        if allowed(x) == x && allowed(y) == y {
            (self.base_by, self.price_by) = (x, y);
            return;
        }
        // The least value within the bounds lies where one of the two factors is at its bound.
        let x_at_bound = (allowed(x), allowed((e - b * allowed(x)) / c));
        let y_at_bound = (allowed((d - b * allowed(y)) / a), allowed(y));
        let error = |(x, y): (f64, f64)| {
            a * x * x + 2.0 * b * x * y + c * y * y - 2.0 * d * x - 2.0 * e * y
        };
        (self.base_by, self.price_by) = match error(x_at_bound) <= error(y_at_bound) {
            true => x_at_bound,
            false => y_at_bound,
        };
    }

    fn cost(&self) -> AccessCost {
        let whole = |ns: f64| ((ns + 0.5) as u64).min(NS_MAX);
        AccessCost {
            base_ns: whole(self.base_ns * self.base_by),
            ns_per_mib: whole(self.ns_per_byte * (1 << 20) as f64 * self.price_by),
        }
    }
}

/// A number of nanoseconds or bytes; signed ones are cheaper to convert.
#[inline]
fn float(number: u64) -> f64 {
    number.min(i64::MAX as u64) as i64 as f64
}

fn allowed(factor: f64) -> f64 {
    factor.clamp(FACTOR_MIN, FACTOR_MAX)
}

#[cfg(test)]
mod tests;
