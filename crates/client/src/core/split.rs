//! One read or write of any length as requests, and their answers as one.

use crate::wire::{EXTENTS_MAX, Extent, Extents, Handle, Layout, Lens};
use crate::{Data, Errno};
use bytes::Bytes;

/// What one request does of a call.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) seat: u16,
    pub(super) extents: Extents,
    pub(super) bytes: u64,
    /// Where the bytes of each extent lie in the call's.
    starts: Vec<u64>,
}

impl Block {
    fn new(seat: u16, extent: Extent, start: u64) -> Block {
        Block {
            seat,
            extents: extent.into(),
            bytes: extent.len,
            starts: vec![start],
        }
    }

    /// Takes an extent that lies behind the others in the file and in the call.
    fn push(&mut self, extent: Extent, start: u64) {
        self.bytes += extent.len;
        let last = self.extents.rest.last_mut();
        let last = last.unwrap_or(&mut self.extents.first);
        let last_start = self.starts[self.starts.len() - 1];
        if last.offset + last.len == extent.offset && last_start + last.len == start {
            last.len += extent.len;
        } else {
            self.extents.rest.push(extent);
            self.starts.push(start);
        }
    }

    /// The pieces of the call's payload that the request carries.
    pub(super) fn payload(&self, whole: &Bytes) -> Vec<Bytes> {
        let ranges = self.starts.iter().zip(self.extents.iter());
        ranges
            .map(|(start, extent)| whole.slice(*start as usize..(start + extent.len) as usize))
            .collect()
    }
}

/// Cuts extents (ascending, none empty) at stripe borders and to `payload_max`. With `merge`,
/// what lies on one seat is put together again as far as it fits.
pub(super) fn split(
    layout: &Layout,
    handle: Handle,
    extents: &Extents,
    payload_max: u32,
    merge: bool,
) -> Vec<Block> {
    let payload_max = u64::from(payload_max);
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Vec<Option<usize>> = vec![None; usize::from(layout.seats)];
    let mut start = 0;
    let parts = extents.iter().flat_map(|e| layout.parts(handle, e));
    let pieces = parts.flat_map(|part| {
        (0..part.extent.len.div_ceil(payload_max)).map(move |n| {
            let offset = part.extent.offset + n * payload_max;
            let len = payload_max.min(part.extent.offset + part.extent.len - offset);
            (part.seat, Extent { offset, len })
        })
    });
    for (seat, extent) in pieces {
        let open = &mut open[usize::from(seat)];
        let fits = |block: &Block| {
            block.bytes + extent.len <= payload_max && block.starts.len() < EXTENTS_MAX
        };
        match open.filter(|at| merge && fits(&blocks[*at])) {
            Some(at) => blocks[at].push(extent, start),
            None => {
                *open = Some(blocks.len());
                blocks.push(Block::new(seat, extent, start));
            }
        }
        start += extent.len;
    }
    blocks
}

/// Largest number of bytes that one seat has of the blocks.
pub(super) fn bytes_max(blocks: &[Block]) -> u64 {
    let mut by_seat = std::collections::BTreeMap::new();
    for block in blocks {
        *by_seat.entry(block.seat).or_insert(0) += block.bytes;
    }
    by_seat.into_values().max().unwrap_or(0)
}

/// What the requests of a read have brought, in the call's order, up to the first that is short.
/// An error counts only where nothing before it was short: behind the end there is nothing.
pub(super) fn assemble<'a>(
    parts: impl Iterator<Item = (&'a Block, &'a Result<(Lens, Bytes), Errno>)>,
) -> Result<Data, Errno> {
    let mut pieces: Vec<(u64, u64, Result<Bytes, Errno>)> = Vec::new();
    for (block, result) in parts {
        let ranges = block.starts.iter().zip(block.extents.iter());
        match result {
            Ok((lens, payload)) => {
                let mut at = 0;
                for ((start, extent), len) in ranges.zip(lens.iter()) {
                    let end = at + len as usize;
                    if end > payload.len() || u64::from(len) > extent.len {
                        return Err(super::errno::EPROTO);
                    }
                    pieces.push((*start, extent.len, Ok(payload.slice(at..end))));
                    at = end;
                }
            }
            Err(errno) => {
                pieces.extend(ranges.map(|(start, extent)| (*start, extent.len, Err(*errno))));
            }
        }
    }
    pieces.sort_by_key(|piece| piece.0);
    let mut data = Data::default();
    for (start, wanted, piece) in pieces {
        if start != data.len as u64 {
            break;
        }
        let piece = piece?;
        data.len += piece.len();
        let short = (piece.len() as u64) < wanted;
        if !piece.is_empty() {
            data.pieces.push(piece);
        }
        if short {
            break;
        }
    }
    Ok(data)
}

/// Bytes written without a gap from the call's start; an error only if there are none.
pub(super) fn written<'a>(
    parts: impl Iterator<Item = (&'a Block, &'a Result<u64, Errno>)>,
) -> Result<u64, Errno> {
    let mut ranges: Vec<(u64, u64, Result<u64, Errno>)> = Vec::new();
    for (block, result) in parts {
        let mut left = *result.as_ref().unwrap_or(&0);
        for (start, extent) in block.starts.iter().zip(block.extents.iter()) {
            let len = left.min(extent.len);
            left -= len;
            ranges.push((*start, extent.len, result.map(|_| len)));
        }
    }
    ranges.sort_by_key(|range| range.0);
    let mut bytes = 0;
    for (_, wanted, result) in ranges {
        match result {
            Ok(len) => {
                bytes += len;
                if len < wanted {
                    break;
                }
            }
            Err(errno) if bytes == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Handle = Handle { inode: 5, birth: 0 };
    const LAYOUT: Layout = Layout {
        seats: 3,
        stripe: 4096,
    };

    fn extents(offset: u64, len: u64) -> Extents {
        Extent { offset, len }.into()
    }

    #[test]
    fn blocks_end_at_stripes_and_payloads() {
        let blocks = split(&LAYOUT, FILE, &extents(1000, 10_000), 3000, false);
        let firsts: Vec<_> = blocks.iter().map(|b| b.extents.first).collect();
        let lens: Vec<_> = firsts.iter().map(|extent| extent.len).collect();
        assert_eq!(lens, [3000, 96, 3000, 1096, 2808]);
        let mut at = 1000;
        for (block, extent) in blocks.iter().zip(firsts) {
            assert_eq!(extent.offset, at);
            assert_eq!(block.seat, LAYOUT.seat_of_byte(FILE, at));
            assert_eq!(block.starts, [at - 1000]);
            at += extent.len;
        }
    }

    #[test]
    fn merged_blocks_hold_each_seats_bytes_in_order() {
        let whole = Bytes::from((0..49_152u32).map(|n| (n / 4096) as u8).collect::<Vec<_>>());
        let blocks = split(&LAYOUT, FILE, &extents(0, 49_152), 16_384, true);
        assert_eq!(blocks.len(), 3);
        for block in &blocks {
            assert_eq!(block.extents.rest.len(), 3);
            let pieces = block.payload(&whole);
            let stripes: Vec<u8> = pieces.iter().map(|piece| piece[0]).collect();
            assert!(stripes.windows(2).all(|pair| pair[1] == pair[0] + 3));
        }
        assert_eq!(bytes_max(&blocks), 16_384);
    }

    #[test]
    fn the_end_of_the_file_ends_the_answer() {
        let blocks = split(&LAYOUT, FILE, &extents(0, 12_288), 4096, false);
        let answer = |len: usize| {
            let lens = Lens {
                first: len as u32,
                rest: vec![],
            };
            Ok((lens, Bytes::from(vec![1; len])))
        };
        let results = [answer(4096), answer(10), answer(4096)];
        let data = assemble(blocks.iter().zip(&results)).expect("no part failed");
        assert_eq!((data.len, data.pieces.len()), (4106, 2));
        let results = [answer(4096), answer(10), Err(Errno(5))];
        assert!(assemble(blocks.iter().zip(&results)).is_ok());
        let results = [answer(4096), Err(Errno(5)), answer(10)];
        assert_eq!(assemble(blocks.iter().zip(&results)).err(), Some(Errno(5)));
    }

    #[test]
    fn a_failed_block_ends_what_was_written() {
        let blocks = split(&LAYOUT, FILE, &extents(0, 12_288), 4096, false);
        let results = [Ok(4096), Ok(4096), Err(Errno(28))];
        assert_eq!(written(blocks.iter().zip(&results)), Ok(8192));
        let results = [Err(Errno(28)), Ok(4096), Ok(4096)];
        assert_eq!(written(blocks.iter().zip(&results)), Err(Errno(28)));
    }
}
