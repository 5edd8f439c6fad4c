//! What carries a connection's bytes: a socket, or a link of libfabric that belongs to one.

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};
use tidegate_fabric::{Domain, Link, Provider};

/// Reports readiness in both directions.
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// A stream of bytes in both directions. No call on it blocks.
pub struct Stream {
    socket: Arc<OwnedFd>,
    provider: Option<Provider>,
    /// Present from when the socket is connected.
    link: OnceLock<Link>,
}

/// Descriptors that came on a Unix socket beside the bytes.
#[derive(Default)]
pub struct Beside {
    /// The last that came and was not taken.
    pub descriptor: Option<OwnedFd>,
    /// The last read ended where descriptors came, even if there was no number left for them.
    pub ended: bool,
}

impl Stream {
    /// Takes over a socket that is connected or about to be, and does not block.
    pub fn new(socket: OwnedFd, provider: Option<Provider>) -> Stream {
        Stream {
            socket: Arc::new(socket),
            provider,
            link: OnceLock::new(),
        }
    }

    /// The socket is connected: begins the link, if there is to be one. Returns a descriptor that
    /// is to be waited for as well.
    pub fn connected(&self) -> Result<Option<RawFd>, tidegate_fabric::Error> {
        let Some(provider) = self.provider else {
            return Ok(None);
        };
        let local = net::getsockname(&self.socket).ok();
        let local = local.and_then(|local| std::net::SocketAddr::try_from(local).ok());
        let domain = Domain::shared(provider, local.map(|local| local.ip()))?;
        let link = Link::begin(&domain, Arc::clone(&self.socket))?;
        Ok(self.link.get_or_init(|| link).queue())
    }

    /// The link, if there is one.
    pub fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Whether libfabric carries the bytes, from when it is connected.
    pub fn is_linked(&self) -> bool {
        self.provider.is_some()
    }

    /// Receives once into the pieces, in their order. 0 is the end.
    pub fn receive(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.provider {
            Some(_) => self.begun()?.read(pieces),
            None => Ok(rustix::io::readv(&self.socket, pieces)?),
        }
    }

    /// The same, and takes in descriptors that come with the bytes.
    pub fn receive_beside(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        beside: &mut Beside,
    ) -> io::Result<usize> {
        if self.is_linked() {
            return self.receive(pieces);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = net::recvmsg(&self.socket, pieces, &mut control, flags)?;
        beside.ended = received.flags.contains(ReturnFlags::CTRUNC);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                beside.ended = true;
                beside.descriptor = descriptors.last();
            }
        }
        Ok(received.bytes)
    }

    /// Sends what there is room for; a descriptor goes with the first byte. `more`: other bytes
    /// follow at once.
    pub fn send(
        &self,
        pieces: &[IoSlice<'_>],
        more: bool,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<usize> {
        if self.is_linked() {
            return self.begun()?.write(pieces);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        // A library must not end its program with SIGPIPE.
        let flags = match more {
            true => SendFlags::NOSIGNAL | SendFlags::MORE,
            false => SendFlags::NOSIGNAL,
        };
        let sent = retry_on_intr(|| net::sendmsg(&self.socket, pieces, &mut control, flags));
        Ok(sent?)
    }

    /// Whether the peer has what was sent, as far as that can be known.
    pub fn is_delivered(&self) -> bool {
        self.link().is_none_or(Link::is_delivered)
    }

    /// Ends it for both sides, in any thread.
    pub fn shutdown(&self) {
        if let Some(link) = self.link() {
            link.close();
        }
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Reports readiness of all its descriptors (edges) under `token`.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        self.each(|fd| registry.register(&mut SourceFd(&fd), token, BOTH))
    }

    /// Reports readiness of one more descriptor (edges), which belongs to it.
    pub fn register_also(registry: &Registry, token: Token, fd: RawFd) -> io::Result<()> {
        registry.register(&mut SourceFd(&fd), token, BOTH)
    }

    /// Reports nothing more.
    pub fn deregister(&self, registry: &Registry) {
        // The descriptors are closed next; that ends the registration whatever this says.
        let _ = self.each(|fd| registry.deregister(&mut SourceFd(&fd)));
    }

    /// Calls `what` with every descriptor that is to be waited for; the last error counts.
    fn each(&self, what: impl Fn(RawFd) -> io::Result<()>) -> io::Result<()> {
        let queue = self.link().and_then(Link::queue);
        let done = queue.map_or(Ok(()), &what);
        done.and(what(self.socket.as_raw_fd()))
    }

    fn begun(&self) -> io::Result<&Link> {
        self.link().ok_or_else(|| Errno::AGAIN.into())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// What a read of 100 bytes gives after `count` descriptors came with 3, and 4 bytes behind.
    fn read_with(count: usize) -> (usize, Stream, Beside) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let fds = vec![null.as_fd(); count];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let flags = SendFlags::empty();
        let sent = net::sendmsg(&theirs, &[IoSlice::new(b"abc")], &mut control, flags);
        assert_eq!(sent, Ok(3));
        assert_eq!((&theirs).write(b"defg").expect("there is room"), 4);
        let (stream, mut beside) = (Stream::new(ours.into(), None), Beside::default());
        let mut bytes = [0; 100];
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        let read = stream.receive_beside(pieces, &mut beside);
        (read.expect("it came"), stream, beside)
    }

    #[test]
    fn a_read_that_ended_at_descriptors_is_known() {
        for count in [1, 2, 9] {
            let (read, stream, mut beside) = read_with(count);
            assert_eq!((read, beside.ended), (3, true), "{count}");
            assert!(beside.descriptor.take().is_some());
            let mut bytes = [0; 100];
            let pieces = &mut [IoSliceMut::new(&mut bytes)];
            let read = stream.receive_beside(pieces, &mut beside);
            assert_eq!(read.expect("it came"), 4);
            assert!(!beside.ended && beside.descriptor.is_none());
        }
    }
}
