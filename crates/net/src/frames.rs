//! The frames (header, body, payload) of one connection: [`FrameReader`] cuts them out of the bytes
//! that arrive, however the bytes are divided, and [`Outbox`] keeps those to be sent.
//!
//! The reader never waits: [`FrameReader::next`] parses bytes that have arrived,
//! [`FrameReader::fill`] reads from the connection once. Payload is received straight into the
//! caller's memory, except for the few kilobytes that arrived together with its header. The outbox
//! knows how far its first frame is sent. It lists the bytes that one vectored write sends next,
//! and gives back each frame that is out.

use crate::RawBytes;
use crate::handshake::{Greeting, Greets, greeting};
use crate::spare::{self, Spare};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::iter;
use tidegate_wire::frame::{FrameError, HEADER_LEN, Header, decode_header};

/// Bytes that a reader of requests reads ahead, since small requests arrive several at a time.
const REQUESTS_AHEAD: usize = 16 * 1024;
/// Bytes that a reader of replies reads ahead: enough for a small read's whole reply, and so few
/// that copying the first bytes of a payload out of them costs nothing.
const REPLIES_AHEAD: usize = 8 * 1024;
/// Bytes to read ahead on a connection whose last payload was a large one: the next header and
/// little more, so that the payload goes straight to its place. It takes no more calls.
const AHEAD_OF_LARGE: usize = 256;
/// Bytes from which on a payload is large.
const LARGE: u32 = 64 * 1024;

thread_local! {
    /// The buffer of the reader that reads next in this thread. Only a connection that has stopped
    /// amid a frame keeps a buffer.
    static SPARE: Spare = const { Cell::new(Vec::new()) };
}

/// What the bytes that have arrived so far are.
#[derive(Debug)]
pub enum Step<'a> {
    /// More bytes are needed.
    More,
    /// What the peer says before its frames. Nothing arrives behind it until this end has said
    /// something, too.
    Greeting(Greeting),
    /// A header of the expected direction, and its body. If the header announces payload that is
    /// not in shared memory, the caller must say next whether to keep or to skip the payload.
    Frame(Header, &'a [u8]),
    /// The payload that the caller wanted to keep is complete.
    Payload,
}

enum State {
    /// A greeting, or the first header of a peer that does not greet.
    Greeting,
    Header,
    Body(Header),
    /// The caller has the header and body, and has not said yet what becomes of this many bytes of
    /// payload.
    Undecided(usize),
    Payload {
        filled: usize,
        len: usize,
    },
    /// This many bytes of payload are read and dropped.
    Skip(usize),
}

/// Parses the stream of one connection, and keeps its position between calls.
pub struct FrameReader {
    /// Whether the stream has replies rather than requests.
    replies: bool,
    payload_max: u32,
    state: State,
    ahead: Vec<u8>,
    ahead_len: usize,
    start: usize,
    end: usize,
    /// Whether the last payload that was kept was a large one.
    large: bool,
    /// Bytes of payload that were read ahead and then copied to their place.
    copied: u64,
}

impl FrameReader {
    /// A reader at the first byte of a stream of requests; with `greets`, a greeting may come
    /// first. The readers of one thread share a buffer.
    pub fn of_requests(payload_max: u32, greets: bool) -> FrameReader {
        FrameReader {
            replies: false,
            payload_max,
            state: match greets {
                true => State::Greeting,
                false => State::Header,
            },
            ahead: Vec::new(),
            ahead_len: REQUESTS_AHEAD,
            start: 0,
            end: 0,
            large: false,
            copied: 0,
        }
    }

    /// A reader at the first byte of a stream of replies; with `greets`, a greeting may come first.
    pub fn of_replies(payload_max: u32, greets: bool) -> FrameReader {
        FrameReader {
            replies: true,
            ahead: vec![0; REPLIES_AHEAD],
            ahead_len: REPLIES_AHEAD,
            ..FrameReader::of_requests(payload_max, greets)
        }
    }

    /// Parses bytes that have arrived. `target` is the memory for the payload: exactly as long as
    /// the payload, or empty while no payload is to be kept.
    pub fn next(&mut self, target: &mut [u8]) -> Result<Step<'_>, FrameError> {
        loop {
            match &mut self.state {
                State::Greeting => match greeting(&self.ahead[self.start..self.end])? {
                    Greets::Unknown => return Ok(Step::More),
                    Greets::Not => self.state = State::Header,
                    Greets::With(greeting, len) => {
                        self.start += len;
                        self.state = State::Header;
                        return Ok(Step::Greeting(greeting));
                    }
                },
                State::Header => {
                    let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<HEADER_LEN>()
                    else {
                        return Ok(Step::More);
                    };
                    let header = decode_header(bytes, self.payload_max)?;
                    if header.reply != self.replies {
                        return Err(FrameError::Direction);
                    }
                    self.start += HEADER_LEN;
                    self.state = State::Body(header);
                }
                State::Body(header) => {
                    let header = *header;
                    let body_len = header.body_len as usize;
                    if self.end - self.start < body_len {
                        return Ok(Step::More);
                    }
                    let body = self.start..self.start + body_len;
                    self.start = body.end;
                    let payload = header.payload_len as usize;
                    self.large &= payload > 0;
                    self.state = match payload > 0 && !header.shared {
                        true => State::Undecided(payload),
                        false => State::Header,
                    };
                    return Ok(Step::Frame(header, &self.ahead[body]));
                }
                State::Undecided(_) => return Ok(Step::More),
                State::Payload { filled, len } => {
                    assert_eq!(target.len(), *len, "the payload's place has its length");
                    let count = (*len - *filled).min(self.end - self.start);
                    target[*filled..][..count].copy_from_slice(&self.ahead[self.start..][..count]);
                    *filled += count;
                    self.start += count;
                    self.copied += count as u64;
                    if *filled < *len {
                        return Ok(Step::More);
                    }
                    self.state = State::Header;
                    return Ok(Step::Payload);
                }
                State::Skip(left) => {
                    let count = (*left).min(self.end - self.start);
                    *left -= count;
                    self.start += count;
                    if *left > 0 {
                        return Ok(Step::More);
                    }
                    self.state = State::Header;
                }
            }
        }
    }

    /// Keeps the payload of the last frame: the following calls receive it into their `target`.
    pub fn keep_payload(&mut self) {
        let State::Undecided(len) = self.state else {
            panic!("only after a frame with payload");
        };
        self.large = len as u64 >= u64::from(LARGE);
        self.state = State::Payload { filled: 0, len };
    }

    /// After a greeting: another one comes before the first frame.
    pub fn expect_greeting(&mut self) {
        self.state = State::Greeting;
    }

    /// The payload of the last frame, if there is one, is read and dropped.
    pub fn skip_payload(&mut self) {
        if let State::Undecided(left) = self.state {
            self.state = State::Skip(left);
        }
    }

    /// Whether a frame has begun and not ended.
    pub fn is_amid_frame(&self) -> bool {
        !matches!(self.state, State::Header | State::Greeting) || self.start < self.end
    }

    /// Calls `receive` once; it reads from the connection into the pieces it is given, in their
    /// order. Returns how many bytes it read and how many there was room for, or None at the end of
    /// the stream.
    pub fn fill(
        &mut self,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
        target: &mut [u8],
    ) -> io::Result<Option<(usize, usize)>> {
        self.make_room();
        let (count, direct, ahead) = match &mut self.state {
            State::Payload { filled, len } if self.start == self.end => {
                let room = *len - *filled;
                let rest = IoSliceMut::new(&mut target[*filled..]);
                let ahead = if self.large {
                    AHEAD_OF_LARGE
                } else {
                    self.ahead_len
                };
                let mut pieces = [rest, IoSliceMut::new(&mut self.ahead[..ahead])];
                let count = receive(&mut pieces)?;
                *filled += count.min(room);
                (count, room, ahead)
            }
            state => {
                let large = self.large && matches!(state, State::Header);
                let end = match large && self.end < AHEAD_OF_LARGE {
                    true => AHEAD_OF_LARGE,
                    false => self.ahead.len(),
                };
                let room = &mut self.ahead[self.end..end];
                let len = room.len();
                (receive(&mut [IoSliceMut::new(room)])?, 0, len)
            }
        };
        self.end += count.saturating_sub(direct);
        Ok((count > 0).then_some((count, direct + ahead)))
    }

    /// The caller will not read for now: an empty buffer returns to the other readers of this
    /// thread, but not amid a body, of which a channel may have put a part there. Returns how many
    /// bytes of payload were copied out of the buffer since the last call.
    pub fn rest(&mut self) -> u64 {
        let amid_body = matches!(self.state, State::Body(_));
        if self.start == self.end && !self.ahead.is_empty() && !amid_body {
            (self.start, self.end) = (0, 0);
            let ahead = std::mem::take(&mut self.ahead);
            if ahead.len() == self.ahead_len {
                spare::keep(&SPARE, ahead);
            }
        }
        std::mem::take(&mut self.copied)
    }

    /// Moves the unread bytes to the front, and makes room for the whole body that comes next.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.ahead.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.ahead.is_empty() {
            self.ahead = spare::take(&SPARE);
            self.ahead.resize(self.ahead_len, 0);
        }
        let due = match &self.state {
            State::Body(header) => header.body_len as usize,
            _ => 0,
        };
        if due > self.ahead.len() {
            self.ahead.resize(due, 0);
        } else if self.ahead.len() > self.ahead_len && self.end == 0 && due <= self.ahead_len {
            self.ahead.truncate(self.ahead_len);
            self.ahead.shrink_to_fit();
        }
    }
}

/// Frames that wait to be sent on one connection, in order. `P` is the payload of a frame; where it
/// lies is the owner's business.
pub struct Outbox<P> {
    frames: VecDeque<Frame<P>>,
    /// How many bytes of the first frame are sent.
    sent: usize,
}

struct Frame<P> {
    /// Header and body.
    head: Vec<u8>,
    payload: P,
    /// Bytes of head and payload together.
    len: usize,
}

impl<P> Default for Outbox<P> {
    fn default() -> Outbox<P> {
        Outbox {
            frames: VecDeque::new(),
            sent: 0,
        }
    }
}

impl<P> Outbox<P> {
    /// Adds a frame: its header and body, then `payload_len` bytes of payload.
    pub fn push(&mut self, head: Vec<u8>, payload: P, payload_len: usize) {
        let len = head.len() + payload_len;
        self.frames.push_back(Frame { head, payload, len });
    }

    /// Number of frames that are not sent whole.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The payloads of the frames, in order.
    pub fn payloads(&self) -> impl Iterator<Item = &P> {
        self.frames.iter().map(|frame| &frame.payload)
    }

    /// Whether a part of the first frame is sent.
    pub fn has_begun(&self) -> bool {
        self.sent > 0
    }

    /// How many bytes of the first frame's payload are left, once its header and body are sent.
    pub fn payload_left(&self) -> Option<usize> {
        let first = self.frames.front()?;
        (self.sent >= first.head.len()).then(|| first.len - self.sent)
    }

    /// Fills `into` with the bytes that are to be sent next, and returns how many pieces these are.
    /// `payloads` gives the pieces of each frame's payload; it ends with the last frame that may be
    /// sent now.
    pub fn gather<'a, I>(
        &'a self,
        payloads: impl Iterator<Item = I>,
        into: &mut [RawBytes<'a>],
    ) -> usize
    where
        I: IntoIterator<Item = RawBytes<'a>>,
    {
        let mut skip = self.sent;
        let frames = self.frames.iter().zip(payloads);
        let pieces = frames.flat_map(|(frame, payload)| {
            let head = RawBytes::from(&frame.head[..]);
            iter::once(head).chain(payload)
        });
        let rest = pieces.filter_map(|piece| {
            let (skipped, rest) = piece.split(skip);
            skip -= skipped.len();
            Some(rest).filter(|rest| !rest.is_empty())
        });
        let filled = into.iter_mut().zip(rest);
        filled.map(|(to, piece)| *to = piece).count()
    }

    /// Counts `count` more bytes as sent. Gives `out` the emptied head buffer and the payload of
    /// each frame that is now sent whole.
    pub fn advance(&mut self, count: usize, mut out: impl FnMut(Vec<u8>, P)) {
        self.sent += count;
        while self.frames.front().is_some_and(|it| it.len <= self.sent)
            && let Some(mut frame) = self.frames.pop_front()
        {
            self.sent -= frame.len;
            frame.head.clear();
            out(frame.head, frame.payload);
        }
    }

    /// Adds the frames of another outbox, of which nothing is sent yet.
    pub fn append(&mut self, later: &mut Outbox<P>) {
        debug_assert_eq!(later.sent, 0, "a frame cannot go on behind others");
        self.frames.append(&mut later.frames);
    }

    /// Takes out all frames that are not sent whole, and returns their payloads.
    pub fn drop_all(&mut self) -> impl Iterator<Item = P> {
        self.sent = 0;
        self.frames.drain(..).map(|frame| frame.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::frame::{decode_request, encode_request};
    use tidegate_wire::{Extent, Handle, Hints, Op, ReplySlot, Request};

    /// Gives the bytes in pieces of a fixed size.
    struct Pieces<'a> {
        bytes: &'a [u8],
        size: usize,
    }

    impl Pieces<'_> {
        fn read(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let mut total = 0;
            for piece in pieces {
                let count = (self.size - total).min(piece.len()).min(self.bytes.len());
                piece[..count].copy_from_slice(&self.bytes[..count]);
                self.bytes = &self.bytes[count..];
                total += count;
            }
            Ok(total)
        }
    }

    #[test]
    fn a_body_arrives_where_the_reader_has_begun_to_receive_it() {
        let (mut bytes, value) = (Vec::new(), vec![7; 40_000]);
        let handle = Handle { inode: 3, birth: 1 };
        let op = Op::Setxattr {
            handle,
            name: b"user.a"[..].into(),
            value: value.into(),
            flags: 0,
        };
        encode_request(&request(1, op, 0), &mut bytes);
        let mut reader = FrameReader::of_requests(1 << 20, false);
        let (head, body) = bytes.split_at(HEADER_LEN);
        let place = |reader: &mut FrameReader, bytes: &[u8]| {
            let mut place = 0;
            let receive = |pieces: &mut [IoSliceMut<'_>]| {
                place = pieces[0].as_ptr().addr();
                pieces[0][..bytes.len()].copy_from_slice(bytes);
                match bytes.len() {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    len => Ok(len),
                }
            };
            let _ = reader.fill(receive, &mut []);
            place
        };
        place(&mut reader, head);
        assert!(matches!(reader.next(&mut []), Ok(Step::More)));
        let begun = place(&mut reader, &[]);
        reader.rest();
        // Another reader of this thread would take what it gave back.
        let mut other = FrameReader::of_requests(1 << 20, false);
        place(&mut other, &head[..1]);
        assert_eq!(place(&mut reader, body), begun);
        assert!(matches!(reader.next(&mut []), Ok(Step::Frame(..))));
    }

    fn request(id: u64, op: Op, payload_len: u32) -> Request {
        let data = matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Append { .. });
        let reply_slot = op.mutates().then_some(ReplySlot {
            index: 0,
            sequence: 1,
        });
        Request {
            id,
            seat: 0,
            reply_slot,
            generation: 0,
            epoch: 0,
            replay: false,
            caller: None,
            hints: data.then(Hints::default),
            op,
            payload_len,
        }
    }

    #[test]
    fn frames_come_out_whole_whatever_the_pieces() {
        let handle = Handle { inode: 1, birth: 2 };
        let value: Box<[u8]> = vec![7; 60_000].into();
        let payload: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        let len = payload.len() as u64;
        let extents = Extent { offset: 0, len }.into();
        let frames = [
            request(1, Op::Getattr { handle }, 0),
            request(2, Op::Write { handle, extents }, payload.len() as u32),
            request(
                3,
                Op::Setxattr {
                    handle,
                    name: (*b"a").into(),
                    value,
                    flags: 0,
                },
                0,
            ),
            request(4, Op::Getattr { handle }, 0),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            encode_request(frame, &mut bytes);
            if frame.payload_len > 0 {
                bytes.extend_from_slice(&payload);
            }
        }
        for size in [1, 3, 64, 100, 4096, 1 << 20] {
            for (keep, greets) in [(true, false), (false, true)] {
                let mut stream = Pieces {
                    bytes: &bytes,
                    size,
                };
                let mut reader = FrameReader::of_requests(1 << 20, greets);
                let (mut target, mut seen, mut payloads) = (Vec::new(), Vec::new(), 0);
                loop {
                    match reader.next(&mut target).expect("the frames are sound") {
                        Step::More => {
                            let filled = reader.fill(|pieces| stream.read(pieces), &mut target);
                            if filled.expect("no errors").is_none() {
                                break;
                            }
                        }
                        Step::Greeting(_) => panic!("there is none"),
                        Step::Frame(header, body) => {
                            let request = decode_request(&header, body).expect("it is sound");
                            if request.payload_len > 0 && keep {
                                target = vec![0; request.payload_len as usize];
                                reader.keep_payload();
                            } else if request.payload_len > 0 {
                                reader.skip_payload();
                            }
                            seen.push(request);
                        }
                        Step::Payload => {
                            payloads += 1;
                            assert_eq!(std::mem::take(&mut target), payload);
                        }
                    }
                }
                assert_eq!(seen, frames);
                assert_eq!(payloads, i32::from(keep));
                assert!(!reader.is_amid_frame());
            }
        }
    }

    #[test]
    fn frames_go_out_in_order_however_much_each_write_takes() {
        for size in [1, 2, 3, 7, 1000] {
            let mut outbox = Outbox::default();
            let mut wanted = Vec::new();
            for number in 0..9u8 {
                let pieces = vec![vec![number; usize::from(number % 3)]; 2];
                let payload: Vec<u8> = pieces.concat();
                wanted.extend_from_slice(&[100 + number; 4]);
                wanted.extend_from_slice(&payload);
                outbox.push(vec![100 + number; 4], pieces, payload.len());
            }
            let (mut sent, mut out) = (Vec::new(), 0);
            while !outbox.is_empty() {
                let mut pieces = [RawBytes::default(); 5];
                let payloads = outbox
                    .payloads()
                    .map(|it| it.iter().map(|it| RawBytes::from(&it[..])));
                let count = outbox.gather(payloads, &mut pieces);
                let all: Vec<u8> = pieces[..count].iter().flat_map(|it| it.to_vec()).collect();
                assert!(!all.is_empty());
                let taken = size.min(all.len());
                sent.extend_from_slice(&all[..taken]);
                outbox.advance(taken, |head, _| {
                    assert!(head.is_empty());
                    out += 1;
                });
            }
            assert_eq!((sent, out), (wanted, 9));
            assert!(!outbox.has_begun());
        }
    }

    #[test]
    fn what_was_added_meanwhile_comes_behind_a_frame_that_has_begun() {
        let (mut outbox, mut later) = (Outbox::default(), Outbox::default());
        outbox.push(vec![1; 4], 'a', 2);
        later.push(vec![2; 4], 'b', 0);
        outbox.advance(5, |_, _| panic!("a byte is left"));
        outbox.append(&mut later);
        assert!(outbox.has_begun() && later.is_empty());
        assert_eq!((outbox.len(), outbox.payload_left()), (2, Some(1)));
        let mut out = Vec::new();
        outbox.advance(2, |_, payload| out.push(payload));
        assert_eq!(out, ['a']);
        assert_eq!(outbox.payload_left(), None);
        assert_eq!(outbox.drop_all().collect::<Vec<_>>(), ['b']);
        assert!(outbox.is_empty() && !outbox.has_begun());
    }
}
