//! From bytes that came to requests that the forwarder's core has.

use super::conn::{Conn, Fill, Stage};
use super::jitter::Held;
use super::fabric::memory_registered;
use super::{Core, Reactor};
use crate::storage::SharedMemory;
use std::io::ErrorKind;
use std::sync::Arc;
use tidegate_forward::{Admission, ConnId, Errno, Input, SlotId};
use tidegate_wire::frame::{encode_reply, op_code};
use tidegate_wire::{Op, Outcome, Reply, Request, Status};
use tracing::info;

use super::input::Step;

/// Bytes that one connection may bring in one pass, so that others have their turn.
const PASS_BYTES_MAX: usize = 1 << 20;

const ENOSYS: Errno = Errno(38);

/// What reading a connection came to.
enum Turn {
    /// It may have more.
    Again,
    /// Nothing until the socket or the pool says so.
    Later,
    /// The peer is gone.
    End,
}

impl Reactor {
    /// Reads one connection, as far as its part of the pass goes.
    pub(super) fn serve(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.in_ready = false;
        let turn = self.core.take_moved(conn);
        let turn = turn.and_then(|()| self.core.receive(conn));
        self.core.traffic.copied_bytes += conn.reader.rest();
        let to_send = !conn.outbox.is_empty() || conn.closing.is_some();
        match turn {
            Ok(Turn::Later) => {}
            Ok(Turn::Again) => self.mark_ready(id),
            Ok(Turn::End) => return self.close(id, None),
            Err(reason) => return self.close(id, Some(&reason)),
        }
        if to_send {
            self.mark_dirty(id);
        }
    }

    /// Asks again for the requests that wait for a slot, in order of arrival. The first for which
    /// there is none ends it: the core lets nobody pass where that takes from those before.
    pub(super) fn admit_waiting(&mut self) {
        for _ in 0..self.core.waiting.len() {
            let id = self
                .core
                .waiting
                .pop_front()
                .expect("its length was counted");
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            let Stage::Waiting(request) = std::mem::replace(&mut conn.stage, Stage::Head) else {
                unreachable!("a connection waits with one request");
            };
            let admitted = match conn.take_waiting_place() {
                Some(place) => self.core.admit_remote(conn, request, place),
                None => self.core.admit(conn, request),
            };
            match admitted {
                Ok(()) if matches!(conn.stage, Stage::Waiting(_)) => {
                    // It stays the first, and its part of the pool is kept for it, so there is
                    // nothing for those behind it: thousands may wait.
                    self.core.waiting.rotate_right(1);
                    return;
                }
                Ok(()) => self.mark_ready(id),
                Err(reason) => self.close(id, Some(&reason)),
            }
        }
    }
}

impl Core {
    /// Uses what a connection sends. An error is the reason why its session ends.
    fn receive(&mut self, conn: &mut Conn) -> Result<Turn, String> {
        let (mut bytes, mut drained) = (0, false);
        loop {
            if conn.closing.is_some() || matches!(conn.stage, Stage::Waiting(_)) {
                return Ok(Turn::Later);
            }
            if conn.outbox.is_full() {
                conn.unheard = true;
                return Ok(Turn::Later);
            }
            match conn.step().map_err(|error| error.to_string())? {
                Step::More if drained => return Ok(Turn::Later),
                Step::More if bytes >= PASS_BYTES_MAX => return Ok(Turn::Again),
                Step::More => match conn.fill(self.now).map_err(|error| error.to_string())? {
                    fill @ (Fill::Some(count) | Fill::Last(count)) => {
                        self.traffic.receives += 1;
                        self.traffic.received_bytes += count as u64;
                        bytes += count;
                        drained = matches!(fill, Fill::Last(_));
                    }
                    Fill::Blocked => {
                        self.traffic.receives_empty += 1;
                        return Ok(Turn::Later);
                    }
                    Fill::End if conn.reader.is_amid_frame() => {
                        return Err("the connection ended amid a frame".to_string());
                    }
                    Fill::End => return Ok(Turn::End),
                },
                Step::Request(request, place) => self.request_came(conn, request, place)?,
                Step::Payload => self.payload_came(conn),
                Step::UnknownOp { id, op } => {
                    if !conn.greeted {
                        return Err("the first frame is no hello".to_string());
                    }
                    info!(peer = conn.peer, op, "unknown operation answered ENOSYS");
                    refuse(conn, id, op, ENOSYS);
                }
            }
        }
    }

    fn request_came(
        &mut self,
        conn: &mut Conn,
        request: Box<Request>,
        place: Option<u64>,
    ) -> Result<(), String> {
        if !conn.greeted {
            let Op::Hello(hello) = &request.op else {
                return Err("the first frame is no hello".to_string());
            };
            conn.greeted = true;
            if let (Some(challenge), Some(secret)) = (conn.challenge.take(), &self.secret)
                && !secret.proves(&challenge, hello)
            {
                info!(peer = conn.peer, "hello refused: wrong secret");
                refuse(conn, request.id, op_code(&request.op), Errno::EACCES);
                conn.closing = Some("wrong secret".into());
                return Ok(());
            }
        }
        if let Op::ShareMemory { bytes } = request.op {
            memory_offered(conn, &request, bytes, self.shared_memory);
            return Ok(());
        }
        if let Some(result) = memory_registered(conn, &request.op) {
            answer(conn, request.id, op_code(&request.op), result);
            return Ok(());
        }
        match place {
            Some(place) if conn.remote.is_some() => self.admit_remote(conn, request, place),
            Some(place) => self.admit_shared(conn, request, place),
            None => self.admit(conn, request),
        }
    }

    /// Takes a request whose payload lies in the client's memory.
    fn admit_shared(
        &mut self,
        conn: &mut Conn,
        request: Box<Request>,
        place: u64,
    ) -> Result<(), String> {
        let Some(memory) = &conn.memory else {
            return Err("payload in memory that was not offered".to_string());
        };
        let (Op::Read { extents, .. } | Op::Write { extents, .. }) = &request.op else {
            return Err("shared memory with an operation that has none".to_string());
        };
        // Before a slot is given, which would never be opened.
        if !u32::try_from(extents.bytes()).is_ok_and(|len| memory.holds(place, len)) {
            return Err("payload outside its memory".to_string());
        }
        match self.forwarder.admit_shared(self.now, conn.id, &request) {
            Admission::NoPayload => self.received(conn.id, request, None),
            Admission::Slot { slot, len } => {
                self.note_stale(slot);
                let memory = Arc::clone(memory);
                self.slots.open_shared(slot, memory, place, len);
                self.received(conn.id, request, Some(slot));
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

    /// Asks where a request's payload goes. Without room the connection waits, with the request.
    fn admit(&mut self, conn: &mut Conn, request: Box<Request>) -> Result<(), String> {
        let payload_len = request.payload_len;
        match self.forwarder.admit(self.now, conn.id, &request) {
            Admission::NoPayload if payload_len > 0 => {
                conn.reader.discard_payload(payload_len);
                conn.stage = Stage::Discarding(request);
            }
            Admission::NoPayload => self.received(conn.id, request, None),
            Admission::Slot { slot, len } => {
                assert!(len >= payload_len, "the slot has room for the payload");
                self.note_stale(slot);
                let buffer = self.slots.open(slot, len);
                if let Op::Read { extents, .. } = &request.op
                    && extents.rest.is_empty()
                    && conn.stream.link().is_none()
                {
                    self.slots.set_to_send(slot, len);
                }
                if payload_len > 0 {
                    conn.reader.keep_payload(payload_len);
                    conn.stage = Stage::Receiving {
                        request,
                        slot,
                        buffer,
                    };
                } else {
                    self.received(conn.id, request, Some(slot));
                }
            }
            Admission::Wait => {
                conn.stage = Stage::Waiting(request);
                self.waiting.push_back(conn.id);
            }
            Admission::Refuse(reason) => return Err(reason.into()),
        }
        Ok(())
    }

    fn payload_came(&mut self, conn: &mut Conn) {
        match std::mem::replace(&mut conn.stage, Stage::Head) {
            Stage::Receiving { request, slot, .. } => self.received(conn.id, request, Some(slot)),
            Stage::Discarding(request) => self.received(conn.id, request, None),
            Stage::Head | Stage::Waiting(_) => unreachable!("no payload was due"),
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

    /// The bytes of a reply are out, or will never be.
    pub(super) fn sent(&mut self, slot: SlotId) {
        self.slots.free(slot);
        self.freed = true;
        self.forwarder.handle(self.now, Input::Sent { slot });
    }
}

/// Maps what a client offers, and tells it.
fn memory_offered(conn: &mut Conn, request: &Request, bytes: u64, wanted: bool) {
    let mapped = match conn.stream.take_descriptor() {
        Some(fd) if wanted && conn.memory.is_none() => SharedMemory::map(&fd, bytes),
        _ => Err(ErrorKind::Unsupported.into()),
    };
    let result = match mapped {
        Ok(memory) => {
            conn.memory = Some(Arc::new(memory));
            Ok(Outcome::Done)
        }
        Err(error) => {
            info!(peer = conn.peer, %error, "shared memory refused");
            Err(Status::Errno(Errno::EOPNOTSUPP.0))
        }
    };
    answer(conn, request.id, op_code(&request.op), result);
}

/// Refuses a request that the core does not see.
fn refuse(conn: &mut Conn, id: u64, op: u8, errno: Errno) {
    answer(conn, id, op, Err(Status::Errno(errno.0)));
}

fn answer(conn: &mut Conn, id: u64, op: u8, result: Result<Outcome, Status>) {
    let reply = Reply {
        id,
        seat: 0,
        generation: 0,
        epoch: 0,
        charged_ns: 0,
        result,
        payload_len: 0,
    };
    conn.outbox
        .push(|into| encode_reply(op, &reply, into), None);
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
            | Op::Application { .. }
    )
}

/// The fault that tests ask for: as abrupt as `kill -9`.
fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
