//! Tidegate in virtual time: the product's own forwarder and client cores in a simulated machine.
//! All chance comes from one seed.
//!
//! [`world`] runs loads through forwarders, over a network, to devices. [`metrics`] measures the
//! runs, and [`bounds`] computes how good they could be at best. [`faults`] is the fault test:
//! clients do random operations through forwarders that die, pause and return, over connections
//! that delay, stall and cut. The test checks every answer, and at the end the tree of files.
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
mod statistics;
pub mod training;
pub mod units;
pub mod workload;
pub mod world;
