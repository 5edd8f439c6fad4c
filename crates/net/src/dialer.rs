//! The client's side of connecting: opens sockets to a forwarder without waiting for it.

use crate::address::{Address, Place};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Time without an answer from the peer's kernel after which its node counts as gone, ms. A stopped
/// process is silent too, but its kernel answers.
const NODE_SILENCE_MS_MAX: u32 = 20_000;

/// Connects to one forwarder, as often as is wanted.
#[derive(Debug)]
pub struct Dialer {
    address: Address,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Unix(SocketAddrUnix),
    /// Each new connection tries the next of these addresses.
    Tcp {
        addresses: Vec<SocketAddr>,
        next: usize,
    },
}

impl Dialer {
    /// A dialer for this address. It looks a host name up once, here. The error says that the name
    /// is unknown, or that the path of a Unix socket is too long.
    pub fn new(address: Address) -> io::Result<Dialer> {
        let target = match &address.place {
            Place::Unix(path) => Target::Unix(SocketAddrUnix::new(path)?),
            Place::Tcp(host_port) => Target::Tcp {
                addresses: host_port.to_socket_addrs()?.collect(),
                next: 0,
            },
        };
        Ok(Dialer { address, target })
    }

    /// Where the forwarder listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Makes the next connection go to the same address as the last one.
    pub fn again(&mut self) {
        if let Target::Tcp { addresses, next } = &mut self.target {
            *next = (*next + addresses.len().saturating_sub(1)) % addresses.len().max(1);
        }
    }

    /// Opens a socket and begins to connect it; the socket becomes writable once it is connected.
    /// `AGAIN`: the forwarder's queue of new connections is full, so the caller should try again
    /// soon.
    pub fn connect(&mut self) -> Result<OwnedFd, Errno> {
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

/// Sends small frames without delay, and detects a peer's node that is gone without having closed
/// the connection.
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
    fn nobody_there_is_an_error_at_once_or_soon() {
        let address = Address::unix("/nonexistent/tidegate.sock");
        let mut dialer = Dialer::new(address).expect("an address");
        assert_eq!(dialer.connect().err(), Some(Errno::NOENT));
    }

    #[test]
    fn hosts_are_looked_up_and_connected_to() {
        let listener = std::net::TcpListener::bind("[::1]:0")
            .or_else(|_| std::net::TcpListener::bind("127.0.0.1:0"))
            .expect("a port");
        let address = Address::tcp(listener.local_addr().expect("it has one").to_string());
        let mut dialer = Dialer::new(address).expect("an address");
        let _socket = dialer.connect().expect("somebody listens");
        listener.accept().expect("it came");
    }
}
