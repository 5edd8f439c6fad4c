//! The rule for overlapping requests: of two on one file with common bytes of which one writes,
//! the later is not dispatched before the earlier has finished.
//!
//! It lies in front of the policy, so that no policy has to know it. Requests that conflict with
//! an earlier one are held back here and reach the policy when they are free. A file on which
//! nothing can conflict (only reads, or one write alone) keeps a list of its requests and no
//! more; segments are made when the first possible conflict arrives.

mod graph;
mod segments;

use crate::index::{Index, NONE};
use crate::requests::{Requests, Slot, Stage};
use crate::types::Direction;
use alloc::vec::Vec;
use graph::Graph;
use segments::{Access, Segments};

/// The order of overlapping requests on all files that have requests pending.
pub(crate) struct Overlap {
    files: Vec<File>,
    files_free: Vec<u32>,
    by_id: Index,
    graph: Graph,
}

struct File {
    id: u64,
    /// All its requests, queued or running, in order of arrival.
    head: Slot,
    tail: Slot,
    pending: u32,
    writes: u32,
    /// The first request of those at the end of the list that no segment knows yet.
    unknown: Slot,
    segments: Segments,
}

impl Overlap {
    pub(crate) fn new() -> Overlap {
        Overlap {
            files: Vec::new(),
            files_free: Vec::new(),
            by_id: Index::new(),
            graph: Graph::new(),
        }
    }

    /// Takes a request that arrived. False when it must be held back.
    pub(crate) fn arrived(&mut self, requests: &mut Requests, slot: Slot) -> bool {
        let request = &requests[slot].request;
        let write = request.direction == Direction::Write;
        let empty = request.offset >= request.end();
        let number = self.file_for(request.file.0);
        let file = &mut self.files[number as usize];
        let conflict = !empty && file.pending > 0 && (write || file.writes > 0);
        requests[slot].file = number;
        requests[slot].file_prev = file.tail;
        match file.tail {
            NONE => file.head = slot,
            tail => requests[tail].file_next = slot,
        }
        file.tail = slot;
        file.pending += 1;
        file.writes += u32::from(write);
        if file.unknown == NONE {
            file.unknown = slot;
        }
        if !conflict {
            return true;
        }
        // Each request becomes known once, so this loop costs each of them once.
        let mut next = core::mem::replace(&mut file.unknown, NONE);
        while next != slot {
            self.learn(requests, number, next, false);
            next = requests[next].file_next;
        }
        self.learn(requests, number, slot, true);
        let node = requests[slot].node;
        !self.graph.is_waiting(node)
    }

    /// Takes away a request that finished or was cancelled; `freed` gets those that no longer
    /// need to be held, in order of arrival.
    pub(crate) fn gone(&mut self, requests: &mut Requests, slot: Slot, freed: &mut Vec<Slot>) {
        let number = requests[slot].file;
        self.unlink(requests, slot);
        let node = requests[slot].node;
        if node != NONE {
            if self.graph.is_waiting(node) {
                // Others wait for it in place of what it waits for itself.
                self.graph.leave_join(node);
            } else {
                let segments = &mut self.files[number as usize].segments;
                self.graph.done(node, freed, |_| segments.nodes -= 1);
            }
        }
        let file = &mut self.files[number as usize];
        if file.pending == 0 {
            assert!(
                file.segments.nodes == 0,
                "a request waits on a file without requests"
            );
            file.segments.clear();
            self.by_id.remove(file.id, number);
            self.files_free.push(number);
        } else if file.segments.nodes + file.segments.len() > 16 * file.pending as usize + 64 {
            self.rebuild(requests, number, freed);
        }
        freed.sort_unstable_by_key(|&slot| requests[slot].arrival);
    }

    /// Adds one request to the segments of its file.
    fn learn(&mut self, requests: &mut Requests, number: u32, slot: Slot, waits: bool) {
        let request = &requests[slot].request;
        if request.offset >= request.end() {
            return;
        }
        let segments = &mut self.files[number as usize].segments;
        let node = self.graph.add(slot, number);
        segments.nodes += 1;
        let access = Access {
            node,
            file: number,
            start: request.offset,
            end: request.end(),
            write: request.direction == Direction::Write,
            waits,
        };
        segments.insert(&mut self.graph, access);
        requests[slot].node = node;
    }

    /// Makes the segments anew from the requests that are pending. What finished requests left
    /// behind (boundaries, joins) is a constant factor of what is pending before this is called,
    /// so its cost is a constant for each request that came or went since the last time.
    fn rebuild(&mut self, requests: &mut Requests, number: u32, freed: &mut Vec<Slot>) {
        let file = &mut self.files[number as usize];
        let (head, end) = (file.head, file.unknown);
        let mut slot = head;
        while slot != end {
            let node = core::mem::replace(&mut requests[slot].node, NONE);
            if node != NONE {
                // In order of arrival nothing is left that this one could wait for.
                self.graph.done(node, freed, |_| file.segments.nodes -= 1);
            }
            slot = requests[slot].file_next;
        }
        file.segments.clear();
        if file.writes == 0 {
            file.unknown = head;
            return;
        }
        freed.retain(|&slot| requests[slot].file != number);
        slot = head;
        while slot != end {
            let held = requests[slot].stage == Stage::Held;
            self.learn(requests, number, slot, held);
            let node = requests[slot].node;
            if held && (node == NONE || !self.graph.is_waiting(node)) {
                freed.push(slot);
            }
            slot = requests[slot].file_next;
        }
    }

    fn unlink(&mut self, requests: &mut Requests, slot: Slot) {
        let entry = &requests[slot];
        let (prev, next) = (entry.file_prev, entry.file_next);
        let write = entry.request.direction == Direction::Write;
        let file = &mut self.files[entry.file as usize];
        if file.unknown == slot {
            file.unknown = next;
        }
        match prev {
            NONE => file.head = next,
            _ => requests[prev].file_next = next,
        }
        match next {
            NONE => file.tail = prev,
            _ => requests[next].file_prev = prev,
        }
        file.pending -= 1;
        file.writes -= u32::from(write);
    }

    fn file_for(&mut self, id: u64) -> u32 {
        let found = self.by_id.find(id);
        if found != NONE {
            return found;
        }
        let number = match self.files_free.pop() {
            Some(number) => number,
            None => {
                self.files.push(File {
                    id,
                    head: NONE,
                    tail: NONE,
                    pending: 0,
                    writes: 0,
                    unknown: NONE,
                    segments: Segments::default(),
                });
                self.files.len() as u32 - 1
            }
        };
        let file = &mut self.files[number as usize];
        file.id = id;
        file.unknown = NONE;
        self.by_id.insert(id, number);
        number
    }
}
