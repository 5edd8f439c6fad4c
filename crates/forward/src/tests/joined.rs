//! Further connections of a session: who may join, where replies go, and that all end together.

use super::*;
use crate::host::SESSION_OVER;

const EPROTO: u16 = 71;
const EUSERS: u16 = 87;

fn serving(world: &mut World, connections: u16, joined_max: u32) -> Host {
    let mut config = world.config(0, 1);
    config.connections = connections;
    config.joined_max = joined_max;
    let mut host = Host::new(world, config);
    host.give_seat(world, 0);
    host
}

fn join(host: &mut Host, client: u64, incarnation: u64, uid: u32) -> (ConnId, Option<u16>) {
    let conn = host.connect(peer(uid));
    let hello = Hello {
        joins: true,
        ..hello(client, incarnation)
    };
    host.receive(conn, plain(u64::MAX - 1, Op::Hello(hello)), &[]);
    let (to, reply, _) = host.replies.pop_front().expect("a reply");
    assert_eq!(to, conn);
    match reply.result {
        Ok(_) => (conn, None),
        refused => (conn, Some(errno(refused))),
    }
}

fn reason(host: &Host, conn: ConnId) -> Option<&str> {
    let mut closed = host.closed.iter().filter(|(closed, _)| *closed == conn);
    closed.next().map(|(_, reason)| &**reason)
}

#[test]
fn replies_go_where_the_request_came_from() {
    let mut world = World::new();
    let mut host = serving(&mut world, 3, 8);
    let mut tester = Tester::new(&mut host, 7);
    assert_eq!(tester.connect(&mut host, peer(0)).connections, 3);
    let first = tester.conn;
    let (second, refused) = join(&mut host, 7, 2, 0);
    assert_eq!(refused, None);
    for conn in [second, first, second] {
        tester.conn = conn;
        tester.send(&mut host, Op::Ping, &[]);
        assert_eq!(host.replies.pop_front().map(|(to, ..)| to), Some(conn));
    }
    tester.conn = first;
    let Ok(Outcome::Text(text)) = tester.call(&mut host, Op::Status) else {
        panic!("no status");
    };
    let text = alloc::string::String::from_utf8_lossy(&text);
    assert!(text.contains("\"connections\":2,\"unanswered\""), "{text}");
}

#[test]
fn a_connection_that_does_not_belong_is_refused_and_nothing_else_is() {
    let mut world = World::new();
    let mut host = serving(&mut world, 2, 1);
    let mut tester = Tester::new(&mut host, 7);
    let mut other = Tester::new(&mut host, 8);
    for (client, incarnation, uid, expected) in [
        (7, 2, 0, EPROTO),
        (7, 0, 0, EPROTO),
        (9, 1, 0, EPROTO),
        (7, 1, 1000, EPROTO),
    ] {
        let (conn, refused) = join(&mut host, client, incarnation, uid);
        assert_eq!(refused, Some(expected));
        assert!(reason(&host, conn).is_some());
    }
    assert_eq!(join(&mut host, 7, 1, 0).1, None);
    let third = join(&mut host, 7, 1, 0).1;
    assert_eq!(third, Some(EUSERS), "a session may have two");
    let elsewhere = join(&mut host, 8, 1, 0).1;
    assert_eq!(
        elsewhere,
        Some(EUSERS),
        "one of all sessions may be further"
    );
    for tester in [&mut tester, &mut other] {
        tester.call(&mut host, Op::Ping).expect("alive");
    }
}

#[test]
fn connections_of_a_session_end_together_and_leave_room() {
    let mut world = World::new();
    let mut host = serving(&mut world, 3, 2);
    let mut tester = Tester::new(&mut host, 7);
    for (incarnation, lost) in [(1, 0), (2, 1), (3, 2)] {
        let (second, refused) = join(&mut host, 7, incarnation, 0);
        assert_eq!(refused, None, "those before have left their places");
        let (third, refused) = join(&mut host, 7, incarnation, 0);
        assert_eq!(refused, None);
        let all = [tester.conn, second, third];
        host.tell(Input::Closed { conn: all[lost] });
        for conn in all {
            let expected = (conn != all[lost]).then_some(SESSION_OVER);
            assert_eq!(reason(&host, conn), expected);
        }
        assert!(!tester.connect(&mut host, peer(0)).fresh);
    }
    let (second, _) = join(&mut host, 7, 4, 0);
    tester.call(&mut host, Op::Bye).expect("heard");
    assert_eq!(reason(&host, second), Some(SESSION_OVER));
    assert!(tester.connect(&mut host, peer(0)).fresh);
}

#[test]
fn a_newer_session_gets_the_replies_of_all_older_connections() {
    let mut world = World::new();
    let mut host = serving(&mut world, 2, 2);
    let mut tester = Tester::new(&mut host, 7);
    let (second, _) = join(&mut host, 7, 1, 0);
    host.hold_jobs = true;
    let first = core::mem::replace(&mut tester.conn, second);
    let request = tester.send(&mut host, create(tester.root(), "file", true), &[]);
    tester.connect(&mut host, peer(0));
    assert!(reason(&host, first).is_some() && reason(&host, second).is_some());
    // Repeated on the new session's further connection, it is answered there.
    let (further, refused) = join(&mut host, 7, 2, 0);
    assert_eq!(refused, None);
    host.receive(
        further,
        Request {
            replay: true,
            ..request
        },
        &[],
    );
    host.run_job();
    let (to, reply, _) = host.replies.pop_front().expect("a reply");
    assert!(to == further && reply.result.is_ok());
}

#[test]
fn breaking_the_rules_on_one_ends_all_and_no_other_session() {
    let mut world = World::new();
    let mut host = serving(&mut world, 2, 2);
    let tester = Tester::new(&mut host, 7);
    let mut other = Tester::new(&mut host, 8);
    let (second, _) = join(&mut host, 7, 1, 0);
    host.receive(second, plain(5, Op::Hello(hello(7, 9))), &[]);
    assert_eq!(reason(&host, second), Some("a second hello"));
    assert_eq!(reason(&host, tester.conn), Some(SESSION_OVER));
    other.call(&mut host, Op::Ping).expect("alive");
}

#[test]
fn a_write_on_one_is_read_on_another() {
    let mut world = World::new();
    let mut host = serving(&mut world, 2, 2);
    let mut tester = Tester::new(&mut host, 7);
    let file = tester.create(&mut host, "file");
    let (second, _) = join(&mut host, 7, 1, 0);
    let first = core::mem::replace(&mut tester.conn, second);
    tester.send(&mut host, write(file, 0, 4096), &[9; 4096]);
    let (to, reply, _) = host.replies.pop_front().expect("a reply");
    assert!(to == second && reply.result.is_ok());
    tester.conn = first;
    tester.send(&mut host, read(file, 0, 4096), &[]);
    let (to, _, payload) = host.replies.pop_front().expect("a reply");
    assert_eq!((to, payload), (first, alloc::vec![9; 4096]));
}

#[test]
fn one_user_has_a_part_of_the_further_connections() {
    let mut world = World::new();
    let mut host = serving(&mut world, 8, 8);
    Tester::of(&mut host, 7, peer(1000));
    Tester::of(&mut host, 8, peer(1001));
    for refused in [None, None, Some(EUSERS)] {
        assert_eq!(join(&mut host, 7, 1, 1000).1, refused);
    }
    assert_eq!(join(&mut host, 8, 1, 1001).1, None);
    Tester::new(&mut host, 9);
    for _ in 0..5 {
        assert_eq!(join(&mut host, 9, 1, 0).1, None);
    }
    assert_eq!(join(&mut host, 9, 1, 0).1, Some(EUSERS));
}
