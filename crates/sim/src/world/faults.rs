//! Faults of a run: forwarders that become slow, die and come back.

use super::{Event, FaultKind, World};

impl World {
    pub(super) fn fault(&mut self, number: u32) {
        let fault = self.faults[number as usize];
        let forwarder = u32::from(fault.forwarder);
        let index = forwarder as usize;
        match fault.kind {
            FaultKind::Slow { percent } => {
                let now = self.now();
                if let Some(device) = &mut self.hosts[index].device {
                    device.is_slow(now, percent);
                }
                self.wake_host_later(forwarder);
            }
            FaultKind::Dead => {
                self.hosts[index].die();
                if let Some(servers) = &mut self.servers {
                    servers.caller_dies(forwarder);
                }
                self.seats.died(index);
                let noticed = self.now() + self.fabric.options.latency_ns;
                for link in self.fabric.links_of(forwarder) {
                    self.fabric.close(link);
                    self.events.push(noticed, Event::LostAtNode(link));
                }
            }
            FaultKind::Back => {
                if self.hosts[index].core.is_none() {
                    self.start_host(index);
                    self.pump_host(forwarder);
                }
            }
        }
    }
}
