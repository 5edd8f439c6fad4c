//! The forwarder daemon: sockets, storage and configuration around `tidegate_forward`.
//!
//! [`serve()`] is the daemon, [`Server`] the same within another program. One thread runs the
//! `forwarder_loop`, which alone has the forwarder's state; `connections` are served by that
//! thread and perhaps others, and the threads of [`storage`] do what blocks. [`seats`] are the
//! locks by which the forwarders of an export divide the files.

mod adapters;
pub mod backend;
pub mod calibrate;
pub mod clock;
pub mod config;
mod connections;
mod descriptors;
mod forwarder_loop;
mod identity;
pub mod seats;
mod serve;
mod start;
pub mod storage;

pub use forwarder_loop::Stop;
pub use identity::user_of;
pub use serve::{log_to_stderr, serve};
pub use start::{Running, Server, StartError};
/// The emulated devices' models, for programs that configure them.
pub use tidegate_device as device;
