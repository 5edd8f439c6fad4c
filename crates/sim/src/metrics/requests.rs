//! What finished requests say about a run, counted one by one in bounded memory: latencies,
//! utilisation, back-end calls, and how far apart the forwarders finish an application.

use super::{Measure, NS_PER_S, Quantiles, Ratios, ratio};
use std::collections::BTreeMap;
use tidegate_sched::AppId;

/// A finished request of one forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whose it was.
    pub app: AppId,
    /// Which forwarder served it, from 0.
    pub forwarder: u32,
    /// When it reached the forwarder.
    pub arrival_ns: u64,
    /// When its batch went to the back end.
    pub dispatched_ns: u64,
    /// When its batch was complete.
    pub completed_ns: u64,
    /// How much it moved.
    pub bytes: u64,
    /// Its own share of the time that the batch kept the device busy.
    pub device_ns: u64,
    /// Requests in its batch, itself included; every one of them is reported.
    pub requests_in_batch: u32,
}

/// Latencies and amounts of some requests.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// From arrival to completion, in nanoseconds.
    pub latency: Quantiles,
    /// From arrival to dispatch, in nanoseconds.
    pub wait: Quantiles,
    /// How much they moved.
    pub bytes: u128,
    /// How long they kept devices busy, in nanoseconds.
    pub device_ns: u128,
    /// By size of batch: how many requests were in batches of that size. Each batch is one back-end
    /// call.
    by_batch: BTreeMap<u32, u64>,
}

impl Totals {
    /// Back-end calls. A call that also carried requests of others counts as a part of one.
    pub fn calls(&self) -> f64 {
        let calls = self.by_batch.iter();
        calls
            .map(|(size, requests)| *requests as f64 / f64::from(*size))
            .sum()
    }

    /// Aggregation size: requests for each back-end call.
    pub fn requests_per_call(&self) -> f64 {
        ratio(self.latency.count() as f64, self.calls())
    }

    /// Aggregation size: bytes for each back-end call.
    pub fn bytes_per_call(&self) -> f64 {
        ratio(self.bytes as f64, self.calls())
    }

    fn add(&mut self, served: &Served) {
        let since = |ns: u64| ns.saturating_sub(served.arrival_ns);
        self.latency.add(since(served.completed_ns));
        self.wait.add(since(served.dispatched_ns));
        self.bytes += u128::from(served.bytes);
        self.device_ns += u128::from(served.device_ns);
        let size = served.requests_in_batch.max(1);
        *self.by_batch.entry(size).or_default() += 1;
    }
}

/// Counts finished requests. Memory grows with applications, forwarders and batch sizes, not with
/// requests.
#[derive(Clone, Debug)]
pub struct Requests {
    forwarders: u32,
    begun_ns: u64,
    ended_ns: u64,
    all: Totals,
    applications: BTreeMap<AppId, OfApplication>,
    busy_ns: BTreeMap<u32, u128>,
}

#[derive(Clone, Debug, Default)]
struct OfApplication {
    totals: Totals,
    begun_ns: u64,
    /// When each forwarder completed the last of its requests.
    ended_ns: BTreeMap<u32, u64>,
}

impl Requests {
    /// No requests yet, on this number of forwarders, each with one device. Those that never serve
    /// count in the utilisation.
    pub fn new(forwarders: u32) -> Requests {
        Requests {
            forwarders,
            begun_ns: u64::MAX,
            ended_ns: 0,
            all: Totals::default(),
            applications: BTreeMap::new(),
            busy_ns: BTreeMap::new(),
        }
    }

    /// Counts a finished request; they may come in any order.
    pub fn served(&mut self, served: &Served) {
        self.begun_ns = self.begun_ns.min(served.arrival_ns);
        self.ended_ns = self.ended_ns.max(served.completed_ns);
        self.all.add(served);
        *self.busy_ns.entry(served.forwarder).or_default() += u128::from(served.device_ns);
        let app = self
            .applications
            .entry(served.app)
            .or_insert_with(|| OfApplication {
                begun_ns: u64::MAX,
                ..OfApplication::default()
            });
        app.totals.add(served);
        app.begun_ns = app.begun_ns.min(served.arrival_ns);
        let ended_ns = app.ended_ns.entry(served.forwarder).or_default();
        *ended_ns = (*ended_ns).max(served.completed_ns);
    }

    /// All requests together.
    pub fn all(&self) -> &Totals {
        &self.all
    }

    /// Those of each application, by ascending id.
    pub fn applications(&self) -> impl Iterator<Item = (AppId, &Totals)> {
        self.applications.iter().map(|(id, app)| (*id, &app.totals))
    }

    /// The time from the first arrival to the last completion.
    pub fn makespan_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.begun_ns)
    }

    /// Utilisation: device time over makespan, the mean of all forwarders.
    pub fn utilisation(&self) -> f64 {
        let possible = self.makespan_ns() as f64 * f64::from(self.forwarders);
        ratio(self.all.device_ns as f64, possible)
    }

    /// Utilisation of one forwarder.
    pub fn utilisation_of(&self, forwarder: u32) -> f64 {
        let busy = self.busy_ns.get(&forwarder).copied().unwrap_or(0);
        ratio(busy as f64, self.makespan_ns() as f64)
    }

    /// Bytes for a second of the makespan.
    pub fn bandwidth(&self) -> f64 {
        ratio(self.all.bytes as f64 * NS_PER_S, self.makespan_ns() as f64)
    }

    /// For each application with more than one forwarder, the last forwarder's finish time over the
    /// first one's, both counted from the application's first arrival anywhere: what figures 3 and
    /// 5 of Song et al. show. It is meaningful where each application does one operation.
    pub fn last_to_first(&self) -> Ratios {
        self.applications
            .values()
            .filter_map(last_to_first)
            .collect()
    }

    /// When each forwarder finished an application's requests, counted from the application's
    /// first arrival, by ascending forwarder; empty for one that nobody served.
    pub fn finish_times(&self, app: AppId) -> Vec<(u32, u64)> {
        let Some(app) = self.applications.get(&app) else {
            return Vec::new();
        };
        app.finish_times().collect()
    }

    /// The numbers of all requests together.
    pub fn measures(&self) -> Vec<Measure> {
        let latency = &self.all.latency;
        let [p50, p95, p99] = latency.quantiles([500, 950, 990]);
        vec![
            Measure::plain("requests", latency.count() as f64),
            Measure::time("mean latency", latency.mean()),
            Measure::time("p50 latency", p50 as f64),
            Measure::time("p95 latency", p95 as f64),
            Measure::time("p99 latency", p99 as f64),
            Measure::time("max latency", latency.max() as f64),
            Measure::time("mean wait", self.all.wait.mean()),
            Measure::plain("utilisation", self.utilisation()),
            Measure::plain("back-end calls", self.all.calls()),
            Measure::plain("requests per call", self.all.requests_per_call()),
            Measure {
                name: "bytes per call",
                value: self.all.bytes_per_call(),
                unit: "B",
            },
            Measure::plain("last to first forwarder", self.last_to_first().mean()),
        ]
    }
}

impl OfApplication {
    fn finish_times(&self) -> impl Iterator<Item = (u32, u64)> {
        let since = |ns: u64| ns.saturating_sub(self.begun_ns);
        self.ended_ns
            .iter()
            .map(move |(forwarder, ns)| (*forwarder, since(*ns)))
    }
}

fn last_to_first(app: &OfApplication) -> Option<f64> {
    let times = || app.finish_times().map(|(_, ns)| ns);
    let (first, last) = (times().min()?, times().max()?);
    (app.ended_ns.len() > 1 && first > 0).then(|| last as f64 / first as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn served(app: u64, forwarder: u32, times: [u64; 3], batch: u32) -> Served {
        Served {
            app: AppId(app),
            forwarder,
            arrival_ns: times[0],
            dispatched_ns: times[1],
            completed_ns: times[2],
            bytes: 100,
            device_ns: 10,
            requests_in_batch: batch,
        }
    }

    #[test]
    fn values_by_hand() {
        let mut requests = Requests::new(4);
        requests.served(&served(1, 0, [100, 100, 120], 2));
        requests.served(&served(2, 0, [105, 110, 120], 2));
        requests.served(&served(1, 1, [100, 150, 160], 1));
        assert_eq!(requests.makespan_ns(), 60);
        assert_eq!(requests.all().latency.quantiles([500, 990]), [20, 60]);
        assert_eq!(requests.all().wait.sum(), 55);
        assert_eq!(requests.all().calls(), 2.0);
        assert_eq!(requests.all().requests_per_call(), 1.5);
        assert_eq!(requests.all().bytes_per_call(), 150.0);
        assert_eq!(requests.utilisation(), 30.0 / 240.0);
        assert_eq!(requests.utilisation_of(0), 20.0 / 60.0);
        assert_eq!(requests.utilisation_of(3), 0.0);
        // Application 2 has one forwarder only; 1 finished after 20 and after 60.
        let ratios = requests.last_to_first();
        assert_eq!((ratios.count, ratios.mean()), (1, 3.0));
        assert_eq!(requests.finish_times(AppId(1)), [(0, 20), (1, 60)]);
        assert_eq!(requests.finish_times(AppId(9)), []);
        let by_app: Vec<f64> = requests.applications().map(|(_, t)| t.calls()).collect();
        assert_eq!(by_app, [1.5, 0.5]);
    }

    #[test]
    fn nothing_is_measured_as_zero() {
        let requests = Requests::new(0);
        assert!(requests.measures().iter().all(|m| m.value == 0.0));
    }

    #[test]
    fn batches_of_random_sizes_are_counted_once() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut requests, mut calls, mut total) = (Requests::new(3), 0.0, 0u64);
            for _ in 0..200 {
                let size = rng.between(1, 16) as u32;
                let (forwarder, at) = (rng.below(3) as u32, rng.below(1000));
                calls += 1.0;
                for _ in 0..size {
                    total += 1;
                    let app = rng.below(5);
                    requests.served(&served(app, forwarder, [at, at + 5, at + 9], size));
                }
            }
            assert!((requests.all().calls() - calls).abs() < 1e-6, "seed {seed}");
            assert_eq!(requests.all().latency.count(), total);
            let by_app: f64 = requests.applications().map(|(_, t)| t.calls()).sum();
            assert!((by_app - calls).abs() < 1e-6);
        }
    }
}
