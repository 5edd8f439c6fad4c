//! List I/O in C: many pieces of an open file in one call.

use super::error::Failure;
use super::files::{CALL_BYTES_MAX, bytes_of, with_file};
use super::{check_buffer, tidegate_file};
use crate::core::Data;
use crate::wire::{Extent, Extents};
use crate::{Client, Payload};
use std::ffi::c_void;

/// Most pieces of one call.
const PIECES_MAX: usize = 65_536;

/// Most bytes that the client moves at once: of a longer list it copies no more than that.
const GROUP_BYTES: usize = 16 << 20;

/// One piece of a list: bytes of a file, and where they are in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct tidegate_piece {
    /// Place in the file, bytes.
    pub offset: u64,
    /// Number of bytes; an empty piece is passed over.
    pub len: usize,
    /// Where a read puts them, or a write takes them from.
    pub buffer: *mut c_void,
}

/// Reads `count` pieces of a file in one call. They may be in any order; none may share bytes of
/// the file with another. Returns how many bytes were read: fewer than the pieces hold only at the
/// end of the file, and then those of the lowest offsets. -EINVAL for more than 65536 pieces, or
/// 2147479552 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_read_list(
    file: *mut tidegate_file,
    pieces: *const tidegate_piece,
    count: usize,
) -> i64 {
    with_file("read_list", file, |opened, ctx| {
        // SAFETY: `pieces` is NULL or holds `count` of them.
        let pieces = unsafe { sorted(pieces, count) }?;
        let mut done = 0;
        for group in groups(pieces) {
            let data = opened.file.read_list(ctx, extents(&group))?;
            // SAFETY: each buffer holds as many bytes as its piece.
            unsafe { hand_out(&data, &group) };
            done += data.len;
            if data.len < bytes_in(&group) {
                break;
            }
        }
        Ok(done as i64)
    })
}

/// Writes `count` pieces of a file in one call, as tidegate_read_list reads them; buffers are only
/// read. Returns how many bytes were written; fewer than the pieces hold if there was no room for
/// more, or another error, and then those of the lowest offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_write_list(
    file: *mut tidegate_file,
    pieces: *const tidegate_piece,
    count: usize,
) -> i64 {
    with_file("write_list", file, |opened, ctx| {
        // SAFETY: `pieces` is NULL or holds `count` of them.
        let pieces = unsafe { sorted(pieces, count) }?;
        let mut done = 0;
        for group in groups(pieces) {
            // SAFETY: each buffer holds as many bytes as its piece.
            let bytes = unsafe { gather(opened.file.client(), &group) };
            let wanted = bytes.len();
            match opened.file.write_list(ctx, extents(&group), bytes) {
                Ok(written) if written == wanted => done += written,
                Ok(written) => return Ok((done + written) as i64),
                Err(errno) if done == 0 => return Err(errno.into()),
                Err(_) => break,
            }
        }
        Ok(done as i64)
    })
}

/// The pieces that are not empty, by ascending offset.
///
/// # Safety
/// `pieces` is NULL or holds `count` of them.
unsafe fn sorted(
    pieces: *const tidegate_piece,
    count: usize,
) -> Result<Vec<tidegate_piece>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pieces.is_null() {
        return Err(Failure::invalid("the list is NULL"));
    }
    if count > PIECES_MAX {
        return Err(Failure::invalid("the list has too many pieces"));
    }
    // SAFETY: not NULL, so it holds that many.
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    let mut bytes = 0;
    for piece in pieces {
        check_buffer(piece.buffer, piece.len)?;
        bytes += piece.len.min(CALL_BYTES_MAX + 1);
    }
    if bytes > CALL_BYTES_MAX {
        return Err(Failure::invalid("the pieces hold too many bytes"));
    }
    let mut pieces = pieces.to_vec();
    pieces.retain(|piece| piece.len > 0);
    pieces.sort_by_key(|piece| piece.offset);
    let mut end = Some(0);
    for piece in &pieces {
        if end.is_none_or(|end| piece.offset < end) {
            return Err(Failure::invalid("two pieces share bytes of the file"));
        }
        end = piece.offset.checked_add(piece.len as u64);
    }
    match end {
        Some(_) => Ok(pieces),
        None => Err(Failure::invalid("a piece ends where no file can")),
    }
}

/// Cuts the pieces so that no group holds more than [`GROUP_BYTES`].
fn groups(pieces: Vec<tidegate_piece>) -> Vec<Vec<tidegate_piece>> {
    let (mut groups, mut group, mut room) = (Vec::new(), Vec::new(), GROUP_BYTES);
    for mut piece in pieces {
        while piece.len > 0 {
            let len = piece.len.min(room);
            group.push(tidegate_piece { len, ..piece });
            room -= len;
            if room == 0 {
                groups.push(std::mem::take(&mut group));
                room = GROUP_BYTES;
            }
            piece = tidegate_piece {
                offset: piece.offset + len as u64,
                len: piece.len - len,
                buffer: piece.buffer.wrapping_byte_add(len),
            };
        }
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// Where in the file the pieces of a group are.
fn extents(group: &[tidegate_piece]) -> Extents {
    let mut extents = group.iter().map(|piece| Extent {
        offset: piece.offset,
        len: piece.len as u64,
    });
    Extents {
        first: extents.next().expect("a group has a piece"),
        rest: extents.collect(),
    }
}

fn bytes_in(group: &[tidegate_piece]) -> usize {
    group.iter().map(|piece| piece.len).sum()
}

/// Copies what was read to where it is wanted.
///
/// # Safety
/// Each buffer holds as many bytes as its piece.
unsafe fn hand_out(data: &Data, group: &[tidegate_piece]) {
    let mut places = group
        .iter()
        .map(|piece| (piece.buffer.cast::<u8>(), piece.len));
    let (mut to, mut room) = places.next().expect("a group has a piece");
    for mut from in data.pieces.iter().map(Payload::raw) {
        while !from.is_empty() {
            if room == 0 {
                let Some(next) = places.next() else {
                    return;
                };
                (to, room) = next;
            }
            let (now, later) = from.split(room);
            // SAFETY: `to` has room for `room` bytes, and these are no more.
            unsafe {
                now.copy_to_address(to);
                to = to.add(now.len());
            }
            (from, room) = (later, room - now.len());
        }
    }
}

/// Copies the bytes of a group together, because the client keeps what it writes until every
/// forwarder has answered.
///
/// # Safety
/// Each buffer holds as many bytes as its piece.
unsafe fn gather(client: &Client, group: &[tidegate_piece]) -> Payload {
    // SAFETY: as above.
    let parts = group
        .iter()
        .map(|piece| unsafe { bytes_of(piece.buffer, piece.len) });
    match client.room(bytes_in(group)) {
        Some(mut room) => {
            let mut at = 0;
            for part in parts {
                room.raw().put(at, part);
                at += part.len();
            }
            room.into()
        }
        None => parts.collect::<Vec<_>>().concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, len: usize) -> tidegate_piece {
        let buffer = std::ptr::without_provenance_mut(1 << 20);
        tidegate_piece {
            offset,
            len,
            buffer,
        }
    }

    fn taken(pieces: &[tidegate_piece]) -> Result<Vec<tidegate_piece>, Failure> {
        // SAFETY: the slice holds that many.
        unsafe { sorted(pieces.as_ptr(), pieces.len()) }
    }

    #[test]
    fn pieces_are_sorted_and_those_that_cannot_be_are_refused() {
        let list = [piece(20, 5), piece(0, 10), piece(7, 0), piece(10, 10)];
        let wanted = vec![piece(0, 10), piece(10, 10), piece(20, 5)];
        assert_eq!(taken(&list).expect("no two share bytes"), wanted);
        assert_eq!(taken(&[]).expect("nothing is a list"), []);
        let nowhere = tidegate_piece {
            buffer: std::ptr::null_mut(),
            ..piece(0, 1)
        };
        for wrong in [
            vec![piece(0, 10), piece(9, 2)],
            vec![piece(5, 1), piece(5, 1)],
            vec![piece(u64::MAX, 2)],
            vec![piece(u64::MAX - 1, 2), piece(u64::MAX, 1)],
            vec![piece(0, CALL_BYTES_MAX), piece(1 << 40, 1)],
            vec![piece(0, usize::MAX)],
            vec![nowhere],
            vec![piece(0, 0); PIECES_MAX + 1],
        ] {
            assert!(taken(&wrong).is_err(), "{:?}", &wrong[..1]);
        }
        // SAFETY: NULL is refused.
        assert!(unsafe { sorted(std::ptr::null(), 1) }.is_err());
    }

    #[test]
    fn long_lists_are_moved_in_groups() {
        let long = vec![piece(0, 10), piece(100, 2 * GROUP_BYTES), piece(1 << 40, 3)];
        let groups = groups(long);
        let lens: Vec<usize> = groups.iter().map(|group| bytes_in(group)).collect();
        assert_eq!(lens, [GROUP_BYTES, GROUP_BYTES, 13]);
        let ends = &groups[2];
        let moved = |piece: &tidegate_piece| (piece.offset, piece.buffer.addr() - (1 << 20));
        let behind = 2 * GROUP_BYTES - 10;
        assert_eq!(moved(&ends[0]), (100 + behind as u64, behind));
        assert_eq!(moved(&ends[1]), (1 << 40, 0));
    }

    #[test]
    fn what_was_read_goes_where_it_is_wanted() {
        let (mut first, mut second) = ([0u8; 3], [0u8; 5]);
        let at = |offset, bytes: &mut [u8]| tidegate_piece {
            offset,
            len: bytes.len(),
            buffer: bytes.as_mut_ptr().cast(),
        };
        let group = [at(0, &mut first), at(10, &mut second)];
        let data = Data {
            pieces: [&b"ab"[..], b"cdefg"].map(|it| it.to_vec().into()).into(),
            len: 7,
        };
        // SAFETY: the buffers are as long as their pieces.
        unsafe { hand_out(&data, &group) };
        assert_eq!((&first, &second), (b"abc", b"defg\0"));
    }
}
