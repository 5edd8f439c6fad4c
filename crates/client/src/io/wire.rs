//! What carries a connection's bytes: a socket, or a link of libfabric that belongs to one.

use super::arena::Arena;
use crate::wire::Op;
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    self, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};
use tidegate_fabric::{Domain, Link, Provider};

/// Most bytes that one read through a link gives.
const READ_MAX: usize = 64 << 10;

/// See the head of the file. It does not block.
pub(crate) struct Wire {
    socket: Arc<OwnedFd>,
    provider: Option<Provider>,
    /// Present from when the socket is connected.
    link: OnceLock<Link>,
}

impl Wire {
    /// Takes over a socket that is connected or about to be.
    pub(crate) fn new(socket: OwnedFd, provider: Option<Provider>) -> Wire {
        Wire {
            socket: Arc::new(socket),
            provider,
            link: OnceLock::new(),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The socket is connected: begins the link, if there is to be one. Returns a descriptor that
    /// is to be waited for as well.
    pub(crate) fn connected(&self) -> Result<Option<RawFd>, tidegate_fabric::Error> {
        let Some(provider) = self.provider else {
            return Ok(None);
        };
        let local = net::getsockname(&self.socket).ok();
        let local = local.and_then(|local| std::net::SocketAddr::try_from(local).ok());
        let domain = Domain::shared(provider, local.map(|local| local.ip()))?;
        let link = Link::begin(&domain, Arc::clone(&self.socket))?;
        let link = self.link.get_or_init(|| link);
        Ok(link.queue())
    }

    /// The link, if there is one.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Sends what there is room for. A descriptor goes with the first byte.
    pub(crate) fn send(
        &self,
        pieces: &[IoSlice<'_>],
        fd: Option<&OwnedFd>,
    ) -> Result<usize, Errno> {
        if self.provider.is_some() {
            let link = self.link().ok_or(Errno::AGAIN)?;
            return link.write(pieces).map_err(|error| errno_of(&error));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd.as_fd()]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            // NOSIGNAL: a library must not end its program with SIGPIPE.
            match net::sendmsg(&self.socket, pieces, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// What offers the arena: the operation, and whether its descriptor goes with it.
    pub(crate) fn offer(&self, arena: &Arc<Arena>) -> Option<(Op, bool)> {
        let bytes = arena.bytes();
        let Some(link) = self.link() else {
            return self
                .provider
                .is_none()
                .then_some((Op::ShareMemory { bytes }, true));
        };
        // SAFETY: the link keeps the arena, whose mapping does not move. Pieces that the forwarder
        // works on are nobody else's until it has replied, or for ever if it does not.
        let made =
            unsafe { link.offer(arena.start(), bytes as usize, Box::new(Arc::clone(arena))) };
        match made {
            Ok(place) => {
                let (address, key) = (place.address, place.key);
                let op = Op::RegisterMemory {
                    bytes,
                    address,
                    key,
                };
                Some((op, false))
            }
            Err(error) => {
                tracing::info!(%error, "payload goes in messages");
                None
            }
        }
    }

    /// Whether the peer has what was sent, as far as that can be known.
    pub(crate) fn is_delivered(&self) -> bool {
        self.link().is_none_or(Link::is_delivered)
    }

    /// Ends it for both sides, in any thread.
    pub(crate) fn shutdown(&self) {
        if let Some(link) = self.link() {
            link.close();
        }
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Where bytes come from.
pub(crate) trait Source {
    /// Receives once; the first so many bytes of `into` are filled then. 0 is the end.
    fn receive(&self, into: &mut [MaybeUninit<u8>]) -> Result<usize, Errno>;
}

impl<S: AsFd> Source for S {
    fn receive(&self, into: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
        let ((filled, _), _) = net::recv(self, into, RecvFlags::empty())?;
        Ok(filled.len())
    }
}

impl Source for Wire {
    fn receive(&self, into: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
        if self.provider.is_none() {
            return self.socket().receive(into);
        }
        let link = self.link().ok_or(Errno::AGAIN)?;
        let room = READ_MAX.min(into.len());
        let into = &mut into[..room];
        into.fill(MaybeUninit::new(0));
        // SAFETY: they were filled just now.
        let into = unsafe { std::slice::from_raw_parts_mut(into.as_mut_ptr().cast(), into.len()) };
        let read = link.read(&mut [IoSliceMut::new(into)]);
        read.map_err(|error| {
            if error.kind() != ErrorKind::WouldBlock {
                tracing::debug!(%error, "the link is broken");
            }
            errno_of(&error)
        })
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    match error.kind() {
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::BrokenPipe => Errno::PIPE,
        _ => Errno::from_io_error(error).unwrap_or(Errno::COMM),
    }
}
