//! One bit for each page of a table. Several threads set and clear the bits.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bits of a word.
const BITS: usize = u64::BITS as usize;

/// One bit for each page.
pub(super) struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// Marks for `pages` pages, none of them set.
    pub(super) fn new(pages: usize) -> Marks {
        Marks(
            (0..pages.div_ceil(BITS))
                .map(|_| AtomicU64::new(0))
                .collect(),
        )
    }

    pub(super) fn set(&self, page: usize) {
        self.0[page / BITS].fetch_or(1 << (page % BITS), Ordering::AcqRel);
    }

    pub(super) fn clear(&self, page: usize) {
        self.0[page / BITS].fetch_and(!(1 << (page % BITS)), Ordering::AcqRel);
    }

    pub(super) fn is_set(&self, page: usize) -> bool {
        self.0[page / BITS].load(Ordering::Acquire) >> (page % BITS) & 1 == 1
    }

    pub(super) fn set_all(&self, pages: Range<usize>) {
        for (word, bits) in words(pages) {
            self.0[word].fetch_or(bits, Ordering::AcqRel);
        }
    }

    pub(super) fn clear_all(&self, pages: Range<usize>) {
        for (word, bits) in words(pages) {
            self.0[word].fetch_and(!bits, Ordering::AcqRel);
        }
    }

    /// The marked pages among the first `pages`, in order.
    pub(super) fn set_below(&self, pages: usize) -> impl Iterator<Item = usize> + '_ {
        let words = self.0.iter().take(pages.div_ceil(BITS)).enumerate();
        words.flat_map(|(number, word)| {
            let word = word.load(Ordering::Acquire);
            (0..BITS).filter_map(move |bit| (word >> bit & 1 == 1).then_some(number * BITS + bit))
        })
    }
}

/// The words that contain a range of pages, each with the bits of the range.
fn words(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = pages;
    (start / BITS..end.div_ceil(BITS)).map(move |word| {
        let first = start.saturating_sub(word * BITS);
        let last = (end - word * BITS).min(BITS);
        (word, u64::MAX << first & u64::MAX >> (BITS - last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_marked_to_the_page() {
        let marks = Marks::new(300);
        for range in [0..1, 63..64, 64..128, 5..200, 127..129, 7..7, 250..300] {
            marks.set_all(range.clone());
            let set: Vec<usize> = marks.set_below(300).collect();
            assert_eq!(set, range.clone().collect::<Vec<_>>());
            assert!(range.clone().all(|page| marks.is_set(page)));
            marks.clear_all(range);
            assert_eq!(marks.set_below(300).count(), 0);
        }
        marks.set_all(0..300);
        marks.clear_all(60..140);
        marks.clear(299);
        assert_eq!(marks.set_below(300).count(), 300 - 80 - 1);
    }
}
