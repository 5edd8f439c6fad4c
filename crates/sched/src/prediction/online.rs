//! Prediction without a trace: learns, for each file and direction, how long chains of adjacent
//! requests become, and how fast.
//!
//! A *chain* is a row of adjacent requests, each of which arrived before its neighbours had
//! finished. So a chain is what a wait could have merged. (A program that waits for each call sends
//! the next request only after the reply, and no wait can merge the two.) The predictor follows
//! chains whether or not the policy waited, so it also learns from waits that were not made.
//!
//! The *size detector* counts, for each power of two of bytes, how many chains of that length grew
//! further, and how soon. The *stride detector* recognises chains that start a fixed stride apart,
//! as when processes take turns in a file. It knows where such a chain begins and ends. The stride
//! detector decides when it is sure, otherwise the size detector.

use super::expected::Expected;
use crate::endpoint_index::{Edge, EndpointIndex};
use crate::hash_table::HashTable;
use crate::hash_table::NONE;
use crate::requests::{Entry, Index};
use crate::runs::Runs;
use crate::types::{Direction, Time};
use alloc::vec::Vec;

/// The size detector predicts nothing for a length that fewer chains have reached.
const SEEN_MIN: u32 = 4;

/// Counts above this are halved, so that a change of the load is learned soon.
const SEEN_MAX: u32 = 64;

/// The stride detector is sure after so many chains of equal stride and length in a row.
const SURE: u32 = 3;

/// The most streams that are remembered. A forgotten stream is learned again.
const STREAMS_MAX: usize = 4096;

/// The most chains that are followed at a time. Where more are pending, no run has to wait, and a
/// part of the chains is enough to learn from.
const CHAINS_MAX: usize = 4096;

/// A file and direction.
struct Stream {
    direction: Direction,
    /// By log2 of bytes.
    sizes: [Size; 40],
    /// Start and length of the last chain that ended; the distance from its start to the start of
    /// the chain before; and how often in a row that distance and the length were the same.
    start: u64,
    len: u64,
    stride: u64,
    sure: u32,
    /// Nanoseconds from the first to the last request of such a chain, as a moving mean.
    span_ns: u64,
}

/// Counts of the chains that reached one length.
#[derive(Clone, Copy, Default)]
struct Size {
    ended: u32,
    grew: u32,
    /// Nanoseconds until the next request came, as a moving mean.
    delay_ns: u64,
}

#[derive(Clone, Copy)]
struct Chain {
    stream: u32,
    start: u64,
    end: u64,
    /// Requests of it that have not finished.
    live: u32,
    /// Requests that name this chain, and chains that became part of it. The number is free when
    /// there are none.
    refs: u32,
    /// The chain that this one became part of, or its own number.
    became: u32,
    first: Time,
    last: Time,
}

impl Chain {
    fn at(&self, side: Edge) -> u64 {
        match side {
            Edge::Start => self.start,
            Edge::End => self.end,
        }
    }
}

/// The predictor that learns from the load.
pub(super) struct Online {
    streams: Vec<Stream>,
    by_file: [HashTable; 2],
    /// The stream that is forgotten next, when there are too many.
    oldest: u32,
    chains: Vec<Chain>,
    chains_free: Vec<u32>,
    /// Where live chains begin and end, by stream. No two begin at one byte.
    endpoints: EndpointIndex,
    /// By request: its chain.
    chain_of: Vec<u32>,
}

fn log2(len: u64) -> usize {
    (63 - len.max(1).leading_zeros() as usize).min(39)
}

/// Moves a mean by an eighth.
fn moved(mean: u64, value: u64) -> u64 {
    match mean {
        0 => value,
        _ => mean - mean / 8 + value / 8,
    }
}

impl Online {
    pub(super) fn new() -> Online {
        Online {
            streams: Vec::new(),
            by_file: [HashTable::new(), HashTable::new()],
            oldest: 0,
            chains: Vec::new(),
            chains_free: Vec::new(),
            endpoints: EndpointIndex::new(),
            chain_of: Vec::new(),
        }
    }

    pub(super) fn arrived(&mut self, entry: &Entry, index: Index) {
        if self.chain_of.len() <= index as usize {
            self.chain_of.resize(index as usize + 1, NONE);
        }
        self.chain_of[index as usize] = NONE;
        let request = &entry.request;
        if !request.mergeable || request.offset >= request.end() {
            return;
        }
        let stream = self.stream_for(request.file.0, request.direction);
        let (start, end, now) = (request.offset, request.end(), entry.ready);
        self.endpoints.prefetch(u64::from(stream), end);
        if self.beside(stream, start, Edge::Start).is_some() {
            // A range that is pending already: merging does not concern it.
            return;
        }
        let left = self.beside(stream, start, Edge::End);
        let right = self.beside(stream, end, Edge::Start);
        let chain = match (left, right) {
            (Some(chain), right) => {
                self.grows(chain, now);
                self.unborder(chain, Edge::End);
                self.chains[chain as usize].end = end;
                if let Some(other) = right {
                    self.unborder(other, Edge::Start);
                    self.unborder(other, Edge::End);
                    self.absorb(chain, other);
                }
                self.endpoint(chain, Edge::End);
                chain
            }
            (None, Some(chain)) => {
                self.grows(chain, now);
                self.unborder(chain, Edge::Start);
                self.chains[chain as usize].start = start;
                self.endpoint(chain, Edge::Start);
                chain
            }
            (None, None) => {
                if self.chains.len() - self.chains_free.len() >= CHAINS_MAX {
                    return;
                }
                let chain = self.make(stream, start, end, now);
                self.endpoint(chain, Edge::Start);
                self.endpoint(chain, Edge::End);
                chain
            }
        };
        let entry = &mut self.chains[chain as usize];
        entry.live += 1;
        entry.refs += 1;
        self.chain_of[index as usize] = chain;
    }

    /// The chain that begins or ends at a byte; of several the one with the last start.
    fn beside(&self, stream: u32, byte: u64, side: Edge) -> Option<u32> {
        let mut found = None;
        self.endpoints
            .find(u64::from(stream), byte, side, |number| {
                let chain = &self.chains[number as usize];
                let is_later = |than: u32| self.chains[than as usize].start < chain.start;
                if (chain.stream, chain.at(side)) == (stream, byte) && found.is_none_or(is_later) {
                    found = Some(number);
                }
            });
        found
    }

    fn endpoint(&mut self, number: u32, side: Edge) {
        let chain = &self.chains[number as usize];
        let stream = u64::from(chain.stream);
        self.endpoints.insert(stream, chain.at(side), side, number);
    }

    fn unborder(&mut self, number: u32, side: Edge) {
        let chain = &self.chains[number as usize];
        let stream = u64::from(chain.stream);
        self.endpoints.remove(stream, chain.at(side), side, number);
    }

    /// A request finished, or was cancelled.
    pub(super) fn left(&mut self, index: Index) {
        let Some(chain) = self.chain_of.get(index as usize).copied() else {
            return;
        };
        if chain == NONE {
            return;
        }
        self.chain_of[index as usize] = NONE;
        let root = self.root(chain);
        self.chains[root as usize].live -= 1;
        self.release(chain);
        if self.chains[root as usize].live == 0 {
            self.ends(root);
        }
    }

    /// How long this run will become, by the stride of its stream or by earlier chains of its
    /// length.
    pub(super) fn expected(&self, runs: &Runs, number: u32, now: Time) -> Option<Expected> {
        let run = runs.run(number);
        let queue = runs.queue_of(number);
        let found = self.by_file[queue.direction as usize].find(queue.file);
        let stream = self.streams.get(found as usize)?;
        let len = run.end - run.start;
        if stream.sure >= SURE && stream.stride > 0 && stream.len > len {
            // The run's offset within the stride says which part of the chain it is.
            let phase = stream.start % stream.stride;
            let into = (run.start % stream.stride + stream.stride - phase) % stream.stride;
            let wait_ns = stream.span_ns.saturating_sub(now.since(run.since));
            // If the chains have shifted, as in a new round of calls, the size detector decides.
            if into.saturating_add(len) <= stream.len {
                let len = stream.len;
                return (wait_ns > 0).then_some(Expected { len, wait_ns });
            }
        }
        let mut expected = Expected { len, wait_ns: 0 };
        for size in log2(len)..39 {
            let Size {
                ended,
                grew,
                delay_ns,
            } = stream.sizes[size];
            if grew + ended < SEEN_MIN || 4 * grew < 3 * (grew + ended) {
                break;
            }
            expected.len = 2 << size;
            expected.wait_ns = expected.wait_ns.saturating_add(delay_ns);
        }
        (expected.len > len).then_some(expected)
    }

    /// Counts that a chain grew by one request.
    fn grows(&mut self, chain: u32, now: Time) {
        let Chain {
            stream,
            start,
            end,
            last,
            ..
        } = self.chains[chain as usize];
        let size = &mut self.streams[stream as usize].sizes[log2(end - start)];
        size.grew += 1;
        size.delay_ns = moved(size.delay_ns, now.since(last));
        size.age();
        self.chains[chain as usize].last = now;
    }

    /// Makes a chain part of another, which it is adjacent to.
    fn absorb(&mut self, chain: u32, other: u32) {
        let gone = self.chains[other as usize];
        let kept = &mut self.chains[chain as usize];
        kept.end = gone.end;
        kept.live += gone.live;
        kept.refs += 1;
        kept.first = kept.first.min(gone.first);
        kept.last = kept.last.max(gone.last);
        self.chains[other as usize].became = chain;
    }

    /// The chain that this one has become part of.
    fn root(&self, chain: u32) -> u32 {
        let mut chain = chain;
        while self.chains[chain as usize].became != chain {
            chain = self.chains[chain as usize].became;
        }
        chain
    }

    /// Drops one reference to a chain, and frees the numbers that nothing names any more.
    fn release(&mut self, chain: u32) {
        let mut chain = chain;
        loop {
            let entry = &mut self.chains[chain as usize];
            entry.refs -= 1;
            if entry.refs > 0 || entry.became == chain {
                return;
            }
            self.chains_free.push(chain);
            chain = entry.became;
        }
    }

    /// Learns from a chain that is complete: all its requests have finished.
    fn ends(&mut self, chain: u32) {
        let ended = self.chains[chain as usize];
        self.unborder(chain, Edge::Start);
        self.unborder(chain, Edge::End);
        self.chains_free.push(chain);
        let stream = &mut self.streams[ended.stream as usize];
        let len = ended.end - ended.start;
        let size = &mut stream.sizes[log2(len)];
        size.ended += 1;
        size.age();
        let stride = ended.start.abs_diff(stream.start);
        // The distance is several strides when chains do not end in order of their starts.
        let is_same = stream.len == len && (stride == stream.stride || stream.stride == 0);
        stream.sure = if is_same { stream.sure + 1 } else { 0 };
        stream.span_ns = match is_same {
            true => moved(stream.span_ns, ended.last.since(ended.first)),
            false => ended.last.since(ended.first),
        };
        (stream.start, stream.len, stream.stride) = (ended.start, len, stride);
    }

    fn make(&mut self, stream: u32, start: u64, end: u64, now: Time) -> u32 {
        let number = self.chains_free.pop().unwrap_or(self.chains.len() as u32);
        let chain = Chain {
            stream,
            start,
            end,
            live: 0,
            refs: 0,
            became: number,
            first: now,
            last: now,
        };
        match self.chains.get_mut(number as usize) {
            Some(old) => *old = chain,
            None => self.chains.push(chain),
        }
        number
    }

    fn stream_for(&mut self, file: u64, direction: Direction) -> u32 {
        let found = self.by_file[direction as usize].find(file);
        if found != NONE {
            return found;
        }
        let stream = Stream {
            direction,
            sizes: [Size::default(); 40],
            start: 0,
            len: 0,
            stride: 0,
            sure: 0,
            span_ns: 0,
        };
        let number = match self.streams.len() < STREAMS_MAX {
            true => {
                self.streams.push(stream);
                self.streams.len() as u32 - 1
            }
            false => {
                // Chains of the old stream that are not complete count for the new one: a small
                // error.
                let number = self.oldest;
                self.oldest = (number + 1) % STREAMS_MAX as u32;
                let old = core::mem::replace(&mut self.streams[number as usize], stream);
                self.by_file[old.direction as usize].remove(number);
                number
            }
        };
        self.by_file[direction as usize].insert(file, number);
        number
    }
}

impl Size {
    /// Halves counts that are large.
    fn age(&mut self) {
        if self.ended + self.grew > SEEN_MAX {
            self.ended /= 2;
            self.grew /= 2;
        }
    }
}
