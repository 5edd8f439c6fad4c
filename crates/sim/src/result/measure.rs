//! Measures one run: operations, applications, forwarders.

use super::requests;
use super::{Given, GivenApplication, Metric, PointResult, Timeline};
use crate::metrics::{Progress, Quantiles, jain, ratio, sys_efficiency};
use crate::scenario::Operations;
use crate::world;

const MS: f64 = 1e6;

/// Measures a run.
pub fn measure(outcome: &world::Outcome, given: &Given) -> PointResult {
    let mut result = PointResult::new(Timeline::of(outcome, given));
    of_operations(&mut result, outcome, given);
    of_applications(&mut result, outcome, given);
    of_forwarders(&mut result, outcome);
    of_promises(&mut result, outcome);
    if given.requests {
        requests::measure(&mut result, outcome);
    }
    if given.bound {
        let bound = requests::completion_bound_ns(outcome, given);
        result.set(Metric::OptimumBoundMs, bound.map_or(f64::NAN, |ns| ns / MS));
    }
    result
}

/// When the applications that are measured ended, ns; their numbers and what was given of them.
fn measured<'a>(
    outcome: &'a world::Outcome,
    given: &'a Given,
) -> impl Iterator<Item = (usize, &'a GivenApplication, u64)> + Clone {
    let apps = given.applications.iter().zip(&outcome.ends_ns).enumerate();
    let apps = apps.filter(|(_, (app, _))| app.measured);
    apps.map(|(number, (app, end))| (number, app, *end))
}

fn of_operations(result: &mut PointResult, outcome: &world::Outcome, given: &Given) {
    let totals = &outcome.totals;
    let mut ends = Quantiles::new();
    measured(outcome, given).for_each(|(_, _, end)| ends.add(end));
    let flow = match given.operations {
        Operations::Accesses => &totals.accesses,
        Operations::Marked => &totals.operations,
        Operations::Applications => &ends,
    };
    result.set(Metric::CompletionMean, flow.mean() / MS);
    result.set(Metric::CompletionMax, flow.max() as f64 / MS);
    let [p50, p95, p99] = flow.quantiles([500, 950, 990]);
    result.set(Metric::CompletionP50, p50 as f64 / MS);
    result.set(Metric::CompletionP95, p95 as f64 / MS);
    result.set(Metric::CompletionP99, p99 as f64 / MS);
    result.set(Metric::WeightedIoTime, totals.waited_ns / 3.6e12);
    let (last_to_first, first_ns) = totals.spreads.means();
    result.set(Metric::LastToFirst, last_to_first);
    result.set(Metric::FirstForwarder, first_ns / MS);
    let (shuffled_ns, operations_ns) = totals.shuffled_ns;
    if operations_ns > 0 {
        let percent = ratio(shuffled_ns as f64 * 100.0, operations_ns as f64);
        result.set(Metric::ShufflePercent, percent);
    }
}

fn of_applications(result: &mut PointResult, outcome: &world::Outcome, given: &Given) {
    let ends: f64 = measured(outcome, given).map(|(_, _, end)| end as f64).sum();
    let count = measured(outcome, given).count() as f64;
    result.set(Metric::ApplicationCompletionMean, ratio(ends, count) / MS);
    let totals = &outcome.totals.applications;
    let took_ns = |app: &GivenApplication, end: u64| end.saturating_sub(app.starts_ns) as f64;
    let bandwidths = measured(outcome, given)
        .map(|(number, app, end)| ratio(totals[number].bytes as f64 * 1e9, took_ns(app, end)));
    result.set(Metric::Jain, jain(bandwidths));
    let stretches = measured(outcome, given).filter_map(|(_, app, end)| {
        let alone_ns = app.alone_ns.filter(|ns| *ns > 0)?;
        Some(took_ns(app, end) / alone_ns as f64)
    });
    let count = stretches.clone().count();
    if count > 0 {
        result.set(
            Metric::StretchMean,
            stretches.clone().sum::<f64>() / count as f64,
        );
        result.set(Metric::StretchMax, stretches.fold(0.0, f64::max));
    }
    result.set(Metric::SysEfficiency, 100.0 * working(outcome, given));
}

/// The share of the processes' time in which no I/O of their application is under way.
fn working(outcome: &world::Outcome, given: &Given) -> f64 {
    let totals = &outcome.totals.applications;
    let progress: Vec<Progress> = measured(outcome, given)
        .map(|(number, app, end)| {
            let elapsed_ns = end.saturating_sub(app.starts_ns);
            Progress {
                nodes: u64::from(app.processes),
                worked_ns: elapsed_ns.saturating_sub(totals[number].io_ns),
                elapsed_ns,
            }
        })
        .collect();
    sys_efficiency(progress.iter().map(|it| it.nodes).sum(), &progress)
}

fn of_forwarders(result: &mut PointResult, outcome: &world::Outcome) {
    let makespan = outcome.end_ns as f64;
    let work = outcome.work.as_slice();
    let bytes = outcome.totals.bytes();
    let calls: u64 = work.iter().map(|work| work.calls).sum();
    let requests: u64 = work.iter().map(|work| work.requests).sum();
    let asked: u64 = work.iter().map(|work| work.bytes).sum();
    // Servers have the devices, where there are servers.
    let with_device = match outcome.servers.as_slice() {
        [] => work,
        servers => servers,
    };
    let busy: u64 = with_device.iter().map(|work| work.busy_ns).sum();
    let moved: u64 = with_device.iter().map(|work| work.bytes).sum();
    let possible = makespan * with_device.len() as f64;
    let calls = calls as f64;
    result.set(Metric::Makespan, makespan / MS);
    result.set(Metric::Bandwidth, ratio(bytes as f64 * 1000.0, makespan));
    let moved_mb_s = ratio(moved as f64 * 1000.0, makespan);
    result.set(Metric::DeviceBandwidth, moved_mb_s);
    result.set(Metric::Utilisation, ratio(busy as f64 * 100.0, possible));
    result.set(Metric::BackEndCalls, calls);
    result.set(Metric::AggregationRequests, ratio(requests as f64, calls));
    result.set(Metric::AggregationKib, ratio(asked as f64 / 1024.0, calls));
    result.set(Metric::Events, outcome.events as f64);
}

fn of_promises(result: &mut PointResult, outcome: &world::Outcome) {
    let Some((promises, depth)) = &outcome.promises else {
        return;
    };
    if let Some([half, whole]) = promises.kept() {
        result.set(Metric::TargetKept500ms, 100.0 * half);
        result.set(Metric::TargetKept1s, 100.0 * whole);
    }
    let error = promises.share_error();
    result.set(Metric::ShareError, 100.0 * error.unwrap_or(f64::NAN));
    result.set(Metric::DepthMean, depth.mean);
    result.set(Metric::DepthMin, f64::from(depth.min));
    result.set(Metric::DepthMax, f64::from(depth.max));
}

#[cfg(test)]
mod tests {
    use super::super::requests::tests::outcome;
    use super::*;
    use crate::world::ApplicationTotals;
    use tidegate_sched::AppId;

    /// An application that starts at `starts_ns` and by itself takes `alone_ns`.
    fn application(starts_ns: u64, alone_ns: Option<u64>, measured: bool) -> GivenApplication {
        GivenApplication {
            id: AppId(starts_ns),
            name: String::new(),
            processes: 1,
            starts_ns,
            alone_ns,
            measured,
        }
    }

    #[test]
    fn stretch_and_fairness_are_of_the_applications_that_count() {
        let given = Given {
            applications: vec![
                application(0, Some(50), true),
                application(100, Some(200), true),
                // Neither has a stretch: no time alone is known, or one of nothing.
                application(0, None, true),
                application(0, Some(0), true),
                // Does not count.
                application(0, Some(1), false),
            ],
            ..Given::default()
        };
        let mut run = outcome(Vec::new(), &[0]);
        run.ends_ns = vec![100, 300, 400, 500, 1000];
        run.totals.applications = vec![ApplicationTotals::default(); 5];
        for (totals, bytes) in run
            .totals
            .applications
            .iter_mut()
            .zip([300, 200, 800, 1500, 9])
        {
            totals.bytes = bytes;
        }
        let result = measure(&run, &given);
        // 100 of 50 and 200 of 200.
        assert_eq!(result.get(Metric::StretchMean), 1.5);
        assert_eq!(result.get(Metric::StretchMax), 2.0);
        // Bandwidths 3, 1, 2 and 3: their sum's square, 81, over four times 23, their squares' sum.
        let jain = result.get(Metric::Jain);
        assert!((jain - 81.0 / 92.0).abs() < 1e-12, "{jain}");
    }
}
