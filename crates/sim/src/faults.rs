//! The fault test. Programs on several clients work through forwarders that the test kills, pauses
//! and starts again, over connections that it delays, stalls and cuts. The test compares every
//! answer with a model, and at the end the files with all models together.
//!
//! `TIDEGATE_SEED=17 cargo test -p tidegate-sim --test faults` replays one seed.

mod attr_cache;
mod client;
mod clock;
mod cluster;
mod keeper;
mod network;
mod plan;
mod process;
mod script;
mod script_answers;
mod script_asks;
mod script_loss;
mod seats;
mod sharing;
mod verdict;
mod world;

pub use plan::{Cluster, Fault, LoanMutant, Mutant, Plan};
pub use world::{Report, run};
