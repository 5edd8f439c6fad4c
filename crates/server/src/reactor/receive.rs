//! From bytes that came to requests that are handed in: what is done beside the sockets, whichever
//! thread has them.

use super::conn::{Conn, Fill, Stage};
use super::fabric::memory_registered;
use super::input::Step;
use super::sockets::Desk;
use crate::storage::SharedMemory;
use std::io::ErrorKind;
use std::sync::Arc;
use tidegate_forward::Errno;
use tidegate_net::Secret;
use tidegate_wire::frame::{encode_reply, op_code};
use tidegate_wire::{Op, Outcome, Reply, Request, Status};
use tracing::info;

/// Bytes that one connection may bring in one pass, so that others have their turn.
const PASS_BYTES_MAX: usize = 1 << 20;

const ENOSYS: Errno = Errno(38);

/// What a connection must prove and may offer.
pub struct Door {
    /// For TCP connections; None accepts any.
    pub secret: Option<Secret>,
    /// Memory that clients offer is taken.
    pub shared_memory: bool,
}

/// What reading a connection came to.
pub enum Turn {
    /// It may have more.
    Again,
    /// Nothing until the socket or the pool says so.
    Later,
    /// The peer is gone.
    End,
}

/// Uses what a connection sends. An error is the reason why its session ends.
pub fn receive(conn: &mut Conn, desk: &mut impl Desk) -> Result<Turn, String> {
    let mut bytes = 0;
    loop {
        if conn.closing.is_some() || conn.waits_for_us() {
            return Ok(Turn::Later);
        }
        if conn.outbox.is_full() {
            conn.unheard = true;
            return Ok(Turn::Later);
        }
        match conn.step().map_err(|error| error.to_string())? {
            Step::More if conn.drained => return Ok(Turn::Later),
            Step::More if bytes >= PASS_BYTES_MAX => return Ok(Turn::Again),
            Step::More => match conn.fill(desk.now()).map_err(|error| error.to_string())? {
                fill @ (Fill::Some(count) | Fill::Last(count)) => {
                    let traffic = desk.traffic();
                    traffic.receives += 1;
                    traffic.received_bytes += count as u64;
                    bytes += count;
                    conn.drained = matches!(fill, Fill::Last(_));
                }
                Fill::Blocked => {
                    desk.traffic().receives_empty += 1;
                    conn.drained = true;
                    return Ok(Turn::Later);
                }
                Fill::End if conn.reader.is_amid_frame() => {
                    return Err("the connection ended amid a frame".to_string());
                }
                Fill::End => return Ok(Turn::End),
            },
            Step::Request(request, place) => request_came(conn, desk, request, place)?,
            Step::Payload => {
                conn.stage = Stage::Head;
                desk.payload(conn);
            }
            Step::UnknownOp { id, op } => {
                if !conn.greeted {
                    return Err("the first frame is no hello".to_string());
                }
                info!(peer = conn.peer, op, "unknown operation answered ENOSYS");
                refuse(conn, id, op, ENOSYS);
            }
        }
    }
}

fn request_came(
    conn: &mut Conn,
    desk: &mut impl Desk,
    request: Box<Request>,
    place: Option<u64>,
) -> Result<(), String> {
    if !conn.greeted {
        let Op::Hello(hello) = &request.op else {
            return Err("the first frame is no hello".to_string());
        };
        conn.greeted = true;
        if let (Some(challenge), Some(secret)) = (conn.challenge.take(), &desk.door().secret)
            && !secret.is_proved(&challenge, hello.client, &hello.proof)
        {
            info!(peer = conn.peer, "hello refused: wrong secret");
            refuse(conn, request.id, op_code(&request.op), Errno::EACCES);
            conn.closing = Some("wrong secret".into());
            return Ok(());
        }
    }
    if let Op::ShareMemory { bytes } = request.op {
        memory_offered(conn, &request, bytes, desk.door().shared_memory);
        return Ok(());
    }
    if let Some(result) = memory_registered(conn, &request.op) {
        answer(conn, request.id, op_code(&request.op), result);
        return Ok(());
    }
    if let Some(place) = place.filter(|_| conn.remote.is_none()) {
        // Before a slot is given, which would never be opened.
        check_place(conn, &request, place)?;
    }
    desk.request(conn, request, place)
}

/// The payload of a request with a place lies in memory that the client has offered.
fn check_place(conn: &Conn, request: &Request, place: u64) -> Result<(), &'static str> {
    let Some(memory) = &conn.memory else {
        return Err("payload in memory that was not offered");
    };
    let (Op::Read { extents, .. } | Op::Write { extents, .. }) = &request.op else {
        return Err("shared memory with an operation that has none");
    };
    if !u32::try_from(extents.bytes()).is_ok_and(|len| memory.holds(place, len)) {
        return Err("payload outside its memory");
    }
    Ok(())
}

/// Maps what a client offers, and tells it.
fn memory_offered(conn: &mut Conn, request: &Request, bytes: u64, wanted: bool) {
    let mapped = match conn.stream.take_descriptor() {
        Some(fd) if wanted && conn.memory.is_none() => SharedMemory::map(&fd, bytes),
        _ => Err(ErrorKind::Unsupported.into()),
    };
    let result = match mapped {
        Ok(memory) => {
            conn.memory = Some(Arc::new(memory));
            Ok(Outcome::Done)
        }
        Err(error) => {
            info!(peer = conn.peer, %error, "shared memory refused");
            Err(Status::Errno(Errno::EOPNOTSUPP.0))
        }
    };
    answer(conn, request.id, op_code(&request.op), result);
}

/// Refuses a request that the core does not see.
fn refuse(conn: &mut Conn, id: u64, op: u8, errno: Errno) {
    answer(conn, id, op, Err(Status::Errno(errno.0)));
}

fn answer(conn: &mut Conn, id: u64, op: u8, result: Result<Outcome, Status>) {
    let reply = Reply {
        id,
        seat: 0,
        generation: 0,
        epoch: 0,
        charged_ns: 0,
        result,
        payload_len: 0,
    };
    conn.outbox
        .push(|into| encode_reply(op, &reply, into), None);
}
