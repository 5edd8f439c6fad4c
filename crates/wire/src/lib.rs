//! The bytes between a Tidegate client and a forwarder.
//!
//! A frame is a fixed little-endian [`Header`](frame) of 64 bytes, a body (caller, hints,
//! arguments) and, for data, a payload that this crate never touches. [`Request`] and [`Reply`] are
//! what the two sides mean; [`frame`] turns them into bytes and back and trusts nothing that it
//! reads. [`layout`] says which seat is in charge of which byte.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]
extern crate alloc;

#[macro_use]
mod message;
pub mod frame;
pub mod layout;

pub use layout::Layout;
pub use message::*;
