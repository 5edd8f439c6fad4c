//! The metrics of a run, under the names that the field uses.
//!
//! [`Quantiles`], [`Lag`], [`Windows`] and [`Promises`] follow a run while it happens. Times are
//! nanoseconds and counts are integers until a caller asks for a ratio or a mean. Those use only
//! `+ - * /` on floats, in a fixed order, so that a result is the same on every machine.

pub mod efficiency;
pub mod fairness;
mod name;
pub mod promises;
pub mod quantiles;
pub mod windows;

pub use efficiency::{Progress, sys_efficiency};
pub use fairness::{Lag, jain};
pub use name::Metric;
pub use promises::{Promised, Promises};
pub use quantiles::Quantiles;
pub use windows::Windows;

/// The quotient, or 0 when there is nothing to divide by.
pub(crate) fn ratio(dividend: f64, divisor: f64) -> f64 {
    if divisor == 0.0 {
        return 0.0;
    }
    dividend / divisor
}
