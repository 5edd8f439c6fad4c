//! The transport between clients and forwarders, which both sides use.
//!
//! An [`Address`] names where a forwarder listens, and a [`Dialer`] connects to it. Over TCP a
//! client proves that it knows the shared [`Secret`] of the site. [`Spin`] decides whether a thread
//! looks again and again before it sleeps.

mod address;
mod dialer;
mod secret;
mod spin;

pub use address::{Address, Place};
pub use dialer::Dialer;
pub use secret::{Secret, SecretError, challenge, read_private};
pub use spin::Spin;
