//! The rule for overlapping requests: of two on one file with common bytes of which one writes,
//! the later is not dispatched before the earlier has finished.
//!
//! It lies in front of the policy, so that no policy has to know it. Requests that conflict with
//! an earlier one are held back here and reach the policy when they are free. A file on which
//! nothing can conflict (only reads, or one write alone) knows which its requests are and no
//! more; segments are made when the first possible conflict arrives.

mod graph;
mod segments;

use crate::hash_table::{HashTable, NONE};
use crate::requests::{Entry, Index, Requests, Stage};
use crate::types::Direction;
use alloc::vec::Vec;
use graph::Graph;
use segments::{Access, Segments};

/// The order of overlapping requests on all files that have requests pending.
pub(crate) struct Overlap {
    files: Vec<File>,
    files_free: Vec<u32>,
    by_id: HashTable,
    graph: Graph,
    /// An empty list, kept for its memory.
    spare: Vec<Index>,
}

/// So many places of each kind a file without requests keeps for the next one.
const KEPT_MAX: usize = 1024;

struct File {
    /// Requests, queued or running, and how many of them write.
    pending: u32,
    writes: u32,
    /// Those that no segment knows yet, and those that segments know, in no order; not those
    /// without a byte, which never conflict. Each knows its place here.
    unknown: Vec<Index>,
    known: Vec<Index>,
    segments: Segments,
    /// Whether `segments` had anything since the file was idle.
    has_segments: bool,
}

impl Overlap {
    pub(crate) fn new() -> Overlap {
        Overlap {
            files: Vec::new(),
            files_free: Vec::new(),
            by_id: HashTable::new(),
            graph: Graph::new(),
            spare: Vec::new(),
        }
    }

    /// Takes a request that arrived. False when it must be held back.
    // Two kinds of callers, of which the scheduler is in a hurry: it pays to be a part of it.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, requests: &mut Requests, index: Index) -> bool {
        let request = &requests[index].request;
        let write = request.direction == Direction::Write;
        let empty = request.offset >= request.end();
        let number = self.file_for(request.file.0);
        let file = &mut self.files[number as usize];
        let conflict = !empty && file.pending > 0 && (write || file.writes > 0);
        let entry = &mut requests[index];
        entry.file = number;
        file.pending += 1;
        file.writes += u32::from(write);
        if !conflict {
            if !empty {
                entry.file_at = file.unknown.len() as u32;
                file.unknown.push(index);
            }
            return true;
        }
        if !file.unknown.is_empty() {
            // Each request becomes known once, so this costs each of them once.
            let mut unknown = core::mem::take(&mut file.unknown);
            unknown.sort_unstable_by_key(|&index| requests[index].arrival);
            for index in unknown.drain(..) {
                self.learn(requests, number, index, false);
            }
            self.files[number as usize].unknown = unknown;
        }
        self.learn(requests, number, index, true);
        let node = requests[index].node;
        !self.graph.is_waiting(node)
    }

    /// Takes away a request that finished or was cancelled; `freed` gets those that no longer
    /// need to be held, in order of arrival.
    #[inline(always)]
    pub(crate) fn gone(&mut self, requests: &mut Requests, index: Index, freed: &mut Vec<Index>) {
        let Entry {
            file: number, node, ..
        } = requests[index];
        self.leave(requests, index);
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
            if core::mem::take(&mut file.has_segments) {
                let nodes = file.segments.nodes;
                assert!(nodes == 0, "a request waits on a file without requests");
                file.segments.clear();
            }
            for list in [&mut file.unknown, &mut file.known] {
                list.shrink_to(KEPT_MAX);
            }
            self.by_id.remove(number);
            self.files_free.push(number);
        } else if file.has_segments
            && file.segments.nodes + file.segments.len() > 6 * file.pending as usize + 64
        {
            self.rebuild(requests, number, freed);
        }
        if freed.len() > 1 {
            freed.sort_unstable_by_key(|&index| requests[index].arrival);
        }
    }

    /// Edges between requests that were ever needed at one time.
    #[cfg(test)]
    pub(crate) fn edges_made(&self) -> usize {
        self.graph.edges_made()
    }

    /// Nodes and segments that are kept now.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.files
            .iter()
            .map(|file| file.segments.nodes + file.segments.len())
            .sum()
    }

    /// Adds one request to the segments of its file.
    fn learn(&mut self, requests: &mut Requests, number: u32, index: Index, waits: bool) {
        let file = &mut self.files[number as usize];
        file.has_segments = true;
        let File {
            known, segments, ..
        } = file;
        let entry = &mut requests[index];
        entry.file_at = known.len() as u32;
        known.push(index);
        let request = &entry.request;
        let node = self.graph.add(index, number);
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
        entry.node = node;
    }

    /// Makes the segments anew from the requests that are pending. What finished requests left
    /// behind (boundaries, joins) is a constant factor of what is pending before this is called,
    /// so its cost is a constant for each request that came or went since the last time.
    fn rebuild(&mut self, requests: &mut Requests, number: u32, freed: &mut Vec<Index>) {
        let file = &mut self.files[number as usize];
        let mut known = core::mem::replace(&mut file.known, core::mem::take(&mut self.spare));
        known.sort_unstable_by_key(|&index| requests[index].arrival);
        for &index in &known {
            // In order of arrival nothing is left that this one could wait for.
            let node = core::mem::replace(&mut requests[index].node, NONE);
            self.graph.done(node, freed, |_| file.segments.nodes -= 1);
        }
        file.segments.clear();
        if file.writes == 0 {
            for &index in &known {
                requests[index].file_at = file.unknown.len() as u32;
                file.unknown.push(index);
            }
            known.clear();
            self.spare = known;
            return;
        }
        freed.retain(|&index| requests[index].file != number);
        for index in known.drain(..) {
            let held = requests[index].stage == Stage::Held;
            self.learn(requests, number, index, held);
            if held && !self.graph.is_waiting(requests[index].node) {
                freed.push(index);
            }
        }
        self.spare = known;
    }

    #[inline(always)]
    fn leave(&mut self, requests: &mut Requests, index: Index) {
        let Entry {
            file,
            file_at,
            node,
            ref request,
            ..
        } = requests[index];
        let file = &mut self.files[file as usize];
        file.pending -= 1;
        file.writes -= u32::from(request.direction == Direction::Write);
        if file_at == NONE {
            return;
        }
        let list = match node {
            NONE => &mut file.unknown,
            _ => &mut file.known,
        };
        list.swap_remove(file_at as usize);
        if let Some(&moved) = list.get(file_at as usize) {
            requests[moved].file_at = file_at;
        }
    }

    #[inline(always)]
    fn file_for(&mut self, id: u64) -> u32 {
        let found = self.by_id.find(id);
        if found != NONE {
            return found;
        }
        let number = match self.files_free.pop() {
            Some(number) => number,
            None => {
                self.files.push(File {
                    pending: 0,
                    writes: 0,
                    unknown: Vec::new(),
                    known: Vec::new(),
                    segments: Segments::default(),
                    has_segments: false,
                });
                self.files.len() as u32 - 1
            }
        };
        self.by_id.insert(id, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use crate::test::{Random, drain, read, write};
    use crate::types::{Input, Output, Request, RequestId, Time};
    use crate::{Options, Scheduler};
    use std::vec::Vec;

    const MANY: u64 = 100_000;

    fn fifo() -> Scheduler {
        let options = Options {
            queued_max: 1 << 20,
            ..Options::for_policy("fifo")
        };
        Scheduler::new(&options).unwrap()
    }

    #[test]
    fn held_requests_run_in_order_of_arrival_when_they_are_free() {
        // All wait for the first; 3 waits for 1 as well; 4 waits for nothing but is behind.
        let input = [
            write(1, 0, 100),
            write(1, 0, 10),
            read(1, 90, 10),
            write(1, 5, 10),
            read(1, 200, 1),
            read(2, 0, 100),
        ];
        let order: Vec<u64> = drain(&mut fifo(), &input).into_iter().flatten().collect();
        assert_eq!(order, [0, 4, 5, 1, 2, 3]);
    }

    #[test]
    fn a_cancelled_request_keeps_its_followers_behind_what_it_waited_for() {
        let mut scheduler = fifo();
        let mut batch = Vec::new();
        for (id, request) in (0..).zip([write(1, 0, 8), write(1, 0, 8), write(1, 0, 8)]) {
            let request = Request {
                id: RequestId(id),
                ..request
            };
            scheduler.handle(Time(0), Input::Arrived(request)).unwrap();
        }
        assert_eq!(scheduler.poll(Time(0), &mut batch), Output::Dispatch);
        scheduler
            .handle(Time(1), Input::Cancelled(RequestId(1)))
            .unwrap();
        assert_eq!(scheduler.stats().held_now, 1);
        scheduler
            .handle(Time(2), Input::Finished(RequestId(0)))
            .unwrap();
        assert_eq!(scheduler.poll(Time(2), &mut batch), Output::Dispatch);
        assert_eq!(batch[0].id, RequestId(2));
    }

    #[test]
    fn reads_alone_leave_no_trace() {
        let mut scheduler = fifo();
        drain(
            &mut scheduler,
            &[read(1, 0, 100), read(1, 50, 100), read(1, 0, u64::MAX)],
        );
        assert_eq!(scheduler.overlap.edges_made(), 0);
        assert_eq!(scheduler.stats().held, 0);
    }

    /// Runs `count` requests that are all queued at first; the work must stay in proportion.
    fn many(count: u64, request: impl Fn(u64) -> Request) {
        let mut scheduler = fifo();
        let input: Vec<_> = (0..count).map(request).collect();
        assert_eq!(
            drain(&mut scheduler, &input)
                .iter()
                .map(Vec::len)
                .sum::<usize>(),
            input.len()
        );
        let edges = scheduler.overlap.edges_made() as u64;
        assert!(edges < 16 * count, "{edges} edges for {count} requests");
    }

    #[test]
    fn many_queued_writes_of_one_file_are_no_problem() {
        many(MANY, |i| write(1, i * 4096, 4096));
        many(MANY, |_| write(1, 0, u64::MAX));
        many(MANY, |i| write(1, i * 1000, 4096));
    }

    #[test]
    fn many_reads_and_writes_of_one_file_are_no_problem() {
        let half = MANY / 2;
        let whole = || read(1, 0, u64::MAX);
        many(MANY, |i| {
            if i < half {
                whole()
            } else {
                write(1, i * 4096, 4096)
            }
        });
        many(MANY, |i| {
            if i < half {
                write(1, i * 4096, 4096)
            } else {
                whole()
            }
        });
        many(MANY, |i| {
            if i % 2 == 0 {
                write(1, i * 4096, 4096)
            } else {
                whole()
            }
        });
    }

    #[test]
    fn a_file_that_is_never_idle_keeps_no_garbage() {
        let mut scheduler = fifo();
        let mut random = Random::new(1);
        let mut batch = Vec::new();
        for id in 0..MANY {
            let (offset, len) = (random.below(1 << 30), 1 + random.below(1 << 20));
            let request = if id % 3 == 0 {
                read(1, offset, len)
            } else {
                write(1, offset, len)
            };
            let request = Request {
                id: RequestId(id),
                ..request
            };
            scheduler.handle(Time(id), Input::Arrived(request)).unwrap();
            if scheduler.queued() > 50 {
                assert_eq!(scheduler.poll(Time(id), &mut batch), Output::Dispatch);
                scheduler
                    .handle(Time(id), Input::Finished(batch[0].id))
                    .unwrap();
            }
        }
        let kept = scheduler.overlap.kept();
        assert!(
            kept <= 6 * 51 + 64 + 20,
            "{kept} nodes and segments for 51 requests"
        );
    }
}
