//! The page cache of a server: which bytes of the device it has, and which of them the device has
//! not. Bytes leave it in the order in which they were last used.

use crate::Access;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The device has them.
    Clean,
    /// Only the cache has them.
    Dirty,
    /// They are on their way to the device.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    end: u64,
    state: State,
    /// The later, the younger.
    stamp: u64,
}

pub(super) struct Pages {
    bytes_max: u64,
    /// By their first byte; none overlaps another.
    extents: BTreeMap<u64, Extent>,
    /// Stamps and first bytes, clean and not.
    clean: BTreeSet<(u64, u64)>,
    dirty: BTreeSet<(u64, u64)>,
    bytes: u64,
    dirty_bytes: u64,
    stamps: u64,
}

/// The bytes of an access; an end past the last address is that address.
fn range(access: &Access) -> (u64, u64) {
    let end = access.address.saturating_add(access.len);
    (access.address, end)
}

impl Pages {
    pub(super) fn new(bytes_max: u64) -> Pages {
        Pages {
            bytes_max,
            extents: BTreeMap::new(),
            clean: BTreeSet::new(),
            dirty: BTreeSet::new(),
            bytes: 0,
            dirty_bytes: 0,
            stamps: 0,
        }
    }

    /// The stamp of what came last.
    pub(super) fn stamp(&self) -> u64 {
        self.stamps
    }

    /// Bytes that the device has not.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// The stamp of the oldest bytes that the device has not.
    pub(super) fn oldest_dirty(&self) -> Option<u64> {
        self.dirty.first().map(|(stamp, _)| *stamp)
    }

    /// Appends what of a read is not here, and makes the rest young.
    pub(super) fn read(&mut self, access: &Access, missing: &mut Vec<Access>) {
        let (start, end) = range(access);
        for (first, extent) in self.overlapping(start, end) {
            if extent.state == State::Clean {
                self.remove(first);
                let stamp = self.next_stamp();
                self.insert(first, Extent { stamp, ..extent });
            }
        }
        self.gaps(start, end, missing);
    }

    /// Takes what was read or written past the cache.
    pub(super) fn keep(&mut self, access: &Access) {
        if self.bytes_max == 0 {
            return;
        }
        let (start, end) = range(access);
        let mut gaps = Vec::new();
        self.gaps(start, end, &mut gaps);
        for gap in gaps {
            let stamp = self.next_stamp();
            let (start, end) = range(&gap);
            let state = State::Clean;
            self.insert(start, Extent { end, state, stamp });
        }
        self.evict();
    }

    /// Takes what only the cache has.
    pub(super) fn write(&mut self, access: &Access) {
        let (start, end) = range(access);
        if start == end {
            return;
        }
        self.cut(start, end);
        let stamp = self.next_stamp();
        let state = State::Dirty;
        self.insert(start, Extent { end, state, stamp });
        self.evict();
    }

    /// The next bytes to write back, from `from` on and then from the beginning: all that lies
    /// together, up to `bytes_max` unless the first extent is longer. They are on their way then.
    pub(super) fn take_run(&mut self, from: u64, bytes_max: u64) -> Option<(u64, u64)> {
        let is_dirty = |extent: &Extent| extent.state == State::Dirty;
        let mut after = self.extents.range(from..);
        let next = after.find(|(_, extent)| is_dirty(extent));
        let next = next.or_else(|| self.extents.iter().find(|(_, extent)| is_dirty(extent)));
        let (start, mut end) = next.map(|(start, extent)| (*start, extent.end))?;
        while let Some(extent) = self.extents.get(&end)
            && is_dirty(extent)
            && extent.end - start <= bytes_max
        {
            end = extent.end;
        }
        for (first, extent) in self.overlapping(start, end) {
            self.remove(first);
            let state = State::Leaving;
            self.insert(first, Extent { state, ..extent });
        }
        Some((start, end))
    }

    /// What was on its way in these bytes is at the device; not what was written there since.
    pub(super) fn is_written(&mut self, start: u64, end: u64) {
        for (first, extent) in self.overlapping(start, end) {
            if extent.state == State::Leaving {
                self.remove(first);
                let state = State::Clean;
                self.insert(first, Extent { state, ..extent });
            }
        }
        self.evict();
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, Extent)> {
        let before = self.extents.range(..start).next_back();
        let before = before.filter(|(_, extent)| extent.end > start);
        let after = self.extents.range(start..end.max(start));
        let all = before.into_iter().chain(after);
        all.map(|(first, extent)| (*first, *extent)).collect()
    }

    fn gaps(&self, start: u64, end: u64, into: &mut Vec<Access>) {
        let mut at = start;
        let mut gap = |from: u64, to: u64| {
            if from < to {
                into.push(Access {
                    address: from,
                    len: to - from,
                    write: false,
                });
            }
        };
        for (first, extent) in self.overlapping(start, end) {
            gap(at, first);
            at = at.max(extent.end);
        }
        gap(at, end);
    }

    /// Forgets these bytes.
    fn cut(&mut self, start: u64, end: u64) {
        for (first, extent) in self.overlapping(start, end) {
            self.remove(first);
            if first < start {
                let left = Extent {
                    end: start,
                    ..extent
                };
                self.insert(first, left);
            }
            if extent.end > end {
                self.insert(end, extent);
            }
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.bytes_max
            && let Some((_, first)) = self.clean.first().copied()
        {
            self.remove(first);
        }
    }

    fn insert(&mut self, first: u64, extent: Extent) {
        let bytes = extent.end - first;
        self.bytes += bytes;
        match extent.state {
            State::Clean => self.clean.insert((extent.stamp, first)),
            State::Dirty | State::Leaving => {
                self.dirty_bytes += bytes;
                self.dirty.insert((extent.stamp, first))
            }
        };
        self.extents.insert(first, extent);
    }

    fn remove(&mut self, first: u64) {
        let Some(extent) = self.extents.remove(&first) else {
            return;
        };
        let bytes = extent.end - first;
        self.bytes -= bytes;
        match extent.state {
            State::Clean => self.clean.remove(&(extent.stamp, first)),
            State::Dirty | State::Leaving => {
                self.dirty_bytes -= bytes;
                self.dirty.remove(&(extent.stamp, first))
            }
        };
    }
}

#[cfg(test)]
impl Pages {
    /// Checks that the sums are those of the extents, and these do not overlap.
    pub(super) fn check(&self, bytes_max: u64) {
        let mut sums = [0, 0];
        let mut at = 0;
        for (first, extent) in &self.extents {
            assert!(*first >= at && extent.end > *first);
            at = extent.end;
            sums[usize::from(extent.state != State::Clean)] += extent.end - first;
        }
        assert_eq!(sums, [self.bytes - self.dirty_bytes, self.dirty_bytes]);
        assert_eq!(self.clean.len() + self.dirty.len(), self.extents.len());
        assert!(self.bytes <= bytes_max, "{} of {bytes_max}", self.bytes);
    }
}
