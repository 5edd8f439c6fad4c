//! The metrics of a run: names, words for reports, and units.

use serde::{Deserialize, Serialize};

/// Makes the metrics of rows `NAME = "words and unit for reports"`.
macro_rules! metrics {
    ($(#[$about:meta])* pub enum Metric {
        $($(#[$meaning:meta])* $name:ident = $words:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Metric {
            $($(#[$meaning])* $name,)*
        }

        impl Metric {
            /// All of them.
            pub const ALL: &[Metric] = &[$(Metric::$name),*];

            /// For reports: words and unit.
            pub fn words(self) -> &'static str {
                match self {
                    $(Metric::$name => $words,)*
                }
            }
        }
    };
}

metrics! {
    /// What can be measured of a run, under the field's names.
    pub enum Metric {
        /// Mean time from issue to completion of an operation, ms.
        CompletionMean = "mean completion, ms",
        /// The longest of them, ms.
        CompletionMax = "max completion, ms",
        /// Median of them, ms.
        CompletionP50 = "p50 completion, ms",
        /// 95th percentile, ms.
        CompletionP95 = "p95 completion, ms",
        /// 99th percentile, ms.
        CompletionP99 = "p99 completion, ms",
        /// Mean end of an application, counted from the start of the run, ms.
        ApplicationCompletionMean = "mean completion of applications, ms",
        /// Time until everything is done, ms.
        Makespan = "makespan, ms",
        /// Bytes of all applications over the makespan, MB/s.
        Bandwidth = "bandwidth, MB/s",
        /// Bytes that devices moved, those of the background too, over the makespan, MB/s.
        DeviceBandwidth = "bandwidth of devices, MB/s",
        /// Time until an access's last forwarder is done, divided by that of its first one; mean.
        LastToFirst = "last/first forwarder",
        /// Mean time until an access's first forwarder is done, ms.
        FirstForwarder = "first forwarder done, ms",
        /// Share of the time of marked operations in which none of their application's accesses is
        /// under way: the shuffle, and waiting for each other; percent.
        ShufflePercent = "shuffle, %",
        /// Share of the makespan in which devices are busy; mean over forwarders, percent.
        Utilisation = "utilisation, %",
        /// Calls to the back ends.
        BackEndCalls = "back-end calls",
        /// Requests in a call.
        AggregationRequests = "aggregation, requests",
        /// KiB in a call.
        AggregationKib = "aggregation, KiB",
        /// Jain's index over the bandwidths of the applications.
        Jain = "Jain's index",
        /// Time with contention over time alone; mean over applications.
        StretchMean = "mean stretch",
        /// The largest of them.
        StretchMax = "max stretch",
        /// Sum of waiting times, each times the processes that wait, hours.
        WeightedIoTime = "weighted I/O time, h",
        /// Events simulated.
        Events = "events",
        /// Median of requests' time from arrival at the forwarder to completion, ms.
        LatencyP50 = "p50 latency of requests, ms",
        /// 95th percentile, ms.
        LatencyP95 = "p95 latency of requests, ms",
        /// 99th percentile, ms.
        LatencyP99 = "p99 latency of requests, ms",
        /// Mean time of requests from arrival at the forwarder to dispatch, ms.
        WaitMean = "mean wait of requests, ms",
        /// The largest lag of two applications that have requests waiting, ms of device time.
        LagMax = "max lag, ms of device time",
        /// Share of windows of 500 ms in which an application's latencies kept their target; the
        /// smallest over the applications that have one, percent.
        #[serde(rename = "target_kept_500ms")]
        TargetKept500ms = "windows of 500 ms within the target, %",
        /// The same in windows of 1 s, percent.
        #[serde(rename = "target_kept_1s")]
        TargetKept1s = "windows of 1 s within the target, %",
        /// The largest difference between an application's part of the service and the part that
        /// its weight gives it, in windows of 10 s in which it had an access under way all the
        /// time, percentage points.
        ShareError = "share error, percentage points",
        /// Calls that forwarders let run at once: mean over time and forwarders.
        DepthMean = "mean depth",
        /// The smallest of them.
        DepthMin = "min depth",
        /// The largest of them.
        DepthMax = "max depth",
        /// Bandwidth over that of the first policy.
        Efficiency = "efficiency",
        /// Share of the processes' time in which no I/O of their application is under way, percent.
        SysEfficiency = "SysEfficiency, %",
        /// Mean completion of applications over its lower bound, percent above it.
        OptimumDistance = "above the optimum, %",
        /// That lower bound, of the load as the first policy served it, ms.
        OptimumBoundMs = "bound of mean completion of applications, ms",
    }
}

impl Metric {
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
