//! Connections between clients and forwarders. Each direction keeps its order, as TCP does, and
//! delays every frame by chance. A connection can stall, so that its frames vanish, and be cut.

use crate::rng::Rng;
use std::collections::BTreeMap;

/// Number of a connection, never used again.
pub type LinkId = u64;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The client's.
    Client,
    /// The forwarder's.
    Forwarder,
}

/// How connections behave, times in ns.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// Shortest delay of a frame.
    pub delay_min: u64,
    /// Longest delay of a frame.
    pub delay_max: u64,
    /// One connection in this number stalls for ever at some point (0: none).
    pub stall_one_in: u64,
}

struct Link {
    client: usize,
    forwarder: usize,
    open: bool,
    stalled: bool,
    /// When the last frame towards each end arrives: the next may not overtake it.
    last: [u64; 2],
}

/// All connections of a world.
pub struct Network {
    options: NetworkOptions,
    rng: Rng,
    links: BTreeMap<LinkId, Link>,
    made: LinkId,
}

impl Network {
    /// A network without connections.
    pub fn new(options: NetworkOptions, rng: Rng) -> Network {
        Network {
            options,
            rng,
            links: BTreeMap::new(),
            made: 0,
        }
    }

    /// Opens a connection; returns it and when the forwarder's end sees it.
    pub fn open(&mut self, now: u64, client: usize, forwarder: usize) -> (LinkId, u64) {
        self.made += 1;
        let link = Link {
            client,
            forwarder,
            open: true,
            stalled: false,
            last: [now; 2],
        };
        self.links.insert(self.made, link);
        let delay = self
            .rng
            .between(self.options.delay_min, self.options.delay_max);
        let at = now + delay;
        self.links.get_mut(&self.made).expect("made above").last[End::Forwarder as usize] = at;
        (self.made, at)
    }

    /// When a frame that is sent now arrives at `to`; None if it is lost.
    pub fn arrival(&mut self, now: u64, link: LinkId, to: End) -> Option<u64> {
        let delay = self
            .rng
            .between(self.options.delay_min, self.options.delay_max);
        let stall_one_in = self.options.stall_one_in;
        let stalls = stall_one_in > 0 && self.rng.one_in(stall_one_in);
        let link = self.links.get_mut(&link)?;
        link.stalled |= stalls;
        if !link.open || link.stalled {
            return None;
        }
        let last = &mut link.last[to as usize];
        *last = (now + delay).max(*last);
        Some(*last)
    }

    /// Whether frames that arrive on this connection now are still delivered.
    pub fn is_open(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|l| l.open)
    }

    /// Cuts a connection; what is under way is lost. Returns when each end notices, or None if it
    /// was closed before.
    pub fn cut(&mut self, now: u64, link: LinkId) -> Option<u64> {
        let delay = self
            .rng
            .between(self.options.delay_min, self.options.delay_max);
        let link = self.links.get_mut(&link)?;
        let was_open = std::mem::replace(&mut link.open, false);
        was_open.then_some(now + delay)
    }

    /// Client and forwarder of a connection.
    pub fn ends(&self, link: LinkId) -> (usize, usize) {
        let link = &self.links[&link];
        (link.client, link.forwarder)
    }

    /// Open connections, in order of their making.
    pub fn open_links(&self) -> Vec<LinkId> {
        self.links
            .iter()
            .filter(|(_, l)| l.open)
            .map(|(id, _)| *id)
            .collect()
    }
}
