//! Encodes and decodes requests.

use super::bytes::{Reader, Writer};
use super::op::{decode_op, encode_op, op_code};
use super::{
    FLAG_CALLER, FLAG_HINTS, FLAG_REPLAY, FLAG_REPLY_SLOT, FLAG_SHARED, Fields, FrameError, Header,
    begin, seal,
};
use crate::message::{Op, OpKind, PAYLOAD_LIMIT, ReplySlot, Request};
use alloc::vec::Vec;

/// Appends the header and body of a request to `out`.
pub fn encode_request(request: &Request, out: &mut Vec<u8>) {
    encode(request, None, out);
}

/// Appends the header and body of a read or write to `out` whose payload the client has put into
/// shared memory, or the forwarder shall put there. `place` is the payload's offset in that memory,
/// in bytes.
pub fn encode_request_shared(request: &Request, place: u64, out: &mut Vec<u8>) {
    debug_assert!(may_share(&request.op));
    encode(request, Some(place), out);
}

fn encode(request: &Request, place: Option<u64>, out: &mut Vec<u8>) {
    debug_assert_eq!(request.reply_slot.is_some(), request.op.mutates());
    debug_assert_eq!(request.hints.is_some(), request.op.moves_data());
    let start = begin(out);
    let mut flags = 0;
    if request.replay {
        flags |= FLAG_REPLAY;
    }
    if let Some(place) = place {
        flags |= FLAG_SHARED;
        out.u64(place);
    }
    if request.reply_slot.is_some() {
        flags |= FLAG_REPLY_SLOT;
    }
    if let Some(caller) = &request.caller {
        flags |= FLAG_CALLER;
        out.caller(caller);
    }
    if let Some(hints) = &request.hints {
        flags |= FLAG_HINTS;
        out.hints(hints);
    }
    encode_op(&request.op, out);
    let fields = Fields {
        op: op_code(&request.op),
        flags,
        id: request.id,
        seat: request.seat,
        reply_slot_index: request.reply_slot.map_or(0, |its| its.index),
        payload_len: request.payload_len,
        status: 0,
        counter: request.reply_slot.map_or(0, |its| its.sequence),
        generation: request.generation,
        epoch: request.epoch,
    };
    seal(&fields, out, start);
}

/// Decodes a request from its header and body. Fails with [`FrameError::Flags`] if its payload is
/// in shared memory.
pub fn decode_request(header: &Header, body: &[u8]) -> Result<Request, FrameError> {
    match decode_request_shared(header, body)? {
        (request, None) => Ok(request),
        (_, Some(_)) => Err(FrameError::Flags(header.u16_at(6))),
    }
}

/// Decodes a request from its header and body. If the request's payload is in shared memory, also
/// returns its offset there, in bytes.
pub fn decode_request_shared(
    header: &Header,
    body: &[u8],
) -> Result<(Request, Option<u64>), FrameError> {
    if header.reply {
        return Err(FrameError::Direction);
    }
    header.check_body(body)?;
    let (id, op) = (header.id(), header.op());
    let kind = OpKind::of_code(op).ok_or(FrameError::UnknownOp { id, op })?;
    let mut body = Reader::new(body);
    let place = match header.shared {
        true => Some(body.u64()?),
        false => None,
    };
    let caller = match header.flag(FLAG_CALLER) {
        true => Some(body.caller()?),
        false => None,
    };
    let hints = match header.flag(FLAG_HINTS) {
        true => Some(body.hints()?),
        false => None,
    };
    let op = decode_op(kind, &mut body)?;
    body.end()?;
    if header.flag(FLAG_REPLY_SLOT) != op.mutates() || header.flag(FLAG_HINTS) != op.moves_data() {
        return Err(FrameError::Flags(header.u16_at(6)));
    }
    let reply_slot = match header.flag(FLAG_REPLY_SLOT) {
        true => Some(ReplySlot {
            index: header.u16_at(18),
            sequence: header.u64_at(32),
        }),
        false => None,
    };
    if reply_slot.is_some_and(|its| its.sequence == 0) {
        return Err(FrameError::Invalid("a reply slot's sequence"));
    }
    check_payload(&op, header.payload_len)?;
    if place.is_some() && !may_share(&op) {
        return Err(FrameError::Flags(header.u16_at(6)));
    }
    let request = Request {
        id: header.id(),
        seat: header.u16_at(16),
        reply_slot,
        generation: header.u64_at(40),
        epoch: header.u64_at(48),
        replay: header.flag(FLAG_REPLAY),
        caller,
        hints,
        op,
        payload_len: header.payload_len,
    };
    Ok((request, place))
}

/// Whether the payload of an operation may be in shared memory. It may if storage can read and
/// write it there.
fn may_share(op: &Op) -> bool {
    op.data().is_some()
}

fn check_payload(op: &Op, payload_len: u32) -> Result<(), FrameError> {
    let fits = match op {
        Op::Write { extents, .. } => extents.bytes() == u64::from(payload_len),
        Op::Append { .. } => true,
        Op::Read { extents, .. } => payload_len == 0 && extents.bytes() <= u64::from(PAYLOAD_LIMIT),
        Op::Fsync { .. } | Op::Fallocate { .. } | Op::CopyRange { .. } => payload_len == 0,
        session_ops!() | path_ops!() | look_ops!() | name_ops!() => payload_len == 0,
        attribute_ops!() | open_ops!() | lock_ops!() => payload_len == 0,
    };
    match fits {
        true => Ok(()),
        false => Err(FrameError::PayloadLength(payload_len)),
    }
}
