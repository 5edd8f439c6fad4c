//! Tidegate in virtual time: the product's own forwarder and client cores in a simulated machine,
//! everything drawn from one seed.
//!
//! [`world`] runs loads through forwarders, over a network, to devices; [`metrics`] says what came
//! of it, [`bounds`] what could have come of it at best, and [`song`] what a paper's formulas say.
//! [`faults`] is the fault test: clients do random operations through forwarders that die, pause
//! and return, over connections that delay, stall and cut, and every answer and the resulting tree
//! are checked against what must be.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod cost;
pub mod events;
pub mod faults;
pub mod library;
pub mod metrics;
pub mod replay;
pub mod result;
pub mod rng;
pub mod runner;
pub mod scenario;
pub mod song;
pub mod training;
pub mod units;
pub mod workload;
pub mod world;
