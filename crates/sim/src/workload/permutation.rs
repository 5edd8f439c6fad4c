//! A random order of any number of things, without a list of them: a Feistel network with cycle
//! walking.

/// The place of thing `index` of `count` in the order that follows from `seed`.
pub(super) fn place(count: u64, seed: u64, index: u64) -> u64 {
    // Half of the bits that numbers below `count` need, rounded up.
    let half = (64 - count.saturating_sub(1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut at = index;
    // The network shuffles a power of four that is below four times `count`; what lands outside
    // goes round again, and comes back inside because the network is one-to-one.
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            let next = left ^ (mix(right ^ mix(seed ^ round)) & mask);
            (left, right) = (right, next);
        }
        at = (left << half) | right;
        if at < count {
            return at;
        }
    }
}

/// The finaliser of SplitMix64.
pub(super) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_once() {
        for count in [1, 2, 3, 4, 5, 17, 64, 1000] {
            let mut places: Vec<u64> = (0..count).map(|index| place(count, 7, index)).collect();
            assert!(
                count < 17 || !places.is_sorted(),
                "{count} things stay where they were"
            );
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..count), "{count}");
        }
        assert!((0..100).any(|index| place(100, 1, index) != place(100, 2, index)));
    }
}
