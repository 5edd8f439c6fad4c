//! Which pending ranges a new one overlaps, and which are adjacent to it: the two blocks that know,
//! without a policy, so that a benchmark can measure what they cost.
//!
//! In the I/O forwarding layer of Ohta et al. (2010) one structure does both: a list that is
//! scanned, or a tree. Here the order of overlapping requests (`overlap.rs`) and the endpoints by
//! which requests join (`endpoint_index.rs`) are two, because most policies need the first alone.

use crate::endpoint_index::{Edge, EndpointIndex};
use crate::hash_table::NONE;
use crate::overlap::Overlap;
use crate::requests::{Index, Requests, Stage};
use crate::types::{Direction, Request, RequestId, Time};
use alloc::vec::Vec;

/// Ranges that arrived and are not gone.
pub struct Ranges {
    requests: Requests,
    overlap: Overlap,
    endpoints: EndpointIndex,
    freed: Vec<Index>,
}

/// What was found when a range arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether it must wait: it overlaps a pending one, and one of the two writes.
    pub waits: bool,
    /// The oldest pending range of its file and direction that ends where it begins.
    pub before: Option<RequestId>,
    /// The oldest that begins where it ends.
    pub after: Option<RequestId>,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges::new()
    }
}

impl Ranges {
    /// No ranges.
    pub fn new() -> Ranges {
        Ranges {
            requests: Requests::new(),
            overlap: Overlap::new(),
            endpoints: EndpointIndex::new(),
            freed: Vec::new(),
        }
    }

    /// Takes a range that is not empty, and whose id is not in use.
    pub fn arrived(&mut self, request: &Request) -> Found {
        let index = self.requests.insert(Time(0), request);
        let free = self.overlap.arrived(&mut self.requests, index);
        if free {
            self.requests[index].stage = Stage::Queued;
        }
        let (stream, offset, end) = (stream_of(request), request.offset, request.end());
        // Both lines of the table at once.
        self.endpoints.prefetch(stream, end);
        let found = Found {
            waits: !free,
            before: self.oldest(stream, offset, Edge::End),
            after: self.oldest(stream, end, Edge::Start),
        };
        self.endpoints.insert(stream, offset, Edge::Start, index);
        self.endpoints.insert(stream, end, Edge::End, index);
        found
    }

    /// Takes a range away that waits for nothing. `freed` gets those that waited for nothing
    /// else, in order of arrival. False when there is no such range.
    pub fn gone(&mut self, id: RequestId, freed: &mut Vec<RequestId>) -> bool {
        let index = self.requests.find(id);
        if index == NONE || self.requests[index].stage != Stage::Queued {
            return false;
        }
        let request = self.requests[index].request;
        let stream = stream_of(&request);
        self.endpoints.prefetch(stream, request.end());
        let endpoints = [(request.offset, Edge::Start), (request.end(), Edge::End)];
        for (byte, side) in endpoints {
            self.endpoints.remove(stream, byte, side, index);
        }
        self.overlap
            .gone(&mut self.requests, index, &mut self.freed);
        self.requests.release(index);
        for index in self.freed.drain(..) {
            self.requests[index].stage = Stage::Queued;
            freed.push(self.requests[index].request.id);
        }
        true
    }

    fn oldest(&self, stream: u64, byte: u64, side: Edge) -> Option<RequestId> {
        let mut oldest: Option<Index> = None;
        self.endpoints.find(stream, byte, side, |index| {
            let found = &self.requests[index];
            let endpoint = match side {
                Edge::Start => found.request.offset,
                Edge::End => found.request.end(),
            };
            if (stream_of(&found.request), endpoint) == (stream, byte)
                && oldest.is_none_or(|oldest| found.arrival < self.requests[oldest].arrival)
            {
                oldest = Some(index);
            }
        });
        oldest.map(|index| self.requests[index].request.id)
    }
}

/// File and direction.
fn stream_of(request: &Request) -> u64 {
    request.file.0 << 1 | u64::from(request.direction == Direction::Write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::{read, write};

    #[test]
    fn ranges_overlap_and_touch() {
        let mut ranges = Ranges::new();
        let mut arrive = |id, request: Request| {
            let id = RequestId(id);
            ranges.arrived(&Request { id, ..request })
        };
        let found = |waits, before: Option<u64>, after: Option<u64>| Found {
            waits,
            before: before.map(RequestId),
            after: after.map(RequestId),
        };
        assert_eq!(arrive(1, write(1, 0, 8)), found(false, None, None));
        assert_eq!(arrive(2, write(1, 16, 8)), found(false, None, None));
        assert_eq!(arrive(3, write(1, 8, 8)), found(false, Some(1), Some(2)));
        // Another direction, another file.
        assert_eq!(arrive(4, read(1, 24, 8)), found(false, None, None));
        assert_eq!(arrive(5, write(2, 24, 8)), found(false, None, None));
        assert_eq!(arrive(6, read(1, 4, 8)), found(true, None, None));
        let mut freed = Vec::new();
        assert!(!ranges.gone(RequestId(6), &mut freed), "it waits");
        assert!(!ranges.gone(RequestId(7), &mut freed), "it never came");
        assert!(ranges.gone(RequestId(3), &mut freed) && freed.is_empty());
        assert!(ranges.gone(RequestId(1), &mut freed));
        assert_eq!(freed, [RequestId(6)]);
    }
}
