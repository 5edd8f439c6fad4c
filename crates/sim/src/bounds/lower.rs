//! Lower bounds: no schedule of an instance completes earlier, whatever order its servers follow
//! and even if they could interrupt their work.

use super::Instance;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

impl Instance {
    /// No schedule has a smaller sum of completion times. The best of three bounds:
    ///
    /// 1. by rank: on each server the k-th part cannot be done before the k-th completion under
    ///    shortest remaining time first, nor the k-th operation before the k-th smallest of the
    ///    times that operations take alone; the larger of all these, summed over k;
    /// 2. by server: the sum of completions on it under shortest remaining time first, and all
    ///    shuffles there;
    /// 3. the dual solution that the primal-dual order leaves behind; it looks at work only.
    pub fn sum_bound_ns(&self) -> u128 {
        let completions: Vec<Vec<u64>> = (0..self.servers)
            .map(|server| self.shortest_remaining_first(server))
            .collect();
        let mut alone: Vec<u64> = self.operations.iter().map(|op| op.alone_ns()).collect();
        alone.sort_unstable();
        let by_rank = alone.iter().enumerate().map(|(rank, alone)| {
            let servers = completions.iter().map(|times| times[rank]);
            u128::from(servers.chain([*alone]).max().unwrap_or(0))
        });
        let by_server = completions.iter().enumerate().map(|(server, times)| {
            let shuffles = self.operations.iter().map(|op| op.shuffle_ns(server));
            let both = times.iter().copied().chain(shuffles);
            both.map(u128::from).sum::<u128>()
        });
        by_server
            .chain([by_rank.sum(), self.primal_dual().bound_ns])
            .max()
            .unwrap_or(0)
    }

    /// No schedule has a smaller mean completion time, in nanoseconds.
    pub fn mean_bound_ns(&self) -> f64 {
        if self.operations.is_empty() {
            return 0.0;
        }
        self.sum_bound_ns() as f64 / self.operations.len() as f64
    }

    /// The completion times on one server under shortest remaining time first, ascending. No
    /// schedule has completed more parts at any time. An operation without a part counts as
    /// complete at its release.
    fn shortest_remaining_first(&self, server: usize) -> Vec<u64> {
        let mut times = Vec::with_capacity(self.operations.len());
        let mut coming: Vec<usize> = (0..self.operations.len()).collect();
        coming.sort_by_key(|index| self.operations[*index].released_ns);
        let mut coming = coming.into_iter().peekable();
        let mut waiting: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut now_ns = 0;
        loop {
            let released_ns = |index: &usize| self.operations[*index].released_ns;
            if waiting.is_empty() {
                let Some(next) = coming.peek() else {
                    break;
                };
                now_ns = released_ns(next).max(now_ns);
            }
            while let Some(index) = coming.next_if(|next| released_ns(next) <= now_ns) {
                waiting.push(Reverse((self.operations[index].work_ns[server], index)));
            }
            let Some(Reverse((left_ns, index))) = waiting.pop() else {
                continue;
            };
            let next_ns = coming.peek().map_or(u64::MAX, released_ns);
            let run_ns = left_ns.min(next_ns - now_ns);
            now_ns += run_ns;
            if run_ns == left_ns {
                times.push(now_ns);
            } else {
                waiting.push(Reverse((left_ns - run_ns, index)));
            }
        }
        times.sort_unstable();
        times
    }
}
