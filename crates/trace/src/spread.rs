//! A histogram: count, sum, maximum and percentiles of values, from buckets of 1.6 % width. Its
//! memory does not grow with the number of values.

/// Buckets for each power of two: the upper bound of one is at most 1/64 above its values.
const PER_POWER: u64 = 64;
const BITS: u32 = PER_POWER.trailing_zeros();

/// See the file's first line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    count: u64,
    sum: u128,
    max: u64,
    buckets: Vec<u64>,
}

impl Spread {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
        let bucket = bucket(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest, 0 if there are none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Their mean, rounded down; 0 if there are none.
    pub fn mean(&self) -> u64 {
        (self.sum / u128::from(self.count.max(1))) as u64
    }

    /// A percentile of the values, at most 1.6 % too large; 0 if there are none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank.max(1) {
                return largest(bucket).min(self.max);
            }
        }
        0
    }
}

/// Values below twice PER_POWER have a bucket each; above, each power of two has PER_POWER.
fn bucket(value: u64) -> usize {
    let power = value.max(1).ilog2().saturating_sub(BITS);
    (u64::from(power) * PER_POWER + (value >> power)) as usize
}

/// The largest value of a bucket.
fn largest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let power = (bucket / PER_POWER).saturating_sub(1);
    let mantissa = bucket - power * PER_POWER;
    (((u128::from(mantissa) + 1) << power) - 1).min(u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values_and_is_narrow() {
        let mut value = 1u64;
        let mut last = 0;
        while value < u64::MAX / 2 {
            for near in [value - 1, value, value + 1, value + value / 3] {
                let upper = largest(bucket(near));
                assert!(upper >= near && upper - near <= near / 64, "{near} {upper}");
            }
            assert!(bucket(value) >= last);
            last = bucket(value);
            value += value / 5 + 1;
        }
        assert_eq!(largest(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn percentiles_of_small_numbers_are_exact() {
        let mut spread = Spread::default();
        assert_eq!(
            (spread.percentile(50), spread.mean(), spread.max()),
            (0, 0, 0)
        );
        (1..=100).rev().for_each(|value| spread.add(value));
        assert_eq!((spread.percentile(50), spread.percentile(95)), (50, 95));
        assert_eq!((spread.percentile(99), spread.percentile(100)), (99, 100));
        assert_eq!(
            (spread.mean(), spread.max(), spread.count()),
            (50, 100, 100)
        );
        let mut same = Spread::default();
        (0..10).for_each(|_| same.add(1_000_003));
        assert_eq!(
            (same.percentile(1), same.percentile(99)),
            (1_000_003, 1_000_003)
        );
    }
}
