//! Addresses of forwarders, and sockets that begin to connect to them.

use crate::api::ConnectError;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use tidegate_fabric::{FabricAddress, Place, Provider};

/// Without an answer from a peer's kernel for this long, its node counts as gone. A stopped process
/// is silent too, but its kernel answers.
const NODE_SILENCE_MS_MAX: u32 = 20_000;

/// Where a forwarder listens.
#[derive(Debug)]
pub(crate) struct Address {
    /// As the user wrote it.
    pub(crate) text: String,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Unix(SocketAddrUnix),
    /// Through libfabric, with a socket to the other target.
    Fabric(Provider, Box<Target>),
    /// Tried in turn, one a connection.
    Tcp {
        addresses: Vec<SocketAddr>,
        next: usize,
    },
}

impl Address {
    /// Reads `unix:PATH`, `tcp:HOST:PORT` or `fabric:PROVIDER:WHERE`. A host name is looked up
    /// here, once.
    pub(crate) fn parse(text: &str) -> Result<Address, ConnectError> {
        let wrong = || ConnectError::Address(text.to_string());
        let target = match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Target::unix(text, path)?,
            Some(("tcp", host_port)) => Target::tcp(text, host_port)?,
            Some(("fabric", fabric)) => {
                let fabric: FabricAddress = fabric.parse().map_err(|_| wrong())?;
                let target = match &fabric.place {
                    Place::Unix(path) => Target::unix(text, &path.to_string_lossy())?,
                    Place::Tcp(host_port) => Target::tcp(text, host_port)?,
                };
                Target::Fabric(fabric.provider, Box::new(target))
            }
            _ => return Err(wrong()),
        };
        Ok(Address {
            text: text.to_string(),
            target,
        })
    }

    /// Whether the forwarder can reach memory of this process: on this node, or through libfabric.
    pub(crate) fn reaches_memory(&self) -> bool {
        matches!(self.target, Target::Unix(_) | Target::Fabric(..))
    }

    /// What carries the bytes, if that is not the socket.
    pub(crate) fn provider(&self) -> Option<Provider> {
        match self.target {
            Target::Fabric(provider, _) => Some(provider),
            Target::Unix(_) | Target::Tcp { .. } => None,
        }
    }

    /// Whether the forwarder sends a challenge there.
    pub(crate) fn challenges(&self) -> bool {
        match &self.target {
            Target::Fabric(_, target) => matches!(**target, Target::Tcp { .. }),
            target => matches!(target, Target::Tcp { .. }),
        }
    }

    /// Has the next connection go where the last one went.
    pub(crate) fn again(&mut self) {
        self.target.again();
    }

    /// A socket that connects in the background; writable when it is done. `AGAIN`: the forwarder's
    /// queue of new connections is full, try again soon.
    pub(crate) fn connect(&mut self) -> Result<OwnedFd, Errno> {
        self.target.connect()
    }
}

impl Target {
    fn unix(text: &str, path: &str) -> Result<Target, ConnectError> {
        let path = SocketAddrUnix::new(path);
        let path = path.map_err(|_| ConnectError::Address(text.to_string()))?;
        Ok(Target::Unix(path))
    }

    fn tcp(text: &str, host_port: &str) -> Result<Target, ConnectError> {
        let wrong = || ConnectError::Address(text.to_string());
        let (host, port) = host_port.rsplit_once(':').ok_or_else(wrong)?;
        let host = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        let port: u16 = port.parse().map_err(|_| wrong())?;
        if host.is_empty() {
            return Err(wrong());
        }
        let found = (host, port).to_socket_addrs();
        let found = found.map_err(|e| ConnectError::Unreachable(format!("{text}: {e}")))?;
        Ok(Target::Tcp {
            addresses: found.collect(),
            next: 0,
        })
    }

    fn again(&mut self) {
        if let Target::Tcp { addresses, next } = self {
            *next = (*next + addresses.len().saturating_sub(1)) % addresses.len().max(1);
        }
    }

    fn connect(&mut self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, begun) = match self {
            Target::Fabric(_, target) => return target.connect(),
            Target::Unix(path) => {
                let family = AddressFamily::UNIX;
                let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
                let begun = net::connect(&socket, path);
                (socket, begun)
            }
            Target::Tcp { addresses, next } => {
                let address = addresses.get(*next).ok_or(Errno::HOSTUNREACH)?;
                *next = (*next + 1) % addresses.len();
                let family = match address {
                    SocketAddr::V4(_) => AddressFamily::INET,
                    SocketAddr::V6(_) => AddressFamily::INET6,
                };
                let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
                tune(&socket)?;
                let begun = net::connect(&socket, address);
                (socket, begun)
            }
        };
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(errno) => Err(errno),
        }
    }
}

/// Small frames go out at once, and a node that is gone is noticed though it cannot say so.
fn tune(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_user_timeout(socket, NODE_SILENCE_MS_MAX)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds_are_read() {
        assert!(
            !Address::parse("unix:/run/a.sock")
                .expect("a path")
                .challenges()
        );
        assert!(
            Address::parse("tcp:127.0.0.1:7000")
                .expect("a port")
                .challenges()
        );
        assert!(Address::parse("tcp:[::1]:7000").expect("IPv6").challenges());
        let fabric = Address::parse("fabric:tcp:127.0.0.1:7000").expect("a port");
        assert!(fabric.challenges() && fabric.reaches_memory());
        let fabric = Address::parse("fabric:shm:/run/a.sock").expect("a path");
        assert!(!fabric.challenges() && fabric.reaches_memory());
    }

    #[test]
    fn others_are_named_in_the_error() {
        let long = format!("unix:/{}", "x".repeat(200));
        for text in [
            "",
            "/run/a.sock",
            "unix:",
            "tcp:host",
            "tcp::1",
            "tcp:a:b",
            "udp:a:1",
            "fabric:tcp:a",
            "fabric:shm:a:1",
            "fabric:udp:a:1",
            &long,
        ] {
            let error = Address::parse(text).expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn nobody_there_is_an_error_at_once_or_soon() {
        let mut address = Address::parse("unix:/nonexistent/tidegate.sock").expect("an address");
        assert_eq!(address.connect().err(), Some(Errno::NOENT));
    }
}
