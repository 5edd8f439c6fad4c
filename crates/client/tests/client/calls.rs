//! Calls that go well, from one thread and from many.

use crate::fake::{Fake, plain};
use std::thread;
use tidegate_client::wire::{
    Extent, Extents, Handle, Lock, LockFamily, LockKind, RenameMode, SetAttr,
};
use tidegate_client::{Bytes, Client, Context, Errno, RawRoom};

/// An exclusive lock of the whole file.
pub fn exclusive(owner: u64) -> Lock {
    let (family, kind) = (LockFamily::Range, LockKind::Exclusive);
    Lock {
        family,
        kind,
        owner,
        pid: 1,
        start: 0,
        end: u64::MAX,
    }
}

/// A new file in the root.
pub fn create(client: &Client, name: &[u8]) -> Handle {
    let root = client.root().handle;
    client
        .create(&plain(), root, name, 0o644, true)
        .expect("a new name")
        .handle
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len).map(|at| ((at + seed * 31) % 251) as u8).collect()
}

#[test]
fn what_was_written_is_read() {
    let fake = Fake::start("written-is-read");
    let client = fake.client();
    let ctx = plain();
    let file = create(&client, b"file");
    let bytes = pattern(5000, 1);
    assert_eq!(client.write(&ctx, file, 100, bytes.clone()), Ok(5000));
    let data = client
        .read(&ctx, file, 100, 5000)
        .expect("the file is there");
    assert_eq!(data.len, 5000);
    assert_eq!(data.into_bytes(), bytes);
    let beyond = client
        .read(&ctx, file, 5000, 1000)
        .expect("the file is there");
    assert_eq!(beyond.len, 100);
    assert_eq!(
        client.append(&ctx, file, Bytes::from_static(b"end")),
        Ok(Extent {
            offset: 5100,
            len: 3
        })
    );
    assert_eq!(client.getattr(&ctx, file).expect("attributes").size, 5103);
    let set = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    assert_eq!(
        client.setattr(&ctx, file, set).expect("attributes").size,
        10
    );
    assert_eq!(client.write(&ctx, file, 0, Bytes::new()), Ok(0));
    assert_eq!(
        client.read(&ctx, file, 0, 0).expect("nothing to read").len,
        0
    );
}

#[test]
fn names_come_and_go() {
    let fake = Fake::start("names");
    let client = fake.client();
    let (ctx, root) = (plain(), client.root().handle);
    for number in 0..7 {
        create(&client, format!("file{number}").as_bytes());
    }
    assert_eq!(
        client.create(&ctx, root, b"file0", 0o644, true),
        Err(Errno::EXIST)
    );
    let moved = client.rename(
        &ctx,
        (root, b"file0"),
        (root, b"first"),
        RenameMode::Replace,
    );
    assert_eq!(moved, Ok(()));
    assert_eq!(client.lookup(&ctx, root, b"file0"), Err(Errno::NOENT));
    assert_eq!(client.unlink(&ctx, root, b"file1"), Ok(()));
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let listing = client
            .readdir(&ctx, root, cookie, 32 << 10, false)
            .expect("a listing");
        let Some(last) = listing.entries.last() else {
            break;
        };
        cookie = last.cookie;
        names.extend(listing.entries.into_iter().map(|entry| entry.name));
    }
    let expected: [&[u8]; 6] = [b"file2", b"file3", b"file4", b"file5", b"file6", b"first"];
    names.sort();
    assert!(names.iter().map(|name| &**name).eq(expected));
    assert_eq!(
        client.lookup(&ctx, root, &[b'x'; 300]),
        Err(Errno::NAMETOOLONG)
    );
    assert_eq!(client.status(0).expect("a text"), "{\"fake\":true}");
    assert_eq!(client.status(1), Err(Errno::INVAL));
    assert_eq!(
        client.set_policy(0, "policy = \"fifo\"", tidegate_client::wire::Keep::Run),
        Ok(())
    );
}

#[test]
fn many_threads_share_one_client() {
    const THREADS: usize = 16;
    const ROUNDS: usize = 30;
    let fake = Fake::start("threads");
    let client = fake.client();
    let file = create(&client, b"shared");
    thread::scope(|scope| {
        for number in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let len = 1000 + 997 * round;
                    let offset = (number * ROUNDS + round) as u64 * 32_000;
                    let bytes = pattern(len, number * ROUNDS + round);
                    let written = client.write(&plain(), file, offset, bytes.clone());
                    assert_eq!(written, Ok(len));
                    let data = client
                        .read(&plain(), file, offset, len)
                        .expect("it is there");
                    assert_eq!(data.into_bytes(), bytes);
                }
            });
        }
    });
    assert_eq!(fake.connections(), 1);
}

#[test]
fn an_operation_larger_than_a_frame_is_cut_and_joined() {
    let fake = Fake::start("large");
    let client = fake.client();
    let file = create(&client, b"large");
    let bytes = pattern(5 << 20, 3);
    assert_eq!(
        client.write(&plain(), file, 12_345, bytes.clone()),
        Ok(bytes.len())
    );
    let data = client
        .read(&plain(), file, 12_345, bytes.len() + 1000)
        .expect("it is there");
    assert_eq!(data.len, bytes.len());
    assert!(
        data.into_bytes() == bytes,
        "the bytes came back in another order"
    );
}

#[test]
fn long_calls_in_parts_are_one_operation() {
    let fake = Fake::start("parts");
    let client = fake.client();
    let ctx = plain();
    let file = create(&client, b"parts");
    for (len, at) in [(0, 7), (1000, 7), (512 << 10, 7), ((2 << 20) + 77, 12_345)] {
        fake.with(|state| state.operations.clear());
        let bytes = pattern(len, len);
        let written = client.write_parts(&ctx, file, at, len, |from, mut to| {
            to.put(0, &bytes[from..from + to.len()]);
        });
        assert_eq!(written, Ok(len));
        let operations = fake.with(|state| std::mem::take(&mut state.operations));
        let lens: Vec<_> = operations.iter().map(|operation| operation.1).collect();
        assert_eq!(lens, vec![len as u64; usize::from(len > 0)]);
        // The file ends before the buffer does, in a part that is not the last.
        let mut buffer = vec![0; len + (1 << 20)];
        let mut next = 0;
        let read = client.read_parts(&ctx, file, at, buffer.len(), |from, part| {
            assert_eq!(from, next, "in order");
            next = from + part.len();
            part.copy_to(&mut buffer[from..next]);
        });
        assert_eq!((read, next), (Ok(len), len));
        assert!(
            buffer[..len] == bytes,
            "the bytes came back in another order"
        );
        let operations = fake.with(|state| std::mem::take(&mut state.operations));
        assert_eq!(operations.len(), 1, "{operations:?}");
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        client.setattr(&ctx, file, set).expect("it can be cut");
    }
    let far = client.read_parts(&ctx, file, u64::MAX - 5, 1 << 20, |_, _| {});
    assert_eq!(
        far,
        client
            .read(&ctx, file, u64::MAX - 5, 1 << 20)
            .map(|data| data.len)
    );
    let gone = Handle {
        inode: 1 << 40,
        birth: 1,
    };
    let errno = client.read(&ctx, gone, 0, 1 << 20).map(|data| data.len);
    assert!(errno.is_err());
    assert_eq!(client.read_parts(&ctx, gone, 0, 1 << 20, |_, _| {}), errno);
    let fill = |_: usize, _: RawRoom<'_>| {};
    assert_eq!(client.write_parts(&ctx, gone, 0, 1 << 20, fill), errno);
}

#[test]
fn replies_byte_by_byte_are_replies() {
    let fake = Fake::start("bytewise");
    let client = fake.client();
    fake.with(|state| state.portion = 1);
    let file = create(&client, b"slow");
    let bytes = pattern(20_000, 5);
    assert_eq!(
        client.write(&plain(), file, 0, bytes.clone()),
        Ok(bytes.len())
    );
    let data = client
        .read(&plain(), file, 0, bytes.len())
        .expect("it is there");
    assert_eq!(data.into_bytes(), bytes);
}

#[test]
fn more_calls_than_credits_wait_their_turn() {
    const CALLS: u32 = 100;
    let fake = Fake::start("credits");
    let client = fake.client();
    let file = create(&client, b"file");
    client
        .write(&plain(), file, 0, pattern(4096, 1))
        .expect("written");
    fake.with(|state| state.held = true);
    thread::scope(|scope| {
        let calls: Vec<_> = (0..CALLS)
            .map(|_| scope.spawn(|| client.read(&plain(), file, 0, 4096)))
            .collect();
        // The fake sees one and takes no more from the socket.
        fake.wait_for("read", 1);
        fake.with(|state| state.held = false);
        for call in calls {
            let data = call.join().expect("no panic").expect("it is there");
            assert_eq!(data.len, 4096);
        }
    });
    fake.wait_for("read", CALLS);
}

#[test]
fn locks_are_granted_when_they_are_free() {
    let fake = Fake::start("locks");
    let client = fake.client();
    let file = create(&client, b"locked");
    assert_eq!(client.set_lock(&plain(), file, exclusive(1), false), Ok(()));
    let busy = client.set_lock(&plain(), file, exclusive(2), false);
    assert_eq!(busy, Err(Errno(11)));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.set_lock(&plain(), file, exclusive(2), true));
        fake.wait_for("set_lock", 3);
        let release = Lock {
            kind: LockKind::None,
            ..exclusive(1)
        };
        assert_eq!(client.set_lock(&plain(), file, release, false), Ok(()));
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn background_calls_need_no_answer() {
    let fake = Fake::start("background");
    let client = fake.client();
    let file = create(&client, b"file");
    let open = client.open(&plain(), file, true, false).expect("it opens");
    fake.with(|state| state.held = true);
    drop(open);
    client.drop_locks(file, LockFamily::Range, 1);
    client.forget(file);
    fake.wait_for("close", 1);
}

#[test]
fn a_fork_child_gets_an_error_and_harms_nothing() {
    let fake = Fake::start("fork");
    let client = fake.client();
    let file = create(&client, b"file");
    let ctx = Context::default();
    // SAFETY: the child touches no lock or memory of other threads: the client turns it away by its
    // process id, and _exit runs nothing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = client.getattr(&ctx, file).err() == Some(Errno::IO);
        client.shutdown();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    assert!(child > 0, "fork");
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert!(client.getattr(&ctx, file).is_ok());
    assert_eq!(fake.connections(), 1);
}

#[test]
fn a_list_is_one_request() {
    let fake = Fake::start("list");
    let client = fake.client();
    let ctx = plain();
    let file = create(&client, b"file");
    let extents = |count: u64| Extents {
        first: Extent { offset: 0, len: 10 },
        rest: (1..count)
            .map(|number| Extent {
                offset: number * 1000,
                len: 10,
            })
            .collect(),
    };
    let bytes = pattern(2000, 3);
    let written = client.write_list(&ctx, file, extents(200), bytes.clone());
    assert_eq!(written, Ok(2000));
    let data = client.read_list(&ctx, file, extents(200));
    assert_eq!(data.expect("the file is there").into_bytes(), bytes);
    fake.with(|state| assert_eq!((state.seen["write"], state.seen["read"]), (1, 1)));
    // The file ends with the 200th.
    let data = client.read_list(&ctx, file, extents(300));
    assert_eq!(data.expect("the file is there").len, 2000);
    let wrong = client.write_list(&ctx, file, extents(2), bytes);
    assert_eq!(wrong, Err(Errno::INVAL), "more bytes than extents");
}
