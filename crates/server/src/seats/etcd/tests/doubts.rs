//! Answers of etcd that do not come: what was asked for may have been done or not.

use super::*;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Passes on what goes to a server and what comes back, but for one answer.
struct Between {
    endpoint: String,
    /// The next answer that says that something was changed is not passed on.
    swallows: Arc<AtomicBool>,
}

impl Between {
    fn start(server: &Server) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (swallows, port) = (Arc::new(AtomicBool::new(false)), server.ports[0]);
        let between = Between {
            endpoint: format!("http://{address}"),
            swallows: swallows.clone(),
        };
        // They end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), swallows) = (client, swallows.clone()) else {
                    return;
                };
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                std::thread::spawn(move || pass_on(client, server, &swallows));
            }
        });
        between
    }
}

fn pass_on(mut client: TcpStream, mut server: TcpStream, swallows: &AtomicBool) {
    let mut asks = client.try_clone().expect("a descriptor");
    let mut heard = server.try_clone().expect("a descriptor");
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut asks, &mut heard);
        let _ = heard.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 1 << 16];
    while let Ok(len @ 1..) = server.read(&mut bytes) {
        let changed = String::from_utf8_lossy(&bytes[..len]).contains("response_put");
        if changed && swallows.swap(false, Ordering::SeqCst) {
            break;
        }
        if client.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Has the owner ask until it has its seat, while a stand-in that holds another goes on.
fn owner_gets_its_seat(owner: &mut LeasedSeats, stand_in: &mut LeasedSeats) {
    owner.want(0).expect("etcd runs");
    for _ in 0..3 {
        assert!(stand_in.renew().until.is_some(), "its own seat goes on");
        if try_take(owner, 0).is_some() {
            return;
        }
    }
    panic!("a seat that nobody serves is nobody's for good");
}

#[test]
fn a_seat_that_was_taken_without_an_answer_does_not_stay_taken() {
    let Some(server) = Server::start() else {
        return;
    };
    let between = Between::start(&server);
    let (scratch, etcd) = (Scratch::new("etcd-doubt"), server.options());
    let mut owner = forwarder(&scratch, &etcd, 0);
    let through = EtcdOptions {
        endpoints: vec![between.endpoint.clone()],
        ..etcd
    };
    let mut stand_in = forwarder(&scratch, &through, 1);
    taken(&mut stand_in, 1);
    between.swallows.store(true, Ordering::SeqCst);
    let tried = stand_in.try_take(0);
    assert!(!matches!(tried, Ok(Tried::Taken(..))), "it cannot know");
    assert!(!between.swallows.load(Ordering::SeqCst), "it was taken");
    owner_gets_its_seat(&mut owner, &mut stand_in);
}

#[test]
fn a_seat_that_was_let_go_unheard_does_not_stay_taken() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-unheard"), server.options());
    let [mut owner, mut stand_in] = [0, 1].map(|own| forwarder(&scratch, &etcd, own));
    taken(&mut stand_in, 1);
    taken(&mut stand_in, 0);
    server.kill();
    assert!(stand_in.release(0).is_err(), "nobody is there");
    server.again();
    owner_gets_its_seat(&mut owner, &mut stand_in);
}

#[test]
fn a_taking_that_comes_late_finds_all_changed() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-late"), server.options());
    let export = ExportOptions::new(LAYOUT);
    let files = PosixFiles::open(scratch.path(), &export).expect("export");
    let seats = Seats::open(&files, LAYOUT, 1).expect("seats");
    let claims = || EtcdClaims::connect(&etcd, ExportId(7), &seats, Fence::default(), LONG);
    let mut claims = claims().expect("etcd runs");
    let lease = claims.fresh_lease().expect("etcd runs");
    for (seat, revisions) in [(0, [0, 0]), (2, [0, 0])] {
        // It was asked for, and is still on its way.
        claims.unsure.insert(seat);
        claims.settle_doubt().expect("etcd runs");
        let late = claims.take(seat, 5, revisions, lease).expect("etcd runs");
        assert!(!late, "nobody would know that seat {seat} is held");
        claims.unsure.clear();
    }
}

#[test]
fn what_was_not_let_go_in_order_is_nobodys_before_its_lease_has_ended() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-ends"), server.options());
    let [mut a, mut b] = [0, 1].map(|own| forwarder(&scratch, &etcd, own));
    taken(&mut a, 0);
    taken(&mut a, 2);
    a.release(2).expect("etcd runs");
    // It ends while a call to the back end hangs, which lands some time.
    drop(a);
    taken(&mut b, 2);
    assert!(
        try_take(&mut b, 0).is_none(),
        "its last call may be on its way"
    );
}
