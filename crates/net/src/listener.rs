//! The forwarder's side of connecting: sockets to listen on, and who connected to them.

use crate::address::{Address, Place};
use crate::peer::{self, Credentials, Question};
use crate::stream::Stream;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, chmod, fchmod, fstat, open};
use rustix::io::ioctl_fionbio;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tidegate_fabric::Domain;

/// Number of connections that may wait to be accepted.
const CONNECTING_MAX: i32 = 16_384;

/// Why a forwarder cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}; {advice}")]
pub struct ListenError {
    /// The address.
    pub address: Address,
    /// The system's error.
    pub error: io::Error,
    /// What the administrator can do about it.
    pub advice: String,
}

/// Who made a connection.
#[derive(Clone, Debug)]
pub struct Origin {
    /// What the kernel knows of the process, on a Unix socket.
    pub credentials: Option<Credentials>,
    /// For logs: "unix:pid 17" or "tcp:10.0.0.7:4000".
    pub address: String,
}

/// A socket that is bound to an address and listens.
pub struct Listener {
    socket: OwnedFd,
    address: Address,
}

impl Listener {
    /// Binds an address and listens. Replaces the file of a Unix socket on which no process listens
    /// any more.
    pub fn bind(address: &Address) -> Result<Listener, ListenError> {
        Listener::try_bind(address).map_err(|error| ListenError {
            address: address.clone(),
            advice: advice(&error, &address.place),
            error,
        })
    }

    fn try_bind(address: &Address) -> io::Result<Listener> {
        let provider = address.provider;
        let (socket, place) = match &address.place {
            Place::Tcp(host_port) => {
                let socket = TcpListener::bind(host_port)?;
                let bound = socket.local_addr()?;
                let local = Some(bound.ip()).filter(|local| !local.is_unspecified());
                if let Some(provider) = provider {
                    // Fails now rather than when the first client connects.
                    Domain::shared(provider, local).map_err(io::Error::other)?;
                }
                (OwnedFd::from(socket), Place::Tcp(bound.to_string()))
            }
            Place::Unix(path) => {
                if let Some(provider) = provider {
                    Domain::shared(provider, None).map_err(io::Error::other)?;
                }
                remove_stale(path)?;
                (bind_unix(path)?, address.place.clone())
            }
        };
        ioctl_fionbio(&socket, true)?;
        lengthen_queue(&socket);
        let address = Address { provider, place };
        Ok(Listener { socket, address })
    }

    /// The address on which the socket listens. Where port 0 was asked for, it has the port that
    /// the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Reports new connections under `token`.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)
    }

    /// Accepts the next connection; returns it and who made it, and what another process was asked
    /// of that. `WouldBlock`: no client is waiting. `ConnectionAborted`: accepting this one failed,
    /// others may succeed.
    pub fn accept(&self) -> io::Result<(Stream, Origin, Option<Question>)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, from) = net::acceptfrom_with(&self.socket, flags)?;
        let transport = match (self.address.provider, &self.address.place) {
            (Some(provider), _) => format!("fabric:{}", provider.name()),
            (None, Place::Tcp(_)) => "tcp".to_string(),
            (None, Place::Unix(_)) => "unix".to_string(),
        };
        let (origin, question) = match from.and_then(|from| SocketAddr::try_from(from).ok()) {
            Some(from) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                let origin = Origin {
                    credentials: None,
                    address: format!("{transport}:{from}"),
                };
                (origin, None)
            }
            None => {
                let found = peer::credentials(socket.as_fd()).map_err(refused)?;
                let (credentials, pid, question) = found;
                let origin = Origin {
                    credentials: Some(credentials),
                    address: format!("{transport}:pid {pid}"),
                };
                (origin, question)
            }
        };
        let stream = Stream::new(socket, self.address.provider);
        stream.connected().map_err(refused)?;
        Ok((stream, origin, question))
    }
}

/// Makes of an error that concerns one connection alone one that says so.
fn refused(error: impl std::fmt::Display) -> io::Error {
    tracing::warn!(%error, "connection refused");
    io::Error::from(ErrorKind::ConnectionAborted)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Place::Unix(path) = &self.address.place {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds a Unix socket whose file has its final mode before any process can connect.
fn bind_unix(path: &Path) -> io::Result<OwnedFd> {
    // A user's forwarder serves that user; root's serves all, who prove who they are.
    let root = rustix::process::geteuid().is_root();
    let mode = Mode::from_raw_mode(if root { 0o666 } else { 0o600 });
    let kind = SocketType::STREAM;
    let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // The file is made with the socket's own mode, less the umask.
    fchmod(&socket, mode)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Widened where the umask took something: of this file, even if another gets its name.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let found = fstat(&file)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours {
        return Err(io::Error::other("another user has replaced the socket"));
    }
    if found.st_mode & 0o777 != mode.as_raw_mode() {
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    net::listen(&socket, CONNECTING_MAX)?;
    Ok(socket)
}

/// Makes the queue of new connections longer, since all clients connect at once when a forwarder
/// restarts. The standard library's queue has 128 places, and a client that finds it full tries
/// again after a second. The kernel cuts the length to its own limit (`net.core.somaxconn`).
fn lengthen_queue(socket: impl AsFd) {
    // If this fails, the shorter queue works too, only more slowly.
    let _ = net::listen(socket, CONNECTING_MAX);
}

/// Removes the file of a Unix socket on which no process listens. Anything else stays, and binding
/// then reports the error.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        _ => return Ok(()),
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

fn advice(error: &io::Error, place: &Place) -> String {
    let parent = |path: &PathBuf| path.parent().map(Path::to_path_buf).unwrap_or_default();
    match (error.kind(), place) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_has_its_mode_and_no_other_file_is_replaced() {
        let name = format!("tidegate-listener-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let socket = bind_unix(&path).expect("a fresh name");
        let found = std::fs::symlink_metadata(&path).expect("it is there");
        let root = rustix::process::geteuid().is_root();
        let mode = if root { 0o666 } else { 0o600 };
        assert_eq!(found.permissions().mode() & 0o777, mode);
        UnixStream::connect(&path).expect("it listens");
        assert!(bind_unix(&path).is_err(), "the name is taken");
        drop(socket);
        std::fs::remove_file(&path).expect("ours");
        std::os::unix::fs::symlink("/nowhere/at/all", &path).expect("ours");
        assert!(bind_unix(&path).is_err(), "a link");
        std::fs::remove_file(&path).expect("ours");
    }
}
