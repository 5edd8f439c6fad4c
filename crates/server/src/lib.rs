//! The forwarder daemon: sockets, storage and configuration around the state machine of
//! `tidegate_forward`, which does no I/O itself.
//!
//! [`serve()`] runs the daemon. [`Server`] runs the same forwarder within another program. One
//! thread runs the `forwarder_loop`, which alone owns the forwarder's state. That thread serves
//! `connections` of clients, together with further threads if the configuration asks for them. The
//! threads of [`storage`] execute calls that block. Through [`seats`] the forwarders of an export
//! agree which of them serves which part of the files.

mod acting;
mod adapters;
pub mod backend;
pub mod calibrate;
pub mod clock;
pub mod config;
mod connections;
mod descriptors;
mod forwarder_loop;
mod identity;
pub mod kernel;
mod lock;
mod node_memory;
mod pid_file;
mod rights;
mod sandbox;
pub mod seats;
mod serve;
mod short_turns;
mod start;
pub mod storage;
mod thread_rights;

pub use descriptors::open_files_lack;
pub use forwarder_loop::Stop;
pub use identity::user_of;
pub use pid_file::PidFile;
pub use sandbox::confine_mount;
pub use serve::{log_to_stderr, serve};
pub use start::{Running, Server, StartError, check_config};
/// What forwarders keep for an export in its hidden folder beside their seats, as they read it at
/// their start.
pub mod kept {
    pub use crate::adapters::kept::{Texts, export_id, forwarders};
}
/// What forwarders tell each other that they have given applications, as files say it.
pub mod reports {
    pub use crate::adapters::gossip::{Heard, file_of};
}
/// Secrets of a site, for programs that make them.
pub mod secret {
    pub use tidegate_net::{Secret, SecretError, SiteSecret, random_text};
}
/// The models of the emulated devices, for programs that configure them.
pub use tidegate_device as device;
/// Which characters logs show as they are.
pub use tidegate_wire::is_plain;
