//! What forwarders ask of the world: to send, to begin jobs, to take and leave seats.

use super::fabric::{Body, LinkId, Sending, reply_bytes};
use super::host::Started;
use super::servers::By;
use super::{Event, World};
use tidegate_forward::{Input, Job, JobId, Output};

impl World {
    /// Does one thing that a forwarder asks.
    pub(super) fn host_asks(&mut self, forwarder: u32, output: Output) {
        let now = self.now();
        let life = self.hosts[forwarder as usize].life;
        match output {
            Output::Send {
                conn, reply, slot, ..
            } => {
                let link = conn.0 as LinkId;
                let slot = slot.filter(|_| reply.payload_len > 0);
                let ends = self.fabric.link(link);
                let (node, open) = (ends.node, ends.open);
                let mut sent = now;
                if open {
                    let ports = (self.forwarder_port(forwarder), node);
                    let bytes = reply_bytes(&reply);
                    sent = self.send(ports, bytes, Body::Reply(link, reply));
                }
                if let Some(slot) = slot {
                    let sending = Sending {
                        forwarder,
                        life,
                        slot,
                    };
                    self.events.push(sent, Event::Sent(sending));
                }
            }
            Output::Start { job, work } => self.begin_job(forwarder, job, work),
            Output::TakeSeat { seat } => self.take_seat(forwarder, seat),
            Output::ReleaseSeat { seat } => self.seats.release(seat, forwarder as usize),
            Output::Close { conn, .. } => {
                let link = conn.0 as LinkId;
                if self.fabric.close(link) {
                    let latency = self.fabric.options.latency_ns;
                    self.events.push(now + latency, Event::LostAtNode(link));
                    self.events.push(now, Event::LostAtForwarder(link));
                }
            }
            Output::Broadcast(report) => self.broadcast(forwarder, report),
            Output::Served(served) => self.recorder.served(forwarder as u16, &served),
            Output::Free { .. }
            | Output::Log { .. }
            | Output::Reclaimed { .. }
            | Output::Drained => {}
            Output::ParsePolicy { .. } | Output::ParseShares { .. } => {
                unreachable!("nobody changes the policy")
            }
        }
    }

    fn begin_job(&mut self, forwarder: u32, job: JobId, work: Job) {
        let now = self.now();
        let host = &mut self.hosts[forwarder as usize];
        let life = host.life;
        match host.begin(now, job, work) {
            Started::At(at) => {
                let ends = Event::JobEnds {
                    forwarder,
                    life,
                    job,
                };
                self.events.push(at, ends);
            }
            // `pump_host` asks the device when.
            Started::Later => {}
            Started::AtServers(asked) => {
                let by = By::Forwarder {
                    forwarder,
                    life,
                    job,
                };
                self.ask_servers(by, asked);
            }
            Started::Now(result) => {
                let input = Input::Finished { job, result };
                self.hosts[forwarder as usize].tell(now, input);
            }
        }
    }
}
