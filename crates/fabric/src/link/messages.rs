//! Bytes in order, in messages of bounded length and number.
//!
//! A message: the receiver's key (8 bytes), how many messages of the receiver's the sender has used
//! up (4), flags (2), length (2), then the bytes. All numbers are little endian.

use crate::RawBytes;
use crate::domain::{Domain, Error};
use crate::endpoint::Endpoint;
use crate::greeting::Greeting;
use crate::memory::Pieces;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

const HEAD_LEN: usize = 16;
/// Bytes of the longest message.
const MESSAGE_LEN: usize = 8192;
/// Messages with bytes that may be under way to us, and at most to the peer.
const WINDOW: usize = 16;
/// Buffers beyond those, for messages that carry nothing.
const SPARE: usize = 8;

/// The message carries nothing and needs no place in the window.
const BARE: u16 = 1;
/// The receiver shall tell at once what it has used up.
const ASKS: u16 = 2;

/// Operations are numbered: the kind, and a buffer.
const RECEIVE: u64 = 1 << 32;
const SEND: u64 = 2 << 32;

pub(super) struct Messages {
    /// What messages to us begin with.
    pub(super) key: u64,
    peer_key: u64,
    /// The first `WINDOW + SPARE` are for receiving, `WINDOW + 1` others for sending.
    pieces: Pieces,
    /// Messages that came and are not used up: buffer, and what of it.
    come: VecDeque<(usize, usize, usize)>,
    /// Buffers for receiving that the endpoint did not take yet.
    idle: Vec<usize>,
    /// Messages of the peer used up, and what it was told of that.
    used: u32,
    told: u32,
    asked: bool,
    /// Buffers for sending.
    free: Vec<usize>,
    /// Filled ones that the endpoint did not take yet, and their lengths.
    filled: VecDeque<(usize, usize)>,
    /// The provider would not take one.
    put_off: bool,
    /// Messages filled, and what of them the peer has used up.
    sent: u32,
    peer_used: u32,
    peer_window: u32,
    peer_len: usize,
    /// There was no room for what was to be written.
    full: bool,
    /// The peer is gone.
    mute: bool,
    /// The message up to which the peer was asked.
    asked_at: Option<u32>,
}

impl Messages {
    pub(super) fn new(domain: &Arc<Domain>, key: u64) -> Result<Messages, Error> {
        let receiving = WINDOW + SPARE;
        let all = receiving + WINDOW + 1;
        Ok(Messages {
            key,
            peer_key: 0,
            pieces: Pieces::new(domain, all, MESSAGE_LEN)?,
            come: VecDeque::with_capacity(receiving),
            idle: (0..receiving).collect(),
            used: 0,
            told: 0,
            asked: false,
            free: (receiving..all).collect(),
            filled: VecDeque::with_capacity(WINDOW + 1),
            put_off: false,
            sent: 0,
            peer_used: 0,
            peer_window: 0,
            peer_len: 0,
            full: false,
            mute: false,
            asked_at: None,
        })
    }

    pub(super) fn window(&self) -> u16 {
        WINDOW as u16
    }

    pub(super) fn message_len(&self) -> u32 {
        MESSAGE_LEN as u32
    }

    /// The peer has said what it takes.
    pub(super) fn met(&mut self, greeting: &Greeting) {
        self.peer_key = greeting.key;
        self.peer_window = u32::from(greeting.window);
        self.peer_len = (greeting.message_len as usize).clamp(HEAD_LEN + 1, MESSAGE_LEN);
    }

    /// Gives the endpoint the buffers that are free. False: the provider put some off.
    pub(super) fn take_in(&mut self, endpoint: &mut Endpoint) -> Result<bool, Error> {
        while let Some(&piece) = self.idle.last() {
            let (at, memory) = (self.pieces.at(piece), self.pieces.registration());
            // SAFETY: the piece is looked at again only when it has come, and lives longer than the
            // endpoint.
            let taken =
                unsafe { endpoint.receive(at, MESSAGE_LEN, memory, RECEIVE | piece as u64)? };
            if !taken {
                return Ok(false);
            }
            self.idle.pop();
        }
        Ok(true)
    }

    /// An operation is over.
    pub(super) fn done(
        &mut self,
        number: u64,
        len: usize,
        error: Option<String>,
    ) -> Result<(), Error> {
        if let Some(why) = error {
            let what = if number & RECEIVE != 0 {
                "receiving"
            } else {
                "sending"
            };
            return Err(Error::Call { what, why });
        }
        let piece = (number & 0xffff) as usize;
        match number & !0xffff {
            RECEIVE => self.message_came(piece, len),
            SEND => {
                self.free.push(piece);
                Ok(())
            }
            _ => Err(Error::Call {
                what: "the queue of completions",
                why: format!("operation {number:#x}, which was not begun"),
            }),
        }
    }

    fn message_came(&mut self, piece: usize, len: usize) -> Result<(), Error> {
        // SAFETY: its operation is over.
        let bytes = unsafe { self.pieces.bytes(piece) };
        let Some(head) = bytes[..len.min(MESSAGE_LEN)].first_chunk::<HEAD_LEN>() else {
            self.idle.push(piece);
            return Ok(());
        };
        let (key, rest) = head.split_first_chunk::<8>().expect("a head has them");
        let (used, rest) = rest.split_first_chunk::<4>().expect("a head has them");
        let flags = u16::from_le_bytes([rest[0], rest[1]]);
        let carried = usize::from(u16::from_le_bytes([rest[2], rest[3]]));
        if u64::from_le_bytes(*key) != self.key {
            // Somebody else's.
            self.idle.push(piece);
            return Ok(());
        }
        let used = u32::from_le_bytes(*used);
        let under_way = self.sent.wrapping_sub(self.peer_used);
        let news = used.wrapping_sub(self.peer_used);
        let bare = flags & BARE != 0;
        if news > under_way || carried + HEAD_LEN > len || (bare && carried > 0) {
            return Err(Error::Peer("a malformed message".to_string()));
        }
        self.peer_used = used;
        self.asked |= flags & ASKS != 0;
        if bare {
            self.idle.push(piece);
        } else if self.come.len() == WINDOW {
            return Err(Error::Peer(
                "more messages than there is room for".to_string(),
            ));
        } else {
            self.come.push_back((piece, HEAD_LEN, HEAD_LEN + carried));
            self.skip_empty();
        }
        Ok(())
    }

    /// A message without bytes is used up when it comes.
    fn skip_empty(&mut self) {
        while let Some(&(piece, start, end)) = self.come.front()
            && start == end
        {
            self.come.pop_front();
            self.idle.push(piece);
            self.used = self.used.wrapping_add(1);
        }
    }

    /// Copies what has come; 0 if nothing has.
    pub(super) fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        let mut total = 0;
        for target in into {
            let mut target = &mut target[..];
            while let Some((piece, start, end)) = self.come.front_mut()
                && !target.is_empty()
            {
                let count = target.len().min(*end - *start);
                // SAFETY: its operation is over.
                let bytes = unsafe { self.pieces.bytes(*piece) };
                target[..count].copy_from_slice(&bytes[*start..*start + count]);
                *start += count;
                total += count;
                target = &mut target[count..];
                self.skip_empty();
            }
        }
        total
    }

    /// Whether another message may be filled. One buffer stays for a message that carries nothing.
    pub(super) fn has_room(&self) -> bool {
        self.sent.wrapping_sub(self.peer_used) < self.peer_window && self.free.len() > 1
    }

    /// Fills messages; says how many bytes it took.
    pub(super) fn write(&mut self, pieces: &[RawBytes<'_>]) -> usize {
        self.full = false;
        let mut total = 0;
        let mut pieces = pieces.iter().copied();
        let mut rest = pieces.next().unwrap_or_default();
        loop {
            while rest.is_empty() {
                match pieces.next() {
                    Some(piece) => rest = piece,
                    None => return total,
                }
            }
            if !self.has_room() {
                self.full = true;
                return total;
            }
            let buffer = self.free.pop().expect("there is room");
            let room = self.peer_len - HEAD_LEN;
            let mut carried = 0;
            while carried < room {
                // SAFETY: the piece is not with the endpoint.
                let bytes = unsafe { self.pieces.bytes(buffer) };
                let count = rest.copy_to(&mut bytes[HEAD_LEN + carried..][..room - carried]);
                carried += count;
                rest = rest.split(count).1;
                if rest.is_empty() {
                    match pieces.next() {
                        Some(piece) => rest = piece,
                        None => break,
                    }
                }
            }
            total += carried;
            self.sent = self.sent.wrapping_add(1);
            self.fill(buffer, 0, carried);
        }
    }

    fn fill(&mut self, buffer: usize, flags: u16, carried: usize) {
        let (key, used) = (self.peer_key, self.used);
        // SAFETY: the piece is not with the endpoint.
        let bytes = unsafe { self.pieces.bytes(buffer) };
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..12].copy_from_slice(&used.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&(carried as u16).to_le_bytes());
        self.told = used;
        self.asked = false;
        self.filled.push_back((buffer, HEAD_LEN + carried));
    }

    /// Tells what is due, and gives the endpoint what it takes; true if it took something.
    pub(super) fn go_on(&mut self, endpoint: &mut Endpoint) -> Result<bool, Error> {
        let received = self.take_in(endpoint)?;
        let untold = self.used.wrapping_sub(self.told);
        let due = (self.asked && self.come.is_empty()) || untold >= WINDOW as u32 / 2;
        if due && let Some(buffer) = self.free.pop() {
            self.fill(buffer, BARE, 0);
        }
        let mut began = false;
        if self.mute {
            return Ok(false);
        }
        while let Some(&(buffer, len)) = self.filled.front() {
            let (at, memory) = (self.pieces.at(buffer), self.pieces.registration());
            // SAFETY: the piece is not touched until its operation is over, and lives longer than
            // the endpoint.
            if !unsafe { endpoint.send(at, len, memory, SEND | buffer as u64)? } {
                break;
            }
            self.filled.pop_front();
            began = true;
        }
        self.put_off = !received || !self.filled.is_empty();
        Ok(began)
    }

    /// Nothing is sent from now on: only what has come is of use.
    pub(super) fn send_no_more(&mut self) {
        self.mute = true;
    }

    /// What the peer was asked for has been taken in.
    pub(super) fn told_news(&mut self) {
        self.asked_at = None;
    }

    /// Asks the peer to tell what it has used up, once for what was sent until now.
    pub(super) fn ask(&mut self) {
        if self.asked_at != Some(self.sent)
            && let Some(buffer) = self.free.pop()
        {
            self.fill(buffer, BARE | ASKS, 0);
            self.asked_at = Some(self.sent);
        }
    }

    /// Whether the peer has used up everything.
    pub(super) fn is_delivered(&self) -> bool {
        self.peer_used == self.sent
    }

    /// Whether the endpoint is done with everything that was to be sent.
    pub(super) fn is_settled(&self) -> bool {
        self.free.len() == WINDOW + 1
    }

    /// Whether there is room again, or word that everything was read.
    pub(super) fn has_news(&self) -> bool {
        let told = self.asked_at.is_some() && self.is_delivered();
        (self.full && self.has_room()) || told
    }

    pub(super) fn has_come(&self) -> bool {
        !self.come.is_empty()
    }

    /// Something is to be written once there is room.
    pub(super) fn note_full(&mut self) {
        self.full = true;
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn is_put_off(&self) -> bool {
        self.put_off
    }
}
