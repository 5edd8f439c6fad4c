//! Operations on this forwarder, in the base order, each with its parts: the requests with one
//! shuffle, the longest shuffle first.

use crate::elevator_queue::ElevatorQueue;
use crate::flat_btree::FlatBTree;
use crate::requests::{Index, Requests};
use crate::types::Request;
use alloc::vec::Vec;
use core::cell::Cell;

/// The most parts of one operation. Further shuffles join a neighbouring part, so that a client
/// with many different shuffles does not make the requests of all clients expensive.
pub(super) const PARTS_MAX: usize = 256;

/// For so many operations without requests here, which may continue, the used slack is remembered.
const GONE_MAX: usize = 64;

/// The place of an operation in the base order. The application decides where two ranks are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) epoch: u64,
    pub(super) rank: u64,
    pub(super) app: u64,
    /// 0 for requests without shuffles.
    pub(super) stamp: u64,
}

#[derive(Default)]
struct Operation {
    key: Key,
    /// Descending by shuffle; none is empty.
    parts: Vec<u32>,
    /// The longest shuffle on any forwarder.
    shuffle_max_ns: u64,
    /// The longest shuffle here, how far it is told apart from others, and all work with it.
    first: (u64, u16),
    first_work_ns: u64,
    /// Work that was served.
    done_ns: u64,
    /// Work of others that went before although its place is behind.
    slack_used_ns: u64,
    /// When it ends here if no other overtakes it; `None` after a change, until it is asked for.
    here_ns: Cell<Option<u64>>,
}

/// The requests of one operation with one shuffle.
pub(super) struct Part {
    operation: u32,
    /// The shuffle's class: shuffles of one class count as equal.
    class: u64,
    pub(super) shuffle_ns: u64,
    /// Of the operation.
    pub(super) shuffle_max_ns: u64,
    /// The least rank of its requests.
    pub(super) rank: u16,
    /// Work that waits.
    pub(super) work_ns: u64,
    queue: ElevatorQueue,
}

/// The operations with requests that wait.
pub(super) struct Operations {
    by_key: FlatBTree<Key, u32>,
    all: Vec<Operation>,
    free: Vec<u32>,
    parts: Vec<Part>,
    parts_free: Vec<u32>,
    /// Operation and part of the last arrival; the next one is often of the same.
    last: (u32, u32),
    /// The slack that operations had used when they ran empty, the last ones, in a ring.
    gone: [(Key, u64); GONE_MAX],
    gone_at: usize,
}

impl Operations {
    pub(super) fn new() -> Operations {
        Operations {
            by_key: FlatBTree::new(),
            all: Vec::new(),
            free: Vec::new(),
            parts: Vec::new(),
            parts_free: Vec::new(),
            last: (0, 0),
            gone: [(Key::default(), 0); GONE_MAX],
            gone_at: 0,
        }
    }

    /// Those of the window that is first, in the base order.
    pub(super) fn of_first_window(&self) -> impl Iterator<Item = u32> {
        let epoch = self.by_key.first().map(|(key, _)| key.epoch);
        let all = self.by_key.iter();
        let of_window = all.take_while(move |(key, _)| Some(key.epoch) == epoch);
        of_window.map(|(_, number)| number)
    }

    /// The parts of an operation, the longest shuffle first.
    pub(super) fn parts(&self, operation: u32) -> impl Iterator<Item = (u32, &Part)> {
        let numbers = self.all[operation as usize].parts.iter();
        numbers.map(|&number| (number, &self.parts[number as usize]))
    }

    /// The part that is next of an operation.
    pub(super) fn next_part(&self, operation: u32) -> u32 {
        self.all[operation as usize].parts[0]
    }

    /// The work of that part.
    pub(super) fn next_work_ns(&self, operation: u32) -> u64 {
        self.parts[self.next_part(operation) as usize].work_ns
    }

    /// How much longer an operation can wait here without ending later than by the base order.
    ///
    /// Where its longest shuffle is, at least the work of one part comes before it: as much as its
    /// first part here, say. It ends then no sooner than so much and the longest shuffle from the
    /// moment at which it would begin here. What is left until then is its slack.
    pub(super) fn slack_ns(&self, operation: u32, percent: u64) -> u64 {
        let found = &self.all[operation as usize];
        if found.shuffle_max_ns == 0 || percent == 0 {
            return 0;
        }
        let elsewhere_ns = found.first_work_ns.saturating_add(found.shuffle_max_ns);
        let here_ns = found.here_ns.get().unwrap_or_else(|| {
            let (mut at_ns, mut here_ns) = (found.done_ns, 0);
            for (_, part) in self.parts(operation) {
                at_ns = at_ns.saturating_add(part.work_ns);
                here_ns = here_ns.max(at_ns.saturating_add(part.shuffle_ns));
            }
            found.here_ns.set(Some(here_ns));
            here_ns
        });
        let slack_ns = elsewhere_ns.saturating_sub(here_ns);
        let lendable_slack_ns = match percent {
            100 => slack_ns,
            _ => (u128::from(slack_ns) * u128::from(percent) / 100) as u64,
        };
        lendable_slack_ns.saturating_sub(found.slack_used_ns)
    }

    /// An operation waited for another one that its place is before.
    pub(super) fn uses_slack(&mut self, operation: u32, work_ns: u64) {
        let slack_used_ns = &mut self.all[operation as usize].slack_used_ns;
        *slack_used_ns = slack_used_ns.saturating_add(work_ns);
    }

    /// Finds or makes the part of a request that arrived, and counts its work.
    pub(super) fn arrived(&mut self, key: Key, request: &Request, class: u64, cost_ns: u64) -> u32 {
        let shuffle_ns = u64::from(request.shuffle_us) * 1000;
        let operation = self.operation(key);
        let number = self.part(operation, class);
        self.last = (operation, number);
        let found = &mut self.all[operation as usize];
        found.here_ns.set(None);
        let told_ns = u64::from(request.shuffle_max_us) * 1000;
        found.shuffle_max_ns = found.shuffle_max_ns.max(shuffle_ns).max(told_ns);
        let first = (class, u16::MAX - request.shuffle_rank);
        if first > found.first {
            (found.first, found.first_work_ns) = (first, 0);
        }
        if first == found.first {
            found.first_work_ns = found.first_work_ns.saturating_add(cost_ns);
        }
        let part = &mut self.parts[number as usize];
        part.shuffle_ns = part.shuffle_ns.max(shuffle_ns);
        part.shuffle_max_ns = found.shuffle_max_ns;
        part.rank = part.rank.min(request.shuffle_rank);
        part.work_ns = part.work_ns.saturating_add(cost_ns);
        number
    }

    /// The slack that an operation had used when it ran empty here.
    fn slack_used_before(&self, key: &Key) -> u64 {
        if key.stamp == 0 {
            return 0;
        }
        let same = |gone: &Key| (gone.app, gone.stamp) == (key.app, key.stamp);
        let used = self.gone.iter().filter(|(gone, _)| same(gone));
        used.map(|(_, slack_used_ns)| *slack_used_ns)
            .max()
            .unwrap_or(0)
    }

    fn operation(&mut self, key: Key) -> u32 {
        let last = self.all.get(self.last.0 as usize);
        if last.is_some_and(|last| last.key == key && !last.parts.is_empty()) {
            return self.last.0;
        }
        if let Some((found, number)) = self.by_key.at_or_after(&key)
            && found == key
        {
            return number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(Operation::default());
            self.all.len() as u32 - 1
        });
        let slack_used_ns = self.slack_used_before(&key);
        let new = &mut self.all[number as usize];
        let parts = core::mem::take(&mut new.parts);
        *new = Operation {
            key,
            parts,
            slack_used_ns,
            ..Operation::default()
        };
        self.by_key.insert(key, number);
        number
    }

    fn part(&mut self, operation: u32, class: u64) -> u32 {
        let parts = &self.parts;
        let found = &mut self.all[operation as usize];
        let at = found
            .parts
            .partition_point(|&number| parts[number as usize].class > class);
        if let Some(&number) = found.parts.get(at)
            && parts[number as usize].class == class
        {
            return number;
        }
        if found.parts.len() >= PARTS_MAX {
            return found.parts[at.min(PARTS_MAX - 1)];
        }
        let number = match self.parts_free.pop() {
            Some(number) => number,
            None => {
                self.parts.push(Part {
                    operation,
                    class,
                    shuffle_ns: 0,
                    shuffle_max_ns: 0,
                    rank: u16::MAX,
                    work_ns: 0,
                    queue: ElevatorQueue::new(),
                });
                self.parts.len() as u32 - 1
            }
        };
        found.parts.insert(at, number);
        let part = &mut self.parts[number as usize];
        (part.operation, part.class, part.rank) = (operation, class, u16::MAX);
        (part.shuffle_ns, part.shuffle_max_ns, part.work_ns) = (0, 0, 0);
        part.queue.restart();
        number
    }

    /// Whether something of a part waits.
    pub(super) fn waits(&self, part: u32) -> bool {
        !self.parts[part as usize].queue.is_empty()
    }

    pub(super) fn push(&mut self, part: u32, requests: &mut Requests, index: Index) {
        self.parts[part as usize].queue.push(requests, index);
    }

    pub(super) fn pop(&mut self, part: u32, requests: &mut Requests) -> Index {
        self.parts[part as usize].queue.pop(requests)
    }

    pub(super) fn remove(&mut self, part: u32, requests: &mut Requests, index: Index) {
        self.parts[part as usize].queue.remove(requests, index);
    }

    /// Work of a part was served.
    pub(super) fn served(&mut self, part: u32, work_ns: u64) {
        let part = &mut self.parts[part as usize];
        part.work_ns = part.work_ns.saturating_sub(work_ns);
        let found = &mut self.all[part.operation as usize];
        found.done_ns = found.done_ns.saturating_add(work_ns);
        found.here_ns.set(None);
    }

    /// Work of a part will not be served.
    pub(super) fn withdrawn(&mut self, part: u32, rank: u16, work_ns: u64) {
        let part = &mut self.parts[part as usize];
        part.work_ns = part.work_ns.saturating_sub(work_ns);
        let found = &mut self.all[part.operation as usize];
        found.here_ns.set(None);
        if (part.class, u16::MAX - rank) == found.first {
            found.first_work_ns = found.first_work_ns.saturating_sub(work_ns);
        }
    }

    /// Forgets a part when nothing is left in it, and its operation when that was its last one.
    pub(super) fn release_if_empty(&mut self, number: u32) {
        let part = &self.parts[number as usize];
        if !part.queue.is_empty() {
            return;
        }
        let operation = part.operation;
        let found = &mut self.all[operation as usize];
        found.parts.retain(|&other| other != number);
        found.here_ns.set(None);
        self.parts_free.push(number);
        if found.parts.is_empty() {
            if found.key.stamp > 0 && found.slack_used_ns > 0 {
                self.gone[self.gone_at] = (found.key, found.slack_used_ns);
                self.gone_at = (self.gone_at + 1) % GONE_MAX;
            }
            self.by_key.remove(&found.key);
            self.free.push(operation);
        }
    }
}
