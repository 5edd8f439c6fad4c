//! Listeners and streams over TCP and Unix sockets, and who is at the other end.

use super::output::Sink;
use crate::config::Address;
use crate::start::StartError;
use crate::storage::pages::Pages;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tidegate_forward::Peer;

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
        match address {
            Address::Tcp(host) => {
                let socket = std::net::TcpListener::bind(host).map_err(listen)?;
                socket.set_nonblocking(true).map_err(listen)?;
                lengthen_queue(&socket);
                let bound = socket.local_addr().map_err(listen)?;
                let address = Address::Tcp(bound.to_string());
                Ok(Listener {
                    socket: ListenerSocket::Tcp(TcpListener::from_std(socket)),
                    address,
                })
            }
            Address::Unix(path) => {
                remove_stale(path).map_err(listen)?;
                let socket = UnixListener::bind(path).map_err(listen)?;
                // A user's forwarder serves that user; root's serves all, who prove who they are.
                let root = rustix::process::geteuid().is_root();
                let mode = if root { 0o666 } else { 0o600 };
                lengthen_queue(&socket);
                std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(listen)?;
                Ok(Listener {
                    socket: ListenerSocket::Unix(socket),
                    address: address.clone(),
                })
            }
        }
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
        match &self.socket {
            ListenerSocket::Tcp(socket) => {
                let (stream, from) = socket.accept()?;
                stream.set_nodelay(true)?;
                let address = format!("tcp:{from}");
                let peer = Peer {
                    credentials: None,
                    address,
                    challenged: false,
                };
                Ok((Stream::Tcp(stream), peer))
            }
            ListenerSocket::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                let who = rustix::net::sockopt::socket_peercred(&stream)?;
                let address = format!("unix:pid {}", who.pid.as_raw_nonzero());
                let credentials = Some((who.uid.as_raw(), who.gid.as_raw()));
                let peer = Peer {
                    credentials,
                    address,
                    challenged: false,
                };
                Ok((Stream::Unix(stream, Beside::default()), peer))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
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
    match (error.kind(), address) {
        (ErrorKind::AddrInUse, Address::Unix(path)) if !is_socket(path) => {
            "there is a file of that name that is no socket; move it away".to_string()
        }
        (ErrorKind::AddrInUse, _) => {
            "another process listens there; stop it or choose another address".to_string()
        }
        (ErrorKind::NotFound, Address::Unix(path)) => {
            format!("create the directory {} first", parent(path).display())
        }
        (ErrorKind::PermissionDenied, Address::Unix(path)) => {
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
            Stream::Tcp(_) => None,
            Stream::Unix(_, beside) => beside.descriptor.take(),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream, _) => stream,
        }
    }

    /// Reports readiness (edges) under `token`.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source()
            .register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Reports nothing more.
    pub fn deregister(&mut self, registry: &Registry) {
        // The descriptor is closed next; that ends the registration whatever this says.
        let _ = self.source().deregister(registry);
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
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream, _) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Unix(stream, _) => stream.write_vectored(pieces),
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
        };
        Ok(sent?)
    }

    fn send_pages(&mut self, pages: &mut Pages, len: usize) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => pages.send(&*stream, len),
            Stream::Unix(stream, _) => pages.send(&*stream, len),
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
