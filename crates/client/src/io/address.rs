//! Addresses of forwarders, and sockets that begin to connect to them.

use crate::api::ConnectError;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

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
    /// Tried in turn, one a connection.
    Tcp {
        addresses: Vec<SocketAddr>,
        next: usize,
    },
}

impl Address {
    /// Reads `unix:PATH` or `tcp:HOST:PORT`. A host name is looked up here, once.
    pub(crate) fn parse(text: &str) -> Result<Address, ConnectError> {
        let wrong = || ConnectError::Address(text.to_string());
        let target = match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                Target::Unix(SocketAddrUnix::new(path).map_err(|_| wrong())?)
            }
            Some(("tcp", host_port)) => {
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
                Target::Tcp {
                    addresses: found.collect(),
                    next: 0,
                }
            }
            _ => return Err(wrong()),
        };
        Ok(Address {
            text: text.to_string(),
            target,
        })
    }

    /// Whether the forwarder is on this node, so that memory can be shared with it.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.target, Target::Unix(_))
    }

    /// Whether the forwarder sends a challenge there.
    pub(crate) fn challenges(&self) -> bool {
        matches!(self.target, Target::Tcp { .. })
    }

    /// A socket that connects in the background; writable when it is done. `AGAIN`: the forwarder's
    /// queue of new connections is full, try again soon.
    pub(crate) fn connect(&mut self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, begun) = match &mut self.target {
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
