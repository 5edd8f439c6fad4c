//! One file cut into segments, each with what a new request on it must wait for: the last write,
//! and the reads since.
//!
//! A write waits for both and becomes the last write of its range. A read waits for the write
//! only. What came earlier need not be remembered, because the last write waits for it. So the
//! work for a request is that of a few look-ups in a tree, however many requests overlap:
//! a write removes as many segments as it waits for, reads beyond [`READERS`] on one segment and
//! segments beyond [`PIECES`] under one read are joined.

use super::graph::{Graph, Ref};
use crate::flat_btree::FlatBTree;
use crate::hash_table::NONE;

/// Readers that a segment lists before it joins them.
const READERS: usize = 4;

/// Segments that a read may cover before they become one. Reads that come later on a part of it
/// then wait for all of its writes, which is safe, and rare.
const PIECES: usize = 8;

#[derive(Clone, Copy)]
struct Segment {
    write: Ref,
    reads: [Ref; READERS],
}

impl Default for Segment {
    fn default() -> Segment {
        EMPTY
    }
}

const EMPTY: Segment = Segment {
    write: Ref::NONE,
    reads: [Ref::NONE; READERS],
};

/// The segments of one file, by first byte; each ends where the next begins.
pub(super) struct Segments {
    by_start: FlatBTree<u64, Segment>,
    /// Nodes that were made for this file, minus those that are done.
    pub(super) nodes: usize,
}

impl Default for Segments {
    fn default() -> Segments {
        Segments {
            by_start: FlatBTree::new(),
            nodes: 0,
        }
    }
}

/// A request as this structure sees it.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) node: u32,
    pub(super) file: u32,
    pub(super) start: u64,
    /// Greater than `start`.
    pub(super) end: u64,
    pub(super) write: bool,
    /// False for a request that is known to wait for nothing, and is only to be remembered.
    pub(super) waits: bool,
}

impl Segments {
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    pub(super) fn clear(&mut self) {
        self.by_start.clear();
    }

    /// Remembers an access, and makes its node wait for all it conflicts with.
    pub(super) fn insert(&mut self, graph: &mut Graph, access: Access) {
        if self.by_start.is_empty() {
            self.by_start.insert(0, EMPTY);
        }
        self.split(access.start);
        if access.end < u64::MAX {
            self.split(access.end);
        }
        if access.write {
            self.insert_write(graph, access);
        } else {
            self.insert_read(graph, access);
        }
    }

    fn insert_write(&mut self, graph: &mut Graph, access: Access) {
        let write = graph.refer(access.node);
        let mut last = Ref::NONE;
        let mut pieces = 0;
        self.by_start.walk(&access.start, &access.end, |segment| {
            if access.waits {
                // Neighbours were often cut from one segment: wait for its write once.
                if segment.write != last {
                    graph.wait_for(access.node, segment.write);
                    last = segment.write;
                }
                for &read in &segment.reads {
                    graph.wait_for(access.node, read);
                }
            }
            *segment = Segment { write, ..EMPTY };
            pieces += 1;
        });
        if pieces > 1 {
            self.remove_between(access.start, access.end);
        }
    }

    fn insert_read(&mut self, graph: &mut Graph, access: Access) {
        let (start, end) = (access.start, access.end);
        if self.by_start.has_more_than(PIECES, &start, &end) {
            self.join_pieces(graph, access);
        }
        let read = graph.refer(access.node);
        let nodes = &mut self.nodes;
        self.by_start.walk(&start, &end, |segment| {
            if access.waits {
                graph.wait_for(access.node, segment.write);
            }
            let place = segment.reads.iter().position(|&read| !graph.is_live(read));
            let place = place.unwrap_or_else(|| {
                let join = graph.add(NONE, access.file);
                *nodes += 1;
                for read in &mut segment.reads {
                    graph.wait_for(join, *read);
                    *read = Ref::NONE;
                }
                segment.reads[0] = graph.refer(join);
                1
            });
            segment.reads[place] = read;
        });
    }

    /// Makes one segment of all in the range of a read.
    fn join_pieces(&mut self, graph: &mut Graph, access: Access) {
        let writes = graph.add(NONE, access.file);
        let reads = graph.add(NONE, access.file);
        self.by_start.walk(&access.start, &access.end, |segment| {
            graph.wait_for(writes, segment.write);
            for &read in &segment.reads {
                graph.wait_for(reads, read);
            }
        });
        let mut segment = EMPTY;
        for (join, place) in [(writes, &mut segment.write), (reads, &mut segment.reads[0])] {
            if graph.is_waiting(join) {
                *place = graph.refer(join);
                self.nodes += 1;
            } else {
                graph.discard(join);
            }
        }
        self.become_one(access.start, access.end, segment);
    }

    /// Replaces all segments from `start`, where one begins, to `end` by `segment`.
    fn become_one(&mut self, start: u64, end: u64, segment: Segment) {
        self.by_start.insert(start, segment);
        self.remove_between(start, end);
    }

    /// Joins the segments that begin after `start` and before `end` to the one that begins there.
    fn remove_between(&mut self, start: u64, end: u64) {
        while let Some((key, _)) = self.by_start.at_or_after(&(start + 1)) {
            if key >= end {
                break;
            }
            self.by_start.remove(&key);
        }
    }

    fn split(&mut self, at: u64) {
        let (before, from) = self.by_start.around(&at);
        if from.is_some_and(|(start, _)| start == at) {
            return;
        }
        let (_, segment) = before.expect("the first segment begins at 0");
        self.by_start.insert(at, segment);
    }
}
