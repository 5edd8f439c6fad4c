//! How evenly applications are served: Jain's index over shares, and lag while requests wait.

use std::collections::BTreeMap;
use tidegate_sched::AppId;

/// Jain's index of some shares: 1 when all are equal, `1/n` when one has everything. A share is the
/// service an application got over its weight. 1 when there is no share or all are 0.
pub fn jain(shares: impl IntoIterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0u64, 0.0, 0.0);
    for share in shares {
        count += 1;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (count as f64 * squares)
}

/// Number of applications whose lag is followed, the first ones; there is one entry for each pair.
pub const APPLICATIONS_MAX: usize = 256;

/// The lag between applications: the maximum, over pairs `f`, `g` and over intervals in which both
/// have requests waiting, of `|W_f/phi_f - W_g/phi_g|`, where `W` is the service in the interval
/// and `phi` the weight. Start-time fair queueing bounds it; an order without shares does not.
///
/// Within such an interval the difference is that of a running total at its two ends, so the
/// maximum is the highest less the lowest total: no history is kept. Totals are integers, scaled by
/// both weights.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    weights: BTreeMap<AppId, u32>,
    places: BTreeMap<AppId, usize>,
    flows: Vec<Flow>,
    /// The pair `(f, g)` with `g < f` lies at `f (f - 1) / 2 + g`.
    pairs: Vec<Pair>,
}

#[derive(Clone, Debug)]
struct Flow {
    weight: u32,
    served: u64,
    waiting: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    lowest: i128,
    highest: i128,
    /// The maximum over the intervals so far, times both weights.
    lag: i128,
}

impl Lag {
    /// A lag of 0. An application that is not named has weight 1, and so has one of weight 0.
    pub fn new(weights: impl IntoIterator<Item = (AppId, u32)>) -> Lag {
        Lag {
            weights: weights.into_iter().collect(),
            ..Lag::default()
        }
    }

    /// A request of the application waits from now on.
    pub fn arrived(&mut self, app: AppId) {
        let Some(place) = self.place(app) else {
            return;
        };
        self.flows[place].waiting += 1;
        if self.flows[place].waiting == 1 {
            // Intervals of this application with every other one that waits begin here.
            self.with_waiting(place, |pair, total| {
                (pair.lowest, pair.highest) = (total, total);
            });
        }
    }

    /// One of the application's waiting requests was served, at this cost: bytes, or nanoseconds
    /// of device time, as long as it is always the same. Without an arrival before, it is ignored.
    pub fn served(&mut self, app: AppId, cost: u64) {
        let Some(place) = self.place(app) else {
            return;
        };
        if self.flows[place].waiting == 0 {
            return;
        }
        let flow = &mut self.flows[place];
        flow.served = flow.served.saturating_add(cost);
        self.with_waiting(place, |pair, total| {
            pair.lowest = pair.lowest.min(total);
            pair.highest = pair.highest.max(total);
            pair.lag = pair.lag.max(pair.highest - pair.lowest);
        });
        self.flows[place].waiting -= 1;
    }

    /// The largest lag so far, in units of cost for weight 1.
    pub fn max(&self) -> f64 {
        let mut largest = 0.0;
        for (f, flow) in self.flows.iter().enumerate() {
            for (g, other) in self.flows[..f].iter().enumerate() {
                let scale = f64::from(flow.weight) * f64::from(other.weight);
                let lag = self.pairs[at(f, g)].lag as f64 / scale;
                if lag > largest {
                    largest = lag;
                }
            }
        }
        largest
    }

    /// The lag of one pair; 0 for applications that never waited at the same time.
    pub fn between(&self, app: AppId, other: AppId) -> f64 {
        let (Some(&f), Some(&g)) = (self.places.get(&app), self.places.get(&other)) else {
            return 0.0;
        };
        if f == g {
            return 0.0;
        }
        let scale = f64::from(self.flows[f].weight) * f64::from(self.flows[g].weight);
        self.pairs[at(f.max(g), f.min(g))].lag as f64 / scale
    }

    fn place(&mut self, app: AppId) -> Option<usize> {
        if let Some(place) = self.places.get(&app) {
            return Some(*place);
        }
        let place = self.flows.len();
        if place == APPLICATIONS_MAX {
            return None;
        }
        self.places.insert(app, place);
        self.flows.push(Flow {
            weight: self.weights.get(&app).copied().unwrap_or(1).max(1),
            served: 0,
            waiting: 0,
        });
        self.pairs.resize(at(place + 1, 0), Pair::default());
        Some(place)
    }

    /// Shows each pair of this application and another that waits, with the pair's total: service
    /// of the later-seen one less that of the earlier, times both weights.
    fn with_waiting(&mut self, place: usize, mut see: impl FnMut(&mut Pair, i128)) {
        for other in 0..self.flows.len() {
            if other == place || self.flows[other].waiting == 0 {
                continue;
            }
            let (f, g) = (place.max(other), place.min(other));
            let (later, earlier) = (&self.flows[f], &self.flows[g]);
            let total = i128::from(later.served) * i128::from(earlier.weight)
                - i128::from(earlier.served) * i128::from(later.weight);
            see(&mut self.pairs[at(f, g)], total);
        }
    }
}

/// Where the pair `(f, g)` lies, for `g < f`.
fn at(f: usize, g: usize) -> usize {
    f * (f.max(1) - 1) / 2 + g
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::VecDeque;

    #[test]
    fn jain_by_hand() {
        assert_eq!(jain([]), 1.0);
        assert_eq!(jain([0.0, 0.0]), 1.0);
        assert_eq!(jain([3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain([5.0, 0.0, 0.0, 0.0]), 0.25);
        // (1 + 3)^2 / (2 (1 + 9))
        assert_eq!(jain([1.0, 3.0]), 0.8);
    }

    #[test]
    fn lag_by_hand() {
        let (f, g) = (AppId(1), AppId(2));
        let mut lag = Lag::new([(f, 2)]);
        for _ in 0..3 {
            lag.arrived(f);
        }
        // Alone: no lag, whatever is served.
        lag.served(f, 1000);
        lag.arrived(g);
        lag.served(f, 10);
        assert_eq!(lag.max(), 5.0);
        lag.served(g, 30);
        // From before the service of g to after: |0/2 - 30/1|; from the start: |10/2 - 30|.
        assert_eq!(lag.max(), 30.0);
        assert_eq!(lag.between(f, g), 30.0);
        assert_eq!(lag.between(g, AppId(9)), 0.0);
        // g does not wait any more, so that what f gets now is not taken from g.
        lag.served(f, 100);
        assert_eq!(lag.max(), 30.0);
        lag.served(f, 100);
        lag.served(AppId(7), 100);
        assert_eq!(lag.max(), 30.0);
    }

    #[test]
    fn too_many_applications_do_not_count() {
        let mut lag = Lag::new([]);
        for app in 0..=APPLICATIONS_MAX as u64 {
            lag.arrived(AppId(app));
        }
        assert_eq!(
            lag.pairs.len(),
            APPLICATIONS_MAX * (APPLICATIONS_MAX - 1) / 2
        );
    }

    /// What happened to whom: an arrival, or service at a cost.
    type Event = (usize, Option<u64>);

    /// The definition, tried on every interval.
    fn by_definition(events: &[Event], weights: &[u32]) -> f64 {
        let apps = weights.len();
        let mut largest = 0.0f64;
        for first in 0..events.len() {
            let mut waiting = vec![0; apps];
            for (app, cost) in &events[..first] {
                waiting[*app] += if cost.is_some() { -1 } else { 1 };
            }
            let mut served = vec![0u64; apps];
            let mut backlogged: Vec<bool> = waiting.iter().map(|count| *count > 0).collect();
            for (app, cost) in &events[first..] {
                if let Some(cost) = cost {
                    served[*app] += cost;
                    let share = |app: usize| served[app] as f64 / f64::from(weights[app]);
                    for f in 0..apps {
                        for g in (0..f).filter(|g| backlogged[f] && backlogged[*g]) {
                            largest = largest.max((share(f) - share(g)).abs());
                        }
                    }
                    waiting[*app] -= 1;
                    backlogged[*app] &= waiting[*app] > 0;
                } else {
                    waiting[*app] += 1;
                }
            }
        }
        largest
    }

    #[test]
    fn agrees_with_the_definition() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let weights: Vec<u32> = (0..4).map(|_| rng.between(1, 5) as u32).collect();
            let named = weights.iter().enumerate();
            let mut lag = Lag::new(named.map(|(app, weight)| (AppId(app as u64), *weight)));
            let mut waiting = [0u32; 4];
            let mut events = Vec::new();
            for _ in 0..60 {
                let app = rng.below(4) as usize;
                if waiting[app] > 0 && rng.one_in(2) {
                    let cost = rng.between(1, 50);
                    waiting[app] -= 1;
                    lag.served(AppId(app as u64), cost);
                    events.push((app, Some(cost)));
                } else {
                    waiting[app] += 1;
                    lag.arrived(AppId(app as u64));
                    events.push((app, None));
                }
            }
            let truth = by_definition(&events, &weights);
            assert!((lag.max() - truth).abs() < 1e-9, "seed {seed}: {truth}");
        }
    }

    #[test]
    fn start_time_fair_queueing_keeps_its_bound() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let weights = [1u32, 2, 4];
            let mut lag = Lag::new((0..3).map(|app| (AppId(app), weights[app as usize])));
            let mut queues: Vec<VecDeque<(u64, u64)>> = vec![VecDeque::new(); 3];
            let mut finish = [0u64; 3];
            let (mut virtual_time, cost_max) = (0, 100);
            for _ in 0..3000 {
                if rng.one_in(2) {
                    let app = rng.below(3) as usize;
                    // Multiples of 4, so that tags stay integers for every weight.
                    let cost = 4 * rng.between(1, cost_max / 4);
                    let start = finish[app].max(virtual_time);
                    finish[app] = start + cost / u64::from(weights[app]);
                    queues[app].push_back((start, cost));
                    lag.arrived(AppId(app as u64));
                }
                let heads = queues.iter().enumerate();
                let next = heads.filter_map(|(app, queue)| Some((queue.front()?.0, app)));
                if let Some((start, app)) = next.min().filter(|_| rng.one_in(2)) {
                    let (_, cost) = queues[app].pop_front().expect("it has a head");
                    virtual_time = start;
                    lag.served(AppId(app as u64), cost);
                }
            }
            for f in 0..3u64 {
                for g in 0..f {
                    let term = |app: u64| cost_max as f64 / f64::from(weights[app as usize]);
                    assert!(lag.between(AppId(f), AppId(g)) <= term(f) + term(g));
                }
            }
            assert!(lag.max() > 0.0);
        }
    }
}
