//! What the host caches of what was lent: attributes that it keeps where the core does not see
//! them, as a mount has them in the kernel of its node.
//!
//! Who makes a call says whether he has such a cache ([`Call::caches`](super::Call)); the answer
//! says for how long it may keep them. Where the core throws its own away it asks the host to
//! clear the cache of them too ([`Output::Invalidate`]), and waits for its word
//! ([`Input::Invalidated`](super::Input)) before others count on that: before it gives a file back
//! to a forwarder, changes it, or greets a forwarder. It also asks when their time is over, because
//! the cache may have taken in an answer late.

use super::requests::{Id, Place};
use super::types::Output;
use super::{Core, MS, Wake};
use crate::wire::Handle;
use std::collections::{BTreeMap, VecDeque};

/// What ends so soon after something that has ended is cleared with it, ns.
const TOGETHER: u64 = 20 * MS;

/// See the head of the file. Its collections are those that the core has anyway: each further kind
/// would make every program larger that loads the client.
#[derive(Default)]
pub(super) struct HostCache {
    /// The files whose attributes the host may have.
    files: BTreeMap<Handle, Cached>,
    /// When to look after each of them, the first one first.
    ends: VecDeque<(u64, Handle)>,
    /// What the host is to clear its cache of.
    clearing: Vec<Clearing>,
    /// How many of these each file is in.
    in_clearing: BTreeMap<Handle, u64>,
    number_next: u64,
    /// Until when the host may have something of files whose names the client has forgotten, ns.
    pub(super) doubt_until: u64,
    /// When the core looks for what has ended; None: never.
    look_at: Option<u64>,
}

struct Cached {
    /// Until when, ns.
    until: u64,
    /// The time of its entry in `ends`; others are of what was cleared before.
    queued: u64,
}

struct Clearing {
    number: u64,
    files: Vec<Handle>,
    after: After,
}

/// What to do when the host has cleared its cache of something.
pub(super) enum After {
    Nothing,
    /// Give the file back to the forwarder, on the connection of this number.
    GiveBack {
        forwarder: usize,
        incarnation: u64,
        file: Handle,
    },
    /// Send this request.
    Change(Id),
    /// Greet the forwarders that wait for it.
    Greet,
}

impl HostCache {
    fn insert(&mut self, file: Handle, until: u64) {
        if let Some(known) = self.files.get_mut(&file) {
            known.until = until.max(known.until);
            return;
        }
        let queued = until;
        self.files.insert(file, Cached { until, queued });
        self.look_after(file, until);
    }

    fn look_after(&mut self, file: Handle, until: u64) {
        let at = self.ends.partition_point(|(end, _)| *end <= until);
        self.ends.insert(at, (until, file));
    }

    /// The files that have ended by this time.
    fn ended(&mut self, until: u64) -> Vec<Handle> {
        let mut ended = Vec::new();
        while self.ends.front().is_some_and(|(end, _)| *end <= until)
            && let Some((end, file)) = self.ends.pop_front()
        {
            let cached = self.files.get_mut(&file);
            let Some(cached) = cached.filter(|cached| cached.queued == end) else {
                continue;
            };
            if cached.until <= until {
                ended.push(file);
                continue;
            }
            cached.queued = cached.until;
            let later = cached.until;
            self.look_after(file, later);
        }
        ended
    }

    /// How many times there are at which the core looks for what has ended.
    #[cfg(test)]
    pub(super) fn looks(&self) -> usize {
        self.ends.len()
    }

    /// Whether the host has nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.clearing.is_empty()
    }

    /// Whether the host may have a file's attributes. It may still have those that it is to clear.
    fn has(&self, file: Handle) -> bool {
        self.files.contains_key(&file) || self.in_clearing.contains_key(&file)
    }

    /// Notes that the host is to clear its cache of these files; returns the number of that.
    fn begin(&mut self, files: Vec<Handle>, after: After) -> u64 {
        for file in &files {
            self.files.remove(file);
            *self.in_clearing.entry(*file).or_default() += 1;
        }
        let number = self.number_next;
        self.number_next += 1;
        self.clearing.push(Clearing {
            number,
            files,
            after,
        });
        number
    }

    /// The host has done it. Returns what to do now.
    fn end(&mut self, number: u64) -> Option<After> {
        let at = self.clearing.iter().position(|it| it.number == number)?;
        let cleared = self.clearing.remove(at);
        for file in &cleared.files {
            let count = self.in_clearing.get_mut(file)?;
            *count -= 1;
            if *count == 0 {
                self.in_clearing.remove(file);
            }
        }
        Some(cleared.after)
    }

    /// Whether nobody may be greeted yet.
    pub(super) fn holds_greetings(&self) -> bool {
        let mut clearing = self.clearing.iter();
        clearing.any(|it| matches!(it.after, After::Greet))
    }
}

impl Core {
    /// Notes that the host may cache a file's attributes until then, ns.
    pub(super) fn cached(&mut self, file: Handle, until: u64) {
        self.host_cache.insert(file, until);
        let look_at = &mut self.host_cache.look_at;
        if look_at.is_none_or(|at| until < at) {
            *look_at = Some(until);
            self.wakes.insert((until, Wake::HostCache));
        }
    }

    /// Asks the host to clear its cache of these files. False if it has nothing of them.
    pub(super) fn invalidate(&mut self, files: &[Handle], after: After) -> bool {
        let files = files.iter().copied();
        let mut files: Vec<Handle> = files.filter(|it| self.host_cache.has(*it)).collect();
        files.dedup();
        if files.is_empty() {
            return false;
        }
        let is_waited_for = matches!(after, After::Change(_));
        let number = self.host_cache.begin(files.clone(), after);
        self.outputs.push_back(Output::Invalidate {
            number,
            files,
            is_waited_for,
        });
        true
    }

    /// Asks the host to clear its cache of everything.
    pub(super) fn invalidate_all(&mut self, after: After) -> bool {
        let cache = &self.host_cache;
        let mut all: Vec<Handle> = cache.files.keys().copied().collect();
        let clearing = cache.in_clearing.keys();
        all.extend(clearing.filter(|it| !cache.files.contains_key(it)));
        self.invalidate(&all, after)
    }

    /// The host has cleared its cache of something.
    pub(super) fn invalidated(&mut self, number: u64) {
        let Some(after) = self.host_cache.end(number) else {
            return;
        };
        match after {
            After::Nothing => {}
            After::GiveBack {
                forwarder,
                incarnation,
                file,
            } => {
                if self.sessions[forwarder].incarnation() == incarnation {
                    self.give_back(forwarder, file);
                }
            }
            After::Change(id) => {
                let Some(pending) = self.requests.get_mut(&id) else {
                    return;
                };
                pending.held_by_host = false;
                if pending.place == Place::Host {
                    self.put(id, Place::Nowhere);
                    self.route(id);
                }
            }
            After::Greet if self.host_cache.holds_greetings() => {}
            After::Greet => {
                let sessions = 0..self.sessions.len();
                sessions.for_each(|forwarder| self.greet_if_due(forwarder));
            }
        }
    }

    /// Asks the host to clear its cache of what has ended.
    pub(super) fn end_cached(&mut self) {
        let ended = self.host_cache.ended(self.now + TOGETHER);
        self.invalidate(&ended, After::Nothing);
        let next = self.host_cache.ends.front().map(|(end, _)| *end);
        self.host_cache.look_at = next;
        if let Some(at) = next {
            self.wakes.insert((at, Wake::HostCache));
        }
    }
}
