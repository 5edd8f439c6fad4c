//! The metrics of a run: names, words for reports, and units.

use serde::{Deserialize, Serialize};

/// What can be measured of a run, under the field's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean time from issue to completion of an operation, ms.
    CompletionMean,
    /// The longest of them, ms.
    CompletionMax,
    /// Median of them, ms.
    CompletionP50,
    /// 95th percentile, ms.
    CompletionP95,
    /// 99th percentile, ms.
    CompletionP99,
    /// Mean end of an application, counted from the start of the run, ms.
    ApplicationCompletionMean,
    /// Time until everything is done, ms.
    Makespan,
    /// Bytes of all applications over the makespan, MB/s.
    Bandwidth,
    /// Time until an access's last forwarder is done, divided by that of its first one; mean.
    LastToFirst,
    /// Mean time until an access's first forwarder is done, ms.
    FirstForwarder,
    /// Share of the time of marked operations in which none of their application's accesses is
    /// under way: the shuffle, and waiting for each other; percent.
    ShufflePercent,
    /// Share of the makespan in which devices are busy; mean over forwarders, percent.
    Utilisation,
    /// Calls to the back ends.
    BackEndCalls,
    /// Requests in a call.
    AggregationRequests,
    /// KiB in a call.
    AggregationKib,
    /// Jain's index over the bandwidths of the applications.
    Jain,
    /// Time with contention over time alone; mean over applications.
    StretchMean,
    /// The largest of them.
    StretchMax,
    /// Sum of waiting times, each times the processes that wait, hours.
    WeightedIoTime,
    /// Events simulated.
    Events,
    /// Median of requests' time from arrival at the forwarder to completion, ms.
    LatencyP50,
    /// 95th percentile, ms.
    LatencyP95,
    /// 99th percentile, ms.
    LatencyP99,
    /// Mean time of requests from arrival at the forwarder to dispatch, ms.
    WaitMean,
    /// The largest lag of two applications that have requests waiting, ms of device time.
    LagMax,
    /// Share of windows of 500 ms in which an application's latencies kept their target; the
    /// smallest over the applications that have one, percent.
    #[serde(rename = "target_kept_500ms")]
    TargetKept500ms,
    /// The same in windows of 1 s, percent.
    #[serde(rename = "target_kept_1s")]
    TargetKept1s,
    /// The largest difference between an application's part of the service and the part that its
    /// weight gives it, in windows of 10 s in which it had an access under way all the time,
    /// percentage points.
    ShareError,
    /// Calls that forwarders let run at once: mean over time and forwarders.
    DepthMean,
    /// The smallest of them.
    DepthMin,
    /// The largest of them.
    DepthMax,
    /// Bandwidth over that of the first policy.
    Efficiency,
    /// Share of the processes' time in which no I/O of their application is under way, percent.
    SysEfficiency,
    /// Mean completion of applications over its lower bound, percent above it.
    OptimumDistance,
    /// That lower bound, of the load as the first policy served it, ms.
    OptimumBoundMs,
}

impl Metric {
    /// All of them.
    pub const ALL: &[Metric] = &[
        Metric::CompletionMean,
        Metric::CompletionMax,
        Metric::CompletionP50,
        Metric::CompletionP95,
        Metric::CompletionP99,
        Metric::ApplicationCompletionMean,
        Metric::Makespan,
        Metric::Bandwidth,
        Metric::LastToFirst,
        Metric::FirstForwarder,
        Metric::ShufflePercent,
        Metric::Utilisation,
        Metric::BackEndCalls,
        Metric::AggregationRequests,
        Metric::AggregationKib,
        Metric::Jain,
        Metric::StretchMean,
        Metric::StretchMax,
        Metric::WeightedIoTime,
        Metric::Events,
        Metric::LatencyP50,
        Metric::LatencyP95,
        Metric::LatencyP99,
        Metric::WaitMean,
        Metric::LagMax,
        Metric::TargetKept500ms,
        Metric::TargetKept1s,
        Metric::ShareError,
        Metric::DepthMean,
        Metric::DepthMin,
        Metric::DepthMax,
        Metric::Efficiency,
        Metric::SysEfficiency,
        Metric::OptimumDistance,
        Metric::OptimumBoundMs,
    ];

    /// For reports: words and unit.
    pub fn words(self) -> &'static str {
        match self {
            Metric::CompletionMean => "mean completion, ms",
            Metric::CompletionMax => "max completion, ms",
            Metric::CompletionP50 => "p50 completion, ms",
            Metric::CompletionP95 => "p95 completion, ms",
            Metric::CompletionP99 => "p99 completion, ms",
            Metric::ApplicationCompletionMean => "mean completion of applications, ms",
            Metric::Makespan => "makespan, ms",
            Metric::Bandwidth => "bandwidth, MB/s",
            Metric::LastToFirst => "last/first forwarder",
            Metric::FirstForwarder => "first forwarder done, ms",
            Metric::ShufflePercent => "shuffle, %",
            Metric::Utilisation => "utilisation, %",
            Metric::BackEndCalls => "back-end calls",
            Metric::AggregationRequests => "aggregation, requests",
            Metric::AggregationKib => "aggregation, KiB",
            Metric::Jain => "Jain's index",
            Metric::StretchMean => "mean stretch",
            Metric::StretchMax => "max stretch",
            Metric::WeightedIoTime => "weighted I/O time, h",
            Metric::Events => "events",
            Metric::LatencyP50 => "p50 latency of requests, ms",
            Metric::LatencyP95 => "p95 latency of requests, ms",
            Metric::LatencyP99 => "p99 latency of requests, ms",
            Metric::WaitMean => "mean wait of requests, ms",
            Metric::LagMax => "max lag, ms of device time",
            Metric::TargetKept500ms => "windows of 500 ms within the target, %",
            Metric::TargetKept1s => "windows of 1 s within the target, %",
            Metric::ShareError => "share error, percentage points",
            Metric::DepthMean => "mean depth",
            Metric::DepthMin => "min depth",
            Metric::DepthMax => "max depth",
            Metric::Efficiency => "efficiency",
            Metric::SysEfficiency => "SysEfficiency, %",
            Metric::OptimumDistance => "above the optimum, %",
            Metric::OptimumBoundMs => "bound of mean completion of applications, ms",
        }
    }

    /// The key of `[figure]` without which it is not measured; None: it always is.
    pub fn needs(self) -> Option<&'static str> {
        match self {
            Metric::StretchMean | Metric::StretchMax => Some("alone"),
            Metric::LatencyP50
            | Metric::LatencyP95
            | Metric::LatencyP99
            | Metric::WaitMean
            | Metric::LagMax => Some("requests"),
            Metric::TargetKept500ms
            | Metric::TargetKept1s
            | Metric::ShareError
            | Metric::DepthMean
            | Metric::DepthMin
            | Metric::DepthMax => Some("promises"),
            Metric::OptimumDistance | Metric::OptimumBoundMs => Some("optimum"),
            _ => None,
        }
    }

    /// The name in scenarios and in JSON.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => unreachable!("a metric is written as its name"),
        }
    }
}
