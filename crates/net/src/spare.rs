//! A buffer that a thread keeps from one use to the next. It is of the thread and not shared,
//! because a process that was forked may find a lock of other threads taken for ever.
//!
//! A program may write while it exits, when what its threads had is gone: then each use has a
//! buffer of its own.

use std::cell::Cell;
use std::thread::LocalKey;

pub(crate) type Spare = Cell<Vec<u8>>;

/// The buffer that the thread has kept; an empty one if it has none.
pub(crate) fn take(spare: &'static LocalKey<Spare>) -> Vec<u8> {
    spare.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a buffer for the thread's next use.
pub(crate) fn keep(spare: &'static LocalKey<Spare>, buffer: Vec<u8>) {
    let _ = spare.try_with(|kept| kept.set(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    thread_local! {
        static SPARE: Spare = const { Cell::new(Vec::new()) };
        static LATE: Cell<Option<Late>> = const { Cell::new(None) };
    }

    /// Uses the buffer when the thread ends.
    struct Late(Sender<Vec<u8>>);

    impl Drop for Late {
        fn drop(&mut self) {
            let mut buffer = take(&SPARE);
            buffer.push(1);
            keep(&SPARE, buffer.clone());
            self.0.send(buffer).expect("the test waits");
        }
    }

    #[test]
    fn a_buffer_is_kept_until_the_thread_ends() {
        let (told, tells) = channel();
        let thread = std::thread::spawn(|| {
            // What was used first is there longest.
            LATE.set(Some(Late(told)));
            keep(&SPARE, vec![7; 100]);
            assert_eq!(take(&SPARE), [7; 100]);
            assert_eq!(take(&SPARE), []);
            keep(&SPARE, vec![8; 100]);
        });
        thread.join().expect("it does not panic");
        assert_eq!(tells.recv().expect("told"), [1]);
    }
}
