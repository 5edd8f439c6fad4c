//! Handle-based round robin (HBRR) of the I/O forwarding layer IOFSL (Ohta et al., 2010).
//!
//! One queue entry for each file and direction. The first entry has its turn: up to `quantum`
//! ranges leave as one list call, and the entry goes to the end if it has more. Adjacent requests
//! count as one range, as in the paper's tree of merged ranges. The paper's text counts the quantum
//! over a round, its code over an entry; this policy follows the code, because a turn that moves on
//! to the next file cannot be one call.

use crate::hash_table::{HashTable, NONE, put};
use crate::merge::Merge;
use crate::options::Options;
use crate::policy::{Bound, Pick, Policy, PolicySpec};
use crate::policy_options::OptionSpec;
use crate::requests::{Index, List, Requests};
use crate::types::{Direction, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// IOFSL's default.
const QUANTUM: OptionSpec = OptionSpec::integer(
    "quantum",
    8,
    [1, 4096],
    "ranges of one file and direction in one turn",
);

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "round-robin",
    options: &[QUANTUM],
    merges: true,
    keeps_shares: false,
    make: |options| Ok(Box::new(RoundRobin::new(options))),
};

struct RoundRobin {
    quantum: u64,
    merge: Merge,
    entries: Vec<Entry>,
    entries_free: Vec<u32>,
    /// By direction: the entry of each file.
    by_file: [HashTable; 2],
    /// The entries that have requests, the next to have its turn first.
    head: u32,
    tail: u32,
}

struct Entry {
    direction: Direction,
    queue: List,
    next: u32,
    prev: u32,
}

impl RoundRobin {
    fn new(options: &Options) -> RoundRobin {
        RoundRobin {
            quantum: options.table.integer(&QUANTUM),
            merge: Merge::new(options),
            entries: Vec::new(),
            entries_free: Vec::new(),
            by_file: [HashTable::new(), HashTable::new()],
            head: NONE,
            tail: NONE,
        }
    }

    fn entry_for(&mut self, file: u64, direction: Direction) -> u32 {
        let found = self.by_file[direction as usize].find(file);
        if found != NONE {
            return found;
        }
        let entry = Entry {
            direction,
            queue: List::new(),
            next: NONE,
            prev: NONE,
        };
        let number = put(&mut self.entries, &mut self.entries_free, entry);
        self.by_file[direction as usize].insert(file, number);
        self.link_last(number);
        number
    }

    fn link_last(&mut self, number: u32) {
        let tail = self.tail;
        let entry = &mut self.entries[number as usize];
        entry.prev = tail;
        entry.next = NONE;
        match tail {
            NONE => self.head = number,
            _ => self.entries[tail as usize].next = number,
        }
        self.tail = number;
    }

    fn unlink(&mut self, number: u32) {
        let Entry { next, prev, .. } = self.entries[number as usize];
        match prev {
            NONE => self.head = next,
            _ => self.entries[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            _ => self.entries[next as usize].prev = prev,
        }
    }

    /// Forgets an entry that is empty and no longer linked.
    fn release(&mut self, number: u32) {
        let direction = self.entries[number as usize].direction;
        self.by_file[direction as usize].remove(number);
        self.entries_free.push(number);
    }
}

impl Policy for RoundRobin {
    fn arrived(&mut self, requests: &mut Requests, index: Index) {
        let request = &requests[index].request;
        let number = self.entry_for(request.file.0, request.direction);
        requests.push_back(&mut self.entries[number as usize].queue, index);
        self.merge.arrived(requests, number, index);
    }

    fn pick(&mut self, requests: &mut Requests, _now: Time, into: &mut Vec<Index>) -> Pick {
        assert!(self.head != NONE, "pick on an empty policy");
        let number = self.head;
        self.unlink(number);
        let queue = &mut self.entries[number as usize].queue;
        self.merge.begin();
        for _ in 0..self.quantum {
            // In order of arrival up to the first that does not fit, so that none is passed by.
            let Some(index) = requests.front(queue) else {
                break;
            };
            if !self.merge.has_room(requests, index, into) {
                break;
            }
            requests.unlink(queue, index);
            self.merge.take(requests, index, into, |requests, index| {
                requests.unlink(queue, index);
            });
        }
        if queue.is_empty() {
            self.release(number);
        } else {
            self.link_last(number);
        }
        Pick::Run
    }

    fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        let number = requests[index].tag;
        requests.unlink(&mut self.entries[number as usize].queue, index);
        self.merge.cancelled(requests, index);
        if self.entries[number as usize].queue.is_empty() {
            self.unlink(number);
            self.release(number);
        }
    }

    fn bound(&self) -> Bound {
        Bound::Turns(1)
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{drain, read, write};
    use crate::{Options, PolicyOptions, Scheduler};
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn files_take_turns_of_quantum_requests() {
        let table = PolicyOptions::default().with("quantum", 2);
        let options = Options {
            table,
            ..Options::for_policy("round-robin")
        };
        let mut scheduler = Scheduler::new(&options).unwrap();
        let (a, b) = (1, 2);
        let input = [
            read(a, 300, 9),
            read(a, 100, 9),
            read(a, 200, 9),
            read(b, 0, 9),
            write(b, 100, 9),
            read(a, 400, 9),
        ];
        // Each turn is one call for one file and direction, its extents sorted.
        assert_eq!(
            drain(&mut scheduler, &input),
            [vec![1, 0], vec![3], vec![4], vec![2, 5]]
        );
    }

    #[test]
    fn interleaved_records_of_one_file_need_few_calls() {
        // 64 clients write 32 KiB records of one shared file, depth 1: at most 1/4 of fifo's
        // calls is asked for; what arrived during one call leaves with the next.
        let records: Vec<_> = (0..64)
            .map(|client| write(1, (client * 37 % 64) * 32768, 32768))
            .collect();
        let mut calls = [0, 0];
        for (calls, policy) in calls.iter_mut().zip(["fifo", "round-robin"]) {
            let mut scheduler = Scheduler::new(&Options::for_policy(policy)).unwrap();
            *calls = drain(&mut scheduler, &records).len();
        }
        assert_eq!(calls, [64, 1]);
    }

    #[test]
    fn what_is_adjacent_at_this_forwarder_is_one_range() {
        // Two messages of four stripes for each of four forwarders; this one has the second of
        // each round. A turn of one range takes all that lies together here, in whatever order.
        let stripe = 1 << 18;
        let mut options = Options {
            stripe_bytes: stripe,
            table: PolicyOptions::default().with("quantum", 1),
            ..Options::for_policy("round-robin")
        };
        let input = [0, 400, 4, 404, 12, 8, 408, 412].map(|at| write(1, (at + 1) * stripe, stripe));
        let mut calls = |forwarders| {
            options.shares.forwarders = forwarders;
            drain(&mut Scheduler::new(&options).unwrap(), &input)
        };
        assert_eq!(calls(4), [vec![0, 2, 5, 4], vec![1, 3, 6, 7]]);
        assert_eq!(calls(1).len(), 8);
    }

    #[test]
    fn overlapping_reads_never_share_a_call() {
        let mut scheduler = Scheduler::new(&Options::for_policy("round-robin")).unwrap();
        let input = [read(1, 0, 8), read(1, 4, 8), read(1, 12, 8), read(1, 8, 4)];
        assert_eq!(drain(&mut scheduler, &input), [vec![0, 3, 2], vec![1]]);
    }
}
