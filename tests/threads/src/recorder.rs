//! The ring between who records requests and the thread that writes them.

/// Blocks of two words; the product's have twelve, which loom would try one by one.
mod format {
    pub const BLOCK_LEN: usize = 16;
    pub type Bytes = [u8; BLOCK_LEN];
}

mod ring {
    include!(concat!(env!("OUT_DIR"), "/ring.rs"));
}

use crate::sync::Arc;
use crate::under_every_order;
use loom::thread;
use ring::Ring;

/// Blocks that tell themselves apart in every word.
fn block(number: u8) -> format::Bytes {
    [number; format::BLOCK_LEN]
}

// Loom tries another order where a thread looks at what another one has written, but not where it
// writes what another has looked at. So each side is once the one that begins.

#[test]
fn blocks_come_out_whole_and_in_order_while_they_are_written() {
    under_every_order(|| {
        let ring = Arc::new(Ring::new(2));
        let reader = thread::spawn({
            let ring = ring.clone();
            move || (0..3).filter_map(|_| ring.pop()).collect::<Vec<_>>()
        });
        let pushed: Vec<_> = (1..=3).map(block).filter(|it| ring.push(it)).collect();
        let mut out = reader.join().expect("it does not panic");
        out.extend(std::iter::from_fn(|| ring.pop()));
        assert_eq!(out, pushed, "what was taken, and nothing else");
        assert!(pushed.len() >= 2, "two have room in any case");
    });
}

#[test]
fn room_that_is_seen_is_there() {
    under_every_order(|| {
        let ring = Arc::new(Ring::new(2));
        assert!(ring.push(&block(1)) && ring.push(&block(2)));
        let writer = thread::spawn({
            let ring = ring.clone();
            move || {
                assert!(ring.len() <= ring.len_max());
                let pair = ring.has_room(2);
                // The other side only makes room.
                let pushed = [3, 4].map(|number| ring.push(&block(number)));
                assert!(!pair || pushed == [true, true]);
                pushed.into_iter().filter(|pushed| *pushed).count()
            }
        });
        assert_eq!([ring.pop(), ring.pop()], [Some(block(1)), Some(block(2))]);
        let pushed = writer.join().expect("it does not panic");
        let left: Vec<_> = std::iter::from_fn(|| ring.pop()).collect();
        // The second may have found room where the first had none.
        assert_eq!(left.len(), pushed);
        assert!(left.iter().all(|it| [block(3), block(4)].contains(it)));
        assert!(left.is_sorted());
    });
}
