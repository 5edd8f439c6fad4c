//! Extents of equal length at regular distances in a file, in closed form: no list of them is ever
//! held for a whole file.

use tidegate_wire::{Extent, Extents};

/// `planes` times `rows` extents of `len` bytes. Rows of a plane are `row_stride` apart, planes
/// `plane_stride`; extents ascend and never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) rows: u64,
    pub(super) row_stride: u64,
    pub(super) planes: u64,
    pub(super) plane_stride: u64,
}

impl Grid {
    /// One extent.
    pub(super) fn one(start: u64, len: u64) -> Grid {
        Grid::rows(start, len, 1, len)
    }

    /// Extents in one plane.
    pub(super) fn rows(start: u64, len: u64, rows: u64, row_stride: u64) -> Grid {
        Grid {
            start,
            len,
            rows,
            row_stride,
            planes: 1,
            plane_stride: rows * row_stride,
        }
    }

    /// How many extents.
    pub(super) fn count(&self) -> u64 {
        self.rows * self.planes
    }

    /// Bytes of all extents.
    pub(super) fn bytes(&self) -> u64 {
        self.len * self.count()
    }

    /// The extent of this number.
    pub(super) fn extent(&self, index: u64) -> Extent {
        let (plane, row) = (index / self.rows, index % self.rows);
        Extent {
            offset: self.start + plane * self.plane_stride + row * self.row_stride,
            len: self.len,
        }
    }

    /// Where the last extent ends.
    pub(super) fn end(&self) -> u64 {
        let last = self.extent(self.count() - 1);
        last.offset + last.len
    }

    /// How many of its bytes lie before an offset of the file.
    pub(super) fn bytes_before(&self, offset: u64) -> u64 {
        let Some(beyond) = offset.checked_sub(self.start) else {
            return 0;
        };
        let plane = (beyond / self.plane_stride).min(self.planes - 1);
        let beyond = beyond - plane * self.plane_stride;
        let row = (beyond / self.row_stride).min(self.rows - 1);
        let beyond = beyond - row * self.row_stride;
        (plane * self.rows + row) * self.len + beyond.min(self.len)
    }

    /// Where the byte of this number lies.
    pub(super) fn offset_of(&self, byte: u64) -> u64 {
        self.extent(byte / self.len).offset + byte % self.len
    }

    /// Appends its bytes from number `from` to before number `to`.
    pub(super) fn list(&self, from: u64, to: u64, into: &mut List) {
        let mut at = from;
        while at < to {
            let within = at % self.len;
            let len = (self.len - within).min(to - at);
            into.push(Extent {
                offset: self.offset_of(at),
                len,
            });
            at += len;
        }
    }
}

/// Ascending extents of one access; those that touch are one.
#[derive(Debug, Default)]
pub(super) struct List(Option<Extents>);

impl List {
    pub(super) fn push(&mut self, extent: Extent) {
        let Some(extents) = &mut self.0 else {
            self.0 = Some(extent.into());
            return;
        };
        let last = extents.rest.last_mut().unwrap_or(&mut extents.first);
        if last.offset + last.len == extent.offset {
            last.len += extent.len;
        } else {
            extents.rest.push(extent);
        }
    }

    pub(super) fn into_extents(self) -> Extents {
        self.0.expect("an access has bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms_agree_with_the_list_of_bytes() {
        let grids = [
            Grid::one(5, 7),
            Grid::rows(3, 2, 4, 2),
            Grid::rows(0, 2, 4, 5),
            Grid {
                start: 2,
                len: 3,
                rows: 3,
                row_stride: 4,
                planes: 3,
                plane_stride: 20,
            },
        ];
        for grid in grids {
            let extents = (0..grid.count()).map(|index| grid.extent(index));
            let bytes: Vec<u64> = extents
                .flat_map(|extent| extent.offset..extent.offset + extent.len)
                .collect();
            assert_eq!(bytes.len() as u64, grid.bytes());
            assert_eq!(*bytes.last().unwrap() + 1, grid.end());
            for (number, byte) in bytes.iter().enumerate() {
                assert_eq!(grid.offset_of(number as u64), *byte);
            }
            for offset in 0..grid.end() + 3 {
                let before = bytes.iter().filter(|byte| **byte < offset).count() as u64;
                assert_eq!(grid.bytes_before(offset), before, "{grid:?} {offset}");
            }
            for from in 0..bytes.len() {
                for to in from + 1..=bytes.len() {
                    let mut list = List::default();
                    grid.list(from as u64, to as u64, &mut list);
                    let extents = list.into_extents();
                    let found = extents.iter().flat_map(|e| e.offset..e.offset + e.len);
                    assert!(found.eq(bytes[from..to].iter().copied()));
                    let pairs = extents.iter().zip(extents.iter().skip(1));
                    assert!(pairs.into_iter().all(|(a, b)| a.offset + a.len < b.offset));
                }
            }
        }
    }
}
