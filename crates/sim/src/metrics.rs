//! The metrics of a run, under the names that the field uses.
//!
//! [`Run`] measures finished operations, [`Requests`] takes requests one by one as they finish, and
//! [`Lag`], [`Windows`] and [`Promises`] follow a run while it happens. Times are nanoseconds and
//! counts are integers until a caller asks for a ratio or a mean. Those use only `+ - * /` on
//! floats, in a fixed order, so that a result is the same on every machine.
//!
//! | name | here |
//! |---|---|
//! | completion, flow time, makespan | [`Run::completion`], [`Run::flow`], [`Run::makespan_ns`] |
//! | the same per application | [`Run::application_completion`], [`Run::application_flow`] |
//! | stretch or dilation, I/O slowdown | [`Run::stretch`], [`Run::io_slowdown`] |
//! | bandwidth, weighted I/O time | [`Run::bandwidth`], [`Run::weighted_io_ns`] |
//! | SysEfficiency, dilation of periodic applications | [`sys_efficiency`], [`dilation`] |
//! | Jain's index, lag | [`jain`], [`Run::jain`], [`Lag`] |
//! | p50, p95, p99 | [`Quantiles`] |
//! | utilisation, back-end calls, aggregation size | [`Requests`] |
//! | last to first forwarder | [`Requests::last_to_first`] |
//! | share of windows within a latency bound | [`Windows`], [`Promises::kept`] |
//! | share error | [`Promises::share_error`] |

pub mod efficiency;
pub mod fairness;
mod name;
pub mod operations;
pub mod promises;
pub mod quantiles;
pub mod requests;
pub mod windows;

pub use efficiency::{Progress, dilation, sys_efficiency};
pub use fairness::{Lag, jain};
pub use name::Metric;
pub use operations::{Application, Operation, Run};
pub use promises::{Promised, Promises};
pub use quantiles::Quantiles;
pub use requests::{Requests, Served};
pub use windows::Windows;

/// One number of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// What is measured, in the field's words.
    pub name: &'static str,
    /// The number.
    pub value: f64,
    /// Its unit; empty for a ratio or a count.
    pub unit: &'static str,
}

impl Measure {
    /// A ratio or a count.
    pub(crate) fn plain(name: &'static str, value: f64) -> Measure {
        Measure {
            name,
            value,
            unit: "",
        }
    }

    /// A time, given in nanoseconds and reported in seconds.
    pub(crate) fn time(name: &'static str, ns: f64) -> Measure {
        Measure {
            name,
            value: ns / NS_PER_S,
            unit: "s",
        }
    }
}

/// Nanoseconds in a second.
pub(crate) const NS_PER_S: f64 = 1e9;

/// Mean and maximum of some times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many there are.
    pub count: u64,
    /// Their sum, in nanoseconds.
    pub sum_ns: u128,
    /// The longest, in nanoseconds; 0 when there is none.
    pub max_ns: u64,
}

impl Times {
    /// Counts one more.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The mean in nanoseconds; 0 when there is none.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum_ns as f64 / self.count as f64
    }
}

impl FromIterator<u64> for Times {
    fn from_iter<I: IntoIterator<Item = u64>>(times: I) -> Times {
        let mut all = Times::default();
        for ns in times {
            all.add(ns);
        }
        all
    }
}

/// Mean and maximum of some ratios.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratios {
    /// How many there are.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The largest; 0 when there is none.
    pub max: f64,
}

impl Ratios {
    /// The mean; 0 when there is none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum / self.count as f64
    }
}

impl FromIterator<f64> for Ratios {
    fn from_iter<I: IntoIterator<Item = f64>>(ratios: I) -> Ratios {
        let mut all = Ratios::default();
        for ratio in ratios {
            all.count += 1;
            all.sum += ratio;
            if ratio > all.max {
                all.max = ratio;
            }
        }
        all
    }
}

/// The quotient, or 0 when there is nothing to divide by.
pub(crate) fn ratio(dividend: f64, divisor: f64) -> f64 {
    if divisor == 0.0 {
        return 0.0;
    }
    dividend / divisor
}
