//! Batches: joins adjacent requests of a file into one call to the back end.
//!
//! A shared block of the policies. The policy picks a request as it would without merging; this
//! block then finds, among those of the same group, file and direction, the ones that begin
//! where it ends or end where it begins, and so on, up to the length of a batch; of several at one
//! endpoint the oldest. The extents of a batch never overlap, and stay apart: the back end gets a
//! list, nothing is copied together.
//!
//! Where files are striped over forwarders, requests are adjacent if only stripes of the others lie
//! between them: so their bytes lie on the device, and so the pieces of one large operation reach a
//! forwarder. Stripes of a stand-in's two seats may seem to lie at one place; a batch of such is no
//! worse than another.

use crate::cost::CostModel;
use crate::endpoint_index::{Edge, EndpointIndex};
use crate::options::Options;
use crate::requests::{Entry, Index, Requests};
use crate::types::{Direction, Request};
use alloc::vec::Vec;

/// The bytes of a batch may take so many times as long as a call's base cost.
const BASES: u128 = 4;

/// For whom a batch is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Others by their shares: each turn of theirs costs a seek as well.
    Shares,
    /// What needs less, and came when the batch had begun.
    Smaller,
    /// Requests that are promised a time.
    Targets,
}

impl Beside {
    /// For how long the bytes of a batch may take where an access elsewhere costs so much.
    fn bytes_ns(self, elsewhere_ns: u64) -> u64 {
        match self {
            Beside::Shares => elsewhere_ns / 2,
            Beside::Smaller => elsewhere_ns / 6,
            Beside::Targets => 0,
        }
    }
}

/// Builds one batch at a time, from the requests that the policy holds.
pub(crate) struct Merge {
    /// Whether adjacent requests are looked for at all. A policy that finds this off need not ask
    /// anything else: its batches have one request each.
    pub(crate) on: bool,
    /// The bytes of a batch, and how many the site allows.
    bytes_max: u64,
    allowed_max: u64,
    requests_max: usize,
    stripes: Stripes,
    /// By stream: where the requests begin and end, as `stripes` counts.
    endpoints: EndpointIndex,
    /// The batch being built: the ranges of the file that it is within, in the order in which they
    /// came; where the last of them begins and ends as `stripes` counts; and the requests' bytes.
    ranges: Vec<(u64, u64)>,
    last: (u64, u64),
    bytes: u64,
}

/// Counts the bytes of a file that lie with this forwarder.
#[derive(Clone, Copy)]
struct Stripes {
    /// Of one stripe, and of one of each forwarder; both 0 where all lie here.
    bytes: u64,
    round: u64,
}

impl Stripes {
    fn new(options: &Options) -> Stripes {
        match (options.stripe_bytes, options.shares.forwarders) {
            (0, _) | (_, 0..=1) => Stripes { bytes: 0, round: 0 },
            (bytes, forwarders) => Stripes {
                bytes,
                round: bytes.saturating_mul(forwarders.into()),
            },
        }
    }

    /// Where a request begins and ends; it is not empty, and within a stripe if there are any.
    fn place(self, request: &Request) -> (u64, u64) {
        if self.round == 0 {
            return (request.offset, request.end());
        }
        let local = |offset: u64| offset / self.round * self.bytes + offset % self.bytes;
        (local(request.offset), local(request.end() - 1) + 1)
    }
}

impl Merge {
    /// Limits, and whether to merge at all, from the effective options.
    pub(crate) fn new(options: &Options) -> Merge {
        Merge {
            on: options.merge.unwrap_or(false),
            bytes_max: options.batch_bytes_max,
            allowed_max: options.batch_bytes_max,
            requests_max: options.batch_requests_max as usize,
            stripes: Stripes::new(options),
            endpoints: EndpointIndex::new(),
            ranges: Vec::new(),
            last: (0, 0),
            bytes: 0,
        }
    }

    /// From now on batches are only so long as they gain. What each call costs, whatever its
    /// length, is at least a fifth of its time: longer ones gain little, and whoever is next waits
    /// for them. Or the bytes take at most a part of what an access elsewhere costs: who waits for
    /// such a one notices little of them, and if somebody else came in between, their neighbours
    /// would cost a seek again. On disks that is some hundreds of KiB; where a call costs much, as
    /// much as the site allows.
    pub(crate) fn limit(&mut self, cost: &CostModel, beside: Beside) {
        let gains = |direction| {
            let access = cost.access(direction, true);
            let elsewhere_ns = cost.access(direction, false).base_ns;
            let ns = u128::from(access.base_ns) * BASES;
            let ns = ns.max(beside.bytes_ns(elsewhere_ns).into());
            (ns << 20).checked_div(access.ns_per_mib.into())
        };
        let gains = gains(Direction::Read).max(gains(Direction::Write));
        // Without a price of bytes every length gains.
        let bytes = gains.map_or(u64::MAX, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
        self.bytes_max = bytes.min(self.allowed_max);
    }

    /// Remembers a request that the policy took. Only those of one `group` are merged; the request
    /// has it as its tag.
    #[inline]
    pub(crate) fn arrived(&mut self, requests: &mut Requests, group: u32, index: Index) {
        requests[index].tag = group;
        if self.on && can_merge(&requests[index].request) {
            let stream = stream_of(&requests[index]);
            let (start, end) = self.stripes.place(&requests[index].request);
            let endpoints = &mut self.endpoints;
            endpoints.prefetch(stream, end);
            endpoints.insert(stream, start, Edge::Start, index);
            endpoints.insert(stream, end, Edge::End, index);
        }
    }

    /// Forgets a request that was cancelled.
    pub(crate) fn cancelled(&mut self, requests: &Requests, index: Index) {
        if self.on && can_merge(&requests[index].request) {
            self.remove(stream_of(&requests[index]), requests, index);
        }
    }

    fn remove(&mut self, stream: u64, requests: &Requests, index: Index) {
        let (start, end) = self.stripes.place(&requests[index].request);
        let endpoints = &mut self.endpoints;
        endpoints.remove(stream, start, Edge::Start, index);
        endpoints.remove(stream, end, Edge::End, index);
    }

    /// A batch of one request and, if the policy merges, all that is adjacent to it. `took` as for
    /// `take`.
    #[inline]
    pub(crate) fn take_one(
        &mut self,
        requests: &mut Requests,
        index: Index,
        into: &mut Vec<Index>,
        took: impl FnMut(&mut Requests, Index),
    ) {
        if self.on {
            self.begin();
            self.take(requests, index, into, took);
        } else {
            into.push(index);
        }
    }

    /// Begins a batch. It is never refused its first request, however long that is.
    pub(crate) fn begin(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    /// Whether the batch can also hold this request.
    pub(crate) fn has_room(&self, requests: &Requests, index: Index, into: &[Index]) -> bool {
        let Some(&first) = into.first() else {
            return true;
        };
        can_merge(&requests[index].request)
            && can_merge(&requests[first].request)
            && self.fits(&requests[index].request, into)
    }

    /// Adds a request to the batch, and all that is adjacent to the batch. Calls `took` with each
    /// further request that leaves the policy with it.
    pub(crate) fn take(
        &mut self,
        requests: &mut Requests,
        index: Index,
        into: &mut Vec<Index>,
        mut took: impl FnMut(&mut Requests, Index),
    ) {
        let request = &requests[index].request;
        self.ranges.push((request.offset, request.end()));
        self.bytes = self.bytes.saturating_add(request.len);
        into.push(index);
        if !self.on || !can_merge(request) {
            return;
        }
        let stream = stream_of(&requests[index]);
        self.last = self.stripes.place(request);
        // Both ends at once.
        self.endpoints.prefetch(stream, self.last.1);
        self.remove(stream, requests, index);
        for side in [Edge::Start, Edge::End] {
            while let Some(next) = self.beside(requests, stream, side, into) {
                let request = &requests[next].request;
                let (offset, end) = (request.offset, request.end());
                let place = self.stripes.place(request);
                self.remove(stream, requests, next);
                let range = self.ranges.last_mut().expect("pushed above");
                *range = (range.0.min(offset), range.1.max(end));
                self.last = (self.last.0.min(place.0), self.last.1.max(place.1));
                self.bytes = self.bytes.saturating_add(end - offset);
                into.push(next);
                took(requests, next);
            }
        }
    }

    /// A request that begins where the last range ends, or ends where it begins.
    fn beside(
        &self,
        requests: &Requests,
        stream: u64,
        side: Edge,
        into: &[Index],
    ) -> Option<Index> {
        let byte = match side {
            Edge::Start => self.last.1,
            Edge::End => self.last.0,
        };
        let mut oldest: Option<Index> = None;
        self.endpoints.find(stream, byte, side, |index| {
            let found = &requests[index];
            let request = &found.request;
            let (start, end) = self.stripes.place(request);
            let endpoint = match side {
                Edge::Start => start,
                Edge::End => end,
            };
            if (stream_of(found), endpoint) == (stream, byte)
                && oldest.is_none_or(|oldest| found.arrival < requests[oldest].arrival)
                && self.fits(request, into)
            {
                oldest = Some(index);
            }
        });
        oldest
    }

    fn fits(&self, request: &Request, into: &[Index]) -> bool {
        into.len() < self.requests_max
            && self.bytes.saturating_add(request.len) <= self.bytes_max
            && self
                .ranges
                .iter()
                .all(|&(start, end)| request.end() <= start || end <= request.offset)
    }
}

/// Whole-file operations say that they cannot; an empty range would be adjacent to itself.
fn can_merge(request: &Request) -> bool {
    request.mergeable && request.offset < request.end()
}

/// Group, file and direction of a request. The file goes by its number among the pending ones.
fn stream_of(entry: &Entry) -> u64 {
    let write = u64::from(entry.request.direction == Direction::Write);
    u64::from(entry.tag) << 32 | u64::from(entry.file) << 1 | write
}
