//! Which request goes next: the I/O scheduler of Tidegate, for any host with a queue of requests.
//!
//! The crate knows no clock, thread, socket or file. The host says what happened with
//! [`Scheduler::handle`] and asks what to do with [`Scheduler::poll`]. It passes the time to both.
//! The same inputs give the same outputs, so a simulator and a file server run the same code.
//!
//! ```
//! use tidegate_sched::{
//!     AppId, Direction, FileId, Input, Options, Output, Request, RequestId, Scheduler, Time,
//! };
//!
//! let mut scheduler = Scheduler::new(&Options::for_policy("fifo")).unwrap();
//! let app = AppId::from_name("checkpoint");
//! let request = Request::new(RequestId(1), app, FileId(7), Direction::Read, 0, 4096);
//! scheduler.handle(Time(10), Input::Arrived(request)).unwrap();
//!
//! let mut batch = Vec::new();
//! assert_eq!(scheduler.poll(Time(10), &mut batch), Output::Dispatch);
//! assert_eq!(batch[0].id, RequestId(1));
//! // ... the host performs the batch, then reports every request in it:
//! scheduler.handle(Time(90), Input::Finished(RequestId(1))).unwrap();
//! assert_eq!(scheduler.poll(Time(90), &mut batch), Output::Idle);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod aging;
mod attained;
mod c_scan;
mod capacity;
mod cause;
mod climb;
mod cost;
mod depth;
mod elevator_queue;
mod endpoint_index;
mod epochs;
mod estimate;
mod fair;
mod flat_btree;
mod hash_table;
mod heap;
#[cfg(test)]
mod invariants;
mod later;
mod merge;
mod options;
mod options_error;
mod overlap;
pub mod policies;
mod policy;
mod policy_options;
mod predicted_runs;
mod prediction;
mod ranges;
mod requests;
mod runs;
mod same_target;
mod scheduler;
mod share;
mod tags;
#[cfg(test)]
mod test;
mod turn;
mod types;

pub use cause::Cause;
pub use cost::{AccessCost, CostModel, CostModelError};
pub use options::Options;
pub use options_error::OptionsError;
pub use policy::{Bound, PolicySpec};
pub use policy_options::{OptionKind, OptionSpec, OptionValue, PolicyOptions};
pub use predicted_runs::{Observed, Prediction};
pub use ranges::{Found, Ranges};
pub use scheduler::{Scheduler, Stats};
pub use share::{AppShare, Latency, RATE_MAX, Rate, RateError, Share, Shares, WEIGHT_MAX};
pub use types::{
    AppId, Direction, FileId, Input, Output, Rejected, Request, RequestId, ServiceReport, Time,
    mix64,
};
