//! Where a file's bytes lie on the device of one forwarder.
//!
//! A forwarder sees only its own stripes of a file; counted without the gaps they are the file's
//! local offsets. Sequential local offsets are sequential on the device, in units; where a unit
//! lies is a hash of inode and unit, so it does not depend on the order in which files are first
//! used, and two runs under different policies use the same addresses. Nothing is remembered, so
//! a million files cost nothing; two units may overlap, which only makes a seek between them
//! short.

use crate::Access;
use alloc::vec::Vec;

/// Units begin at multiples of this, so that they rarely begin at the same place.
const ALIGN: u64 = 4096;

/// Bytes that lie together unless configured: large enough that a stream hardly ever seeks.
pub const UNIT_BYTES: u64 = 64 << 20;

/// The layout of files on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    unit_bytes: u64,
    /// Places at which a unit can begin.
    places: u64,
    seed: u64,
}

impl Mapping {
    /// A layout over `capacity_bytes`; another `seed` gives another one. A unit is
    /// [`UNIT_BYTES`], or an eighth of a device too small for that.
    pub fn new(capacity_bytes: u64, seed: u64) -> Mapping {
        Mapping::with_unit(capacity_bytes, seed, UNIT_BYTES)
    }

    /// A layout with units of about `unit_bytes`.
    pub fn with_unit(capacity_bytes: u64, seed: u64, unit_bytes: u64) -> Mapping {
        let unit_bytes = unit_bytes.min(capacity_bytes / 8).max(ALIGN) / ALIGN * ALIGN;
        let places = (capacity_bytes.saturating_sub(unit_bytes) / ALIGN).max(1);
        Mapping {
            unit_bytes,
            places,
            seed,
        }
    }

    /// Appends the extents of `len` bytes of a file from `local_offset` on: one, or one more for
    /// each unit border in between.
    pub fn map(
        &self,
        inode: u64,
        local_offset: u64,
        len: u64,
        write: bool,
        into: &mut Vec<Access>,
    ) {
        let end = local_offset.saturating_add(len);
        let mut at = local_offset;
        while at < end {
            let within = at % self.unit_bytes;
            let len = (self.unit_bytes - within).min(end - at);
            let address = self.unit_address(inode, at / self.unit_bytes) + within;
            into.push(Access {
                address,
                len,
                write,
            });
            at += len;
        }
    }

    fn unit_address(&self, inode: u64, unit: u64) -> u64 {
        let hash = mix(inode ^ mix(unit ^ mix(self.seed)));
        // The high half of a product spreads evenly over any number of places.
        let place = (u128::from(hash) * u128::from(self.places)) >> 64;
        place as u64 * ALIGN
    }
}

/// The offset of a byte among those that one of `forwarders` holds: they take stripes in turn.
pub fn local_offset(offset: u64, stripe_bytes: u64, forwarders: u64) -> u64 {
    let round = stripe_bytes.saturating_mul(forwarders);
    offset / round * stripe_bytes + offset % stripe_bytes
}

/// The finaliser of MurmurHash3.
pub(crate) fn mix(value: u64) -> u64 {
    let mut x = value;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(mapping: &Mapping, inode: u64, offset: u64, len: u64) -> Vec<Access> {
        let mut extents = Vec::new();
        mapping.map(inode, offset, len, false, &mut extents);
        extents
    }

    #[test]
    fn local_offsets_of_one_forwarder_have_no_gaps() {
        // Stripes 0, 3, 6 of a file over three forwarders.
        let mut next = 0;
        for stripe in [0, 3, 6] {
            for offset in [stripe * 1024, stripe * 1024 + 512] {
                assert_eq!(local_offset(offset, 1024, 3), next);
                next += 512;
            }
        }
        assert_eq!(local_offset(4096 + 7, 1024, 1), 4096 + 7);
    }

    #[test]
    fn sequential_offsets_are_sequential_addresses_within_a_unit() {
        let mapping = Mapping::new(250_000_000_000, 0);
        let (a, b) = (
            extents(&mapping, 7, 4096, 4096),
            extents(&mapping, 7, 8192, 10),
        );
        assert_eq!(a[0].address + 4096, b[0].address);
        let over = extents(&mapping, 7, UNIT_BYTES - 10, 30);
        assert_eq!(
            over.iter().map(|extent| extent.len).collect::<Vec<_>>(),
            [10, 20]
        );
        assert_eq!(
            over[1].address,
            extents(&mapping, 7, UNIT_BYTES, 1)[0].address
        );
        assert!(extents(&mapping, 7, 0, 0).is_empty());
    }

    #[test]
    fn units_stay_on_the_device_and_spread_over_it() {
        for capacity in [1 << 20, 3 << 20, 1 << 30, 250_000_000_000] {
            let mapping = Mapping::new(capacity, 3);
            let mut tenths = [0; 10];
            for inode in 0..1000 {
                let address = extents(&mapping, inode, 0, 1)[0].address;
                assert!(address + mapping.unit_bytes <= capacity);
                tenths[(address * 10 / capacity) as usize] += 1;
            }
            assert!(
                tenths[..8].iter().all(|&count| count > 60),
                "{capacity} {tenths:?}"
            );
        }
    }
}
