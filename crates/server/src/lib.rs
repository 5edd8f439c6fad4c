//! The forwarder daemon: sockets, storage and configuration around `tidegate_forward`.
//!
//! [`serve()`] is the daemon, [`Server`] the same within another program. One thread, the
//! [`reactor`], has the sockets and the forwarder's core; the threads of [`storage`] do what
//! blocks. [`seats`] are the locks by which the forwarders of an export divide the files.

pub mod backend;
pub mod calibrate;
pub mod clock;
pub mod config;
mod descriptors;
mod gossip;
mod identity;
mod kept;
pub mod reactor;
pub mod seats;
mod serve;
mod start;
pub mod storage;

pub use identity::user_of;
pub use serve::{log_to_stderr, serve};
pub use start::{Running, Server, StartError};
/// The emulated devices' models, for programs that configure them.
pub use tidegate_device as device;
