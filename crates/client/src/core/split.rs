//! Splits a read or write of any length into requests, and joins their answers to one.

use super::replies::Settled;
use super::requests::Id;
use crate::core::{Data, Errno};
use crate::payload::Payload;
use crate::wire::{EXTENTS_MAX, Extent, Extents, Handle, Layout, Outcome};
use std::collections::BTreeMap;

/// The part of a read or write that one request does.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) seat: u16,
    pub(super) extents: Extents,
    pub(super) bytes: u64,
    /// Place of the first extent's bytes in the call's payload, and the places of the others.
    start: u64,
    starts: Vec<u64>,
}

/// One request of a call.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) request: Id,
    /// The part of the read or write; None for other calls.
    pub(super) block: Option<Block>,
    pub(super) result: Option<Settled>,
}

impl Part {
    pub(super) fn new(request: Id, block: Option<Block>) -> Part {
        Part {
            request,
            block,
            result: None,
        }
    }

    /// The extents of a block, each with the place of its bytes in the call's payload.
    fn ranges(&self) -> impl Iterator<Item = (u64, Extent)> {
        self.block.iter().flat_map(Block::ranges)
    }
}

impl Block {
    fn new(seat: u16, extent: Extent, start: u64) -> Block {
        Block {
            seat,
            extents: extent.into(),
            bytes: extent.len,
            start,
            starts: Vec::new(),
        }
    }

    /// Adds an extent that lies after the others in the file and in the call.
    fn push(&mut self, extent: Extent, start: u64) {
        self.bytes += extent.len;
        let last = self.extents.rest.last_mut();
        let last = last.unwrap_or(&mut self.extents.first);
        let last_start = *self.starts.last().unwrap_or(&self.start);
        if last.offset + last.len == extent.offset && last_start + last.len == start {
            last.len += extent.len;
        } else {
            self.extents.rest.push(extent);
            self.starts.push(start);
        }
    }

    fn ranges(&self) -> impl Iterator<Item = (u64, Extent)> {
        let starts = std::iter::once(self.start).chain(self.starts.iter().copied());
        starts.zip(self.extents.iter())
    }

    /// The pieces of the call's payload that the request carries.
    pub(super) fn payload(&self, whole: &Payload) -> Vec<Payload> {
        let mut pieces = Vec::with_capacity(1 + self.starts.len());
        for (start, extent) in self.ranges() {
            pieces.push(whole.slice(start as usize..(start + extent.len) as usize));
        }
        pieces
    }
}

/// Cuts extents (ascending, none empty) at stripe boundaries and to chunks. With `merge`, pieces on
/// the same seat are joined again as far as they fit a chunk.
pub(super) fn split(
    layout: &Layout,
    handle: Handle,
    extents: &Extents,
    chunk_bytes: u32,
    merge: bool,
) -> Vec<Block> {
    let chunk_bytes = u64::from(chunk_bytes);
    if extents.rest.is_empty() && is_one_block(layout, extents.first, chunk_bytes) {
        let seat = layout.seat_of_byte(handle, extents.first.offset);
        return vec![Block::new(seat, extents.first, 0)];
    }
    let mut blocks: Vec<Block> = Vec::new();
    // The last block of each seat.
    let mut open: BTreeMap<u16, usize> = BTreeMap::new();
    let mut start = 0;
    let parts = extents.iter().flat_map(|e| layout.parts(handle, e));
    let pieces = parts.flat_map(|part| {
        (0..part.extent.len.div_ceil(chunk_bytes)).map(move |n| {
            let offset = part.extent.offset + n * chunk_bytes;
            let len = chunk_bytes.min(part.extent.offset + part.extent.len - offset);
            (part.seat, Extent { offset, len })
        })
    });
    for (seat, extent) in pieces {
        let fits = |block: &Block| {
            block.bytes + extent.len <= chunk_bytes && 1 + block.starts.len() < EXTENTS_MAX
        };
        let at = open.get(&seat).copied();
        match at.filter(|at| fits(&blocks[*at])) {
            Some(at) => blocks[at].push(extent, start),
            None => {
                if merge {
                    open.insert(seat, blocks.len());
                }
                blocks.push(Block::new(seat, extent, start));
            }
        }
        start += extent.len;
    }
    blocks
}

/// The place of a block among the blocks of its transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    /// Whether another block comes before this one.
    pub(super) behind: bool,
    /// The block after this one.
    pub(super) next: Option<usize>,
}

/// The links of all blocks. A transfer consists of the blocks on all seats of one owner. A single
/// block has no link.
pub(super) fn chain(blocks: &[Block], forwarders: usize) -> Vec<Link> {
    if blocks.len() < 2 {
        return Vec::new();
    }
    let mut links = vec![Link::default(); blocks.len()];
    let mut later = vec![None; forwarders];
    for (at, block) in blocks.iter().enumerate().rev() {
        let later = &mut later[usize::from(block.seat) % forwarders];
        if let Some(next) = later.replace(at) {
            links[at].next = Some(next);
            links[next].behind = true;
        }
    }
    links
}

fn is_one_block(layout: &Layout, extent: Extent, chunk_bytes: u64) -> bool {
    let last = extent.offset.saturating_add(extent.len.saturating_sub(1));
    let one_stripe = extent.offset / layout.stripe == last / layout.stripe;
    one_stripe && (1..=chunk_bytes).contains(&extent.len)
}

/// Largest number of bytes that the blocks have on one seat.
pub(super) fn bytes_max(blocks: &[Block]) -> u64 {
    if let [block] = blocks {
        return block.bytes;
    }
    let mut by_seat = BTreeMap::new();
    for block in blocks {
        *by_seat.entry(block.seat).or_insert(0) += block.bytes;
    }
    by_seat.into_values().max().unwrap_or(0)
}

/// Joins what the requests of a read returned, in the call's order, up to the first that is short.
/// An error counts only if nothing before it was short, because behind the end of the file there is
/// nothing to read.
pub(super) fn assemble(parts: Vec<Part>) -> Result<Data, Errno> {
    let mut pieces: Vec<(u64, u64, Result<Payload, Errno>)> = Vec::with_capacity(parts.len());
    for part in &parts {
        match &part.result {
            Some(Ok((Outcome::Data { lens }, payload))) => {
                let mut at = 0;
                for ((start, extent), len) in part.ranges().zip(lens.iter()) {
                    let end = at + len as usize;
                    if end > payload.len() || u64::from(len) > extent.len {
                        return Err(Errno::PROTO);
                    }
                    pieces.push((start, extent.len, Ok(payload.slice(at..end))));
                    at = end;
                }
            }
            other => {
                let errno = errno_of(other);
                pieces.extend(part.ranges().map(|(start, it)| (start, it.len, Err(errno))));
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

/// Number of bytes written without a gap from the call's start; an error only if it is 0.
pub(super) fn written(parts: Vec<Part>) -> Result<u64, Errno> {
    let mut ranges: Vec<(u64, u64, Result<u64, Errno>)> = Vec::with_capacity(parts.len());
    for part in &parts {
        let result = match &part.result {
            Some(Ok((Outcome::Written { len }, _))) => Ok(*len),
            other => Err(errno_of(other)),
        };
        let mut left = result.unwrap_or(0);
        for (start, extent) in part.ranges() {
            let len = left.min(extent.len);
            left -= len;
            ranges.push((start, extent.len, result.map(|_| len)));
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

/// The error of a request: its own, or that of an answer to something else.
fn errno_of(result: &Option<Settled>) -> Errno {
    match result {
        Some(Err(errno)) => *errno,
        _ => Errno::PROTO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Lens;

    const FILE: Handle = Handle { inode: 5, birth: 0 };
    const LAYOUT: Layout = Layout {
        seats: 3,
        stripe: 4096,
    };

    fn extents(offset: u64, len: u64) -> Extents {
        Extent { offset, len }.into()
    }

    #[test]
    fn blocks_end_at_stripes_and_chunks() {
        let blocks = split(&LAYOUT, FILE, &extents(1000, 10_000), 3000, false);
        let firsts: Vec<_> = blocks.iter().map(|b| b.extents.first).collect();
        let lens: Vec<_> = firsts.iter().map(|extent| extent.len).collect();
        assert_eq!(lens, [3000, 96, 3000, 1096, 2808]);
        let mut at = 1000;
        for (block, extent) in blocks.iter().zip(firsts) {
            assert_eq!(extent.offset, at);
            assert_eq!(block.seat, LAYOUT.seat_of_byte(FILE, at));
            assert_eq!((block.start, block.starts.len()), (at - 1000, 0));
            at += extent.len;
        }
    }

    #[test]
    fn blocks_of_one_owner_are_a_chain() {
        let blocks = split(&LAYOUT, FILE, &extents(0, 5 * 4096), 4096, false);
        let link = |behind, next| Link { behind, next };
        let links = chain(&blocks, 3);
        let wanted = [
            link(false, Some(3)),
            link(false, Some(4)),
            link(false, None),
            link(true, None),
            link(true, None),
        ];
        assert_eq!(links, wanted);
        let all: Vec<Link> = (0..5)
            .map(|n| link(n > 0, (n < 4).then_some(n + 1)))
            .collect();
        assert_eq!(chain(&blocks, 1), all);
        assert_eq!(chain(&blocks[..1], 1), []);
    }

    #[test]
    fn merged_blocks_hold_each_seats_bytes_in_order() {
        let whole = Payload::from((0..49_152u32).map(|n| (n / 4096) as u8).collect::<Vec<_>>());
        let blocks = split(&LAYOUT, FILE, &extents(0, 49_152), 16_384, true);
        assert_eq!(blocks.len(), 3);
        for block in &blocks {
            assert_eq!(block.extents.rest.len(), 3);
            let pieces = block.payload(&whole);
            let stripes: Vec<u8> = pieces.iter().map(|piece| piece.to_vec()[0]).collect();
            assert!(stripes.windows(2).all(|pair| pair[1] == pair[0] + 3));
        }
        assert_eq!(bytes_max(&blocks), 16_384);
    }

    /// The parts of a call with these results.
    fn parts<const N: usize>(results: [Settled; N]) -> Vec<Part> {
        let blocks = split(&LAYOUT, FILE, &extents(0, 4096 * N as u64), 4096, false);
        assert_eq!(blocks.len(), N);
        let parts = blocks.into_iter().zip(results);
        let parts = parts.map(|(block, result)| Part {
            result: Some(result),
            ..Part::new(0, Some(block))
        });
        parts.collect()
    }

    #[test]
    fn the_end_of_the_file_ends_the_answer() {
        let answer = |len: usize| {
            let lens = Lens {
                first: len as u32,
                rest: vec![],
            };
            Ok((Outcome::Data { lens }, Payload::from(vec![1; len])))
        };
        let data = assemble(parts([answer(4096), answer(10), answer(4096)]));
        let data = data.expect("no part failed");
        assert_eq!((data.len, data.pieces.len()), (4106, 2));
        assert!(assemble(parts([answer(4096), answer(10), Err(Errno(5))])).is_ok());
        let failed = assemble(parts([answer(4096), Err(Errno(5)), answer(10)]));
        assert_eq!(failed.err(), Some(Errno(5)));
    }

    #[test]
    fn a_failed_block_ends_what_was_written() {
        let wrote = || Ok((Outcome::Written { len: 4096 }, Payload::new()));
        let left = parts([wrote(), wrote(), Err(Errno(28))]);
        assert_eq!(written(left), Ok(8192));
        let left = parts([Err(Errno(28)), wrote(), wrote()]);
        assert_eq!(written(left), Err(Errno(28)));
        let other = Ok((Outcome::Done, Payload::new()));
        assert_eq!(written(parts([other])), Err(Errno::PROTO));
    }
}
