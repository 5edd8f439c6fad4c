//! The Tidegate client: one client of a set of forwarders, for many threads.
//!
//! The code has four parts, and each uses only those before it. [`core`] decides everything and
//! does no I/O: it splits operations over the seats, keeps sessions, finds stand-ins, re-opens
//! files and repeats requests. `driver` gives the core its sockets, threads and clock. [`Client`]
//! (in [`api`]) offers blocking calls by handle, and [`fs`] by path. [`capi`] offers the same to C,
//! declared in `include/tidegate.h`. The wire types are re-exported so that users of this crate
//! need no other.

pub mod api;
mod application;
mod arena;
pub mod capi;
pub mod collective;
pub mod core;
mod driver;
pub mod fs;
mod fuse_mounts;
pub mod list;
mod munge;
pub mod opened;
mod options;
mod payload;
pub mod shortcut;
mod signals;
mod ticket;

pub use self::core::{Application, ClockSeen, Told};
pub use api::{
    Answer, CancelToken, Client, ConnectError, Context, Data, Errno, Invalidates, OpenFile,
    Options, Pending, Room,
};
pub use application::{
    app_id, application_name_from_env, job_from_env, job_name_from_env, project_from_env,
};
pub use bytes::Bytes;
pub use collective::Collective;
pub use fuse_mounts::{FuseMount, fuse_mounts, fuse_mounts_in};
pub use munge::Munge;
pub use options::EmbeddedOptions;
pub use payload::Payload;
pub use ticket::ticket_in;
pub use tidegate_net::{Encryption, RawBytes, RawRoom};
pub use tidegate_wire as wire;
