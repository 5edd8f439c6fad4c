//! Listeners and streams over TCP, Unix sockets and libfabric, and who is at the other end.

use super::output::Sink;
use crate::config::{Address, Place};
use crate::start::StartError;
use crate::storage::pages::Pages;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_fabric::{Domain, Link, Provider};
use tidegate_forward::Peer;
use tracing::warn;

/// Connections that may wait to be accepted.
const CONNECTING_MAX: i32 = 16_384;

/// A bound socket.
pub struct Listener {
    socket: ListenerSocket,
    address: Address,
}

enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds an address. A Unix socket that nobody listens on any more is replaced.
    pub fn bind(address: &Address) -> Result<Listener, StartError> {
        let listen = |error: io::Error| StartError::Listen {
            address: address.to_string(),
            advice: listen_advice(&error, address),
            error,
        };
        let (socket, place) = match &address.place {
            Place::Tcp(host) => {
                let socket = std::net::TcpListener::bind(host).map_err(listen)?;
                socket.set_nonblocking(true).map_err(listen)?;
                lengthen_queue(&socket);
                let bound = socket.local_addr().map_err(listen)?;
                let socket = ListenerSocket::Tcp(TcpListener::from_std(socket));
                (socket, Place::Tcp(bound.to_string()))
            }
            Place::Unix(path) => {
                remove_stale(path).map_err(listen)?;
                let socket = UnixListener::bind(path).map_err(listen)?;
                // A user's forwarder serves that user; root's serves all, who prove who they are.
                let root = rustix::process::geteuid().is_root();
                let mode = if root { 0o666 } else { 0o600 };
                lengthen_queue(&socket);
                std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(listen)?;
                (ListenerSocket::Unix(socket), address.place.clone())
            }
        };
        let provider = address.provider;
        let listener = Listener {
            socket,
            address: Address { provider, place },
        };
        if let Some(provider) = provider {
            let local = match &listener.socket {
                ListenerSocket::Tcp(socket) => socket.local_addr().ok().map(|at| at.ip()),
                ListenerSocket::Unix(_) => None,
            };
            let local = local.filter(|local| !local.is_unspecified());
            // Now rather than when the first client comes.
            Domain::shared(provider, local).map_err(|error| listen(io::Error::other(error)))?;
        }
        Ok(listener)
    }

    /// Where it listens; a port 0 has become the one that was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Reports new connections under `token`.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            ListenerSocket::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            ListenerSocket::Unix(socket) => registry.register(socket, token, Interest::READABLE),
        }
    }

    /// The next connection and who made it, without the `challenged` mark.
    pub fn accept(&self) -> io::Result<(Stream, Peer)> {
        let through = |transport: &str| match self.address.provider {
            Some(provider) => format!("fabric:{}", provider.name()),
            None => transport.to_string(),
        };
        match &self.socket {
            ListenerSocket::Tcp(socket) => {
                let (stream, from) = socket.accept()?;
                stream.set_nodelay(true)?;
                let address = format!("{}:{from}", through("tcp"));
                let peer = Peer {
                    credentials: None,
                    address,
                    challenged: false,
                };
                let stream = match self.address.provider {
                    None => Stream::Tcp(stream),
                    Some(provider) => {
                        let local = Some(stream.local_addr()?.ip());
                        let socket = OwnedFd::from(std::net::TcpStream::from(stream));
                        Stream::Fabric(linked(provider, local, socket)?)
                    }
                };
                Ok((stream, peer))
            }
            ListenerSocket::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                let who = rustix::net::sockopt::socket_peercred(&stream)?;
                let address = format!("{}:pid {}", through("unix"), who.pid.as_raw_nonzero());
                let credentials = Some((who.uid.as_raw(), who.gid.as_raw()));
                let peer = Peer {
                    credentials,
                    address,
                    challenged: false,
                };
                let stream = match self.address.provider {
                    None => Stream::Unix(stream, Beside::default()),
                    Some(provider) => {
                        let socket = OwnedFd::from(std::os::unix::net::UnixStream::from(stream));
                        Stream::Fabric(linked(provider, None, socket)?)
                    }
                };
                Ok((stream, peer))
            }
        }
    }

    /// Whether its connections begin with a challenge.
    pub fn challenges(&self) -> bool {
        self.address.is_remote()
    }
}

/// A link over a socket that was accepted. What libfabric has against it concerns this one alone.
fn linked(provider: Provider, local: Option<IpAddr>, socket: OwnedFd) -> io::Result<Box<Link>> {
    let begun =
        Domain::shared(provider, local).and_then(|domain| Link::begin(&domain, Arc::new(socket)));
    begun.map(Box::new).map_err(|error| {
        warn!(%error, "connection refused");
        io::Error::from(ErrorKind::ConnectionAborted)
    })
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Place::Unix(path) = &self.address.place {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Lets many connect at once, as they do when a forwarder starts again: the library's queue has 128
/// places, and a client that finds it full tries again after a second. The kernel cuts it to its
/// own limit (`net.core.somaxconn`).
fn lengthen_queue(socket: impl AsFd) {
    // The shorter queue serves as well, only more slowly.
    let _ = rustix::net::listen(socket, CONNECTING_MAX);
}

/// Removes a socket file that nobody listens on; anything else stays and the bind says so.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        _ => return Ok(()),
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

fn listen_advice(error: &io::Error, address: &Address) -> String {
    let parent = |path: &PathBuf| path.parent().map(Path::to_path_buf).unwrap_or_default();
    match (error.kind(), &address.place) {
        (ErrorKind::AddrInUse, Place::Unix(path)) if !is_socket(path) => {
            "there is a file of that name that is no socket; move it away".to_string()
        }
        (ErrorKind::AddrInUse, _) => {
            "another process listens there; stop it or choose another address".to_string()
        }
        (ErrorKind::NotFound, Place::Unix(path)) => {
            format!("create the directory {} first", parent(path).display())
        }
        (ErrorKind::PermissionDenied, Place::Unix(path)) => {
            format!(
                "choose a directory that you may write to, not {}",
                parent(path).display()
            )
        }
        (ErrorKind::PermissionDenied, _) => "choose a port above 1023".to_string(),
        _ => "choose another address in listen".to_string(),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// A connected socket.
pub enum Stream {
    /// TCP, without delay.
    Tcp(TcpStream),
    /// A Unix socket, and what came on it beside bytes.
    Unix(UnixStream, Beside),
    /// An endpoint of libfabric, and the socket that belongs to it.
    Fabric(Box<Link>),
}

/// Descriptors on a Unix socket.
#[derive(Default)]
pub struct Beside {
    /// The last that came and was not taken.
    descriptor: Option<OwnedFd>,
    /// The last read ended where descriptors came, even if there was no number left for them.
    ended: bool,
}

impl Stream {
    /// Whether the last read ended before the bytes did, where descriptors came.
    pub fn ended_early(&self) -> bool {
        matches!(self, Stream::Unix(_, Beside { ended: true, .. }))
    }

    /// The descriptor that came last, if one came and was not taken.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        match self {
            Stream::Unix(_, beside) => beside.descriptor.take(),
            Stream::Tcp(_) | Stream::Fabric(_) => None,
        }
    }

    /// The link, if it is through libfabric.
    pub fn link(&self) -> Option<&Link> {
        match self {
            Stream::Fabric(link) => Some(link),
            Stream::Tcp(_) | Stream::Unix(..) => None,
        }
    }

    /// Calls `each` with every descriptor that is to be waited for.
    fn sources(
        &mut self,
        mut each: impl FnMut(&mut dyn Source) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => each(stream),
            Stream::Unix(stream, _) => each(stream),
            Stream::Fabric(link) => {
                let queue = link
                    .queue()
                    .map_or(Ok(()), |queue| each(&mut SourceFd(&queue)));
                queue.and(each(&mut SourceFd(&link.as_raw_fd())))
            }
        }
    }

    /// Reports readiness (edges) under `token`.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.sources(|source| source.register(registry, token, interest))
    }

    /// Reports nothing more.
    pub fn deregister(&mut self, registry: &Registry) {
        // The descriptors are closed next; that ends the registration whatever this says.
        let _ = self.sources(|source| source.deregister(registry));
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read_vectored(pieces),
            Stream::Unix(stream, beside) => receive(stream, pieces, beside),
            Stream::Fabric(link) => link.read(pieces),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream, _) => stream.write(bytes),
            Stream::Fabric(link) => link.write(&[IoSlice::new(bytes)]),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Unix(stream, _) => stream.write_vectored(pieces),
            Stream::Fabric(link) => link.write(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Stream {
    fn write_ahead(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        let beside = &mut SendAncillaryBuffer::default();
        let sent = match self {
            Stream::Tcp(stream) => sendmsg(&*stream, pieces, beside, flags),
            Stream::Unix(stream, _) => sendmsg(&*stream, pieces, beside, flags),
            Stream::Fabric(link) => return link.write(pieces),
        };
        Ok(sent?)
    }

    fn send_pages(&mut self, pages: &mut Pages, len: usize) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => pages.send(&*stream, len),
            Stream::Unix(stream, _) => pages.send(&*stream, len),
            // Its reads are never answered with pages.
            Stream::Fabric(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// Reads once, and keeps a descriptor that comes with the bytes.
fn receive(
    stream: &UnixStream,
    pieces: &mut [IoSliceMut<'_>],
    beside: &mut Beside,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    beside.ended = received.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            beside.ended = true;
            beside.descriptor = descriptors.last();
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;

    /// What a read of 100 bytes gives after `count` descriptors came with 3, and 4 bytes behind.
    fn read_with(count: usize) -> (usize, Stream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let fds = vec![null.as_fd(); count];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let flags = SendFlags::empty();
        let sent = sendmsg(&theirs, &[IoSlice::new(b"abc")], &mut control, flags);
        assert_eq!(sent, Ok(3));
        assert_eq!((&theirs).write(b"defg").expect("there is room"), 4);
        let mut stream = Stream::Unix(ours, Beside::default());
        let read = stream.read(&mut [0; 100]).expect("it came");
        (read, stream)
    }

    #[test]
    fn a_read_that_ended_at_descriptors_is_known() {
        for count in [1, 2, 9] {
            let (read, mut stream) = read_with(count);
            assert_eq!((read, stream.ended_early()), (3, true), "{count}");
            assert!(stream.take_descriptor().is_some());
            assert_eq!(stream.read(&mut [0; 100]).expect("it came"), 4);
            assert!(!stream.ended_early());
            assert!(stream.take_descriptor().is_none());
        }
    }
}
