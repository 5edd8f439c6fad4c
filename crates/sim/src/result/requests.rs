//! Measures the requests of a run as forwarders served them: latency, wait, lag. Also finds how
//! good any order of them could have been.

use super::{Given, Metric, PointResult};
use crate::bounds::{Instance, Needs};
use crate::metrics::{Lag, Quantiles};
use crate::world;
use std::collections::BTreeMap;
use tidegate_sched::AppId;
use tidegate_trace::Record;

const MS: f64 = 1e6;

/// A request that reached a device. All times are nanoseconds since the start of the run.
struct Served {
    app: AppId,
    forwarder: usize,
    arrival_ns: u64,
    dispatched_ns: u64,
    completed_ns: u64,
    /// Its share of the time that its batch kept the device busy.
    device_ns: u64,
}

/// Measures the recorded requests. Those that never reached a device do not count.
pub(super) fn measure(result: &mut PointResult, outcome: &world::Outcome) {
    let served = served(outcome);
    let (mut latency, mut wait) = (Quantiles::new(), Quantiles::new());
    for it in &served {
        latency.add(it.completed_ns - it.arrival_ns);
        wait.add(it.dispatched_ns - it.arrival_ns);
    }
    let [p50, p95, p99] = latency.quantiles([500, 950, 990]);
    result.set(Metric::LatencyP50, p50 as f64 / MS);
    result.set(Metric::LatencyP95, p95 as f64 / MS);
    result.set(Metric::LatencyP99, p99 as f64 / MS);
    result.set(Metric::WaitMean, wait.mean() / MS);
    result.set(Metric::LagMax, lag_ns(&served) / MS);
}

/// The largest lag of two applications, over all forwarders, all weights being equal, in ns.
fn lag_ns(served: &[Served]) -> f64 {
    let mut lag = Lag::new([]);
    // An end comes before an arrival at the same time: an application that was without a request,
    // if only for an instant, was not waiting.
    let mut happened: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * served.len());
    for (number, it) in served.iter().enumerate() {
        happened.push((it.arrival_ns, true, number));
        // An end never comes before its own arrival.
        happened.push((it.completed_ns.max(it.arrival_ns + 1), false, number));
    }
    happened.sort_unstable();
    for (_, arrives, number) in happened {
        let it = &served[number];
        match arrives {
            true => lag.arrived(it.app),
            false => lag.served(it.app, it.device_ns),
        }
    }
    lag.max()
}

/// Where and when a batch was served: a device serves batches one after the other, or several at
/// once.
type Batch = (u16, u64, u64);

fn batch(record: &Record) -> Option<Batch> {
    let dispatched_ns = record.arrival_ns.saturating_add(record.wait_ns?);
    let completed_ns = dispatched_ns.saturating_add(record.service_ns?);
    Some((record.forwarder?, dispatched_ns, completed_ns))
}

/// The requests that reached a device. A forwarder's device time is spread over its batches by how
/// long they took, a batch's over its requests by their bytes.
fn served(outcome: &world::Outcome) -> Vec<Served> {
    let mut batches: BTreeMap<Batch, u64> = BTreeMap::new();
    for record in &outcome.records {
        if let Some(batch) = batch(record) {
            *batches.entry(batch).or_default() += record.len;
        }
    }
    let mut took_ns = vec![0u64; outcome.work.len()];
    for (forwarder, dispatched_ns, completed_ns) in batches.keys() {
        took_ns[*forwarder as usize] += completed_ns - dispatched_ns;
    }
    let mut served = Vec::with_capacity(outcome.records.len());
    for record in &outcome.records {
        let Some((forwarder, dispatched_ns, completed_ns)) = batch(record) else {
            continue;
        };
        let bytes = batches[&(forwarder, dispatched_ns, completed_ns)];
        let forwarder = usize::from(forwarder);
        let busy_ns = u128::from(outcome.work[forwarder].busy_ns);
        let device_ns = busy_ns * u128::from(completed_ns - dispatched_ns)
            / u128::from(took_ns[forwarder].max(1));
        let device_ns = device_ns * u128::from(record.len) / u128::from(bytes.max(1));
        served.push(Served {
            app: record.app,
            forwarder,
            arrival_ns: record.arrival_ns,
            dispatched_ns,
            completed_ns,
            device_ns: u64::try_from(device_ns).unwrap_or(u64::MAX),
        });
    }
    served
}

/// Lower bound of the applications' mean completion time over all orders of these requests, counted
/// from the start of the run, ns. None: there is nothing to order. For up to eight applications
/// that start together it is the optimum itself.
pub(super) fn completion_bound_ns(outcome: &world::Outcome, given: &Given) -> Option<f64> {
    let mut work: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for it in served(outcome) {
        let own = work.entry(it.app.0);
        let own = own.or_insert_with(|| vec![0; outcome.work.len()]);
        own[it.forwarder] += it.device_ns;
    }
    let needs = given.applications.iter().map(|app| Needs {
        app: app.id.0,
        released_ns: app.starts_ns,
        work_ns: work
            .remove(&app.id.0)
            .unwrap_or_else(|| vec![0; outcome.work.len()]),
        shuffles_ns: Vec::new(),
    });
    let instance = Instance::new(outcome.work.len(), needs.collect()).ok()?;
    if instance.operations().is_empty() {
        return None;
    }
    match instance.best() {
        Some(best) if best.optimal => Some(best.value.mean_ns(instance.operations().len())),
        _ => Some(instance.mean_bound_ns()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::result::GivenApplication;
    use crate::world::Work;
    use tidegate_sched::AppId;

    /// A request of an application at a forwarder: arrival, wait, service.
    fn record(app: u64, forwarder: u16, times: [u64; 3], len: u64) -> Record {
        Record {
            app: AppId(app),
            forwarder: Some(forwarder),
            arrival_ns: times[0],
            wait_ns: Some(times[1]),
            service_ns: Some(times[2]),
            len,
            ..Record::default()
        }
    }

    pub(in crate::result) fn outcome(records: Vec<Record>, busy_ns: &[u64]) -> world::Outcome {
        let work = |busy_ns: &u64| Work {
            busy_ns: *busy_ns,
            ..Work::default()
        };
        world::Outcome {
            totals: world::Totals::default(),
            accesses: Vec::new(),
            operations: Vec::new(),
            records,
            ends_ns: vec![0; 2],
            promises: None,
            timeline: None,
            work: busy_ns.iter().map(work).collect(),
            servers: Vec::new(),
            end_ns: 0,
            events: 0,
            failures: (0, None),
        }
    }

    #[test]
    fn a_batch_is_shared_by_bytes_and_a_device_by_time() {
        let records = vec![
            record(1, 0, [0, 10, 30], 300),
            record(2, 0, [5, 5, 30], 100),
            // Beside the batch, on a device that serves two at once.
            record(1, 0, [0, 10, 10], 50),
            Record {
                wait_ns: None,
                ..record(2, 0, [0, 0, 9], 1)
            },
        ];
        let served = served(&outcome(records, &[32]));
        let times: Vec<_> = served.iter().map(|it| it.device_ns).collect();
        assert_eq!(times, [18, 6, 8]);
    }

    #[test]
    fn the_bound_is_the_optimum_of_a_few_applications() {
        // Two servers, two applications: 10 and 30 on the first, 20 and 0 on the second.
        let records = vec![
            record(1, 0, [0, 0, 10], 1),
            record(1, 1, [0, 0, 20], 1),
            record(2, 0, [0, 10, 30], 1),
        ];
        let app = |id: u64, starts_ns: u64| GivenApplication {
            id: AppId(id),
            name: String::new(),
            processes: 1,
            starts_ns,
            alone_ns: None,
            measured: true,
        };
        let given = |starts_ns| Given {
            applications: vec![app(1, 0), app(2, starts_ns)],
            ..Given::default()
        };
        let outcome = outcome(records, &[40, 20]);
        // 1 first: it ends at 20, the other at 40.
        assert_eq!(completion_bound_ns(&outcome, &given(0)), Some(30.0));
        // The later start moves the bound too.
        assert_eq!(completion_bound_ns(&outcome, &given(100)), Some(75.0));
        assert_eq!(completion_bound_ns(&outcome, &Given::default()), None);
    }

    #[test]
    fn lag_is_what_one_gets_while_another_waits() {
        let records = vec![
            record(1, 0, [0, 0, 10], 1),
            record(1, 0, [0, 10, 10], 1),
            record(2, 0, [0, 20, 10], 1),
        ];
        let served = served(&outcome(records, &[30]));
        assert_eq!(lag_ns(&served), 20.0);
    }
}
