//! The structure with which ours is compared: pending ranges in one contiguous list, scanned from
//! end to end, as the brute-force merger of Ohta et al. (2010) does.

use tidegate_sched::{Direction, Found, Request, RequestId};

/// Ranges of one file that arrived and are not gone; ids are below the most there ever are.
#[derive(Default)]
pub struct Scan {
    pending: Vec<Range>,
    /// By id: where it lies. So that finding a range by its id costs the list nothing.
    place_of: Vec<u32>,
    arrivals: u64,
    freed: Vec<(u64, u32)>,
}

/// Half a line of the cache.
struct Range {
    start: u64,
    end: u64,
    /// Number of its arrival, twice, and 1 more for a write.
    arrival: u64,
    id: u32,
    /// How many it waits for.
    waits_for: u32,
}

impl Range {
    fn writes(&self) -> bool {
        self.arrival % 2 == 1
    }

    fn conflicts_with(&self, other: &Range) -> bool {
        self.start < other.end && other.start < self.end && (self.writes() || other.writes())
    }
}

impl Scan {
    /// See `Ranges::arrived`. One pass finds the ranges that the new one waits for and those to
    /// which it is adjacent.
    pub fn arrived(&mut self, request: &Request) -> Found {
        let write = request.direction == Direction::Write;
        let id = u32::try_from(request.id.0).expect("ids are places");
        let mut new = Range {
            start: request.offset,
            end: request.end(),
            arrival: self.arrivals * 2 + u64::from(write),
            id,
            waits_for: 0,
        };
        self.arrivals += 1;
        let (mut before, mut after): (Option<&Range>, Option<&Range>) = (None, None);
        let is_older =
            |range: &Range, than: Option<&Range>| than.is_none_or(|t| range.arrival < t.arrival);
        for range in &self.pending {
            new.waits_for += u32::from(range.conflicts_with(&new));
            if range.writes() == write {
                if range.end == new.start && is_older(range, before) {
                    before = Some(range);
                }
                if range.start == new.end && is_older(range, after) {
                    after = Some(range);
                }
            }
        }
        let name = |range: &Range| RequestId(range.id.into());
        let found = Found {
            waits: new.waits_for > 0,
            before: before.map(name),
            after: after.map(name),
        };
        let at = id as usize;
        if self.place_of.len() <= at {
            self.place_of.resize(at + 1, 0);
        }
        self.place_of[at] = self.pending.len() as u32;
        self.pending.push(new);
        found
    }

    /// See `Ranges::gone`; the range must be there and wait for nothing.
    pub fn gone(&mut self, id: RequestId, freed: &mut Vec<RequestId>) {
        let at = self.place_of[id.0 as usize] as usize;
        let gone = self.pending.swap_remove(at);
        if let Some(moved) = self.pending.get(at) {
            self.place_of[moved.id as usize] = at as u32;
        }
        for range in &mut self.pending {
            // It waited for nothing, so whoever conflicts with it came later and waits for it.
            if range.conflicts_with(&gone) {
                range.waits_for -= 1;
                if range.waits_for == 0 {
                    self.freed.push((range.arrival, range.id));
                }
            }
        }
        self.freed.sort_unstable();
        let ids = self.freed.drain(..).map(|(_, id)| RequestId(id.into()));
        freed.extend(ids);
    }
}
