//! Deadlines, cancellation, paths, and calls that nobody needs to see.

use super::*;

#[test]
fn a_deadline_ends_the_call_but_its_reply_slot_stays_taken() {
    let mut rig = Rig::new(1);
    rig.greet(
        0,
        Grant {
            reply_slots: 1,
            ..GRANT
        },
        &[],
    );
    let id = rig.call_with(create(b"a"), Bytes::new(), Some(10 * MS));
    let first = rig.next();
    rig.at(10 * MS);
    assert_eq!(rig.errno(id), 110);
    let next = rig.call(create(b"b"));
    assert!(
        rig.sent.is_empty(),
        "the only reply slot may still be in use"
    );
    // The reply slot's answer is waited for across connections.
    rig.lose(0);
    rig.wake();
    rig.greet(0, GRANT, &[(0, 1)]);
    let again = rig.next();
    assert_eq!(again.request.id, first.request.id);
    rig.ok(&again, Outcome::Attr(attr(file(9))));
    let second = rig.next();
    assert_eq!(second.request.reply_slot.map(|its| its.sequence), Some(2));
    rig.ok(&second, Outcome::Attr(attr(file(10))));
    rig.succeeded(next);
    assert!(rig.core.requests.is_empty());
}

#[test]
fn a_deadline_holds_without_any_forwarder() {
    let mut rig = Rig::new(1);
    let id = rig.call_with(lookup(b"a"), Bytes::new(), Some(10 * MS));
    rig.at(10 * MS);
    assert_eq!(rig.errno(id), 110);
    let late = rig.call_with(lookup(b"a"), Bytes::new(), Some(9 * MS));
    assert_eq!(rig.errno(late), 110);
}

#[test]
fn a_cancelled_call_that_was_not_sent_leaves_no_trace() {
    let mut rig = Rig::new(1);
    rig.greet(
        0,
        Grant {
            credits: 1,
            ..GRANT
        },
        &[],
    );
    rig.call(lookup(b"a"));
    let first = rig.next();
    let id = rig.call(create(b"b"));
    rig.input(Input::Cancel { id });
    assert_eq!(rig.errno(id), 4);
    rig.ok(&first, Outcome::Attr(attr(file(9))));
    assert!(rig.sent.is_empty());
    rig.call(create(b"c"));
    let reply_slot = rig.next().request.reply_slot;
    assert_eq!(
        reply_slot.map(|its| (its.index, its.sequence)),
        Some((0, 1))
    );
}

#[test]
fn an_abandoned_open_that_was_granted_is_closed() {
    let mut rig = Rig::open(1);
    let open = Op::Open {
        handle: file(5),
        open: 1,
        read: true,
        write: true,
    };
    let id = rig.call(open);
    let sent = rig.next();
    rig.input(Input::Cancel { id });
    assert_eq!(rig.errno(id), 4);
    rig.ok(&sent, Outcome::Attr(attr(file(5))));
    let close = rig.next();
    let wanted = Op::Close {
        handle: file(5),
        open: 1,
    };
    assert_eq!(close.request.op, wanted);
    rig.ok(&close, Outcome::Done);
    assert!(rig.core.opens.is_empty());
    assert!(rig.core.requests.is_empty());
}

#[test]
fn a_file_that_is_not_found_is_reached_by_its_path() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"dir");
    let id = rig.call(Op::Create {
        parent: file(5),
        name: Box::from(*b"new"),
        mode: 0o600,
        exclusive: true,
    });
    let first = rig.next();
    rig.fail(&first, Status::UnknownHandle);
    let resolve = rig.next();
    let wanted = Op::ResolvePath {
        handle: file(5),
        path: Box::from(*b"dir"),
    };
    assert_eq!(resolve.request.op, wanted);
    rig.ok(&resolve, Outcome::Attr(attr(file(5))));
    let again = rig.next();
    assert_eq!(
        (again.request.id, again.request.reply_slot),
        (first.request.id, first.request.reply_slot)
    );
    rig.ok(&again, Outcome::Attr(attr(file(6))));
    rig.succeeded(id);
    // The new file's path is known by now.
    rig.call(getattr(file(6)));
    let sent = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    let resolve = rig.next();
    assert!(matches!(resolve.request.op, Op::ResolvePath { path, .. } if *path == *b"dir/new"));
}

#[test]
fn a_file_is_looked_for_at_its_other_names_too() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"first");
    rig.name_file(file(5), b"last");
    let id = rig.call(getattr(file(5)));
    let sent = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    for name in ["last", "first"] {
        let resolve = rig.next();
        let op = &resolve.request.op;
        let named = matches!(op, Op::ResolvePath { path, .. } if **path == *name.as_bytes());
        assert!(named, "{op:?} is not of {name}");
        match name {
            "last" => rig.fail(&resolve, Status::Errno(2)),
            _ => rig.ok(&resolve, Outcome::Attr(attr(file(5)))),
        }
    }
    let again = rig.next();
    rig.ok(&again, Outcome::Attr(attr(file(5))));
    rig.succeeded(id);
}

#[test]
fn a_forwarder_that_cannot_look_does_not_say_that_a_file_is_gone() {
    const ENOTCONN: u16 = 107;
    for (last, told) in [(ENOTCONN, ENOTCONN), (116, ENOTCONN)] {
        let mut rig = Rig::open(1);
        rig.name_file(file(5), b"first");
        rig.name_file(file(5), b"last");
        let id = rig.call(getattr(file(5)));
        let sent = rig.next();
        rig.fail(&sent, Status::UnknownHandle);
        let resolve = rig.next();
        rig.fail(&resolve, Status::Errno(ENOTCONN));
        let resolve = rig.next();
        rig.fail(&resolve, Status::Errno(last));
        assert_eq!(rig.errno(id), i32::from(told));
    }
}

#[test]
fn one_path_is_told_once_for_all_that_wait() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"f");
    let ids = [rig.call(getattr(file(5))), rig.call(getattr(file(5)))];
    let sent = [rig.next(), rig.next()];
    sent.iter()
        .for_each(|sent| rig.fail(sent, Status::UnknownHandle));
    assert_eq!(rig.sent.len(), 1);
    let resolve = rig.next();
    rig.fail(&resolve, Status::Errno(2));
    assert_eq!(ids.map(|id| rig.errno(id)), [116, 116]);
}

#[test]
fn a_file_without_a_known_path_is_stale() {
    let mut rig = Rig::open(1);
    let id = rig.call(getattr(file(5)));
    let sent = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    assert_eq!(rig.errno(id), 116);
}

#[test]
fn a_forwarder_that_cannot_ask_for_a_path_is_left_when_it_does_not_serve() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"f");
    let id = rig.call(getattr(file(5)));
    let sent = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    let resolve = rig.next();
    assert!(matches!(resolve.request.op, Op::ResolvePath { .. }));
    rig.fail(&resolve, Status::NotMySeat);
    // What waited for the path asks who serves its seat.
    let again = rig.next();
    assert_eq!(again.request.id, sent.request.id);
    rig.ok(&again, Outcome::Attr(attr(file(5))));
    rig.succeeded(id);
}

#[test]
fn reaching_does_not_go_on_for_ever() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"f");
    let id = rig.call(getattr(file(5)));
    for _ in 0..4 {
        let sent = rig.next();
        rig.fail(&sent, Status::UnknownHandle);
        let resolve = rig.next();
        rig.ok(&resolve, Outcome::Attr(attr(file(5))));
    }
    let sent = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    assert_eq!(rig.errno(id), 116);
}

#[test]
fn every_new_holder_of_a_seat_may_be_told_a_path() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"f");
    let id = rig.call(getattr(file(5)));
    for _ in 0..9 {
        let sent = rig.next();
        rig.fail(&sent, Status::UnknownHandle);
        let resolve = rig.next();
        rig.ok(&resolve, Outcome::Attr(attr(file(5))));
        rig.lose(0);
        rig.at(rig.now + 1_000_000_000);
        rig.greet(0, GRANT, &[(0, 1)]);
    }
    let sent = rig.next();
    rig.ok(&sent, Outcome::Attr(attr(file(5))));
    rig.succeeded(id);
}

#[test]
fn a_file_that_moves_while_it_is_looked_for_is_found() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"before");
    let id = rig.call(getattr(file(5)));
    let sent = rig.next();
    let moved = rig.call(Op::Rename {
        parent: file(ROOT),
        name: Box::from(*b"before"),
        new_parent: file(ROOT),
        new_name: Box::from(*b"after"),
        mode: crate::wire::RenameMode::Replace,
    });
    let rename = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    let mut tried = Vec::new();
    let mut look = |rig: &mut Rig| {
        let resolve = rig.next();
        let Op::ResolvePath { path, .. } = &resolve.request.op else {
            panic!("{:?} is no path", resolve.request.op);
        };
        tried.push(String::from_utf8_lossy(path).into_owned());
        resolve
    };
    let resolve = look(&mut rig);
    rig.fail(&resolve, Status::Errno(2));
    let resolve = look(&mut rig);
    rig.ok(&rename, Outcome::Removed(None));
    rig.succeeded(moved);
    // It was looked for there before the rename was carried out.
    rig.fail(&resolve, Status::Errno(2));
    let resolve = look(&mut rig);
    rig.ok(&resolve, Outcome::Attr(attr(file(5))));
    assert_eq!(tried, ["before", "after", "after"]);
    let again = rig.next();
    rig.ok(&again, Outcome::Attr(attr(file(5))));
    rig.succeeded(id);
}

#[test]
fn a_forgotten_file_has_no_path_and_an_open_one_keeps_it() {
    let mut rig = Rig::open(1);
    rig.name_file(file(5), b"f");
    rig.open_file(file(5));
    let removed = rig.call(Op::Unlink {
        parent: file(ROOT),
        name: Box::from(*b"f"),
    });
    let sent = rig.next();
    rig.ok(&sent, Outcome::Removed(Some(file(5))));
    rig.succeeded(removed);
    rig.input(Input::Forget { handle: file(5) });
    rig.call(getattr(file(5)));
    let sent = rig.next();
    rig.fail(&sent, Status::UnknownHandle);
    assert!(matches!(rig.next().request.op, Op::ResolvePath { path, .. } if *path == *b"f"));
}

#[test]
fn status_asks_one_forwarder_and_no_other() {
    let mut rig = Rig::open(2);
    let id = rig.call(Op::Status);
    let sent = rig.next();
    assert_eq!(sent.forwarder, 0);
    rig.ok(&sent, Outcome::Text(Box::from(*b"{}")));
    assert_eq!(rig.succeeded(id), Outcome::Text(Box::from(*b"{}")));
    rig.lose(0);
    let id = rig.call(Op::Status);
    rig.lose(0);
    assert_eq!(rig.errno(id), 111);
}

#[test]
fn calls_that_cannot_be_sent_are_refused_here() {
    let mut rig = Rig::open(1);
    let long = [b'x'; 256];
    let far = u64::MAX - 5;
    let cases: [(Op, i32); 9] = [
        (lookup(&long), 36),
        (lookup(b""), 2),
        (lookup(b"a/b"), 22),
        (read(file(3), far, 10), 22),
        (write(file(3), far, 10), 27),
        (write(file(3), 0, 10), 22),
        (Op::Bye, 22),
        (
            set_lock(file(3), lock(LockKind::Shared, 1, 5, 4), false),
            22,
        ),
        (
            Op::Access {
                handle: file(3),
                mask: 8,
            },
            22,
        ),
    ];
    for (op, errno) in cases {
        let text = format!("{op:?}");
        let id = rig.call(op);
        assert_eq!(rig.errno(id), errno, "{text}");
    }
    let id = rig.call_with(Op::Append { handle: file(3) }, bytes(8193), None);
    assert_eq!(rig.errno(id), 90);
    assert!(rig.sent.is_empty());
}
