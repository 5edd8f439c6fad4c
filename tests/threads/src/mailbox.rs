//! The mailbox between a thread of connections and the forwarder's loop.

mod mail {
    include!(concat!(env!("OUT_DIR"), "/mail.rs"));
}

use crate::sync::{Arc, Waker};
use crate::under_every_order;
use loom::thread;
use mail::{Bell, Incoming, letter_box};

/// Reads until the writers have ended, and sleeps where nothing is there, as the loops do.
fn read_all(poll: &Waker, bell: &Bell, boxes: &[Incoming<u32>]) -> Vec<u32> {
    let (mut all, mut letters) = (Vec::new(), Vec::new());
    loop {
        bell.doze();
        if !boxes.iter().any(Incoming::is_any) {
            poll.poll();
        }
        bell.woke();
        // Read before the letters: what an ended writer has left is then all there will be.
        let ended = boxes.iter().all(Incoming::is_ended);
        for incoming in boxes {
            incoming.take(&mut letters);
            all.append(&mut letters);
        }
        if ended {
            return all;
        }
        // The loop has other work to do.
        thread::yield_now();
    }
}

#[test]
fn no_wake_of_a_mailbox_is_lost() {
    under_every_order(|| {
        let poll = Arc::new(Waker::new());
        let bell = Bell::new(poll.clone());
        let (mut outgoing, incoming) = letter_box(bell.clone());
        let writer = thread::spawn(move || {
            outgoing.push(1);
            outgoing.push(2);
            outgoing.hand_over();
            outgoing.push(3);
        });
        assert_eq!(read_all(&poll, &bell, &[incoming]), [1, 2, 3]);
        writer.join().expect("it does not panic");
    });
}

#[test]
fn one_bell_serves_several_mailboxes() {
    under_every_order(|| {
        let poll = Arc::new(Waker::new());
        let bell = Bell::new(poll.clone());
        let (mut first, first_end) = letter_box(bell.clone());
        let (mut second, second_end) = letter_box(bell.clone());
        let writers = [
            thread::spawn(move || first.push(1)),
            thread::spawn(move || second.push(2)),
        ];
        let mut all = read_all(&poll, &bell, &[first_end, second_end]);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        for writer in writers {
            writer.join().expect("it does not panic");
        }
    });
}
