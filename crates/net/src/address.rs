//! Addresses of forwarders. Forwarders and clients read them by the same grammar.

use rustix::net::SocketAddrUnix;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tidegate_fabric::Provider;

/// Where a forwarder listens: `unix:PATH`, `tcp:HOST:PORT`, `fabric:shm:/PATH` or
/// `fabric:PROVIDER:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The libfabric provider that carries the bytes; None: the socket carries them.
    pub provider: Option<Provider>,
    /// The socket.
    pub place: Place,
}

/// Where the socket is. With libfabric, the two endpoints exchange their addresses over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl Address {
    /// The Unix socket of this path.
    pub fn unix(path: impl Into<PathBuf>) -> Address {
        Address {
            provider: None,
            place: Place::Unix(path.into()),
        }
    }

    /// TCP at `HOST:PORT`.
    pub fn tcp(host_port: impl Into<String>) -> Address {
        Address {
            provider: None,
            place: Place::Tcp(host_port.into()),
        }
    }

    /// Whether clients may come from other nodes. Such a client and the forwarder prove to
    /// each other who they are.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, Place::Tcp(_))
    }

    /// Whether a forwarder at this address can read and write memory of its clients: it is on their
    /// node, or libfabric connects them.
    pub fn reaches_memory(&self) -> bool {
        self.provider.is_some() || !self.is_remote()
    }
}

impl FromStr for Address {
    type Err = String;

    /// The error says what an address looks like.
    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || {
            format!(
                "address \"{text}\" must be unix:/PATH, tcp:HOST:PORT, fabric:shm:/PATH, or \
                 fabric:PROVIDER:HOST:PORT with PROVIDER tcp, verbs or cxi"
            )
        };
        let unix = |path: &str| match SocketAddrUnix::new(path) {
            Ok(_) if !path.is_empty() => Ok(Place::Unix(path.into())),
            Ok(_) => Err(wrong()),
            Err(_) => Err(format!(
                "address \"{text}\" is longer than a Unix socket's may be"
            )),
        };
        let tcp = |host_port: &str| match host_port.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Place::Tcp(host_port.to_string()))
            }
            _ => Err(wrong()),
        };
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (provider, place) = match kind {
            "unix" => (None, unix(rest)?),
            "tcp" => (None, tcp(rest)?),
            "fabric" => {
                let (name, place) = rest.split_once(':').ok_or_else(wrong)?;
                let place = match Provider::from_name(name).ok_or_else(wrong)? {
                    Provider::Shm if place.starts_with('/') => unix(place)?,
                    Provider::Shm => return Err(wrong()),
                    _ => tcp(place)?,
                };
                (Provider::from_name(name), place)
            }
            _ => return Err(wrong()),
        };
        Ok(Address { provider, place })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.provider, &self.place) {
            (None, Place::Unix(_)) => f.write_str("unix:")?,
            (None, Place::Tcp(_)) => f.write_str("tcp:")?,
            (Some(provider), _) => write!(f, "fabric:{}:", provider.name())?,
        }
        match &self.place {
            Place::Unix(path) => write!(f, "{}", path.display()),
            Place::Tcp(host_port) => f.write_str(host_port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_the_same() {
        for (text, remote, reaches_memory) in [
            ("unix:/run/a.sock", false, true),
            ("unix:a.sock", false, true),
            ("tcp:127.0.0.1:7000", true, false),
            ("tcp:[::1]:7000", true, false),
            ("tcp:io1:0", true, false),
            ("fabric:tcp:127.0.0.1:7475", true, true),
            ("fabric:verbs:[::1]:7475", true, true),
            ("fabric:cxi:n7:7475", true, true),
            ("fabric:shm:/run/a", false, true),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_remote(), remote, "{text}");
            assert_eq!(address.reaches_memory(), reaches_memory, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = format!("unix:/{}", "x".repeat(200));
        for text in [
            "",
            "/run/a.sock",
            "unix:",
            "tcp:host",
            "tcp::1",
            "tcp:a:b",
            "tcp:a:70000",
            "udp:a:1",
            "fabric:",
            "fabric:tcp",
            "fabric:tcp:a",
            "fabric:tcp::1",
            "fabric:tcp:/a",
            "fabric:shm:a",
            "fabric:shm:a:1",
            "fabric:udp:a:1",
            &long,
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.contains(&format!("address \"{text}\" ")), "{error}");
        }
    }
}
