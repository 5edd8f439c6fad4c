//! Connections of peers with uid 0 of which the process that looks at peers has not said yet
//! whether they are root's. Nobody else waits for its answers: if it is stopped, root's programs
//! come to nothing, and all others are served.

use std::collections::VecDeque;
use tidegate_net::{Origin, Question, Stream, witness::Answer};
use tidegate_sched::Time;

/// How long an answer may take, in ns.
const ANSWER_NS_MAX: u64 = 5_000_000_000;
/// How many connections wait for their answers.
const WAITING_MAX: usize = 64;
/// How long a connection has waited, in ns, that another one may end the wait of where there are as
/// many. An answer takes some 30 us.
const WAITED_NS_MIN: u64 = 100_000_000;

/// A connection whose peer has uid 0.
pub struct Unknown {
    /// The connection.
    pub stream: Stream,
    /// Who made it.
    pub origin: Origin,
    question: Question,
    since: Time,
}

/// Those that wait, the oldest first.
#[derive(Default)]
pub struct UnknownPeers {
    waiting: VecDeque<Unknown>,
}

impl UnknownPeers {
    /// Whether another connection has room. If not, there is one that has waited for long enough,
    /// or those that wait have their answers in a moment.
    pub fn have_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Lets a connection wait.
    pub fn wait(&mut self, stream: Stream, origin: Origin, question: Question, now: Time) {
        self.waiting.push_back(Unknown {
            stream,
            origin,
            question,
            since: now,
        });
    }

    /// The connection that an answer is about, unless that waits no longer.
    pub fn answered(&mut self, answer: &Answer) -> Option<Unknown> {
        let is_about = |one: &Unknown| one.question.number == answer.number;
        let at = self.waiting.iter().position(is_about)?;
        let mut one = self.waiting.remove(at)?;
        if let Some(credentials) = &mut one.origin.credentials {
            credentials.powerless = one.question.powerless(answer.found);
        }
        Some(one)
    }

    /// When the oldest one has waited for long enough.
    pub fn until(&self) -> Option<Time> {
        let limit = match self.have_room() {
            true => ANSWER_NS_MAX,
            false => WAITED_NS_MIN,
        };
        self.waiting.front().map(|oldest| oldest.since + limit)
    }

    /// The oldest one, if it has waited for long enough. It is not known to be root's.
    pub fn overdue(&mut self, now: Time) -> Option<Unknown> {
        self.until().filter(|until| *until <= now)?;
        self.waiting.pop_front()
    }

    /// The oldest one, where no answer will come any more.
    pub fn given_up(&mut self) -> Option<Unknown> {
        self.waiting.pop_front()
    }

    /// Ends all of them.
    pub fn close(&mut self) {
        self.waiting.clear();
    }
}
