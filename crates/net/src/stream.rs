//! The stream of bytes of a connection: a socket, or a libfabric link that was set up over one.
//! After a handshake the bytes go through a channel.

use crate::channel::Channel;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_fabric::{Domain, Link, Provider, RawBytes};

/// Reports readiness in both directions.
const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// Number of events in a row that report room for bytes, while there is nothing to send, after
/// which room is not watched any more.
const ROOM_IN_VAIN: u8 = 16;
/// Room for bytes is not watched.
const UNWATCHED: u8 = u8::MAX;
/// A send found no room, and room is not watched yet.
const WANTED: u8 = u8::MAX - 1;

/// A stream of bytes in both directions. No call on it blocks.
///
/// A Unix socket reports room for bytes each time the peer has read some. So a poller watches a
/// socket for room only from when a send has found none ([`Stream::watch_room`]) until room has
/// several times been reported in vain ([`Stream::had_room`]).
pub struct Stream {
    /// [`UNWATCHED`], [`WANTED`], or how often in a row room was reported in vain.
    room: AtomicU8,
    socket: Arc<OwnedFd>,
    provider: Option<Provider>,
    /// Present once the socket is connected.
    link: OnceLock<Link>,
    /// Present once a handshake has ended, where it agreed on one.
    channel: OnceLock<Channel>,
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
            room: AtomicU8::new(0),
            socket: Arc::new(socket),
            provider,
            link: OnceLock::new(),
            channel: OnceLock::new(),
        }
    }

    /// From now on all bytes go through this channel. Called once, while no thread sends.
    pub fn protect(&self, channel: Channel) {
        let set = self.channel.set(channel);
        assert!(set.is_ok(), "a stream has one handshake");
    }

    /// Whether bytes go through a channel.
    pub fn is_protected(&self) -> bool {
        self.channel.get().is_some()
    }

    /// Whether a record has begun to arrive and has not arrived whole, where bytes go through a
    /// channel.
    pub fn is_amid_record(&self) -> bool {
        self.channel.get().is_some_and(Channel::is_amid_record)
    }

    /// Whether another receive may find bytes or the end of the stream after one that found `count`
    /// bytes where there was room for `room`.
    pub fn may_have_more(&self, count: usize, room: usize) -> bool {
        match self.channel.get() {
            Some(channel) => channel.has_more(),
            None => count == room,
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
        match self.channel.get() {
            Some(channel) => channel.receive(pieces, |into| self.receive_plain(into)),
            None => self.receive_plain(pieces),
        }
    }

    fn receive_plain(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
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
        if self.is_linked() || self.is_protected() {
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
    /// `more`: further bytes follow at once. After `WouldBlock` the next call must begin with the
    /// same bytes.
    pub fn send(
        &self,
        pieces: &[RawBytes<'_>],
        more: bool,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<usize> {
        match self.channel.get() {
            Some(channel) => {
                let write = |records: &[u8]| self.send_plain(&[records.into()], more, None);
                channel.send(pieces, write)
            }
            None => self.send_plain(pieces, more, descriptor),
        }
    }

    /// Sends bytes on a protected stream that the caller does not need any more; see
    /// [`Channel::send_in_place`].
    pub fn send_in_place(&self, piece: &mut [u8]) -> io::Result<usize> {
        let channel = self.channel.get();
        let channel = channel.ok_or_else(|| io::Error::from(ErrorKind::Unsupported))?;
        let write = |records: &[IoSlice<'_>]| {
            let records = RawBytes::of_io_slices(records);
            self.send_plain(records, false, None)
        };
        channel.send_in_place(piece, write)
    }

    fn send_plain(
        &self,
        pieces: &[RawBytes<'_>],
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
        // SAFETY: they go to the kernel.
        let pieces = unsafe { RawBytes::io_slices(pieces) };
        let sent = retry_on_intr(|| net::sendmsg(&self.socket, pieces, &mut control, flags));
        if sent == Err(Errno::AGAIN) {
            self.found_no_room();
        }
        Ok(sent?)
    }

    /// A send has found no room: for who sends past [`Stream::send`], which notes that by itself.
    /// One thread sends at a time.
    pub fn found_no_room(&self) {
        let is_watched = self.room.load(Ordering::Relaxed) < WANTED;
        let room = if is_watched { 0 } else { WANTED };
        self.room.store(room, Ordering::Relaxed);
    }

    /// Whether a send has found no room, and room is not watched yet: the thread that has the
    /// poller must call [`Stream::watch_room`].
    pub fn wants_room(&self) -> bool {
        self.room.load(Ordering::Relaxed) == WANTED
    }

    /// Before a wait: watches for room if a send has found none. The next event reports room that
    /// there is already.
    pub fn watch_room(&self, registry: &Registry, token: Token) -> io::Result<()> {
        if !self.wants_room() {
            return Ok(());
        }
        self.room.store(0, Ordering::Relaxed);
        registry.reregister(&mut SourceFd(&self.socket.as_raw_fd()), token, BOTH)
    }

    /// An event has reported room, there is nothing to send, and no other thread sends meanwhile:
    /// after some such events room is not watched any more.
    pub fn had_room(&self, registry: &Registry, token: Token) {
        let room = self.room.load(Ordering::Relaxed);
        if self.is_linked() || room >= WANTED {
            return;
        }
        if room + 1 < ROOM_IN_VAIN {
            return self.room.store(room + 1, Ordering::Relaxed);
        }
        self.room.store(UNWATCHED, Ordering::Relaxed);
        let fd = self.socket.as_raw_fd();
        // If that fails, the poller goes on reporting room.
        let _ = registry.reregister(&mut SourceFd(&fd), token, Interest::READABLE);
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
    use std::io::{Read, Write};
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

    /// Whether the poller reports room now.
    fn reports_room(poll: &mut mio::Poll) -> bool {
        let mut events = mio::Events::with_capacity(8);
        let polled = poll.poll(&mut events, Some(std::time::Duration::ZERO));
        polled.expect("it can be polled");
        events.iter().any(mio::event::Event::is_writable)
    }

    #[test]
    fn room_is_watched_only_while_a_send_has_found_none() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket can be that");
        let (stream, token) = (Stream::new(ours.into(), None), Token(7));
        let mut poll = mio::Poll::new().expect("there are descriptors");
        let registry = poll.registry().try_clone().expect("likewise");
        stream
            .register(&registry, token)
            .expect("it can be watched");
        let send = |bytes: &[u8]| stream.send(&[bytes.into()], false, None);
        for _ in 0..3 {
            let reported = (0..3 * u32::from(ROOM_IN_VAIN)).filter(|_| {
                assert_eq!(send(&[1]).expect("there is room"), 1);
                theirs.read_exact(&mut [0]).expect("it came");
                let reported = reports_room(&mut poll);
                if reported {
                    stream.had_room(&registry, token);
                }
                reported
            });
            assert_eq!(reported.count(), usize::from(ROOM_IN_VAIN));
            assert!(!stream.wants_room());
            for is_read_first in [false, true] {
                let mut sent = 0;
                while let Ok(count) = send(&[2; 10_000]) {
                    sent += count;
                }
                let mut read = vec![0; sent];
                if is_read_first {
                    theirs.read_exact(&mut read).expect("it came");
                }
                stream.watch_room(&registry, token).expect("as before");
                assert!(!stream.wants_room());
                assert_eq!(reports_room(&mut poll), is_read_first);
                if !is_read_first {
                    theirs.read_exact(&mut read).expect("it came");
                    assert!(reports_room(&mut poll));
                }
            }
        }
    }
}
