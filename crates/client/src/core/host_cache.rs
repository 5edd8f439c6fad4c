//! What the host caches of what was lent: attributes that it keeps where the core does not see
//! them, as a mount has them in the kernel of its node.
//!
//! Who makes a call says whether he has such a cache ([`Call::caches`](super::Call)); the answer
//! says for how long it may keep them. Where the core throws its own away it asks the host to
//! clear the cache of them too ([`Output::Invalidate`]), and waits for its word
//! ([`Input::Invalidated`](super::Input)) before others count on that: before it gives a file back
//! to a forwarder, changes it, or connects anew. It also asks when their time is over, because the
//! cache may have taken in an answer late.

use super::requests::{Id, Place};
use super::types::Output;
use super::{Core, MS, Wake};
use crate::wire::Handle;
use std::collections::{BTreeMap, BTreeSet};

/// What ends so soon after something that has ended is cleared with it, ns.
const TOGETHER: u64 = 20 * MS;

/// See the head of the file.
#[derive(Default)]
pub(super) struct HostCache {
    /// The files whose attributes the host may have, and until when, ns.
    files: BTreeMap<Handle, u64>,
    ends: BTreeSet<(u64, Handle)>,
    /// What the host is to clear its cache of.
    clearing: BTreeMap<u64, Clearing>,
    number_next: u64,
    /// When the core looks for what has ended; None: never.
    look_at: Option<u64>,
    /// Forwarders to connect to when the host caches nothing.
    wanted: BTreeSet<usize>,
}

struct Clearing {
    files: BTreeSet<Handle>,
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
    /// Connect to forwarders again.
    Connect,
}

impl HostCache {
    fn insert(&mut self, file: Handle, until: u64) {
        let old = self.files.insert(file, until);
        if let Some(old) = old {
            self.ends.remove(&(old, file));
        }
        let until = until.max(old.unwrap_or(0));
        self.files.insert(file, until);
        self.ends.insert((until, file));
    }

    fn remove(&mut self, file: Handle) {
        if let Some(until) = self.files.remove(&file) {
            self.ends.remove(&(until, file));
        }
    }

    /// Whether the host has nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.clearing.is_empty()
    }

    /// Whether the host may have a file's attributes. It may still have those that it is to clear.
    fn has(&self, file: Handle) -> bool {
        let mut clearing = self.clearing.values();
        self.files.contains_key(&file) || clearing.any(|it| it.files.contains(&file))
    }

    /// All files whose attributes the host may have.
    fn all(&self) -> Vec<Handle> {
        let clearing = self.clearing.values().flat_map(|it| &it.files);
        let all: BTreeSet<Handle> = self.files.keys().chain(clearing).copied().collect();
        all.into_iter().collect()
    }

    /// Whether nobody may connect yet: a forwarder takes back what it has lent when it is greeted.
    fn holds_connections(&self) -> bool {
        let mut clearing = self.clearing.values();
        clearing.any(|it| matches!(it.after, After::Connect))
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
        let files: BTreeSet<Handle> = files.filter(|it| self.host_cache.has(*it)).collect();
        if files.is_empty() {
            return false;
        }
        files.iter().for_each(|it| self.host_cache.remove(*it));
        let number = self.host_cache.number_next;
        self.host_cache.number_next += 1;
        self.outputs.push_back(Output::Invalidate {
            number,
            files: files.iter().copied().collect(),
        });
        let clearing = Clearing { files, after };
        self.host_cache.clearing.insert(number, clearing);
        true
    }

    /// Asks the host to clear its cache of everything.
    pub(super) fn invalidate_all(&mut self, after: After) -> bool {
        let all = self.host_cache.all();
        self.invalidate(&all, after)
    }

    /// Whether a connection to the forwarder has to wait; then it is made later.
    pub(super) fn connects_later(&mut self, forwarder: usize) -> bool {
        let later = self.host_cache.holds_connections();
        if later {
            self.host_cache.wanted.insert(forwarder);
        }
        later
    }

    /// The host has cleared its cache of something.
    pub(super) fn invalidated(&mut self, number: u64) {
        let Some(cleared) = self.host_cache.clearing.remove(&number) else {
            return;
        };
        match cleared.after {
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
            After::Connect if self.host_cache.holds_connections() => {}
            After::Connect => {
                let wanted = std::mem::take(&mut self.host_cache.wanted);
                wanted.into_iter().for_each(|it| self.connect(it));
            }
        }
    }

    /// Asks the host to clear its cache of what has ended.
    pub(super) fn end_passed_on(&mut self) {
        let until = self.now + TOGETHER;
        let ended = self.host_cache.ends.iter();
        let ended = ended.take_while(|(end, _)| *end <= until);
        let ended: Vec<Handle> = ended.map(|(_, file)| *file).collect();
        self.invalidate(&ended, After::Nothing);
        let next = self.host_cache.ends.first().map(|(end, _)| *end);
        self.host_cache.look_at = next;
        if let Some(at) = next {
            self.wakes.insert((at, Wake::HostCache));
        }
    }
}
