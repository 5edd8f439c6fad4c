//! Which requests begin or end at a byte: a table of endpoints, for blocks that join adjacent ones.
//!
//! An endpoint is a stream (a file and direction, as the owner numbers them), a byte, and whether a
//! range begins or ends there. Several ranges may share one. The table keeps 32 bits of a hash of
//! each, so the caller must check what it finds; in return a look-up usually reads one line of the
//! cache. Nothing iterates the table in an order that could matter.

use alloc::vec;
use alloc::vec::Vec;

/// Endpoints in a line.
const WIDTH: usize = 7;

/// Endpoints for each line at which the table grows.
const FULL: usize = 4;

/// Which endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    Start,
    End,
}

/// One line of the cache.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    hashes: [u32; WIDTH],
    /// What the owner calls it, twice, and the edge.
    values: [u32; WIDTH],
    len: u32,
    /// Endpoints that belong here or before, and lie behind this line because it was full.
    overflowed: u32,
}

const EMPTY: Line = Line {
    hashes: [0; WIDTH],
    values: [0; WIDTH],
    len: 0,
    overflowed: 0,
};

/// Numbers below 2^31, by endpoint.
pub(crate) struct EndpointIndex {
    /// A power of two.
    lines: Vec<Line>,
    len: usize,
}

impl EndpointIndex {
    /// No endpoints.
    pub(crate) fn new() -> EndpointIndex {
        EndpointIndex {
            lines: vec![EMPTY; 2],
            len: 0,
        }
    }

    /// Adds an endpoint of what the owner calls `number`.
    #[inline]
    pub(crate) fn insert(&mut self, stream: u64, byte: u64, edge: Edge, number: u32) {
        if self.len >= FULL * self.lines.len() {
            self.grow();
        }
        self.len += 1;
        self.put(hash(stream, byte), value(edge, number));
    }

    /// Removes one that is there.
    #[inline]
    pub(crate) fn remove(&mut self, stream: u64, byte: u64, edge: Edge, number: u32) {
        let (hash, value) = (hash(stream, byte), value(edge, number));
        let mut at = self.line_of(hash);
        loop {
            let line = &mut self.lines[at];
            if let Some(place) = (0..line.len()).find(|&i| line.is(i, hash, value)) {
                line.len -= 1;
                let last = line.len();
                line.hashes[place] = line.hashes[last];
                line.values[place] = line.values[last];
                self.len -= 1;
                return;
            }
            assert!(
                line.overflowed > 0,
                "an endpoint is removed that is not there"
            );
            line.overflowed -= 1;
            at = self.after(at);
        }
    }

    /// Calls `found` with each number that may have this endpoint.
    #[inline]
    pub(crate) fn find(&self, stream: u64, byte: u64, edge: Edge, mut found: impl FnMut(u32)) {
        let hash = hash(stream, byte);
        let mut at = self.line_of(hash);
        loop {
            let line = &self.lines[at];
            for i in 0..line.len() {
                if line.hashes[i] == hash && line.values[i] & 1 == value(edge, 0) {
                    found(line.values[i] >> 1);
                }
            }
            if line.overflowed == 0 {
                return;
            }
            at = self.after(at);
        }
    }

    /// Brings the line of an endpoint that will soon be looked for into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, stream: u64, byte: u64) {
        core::hint::black_box(self.lines[self.line_of(hash(stream, byte))].len);
    }

    #[inline]
    fn put(&mut self, hash: u32, value: u32) {
        let mut at = self.line_of(hash);
        loop {
            let line = &mut self.lines[at];
            let len = line.len();
            if len < WIDTH {
                (line.hashes[len], line.values[len]) = (hash, value);
                line.len += 1;
                return;
            }
            line.overflowed += 1;
            at = self.after(at);
        }
    }

    #[inline]
    fn line_of(&self, hash: u32) -> usize {
        hash as usize & (self.lines.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.lines.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        let longer = vec![EMPTY; self.lines.len() * 2];
        for line in core::mem::replace(&mut self.lines, longer) {
            for i in 0..line.len() {
                self.put(line.hashes[i], line.values[i]);
            }
        }
    }
}

impl Line {
    #[inline]
    fn len(&self) -> usize {
        (self.len as usize).min(WIDTH)
    }

    #[inline]
    fn is(&self, i: usize, hash: u32, value: u32) -> bool {
        self.hashes[i] == hash && self.values[i] == value
    }
}

#[inline]
fn value(edge: Edge, number: u32) -> u32 {
    number << 1 | edge as u32
}

/// The upper half of a product depends on all bits of both.
#[inline]
fn hash(stream: u64, byte: u64) -> u32 {
    let mixed = (byte ^ stream.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32) ^ stream).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Random;

    #[test]
    fn agrees_with_a_list() {
        let mut endpoints = EndpointIndex::new();
        let mut list: Vec<(u64, u64, u32, u32)> = Vec::new();
        let mut random = Random::new(1);
        for round in 0..60_000 {
            let (stream, byte) = (random.below(3), random.below(20) << 12);
            let edge = random.pick(&[Edge::Start, Edge::End]);
            // Grows and shrinks; some endpoints are shared by many.
            let grows = round / 5000 % 2 == 0;
            if random.chance(if grows { 70 } else { 30 }) {
                let number = random.below(1 << 31) as u32;
                endpoints.insert(stream, byte, edge, number);
                list.push((stream, byte, edge as u32, number));
            } else if !list.is_empty() {
                let at = random.below(list.len() as u64) as usize;
                let (stream, byte, edge, number) = list.swap_remove(at);
                let edge = [Edge::Start, Edge::End][edge as usize];
                endpoints.remove(stream, byte, edge, number);
            }
            if round % 64 > 0 {
                continue;
            }
            let mut found = Vec::new();
            endpoints.find(stream, byte, edge, |number| found.push(number));
            let of_it =
                |one: &&(u64, u64, u32, u32)| (one.0, one.1, one.2) == (stream, byte, edge as u32);
            let mut expected: Vec<u32> = list.iter().filter(of_it).map(|one| one.3).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn lines_stay_short_however_borders_lie() {
        for step in [1, 512, 4096, 65_536, 1 << 20, 1 << 32] {
            let mut endpoints = EndpointIndex::new();
            for i in 0..50_000 {
                endpoints.insert(i % 8, i / 8 * step, Edge::Start, i as u32);
            }
            let overflowed = endpoints.lines.iter().map(|line| line.overflowed).max();
            assert!(overflowed < Some(40), "{overflowed:?} at steps of {step}");
        }
    }
}
