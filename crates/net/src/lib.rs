//! The transport between clients and forwarders, which both sides use.
//!
//! An [`Address`] names where a forwarder listens: it binds a [`Listener`] there, and a client's
//! [`Dialer`] connects to it. Over TCP a client proves that it knows the shared [`Secret`] of the
//! site. A [`Stream`] carries the bytes of a connection, of which a [`FrameReader`] makes frames;
//! in the other direction, frames wait in an [`Outbox`]. A thread waits for all of its connections
//! in a [`Poller`]; [`Spin`] decides whether it looks again and again before it sleeps. Threads
//! hand messages to each other through a [`mailbox()`].

mod address;
mod dialer;
mod frames;
mod listener;
mod mailbox;
mod peer;
mod poller;
mod secret;
mod stream;

pub use address::{Address, Place};
pub use dialer::Dialer;
pub use frames::{FrameReader, Outbox, Step};
pub use listener::{ListenError, Listener, Origin};
pub use mailbox::{Incoming, Outgoing, Waker, mailbox};
pub use peer::Credentials;
pub use poller::{Poller, Spin};
pub use secret::{Secret, SecretError, challenge, read_private};
pub use stream::{Beside, Stream};
