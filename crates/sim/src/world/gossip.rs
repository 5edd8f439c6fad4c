//! Service reports between forwarders, if their policy is configured to send them. A report arrives
//! after the network's latency, and takes nothing of its bandwidth.

use super::{Event, World};
use tidegate_forward::Input;
use tidegate_sched::ServiceReport;

impl World {
    /// Sends a forwarder's report to the others.
    pub(super) fn broadcast(&mut self, forwarder: u32, given: ServiceReport) {
        let at = self.now() + self.fabric.options.latency_ns;
        self.events.push(at, Event::Told { forwarder, given });
    }

    /// Delivers a forwarder's report to the others.
    pub(super) fn told(&mut self, forwarder: u32, given: ServiceReport) {
        let now = self.now();
        let hosts = 0..self.hosts.len() as u32;
        for other in hosts.filter(|other| *other != forwarder) {
            self.hosts[other as usize].tell(now, Input::PeerService(given));
            self.pump_host(other);
        }
    }
}
