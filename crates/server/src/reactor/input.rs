//! Frames out of a stream of bytes: header, body, payload, in whatever pieces they come.
//!
//! Nothing waits in here: [`FrameReader::next`] uses what has come, [`FrameReader::fill`] reads
//! once from the socket. Payload goes straight to where the caller wants it.

use std::cell::Cell;
use std::io::{self, IoSliceMut, Read};
use tidegate_wire::Request;
use tidegate_wire::frame::{FrameError, HEADER_LEN, Header, decode_header, decode_request_shared};

/// Bytes that are read ahead; small requests come several at a time.
const AHEAD: usize = 16 * 1024;
/// The same on a connection whose last payload was a large one: the next head and little more, so
/// that the payload goes straight to its place. It takes no more calls.
const AHEAD_OF_LARGE: usize = 256;
/// What a large payload is.
const LARGE: u32 = 64 * 1024;

thread_local! {
    /// The buffer of whoever reads next: only a connection that stopped amid a frame keeps one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What the bytes so far amount to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// Header and body of a request, and where in shared memory its payload lies. If it has payload
    /// and it does not, say next whether to keep or discard it.
    Request(Box<Request>, Option<u64>),
    /// A sound frame of an unknown operation; its payload is discarded.
    UnknownOp {
        /// Id of the request.
        id: u64,
        /// Its op code.
        op: u8,
    },
    /// The payload is complete.
    Payload,
}

enum State {
    Header,
    Body(Header),
    /// Header and body are out; the payload has been neither kept nor discarded yet.
    Undecided,
    Payload {
        filled: usize,
        len: usize,
    },
    Discard {
        left: usize,
        /// Whether the end is told, because a request waits for it.
        told: bool,
    },
}

/// Where in the stream of one connection we are.
pub struct FrameReader {
    payload_max: u32,
    state: State,
    ahead: Vec<u8>,
    start: usize,
    end: usize,
    /// The last payload that was kept was a large one.
    large: bool,
    /// Payload that was read ahead and then copied to its place.
    copied: u64,
}

impl FrameReader {
    /// At the first byte of a stream.
    pub fn new(payload_max: u32) -> FrameReader {
        FrameReader {
            payload_max,
            state: State::Header,
            ahead: Vec::new(),
            start: 0,
            end: 0,
            large: false,
            copied: 0,
        }
    }

    /// Uses the bytes that have come. `target` is where the payload goes: as long as it is, or
    /// empty while there is none to be kept.
    pub fn next(&mut self, target: &mut [u8]) -> Result<Step, FrameError> {
        loop {
            match &mut self.state {
                State::Header => {
                    let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<HEADER_LEN>()
                    else {
                        return Ok(Step::More);
                    };
                    let header = decode_header(bytes, self.payload_max)?;
                    if header.reply {
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
                    return self.body_came(&header, body_len);
                }
                State::Undecided => return Ok(Step::More),
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
                State::Discard { left, told } => {
                    let count = (*left).min(self.end - self.start);
                    *left -= count;
                    self.start += count;
                    if *left > 0 {
                        return Ok(Step::More);
                    }
                    let told = *told;
                    self.state = State::Header;
                    if told {
                        return Ok(Step::Payload);
                    }
                }
            }
        }
    }

    /// The payload of the request that was told last goes to the `target` of the calls to come.
    pub fn keep_payload(&mut self, len: u32) {
        assert!(
            matches!(self.state, State::Undecided),
            "only after a request with payload"
        );
        self.large = len >= LARGE;
        self.state = State::Payload {
            filled: 0,
            len: len as usize,
        };
    }

    /// The payload of the request that was told last is read and dropped; then [`Step::Payload`].
    pub fn discard_payload(&mut self, len: u32) {
        assert!(
            matches!(self.state, State::Undecided),
            "only after a request with payload"
        );
        self.state = State::Discard {
            left: len as usize,
            told: true,
        };
    }

    /// Whether a frame has begun and not ended.
    pub fn is_amid_frame(&self) -> bool {
        !matches!(self.state, State::Header) || self.start < self.end
    }

    /// Reads once from the socket: how many bytes came, of how many there was room for. None is the
    /// end of the stream.
    pub fn fill(
        &mut self,
        stream: &mut impl Read,
        target: &mut [u8],
    ) -> io::Result<Option<(usize, usize)>> {
        self.make_room();
        let (count, direct, ahead) = match &mut self.state {
            State::Payload { filled, len } if self.start == self.end => {
                let room = *len - *filled;
                let rest = IoSliceMut::new(&mut target[*filled..]);
                let ahead = if self.large { AHEAD_OF_LARGE } else { AHEAD };
                let mut pieces = [rest, IoSliceMut::new(&mut self.ahead[..ahead])];
                let count = stream.read_vectored(&mut pieces)?;
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
                (stream.read(room)?, 0, room.len())
            }
        };
        self.end += count.saturating_sub(direct);
        Ok((count > 0).then_some((count, direct + ahead)))
    }

    /// Nothing is read for now: the buffer, if nothing is left in it, is for others. Says how much
    /// payload was copied out of it since the last call.
    pub fn rest(&mut self) -> u64 {
        if self.start == self.end && !self.ahead.is_empty() {
            (self.start, self.end) = (0, 0);
            let ahead = std::mem::take(&mut self.ahead);
            if ahead.len() == AHEAD {
                SPARE.set(ahead);
            }
        }
        std::mem::take(&mut self.copied)
    }

    fn body_came(&mut self, header: &Header, body_len: usize) -> Result<Step, FrameError> {
        let body = &self.ahead[self.start..][..body_len];
        let decoded = decode_request_shared(header, body);
        self.start += body_len;
        let payload = header.payload_len as usize;
        self.large &= payload > 0;
        match decoded {
            Ok((request, place)) => {
                self.state = if payload > 0 && place.is_none() {
                    State::Undecided
                } else {
                    State::Header
                };
                Ok(Step::Request(Box::new(request), place))
            }
            Err(FrameError::UnknownOp { id, op }) => {
                self.state = State::Discard {
                    left: payload,
                    told: false,
                };
                Ok(Step::UnknownOp { id, op })
            }
            Err(error) => Err(error),
        }
    }

    /// Moves what is left to the front, and has room for the whole body that is due.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.ahead.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.ahead.is_empty() {
            self.ahead = SPARE.take();
            self.ahead.resize(AHEAD, 0);
        }
        let due = match &self.state {
            State::Body(header) => header.body_len as usize,
            _ => 0,
        };
        if due > self.ahead.len() {
            self.ahead.resize(due, 0);
        } else if self.ahead.len() > AHEAD && self.end == 0 && due <= AHEAD {
            self.ahead.truncate(AHEAD);
            self.ahead.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::frame::encode_request;
    use tidegate_wire::{Extent, Handle, Hints, Op, Row};

    /// Gives the bytes in pieces of a fixed size.
    struct Pieces<'a> {
        bytes: &'a [u8],
        size: usize,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.size.min(into.len()).min(self.bytes.len());
            into[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }

        fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
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

    fn request(id: u64, op: Op, payload_len: u32) -> Request {
        let data = matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Append { .. });
        let row = op.mutates().then_some(Row {
            index: 0,
            sequence: 1,
        });
        Request {
            id,
            seat: 0,
            row,
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
            for keep in [true, false] {
                let mut stream = Pieces {
                    bytes: &bytes,
                    size,
                };
                let mut reader = FrameReader::new(1 << 20);
                let (mut target, mut seen, mut payloads) = (Vec::new(), Vec::new(), 0);
                loop {
                    match reader.next(&mut target).expect("the frames are sound") {
                        Step::More => {
                            let filled = reader.fill(&mut stream, &mut target);
                            if filled.expect("no errors").is_none() {
                                break;
                            }
                        }
                        Step::Request(request, _) => {
                            if request.payload_len > 0 && keep {
                                target = vec![0; request.payload_len as usize];
                                reader.keep_payload(request.payload_len);
                            } else if request.payload_len > 0 {
                                reader.discard_payload(request.payload_len);
                            }
                            seen.push(*request);
                        }
                        Step::UnknownOp { .. } => panic!("all operations are known"),
                        Step::Payload => {
                            payloads += 1;
                            if keep {
                                assert_eq!(std::mem::take(&mut target), payload);
                            }
                        }
                    }
                }
                assert_eq!(seen, frames);
                assert_eq!(payloads, 1);
                assert!(!reader.is_amid_frame());
            }
        }
    }
}
