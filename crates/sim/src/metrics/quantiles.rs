//! Quantiles of many times in bounded memory: exact while there are few, then from a histogram
//! whose buckets are at most 1/128 of their value wide.
//!
//! The crate hdrhistogram (7.6) has the same buckets with two digits, but finds ranks in floats,
//! where the rank of a quantile can be off by one, and keeps no exact values. It would spare two
//! short functions, `bucket` and `middle`, and leave the rest.

/// Number of values that are kept as they are; quantiles of more are estimates.
pub const EXACT_MAX: usize = 16_384;

/// Each power of two is divided into this many buckets of equal width.
const BUCKETS_PER_OCTAVE: u64 = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 7;
/// One bucket for each value below `BUCKETS_PER_OCTAVE`, then the buckets of every octave.
const BUCKETS: usize = ((64 - OCTAVE_BITS as usize) + 1) << OCTAVE_BITS;

/// Counts values and answers which of them lies at a given rank.
///
/// Up to [`EXACT_MAX`] values the answers are exact. Beyond, a value of 128 or more is known to
/// its bucket only, and the middle of the bucket is at most 1/256 (0.4 %) away from it. Count, sum,
/// minimum and maximum are always exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantiles {
    values: Values,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    Kept(Vec<u64>),
    Counted(Vec<u64>),
}

impl Default for Quantiles {
    fn default() -> Quantiles {
        Quantiles::new()
    }
}

impl Quantiles {
    /// No values yet.
    pub fn new() -> Quantiles {
        Quantiles {
            values: Values::Kept(Vec::new()),
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        if let Values::Kept(kept) = &mut self.values {
            if kept.len() < EXACT_MAX {
                kept.push(value);
                return;
            }
            self.values = Values::Counted(counted(kept));
        }
        if let Values::Counted(buckets) = &mut self.values {
            buckets[bucket(value)] += 1;
        }
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum as f64 / self.count as f64
    }

    /// The largest value; 0 without values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The quantile of `per_mille` thousandths by nearest rank: the smallest value such that at
    /// least `per_mille / 1000` of all values are not larger. 500 is the median, 950 is p95. 0 asks
    /// for the minimum, 1000 and more for the maximum. Returns 0 if there are no values.
    pub fn quantile(&self, per_mille: u32) -> u64 {
        self.quantiles([per_mille])[0]
    }

    /// Several quantiles at once, which sorts the values only once.
    pub fn quantiles<const N: usize>(&self, per_mille: [u32; N]) -> [u64; N] {
        if self.count == 0 {
            return [0; N];
        }
        match &self.values {
            Values::Kept(kept) => {
                let mut sorted = kept.clone();
                sorted.sort_unstable();
                per_mille.map(|share| sorted[(self.rank(share) - 1) as usize])
            }
            Values::Counted(buckets) => per_mille.map(|share| self.estimate(buckets, share)),
        }
    }

    /// The rank, from 1, of the value that is asked for.
    fn rank(&self, per_mille: u32) -> u64 {
        let share = u128::from(per_mille.min(1000));
        let rank = (u128::from(self.count) * share).div_ceil(1000);
        (rank as u64).max(1)
    }

    fn estimate(&self, buckets: &[u64], per_mille: u32) -> u64 {
        let rank = self.rank(per_mille);
        if rank == 1 {
            return self.min;
        }
        if rank == self.count {
            return self.max;
        }
        let mut below = 0;
        for (index, count) in buckets.iter().enumerate() {
            below += count;
            if below >= rank {
                return middle(index).clamp(self.min, self.max);
            }
        }
        self.max
    }
}

fn counted(values: &[u64]) -> Vec<u64> {
    let mut buckets = vec![0; BUCKETS];
    for value in values {
        buckets[bucket(*value)] += 1;
    }
    buckets
}

/// The bucket of a value: its octave from the place of its highest bit, then the next seven bits.
fn bucket(value: u64) -> usize {
    if value < BUCKETS_PER_OCTAVE {
        return value as usize;
    }
    let octave = u64::BITS - 1 - value.leading_zeros() - OCTAVE_BITS;
    let within = (value >> octave) - BUCKETS_PER_OCTAVE;
    (u64::from(octave + 1) * BUCKETS_PER_OCTAVE + within) as usize
}

/// The middle of a bucket's values.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < BUCKETS_PER_OCTAVE {
        return bucket;
    }
    let octave = bucket / BUCKETS_PER_OCTAVE - 1;
    let lowest = (BUCKETS_PER_OCTAVE + bucket % BUCKETS_PER_OCTAVE) << octave;
    lowest + ((1 << octave) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn ranks_by_hand() {
        let mut all = Quantiles::new();
        assert_eq!(all.quantile(500), 0);
        assert_eq!((all.max(), all.mean()), (0, 0.0));
        [50, 10, 40, 20, 30]
            .into_iter()
            .for_each(|value| all.add(value));
        assert_eq!(
            all.quantiles([0, 200, 201, 500, 950, 1000]),
            [10, 10, 20, 30, 50, 50]
        );
        assert_eq!((all.max(), all.mean()), (50, 30.0));
    }

    #[test]
    fn buckets_cover_all_values_in_order() {
        let mut last = 0;
        for shift in 0..64 {
            for offset in [-1i64, 0, 1] {
                let value = (1u64 << shift).wrapping_add_signed(offset);
                if value < last {
                    continue;
                }
                assert!(bucket(last) <= bucket(value));
                last = value;
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for index in 0..BUCKETS {
            assert_eq!(bucket(middle(index)), index);
        }
    }

    /// Values that span many powers of two, most of them small.
    fn value(rng: &mut Rng) -> u64 {
        let bits = rng.below(40);
        rng.below(1 << (bits + 1))
    }

    #[test]
    fn estimates_keep_within_the_stated_error() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let mut all = Quantiles::new();
            let mut sorted = Vec::new();
            for _ in 0..EXACT_MAX as u64 * 2 + rng.below(5000) {
                let value = value(&mut rng);
                all.add(value);
                sorted.push(value);
            }
            sorted.sort_unstable();
            for share in [0, 1, 10, 250, 500, 900, 950, 990, 999, 1000] {
                let rank = (sorted.len() * share as usize).div_ceil(1000).max(1);
                let (truth, found) = (sorted[rank - 1] as f64, all.quantile(share) as f64);
                assert!(
                    (found - truth).abs() <= truth / 256.0,
                    "seed {seed}, {share} of 1000: {found} instead of {truth}"
                );
            }
        }
    }
}
