//! The layout: which seat is in charge of which byte of which file, and which seat a client asks
//! for an operation.

use crate::message::{AskedSeat, Extent, Handle, Op};

/// How an export spreads its files over seats. All its clients and forwarders use the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of seats, at least 1. Forwarder `i` owns seat `i`.
    pub seats: u16,
    /// Bytes of one stripe, a power of two of at least 4096.
    pub stripe: u64,
}

/// A piece of an extent that belongs to one seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The seat in charge.
    pub seat: u16,
    /// The bytes of the file.
    pub extent: Extent,
}

impl Layout {
    /// Seat in charge of the file as a whole: its locks, appends, truncations, size and opens.
    pub fn seat_of_file(&self, handle: Handle) -> u16 {
        (mix(handle.inode) % u64::from(self.seats)) as u16
    }

    /// Seat in charge of the byte at `offset`: `(hash(inode) + stripe number) mod seats`.
    pub fn seat_of_byte(&self, handle: Handle, offset: u64) -> u16 {
        let seats = u64::from(self.seats);
        ((mix(handle.inode) % seats + (offset / self.stripe) % seats) % seats) as u16
    }

    /// Cuts an extent at stripe borders. Returns the parts in ascending order of offset.
    pub fn parts(&self, handle: Handle, extent: Extent) -> impl Iterator<Item = Part> + use<> {
        let layout = *self;
        let mut at = extent.offset;
        let end = extent.offset.saturating_add(extent.len);
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let border = (at / layout.stripe + 1).saturating_mul(layout.stripe);
            let len = border.min(end) - at;
            let part = Part {
                seat: layout.seat_of_byte(handle, at),
                extent: Extent { offset: at, len },
            };
            at += len;
            Some(part)
        })
    }

    /// The seat that a client asks for an operation; None where the operation does not say. `root`
    /// is the export's root directory.
    pub fn seat_of_op(&self, op: &Op, root: Handle) -> Option<u16> {
        match op.kind().spec().seat {
            AskedSeat::Any | AskedSeat::Named => None,
            AskedSeat::Root => Some(self.seat_of_file(root)),
            AskedSeat::Parent | AskedSeat::File => {
                let (file, _) = op.files()[0]?;
                Some(self.seat_of_file(file))
            }
            AskedSeat::Byte => {
                let (file, extents) = op.data()?;
                Some(self.seat_of_byte(file, extents.first.offset))
            }
        }
    }
}

/// Spreads inode numbers, which are often consecutive (the finaliser of MurmurHash3).
fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_extent_once_and_follow_the_stripes() {
        let layout = Layout {
            seats: 4,
            stripe: 4096,
        };
        let handle = Handle { inode: 7, birth: 1 };
        let mut at = 1000;
        for part in layout.parts(
            handle,
            Extent {
                offset: 1000,
                len: 20_000,
            },
        ) {
            assert_eq!(part.extent.offset, at);
            assert_eq!(part.seat, layout.seat_of_byte(handle, at));
            assert_eq!(at / 4096, (at + part.extent.len - 1) / 4096);
            at += part.extent.len;
        }
        assert_eq!(at, 21_000);
    }

    #[test]
    fn the_end_of_the_number_range_does_not_overflow() {
        let layout = Layout {
            seats: 3,
            stripe: 1 << 20,
        };
        let handle = Handle { inode: 1, birth: 0 };
        let extent = Extent {
            offset: u64::MAX - 10,
            len: u64::MAX,
        };
        assert_eq!(
            layout
                .parts(handle, extent)
                .map(|p| p.extent.len)
                .sum::<u64>(),
            10
        );
    }
}
