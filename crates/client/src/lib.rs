//! The Tidegate client: one client of a set of forwarders, for many threads.
//!
//! [`core`] decides everything and does no I/O: it splits operations over the seats, keeps sessions,
//! finds stand-ins, re-opens and replays. [`Client`] puts sockets and threads around it. The wire
//! types are re-exported so that users of this crate need no other.
pub mod api;
pub mod core;

pub use api::{Answer, CancelToken, Client, ConnectError, Context, Data, Errno, Options};
pub use bytes::Bytes;
pub use tidegate_wire as wire;
