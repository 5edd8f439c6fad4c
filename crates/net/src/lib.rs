//! The transport between clients and forwarders, which both sides use.
//!
//! An [`Address`] names where a forwarder listens: it binds a [`Listener`] there, and a
//! client's [`Dialer`] connects to it. Between nodes both ends first prove by a [`Secret`] who
//! they are, and agree on the keys of a [`Channel`] ([`Initiator`], [`accept`]). A [`Stream`]
//! carries the bytes of a connection, of which a [`FrameReader`] makes frames; in the other
//! direction, frames wait in an [`Outbox`]. A thread waits for all of its connections in a
//! [`Poller`]; [`Spin`] decides whether it looks again and again before it sleeps. Threads hand
//! messages to each other through a [`mailbox()`].

mod address;
mod channel;
mod dialer;
mod frames;
mod handshake;
mod listener;
mod mailbox;
pub mod munge;
mod peer;
mod poller;
mod power;
mod secret;
mod spare;
mod stream;
pub mod witness;

pub use address::{Address, Place};
pub use channel::{Channel, Encryption};
pub use dialer::Dialer;
pub use frames::{FrameReader, Outbox, Step};
pub use handshake::{
    Accepted, Asking, Carried, Confirmation, Finished, Greeting, HandshakeError, Initiator,
    Refusal, accept, give_ticket,
};
pub use listener::{ListenError, Listener, Origin};
pub use mailbox::{Incoming, Outgoing, Waker, mailbox};
pub use peer::{Credentials, Question};
pub use poller::{Poller, Spin};
pub use secret::{Secret, SecretError, SiteId, SiteSecret, random_text, read_private};
pub use stream::{Beside, Stream};
pub use tidegate_fabric::{RawBytes, RawRoom};
