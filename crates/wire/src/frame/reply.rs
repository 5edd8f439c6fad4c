//! Encodes and decodes replies.

use super::{
    FLAG_LENT_ASKED, FLAG_LENT_DIRECTORY, FLAG_LENT_FOUND, FLAG_REPLY, FLAG_SHARED, Fields,
    FrameError, Header, Reader, Writer, begin, seal,
};
use crate::message::{
    ADDRESS_MAX, ADDRESSES_MAX, Attr, BODY_MAX, EXTENTS_MAX, Entry, ExportId, Handle, HelloReply,
    Lens, Lent, Listed, Listing, OpKind, Outcome, PAYLOAD_LIMIT, Reply, ReplyKind, Statfs, Status,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

const NOT_MY_SEAT: u32 = 5001;
const UNKNOWN_HANDLE: u32 = 5002;
const NEW_GENERATION: u32 = 5003;
const TRY_LATER: u32 = 5004;
const ERRNO_MAX: u32 = 4095;
/// Longest text, in bytes; the rest of the body is the text's length.
const TEXT_MAX: usize = BODY_MAX - 4;

/// Appends the header and body of a reply to `out`. `op` is the request's op code
/// ([`op_code`](super::op_code)).
pub fn encode_reply(op: u8, reply: &Reply, out: &mut Vec<u8>) {
    encode(op, reply, FLAG_REPLY, out);
}

/// Appends the header and body of a reply to `out` whose payload the forwarder has put into shared
/// memory, where the request asked for it.
pub fn encode_reply_shared(op: u8, reply: &Reply, out: &mut Vec<u8>) {
    encode(op, reply, FLAG_REPLY | FLAG_SHARED, out);
}

fn encode(op: u8, reply: &Reply, flags: u16, out: &mut Vec<u8>) {
    let start = begin(out);
    let status = match &reply.result {
        Ok(outcome) => {
            debug_assert_eq!(
                Some(outcome.kind()),
                reply_kind(op),
                "not what op {op} yields"
            );
            encode_outcome(outcome, out);
            0
        }
        Err(status) => status_code(*status),
    };
    if let Some(attr) = &reply.lent.directory {
        encode_attr(attr, out);
    }
    let asked = [0, FLAG_LENT_ASKED][usize::from(reply.lent.asked)];
    let found = [0, FLAG_LENT_FOUND][usize::from(reply.lent.found)];
    let directory = [0, FLAG_LENT_DIRECTORY][usize::from(reply.lent.directory.is_some())];
    let fields = Fields {
        op,
        flags: flags | asked | found | directory,
        id: reply.id,
        seat: reply.seat,
        reply_slot_index: 0,
        payload_len: reply.payload_len,
        status,
        counter: reply.charged_ns,
        generation: reply.generation,
        epoch: reply.epoch,
    };
    seal(&fields, out, start);
}

/// Decodes a reply from its header and body.
pub fn decode_reply(header: &Header, body: &[u8]) -> Result<Reply, FrameError> {
    if !header.reply {
        return Err(FrameError::Direction);
    }
    header.check_body(body)?;
    let mut body = Reader::new(body);
    let result = match decode_status(header.u32_at(28))? {
        Some(status) => Err(status),
        None => {
            let (id, op) = (header.id(), header.op());
            let kind = reply_kind(op).ok_or(FrameError::UnknownOp { id, op })?;
            Ok(decode_outcome(kind, &mut body)?)
        }
    };
    let directory = match header.flag(FLAG_LENT_DIRECTORY) {
        true => Some(Box::new(decode_attr(&mut body)?)),
        false => None,
    };
    body.end()?;
    if header.shared && !matches!(result, Ok(Outcome::Data { .. })) {
        return Err(FrameError::Flags(header.u16_at(6)));
    }
    let payload = result.as_ref().map_or(0, Outcome::payload_len);
    if payload != u64::from(header.payload_len) {
        return Err(FrameError::PayloadLength(header.payload_len));
    }
    Ok(Reply {
        id: header.id(),
        seat: header.u16_at(16),
        generation: header.u64_at(40),
        epoch: header.u64_at(48),
        charged_ns: header.u64_at(32),
        result,
        payload_len: header.payload_len,
        lent: Lent {
            asked: header.flag(FLAG_LENT_ASKED),
            found: header.flag(FLAG_LENT_FOUND),
            directory,
        },
    })
}

/// What a reply to the operation with this code holds; None for an unknown code.
fn reply_kind(op: u8) -> Option<ReplyKind> {
    OpKind::of_code(op).map(|kind| kind.spec().reply)
}

fn status_code(status: Status) -> u32 {
    match status {
        Status::Errno(errno) => {
            debug_assert!((1..=ERRNO_MAX).contains(&u32::from(errno)));
            u32::from(errno)
        }
        Status::NotMySeat => NOT_MY_SEAT,
        Status::UnknownHandle => UNKNOWN_HANDLE,
        Status::NewGeneration => NEW_GENERATION,
        Status::TryLater => TRY_LATER,
    }
}

fn decode_status(code: u32) -> Result<Option<Status>, FrameError> {
    Ok(match code {
        0 => None,
        1..=ERRNO_MAX => Some(Status::Errno(code as u16)),
        NOT_MY_SEAT => Some(Status::NotMySeat),
        UNKNOWN_HANDLE => Some(Status::UnknownHandle),
        NEW_GENERATION => Some(Status::NewGeneration),
        TRY_LATER => Some(Status::TryLater),
        _ => return Err(FrameError::Status(code)),
    })
}

fn encode_outcome(outcome: &Outcome, out: &mut Vec<u8>) {
    match outcome {
        Outcome::Done => {}
        Outcome::Hello(hello) => encode_hello(hello, out),
        Outcome::Attr(attr) => encode_attr(attr, out),
        Outcome::Removed(handle) => {
            out.u8(u8::from(handle.is_some()));
            handle.iter().for_each(|handle| out.handle(*handle));
        }
        Outcome::Recalled(handle) => {
            out.u8(u8::from(handle.is_some()));
            handle.iter().for_each(|handle| out.handle(*handle));
        }
        Outcome::Text(text) => out.blob(text),
        Outcome::Entries(listing) => encode_listing(listing, out),
        Outcome::Data { lens } => {
            out.u16(1 + lens.rest.len() as u16);
            lens.iter().for_each(|len| out.u32(len));
        }
        Outcome::Written { len } => out.u64(*len),
        Outcome::Appended { offset, len } => {
            out.u64(*offset);
            out.u64(*len);
        }
        Outcome::Offset(offset) => out.u64(*offset),
        Outcome::Statfs(statfs) => encode_statfs(statfs, out),
        Outcome::Lock(lock) => {
            out.u8(u8::from(lock.is_some()));
            lock.iter().for_each(|lock| out.lock(lock));
        }
    }
}

fn decode_outcome(kind: ReplyKind, body: &mut Reader<'_>) -> Result<Outcome, FrameError> {
    Ok(match kind {
        ReplyKind::Done => Outcome::Done,
        ReplyKind::Hello => Outcome::Hello(Box::new(decode_hello(body)?)),
        ReplyKind::Attr => Outcome::Attr(decode_attr(body)?),
        ReplyKind::Removed => Outcome::Removed(decode_file(body)?),
        ReplyKind::Recalled => Outcome::Recalled(decode_file(body)?),
        ReplyKind::Text => Outcome::Text(body.blob(TEXT_MAX, "a text")?),
        ReplyKind::Entries => Outcome::Entries(decode_listing(body)?),
        ReplyKind::Data => Outcome::Data {
            lens: decode_lens(body)?,
        },
        ReplyKind::Written => Outcome::Written { len: body.u64()? },
        ReplyKind::Appended => Outcome::Appended {
            offset: body.u64()?,
            len: body.u64()?,
        },
        ReplyKind::Offset => Outcome::Offset(body.u64()?),
        ReplyKind::Statfs => Outcome::Statfs(decode_statfs(body)?),
        ReplyKind::Lock => Outcome::Lock(match body.bool()? {
            true => Some(body.lock()?),
            false => None,
        }),
    })
}

fn decode_file(body: &mut Reader<'_>) -> Result<Option<Handle>, FrameError> {
    Ok(match body.bool()? {
        true => Some(body.handle()?),
        false => None,
    })
}

fn encode_hello(hello: &HelloReply, out: &mut Vec<u8>) {
    out.u8(hello.version);
    out.u16(hello.forwarder);
    out.u16(hello.seats);
    out.u64(hello.stripe);
    out.u32(hello.payload_max);
    out.pipeline(hello.pipeline);
    out.u32(hello.credits);
    out.u16(hello.connections);
    out.u16(hello.reply_slots);
    out.u8(u8::from(hello.fresh));
    out.u32(hello.lease_ms);
    out.u32(hello.loan_ms);
    out.u64(hello.wall_ns);
    out.u64(hello.host);
    out.u64(hello.boot);
    out.u64(hello.export.0 as u64);
    out.u64((hello.export.0 >> 64) as u64);
    out.u64(hello.process);
    out.u16(hello.forwarders.len() as u16);
    for listed in &hello.forwarders {
        out.u16(listed.index);
        out.u8(listed.addresses.len() as u8);
        let addresses = listed.addresses.iter();
        addresses.for_each(|address| out.blob(address.as_bytes()));
    }
    out.u16(hello.held.len() as u16);
    for (seat, generation) in &hello.held {
        out.u16(*seat);
        out.u64(*generation);
    }
    encode_attr(&hello.root, out);
}

fn decode_hello(body: &mut Reader<'_>) -> Result<HelloReply, FrameError> {
    let mut hello = HelloReply {
        version: body.u8()?,
        forwarder: body.u16()?,
        seats: body.u16()?,
        stripe: body.u64()?,
        payload_max: body.u32()?,
        pipeline: body.pipeline()?,
        credits: body.u32()?,
        connections: body.u16()?,
        reply_slots: body.u16()?,
        fresh: body.bool()?,
        lease_ms: body.u32()?,
        loan_ms: body.u32()?,
        wall_ns: body.u64()?,
        host: body.u64()?,
        boot: body.u64()?,
        export: ExportId(u128::from(body.u64()?) | u128::from(body.u64()?) << 64),
        process: body.u64()?,
        forwarders: Box::default(),
        held: Box::default(),
        root: Default::default(),
    };
    let layout_fits = hello.forwarder < hello.seats;
    if !layout_fits || !hello.stripe.is_power_of_two() || hello.stripe < 4096 {
        return Err(FrameError::Invalid("the layout"));
    }
    let session_fits =
        hello.credits > 0 && hello.connections > 0 && hello.reply_slots > 0 && hello.lease_ms > 0;
    if !session_fits || !(4096..=PAYLOAD_LIMIT).contains(&hello.payload_max) {
        return Err(FrameError::Invalid("the session's limits"));
    }
    if hello.pipeline.chunk_bytes > hello.payload_max {
        return Err(FrameError::Invalid("the session's chunks"));
    }
    hello.forwarders = decode_listed(hello.seats, body)?;
    let count = body.u16()?;
    hello.held = (0..count)
        .map(|_| Ok((body.u16()?, body.u64()?)))
        .collect::<Result<_, FrameError>>()?;
    // Ascending seats below `seats` also bound how many there are.
    let ascend = hello.held.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !ascend || hello.held.iter().any(|held| held.0 >= hello.seats) {
        return Err(FrameError::Invalid("the held seats"));
    }
    hello.root = decode_attr(body)?;
    Ok(hello)
}

fn decode_listed(seats: u16, body: &mut Reader<'_>) -> Result<Box<[Listed]>, FrameError> {
    let wrong = || FrameError::Invalid("the list of forwarders");
    let count = body.u16()?;
    let mut listed: Vec<Listed> = Vec::new();
    for _ in 0..count {
        let index = body.u16()?;
        // Ascending indices below `seats` also bound how many there are.
        let ascends = listed.last().is_none_or(|last| last.index < index);
        let addresses = usize::from(body.u8()?);
        if !ascends || index >= seats || addresses > ADDRESSES_MAX {
            return Err(wrong());
        }
        let addresses = (0..addresses).map(|_| {
            let bytes = body.blob(ADDRESS_MAX, "a forwarder's address")?;
            let text = core::str::from_utf8(&bytes).map_err(|_| wrong())?;
            let plain = |c: char| !c.is_control() && !c.is_whitespace() && c != ',' && c != ';';
            match !text.is_empty() && text.chars().all(plain) {
                true => Ok(Box::from(text)),
                false => Err(wrong()),
            }
        });
        let addresses = addresses.collect::<Result<_, FrameError>>()?;
        listed.push(Listed { index, addresses });
    }
    Ok(listed.into())
}

fn encode_listing(listing: &Listing, out: &mut Vec<u8>) {
    out.u8(u8::from(listing.ended));
    out.u32(listing.entries.len() as u32);
    for entry in &listing.entries {
        out.name(&entry.name);
        out.u64(entry.inode);
        out.u8(entry.kind);
        out.u64(entry.cookie);
        out.u8(u8::from(entry.attr.is_some()));
        if let Some(attr) = &entry.attr {
            encode_attr(attr, out);
            out.u8(entry.lacks);
            out.u8(u8::from(entry.lent));
        }
    }
}

fn decode_listing(body: &mut Reader<'_>) -> Result<Listing, FrameError> {
    let ended = body.bool()?;
    let count = body.u32()?;
    // No capacity is taken on the peer's word: each entry must be there first.
    let mut entries = Vec::new();
    for _ in 0..count {
        let mut entry = Entry {
            name: body.name()?,
            inode: body.u64()?,
            kind: body.u8()?,
            cookie: body.u64()?,
            attr: None,
            lacks: 0,
            lent: false,
        };
        if body.bool()? {
            entry.attr = Some(decode_attr(body)?);
            (entry.lacks, entry.lent) = (body.u8()?, body.bool()?);
        }
        entries.push(entry);
    }
    Ok(Listing { entries, ended })
}

fn decode_lens(body: &mut Reader<'_>) -> Result<Lens, FrameError> {
    let count = body.count(EXTENTS_MAX, "the number of lengths")?;
    let first = body.u32()?;
    let rest = (1..count)
        .map(|_| body.u32())
        .collect::<Result<_, FrameError>>()?;
    Ok(Lens { first, rest })
}

fn encode_statfs(statfs: &Statfs, out: &mut Vec<u8>) {
    out.u64(statfs.blocks);
    out.u64(statfs.blocks_free);
    out.u64(statfs.blocks_available);
    out.u64(statfs.files);
    out.u64(statfs.files_free);
    out.u32(statfs.block_size);
    out.u32(statfs.name_max);
}

fn decode_statfs(body: &mut Reader<'_>) -> Result<Statfs, FrameError> {
    Ok(Statfs {
        blocks: body.u64()?,
        blocks_free: body.u64()?,
        blocks_available: body.u64()?,
        files: body.u64()?,
        files_free: body.u64()?,
        block_size: body.u32()?,
        name_max: body.u32()?,
    })
}

fn encode_attr(attr: &Attr, out: &mut Vec<u8>) {
    out.handle(attr.handle);
    out.u64(attr.size);
    out.u64(attr.blocks);
    out.i64(attr.atime_ns);
    out.i64(attr.mtime_ns);
    out.i64(attr.ctime_ns);
    out.u32(attr.mode);
    out.u32(attr.nlink);
    out.u32(attr.uid);
    out.u32(attr.gid);
    out.u32(attr.rdev);
    out.u32(attr.block_size);
}

fn decode_attr(body: &mut Reader<'_>) -> Result<Attr, FrameError> {
    Ok(Attr {
        handle: body.handle()?,
        size: body.u64()?,
        blocks: body.u64()?,
        atime_ns: body.i64()?,
        mtime_ns: body.i64()?,
        ctime_ns: body.i64()?,
        mode: body.u32()?,
        nlink: body.u32()?,
        uid: body.u32()?,
        gid: body.u32()?,
        rdev: body.u32()?,
        block_size: body.u32()?,
    })
}
