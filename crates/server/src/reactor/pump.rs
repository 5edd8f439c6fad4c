//! What the forwarder's core asks for, done: replies, jobs, seats, slots.

use super::Reactor;
use super::output::Payload;
use crate::config::scheduler_options_on;
use crate::storage::Completion;
use std::sync::Arc;
use tidegate_forward::{ConnId, Input, Output, PolicyId, SlotId};
use tidegate_wire::frame::{encode_reply, encode_reply_shared};
use tidegate_wire::{Reply, Status};
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
            went_on |= self.flush();
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
            } => self.send(conn, op, &reply, slot),
            Output::Free { slot } => self.core.free(slot),
            Output::Start { job, work } => self.storage.submit(job, work),
            Output::TakeSeat { seat } => self.take_seat(seat),
            Output::ReleaseSeat { seat } => self.seats.release(seat),
            Output::Close { conn, reason } => {
                if let Some(found) = self.conns.get_mut(&conn) {
                    found.closing.get_or_insert(reason);
                    self.mark_dirty(conn);
                }
            }
            Output::Tell(given) => self.gossip.tell(given),
            Output::Log { text } => info!("{text}"),
            Output::ParsePolicy { policy, text } => self.parse_policy(policy, &text),
            Output::ParseShares { policy, text, keep } => self.parse_shares(policy, &text, keep),
            Output::Served(served) => {
                if let Some(trace) = &mut self.trace {
                    trace.record(&served);
                }
            }
            Output::Reclaimed { seat } => self.seats.reclaimed(seat),
            Output::Drained => self.drained = true,
        }
    }

    fn send(&mut self, conn: ConnId, op: u8, reply: &Reply, slot: Option<SlotId>) {
        let Some(found) = self.conns.get_mut(&conn) else {
            if let Some(slot) = slot {
                self.core.sent(slot);
            }
            return;
        };
        if found.outbox.is_empty() {
            found.spoke = self.core.now;
        }
        if let Some((slot, memory)) =
            slot.and_then(|slot| Some((slot, self.core.slots.memory_of(slot)?)))
        {
            let own = found.memory.as_ref();
            if own.is_some_and(|own| Arc::ptr_eq(own, &memory)) {
                let encode = |into: &mut Vec<u8>| encode_reply_shared(op, reply, into);
                found.outbox.push(encode, None);
            } else {
                // The client has come back since, and looks for the bytes at another place.
                let again = Reply {
                    result: Err(Status::TryLater),
                    payload_len: 0,
                    ..*reply
                };
                let encode = |into: &mut Vec<u8>| encode_reply(op, &again, into);
                found.outbox.push(encode, None);
            }
            // What storage has put there is the client's.
            self.core.sent(slot);
            return self.mark_dirty(conn);
        }
        match self.core.put_remote(found, op, reply, slot) {
            Ok(false) => {}
            Ok(true) => return self.mark_dirty(conn),
            Err(reason) => {
                self.core.sent(slot.expect("only a slot is put anywhere"));
                found.closing.get_or_insert(reason.into());
                return self.mark_dirty(conn);
            }
        }
        let payload = slot.map(|slot| Payload {
            slot,
            buffer: self
                .core
                .slots
                .buffer(slot)
                .expect("an admitted slot has memory"),
            len: reply.payload_len as usize,
        });
        found
            .outbox
            .push(|into| encode_reply(op, reply, into), payload);
        self.mark_dirty(conn);
    }

    /// Sends on every connection that has something to send. True if the core heard of it.
    fn flush(&mut self) -> bool {
        let now = self.core.now;
        let mut told = false;
        while let Some(id) = self.dirty.pop() {
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            conn.in_dirty = false;
            let result = conn.flush(now, &mut self.sent, &mut self.core.traffic);
            let heard_again = conn.unheard && !conn.outbox.is_full();
            conn.unheard &= !heard_again;
            let over = conn.closing.is_some() && conn.outbox.is_empty() && conn.is_heard(now);
            let closing = conn.closing.take_if(|_| over);
            for slot in self.sent.drain(..) {
                told = true;
                self.core.sent(slot);
            }
            let reason = match (result, closing) {
                (Err(error), _) => format!("sending: {error}").into(),
                (Ok(()), Some(reason)) => reason,
                (Ok(()), None) => {
                    if heard_again {
                        self.mark_ready(id);
                    }
                    continue;
                }
            };
            told = true;
            self.close(id, Some(&reason));
        }
        told
    }

    fn parse_policy(&mut self, policy: PolicyId, text: &[u8]) {
        let parsed = match std::str::from_utf8(text) {
            Ok(text) => scheduler_options_on(text, &self.scheduler, self.window_ms)
                .map_err(|error| error.to_string()),
            Err(_) => Err("the policy's text is not UTF-8".to_string()),
        };
        // The core logs what is refused.
        if let Ok(options) = &parsed {
            self.scheduler = options.clone();
        }
        let options = parsed.map_err(String::into_boxed_str);
        self.core
            .forwarder
            .handle(self.core.now, Input::PolicyParsed { policy, options });
    }
}
