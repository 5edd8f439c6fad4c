//! When the world looks at a forwarder, its device or a node although nothing has reached it.

use super::{Event, World};

impl World {
    /// Looks at what was to be looked at now, unless that has happened since.
    pub(super) fn wake(&mut self, event: &Event) {
        let now = self.now();
        match *event {
            Event::WakeForwarder(forwarder) => {
                let host = &mut self.hosts[forwarder as usize];
                if host.wakes_at <= now {
                    host.wakes_at = u64::MAX;
                    self.pump_host(forwarder);
                }
            }
            Event::WakeDevice(forwarder) => {
                let host = &mut self.hosts[forwarder as usize];
                if let Some(device) = &mut host.device
                    && device.wakes_at <= now
                {
                    device.wakes_at = u64::MAX;
                    host.device_advances(now);
                    self.pump_host(forwarder);
                }
            }
            Event::WakeNode(node) if self.nodes[node as usize].wakes_at <= now => {
                self.nodes[node as usize].wakes_at = u64::MAX;
                self.pump_node(node);
            }
            _ => {}
        }
    }

    /// Has a forwarder and its device looked at when they ask for it.
    pub(super) fn wake_host_later(&mut self, forwarder: u32) {
        let host = &mut self.hosts[forwarder as usize];
        if let Some(at) = host.wake_at()
            && at < host.wakes_at
        {
            host.wakes_at = at;
            self.events.push(at, Event::WakeForwarder(forwarder));
        }
        if let Some(device) = &mut host.device
            && let Some(at) = device.next()
            && at < device.wakes_at
        {
            device.wakes_at = at;
            self.events.push(at, Event::WakeDevice(forwarder));
        }
    }

    /// Has a node looked at when it asks for it.
    pub(super) fn wake_node_later(&mut self, node: u32) {
        let at_node = &mut self.nodes[node as usize];
        if let Some(at) = at_node.wake_at()
            && at < at_node.wakes_at
        {
            at_node.wakes_at = at;
            self.events.push(at, Event::WakeNode(node));
        }
    }
}
