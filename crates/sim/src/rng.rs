//! Pseudo-random numbers from a seed (SplitMix64): the only source of chance in the simulator.

/// A generator. Same seed, same numbers, on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x5bf0_3635_d1f3_9a7d)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which must be positive.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "an empty range has no number");
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in `n` on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number of the standard normal distribution, nearly: the sum of twelve even ones.
    pub fn normal(&mut self) -> f64 {
        let even = |rng: &mut Rng| (rng.draw() >> 11) as f64 / (1u64 << 53) as f64;
        (0..12).map(|_| even(self)).sum::<f64>() - 6.0
    }

    /// A generator of its own, so that one part's draws do not shift another's.
    pub fn split(&mut self) -> Rng {
        Rng(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_range_and_repeat() {
        let mut a = Rng::new(3);
        let mut b = Rng::new(3);
        for _ in 0..1000 {
            let x = a.between(5, 9);
            assert!((5..=9).contains(&x));
            assert_eq!(x, b.between(5, 9));
        }
    }
}
