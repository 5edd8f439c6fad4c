//! The mailbox between a thread of connections and the forwarder's loop.

#[allow(clippy::module_inception)]
mod mailbox {
    include!(concat!(env!("OUT_DIR"), "/mailbox.rs"));
}

use crate::sync::{self, Arc};
use crate::under_every_order;
use loom::thread;
use mailbox::{Incoming, Waker, mailbox};

/// Reads until the writers have ended, and sleeps where nothing is there, as the loops do.
fn read_all(poll: &sync::Waker, waker: &Waker, boxes: &[Incoming<u32>]) -> Vec<u32> {
    let (mut all, mut messages) = (Vec::new(), Vec::new());
    loop {
        waker.park();
        if !boxes.iter().any(Incoming::is_any) {
            poll.poll();
        }
        waker.unpark();
        // Read before the messages: what an ended writer has left is then all there will be.
        let ended = boxes.iter().all(Incoming::is_ended);
        for incoming in boxes {
            incoming.take(&mut messages);
            all.append(&mut messages);
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
        let poll = Arc::new(sync::Waker::new());
        let waker = Waker::new(poll.clone());
        let (mut outgoing, incoming) = mailbox(waker.clone());
        let writer = thread::spawn(move || {
            outgoing.push(1);
            outgoing.push(2);
            outgoing.hand_over();
            outgoing.push(3);
        });
        assert_eq!(read_all(&poll, &waker, &[incoming]), [1, 2, 3]);
        writer.join().expect("it does not panic");
    });
}

#[test]
fn one_waker_serves_several_mailboxes() {
    under_every_order(|| {
        let poll = Arc::new(sync::Waker::new());
        let waker = Waker::new(poll.clone());
        let (mut first, first_end) = mailbox(waker.clone());
        let (mut second, second_end) = mailbox(waker.clone());
        let writers = [
            thread::spawn(move || first.push(1)),
            thread::spawn(move || second.push(2)),
        ];
        let mut all = read_all(&poll, &waker, &[first_end, second_end]);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        for writer in writers {
            writer.join().expect("it does not panic");
        }
    });
}
