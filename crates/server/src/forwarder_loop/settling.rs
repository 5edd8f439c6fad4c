//! What follows from the messages and results of a pass: commands of the forwarder, jobs, replies,
//! and results of these jobs.

use super::ForwarderLoop;
use crate::storage::Completion;

/// How often results of storage are looked at before the sockets are again. As long as one user has
/// many requests under way, there are always more results.
const ROUNDS_MAX: u32 = 4;

impl ForwarderLoop {
    /// Carries out the forwarder's commands and has replies sent, until nothing more follows from
    /// them, or until it is time to look at the sockets again.
    pub(super) fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut went_on = false;
            while let Some(output) = self.forwarder.poll(self.now) {
                self.perform(output);
                went_on = true;
                if self.storage.is_to_send() {
                    break;
                }
            }
            self.storage.flush();
            went_on |= self.take_completions();
            self.ports.hand_over();
            self.shard.take(self.ports.for_own());
            self.shard.flush();
            went_on |= self.take_from_own();
            went_on |= self.admit_waiting();
            if !went_on {
                return;
            }
        }
        self.unsettled = true;
    }

    /// Reports the ended jobs to the forwarder. True if there were any.
    pub(super) fn take_completions(&mut self) -> bool {
        self.storage.completions(&mut self.completions);
        if self.storage.failure().is_some() {
            // Another forwarder may report these jobs instead; the loop ends after this pass.
            self.completions.clear();
            return false;
        }
        let ended = !self.completions.is_empty();
        if ended {
            // Some jobs have run on this thread and taken time.
            self.tick();
        }
        let mut completions = std::mem::take(&mut self.completions);
        for Completion { job, result, .. } in completions.drain(..) {
            if let Some(output) = self.forwarder.finished(self.now, job, result) {
                self.perform(output);
            }
        }
        self.completions = completions;
        ended
    }
}
