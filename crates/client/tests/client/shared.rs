//! Memory that the client shares with a forwarder that writes there whenever it wants.

use crate::calls::{create, pattern};
use crate::fake::{Fake, plain};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tidegate_client::wire::Handle;
use tidegate_client::{Client, Payload};

const LEN: usize = 100_000;

/// A forwarder that has the client's memory, and a file of `LEN` bytes.
fn sharing(test: &str) -> (Fake, Arc<Client>, Handle, Arc<File>) {
    let fake = Fake::start(test);
    fake.with(|state| state.shares = true);
    let client = fake.client_with(|options| options.shared_memory_bytes = 4 << 20);
    let file = create(&client, b"file");
    let written = client.write(&plain(), file, 0, pattern(LEN, 1));
    assert_eq!(written, Ok(LEN));
    let memory = fake.with(|state| state.memory.clone());
    (fake, client, file, memory.expect("it was offered"))
}

/// Writes over all that the client shares, as no honest forwarder does.
fn overwrite(memory: &File) {
    let len = memory.metadata().expect("it is memory").len() as usize;
    let wrote = memory.write_all_at(&vec![b'!'; len], 0);
    wrote.expect("the client cannot forbid it");
}

#[test]
fn what_a_caller_has_taken_stays_as_it_was() {
    let (_fake, client, file, memory) = sharing("taken");
    let wanted = pattern(LEN, 1);
    let data = client.read(&plain(), file, 0, LEN).expect("it is there");
    let taken = data.clone().into_bytes();
    let mut buffer = vec![0; LEN];
    assert_eq!(data.copy_to(&mut buffer), LEN);
    overwrite(&memory);
    assert!(taken == wanted, "the caller's bytes have changed");
    assert!(buffer == wanted, "the caller's bytes have changed");
    // The bytes did lie in memory of which this is said.
    assert!(data.to_vec() == vec![b'!'; LEN]);
}

#[test]
fn a_write_has_the_bytes_that_were_put_there() {
    let (_fake, client, file, _memory) = sharing("put");
    let wanted = pattern(LEN, 7);
    let mut room = client.room(LEN).expect("none of it is in use");
    let (first, rest) = wanted.split_at(LEN / 3);
    room.raw().put(0, first);
    room.raw().put(first.len(), rest);
    let written = client.write(&plain(), file, 0, Payload::from(room));
    assert_eq!(written, Ok(LEN));
    let data = client.read(&plain(), file, 0, LEN).expect("it is there");
    assert!(data.into_bytes() == wanted);
}

#[test]
fn bytes_in_the_memory_of_another_client_are_moved_to_where_the_forwarder_reads_them() {
    let (_other, other, ..) = sharing("others-memory");
    let (fake, client, file, _memory) = sharing("own-memory");
    let wanted = pattern(LEN, 7);
    let mut room = other.room(LEN).expect("none of it is in use");
    room.raw().put(0, &wanted);
    let before = fake.with(|state| state.placed);
    let written = client.write(&plain(), file, 0, Payload::from(room));
    assert_eq!(written, Ok(LEN));
    assert_eq!(fake.with(|state| state.placed), before + 1);
    let data = client.read(&plain(), file, 0, LEN).expect("it is there");
    assert!(data.into_bytes() == wanted);
}

#[test]
fn what_a_forwarder_refuses_is_not_memory_for_writes() {
    let fake = Fake::start("refused-memory");
    let client = fake.client();
    let file = create(&client, b"file");
    let wanted = pattern(LEN, 7);
    let mut room = client.room(LEN).expect("none of it is in use");
    room.raw().put(0, &wanted);
    let payload = Payload::from(room);
    assert_eq!(client.write(&plain(), file, 0, payload.clone()), Ok(LEN));
    let (bytes, same) = (payload.clone().into_bytes(), payload.into_bytes());
    assert!(bytes == wanted);
    assert_eq!(bytes.as_ptr(), same.as_ptr(), "shared memory is copied");
    assert_eq!(fake.with(|state| state.placed), 0);
}

/// Each byte is the one that was wanted or one of [`overwrite`].
fn assert_were(bytes: &[u8], wanted: &[u8]) {
    assert_eq!(bytes.len(), wanted.len());
    let mut pairs = bytes.iter().zip(wanted);
    assert!(pairs.all(|(found, wanted)| found == wanted || *found == b'!'));
}

/// Says that it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn memory_that_changes_all_the_time_ends_no_call_and_spoils_no_other_bytes() {
    const CALLS: usize = 200;
    let (_fake, client, file, memory) = sharing("changing");
    let (ctx, wanted) = (plain(), pattern(LEN, 1));
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Acquire) {
                overwrite(&memory);
            }
        });
        // Also when a check fails.
        let _end = Ends(&ends);
        for _ in 0..CALLS {
            let mut buffer = vec![b'.'; LEN + 100];
            let read = client.read_parts(&ctx, file, 0, LEN, |at, bytes| {
                bytes.copy_to(&mut buffer[at..]);
            });
            assert_eq!(read, Ok(LEN));
            let (bytes, behind) = buffer.split_at(LEN);
            assert_were(bytes, &wanted);
            assert_eq!(behind, [b'.'; 100]);
            let bytes = client
                .read(&ctx, file, 0, LEN)
                .map(|data| data.into_bytes());
            assert_were(&bytes.expect("it is there"), &wanted);
            assert_eq!(client.write(&ctx, file, LEN as u64, vec![1; LEN]), Ok(LEN));
        }
    });
}
