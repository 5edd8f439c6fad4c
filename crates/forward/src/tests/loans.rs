//! What a forwarder lends, and that changes wait until it is given back.

use super::*;
use tidegate_wire::{Lent, RenameMode, SetAttr};

pub(super) const LOAN: u64 = SECOND;
/// After so long a loan is over for sure.
pub(super) const OVER: u64 = LOAN + LOAN / 8;
pub(super) const BOTH: Lent = Lent {
    asked: true,
    found: true,
    directory: None,
};
pub(super) const ASKED: Lent = Lent {
    asked: true,
    found: false,
    directory: None,
};

pub(super) fn lending(world: &mut World) -> Host {
    let mut config = world.config(0, 1);
    config.loan_ns = LOAN;
    let mut host = Host::new(world, config);
    host.give_seat(world, 0);
    host
}

pub(super) fn lookup(parent: Handle, name: &str) -> Op {
    let name = name.as_bytes().into();
    Op::Lookup { parent, name }
}

pub(super) fn unlink(parent: Handle, name: &str) -> Op {
    let name = name.as_bytes().into();
    Op::Unlink { parent, name }
}

pub(super) fn chmod(handle: Handle) -> Op {
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    Op::Setattr { handle, set }
}

fn open(handle: Handle, open: u64, write: bool) -> Op {
    Op::Open {
        handle,
        open,
        read: true,
        write,
    }
}

impl Tester {
    /// What a look is lent.
    pub(super) fn is_lent(&mut self, host: &mut Host, op: Op) -> Lent {
        let request = self.send(host, op, &[]);
        let (conn, reply, _) = host.replies.pop_front().expect("a reply");
        assert_eq!((conn, reply.id), (self.conn, request.id));
        reply.lent
    }

    pub(super) fn gives_back(&mut self, host: &mut Host, handle: Handle) {
        let request = self.request(Op::GiveBack { handle }, 0);
        host.receive(self.conn, request.clone(), &[]);
        let at = host
            .replies
            .iter()
            .position(|(_, reply, _)| reply.id == request.id);
        let (_, reply, _) = host.replies.remove(at.expect("a reply")).expect("found");
        assert_eq!(reply.result, Ok(Outcome::Recalled(None)));
    }
}

/// The files that the forwarder recalls from this connection.
pub(super) fn recalled(host: &mut Host, conn: ConnId) -> Vec<Handle> {
    let replies = std::mem::take(&mut host.replies);
    let (notices, others): (Vec<_>, Vec<_>) = replies
        .into_iter()
        .partition(|(to, reply, _)| *to == conn && reply.id == frame::NOTICE);
    host.replies = others.into();
    let files = notices.into_iter().map(|(_, reply, _)| match reply.result {
        Ok(Outcome::Recalled(Some(file))) => file,
        other => panic!("another notice: {other:?}"),
    });
    files.collect()
}

#[test]
fn names_and_attributes_are_lent() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let mut tester = Tester::new(&mut host, 7);
    let granted = tester.connect(&mut host, peer(0));
    assert_eq!(granted.loan_ms, 1000);
    let (root, file) = (tester.root(), tester.create(&mut host, "a"));
    assert_eq!(tester.is_lent(&mut host, lookup(root, "a")), BOTH);
    assert_eq!(tester.is_lent(&mut host, lookup(root, "absent")), ASKED);
    let handle = file;
    assert_eq!(tester.is_lent(&mut host, Op::Getattr { handle }), ASKED);
    assert_eq!(tester.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
    let name: Box<[u8]> = Box::from(*b"user.absent");
    let getxattr = Op::Getxattr { handle, name };
    assert_eq!(tester.is_lent(&mut host, getxattr), ASKED);
}

#[test]
fn nothing_is_lent_to_others_nor_where_another_forwarder_could_change_it() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let mut own = Tester::new(&mut host, 7);
    own.create(&mut host, "a");
    let mut user = Tester::of(&mut host, 8, peer(1000));
    assert_eq!(user.connect(&mut host, peer(1000)).loan_ms, 0);
    let look = lookup(user.root(), "a");
    assert_eq!(user.is_lent(&mut host, look), Lent::default());
    let mut config = world.config(0, 2);
    config.loan_ns = LOAN;
    let mut host = Host::new(&world, config);
    let mut tester = Tester::new(&mut host, 9);
    assert_eq!(tester.connect(&mut host, peer(0)).loan_ms, 0);
}

#[test]
fn a_change_waits_until_what_is_lent_is_given_back() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let (root, file) = (one.root(), one.create(&mut host, "a"));
    assert_eq!(one.is_lent(&mut host, lookup(root, "a")), BOTH);
    let request = other.send(&mut host, unlink(root, "a"), &[]);
    let mut files = recalled(&mut host, one.conn);
    files.sort_unstable();
    let mut want = vec![root, file];
    want.sort_unstable();
    assert_eq!(files, want);
    assert!(host.replies.is_empty(), "it waits");
    // Meanwhile everybody sees what was there, and nobody is lent it.
    assert_eq!(other.is_lent(&mut host, lookup(root, "a")), Lent::default());
    one.gives_back(&mut host, root);
    assert!(host.replies.is_empty(), "it waits");
    one.gives_back(&mut host, file);
    let (result, _) = other.take(&mut host, &request);
    assert_eq!(result, Ok(Outcome::Removed(Some(file))));
}

#[test]
fn a_silent_client_keeps_a_change_waiting_until_its_loan_is_over() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
    host.advance(LOAN / 2);
    let request = other.send(&mut host, chmod(handle), &[]);
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    host.advance(OVER - LOAN / 2 - 1);
    assert!(host.replies.is_empty(), "it waits");
    host.advance(1);
    assert!(other.take(&mut host, &request).0.is_ok());
}

/// A loan that was given again ends when that does, whatever was lent since.
#[test]
fn a_loan_given_again_keeps_a_change_waiting_no_longer() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    let later = one.create(&mut host, "b");
    for handle in [handle, handle, later] {
        assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
        host.advance(LOAN / 2);
    }
    // 1.5 s have passed: the first loan was given again after 0.5 s, and ends after 1.625 s.
    let request = other.send(&mut host, chmod(handle), &[]);
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    host.advance(LOAN / 8);
    assert!(other.take(&mut host, &request).0.is_ok());
}

#[test]
fn an_own_change_waits_for_others_only() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let mut one = Tester::new(&mut host, 7);
    let (root, handle) = (one.root(), one.create(&mut host, "a"));
    assert_eq!(one.is_lent(&mut host, lookup(root, "a")), BOTH);
    assert!(one.call(&mut host, chmod(handle)).is_ok());
    assert!(one.call(&mut host, unlink(root, "a")).is_ok());
    assert!(recalled(&mut host, one.conn).is_empty());
}

#[test]
fn a_look_that_began_before_a_change_ended_is_not_lent() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let (root, handle) = (one.root(), one.create(&mut host, "a"));
    host.hold_jobs = true;
    one.send(&mut host, lookup(root, "a"), &[]);
    other.send(&mut host, chmod(handle), &[]);
    one.send(&mut host, Op::Listxattr { handle }, &[]);
    // The change is done first.
    host.jobs.rotate_left(1);
    host.run_job();
    host.replies.pop_front().expect("the change's reply");
    // A name that may lead elsewhere by now says nothing of the file, either.
    let rename = Op::Rename {
        parent: root,
        name: Box::from(*b"a"),
        new_parent: root,
        new_name: Box::from(*b"b"),
        mode: RenameMode::Replace,
    };
    let mut lent = || {
        host.run_job();
        host.replies.pop_front().expect("a reply").1.lent
    };
    assert_eq!(lent(), Lent::default(), "attributes");
    assert_eq!(lent(), ASKED, "the name alone");
    one.send(&mut host, lookup(root, "a"), &[]);
    other.send(&mut host, rename, &[]);
    assert_eq!(recalled(&mut host, one.conn), [root]);
    one.gives_back(&mut host, root);
    host.jobs.rotate_left(1);
    host.run_job();
    host.replies.pop_front().expect("the change's reply");
    host.run_job();
    let (_, reply, _) = host.replies.pop_front().expect("a reply");
    assert_eq!(reply.lent, Lent::default());
    host.hold_jobs = false;
    assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
}

#[test]
fn a_file_that_is_open_for_writing_is_not_lent() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    let look = || Op::Listxattr { handle };
    assert!(other.call(&mut host, open(handle, 1, false)).is_ok());
    assert_eq!(one.is_lent(&mut host, look()), ASKED);
    let request = other.send(&mut host, open(handle, 2, true), &[]);
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    one.gives_back(&mut host, handle);
    assert!(other.take(&mut host, &request).0.is_ok());
    // Writes have nothing to wait for.
    assert_eq!(one.is_lent(&mut host, look()), Lent::default());
    assert!(
        other
            .call_with(&mut host, write(handle, 0, 3), b"abc")
            .0
            .is_ok()
    );
    assert!(other.call(&mut host, Op::Close { handle, open: 2 }).is_ok());
    host.advance(2 * SECOND);
    assert_eq!(one.is_lent(&mut host, look()), ASKED);
}

#[test]
fn a_write_by_no_open_waits_for_the_writer_s_own_loan_too() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let mut one = Tester::new(&mut host, 7);
    let handle = one.create(&mut host, "a");
    assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
    let request = one.send(&mut host, write(handle, 0, 3), b"abc");
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    assert!(host.replies.is_empty(), "it waits");
    one.gives_back(&mut host, handle);
    assert!(one.take(&mut host, &request).0.is_ok());
}

/// Attributes change with names: where the forwarder does not know the only one, it could not
/// recall them in time.
#[test]
fn attributes_are_lent_of_files_whose_only_name_is_known() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let (parent, handle) = (one.root(), one.create(&mut host, "a"));
    let look = || Op::Getattr { handle };
    assert_eq!(one.is_lent(&mut host, look()), Lent::default());
    assert_eq!(one.is_lent(&mut host, lookup(parent, "a")), BOTH);
    assert_eq!(one.is_lent(&mut host, look()), ASKED);
    // The name is known for longer than it is lent.
    host.advance(2 * OVER);
    assert_eq!(one.is_lent(&mut host, look()), ASKED);
    let rename = |name: &str, new_name: &str| Op::Rename {
        parent,
        name: name.as_bytes().into(),
        new_parent: parent,
        new_name: new_name.as_bytes().into(),
        mode: RenameMode::Replace,
    };
    let request = other.send(&mut host, rename("a", "b"), &[]);
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    one.gives_back(&mut host, handle);
    assert!(other.take(&mut host, &request).0.is_ok());
    host.advance(10 * SECOND);
    assert_eq!(one.is_lent(&mut host, look()), Lent::default());
    assert_eq!(one.is_lent(&mut host, lookup(parent, "b")), BOTH);
    let name: Box<[u8]> = Box::from(*b"c");
    let link = Op::Link {
        handle,
        parent,
        name,
    };
    assert!(one.call(&mut host, link).is_ok());
    assert_eq!(one.is_lent(&mut host, lookup(parent, "b")), ASKED);
    assert_eq!(one.is_lent(&mut host, look()), Lent::default());
}

#[test]
fn a_look_that_began_before_a_writer_closed_is_not_lent() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    assert!(other.call(&mut host, open(handle, 2, true)).is_ok());
    host.hold_jobs = true;
    one.send(&mut host, Op::Listxattr { handle }, &[]);
    other.send(&mut host, write(handle, 0, 3), b"abc");
    other.send(&mut host, Op::Close { handle, open: 2 }, &[]);
    // The write is still under way.
    one.send(&mut host, Op::Listxattr { handle }, &[]);
    let mut lent = Vec::new();
    while !host.jobs.is_empty() {
        if lent.is_empty() {
            // The write is done last.
            host.jobs
                .rotate_left(usize::from(matches!(host.jobs[0].1, Job::Io { .. })));
        }
        host.run_job();
        let replies = std::mem::take(&mut host.replies);
        let looks = replies.into_iter().filter(|(conn, ..)| *conn == one.conn);
        lent.extend(looks.map(|(_, reply, _)| reply.lent));
    }
    assert_eq!(lent, [Lent::default(), Lent::default()]);
    host.hold_jobs = false;
    assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
}

#[test]
fn all_that_wait_go_on_together() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
    for index in 0..60 {
        // Of no bytes: it ends when it begins.
        let mut request = other.request(write(handle, 0, 0), 0);
        let sequence = 1;
        request.reply_slot = Some(ReplySlot { index, sequence });
        host.receive(other.conn, request, &[]);
    }
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    assert!(host.replies.is_empty());
    one.gives_back(&mut host, handle);
    assert_eq!(host.replies.len(), 60);
}

#[test]
fn what_clients_change_in_turns_is_lent_to_nobody_for_a_while() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    for pause in [SECOND, 2 * SECOND, 4 * SECOND] {
        assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
        let request = other.send(&mut host, chmod(handle), &[]);
        one.gives_back(&mut host, handle);
        recalled(&mut host, one.conn);
        assert!(other.take(&mut host, &request).0.is_ok());
        host.advance(pause - 1);
        assert_eq!(
            one.is_lent(&mut host, Op::Listxattr { handle }),
            Lent::default()
        );
        host.advance(1);
    }
    host.advance(60 * SECOND);
    let mut one = Tester::new(&mut host, 9);
    assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
}

#[test]
fn a_client_that_ends_or_comes_anew_keeps_nobody_waiting() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let handle = one.create(&mut host, "a");
    for anew in [true, false] {
        host.advance(10 * SECOND);
        assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
        let request = other.send(&mut host, chmod(handle), &[]);
        recalled(&mut host, one.conn);
        assert!(host.replies.is_empty(), "it waits");
        match anew {
            true => drop(host.connect(peer(0))),
            false => drop(one.send(&mut host, Op::Bye, &[])),
        }
        if anew {
            // Its reply comes before that of the hello.
            let hello = Op::Hello(hello(7, 99));
            let conn = host.connect(peer(0));
            one.conn = conn;
            one.requests += 1;
            host.receive(conn, plain(one.requests, hello), &[]);
        }
        let done = host
            .replies
            .iter()
            .any(|(_, reply, _)| reply.id == request.id);
        assert!(done, "anew: {anew}");
        host.replies.clear();
    }
}

#[test]
fn a_change_of_an_ended_client_that_waits_is_dropped() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let (root, file) = (one.root(), one.create(&mut host, "a"));
    assert_eq!(one.is_lent(&mut host, lookup(root, "a")), BOTH);
    other.send(&mut host, unlink(root, "a"), &[]);
    other.send(&mut host, Op::Bye, &[]);
    host.replies.clear();
    one.gives_back(&mut host, root);
    one.gives_back(&mut host, file);
    assert_eq!(one.find(&mut host, "a"), file, "it is still there");
}

#[test]
fn what_is_given_back_needs_no_credit() {
    let mut world = World::new();
    let mut config = world.config(0, 1);
    (config.loan_ns, config.credits) = (LOAN, 1);
    let mut host = Host::new(&world, config);
    host.give_seat(&mut world, 0);
    let mut one = Tester::new(&mut host, 7);
    let handle = one.create(&mut host, "a");
    host.hold_jobs = true;
    one.send(&mut host, Op::Listxattr { handle }, &[]);
    one.gives_back(&mut host, handle);
    assert!(host.closed.is_empty());
}

#[test]
fn a_lost_seat_sends_those_who_wait_elsewhere() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let (root, handle) = (one.root(), one.create(&mut host, "a"));
    assert_eq!(one.is_lent(&mut host, lookup(root, "a")), BOTH);
    let request = other.send(&mut host, chmod(handle), &[]);
    assert_eq!(recalled(&mut host, one.conn), [handle]);
    host.tell(Input::SeatLost { seat: 0 });
    assert_eq!(other.take(&mut host, &request).0, Err(Status::NotMySeat));
}

/// What the predecessor of a forwarder has lent is waited for: until its clients have come, or
/// until its time is over.
#[test]
fn a_successor_waits_for_what_its_predecessor_has_lent() {
    for comes in [true, false] {
        let mut world = World::new();
        let mut host = lending(&mut world);
        let mut one = Tester::new(&mut host, 7);
        let handle = one.create(&mut host, "a");
        assert_eq!(one.is_lent(&mut host, Op::Listxattr { handle }), ASKED);
        let mut host = lending(&mut world);
        let mut other = Tester::new(&mut host, 8);
        let request = other.send(&mut host, chmod(handle), &[]);
        assert!(host.replies.is_empty(), "it waits");
        // Reads do not.
        assert_eq!(other.find(&mut host, "a"), handle);
        match comes {
            true => {
                let conn = host.connect(peer(0));
                host.receive(conn, plain(1, Op::Hello(hello(7, 9))), &[]);
                host.replies.retain(|(to, ..)| *to != conn);
            }
            false => host.advance(OVER),
        }
        assert!(other.take(&mut host, &request).0.is_ok(), "comes: {comes}");
    }
}

fn list(handle: Handle, plus: bool) -> Op {
    Op::Readdir {
        handle,
        cookie: 0,
        bytes_max: 4096,
        plus,
        xattrs: Vec::new(),
    }
}

impl Tester {
    /// The entries of a listing that are lent, and what else is.
    fn listed(&mut self, host: &mut Host, op: Op) -> (Vec<Handle>, Lent) {
        let request = self.send(host, op, &[]);
        let (conn, reply, _) = host.replies.pop_front().expect("a reply");
        assert_eq!((conn, reply.id), (self.conn, request.id));
        let Ok(Outcome::Entries(listing)) = reply.result else {
            panic!("no listing: {:?}", reply.result);
        };
        let lent = listing.entries.iter().filter(|entry| entry.lent);
        let files = lent.filter_map(|entry| Some(entry.attr?.handle)).collect();
        (files, reply.lent)
    }
}

#[test]
fn a_listing_with_attributes_lends_the_directory_and_files_with_one_name() {
    let mut world = World::new();
    let mut host = lending(&mut world);
    let (mut one, mut other) = (Tester::new(&mut host, 7), Tester::new(&mut host, 8));
    let root = one.root();
    let (a, b) = (one.create(&mut host, "a"), one.create(&mut host, "b"));
    let linked = one.create(&mut host, "c");
    let link = Op::Link {
        handle: linked,
        parent: root,
        name: Box::from(*b"d"),
    };
    one.send(&mut host, link, &[]);
    one.send(&mut host, open(b, 1, true), &[]);
    host.replies.clear();
    let nothing = (Vec::new(), Lent::default());
    assert_eq!(one.listed(&mut host, list(root, false)), nothing);
    assert_eq!(one.listed(&mut host, list(root, true)), (vec![a], ASKED));
    // What was lent is recalled as what a look-up lends is.
    let request = other.send(&mut host, unlink(root, "a"), &[]);
    let mut files = recalled(&mut host, one.conn);
    files.sort_unstable();
    let mut want = vec![root, a];
    want.sort_unstable();
    assert_eq!(files, want);
    assert!(host.replies.is_empty(), "it waits");
    // Meanwhile nothing of the directory is lent.
    assert_eq!(other.listed(&mut host, list(root, true)), nothing);
    one.gives_back(&mut host, root);
    one.gives_back(&mut host, a);
    let (_, reply, _) = host.replies.pop_front().expect("a reply");
    assert_eq!((reply.id, reply.result.is_ok()), (request.id, true));
    // Nobody whom the forwarder does not trust is lent anything.
    let mut user = Tester::of(&mut host, 9, peer(1000));
    let op = list(user.root(), true);
    assert_eq!(user.listed(&mut host, op).1, Lent::default());
}
