//! The providers of libfabric that an address may name.

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
    /// The provider of this name.
    pub fn from_name(name: &str) -> Option<Provider> {
        let named = PROVIDERS.iter().find(|(_, known)| *known == name);
        named.map(|(provider, _)| *provider)
    }

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
