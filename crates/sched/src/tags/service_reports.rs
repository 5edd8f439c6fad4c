//! Reports of service by other forwarders, from clients and from those forwarders themselves.
//!
//! Both describe the same service, so only what a report adds to earlier ones of the other kind
//! counts.

use super::Tags;
use super::node::{REPORTED_NS_MAX, scaled};
use crate::share::Service;
use crate::types::{AppId, Time};

impl Tags {
    /// Takes another forwarder's report of what it served an application, less what clients have
    /// reported before.
    pub(crate) fn on_peer_service(&mut self, app: AppId, now: Time, service: &Service) {
        let number = self.number(app);
        let node = &mut self.nodes[number as usize];
        let peers = i64::try_from(service.device_ns).unwrap_or(i64::MAX);
        let known = node.unmatched_ns.max(0);
        node.unmatched_ns = node
            .unmatched_ns
            .saturating_sub(peers)
            .max(-(REPORTED_NS_MAX as i64));
        let new_ns = peers.saturating_sub(known).max(0) as u64;
        if new_ns == 0 {
            return;
        }
        let part = |amount: u64| scaled(amount, new_ns, service.device_ns);
        let service = Service {
            device_ns: new_ns,
            bytes: part(service.bytes),
            operations: part(service.operations),
        };
        for one in self.both(number) {
            self.detach(one);
            let node = &mut self.nodes[one as usize];
            node.peers.add(now, new_ns, 0);
            self.charge_elsewhere(one, now, &service, 0);
            self.place(one, now);
        }
    }

    /// A client's report of service elsewhere, less what other forwarders have reported before.
    pub(super) fn without_reported(&mut self, number: u32, elsewhere: &Service) -> Service {
        let node = &mut self.nodes[number as usize];
        let reported = i64::try_from(elsewhere.device_ns).unwrap_or(i64::MAX);
        let known = (-node.unmatched_ns).max(0);
        node.unmatched_ns = node
            .unmatched_ns
            .saturating_add(reported)
            .min(REPORTED_NS_MAX as i64);
        let new_ns = reported.saturating_sub(known).max(0) as u64;
        let part = |amount: u64| match elsewhere.device_ns {
            0 => amount,
            all => scaled(amount, new_ns, all),
        };
        Service {
            device_ns: new_ns,
            bytes: part(elsewhere.bytes),
            operations: part(elsewhere.operations),
        }
    }

    /// Adds device time that an application had here: the most that its clients can confirm.
    pub(crate) fn record_device_time(&mut self, number: u32, device_ns: u64) {
        self.nodes[number as usize].add_device_time(device_ns);
    }
}
