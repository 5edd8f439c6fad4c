//! What a forwarder lends with the answer to a change of names: what the directory is then.

use super::loans::{BOTH, OVER, chmod, lending, lookup, recalled, unlink};
use super::*;
use tidegate_wire::{Lent, RenameMode};

fn mkdir(parent: Handle, name: &str) -> Op {
    Op::Mkdir {
        parent,
        name: name.as_bytes().into(),
        mode: 0o755,
    }
}

fn attr_of(tester: &mut Tester, host: &mut Host, handle: Handle) -> Option<Box<Attr>> {
    match tester.call(host, Op::Getattr { handle }) {
        Ok(Outcome::Attr(attr)) => Some(Box::new(attr)),
        other => panic!("attributes: {other:?}"),
    }
}

#[test]
fn the_answer_to_a_change_of_names_lends_what_the_directory_is_then() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let root = one.root();
    let lent = one.is_lent(&mut host, mkdir(root, "d")).directory;
    assert!(lent.is_some());
    assert_eq!(lent, attr_of(&mut one, &mut host, root));
    // Also where the change is refused.
    let lent = one.is_lent(&mut host, mkdir(root, "d")).directory;
    assert_eq!(lent, attr_of(&mut one, &mut host, root));
    // Of another directory the forwarder must know the name.
    let Ok(Outcome::Attr(d)) = one.call(&mut host, lookup(root, "d")) else {
        panic!("it is there");
    };
    let Ok(Outcome::Attr(e)) = one.call(&mut host, mkdir(d.handle, "e")) else {
        panic!("it is made");
    };
    let lent = one.is_lent(&mut host, mkdir(e.handle, "unknown")).directory;
    assert_eq!(lent, None);
    assert_eq!(one.is_lent(&mut host, lookup(d.handle, "e")), BOTH);
    let lent = one.is_lent(&mut host, mkdir(e.handle, "known")).directory;
    assert_eq!(lent, attr_of(&mut one, &mut host, e.handle));
    let rename = |new_parent, new_name: &str| Op::Rename {
        parent: e.handle,
        name: Box::from(*b"known"),
        new_parent,
        new_name: new_name.as_bytes().into(),
        mode: RenameMode::Replace,
    };
    let lent = one.is_lent(&mut host, rename(e.handle, "other"));
    assert_eq!(lent.directory, attr_of(&mut one, &mut host, e.handle));
    assert!(one.call(&mut host, mkdir(e.handle, "known")).is_ok());
    // Two directories are not told.
    let lent = one.is_lent(&mut host, rename(root, "other"));
    assert_eq!(lent, Lent::default());
    // Another client's change waits until it is given back.
    host.advance(2 * OVER);
    assert!(one.is_lent(&mut host, mkdir(root, "f")).directory.is_some());
    let request = other.send(&mut host, unlink(root, "absent"), &[]);
    assert_eq!(recalled(&mut host, one.conn), [root]);
    assert!(host.replies.is_empty(), "it waits");
    one.gives_back(&mut host, root);
    let refused = other.take(&mut host, &request).0;
    assert_eq!(refused, Err(Status::Errno(2)));
    // For a while it is lent to nobody, as clients change it in turns.
    let lent = one.is_lent(&mut host, mkdir(root, "g"));
    assert_eq!(lent, Lent::default());
}

#[test]
fn a_directory_that_another_request_changes_is_not_lent_with_a_change() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let root = one.root();
    // Before the change is answered the mode changes; then while it is.
    for turn in 0..2 {
        host.hold_jobs = true;
        one.send(&mut host, mkdir(root, ["d", "e"][turn]), &[]);
        other.send(&mut host, chmod(root), &[]);
        assert_eq!(host.jobs.len(), 2);
        host.jobs.rotate_left(1 - turn);
        host.run_job();
        host.run_job();
        host.hold_jobs = false;
        let replies = std::mem::take(&mut host.replies);
        let own = replies.into_iter().find(|(conn, ..)| *conn == one.conn);
        let lent = own.expect("a reply").1.lent;
        assert_eq!(lent, Lent::default(), "{turn}");
        host.advance(10 * OVER);
    }
    let lent = one.is_lent(&mut host, mkdir(root, "alone"));
    assert!(lent.directory.is_some());
}
