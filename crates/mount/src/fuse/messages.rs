//! What a session does with each message of the kernel: it makes a task of a request for the file
//! system, and handles what is for the session itself.

use super::FileSystem;
use super::buffer::{Buffer, BufferPool, Payload};
use super::connection::Connection;
use super::decode::{self, Body, Message};
use super::reply::Reply;
use super::request::{Caller, Request};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Buffers kept for reuse.
const BUFFERS_FREE_MAX: usize = 64;

/// A request and the reply that it must get.
pub(super) struct Task {
    pub(super) request: Request,
    pub(super) reply: Reply,
}

impl Task {
    pub(super) fn serve(self, file_system: &dyn FileSystem) {
        let Task { request, reply } = self;
        let unique = request.unique;
        // A request that panics has been answered with EIO by its reply; the others go on.
        let served = catch_unwind(AssertUnwindSafe(|| file_system.handle(request, reply)));
        if served.is_err() {
            tracing::error!(unique, "serving a request panicked");
        }
    }
}

/// The messages of one device, and where they are read to.
pub struct Messages {
    pub(super) connection: Arc<Connection>,
    pub(super) buffers: Arc<BufferPool>,
}

impl Messages {
    /// Messages of at most `len` bytes.
    pub(super) fn new(connection: Arc<Connection>, len: usize) -> Messages {
        Messages {
            connection,
            buffers: BufferPool::new(len, BUFFERS_FREE_MAX),
        }
    }

    /// Messages of at most `len` bytes that the caller has, and whose answers go to this device:
    /// for programs that are no mount.
    pub fn over(device: OwnedFd, len: usize) -> Messages {
        Messages::new(Connection::new(device), len)
    }

    /// Serves one message in this thread; a panic is the caller's. Bytes beyond the longest message
    /// are left out.
    pub fn serve(&self, message: &[u8], file_system: &dyn FileSystem) {
        let mut buffer = self.buffers.take();
        let len = message.len().min(buffer.len());
        buffer[..len].copy_from_slice(&message[..len]);
        if let Ok(task) = self.take_in(buffer, len, file_system) {
            file_system.handle(task.request, task.reply);
        }
    }

    /// Takes in the message in the first `len` bytes of the buffer. Gives the buffer back if the
    /// message was no request for the file system.
    pub(super) fn take_in(
        &self,
        buffer: Buffer,
        len: usize,
        file_system: &dyn FileSystem,
    ) -> Result<Task, Buffer> {
        let Some(Message { header, body }) = self.decode(&buffer[..len]) else {
            return Err(buffer);
        };
        match body {
            Body::Operation(operation, payload) => {
                let caller = Caller {
                    uid: header.uid,
                    gid: header.gid,
                    tid: header.pid,
                };
                let interrupts = &self.connection.interrupts;
                let cancel = interrupts.begin(header.unique, header.pid, &operation);
                let reply = Reply::new(Arc::clone(&self.connection), header.unique);
                let payload = if payload.is_empty() {
                    Payload::default()
                } else {
                    Payload::new(buffer, payload)
                };
                let (unique, node) = (header.unique, header.node);
                let request = Request {
                    unique,
                    node,
                    caller,
                    cancel,
                    operation,
                    payload,
                };
                return Ok(Task { request, reply });
            }
            Body::Forget(forgotten) => {
                for forget in forgotten {
                    file_system.forget(forget.node, forget.lookups);
                }
            }
            Body::Interrupt(unique) => {
                if !self.connection.interrupts.interrupt(unique) {
                    // Not known yet, or answered meanwhile. The kernel sends it again in the first
                    // case and finds nothing to interrupt in the second.
                    self.connection.reply_error(header.unique, Errno::AGAIN);
                }
            }
            Body::Destroy => _ = self.connection.reply(header.unique, &[]),
            Body::Init(_) => _ = self.connection.reply_error(header.unique, Errno::PROTO),
            Body::Unknown => _ = self.connection.reply_error(header.unique, Errno::NOSYS),
        }
        Err(buffer)
    }

    /// Decodes a message; `None` after it has answered a broken one with an error.
    fn decode(&self, bytes: &[u8]) -> Option<Message> {
        match decode::decode(bytes) {
            Ok(message) => Some(message),
            Err(error) => {
                tracing::error!(%error, "a request of the kernel was refused");
                if let Ok(header) = decode::header(bytes) {
                    self.connection.reply_error(header.unique, Errno::IO);
                }
                None
            }
        }
    }
}
