//! Network ports: each node sends one byte stream and receives one, so transfers queue for them.

/// How nodes are connected, times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// From the first bit sent to the first bit received.
    pub latency_ns: u64,
    /// Each message is late by up to this, by chance.
    pub jitter_ns: u64,
    /// Megabytes per second through a port, each way.
    pub mb_s: u64,
    /// Messages of one connection may overtake each other, as over several connections.
    pub overtaking: bool,
}

impl NetworkOptions {
    /// Names of the presets.
    pub const PRESETS: &[&str] = &[
        "ideal",
        "gigabit-ethernet",
        "infiniband-4x",
        "myrinet-10g",
        "ethernet-100g",
    ];

    /// The preset of a name. Latencies are those that MPI programs saw over each, half a round trip
    /// of a small message; bandwidths what is left of the wire's for payload.
    pub fn preset(name: &str) -> Option<NetworkOptions> {
        let (latency_ns, mb_s) = match name {
            "ideal" => (0, u64::MAX >> 32),
            "gigabit-ethernet" => (50_000, 117),
            "infiniband-4x" => (5_000, 900),
            "myrinet-10g" => (4_000, 1_150),
            "ethernet-100g" => (5_000, 11_500),
            _ => return None,
        };
        Some(NetworkOptions {
            latency_ns,
            jitter_ns: 0,
            mb_s,
            overtaking: false,
        })
    }

    /// How long bytes take through a port, ns.
    pub fn wire_ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1000) / self.mb_s
    }
}

/// A port: how fast it is, and when it is free again, each way.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    mb_s: u64,
    /// Of messages from and to it, if not the network's.
    pub latency_ns: Option<u64>,
    sends_until: u64,
    receives_until: u64,
}

impl Port {
    /// A port that is free.
    pub fn new(mb_s: u64, latency_ns: Option<u64>) -> Port {
        Port {
            mb_s,
            latency_ns,
            sends_until: 0,
            receives_until: 0,
        }
    }

    /// How long bytes take through it, ns.
    pub fn wire_ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1000) / self.mb_s
    }

    /// Sends for `wire_ns` from `now` on, after what is being sent. Returns when it begins.
    pub fn send(&mut self, now: u64, wire_ns: u64) -> u64 {
        let start = now.max(self.sends_until);
        self.sends_until = start + wire_ns;
        start
    }

    /// Receives for `wire_ns` what begins to come at `now`, after what is being received. Returns
    /// when it has come.
    pub fn receive(&mut self, now: u64, wire_ns: u64) -> u64 {
        self.receives_until = now.max(self.receives_until) + wire_ns;
        self.receives_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_share_a_port_one_after_the_other() {
        let network = NetworkOptions::preset("gigabit-ethernet").unwrap();
        let mib_ns = network.wire_ns(1 << 20);
        assert!((8_900_000..9_000_000).contains(&mib_ns), "{mib_ns}");
        let mut port = Port::new(network.mb_s, None);
        assert_eq!(port.wire_ns(1 << 20), mib_ns);
        assert_eq!(port.send(10, mib_ns), 10);
        assert_eq!(port.send(20, mib_ns), 10 + mib_ns);
        assert_eq!(port.receive(10, mib_ns), 10 + mib_ns);
        assert_eq!(port.receive(5 * mib_ns, 7), 5 * mib_ns + 7);
    }

    #[test]
    fn every_preset_is_known() {
        for name in NetworkOptions::PRESETS {
            assert!(NetworkOptions::preset(name).is_some(), "{name}");
        }
        assert!(NetworkOptions::preset("carrier-pigeon").is_none());
    }
}
