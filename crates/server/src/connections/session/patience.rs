//! How long a session may take for what the forwarder waits for.

use super::super::Patience;
use super::{LAST_WORDS_NS, Session, Stage};
use tidegate_sched::Time;

impl Session {
    /// Why the connection must end now, if it keeps others waiting for longer than the forwarder
    /// has patience: the client takes no replies, stopped amid a frame, sends payload too slowly,
    /// or has not sent its hello, whatever else it sent.
    pub(in super::super) fn stalled(&self, now: Time, patience: &Patience) -> Option<&'static str> {
        let limit_ns = patience.stall_ns_max;
        if self
            .last_words
            .is_some_and(|since| now.since(since) > LAST_WORDS_NS)
        {
            return Some("it was to end");
        }
        if !self.outbox.is_empty() && now.since(self.spoke) > limit_ns {
            return Some("it does not read its replies");
        }
        if !self.greeted && now.since(self.came) > patience.hello_ns_max {
            return Some("it never said hello");
        }
        if let Stage::Receiving { request, since, .. } = &self.stage
            && let Some(limit_ns) = patience.payload_ns_max(request.payload_len)
            && now.since(*since) > limit_ns
        {
            return Some("its payload came too slowly");
        }
        let moving = self.rdma.as_ref().and_then(|memory| memory.since());
        if moving.is_some_and(|since| now.since(since) > limit_ns) {
            return Some("its memory does not answer");
        }
        if self.waits_for_us() || now.since(self.heard) <= limit_ns {
            return None;
        }
        let amid = self.reader.is_amid_frame() || self.amid_record;
        amid.then_some("it stopped amid a frame")
    }
}
