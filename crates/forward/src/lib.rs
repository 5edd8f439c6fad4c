//! One forwarder without I/O: sessions, seats, reply tables, credits, slots, locks, scheduler.
//!
//! The host (the daemon in `server`, the simulated world in `sim`) tells a [`Forwarder`] what
//! happened with [`Forwarder::handle`] and does what [`Forwarder::poll`] asks, until it asks for
//! nothing more. Time comes in as a value; there is no clock, thread, socket or file in here.
//! Operations on names and attributes are carried out by [`effect`] over the host's [`Files`],
//! so that the replay of an operation is decided by the same code everywhere.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]
extern crate alloc;
#[macro_use]
extern crate tidegate_wire;
#[cfg(any(test, feature = "model"))]
extern crate std;

mod advisory_locks;
mod back_end_files;
mod bytes;
pub mod effect;
mod forwarder;
mod host;
pub mod lease;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod reply_table;
mod result;
pub mod share_rules;
#[cfg(test)]
mod tests;

pub use back_end_files::{Access, Errno, Files};
pub use forwarder::Forwarder;
pub use host::*;
pub use reply_table::{
    CLIENTS_MAX, ENTRIES_BYTES, REPLY_SLOTS, ReplyRecord, ReplySlotState, SEGMENT_BYTES,
    SEGMENT_CLIENTS, SEGMENTS_MAX, SPARE_AT, SeatTable, table_bytes, used_ranges,
};
