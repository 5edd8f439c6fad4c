//! Connections through libfabric beside epoll: libfabric may have received bytes without any
//! descriptor reporting it.

use super::reactor::{Link, Reactor, Ready};
use super::shared::Shared;
use std::time::Duration;
use tidegate_fabric::Wait;

impl Reactor {
    /// Handles an event at a descriptor of a link.
    pub(super) fn woken(&self, link: usize) {
        if let Link::Present(live) = &self.links[link]
            && let Some(link) = live.connection.stream.link()
        {
            link.woken();
        }
    }

    /// The longest time that the next wait may take, if connections through libfabric bound it.
    pub(super) fn look_at_links(&self) -> Option<Duration> {
        let present = self.links.iter().filter_map(|link| match link {
            Link::Present(live) => Some(&live.connection),
            _ => None,
        });
        let waits = present.filter_map(|connection| {
            let awaits = connection.awaits();
            match connection.stream.link()?.wait(awaits, true) {
                Wait::Not => Some(Duration::ZERO),
                Wait::AtMost(wait) => Some(wait),
                Wait::Any => None,
            }
        });
        waits.min()
    }

    /// Takes in what has arrived through libfabric, whether or not a descriptor has reported it.
    pub(super) fn serve_links(&mut self, shared: &Shared) {
        for forwarder in 0..self.links.len() {
            let linked = matches!(&self.links[forwarder], Link::Present(live)
                if live.connection.stream.link().is_some_and(|link| link.wants_look()));
            if linked {
                let ready = Ready {
                    readable: true,
                    writable: true,
                    closed: true,
                };
                self.react(shared, forwarder, ready);
            }
        }
    }
}
