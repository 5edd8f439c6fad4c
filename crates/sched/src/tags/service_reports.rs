//! What clients and other forwarders tell, as far as it is new and can be true.

use super::Tags;
use super::node::{TOLD_NS_MAX, scaled};
use crate::share::Service;
use crate::types::{AppId, Time};

impl Tags {
    /// Another forwarder told what it gave an application. What clients told of it before does not
    /// count twice.
    pub(crate) fn on_peer_service(&mut self, app: AppId, now: Time, service: &Service) {
        let number = self.number(app);
        let node = &mut self.nodes[number as usize];
        let heard = i64::try_from(service.device_ns).unwrap_or(i64::MAX);
        let known = node.told_ns.max(0);
        node.told_ns = node
            .told_ns
            .saturating_sub(heard)
            .max(-(TOLD_NS_MAX as i64));
        let new_ns = heard.saturating_sub(known).max(0) as u64;
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
            node.heard.add(now, new_ns, 0);
            self.elsewhere(one, now, &service, 0);
            self.place(one, now);
        }
    }

    /// What a client tells and no forwarder told before.
    pub(super) fn without_reported(&mut self, number: u32, elsewhere: &Service) -> Service {
        let node = &mut self.nodes[number as usize];
        let told = i64::try_from(elsewhere.device_ns).unwrap_or(i64::MAX);
        let known = (-node.told_ns).max(0);
        node.told_ns = node.told_ns.saturating_add(told).min(TOLD_NS_MAX as i64);
        let new_ns = told.saturating_sub(known).max(0) as u64;
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

    /// The device worked so long for an application. What its clients say it was given here cannot
    /// be more.
    pub(crate) fn record_device_time(&mut self, number: u32, device_ns: u64) {
        self.nodes[number as usize].gives(device_ns);
    }
}
