//! Addresses of forwarders that are reached through libfabric: `fabric:PROVIDER:WHERE`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Which of libfabric's providers carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// TCP, on any network.
    Tcp,
    /// Shared memory of one node.
    Shm,
    /// InfiniBand, RoCE and the like.
    Verbs,
    /// HPE Slingshot.
    Cxi,
}

const PROVIDERS: [(Provider, &str); 4] = [
    (Provider::Tcp, "tcp"),
    (Provider::Shm, "shm"),
    (Provider::Verbs, "verbs"),
    (Provider::Cxi, "cxi"),
];

impl Provider {
    /// Its name, as libfabric and addresses have it.
    pub fn name(self) -> &'static str {
        let named = PROVIDERS.iter().find(|(provider, _)| *provider == self);
        named.expect("every provider is in the list").1
    }

    /// Whether its endpoints have addresses of the network of the socket.
    pub(crate) fn speaks_ip(self) -> bool {
        matches!(self, Provider::Tcp | Provider::Verbs)
    }
}

/// Where the socket is that brings both ends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host and port.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

/// What follows `fabric:` in an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricAddress {
    /// The provider.
    pub provider: Provider,
    /// The socket: a Unix one for [`Provider::Shm`], TCP for the others.
    pub place: Place,
}

impl FromStr for FabricAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<FabricAddress, String> {
        let wrong = || {
            format!(
                "address \"fabric:{text}\" must be fabric:shm:/PATH, or fabric:PROVIDER:HOST:PORT \
                 with PROVIDER tcp, verbs or cxi"
            )
        };
        let (name, place) = text.split_once(':').ok_or_else(wrong)?;
        let named = PROVIDERS.iter().find(|(_, known)| *known == name);
        let provider = named.ok_or_else(wrong)?.0;
        let place = match provider {
            Provider::Shm if place.starts_with('/') => Place::Unix(place.into()),
            Provider::Shm => return Err(wrong()),
            _ => match place.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Place::Tcp(place.to_string())
                }
                _ => return Err(wrong()),
            },
        };
        Ok(FabricAddress { provider, place })
    }
}

impl fmt::Display for FabricAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.provider.name();
        match &self.place {
            Place::Tcp(host) => write!(f, "fabric:{name}:{host}"),
            Place::Unix(path) => write!(f, "fabric:{name}:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_the_same() {
        for text in [
            "tcp:127.0.0.1:7475",
            "verbs:[::1]:7475",
            "cxi:n7:7475",
            "shm:/run/a",
        ] {
            let address: FabricAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), format!("fabric:{text}"));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for text in [
            "", "tcp", "tcp:", "tcp:host", "tcp::1", "shm:a", "shm:h:1", "udp:h:1", "tcp:/a",
        ] {
            let error = text.parse::<FabricAddress>().expect_err(text);
            assert!(error.contains(&format!("fabric:{text}")), "{error}");
        }
    }
}
