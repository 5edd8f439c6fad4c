//! Frames that wait to be sent on one connection, in order.
//!
//! An [`Outbox`] knows how far the first frame is sent. It lists the bytes that one vectored write
//! sends next, and gives back each frame that is out. Where a payload lies is the owner's business.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::iter;

/// See the head of the file. `P` is the payload of a frame.
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
        into: &mut [IoSlice<'a>],
    ) -> usize
    where
        I: IntoIterator<Item = &'a [u8]>,
    {
        let mut skip = self.sent;
        let frames = self.frames.iter().zip(payloads);
        let pieces = frames.flat_map(|(frame, payload)| iter::once(&frame.head[..]).chain(payload));
        let rest = pieces.filter_map(|piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            Some(&piece[skipped..]).filter(|rest| !rest.is_empty())
        });
        let filled = into.iter_mut().zip(rest);
        filled.map(|(to, piece)| *to = IoSlice::new(piece)).count()
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
                let mut pieces = [IoSlice::new(&[]); 5];
                let payloads = outbox.payloads().map(|it| it.iter().map(Vec::as_slice));
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
