//! One connection's sending side: frames in order, written by whoever has the time.
//!
//! The thread that makes a call writes its frames itself while the socket takes them. What does not
//! fit stays in the queue until the I/O thread hears that the socket is writable again.

use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, SendAncillaryBuffer, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces that one system call writes at most; the kernel allows 1024.
const PIECES_MAX: usize = 64;
/// Buffers of heads that are kept for reuse.
const SPARE_MAX: usize = 64;

/// A connected socket and what waits to be sent on it. Its number of frames is bounded by the
/// session's credits, its bytes by the budget.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    spare: Vec<Vec<u8>>,
    /// A thread writes; others only add.
    flushing: bool,
    /// The socket became writable while a thread was writing.
    kicked: bool,
    broken: bool,
}

/// Header and body, then the pieces of the payload, and how much of them is already out.
struct Frame {
    head: Vec<u8>,
    payload: Vec<Bytes>,
    sent: usize,
}

impl Frame {
    fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Bytes::len).sum::<usize>()
    }

    /// What is not out yet.
    fn rest(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.sent;
        let pieces = self.payload.iter().map(|piece| &piece[..]);
        let pieces = std::iter::once(&self.head[..]).chain(pieces);
        pieces.filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            Some(&piece[skipped..]).filter(|rest| !rest.is_empty())
        })
    }
}

impl Connection {
    /// Takes over a socket that is connected and does not block.
    pub(crate) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            queue: Mutex::default(),
        }
    }

    /// Adds a frame; `encode` appends header and body. Call [`Connection::flush`] afterwards,
    /// without locks.
    pub(crate) fn enqueue(&self, encode: impl FnOnce(&mut Vec<u8>), payload: Vec<Bytes>) {
        let mut queue = self.queue();
        if queue.broken {
            return;
        }
        let mut head = queue.spare.pop().unwrap_or_default();
        head.clear();
        encode(&mut head);
        queue.frames.push_back(Frame {
            head,
            payload,
            sent: 0,
        });
    }

    /// Writes what the socket takes. On a broken socket the frames are dropped; the I/O thread
    /// learns of it from the socket itself.
    pub(crate) fn flush(&self) {
        let mut queue = self.queue();
        if queue.flushing {
            queue.kicked = true;
            return;
        }
        queue.flushing = true;
        let mut batch = VecDeque::new();
        loop {
            if batch.is_empty() {
                mem::swap(&mut batch, &mut queue.frames);
            }
            if batch.is_empty() || queue.broken {
                queue.flushing = false;
                queue.kicked = false;
                return;
            }
            drop(queue);
            let wrote = self.write(&mut batch);
            queue = self.queue();
            match wrote {
                Ok(mut heads) => {
                    heads.truncate(SPARE_MAX.saturating_sub(queue.spare.len()));
                    queue.spare.append(&mut heads);
                }
                Err(Errno::AGAIN) if mem::take(&mut queue.kicked) => {}
                Err(Errno::AGAIN) => {
                    // In front of what was added meanwhile.
                    batch.append(&mut queue.frames);
                    queue.frames = batch;
                    queue.flushing = false;
                    return;
                }
                Err(_) => {
                    queue.broken = true;
                    queue.frames.clear();
                    let _ = net::shutdown(&self.socket, Shutdown::Both);
                }
            }
        }
    }

    /// Whether all frames are out, or never will be.
    pub(crate) fn is_flushed(&self) -> bool {
        let queue = self.queue();
        queue.broken || (queue.frames.is_empty() && !queue.flushing)
    }

    /// Drops what is queued and ends the socket, so that nobody writes any more.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.broken = true;
        queue.frames.clear();
        drop(queue);
        let _ = net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Writes frames from the front once, and returns the buffers of those that are out.
    fn write(&self, batch: &mut VecDeque<Frame>) -> Result<Vec<Vec<u8>>, Errno> {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let rest = batch.iter().flat_map(Frame::rest);
        let count = pieces
            .iter_mut()
            .zip(rest)
            .map(|(to, piece)| *to = IoSlice::new(piece))
            .count();
        // NOSIGNAL: a library must not end its program with SIGPIPE.
        let mut control = SendAncillaryBuffer::default();
        let pieces = &pieces[..count];
        let mut sent = loop {
            match net::sendmsg(&self.socket, pieces, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut heads = Vec::new();
        while let Some(frame) = batch.front_mut() {
            let rest = frame.len() - frame.sent;
            if sent < rest {
                frame.sent += sent;
                break;
            }
            sent -= rest;
            heads.push(batch.pop_front().expect("the front was just seen").head);
        }
        Ok(heads)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic while encoding leaves the queue without the frame, which is a lost frame on a
        // connection whose owner is about to end.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::thread;

    fn pair() -> (Arc<Connection>, UnixStream) {
        let (ours, theirs) = net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair of sockets");
        let ours = UnixStream::from(ours);
        ours.set_nonblocking(true)
            .expect("a socket can be non-blocking");
        (
            Arc::new(Connection::new(OwnedFd::from(ours))),
            UnixStream::from(theirs),
        )
    }

    #[test]
    fn frames_of_many_threads_arrive_whole() {
        const THREADS: u8 = 8;
        const FRAMES: usize = 200;
        let (connection, mut peer) = pair();
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            peer.read_to_end(&mut bytes)
                .expect("the peer reads to the end");
            bytes
        });
        thread::scope(|scope| {
            for number in 1..=THREADS {
                let connection = &connection;
                scope.spawn(move || {
                    for _ in 0..FRAMES {
                        let head = |out: &mut Vec<u8>| out.extend_from_slice(&[number; 10]);
                        connection.enqueue(head, vec![Bytes::from(vec![number; 1500]); 2]);
                        connection.flush();
                    }
                });
            }
        });
        // Here the test stands in for the I/O thread.
        while !connection.is_flushed() {
            connection.flush();
            thread::yield_now();
        }
        drop(connection);
        let bytes = reader.join().expect("the reader ends");
        assert_eq!(bytes.len(), usize::from(THREADS) * FRAMES * 3010);
        for frame in bytes.chunks(3010) {
            assert!(
                frame.iter().all(|byte| *byte == frame[0]),
                "two frames were mixed"
            );
        }
    }

    #[test]
    fn a_gone_peer_breaks_the_connection_without_a_signal() {
        let (connection, peer) = pair();
        drop(peer);
        connection.enqueue(|out| out.push(1), Vec::new());
        connection.flush();
        assert!(connection.is_flushed());
        connection.enqueue(|out| out.push(1), Vec::new());
        assert!(connection.queue().frames.is_empty());
    }
}
