//! What the forwarder's core asks for, done: replies, jobs, seats, slots.

use super::output::{Body, Payload};
use super::sockets::Desk;
use super::{Core, Reactor};
use crate::storage::Completion;
use tidegate_forward::{ConnId, Input, Output, SlotId};
use tidegate_wire::Reply;
use tracing::info;

impl Reactor {
    /// Does what is asked and sends what is to be sent, until nothing more follows from it.
    pub(super) fn settle(&mut self) {
        loop {
            let now = self.core.now;
            let mut went_on = false;
            while let Some(output) = self.core.forwarder.poll(now) {
                self.perform(output);
                went_on = true;
            }
            self.storage.flush();
            went_on |= self.take_completions();
            self.remotes.hand_over();
            went_on |= self.sockets.flush(&mut self.core);
            if std::mem::take(&mut self.core.freed) && !self.core.waiting.is_empty() {
                self.admit_waiting();
                went_on = true;
            }
            if !went_on {
                return;
            }
        }
    }

    /// Tells the core which jobs have ended. True if there were any.
    pub(super) fn take_completions(&mut self) -> bool {
        self.storage.completions(&mut self.completions);
        if self.storage.failure().is_some() {
            // What ends now may be told by another forwarder; the loop ends after this pass.
            self.completions.clear();
            return false;
        }
        let ended = !self.completions.is_empty();
        if ended {
            // Some have taken their time on this thread.
            self.tick();
        }
        let now = self.core.now;
        for Completion { job, result } in self.completions.drain(..) {
            let input = Input::Finished { job, result };
            self.core.forwarder.handle(now, input);
        }
        ended
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Send {
                conn,
                op,
                reply,
                slot,
            } => self.send(conn, op, reply, slot),
            Output::Free { slot } => self.core.free(slot),
            Output::Start { job, work } => self.storage.submit(job, work),
            Output::TakeSeat { seat } => self.take_seat(seat),
            Output::ReleaseSeat { seat } => self.seats.release(seat),
            Output::Close { conn, reason } => {
                if let Some(found) = self.sockets.conns.get_mut(&conn) {
                    found.closing.get_or_insert(reason);
                    self.sockets.mark_dirty(conn);
                } else {
                    self.remotes.close(conn, reason);
                }
            }
            Output::Tell(given) => self.gossip.tell(given),
            Output::Log { text } => info!("{text}"),
            Output::ParsePolicy { policy, text, keep } => self.parse_policy(policy, &text, keep),
            Output::ParseShares { policy, text, keep } => self.parse_shares(policy, &text, keep),
            Output::Served(served) => {
                if let Some(trace) = &mut self.trace {
                    trace.record(&served);
                }
            }
            Output::Reclaimed { seat } => self.seats.reclaimed(seat),
            Output::Drained => {
                self.drained = true;
                self.remotes.flush();
            }
        }
    }

    fn send(&mut self, conn: ConnId, op: u8, reply: Reply, slot: Option<SlotId>) {
        let body = self.core.body(slot, reply.payload_len);
        if let Some(found) = self.sockets.conns.get_mut(&conn)
            && !matches!(body, Body::Shared(_))
        {
            match self.core.put_remote(found, op, &reply, slot) {
                Ok(false) => {}
                Ok(true) => return self.sockets.mark_dirty(conn),
                Err(reason) => {
                    self.core.sent(slot.expect("only a slot is put anywhere"));
                    found.closing.get_or_insert(reason.into());
                    return self.sockets.mark_dirty(conn);
                }
            }
        }
        // What storage has put into shared memory is the client's by now.
        let mut done = matches!(body, Body::Shared(_));
        match self.sockets.conns.get_mut(&conn) {
            Some(found) => {
                found.answer(self.core.now, op, &reply, body);
                self.sockets.mark_dirty(conn);
            }
            None => done |= !self.remotes.answer(conn, op, reply, body),
        }
        if let Some(slot) = slot.filter(|_| done) {
            self.core.sent(slot);
        }
    }
}

impl Core {
    /// What follows a reply that carries a slot's bytes, or none.
    fn body(&self, slot: Option<SlotId>, payload_len: u32) -> Body {
        let Some(slot) = slot else {
            return Body::Nothing;
        };
        if let Some(memory) = self.slots.memory_of(slot) {
            return Body::Shared(memory);
        }
        let buffer = self.slots.buffer(slot);
        Body::Payload(Payload {
            slot,
            buffer: buffer.expect("an admitted slot has memory"),
            len: payload_len as usize,
        })
    }
}
