//! Tidegate in virtual time: the product's own forwarder and client cores around a simulated
//! network, a model file system, and faults, all drawn from one seed.
//!
//! So far this holds the fault test ([`faults`]): clients do random operations through forwarders
//! that die, pause and return, over connections that delay, stall and cut, and every answer and
//! the resulting tree are checked against what must be.
#![forbid(unsafe_code)]

pub mod events;
pub mod faults;
pub mod rng;
pub mod units;
pub mod workload;
pub mod world;
