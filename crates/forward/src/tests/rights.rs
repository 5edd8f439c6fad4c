//! What clients that are not trusted may do with the files that they have open, and how long.

use super::*;
use crate::back_end_files::Errno;
use tidegate_wire::{Lock, LockFamily, LockKind, SetAttr};

const EBADF: u16 = 9;

fn open(handle: Handle, open: u64, read: bool, write: bool) -> Op {
    Op::Open {
        handle,
        open,
        read,
        write,
    }
}

fn lock(handle: Handle, family: LockFamily, kind: LockKind, wait: bool) -> Op {
    let lock = Lock {
        family,
        kind,
        owner: 1,
        pid: 1,
        start: 0,
        end: 99,
    };
    Op::SetLock {
        handle,
        lock,
        wait,
        reclaim: false,
    }
}

fn range(handle: Handle, kind: LockKind) -> Op {
    lock(handle, LockFamily::Range, kind, false)
}

/// A file of root with data, which all may read and write, a client of root and one of a user.
fn two() -> (World, Host, [Tester; 2], Handle) {
    let mut world = World::new();
    let mut host = Host::serving(&mut world);
    let mut root = Tester::new(&mut host, 7);
    let mut user = Tester::of(&mut host, 8, peer(1000));
    let file = root.create(&mut host, "file");
    user.find(&mut host, "file");
    let (written, _) = root.call_with(&mut host, write(file, 0, 4), b"data");
    written.expect("written");
    chmod(&mut root, &mut host, file, 0o666);
    (world, host, [root, user], file)
}

fn chmod(root: &mut Tester, host: &mut Host, handle: Handle, mode: u32) {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    root.call(host, Op::Setattr { handle, set }).expect("set");
}

#[test]
fn a_right_lives_with_the_open_that_gave_it() {
    let (_world, mut host, [mut root, mut user], file) = two();
    user.call(&mut host, open(file, 1, true, false))
        .expect("opened");
    user.call(&mut host, open(file, 2, true, true))
        .expect("opened");
    chmod(&mut root, &mut host, file, 0);
    let write_one = write(file, 0, 1);
    assert_eq!(user.call_with(&mut host, read(file, 0, 4), &[]).1, b"data");
    assert!(user.call_with(&mut host, write_one.clone(), b"x").0.is_ok());
    user.call(
        &mut host,
        Op::Close {
            handle: file,
            open: 2,
        },
    )
    .expect("closed");
    let refused = user.call_with(&mut host, write_one, b"x").0;
    assert_eq!(errno(refused), Errno::EACCES.0);
    assert!(user.call(&mut host, read(file, 0, 4)).is_ok());
    user.call(
        &mut host,
        Op::Close {
            handle: file,
            open: 1,
        },
    )
    .expect("closed");
    let refused = user.call(&mut host, read(file, 0, 4));
    assert_eq!(errno(refused), Errno::EACCES.0);
}

#[test]
fn without_an_open_a_right_ends_with_the_mode() {
    let (_world, mut host, [mut root, mut user], file) = two();
    assert!(user.call(&mut host, read(file, 0, 4)).is_ok());
    chmod(&mut root, &mut host, file, 0);
    let refused = user.call(&mut host, read(file, 0, 4));
    assert_eq!(errno(refused), Errno::EACCES.0);
}

#[test]
fn locks_need_an_open_of_the_right_mode() {
    let (_world, mut host, [_root, mut user], file) = two();
    let whole = || lock(file, LockFamily::Whole, LockKind::Exclusive, false);
    let Op::SetLock { lock: ours, .. } = whole() else {
        unreachable!("it is one");
    };
    let reclaim = Op::SetLock {
        handle: file,
        lock: ours,
        wait: false,
        reclaim: true,
    };
    let test = Op::TestLock {
        handle: file,
        lock: ours,
    };
    for op in [
        range(file, LockKind::Shared),
        whole(),
        reclaim,
        test.clone(),
    ] {
        assert_eq!(errno(user.call(&mut host, op)), EBADF);
    }
    user.call(&mut host, open(file, 1, true, false))
        .expect("opened");
    for op in [range(file, LockKind::Shared), whole(), test] {
        user.call(&mut host, op).expect("it may");
    }
    let exclusive = user.call(&mut host, range(file, LockKind::Exclusive));
    assert_eq!(errno(exclusive), EBADF);
    user.call(&mut host, open(file, 2, false, true))
        .expect("opened");
    user.call(&mut host, range(file, LockKind::Exclusive))
        .expect("it may");
}

#[test]
fn locks_end_with_the_last_open() {
    let (_world, mut host, [mut root, mut user], file) = two();
    let mut other = Tester::of(&mut host, 9, peer(1001));
    other.find(&mut host, "file");
    for tester in [&mut user, &mut other] {
        tester
            .call(&mut host, open(file, 1, true, true))
            .expect("opened");
    }
    user.call(&mut host, range(file, LockKind::Exclusive))
        .expect("granted");
    let wait = lock(file, LockFamily::Range, LockKind::Exclusive, true);
    let waits = other.send(&mut host, wait, &[]);
    other.send(
        &mut host,
        Op::Close {
            handle: file,
            open: 1,
        },
        &[],
    );
    assert_eq!(errno(other.take(&mut host, &waits).0), EBADF);
    host.replies.clear();
    user.call(
        &mut host,
        Op::Close {
            handle: file,
            open: 1,
        },
    )
    .expect("closed");
    root.call(&mut host, range(file, LockKind::Exclusive))
        .expect("it is free");
}

#[test]
fn a_handle_serves_whom_it_was_given_to() {
    let (_world, mut host, [_root, mut user], file) = two();
    let mut other = Tester::of(&mut host, 9, peer(1001));
    assert!(user.call(&mut host, read(file, 0, 4)).is_ok());
    let unknown = Err(Status::UnknownHandle);
    for op in [
        read(file, 0, 4),
        open(file, 1, true, false),
        Op::Getattr { handle: file },
    ] {
        assert_eq!(other.call(&mut host, op), unknown);
    }
    let path = (*b"file").into();
    let resolved = other.call(&mut host, Op::ResolvePath { handle: file, path });
    assert!(resolved.is_ok());
    assert!(other.call(&mut host, read(file, 0, 4)).is_ok());
}
