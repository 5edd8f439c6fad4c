//! Batches: joins requests that touch in the file into one call to the back end.
//!
//! A shared block of the policies. The policy picks a request as it would without merging; this
//! block then finds, among those of the same group, file and direction, the ones that begin
//! where it ends or end where it begins, and so on, up to the length of a batch. The extents of a
//! batch never overlap, and stay apart: the back end gets a list, nothing is copied together.

use crate::options::Options;
use crate::requests::{Requests, Slot};
use crate::sorted::Sorted;
use crate::types::{Direction, Request};
use alloc::vec::Vec;

/// Group, file and direction in one number; first byte; slot. Neighbours in the file are neighbours
/// here.
type Place = (u64, u64, Slot);

/// Builds one batch at a time, out of requests that it was told of.
pub(crate) struct Merge {
    /// Whether touching requests are looked for at all.
    on: bool,
    bytes_max: u64,
    requests_max: usize,
    by_place: Sorted<Place, ()>,
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
            by_place: Sorted::new(),
            ranges: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether touching requests are looked for.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Remembers a request that the policy took. Only those of one `group` are merged.
    pub(crate) fn arrived(&mut self, requests: &Requests, group: u32, slot: Slot) {
        if self.on && can_merge(&requests[slot].request) {
            self.by_place.insert(place(requests, group, slot), ());
        }
    }

    /// Forgets a request that was cancelled.
    pub(crate) fn cancelled(&mut self, requests: &Requests, group: u32, slot: Slot) {
        if self.on && can_merge(&requests[slot].request) {
            self.by_place.remove(&place(requests, group, slot));
        }
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
        group: u32,
        slot: Slot,
        into: &mut Vec<Slot>,
        mut took: impl FnMut(&mut Requests, Slot),
    ) {
        self.cancelled(requests, group, slot);
        let request = requests[slot].request;
        self.ranges.push((request.offset, request.end()));
        self.bytes = self.bytes.saturating_add(request.len);
        into.push(slot);
        if !self.on || !can_merge(&request) {
            return;
        }
        for side in [Self::right, Self::left] {
            while let Some(next) = side(self, requests, group, slot, into) {
                let (offset, end) = (requests[next].request.offset, requests[next].request.end());
                self.by_place.remove(&place(requests, group, next));
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

    /// A request that begins where the last range ends.
    fn right(&self, requests: &Requests, group: u32, like: Slot, into: &[Slot]) -> Option<Slot> {
        let &(_, end) = self.ranges.last()?;
        let from = (stream(requests, group, like), end, 0);
        let (place, ()) = self.by_place.at_or_after(&from)?;
        let slot = place.2;
        let touches = (place.0, place.1) == (from.0, end);
        (touches && self.fits(&requests[slot].request, into)).then_some(slot)
    }

    /// A request that ends where the last range begins.
    fn left(&self, requests: &Requests, group: u32, like: Slot, into: &[Slot]) -> Option<Slot> {
        let &(start, _) = self.ranges.last()?;
        let below = (stream(requests, group, like), start, 0);
        let (place, ()) = self.by_place.before(&below)?;
        let slot = place.2;
        let touches = place.0 == below.0 && requests[slot].request.end() == start;
        (touches && self.fits(&requests[slot].request, into)).then_some(slot)
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
fn stream(requests: &Requests, group: u32, slot: Slot) -> u64 {
    let entry = &requests[slot];
    let write = u64::from(entry.request.direction == Direction::Write);
    u64::from(group) << 32 | u64::from(entry.file) << 1 | write
}

fn place(requests: &Requests, group: u32, slot: Slot) -> Place {
    let offset = requests[slot].request.offset;
    (stream(requests, group, slot), offset, slot)
}
