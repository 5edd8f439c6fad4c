//! The stream of bytes of a connection: a socket, or a libfabric link that was set up over one.

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
    /// Present once the socket is connected.
    link: OnceLock<Link>,
}

/// File descriptors that the peer passed on a Unix socket together with the bytes.
#[derive(Default)]
pub struct Beside {
    /// The last descriptor that arrived and that the caller has not taken.
    pub descriptor: Option<OwnedFd>,
    /// Whether the last read ended at a message with descriptors, even if this process had no
    /// descriptor number left for them.
    pub ended: bool,
}

impl Stream {
    /// Takes over a nonblocking socket that is connected or about to be.
    pub fn new(socket: OwnedFd, provider: Option<Provider>) -> Stream {
        Stream {
            socket: Arc::new(socket),
            provider,
            link: OnceLock::new(),
        }
    }

    /// Sets up the libfabric link, if there is to be one, now that the socket is connected. Returns
    /// a further descriptor that the caller must watch.
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

    /// Whether libfabric carries the bytes once the stream is connected.
    pub fn is_linked(&self) -> bool {
        self.provider.is_some()
    }

    /// Receives once into the pieces, in their order. Returns the number of bytes; 0 is the end of
    /// the stream.
    pub fn receive(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.provider {
            Some(_) => self.begun()?.read(pieces),
            None => Ok(rustix::io::readv(&self.socket, pieces)?),
        }
    }

    /// Like [`Stream::receive`], and takes in descriptors that the peer passed with the bytes.
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

    /// Sends as many bytes as the stream takes now; `descriptor` is passed with the first byte.
    /// `more`: further bytes follow at once.
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

    /// Whether the peer has received everything that was sent, as far as this side can know.
    pub fn is_delivered(&self) -> bool {
        self.link().is_none_or(Link::is_delivered)
    }

    /// Ends the stream for both sides. Any thread may call this.
    pub fn shutdown(&self) {
        if let Some(link) = self.link() {
            link.close();
        }
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Watches all descriptors of the stream, edge triggered; `registry` reports them as `token`.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        self.each(|fd| registry.register(&mut SourceFd(&fd), token, BOTH))
    }

    /// Watches a further descriptor that belongs to the stream, edge triggered, as `token`.
    pub fn register_also(registry: &Registry, token: Token, fd: RawFd) -> io::Result<()> {
        registry.register(&mut SourceFd(&fd), token, BOTH)
    }

    /// Stops watching the stream's descriptors.
    pub fn deregister(&self, registry: &Registry) {
        // The descriptors are closed next; that ends the registration whatever this says.
        let _ = self.each(|fd| registry.deregister(&mut SourceFd(&fd)));
    }

    /// Calls `what` with every descriptor of the stream that needs watching; returns the last
    /// error.
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
