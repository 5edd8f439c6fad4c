//! The protocol between a Tidegate client and a forwarder: its messages and their encoding.
//!
//! The client sends a [`Request`], and the forwarder answers it with a [`Reply`]. [`frame`] encodes
//! each as a frame, and decodes frames. A frame has a little-endian header of 64 bytes, a body (the
//! caller, hints and arguments of a request, or the outcome of a reply) and, for reads and writes,
//! a payload, which this crate never touches. The decoder checks every field before it uses it.
//! [`layout`] says which seat is in charge of which byte of a file. A [`Grant`] says what a peer
//! that has proved a secret may do.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]
extern crate alloc;

#[macro_use]
mod message;
pub mod frame;
mod grant;
pub mod layout;
mod limits;
mod plain;

pub use grant::{GRANT_MAX, Grant, Role};
pub use layout::Layout;
pub use limits::{Anonymous, GrantError, Ids, Limits, NOBODY, TICKET_GROUPS};
pub use message::*;
pub use plain::is_plain;
