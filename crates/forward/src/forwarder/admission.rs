//! What a host asks before it reads a payload: whether the pool has room for it, and where its
//! connection waits otherwise.

use super::pool::{Holder, Owner, Room};
use super::{ArrivalNumber, Forwarder, Queue};
use crate::host::{Admission, Arrival, ConnId, PayloadMemory};
use alloc::boxed::Box;
use alloc::format;
use tidegate_sched::Time;
use tidegate_wire::{Op, Request};

impl Forwarder {
    /// Whether the pool has room for the payload of a request whose header and body have arrived,
    /// or for that of its reply. The host asks this before it reads the payload, and with the same
    /// number again, if there is none.
    pub fn admit(
        &mut self,
        now: Time,
        conn: ConnId,
        number: ArrivalNumber,
        request: &Request,
    ) -> Admission {
        self.pass(now);
        let admission = self.admission(conn, number, request, PayloadMemory::Pool);
        if let Admission::Slot { slot, .. } = admission
            && number.1 < self.now
        {
            self.pool.waited(slot, self.now.since(number.1));
        }
        admission
    }

    /// Admits and receives a request in one step, where the host need not read the payload first.
    /// Of a hello the host has already checked that the client knows the secret.
    pub fn request(
        &mut self,
        now: Time,
        conn: ConnId,
        number: ArrivalNumber,
        request: Box<Request>,
        memory: PayloadMemory,
    ) -> Arrival {
        self.pass(now);
        let waited_ns = now.since(number.1);
        match self.admission(conn, number, &request, memory) {
            Admission::NoPayload => {
                self.received(conn, *request, None, waited_ns);
                Arrival::Received(None)
            }
            Admission::Slot { slot, len } => {
                self.received(conn, *request, Some(slot), waited_ns);
                Arrival::Received(Some((slot, len)))
            }
            Admission::Wait => Arrival::Wait(request),
            Admission::Refuse(reason) => Arrival::Refuse(reason),
        }
    }

    fn admission(
        &mut self,
        conn: ConnId,
        number: ArrivalNumber,
        request: &Request,
        memory: PayloadMemory,
    ) -> Admission {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return Admission::Refuse("the connection is closed".into());
        };
        let payload_max = connection.payload_max;
        let wanted = match payload_bytes(request, memory) {
            Ok(wanted) => wanted,
            Err(reason) => return Admission::Refuse(reason.into()),
        };
        let len = match u32::try_from(wanted) {
            Ok(0) => return Admission::NoPayload,
            Ok(len) if len <= payload_max => len,
            _ => {
                return Admission::Refuse(
                    format!("{wanted} bytes of payload, at most {payload_max} are allowed").into(),
                );
            }
        };
        let owner = Owner::of(connection.holder, request);
        let room = match memory {
            PayloadMemory::Pool => self.pool.admit(conn, number, len, owner),
            PayloadMemory::Client => Room::Slot(self.pool.admit_shared(conn)),
        };
        match room {
            Room::Slot(slot) => {
                connection.admitted += 1;
                Admission::Slot { slot, len }
            }
            Room::Full | Room::FullForOwner => Admission::Wait,
        }
    }

    /// The application that needs room in the pool for a request, by its hints; None if it needs
    /// none. A request whose payload lies in the client's own memory needs none either.
    pub fn app_of(request: &Request) -> Option<u64> {
        let bytes = payload_bytes(request, PayloadMemory::Pool);
        let needs_room = bytes.is_ok_and(|bytes| bytes > 0);
        needs_room.then(|| Owner::of(Holder::RESERVE, request).app())
    }

    /// Where a connection waits, after [`Admission::Wait`] or [`Arrival::Wait`].
    pub fn queue_of(&self, conn: ConnId) -> Queue {
        self.pool.queue_of(conn)
    }

    /// A queue of connections that wait for their holder's or application's part of the pool, which
    /// got room again; each once. The host asks for them again, then for [`Queue::OF_KINDS`].
    pub fn roomier(&mut self) -> Option<Queue> {
        self.pool.roomier()
    }
}

/// Bytes that the payload of a request or of its reply needs, in the pool or in the client's
/// memory; or which rule of the protocol the client broke.
fn payload_bytes(request: &Request, memory: PayloadMemory) -> Result<u64, &'static str> {
    let len = u64::from(request.payload_len);
    if memory == PayloadMemory::Client {
        let data = request.op.data();
        let (_, extents) = data.ok_or("shared memory with an operation that has none")?;
        return Ok(extents.bytes());
    }
    match &request.op {
        Op::Read { .. } if len != 0 => Err("payload with a read"),
        Op::Read { extents, .. } => Ok(extents.bytes()),
        Op::Write { extents, .. } if extents.bytes() != len => {
            Err("a write's payload and extents differ in length")
        }
        Op::Write { .. } | Op::Append { .. } => Ok(len),
        session_ops!()
        | path_ops!()
        | look_ops!()
        | name_ops!()
        | attribute_ops!()
        | open_ops!()
        | lock_ops!()
        | Op::Fsync { .. }
        | Op::Fallocate { .. }
        | Op::CopyRange { .. } => match len {
            0 => Ok(0),
            _ => Err("payload with an operation that has none"),
        },
    }
}
