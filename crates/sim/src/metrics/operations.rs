//! What finished operations say about a run: completion and flow times, stretch, bandwidth.

use super::{Measure, NS_PER_S, Ratios, Times, jain, ratio};
use std::collections::BTreeMap;
use tidegate_sched::AppId;

/// A finished operation: what an application asked for in one call, on all forwarders together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whose it was.
    pub app: AppId,
    /// When the application asked.
    pub issued_ns: u64,
    /// When its last part was done, shuffle included.
    pub completed_ns: u64,
    /// How much it moved.
    pub bytes: u64,
    /// The processes (or nodes) that waited for it.
    pub processes: u32,
}

impl Operation {
    /// The time from issue to completion.
    pub fn flow_ns(&self) -> u64 {
        self.completed_ns.saturating_sub(self.issued_ns)
    }
}

/// What one application's operations add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application {
    /// Which application.
    pub app: AppId,
    /// When it issued its first operation.
    pub issued_ns: u64,
    /// When the last of its operations was complete.
    pub completed_ns: u64,
    /// How much it moved.
    pub bytes: u64,
    /// Flow times of its operations.
    pub flow: Times,
    /// The time in which at least one of its operations was under way.
    pub io_ns: u64,
    /// Flow times multiplied by processes.
    pub weighted_io_ns: u128,
}

impl Application {
    /// The time from its first issue to its last completion, thinking included.
    pub fn flow_ns(&self) -> u64 {
        self.completed_ns.saturating_sub(self.issued_ns)
    }

    /// Bytes for a second of its flow time.
    pub fn bandwidth(&self) -> f64 {
        ratio(self.bytes as f64 * NS_PER_S, self.flow_ns() as f64)
    }
}

/// The operations of one run, measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    applications: Vec<Application>,
    begun_ns: u64,
    ended_ns: u64,
    completion: Times,
    flow: Times,
    bytes: u128,
}

impl Run {
    /// Measures operations, which may come in any order. One that completes before its issue
    /// counts as one that takes no time.
    pub fn new(operations: &[Operation]) -> Run {
        let begun_ns = operations.iter().map(|op| op.issued_ns).min().unwrap_or(0);
        let ended = |op: &Operation| op.completed_ns.max(op.issued_ns);
        let mut sorted: Vec<&Operation> = operations.iter().collect();
        sorted.sort_by_key(|op| (op.app, op.issued_ns, op.completed_ns));
        Run {
            applications: sorted
                .chunk_by(|a, b| a.app == b.app)
                .map(application)
                .collect(),
            begun_ns,
            ended_ns: operations.iter().map(ended).max().unwrap_or(0),
            completion: operations.iter().map(|op| ended(op) - begun_ns).collect(),
            flow: operations.iter().map(Operation::flow_ns).collect(),
            bytes: operations.iter().map(|op| u128::from(op.bytes)).sum(),
        }
    }

    /// The applications, by ascending id.
    pub fn applications(&self) -> &[Application] {
        &self.applications
    }

    /// The time from the first issue of all to the last completion of all.
    pub fn makespan_ns(&self) -> u64 {
        self.ended_ns - self.begun_ns
    }

    /// Completion times of operations, counted from the first issue of the run.
    pub fn completion(&self) -> Times {
        self.completion
    }

    /// Flow times of operations, each counted from its own issue.
    pub fn flow(&self) -> Times {
        self.flow
    }

    /// Completion times of applications, counted from the first issue of the run.
    pub fn application_completion(&self) -> Times {
        let since_begin = |app: &Application| app.completed_ns - self.begun_ns;
        self.applications.iter().map(since_begin).collect()
    }

    /// Flow times of applications, each counted from its own first issue.
    pub fn application_flow(&self) -> Times {
        self.applications.iter().map(Application::flow_ns).collect()
    }

    /// Bytes for a second of the makespan, of all applications together.
    pub fn bandwidth(&self) -> f64 {
        ratio(self.bytes as f64 * NS_PER_S, self.makespan_ns() as f64)
    }

    /// Weighted I/O time: the sum of processes times wait, in process-nanoseconds.
    pub fn weighted_io_ns(&self) -> u128 {
        let weighted = self.applications.iter().map(|app| app.weighted_io_ns);
        weighted.sum()
    }

    /// Stretch of each application: flow time over flow time alone. Applications without a time
    /// alone, or with one of 0, are left out; [`Ratios::count`] tells how many were compared.
    pub fn stretch(&self, alone_ns: &BTreeMap<AppId, u64>) -> Ratios {
        self.ratios(alone_ns, Application::flow_ns)
    }

    /// I/O slowdown of each application: time with I/O under way over the same alone.
    pub fn io_slowdown(&self, alone_ns: &BTreeMap<AppId, u64>) -> Ratios {
        self.ratios(alone_ns, |app| app.io_ns)
    }

    /// Jain's index of the applications' bandwidths over their weights; weight 1 if not named.
    pub fn jain(&self, weights: &BTreeMap<AppId, u32>) -> f64 {
        let weight = |app| f64::from(weights.get(&app).copied().unwrap_or(1).max(1));
        let shares = self.applications.iter();
        jain(shares.map(|app| app.bandwidth() / weight(app.app)))
    }

    /// Flow time of each application: the times alone, when only one of them ran.
    pub fn flow_by_application(&self) -> BTreeMap<AppId, u64> {
        let flows = self.applications.iter();
        flows.map(|app| (app.app, app.flow_ns())).collect()
    }

    /// Time with I/O under way of each application.
    pub fn io_by_application(&self) -> BTreeMap<AppId, u64> {
        let times = self.applications.iter();
        times.map(|app| (app.app, app.io_ns)).collect()
    }

    /// The numbers that need nothing but the operations.
    pub fn measures(&self) -> Vec<Measure> {
        let (completion, flow) = (self.completion(), self.flow());
        let application = self.application_completion();
        let weighted = self.weighted_io_ns() as f64 / NS_PER_S;
        vec![
            Measure::plain("operations", completion.count as f64),
            Measure::time("makespan", self.makespan_ns() as f64),
            Measure::time("mean completion time", completion.mean_ns()),
            Measure::time("max completion time", completion.max_ns as f64),
            Measure::time("mean flow time", flow.mean_ns()),
            Measure::time("max flow time", flow.max_ns as f64),
            Measure::time("mean application completion time", application.mean_ns()),
            Measure::time(
                "max application flow time",
                self.application_flow().max_ns as f64,
            ),
            Measure {
                name: "bandwidth",
                value: self.bandwidth(),
                unit: "B/s",
            },
            Measure {
                name: "weighted I/O time",
                value: weighted / 3600.0,
                unit: "process h",
            },
            Measure::plain("Jain's index of bandwidth", self.jain(&BTreeMap::new())),
        ]
    }

    fn ratios(&self, alone: &BTreeMap<AppId, u64>, time: impl Fn(&Application) -> u64) -> Ratios {
        let compared = self.applications.iter().filter_map(|app| {
            let alone = *alone.get(&app.app)?;
            (alone > 0).then(|| time(app) as f64 / alone as f64)
        });
        compared.collect()
    }
}

/// Adds up one application's operations, given by ascending time of issue.
fn application(operations: &[&Operation]) -> Application {
    let mut sum = Application {
        app: operations[0].app,
        issued_ns: operations[0].issued_ns,
        completed_ns: 0,
        bytes: 0,
        flow: Times::default(),
        io_ns: 0,
        weighted_io_ns: 0,
    };
    let mut covered_ns = sum.issued_ns;
    for operation in operations {
        let completed_ns = operation.completed_ns.max(operation.issued_ns);
        let flow_ns = operation.flow_ns();
        sum.completed_ns = sum.completed_ns.max(completed_ns);
        sum.bytes = sum.bytes.saturating_add(operation.bytes);
        sum.flow.add(flow_ns);
        sum.weighted_io_ns += u128::from(flow_ns) * u128::from(operation.processes);
        // Only what no earlier operation covers is new I/O time.
        let from_ns = operation.issued_ns.max(covered_ns);
        sum.io_ns += completed_ns.saturating_sub(from_ns);
        covered_ns = covered_ns.max(completed_ns);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn operation(app: u64, issued_ns: u64, completed_ns: u64) -> Operation {
        Operation {
            app: AppId(app),
            issued_ns,
            completed_ns,
            bytes: 100,
            processes: 2,
        }
    }

    #[test]
    fn values_by_hand() {
        let run = Run::new(&[
            operation(2, 20, 60),
            operation(1, 10, 30),
            operation(1, 20, 40),
            operation(1, 50, 60),
        ]);
        assert_eq!(run.makespan_ns(), 50);
        assert_eq!(run.completion().sum_ns, 50 + 20 + 30 + 50);
        assert_eq!(run.completion().mean_ns(), 37.5);
        assert_eq!((run.flow().mean_ns(), run.flow().max_ns), (22.5, 40));
        let [one, two] = run.applications() else {
            panic!("two applications");
        };
        assert_eq!((one.flow_ns(), one.io_ns), (50, 40));
        assert_eq!((two.flow_ns(), two.io_ns), (40, 40));
        assert_eq!(run.application_completion().mean_ns(), 50.0);
        assert_eq!(run.application_flow().mean_ns(), 45.0);
        assert_eq!(run.weighted_io_ns(), 2 * (20 + 20 + 10 + 40));
        assert_eq!(run.bandwidth(), 400.0 * 1e9 / 50.0);
        let alone = BTreeMap::from([(AppId(1), 25), (AppId(2), 10), (AppId(3), 5)]);
        let stretch = run.stretch(&alone);
        assert_eq!((stretch.count, stretch.mean(), stretch.max), (2, 3.0, 4.0));
        let slowdown = run.io_slowdown(&alone);
        assert_eq!((slowdown.mean(), slowdown.max), (2.8, 4.0));
        // Bandwidths 300/50 and 100/40 over weights 12 and 5 are equal.
        let weights = BTreeMap::from([(AppId(1), 12), (AppId(2), 5)]);
        assert!((run.jain(&weights) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_and_nonsense_are_measured() {
        let run = Run::new(&[]);
        assert_eq!((run.makespan_ns(), run.bandwidth()), (0, 0.0));
        assert_eq!(run.stretch(&BTreeMap::new()).mean(), 0.0);
        let backwards = Run::new(&[operation(1, 50, 20)]);
        assert_eq!((backwards.makespan_ns(), backwards.flow().max_ns), (0, 0));
        assert!(backwards.measures().iter().all(|m| m.value.is_finite()));
    }

    #[test]
    fn random_runs_agree_with_counting_by_ticks() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut operations: Vec<Operation> = (0..rng.between(1, 40))
                .map(|_| {
                    let issued_ns = rng.below(200);
                    operation(rng.below(4), issued_ns, issued_ns + rng.below(40))
                })
                .collect();
            let run = Run::new(&operations);
            for app in run.applications() {
                let own = operations.iter().filter(|op| op.app == app.app);
                let busy = |tick: &u64| {
                    own.clone()
                        .any(|op| op.issued_ns <= *tick && *tick < op.completed_ns)
                };
                assert_eq!(app.io_ns, (0..300).filter(busy).count() as u64);
                assert!(app.io_ns <= app.flow_ns() && app.flow_ns() <= run.makespan_ns());
            }
            assert!(run.flow().mean_ns() <= run.completion().mean_ns());
            assert!(run.completion().max_ns == run.makespan_ns());
            operations.reverse();
            assert_eq!(Run::new(&operations), run, "seed {seed}: order matters");
        }
    }
}
