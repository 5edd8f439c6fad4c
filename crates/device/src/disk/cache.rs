//! What a disk's write cache holds that is not on the platters yet.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most bytes that the arm writes at once. Extents that are adjacent become one up to this size.
const EXTENT_BYTES_MAX: u64 = 1 << 20;

/// Bytes to be written to the platters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Number of the oldest write whose bytes are in it.
    pub(super) oldest: u64,
}

#[derive(Default)]
pub(super) struct Cache {
    /// End and oldest write by start; they do not overlap.
    dirty: BTreeMap<u64, (u64, u64)>,
    bytes: u64,
    /// Bytes that the arm is writing.
    writing_bytes: u64,
    /// Writes taken so far.
    writes: u64,
}

impl Cache {
    /// Bytes taken, of which the platters have nothing for certain.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.writing_bytes
    }

    /// Number of the last write.
    pub(super) fn last(&self) -> u64 {
        self.writes
    }

    /// Whether a write up to this number is not on the platters yet.
    pub(super) fn has_of(&self, last: u64) -> bool {
        self.dirty.values().any(|(_, oldest)| *oldest <= last)
    }

    /// Whether all of these bytes can be read here.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.dirty.range(..=at).next_back() {
                Some((_, (its_end, _))) if *its_end > at => at = *its_end,
                _ => return false,
            }
        }
        true
    }

    /// Takes a write. What it overwrites need not be written any more; but the platters have
    /// neither until the new bytes are there.
    pub(super) fn take(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        self.writes += 1;
        let overwritten = self.cut(start, end);
        self.bytes += end - start;
        let mut extent = Extent {
            start,
            end,
            oldest: overwritten.unwrap_or(self.writes),
        };
        if let Some((&before, &(its_end, oldest))) = self.dirty.range(..start).next_back()
            && its_end == start
            && end - before <= EXTENT_BYTES_MAX
        {
            self.dirty.remove(&before);
            extent.start = before;
            extent.oldest = extent.oldest.min(oldest);
        }
        self.dirty.insert(extent.start, (extent.end, extent.oldest));
    }

    /// Takes these bytes out of all extents; returns the oldest write that these had.
    fn cut(&mut self, start: u64, end: u64) -> Option<u64> {
        let over: Vec<(u64, (u64, u64))> = self
            .dirty
            .range(..end)
            .rev()
            .take_while(|(_, (its_end, _))| *its_end > start)
            .map(|(its_start, rest)| (*its_start, *rest))
            .collect();
        let oldest = over.iter().map(|(_, (_, oldest))| *oldest).min();
        for (its_start, (its_end, oldest)) in over {
            self.dirty.remove(&its_start);
            self.bytes -= its_end.min(end) - its_start.max(start);
            if its_start < start {
                self.dirty.insert(its_start, (start, oldest));
            }
            if its_end > end {
                self.dirty.insert(end, (its_end, oldest));
            }
        }
        oldest
    }

    /// The extents that begin next to an address, at most `count` on either side, without those
    /// that have no write up to number `last`.
    pub(super) fn near(&self, address: u64, count: usize, last: u64) -> Vec<Extent> {
        let wanted = |(start, (end, oldest)): (&u64, &(u64, u64))| {
            (*oldest <= last).then_some(Extent {
                start: *start,
                end: *end,
                oldest: *oldest,
            })
        };
        let after = self.dirty.range(address..).filter_map(wanted).take(count);
        let before = self.dirty.range(..address).rev();
        after.chain(before.filter_map(wanted).take(count)).collect()
    }

    /// The arm begins to write an extent, or its first bytes if it is large.
    pub(super) fn begin(&mut self, extent: Extent) -> Extent {
        let end = extent.end.min(extent.start + EXTENT_BYTES_MAX);
        self.dirty.remove(&extent.start);
        if end < extent.end {
            self.dirty.insert(end, (extent.end, extent.oldest));
        }
        self.bytes -= end - extent.start;
        self.writing_bytes += end - extent.start;
        Extent { end, ..extent }
    }

    /// The arm has written an extent.
    pub(super) fn written(&mut self, extent: Extent) {
        self.writing_bytes -= extent.end - extent.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The starts and ends of all extents.
    fn extents(cache: &Cache) -> Vec<(u64, u64)> {
        let all = cache.dirty.iter();
        all.map(|(start, (end, _))| (*start, *end)).collect()
    }

    #[test]
    fn what_is_adjacent_becomes_one_and_what_is_overwritten_counts_once() {
        let mut cache = Cache::default();
        for start in [0, 4096, 16_384] {
            cache.take(start, start + 4096);
        }
        assert_eq!(extents(&cache), [(0, 8192), (16_384, 20_480)]);
        cache.take(6000, 18_000);
        assert_eq!(extents(&cache), [(0, 18_000), (18_000, 20_480)]);
        assert_eq!(cache.bytes(), 20_480);
        cache.take(100, 200);
        assert_eq!(cache.bytes(), 20_480);
        assert!(cache.covers(0, 20_480) && !cache.covers(0, 20_481));
        let mut whole = Cache::default();
        for at in 0..4 {
            whole.take(at << 19, (at + 1) << 19);
        }
        assert_eq!(extents(&whole), [(0, 1 << 20), (1 << 20, 2 << 20)]);
    }

    #[test]
    fn a_flush_waits_for_the_writes_before_it() {
        let mut cache = Cache::default();
        cache.take(0, 10);
        let mark = cache.last();
        cache.take(1 << 30, (1 << 30) + 10);
        assert!(cache.has_of(mark));
        let near = cache.near(1 << 30, 8, mark);
        assert_eq!(near.len(), 1);
        let extent = cache.begin(near[0]);
        assert_eq!((extent.start, extent.end, cache.bytes()), (0, 10, 20));
        assert!(!cache.has_of(mark));
        cache.written(extent);
        assert_eq!(cache.bytes(), 10);
        // What is written again is the new bytes, and waited for as the old ones were.
        let mark = cache.last();
        cache.take((1 << 30) + 5, (1 << 30) + 10);
        let near = cache.near(0, 8, mark);
        assert_eq!(
            (near.len(), near[0].end - near[0].start, cache.bytes()),
            (1, 10, 10)
        );
    }
}
