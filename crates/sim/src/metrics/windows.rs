//! The share of time windows in which a latency bound was kept, counted while a run goes on.

/// Counts windows in which a quantile of the latencies kept a bound. Memory does not grow.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    window_ns: u64,
    bound_ns: u64,
    per_mille: u32,
    /// The number of the present window; `None` before the first completion.
    number: Option<u64>,
    completed: u64,
    late: u64,
    counted: u64,
    kept: u64,
}

impl Windows {
    /// Windows of `window_ns` (at least 1 ns) in which the quantile of `per_mille` thousandths,
    /// by nearest rank, shall be at most `bound_ns`: 950 for p95.
    pub fn new(window_ns: u64, bound_ns: u64, per_mille: u32) -> Windows {
        Windows {
            window_ns: window_ns.max(1),
            bound_ns,
            per_mille: per_mille.min(1000),
            number: None,
            completed: 0,
            late: 0,
            counted: 0,
            kept: 0,
        }
    }

    /// Counts a request that completed at `at_ns` after `latency_ns`. Times must not go back; one
    /// that does counts in the present window.
    pub fn completed(&mut self, at_ns: u64, latency_ns: u64) {
        let number = at_ns / self.window_ns;
        if self.number.is_none_or(|present| number > present) {
            self.close();
            self.number = Some(number);
        }
        self.completed += 1;
        self.late += u64::from(latency_ns > self.bound_ns);
    }

    /// Says that requests waited from one time to another and none completed. Whole windows between
    /// at whose end they had waited for longer than the bound did not keep it.
    pub fn waited(&mut self, from_ns: u64, to_ns: u64) {
        let first = from_ns.div_ceil(self.window_ns);
        // The first window of which the end is too late, and the one in which `to_ns` lies.
        let late = (from_ns.saturating_add(self.bound_ns) / self.window_ns).max(first);
        let beyond = to_ns / self.window_ns;
        if late < beyond {
            self.close();
            self.counted += beyond - late;
        }
    }

    /// How many windows had a completion, or requests that waited for too long, the present one
    /// included.
    pub fn counted(&self) -> u64 {
        self.counted + u64::from(self.completed > 0)
    }

    /// How many of them kept the bound.
    pub fn kept(&self) -> u64 {
        self.kept + u64::from(self.completed > 0 && self.keeps())
    }

    /// The share of windows that kept the bound; 1 when nothing completed.
    pub fn kept_share(&self) -> f64 {
        if self.counted() == 0 {
            return 1.0;
        }
        self.kept() as f64 / self.counted() as f64
    }

    fn close(&mut self) {
        self.counted = self.counted();
        self.kept = self.kept();
        (self.completed, self.late) = (0, 0);
    }

    /// The quantile is within the bound just when its rank is among those that are not late.
    fn keeps(&self) -> bool {
        let rank = u128::from(self.completed) * u128::from(self.per_mille);
        u128::from(self.completed - self.late) >= rank.div_ceil(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Quantiles;
    use crate::rng::Rng;

    #[test]
    fn windows_by_hand() {
        let mut windows = Windows::new(100, 10, 500);
        assert_eq!(windows.kept_share(), 1.0);
        windows.completed(5, 10);
        windows.completed(50, 11);
        assert_eq!((windows.kept(), windows.counted()), (1, 1));
        // The window from 100 to 199 has no completion and does not count.
        windows.completed(200, 11);
        windows.completed(299, 11);
        windows.completed(299, 1);
        assert_eq!((windows.kept(), windows.counted()), (1, 2));
        assert_eq!(windows.kept_share(), 0.5);
    }

    #[test]
    fn agrees_with_the_quantile_of_each_window() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (bound, per_mille) = (rng.between(1, 100), rng.between(1, 1000) as u32);
            let mut windows = Windows::new(10, bound, per_mille);
            let (mut kept, mut counted) = (0, 0);
            for window in 0..20 {
                let mut latencies = Quantiles::new();
                for _ in 0..rng.below(30) {
                    let latency = rng.below(120);
                    latencies.add(latency);
                    windows.completed(window * 10 + 3, latency);
                }
                if latencies.count() > 0 {
                    counted += 1;
                    kept += u64::from(latencies.quantile(per_mille) <= bound);
                }
            }
            assert_eq!(
                (windows.kept(), windows.counted()),
                (kept, counted),
                "seed {seed}"
            );
        }
    }
}
