//! Which process accesses what in a collective call: aggregators, their file domains and rounds.

use super::grid::Grid;
use super::keys::{Impossible, Keys, positive, require};
use super::shuffles::Shuffles;
use crate::units::Bytes;
use crate::world::CALL_BYTES_MAX;
use std::ops::Range;

/// How processes carry out collective calls.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// How many processes access the file, spread evenly over the ranks.
    pub aggregators: u32,
    /// Bytes that an aggregator accesses in a round.
    pub buffer: Bytes,
    /// File domains begin at multiples of this; 0: all are of the same size.
    pub align: Bytes,
    /// What follows an aggregator's access of a read.
    pub shuffles: Shuffles,
}

/// ROMIO's `cb_buffer_size`.
const BUFFER: Bytes = Bytes(16 << 20);

impl Collective {
    /// None: calls are not collective.
    pub(super) fn read(keys: &mut Keys) -> Option<Collective> {
        let collective = keys.or("collective", false);
        let aggregators = keys.optional("aggregators");
        let buffer = keys.optional("buffer");
        let align = keys.optional("align");
        let (shuffles, shuffles_there) = Shuffles::read(keys);
        if !collective {
            let own = [
                ("aggregators", aggregators.is_some()),
                ("buffer", buffer.is_some()),
                ("align", align.is_some()),
            ];
            let of_shuffles = Shuffles::KEYS.into_iter().zip(shuffles_there);
            for (key, given) in own.into_iter().chain(of_shuffles) {
                if given {
                    keys.fails(format!("{key}: only collective calls have it"));
                }
            }
            return None;
        }
        if aggregators.is_none() {
            keys.fails("aggregators is missing: how many processes access the file".into());
        }
        Some(Collective {
            aggregators: aggregators.unwrap_or(1),
            buffer: buffer.unwrap_or(BUFFER),
            align: align.unwrap_or_default(),
            shuffles,
        })
    }

    pub(super) fn check(&self, processes: u32) -> Result<(), Impossible> {
        self.shuffles.check()?;
        positive("aggregators", self.aggregators.into())?;
        require(self.aggregators <= processes, "aggregators", || {
            format!("{} of only {processes} processes", self.aggregators)
        })?;
        let limits = 1..=CALL_BYTES_MAX;
        require(limits.contains(&self.buffer.0), "buffer", || {
            format!("1 to {CALL_BYTES_MAX} bytes are possible")
        })
    }

    /// The rank of an aggregator.
    pub(super) fn rank(&self, aggregator: u32, processes: u32) -> u32 {
        let rank = u64::from(aggregator) * u64::from(processes) / u64::from(self.aggregators);
        rank as u32
    }

    /// The number of the aggregator that this process is, if it is one.
    pub(super) fn aggregator(&self, rank: u32, processes: u32) -> Option<u32> {
        let first = self.bisect(|aggregator| self.rank(aggregator, processes) >= rank);
        (first < self.aggregators && self.rank(first, processes) == rank).then_some(first)
    }

    /// Where a file domain begins, in bytes of the cover.
    fn border(&self, cover: &Grid, aggregator: u32) -> u64 {
        let bytes = u128::from(cover.bytes());
        let even = bytes * u128::from(aggregator) / u128::from(self.aggregators);
        let even = even as u64;
        if self.align.0 == 0 || aggregator == 0 || aggregator == self.aggregators {
            return even;
        }
        // The nearest multiple; as even borders ascend, so do these.
        let offset = cover.offset_of(even) + self.align.0 / 2;
        cover.bytes_before(offset / self.align.0 * self.align.0)
    }

    /// What an aggregator accesses in a round, in bytes of the cover.
    pub(super) fn window(&self, cover: &Grid, aggregator: u32, round: u64) -> Option<(u64, u64)> {
        let (from, to) = (
            self.border(cover, aggregator),
            self.border(cover, aggregator + 1),
        );
        let from = from + round * self.buffer.0;
        (from < to).then(|| (from, to.min(from + self.buffer.0)))
    }

    /// Rounds of one aggregator in an operation.
    pub(super) fn rounds_of(&self, cover: &Grid, aggregator: u32) -> u64 {
        let bytes = self.border(cover, aggregator + 1) - self.border(cover, aggregator);
        bytes.div_ceil(self.buffer.0)
    }

    pub(super) fn rounds(&self, cover: &Grid) -> u64 {
        let aggregators = 0..self.aggregators;
        let rounds = aggregators.map(|aggregator| self.rounds_of(cover, aggregator));
        rounds.max().unwrap_or(0)
    }

    /// The aggregators whose domains have some of the cover's bytes from number `needed.0` to
    /// before `needed.1`.
    pub(super) fn domains(&self, cover: &Grid, needed: (u64, u64)) -> Range<u32> {
        let first = self.bisect(|aggregator| self.border(cover, aggregator + 1) > needed.0);
        let end = self.bisect(|aggregator| self.border(cover, aggregator) >= needed.1);
        first..end
    }

    /// The first aggregator for which something holds that holds for all behind it.
    fn bisect(&self, holds: impl Fn(u32) -> bool) -> u32 {
        let (mut low, mut high) = (0, self.aggregators);
        while low < high {
            let middle = low + (high - low) / 2;
            match holds(middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    }
}
