//! Reads that need no thread, because their bytes are in the page cache.

use super::*;

const LONG: u32 = 256 << 10;

/// A rig on so many processors whose file has `len` bytes in the page cache.
fn cached(dir: &std::path::Path, processors: usize, len: u32) -> (Rig, Handle) {
    let mut rig = rig(dir, 2, 64, Faults::default());
    rig.pool.cached_reads = Some(CachedReads::new(rig.files.clone(), processors));
    let file = rig.create(b"data");
    rig.slots.open(SlotId(1), len);
    for (job, direction) in [(1, Direction::Write), (2, Direction::Read)] {
        let work = rig.io(file, direction, 0, 1, len);
        rig.pool.submit(JobId(job), work);
        assert_eq!(parts_of(&rig.wait(1)[0]), [Ok(len)]);
    }
    (rig, file)
}

impl Rig {
    /// Whether a read of so many bytes has ended when it is submitted.
    fn reads_at_once(&mut self, file: Handle, len: u32, to_encrypt: bool) -> bool {
        self.slots.open(SlotId(2), len);
        if to_encrypt {
            self.slots.set_to_encrypt(SlotId(2));
        }
        let read = self.io(file, Direction::Read, 0, 2, len);
        let cached = self.pool.cached_reads.as_mut().expect("it was set");
        let done = cached.try_read(&self.pool.shared.slots, &self.pool.shared.reads, &read);
        done.is_some()
    }
}

#[test]
fn long_reads_are_done_at_once_only_where_they_are_encrypted_on_few_processors() {
    let scratch = Scratch::new("pool");
    let (mut rig, file) = cached(scratch.path(), 2, LONG);
    assert!(rig.reads_at_once(file, 64 << 10, false));
    assert!(!rig.reads_at_once(file, LONG, false));
    assert!(rig.reads_at_once(file, LONG, true));
    rig.pool.cached_reads = Some(CachedReads::new(rig.files.clone(), 3));
    assert!(rig.reads_at_once(file, 64 << 10, true));
    assert!(!rig.reads_at_once(file, LONG, true));
}

#[test]
fn what_was_read_at_once_is_sent_before_more_is_read() {
    let scratch = Scratch::new("pool");
    let (mut rig, file) = cached(scratch.path(), 2, LONG);
    for (len, is_to_send) in [(64 << 10, false), (64 << 10, true)] {
        assert!(rig.reads_at_once(file, len, false));
        assert_eq!(rig.pool.is_to_send(), is_to_send);
    }
    rig.pool.completions(&mut Vec::new());
    assert!(!rig.pool.is_to_send());
    assert!(rig.reads_at_once(file, LONG, true));
    assert!(rig.pool.is_to_send());
}
