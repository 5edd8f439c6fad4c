//! What the transport knows of the other end of a connection.

use alloc::string::String;
use tidegate_wire::{Caller, Grant};

/// What the transport knows of the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// User and groups from the socket's credentials, from when the peer connected. None over TCP,
    /// where the hello states them.
    pub credentials: Option<Caller>,
    /// Why a peer whose credentials say uid 0 is not root here, such as the root of a container.
    pub powerless: Option<&'static str>,
    /// The address for logs, such as "unix:pid 17" or "tcp:10.0.0.7:4000".
    pub address: String,
    /// What the peer has proved that it may do, by a secret. None on Unix sockets, where no secret
    /// is asked, and until [`Input::Proved`](crate::Input::Proved).
    pub grant: Option<Grant>,
}
