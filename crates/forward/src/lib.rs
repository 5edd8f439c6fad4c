//! The decisions of one forwarder, without its I/O: sessions, seats, reply tables, credits, slots,
//! locks, scheduling.
//!
//! A host does the I/O: the daemon in `server`, or the simulated world in `sim`. The host tells a
//! [`Forwarder`] what happened ([`Forwarder::handle`]), and does what the forwarder asks for
//! ([`Forwarder::poll`]) until it asks for nothing more. The host passes the time in as a value;
//! this crate has no clock, thread, socket or file. [`effect`] executes operations on names and
//! attributes over the host's [`Files`], so every host decides in the same way what the replay of
//! an operation does.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]
extern crate alloc;
#[macro_use]
extern crate tidegate_wire;
#[cfg(any(test, feature = "model"))]
extern crate std;

mod admission_queues;
mod advisory_locks;
mod back_end_files;
pub mod effect;
mod forwarder;
mod host;
pub mod lease;
#[cfg(any(test, feature = "model"))]
pub mod model;
#[cfg(any(test, feature = "model"))]
pub mod model_jobs;
mod peer;
mod printable;
mod record_bytes;
mod reply_table;
pub mod share_rules;
#[cfg(test)]
mod tests;

pub use admission_queues::{AdmissionQueues, Admits};
pub use back_end_files::{Access, Errno, Files};
pub use forwarder::{ArrivalNumber, Forwarder, Queue, is_scheduled};
pub use host::*;
pub use peer::Peer;
pub use printable::Printable;
pub use reply_table::{
    CLIENTS_MAX, ENTRIES_BYTES, REPLY_SLOTS, ReplyRecord, ReplySlotState, SEGMENT_BYTES,
    SEGMENT_CLIENTS, SEGMENTS_MAX, SPARE_AT, SeatTable, table_bytes, used_ranges,
};
