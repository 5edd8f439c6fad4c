//! Replies that wait to be sent. One gather write sends header, body and payload of several
//! replies.

use crate::storage::pages::Pages;
use crate::storage::slots::{Memory, lock_buffer};
use crate::storage::{SharedMemory, SlotBuffer};
use std::array;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::sync::{Arc, MutexGuard};
use tidegate_forward::{HostCounts, SlotId};
use tidegate_net::{RawBytes, Stream};

/// The most replies that one gather write sends.
const REPLIES_MAX: usize = 16;
/// How many empty head buffers are kept for reuse, over all connections together.
const SPARE_MAX: usize = 64;

/// Bytes of a payload from which on it is encrypted where it lies, and sent by itself. Shorter ones
/// are copied together with what is sent beside them.
const IN_PLACE_MIN: usize = 32 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// How many unsent replies make an outbox full. The shard then reads no more requests from the
/// client. A session has fewer credits than this, so only a client that does not read its replies
/// fills an outbox.
const WAITING_MAX: usize = 8192;

/// Where an outbox sends its bytes.
pub trait Sink {
    /// Sends as many bytes as there is room for, and returns their number. `more` says that pages
    /// of a file follow at once.
    fn send(&self, pieces: &[RawBytes<'_>], more: bool) -> io::Result<usize>;

    /// Sends at most `len` bytes of the pages, and returns the number of bytes that were sent.
    fn send_pages(&self, pages: &mut Pages, len: usize) -> io::Result<usize>;

    /// Whether a payload of `len` bytes is better sent by [`Sink::send_in_place`].
    fn takes_in_place(&self, len: usize) -> bool;

    /// Sends bytes that are not needed any more and may be changed, as many as there is room for.
    fn send_in_place(&self, bytes: &mut [u8]) -> io::Result<usize>;
}

impl Sink for Stream {
    fn send(&self, pieces: &[RawBytes<'_>], more: bool) -> io::Result<usize> {
        Stream::send(self, pieces, more, None)
    }

    fn send_pages(&self, pages: &mut Pages, len: usize) -> io::Result<usize> {
        match self.is_linked() || self.is_protected() {
            // Its reads are never answered with pages.
            true => Err(ErrorKind::Unsupported.into()),
            false => pages.send(self, len),
        }
    }

    fn takes_in_place(&self, len: usize) -> bool {
        self.is_protected() && len >= IN_PLACE_MIN
    }

    fn send_in_place(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Stream::send_in_place(self, bytes)
    }
}

/// Replies to send, in order. [`Outbox::is_full`] bounds their number, together with what one pass
/// can add.
#[derive(Default)]
pub struct Outbox {
    replies: tidegate_net::Outbox<Option<Payload>>,
}

/// The payload of a reply: the first `len` bytes of a payload buffer.
pub struct Payload {
    /// The payload buffer, which is reported as sent when the reply is out.
    pub slot: SlotId,
    /// The memory of the payload buffer.
    pub buffer: SlotBuffer,
    /// How many bytes of it the reply carries.
    pub len: usize,
}

/// The payload that follows a reply's header.
pub enum Body {
    /// No payload.
    Nothing,
    /// The bytes of a payload buffer, sent on the connection.
    Payload(Payload),
    /// No bytes on the connection: the payload lies in this memory of the client's, unless the
    /// client has replaced that memory meanwhile.
    Shared(Arc<SharedMemory>),
}

/// How a payload is sent that is not sent together with others.
#[derive(Clone, Copy)]
enum Apart {
    /// It consists of pages of a file.
    Pages,
    /// It is encrypted where it lies.
    InPlace,
}

impl Apart {
    fn of(memory: &mut Memory, len: usize, stream: &impl Sink) -> Option<Apart> {
        match memory.pages() {
            Some(_) => Some(Apart::Pages),
            None => stream.takes_in_place(len).then_some(Apart::InPlace),
        }
    }
}

impl Outbox {
    /// Queues a reply: `encode` appends its header and body, and `payload` follows them.
    pub fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>), payload: Option<Payload>) {
        let mut head = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        encode(&mut head);
        let len = payload.as_ref().map_or(0, |payload| payload.len);
        self.replies.push(head, payload, len);
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Whether the client must take some replies before the shard reads more of its requests.
    pub fn is_full(&self) -> bool {
        self.replies.len() >= WAITING_MAX
    }

    /// Sends as much as the socket takes. Adds to `sent` the payload buffers that are not needed
    /// any more. Returns how many bytes were sent.
    pub fn flush(
        &mut self,
        stream: &impl Sink,
        sent: &mut Vec<SlotId>,
        counts: &mut HostCounts,
    ) -> io::Result<usize> {
        let mut total = 0;
        while !self.replies.is_empty() {
            let apart = self.is_at_apart(stream);
            let spliced = matches!(apart, Some((Apart::Pages, _)));
            let done = match apart {
                Some((way, left)) => self.send_apart(stream, way, left),
                None => self.write_once(stream),
            };
            match done {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    counts.sends += 1;
                    total += count;
                    if spliced {
                        counts.spliced_bytes += count as u64;
                    }
                    self.advance(count, sent);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    counts.sends_blocked += 1;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        counts.sent_bytes += total as u64;
        Ok(total)
    }

    /// Drops all unsent replies, and adds their payload buffers to `sent`.
    pub fn drop_all(&mut self, sent: &mut Vec<SlotId>) {
        let dropped = self.replies.drop_all().flatten();
        sent.extend(dropped.map(|payload| payload.slot));
    }

    /// How the next bytes are sent if that is apart from others, and their number.
    fn is_at_apart(&self, stream: &impl Sink) -> Option<(Apart, usize)> {
        let left = self.replies.payload_left()?;
        let payload = self.replies.payloads().next()?.as_ref()?;
        let way = Apart::of(&mut lock_buffer(&payload.buffer), payload.len, stream)?;
        Some((way, left))
    }

    fn send_apart(&self, stream: &impl Sink, way: Apart, left: usize) -> io::Result<usize> {
        let Some(payload) = self.replies.payloads().next().and_then(Option::as_ref) else {
            return Ok(0);
        };
        let mut memory = lock_buffer(&payload.buffer);
        match way {
            Apart::Pages => match memory.pages() {
                Some(pages) => stream.send_pages(pages, left),
                None => Ok(0),
            },
            Apart::InPlace => {
                stream.send_in_place(&mut memory.bytes()[payload.len - left..payload.len])
            }
        }
    }

    /// Sends headers and bytes, up to the first payload that is sent apart.
    fn write_once(&self, stream: &impl Sink) -> io::Result<usize> {
        type Bytes<'a> = Option<(MutexGuard<'a, Memory>, usize)>;
        let mut payloads: [Bytes<'_>; REPLIES_MAX] = array::from_fn(|_| None);
        let mut replies = 0;
        let mut apart = false;
        for (bytes, payload) in payloads.iter_mut().zip(self.replies.payloads()) {
            replies += 1;
            if let Some(payload) = payload {
                let mut memory = lock_buffer(&payload.buffer);
                apart = Apart::of(&mut memory, payload.len, stream).is_some();
                *bytes = Some((memory, payload.len)).filter(|_| !apart);
            }
            if apart {
                break;
            }
        }
        let mut pieces = [RawBytes::default(); 2 * REPLIES_MAX];
        let bytes = payloads[..replies].iter().map(Option::as_ref);
        let bytes = bytes.map(|it| it.and_then(|(memory, len)| memory.own()?.get(..*len)));
        let bytes = bytes.map(|it| it.map(RawBytes::from));
        let count = self.replies.gather(bytes, &mut pieces);
        stream.send(&pieces[..count], apart)
    }

    fn advance(&mut self, count: usize, sent: &mut Vec<SlotId>) {
        self.replies.advance(count, |head, payload| {
            sent.extend(payload.map(|payload| payload.slot));
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < SPARE_MAX && head.capacity() <= 4096 {
                    spare.push(head);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Slots;
    use std::cell::Cell;

    /// Takes a fixed number of bytes at each call, then would block for one call.
    struct Slow {
        taken: RefCell<Vec<u8>>,
        size: usize,
        blocked: Cell<bool>,
        in_place_min: usize,
    }

    impl Sink for Slow {
        fn send(&self, pieces: &[RawBytes<'_>], _: bool) -> io::Result<usize> {
            self.blocked.set(!self.blocked.get());
            if self.blocked.get() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let count = self.size.min(all.len());
            self.taken.borrow_mut().extend_from_slice(&all[..count]);
            Ok(count)
        }

        fn send_pages(&self, _: &mut Pages, _: usize) -> io::Result<usize> {
            unreachable!("there are none")
        }

        fn takes_in_place(&self, len: usize) -> bool {
            len >= self.in_place_min
        }

        fn send_in_place(&self, bytes: &mut [u8]) -> io::Result<usize> {
            let sent = self.send(&[(&*bytes).into()], false)?;
            // They are not needed any more.
            bytes[..sent].fill(0);
            Ok(sent)
        }
    }

    #[test]
    fn replies_go_out_in_order_and_free_their_slots() {
        let slots = Slots::new(1 << 20);
        for (size, in_place_min) in [(1, 501), (7, 400), (1000, 1), (1000, 501), (1 << 20, 501)] {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for number in 0..40u8 {
                let head = vec![number; 64 + usize::from(number)];
                let len = usize::from(number % 3) * 500;
                let payload = (number % 2 == 0).then(|| {
                    let slot = SlotId(number.into());
                    let buffer = slots.open(slot, 1000);
                    lock_buffer(&buffer).bytes()[..len].fill(!number);
                    Payload { slot, buffer, len }
                });
                expected.extend_from_slice(&head);
                if payload.is_some() {
                    expected.resize(expected.len() + len, !number);
                }
                outbox.push(|into| into.extend_from_slice(&head), payload);
            }
            let stream = Slow {
                taken: RefCell::default(),
                size,
                blocked: Cell::new(false),
                in_place_min,
            };
            let (mut sent, mut counts) = (Vec::new(), HostCounts::default());
            while !outbox.is_empty() {
                outbox
                    .flush(&stream, &mut sent, &mut counts)
                    .expect("it only blocks");
            }
            assert_eq!(*stream.taken.borrow(), expected);
            assert_eq!(counts.sent_bytes, expected.len() as u64);
            assert_eq!(sent, (0..40).step_by(2).map(SlotId).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_dropped_frees_its_slots() {
        let slots = Slots::new(1 << 20);
        let mut outbox = Outbox::default();
        for number in 0..3 {
            let slot = SlotId(number);
            let buffer = slots.open(slot, 10);
            outbox.push(
                |into| into.push(1),
                Some(Payload {
                    slot,
                    buffer,
                    len: 10,
                }),
            );
        }
        let mut sent = Vec::new();
        outbox.drop_all(&mut sent);
        assert!(outbox.is_empty());
        assert_eq!(sent, [SlotId(0), SlotId(1), SlotId(2)]);
    }
}
