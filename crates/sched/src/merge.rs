//! Batches: joins requests that touch in the file into one call to the back end.
//!
//! A shared block of the policies. The policy picks a request as it would without merging; this
//! block then finds, among those of the same group, file and direction, the ones that begin
//! where it ends or end where it begins, and so on, up to the length of a batch; of several at one
//! border the oldest. The extents of a batch never overlap, and stay apart: the back end gets a
//! list, nothing is copied together.

use crate::borders::{Borders, Side};
use crate::options::Options;
use crate::requests::{Entry, Requests, Slot};
use crate::types::{Direction, Request};
use alloc::vec::Vec;

/// Builds one batch at a time, out of requests that it was told of.
pub(crate) struct Merge {
    /// Whether touching requests are looked for at all.
    on: bool,
    bytes_max: u64,
    requests_max: usize,
    /// By stream: where the requests begin and end.
    borders: Borders,
    /// The batch being built: its ranges, and their bytes.
    ranges: Vec<(u64, u64)>,
    bytes: u64,
}

impl Merge {
    /// Limits from the options; `default` is the policy's own choice of whether to merge.
    pub(crate) fn new(options: &Options, default: bool) -> Merge {
        Merge {
            on: options.merge.unwrap_or(default),
            bytes_max: options.batch_bytes_max,
            requests_max: options.batch_requests_max as usize,
            borders: Borders::new(),
            ranges: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether touching requests are looked for.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Remembers a request that the policy took. Only those of one `group` are merged; the request
    /// has it as its tag.
    #[inline]
    pub(crate) fn arrived(&mut self, requests: &mut Requests, group: u32, slot: Slot) {
        requests[slot].tag = group;
        if self.on && can_merge(&requests[slot].request) {
            let (stream, request) = (stream_of(&requests[slot]), &requests[slot].request);
            let borders = &mut self.borders;
            borders.touch(stream, request.end());
            borders.insert(stream, request.offset, Side::Begins, slot);
            borders.insert(stream, request.end(), Side::Ends, slot);
        }
    }

    /// Forgets a request that was cancelled.
    pub(crate) fn cancelled(&mut self, requests: &Requests, slot: Slot) {
        if self.on && can_merge(&requests[slot].request) {
            self.remove(stream_of(&requests[slot]), requests, slot);
        }
    }

    fn remove(&mut self, stream: u64, requests: &Requests, slot: Slot) {
        let request = &requests[slot].request;
        let borders = &mut self.borders;
        borders.remove(stream, request.offset, Side::Begins, slot);
        borders.remove(stream, request.end(), Side::Ends, slot);
    }

    /// A batch of one request for policies that merge only when told to. False when they were;
    /// then the batch is built with `take`.
    #[inline]
    pub(crate) fn take_alone(&self, slot: Slot, into: &mut Vec<Slot>) -> bool {
        if !self.on {
            into.push(slot);
        }
        !self.on
    }

    /// Begins a batch. It is never refused its first request, however long that is.
    pub(crate) fn begin(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    /// Whether the batch can also hold this request.
    pub(crate) fn has_room(&self, requests: &Requests, slot: Slot, into: &[Slot]) -> bool {
        let Some(&first) = into.first() else {
            return true;
        };
        can_merge(&requests[slot].request)
            && can_merge(&requests[first].request)
            && self.fits(&requests[slot].request, into)
    }

    /// Adds a request to the batch, and what touches it. `took` is told of each further request
    /// that leaves the policy with it.
    pub(crate) fn take(
        &mut self,
        requests: &mut Requests,
        slot: Slot,
        into: &mut Vec<Slot>,
        mut took: impl FnMut(&mut Requests, Slot),
    ) {
        let request = &requests[slot].request;
        self.ranges.push((request.offset, request.end()));
        self.bytes = self.bytes.saturating_add(request.len);
        into.push(slot);
        if !self.on || !can_merge(request) {
            return;
        }
        let stream = stream_of(&requests[slot]);
        // Both ends at once.
        self.borders.touch(stream, request.end());
        self.remove(stream, requests, slot);
        for side in [Side::Begins, Side::Ends] {
            while let Some(next) = self.beside(requests, stream, side, into) {
                let request = &requests[next].request;
                let (offset, end) = (request.offset, request.end());
                self.remove(stream, requests, next);
                let range = self.ranges.last_mut().expect("pushed above");
                *range = (range.0.min(offset), range.1.max(end));
                self.bytes = self.bytes.saturating_add(end - offset);
                into.push(next);
                took(requests, next);
            }
        }
    }

    /// Ends a batch: its requests in order of place, as a list call wants them.
    pub(crate) fn end(&self, requests: &Requests, into: &mut [Slot]) {
        if into.len() > 1 {
            into.sort_unstable_by_key(|&slot| requests[slot].request.offset);
        }
    }

    /// A request that begins where the last range ends, or ends where it begins.
    fn beside(&self, requests: &Requests, stream: u64, side: Side, into: &[Slot]) -> Option<Slot> {
        let &(start, end) = self.ranges.last()?;
        let byte = match side {
            Side::Begins => end,
            Side::Ends => start,
        };
        let mut oldest: Option<Slot> = None;
        self.borders.find(stream, byte, side, |slot| {
            let found = &requests[slot];
            let request = &found.request;
            let border = match side {
                Side::Begins => request.offset,
                Side::Ends => request.end(),
            };
            if (stream_of(found), border) == (stream, byte)
                && oldest.is_none_or(|oldest| found.arrival < requests[oldest].arrival)
                && self.fits(request, into)
            {
                oldest = Some(slot);
            }
        });
        oldest
    }

    fn fits(&self, request: &Request, into: &[Slot]) -> bool {
        into.len() < self.requests_max
            && self.bytes.saturating_add(request.len) <= self.bytes_max
            && self
                .ranges
                .iter()
                .all(|&(start, end)| request.end() <= start || end <= request.offset)
    }
}

/// Whole-file operations say that they cannot; an empty range would touch without end.
fn can_merge(request: &Request) -> bool {
    request.mergeable && request.offset < request.end()
}

/// Group, file and direction of a request. The file goes by its number among the pending ones.
fn stream_of(entry: &Entry) -> u64 {
    let write = u64::from(entry.request.direction == Direction::Write);
    u64::from(entry.tag) << 32 | u64::from(entry.file) << 1 | write
}
