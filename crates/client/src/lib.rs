//! The Tidegate client: one client of a set of forwarders, for many threads.
//!
//! [`core`] decides everything and does no I/O: it splits operations over the seats, keeps
//! sessions, finds stand-ins, re-opens and replays. [`Client`] puts sockets and threads around it,
//! [`fs`] adds paths, and `include/tidegate.h` is the same for C. The wire types are re-exported so
//! that users of this crate need no other.

pub mod api;
mod application;
mod cancel;
pub mod capi;
pub mod collective;
pub mod core;
mod errno;
pub mod fs;
mod io;
mod list;
mod options;
pub mod shortcut;

pub use self::core::Application;
pub use api::{
    Answer, CancelToken, Client, ConnectError, Context, Data, Errno, OpenFile, Options, Room,
    Started, app_id,
};
pub use application::{application_name_from_env, job_from_env, project_from_env};
pub use bytes::Bytes;
pub use collective::Collective;
pub use options::Guest;
pub use tidegate_wire as wire;
