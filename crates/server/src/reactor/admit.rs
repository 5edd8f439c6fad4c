//! Requests of connections on their way to the forwarder's core: a slot for each payload, delays,
//! and the fault that tests ask for.

use super::conn::{Conn, Stage};
use super::jitter::Held;
use super::receive::Door;
use super::remote::Asked;
use super::sockets::Desk;
use super::traffic::Traffic;
use super::{Core, Reactor};
use crate::storage::{SharedMemory, SlotBuffer};
use std::sync::Arc;
use tidegate_forward::{Admission, ConnId, Input, SlotId};
use tidegate_sched::Time;
use tidegate_wire::{Op, Request};

/// A request whose payload, or whose slot, is due.
pub struct Due {
    /// The request.
    pub request: Box<Request>,
    /// Where its payload goes, if it is kept.
    pub slot: Option<SlotId>,
}

/// What becomes of a request that has come.
pub enum Admitted {
    /// The core has it.
    Taken,
    /// Its payload is due: into this buffer, or thrown away.
    Payload(Due, Option<SlotBuffer>),
    /// The pool has no slot for it.
    Wait(Box<Request>),
}

impl Reactor {
    /// Asks again for the requests that wait for a slot, in order of arrival. The first for which
    /// there is none ends it: the core lets nobody pass where that takes from those before.
    pub(super) fn admit_waiting(&mut self) {
        for _ in 0..self.core.waiting.len() {
            let id = self
                .core
                .waiting
                .pop_front()
                .expect("its length was counted");
            let Some(conn) = self.sockets.conns.get_mut(&id) else {
                if let Some(Asked::Waits) = self.remotes.ask_again(&mut self.core, id) {
                    return self.core.waits_first(id);
                }
                continue;
            };
            conn.stage = Stage::Head;
            let due = conn.due.take().expect("a connection waits with a request");
            let admitted = match conn.take_waiting_place() {
                Some(place) => self.core.admit_remote(conn, due.request, place),
                None => self.core.request_of(conn, due.request),
            };
            match admitted {
                Ok(()) if matches!(conn.stage, Stage::Waiting { .. }) => {
                    self.core.waiting.pop_back();
                    return self.core.waits_first(id);
                }
                Ok(()) => self.sockets.mark_ready(id),
                Err(reason) => self.sockets.close(id, Some(&reason), &mut self.core),
            }
        }
    }
}

impl Desk for Core {
    fn now(&self) -> Time {
        self.now
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn door(&self) -> &Door {
        &self.door
    }

    fn request(
        &mut self,
        conn: &mut Conn,
        request: Box<Request>,
        place: Option<u64>,
    ) -> Result<(), String> {
        match place {
            Some(place) if conn.remote.is_some() => self.admit_remote(conn, request, place),
            Some(place) => {
                let memory = conn.memory.as_ref().expect("the place was checked");
                self.admit_shared(conn.id, request, memory, place)
            }
            None => self.request_of(conn, request),
        }
    }

    fn moved(&mut self, conn: &mut Conn) -> Result<(), String> {
        self.take_moved(conn)
    }

    fn payload(&mut self, conn: &mut Conn) {
        let Due { request, slot } = conn.due.take().expect("its payload was due");
        self.received(conn.id, request, slot);
    }

    fn sent(&mut self, slot: SlotId) {
        self.slots.free(slot);
        self.freed = true;
        self.forwarder.handle(self.now, Input::Sent { slot });
    }

    fn closed(&mut self, conn: ConnId) {
        if let Some(jitter) = &mut self.jitter {
            jitter.forget(conn);
        }
        self.memory.ended();
        self.freed = true;
        self.forwarder.handle(self.now, Input::Closed { conn });
    }
}

impl Core {
    /// A connection stays the first of those that wait, and its part of the pool is kept for it,
    /// so there is nothing for those behind it: thousands may wait.
    fn waits_first(&mut self, id: ConnId) {
        self.waiting.push_front(id);
    }

    /// A request of one of this thread's connections. Without room the connection waits with it.
    fn request_of(&mut self, conn: &mut Conn, request: Box<Request>) -> Result<(), String> {
        match self.admit(conn.id, request, conn.stream.link().is_none())? {
            Admitted::Taken => {}
            Admitted::Payload(due, buffer) => {
                conn.payload_due(due.request.payload_len, buffer);
                conn.due = Some(due);
            }
            Admitted::Wait(request) => self.waits(conn, request),
        }
        Ok(())
    }

    /// A connection of this thread waits with its request.
    pub(super) fn waits(&mut self, conn: &mut Conn, request: Box<Request>) {
        let payload_len = request.payload_len;
        conn.stage = Stage::Waiting { payload_len };
        conn.due = Some(Due {
            request,
            slot: None,
        });
        self.waiting.push_back(conn.id);
    }

    /// Asks where a request's payload goes. `pages`: its connection can send pages of a file.
    pub(super) fn admit(
        &mut self,
        conn: ConnId,
        request: Box<Request>,
        pages: bool,
    ) -> Result<Admitted, String> {
        let payload_len = request.payload_len;
        let slot = match self.forwarder.admit(self.now, conn, &request) {
            Admission::NoPayload if payload_len > 0 => {
                let slot = None;
                return Ok(Admitted::Payload(Due { request, slot }, None));
            }
            Admission::NoPayload => None,
            Admission::Slot { slot, len } => {
                assert!(len >= payload_len, "the slot has room for the payload");
                self.note_stale(slot);
                let buffer = self.slots.open(slot, len);
                if let Op::Read { extents, .. } = &request.op
                    && extents.rest.is_empty()
                    && pages
                {
                    self.slots.set_to_send(slot, len);
                }
                let slot = Some(slot);
                if payload_len > 0 {
                    return Ok(Admitted::Payload(Due { request, slot }, Some(buffer)));
                }
                slot
            }
            Admission::Wait => return Ok(Admitted::Wait(request)),
            Admission::Refuse(reason) => return Err(reason.into()),
        };
        self.received(conn, request, slot);
        Ok(Admitted::Taken)
    }

    /// Takes a request whose payload lies in the client's memory.
    pub(super) fn admit_shared(
        &mut self,
        conn: ConnId,
        request: Box<Request>,
        memory: &Arc<SharedMemory>,
        place: u64,
    ) -> Result<(), String> {
        match self.forwarder.admit_shared(self.now, conn, &request) {
            Admission::NoPayload => self.received(conn, request, None),
            Admission::Slot { slot, len } => {
                self.note_stale(slot);
                self.slots.open_shared(slot, Arc::clone(memory), place, len);
                self.received(conn, request, Some(slot));
            }
            Admission::Wait => unreachable!("a client's own memory needs no room in the pool"),
            Admission::Refuse(reason) => return Err(reason.into()),
        }
        Ok(())
    }

    /// The core has freed a slot that it gives anew; its word of that may still be to be polled.
    pub(super) fn note_stale(&mut self, slot: SlotId) {
        if self.slots.buffer(slot).is_some() {
            self.stale_frees.push(slot);
        }
    }

    pub(super) fn received(&mut self, conn: ConnId, request: Box<Request>, slot: Option<SlotId>) {
        if !is_session_op(&request.op) {
            self.requests += 1;
            if self.kill_at_request == Some(self.requests) {
                kill_self();
            }
        }
        match &mut self.jitter {
            Some(jitter) if !is_session_op(&request.op) => {
                let held = Held {
                    conn,
                    request,
                    slot,
                };
                jitter.hold(self.now, held);
            }
            _ => self.arrived(conn, *request, slot),
        }
    }

    /// Hands over the delayed requests that are due.
    pub(super) fn take_delayed(&mut self) {
        while let Some(held) = self
            .jitter
            .as_mut()
            .and_then(|jitter| jitter.take(self.now))
        {
            self.arrived(held.conn, *held.request, held.slot);
        }
    }

    fn arrived(&mut self, conn: ConnId, request: Request, slot: Option<SlotId>) {
        if matches!(request.op, Op::Status) {
            self.tell_counts();
        }
        let input = Input::Received {
            conn,
            request,
            slot,
        };
        self.forwarder.handle(self.now, input);
    }

    /// The core needs a slot no longer.
    pub(super) fn free(&mut self, slot: SlotId) {
        match self.stale_frees.iter().position(|stale| *stale == slot) {
            Some(at) => drop(self.stale_frees.swap_remove(at)),
            None => self.slots.free(slot),
        }
        self.freed = true;
    }
}

fn is_session_op(op: &Op) -> bool {
    matches!(
        op,
        Op::Hello(_)
            | Op::Bye
            | Op::Ping
            | Op::Status
            | Op::SetPolicy { .. }
            | Op::SetShares { .. }
            | Op::Drain { .. }
            | Op::Application { .. }
    )
}

/// The fault that tests ask for: as abrupt as `kill -9`.
fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
