//! Seats in a real etcd (Debian's etcd-server), on loopback with a folder of its own.

use super::super::leased::{LeaseOptions, LeasedSeats, Tried};
use super::super::{Seats, SeatsError, TakenSeat};
use super::*;
use crate::storage::scratch::Scratch;
use crate::storage::{ExportOptions, PosixFiles};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tidegate_wire::Layout;

mod access;
mod doubts;

const LAYOUT: Layout = Layout {
    seats: 4,
    stripe: 1 << 20,
};
/// Of tests that wait for its end.
const TTL: Duration = Duration::from_secs(3);
/// Of the others, so that no slow machine ends it.
const LONG: Duration = Duration::from_secs(30);
const STARTS_MAX: Duration = Duration::from_secs(60);

/// An etcd of one member; ends when dropped.
struct Server {
    data: PathBuf,
    ports: [u16; 2],
    more: Vec<String>,
    child: Child,
}

impl Server {
    /// None, with a printed line, where etcd is not installed.
    fn start() -> Option<Server> {
        Server::start_with(&[])
    }

    fn start_with(more: &[String]) -> Option<Server> {
        if Command::new("etcd").arg("--version").output().is_err() {
            assert!(
                std::env::var("CI").is_err(),
                "etcd is missing: tools/need test installs it"
            );
            println!("skipped: etcd is missing: run tools/need test");
            return None;
        }
        // In memory where that can be: its disk is not what is tested, and may be slow.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let free = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ports = [free(), free()].map(|one| one.local_addr().expect("it is bound").port());
        let data = folder.join(format!("tidegate-etcd-{}-{}", std::process::id(), ports[0]));
        std::fs::create_dir(&data).expect("a fresh directory");
        let child = run(&data, ports, more);
        let server = Server {
            data,
            ports,
            more: more.to_vec(),
            child,
        };
        server.until_up();
        Some(server)
    }

    fn until_up(&self) {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.ports[0])).is_err() {
            assert!(began.elapsed() < STARTS_MAX, "etcd does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        // It listens before it has elected itself.
        if self.more.is_empty() {
            while raw(&self.options(), "kv/range", json!({ "key": bytes("x") })).is_err() {
                assert!(began.elapsed() < STARTS_MAX, "etcd does not serve");
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    fn again(&mut self) {
        self.child = run(&self.data, self.ports, &self.more);
        self.until_up();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![format!("http://127.0.0.1:{}", self.ports[0])],
            prefix: "/test".to_owned(),
            ..EtcdOptions::default()
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn run(data: &Path, ports: [u16; 2], more: &[String]) -> Child {
    let scheme = if more.is_empty() { "http" } else { "https" };
    let clients = format!("{scheme}://127.0.0.1:{}", ports[0]);
    let peers = format!("http://127.0.0.1:{}", ports[1]);
    let log = std::fs::File::create(data.join("log")).expect("room");
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(data.join("data"));
    command.args([
        "--listen-client-urls",
        &clients,
        "--advertise-client-urls",
        &clients,
    ]);
    command.args([
        "--listen-peer-urls",
        &peers,
        "--initial-advertise-peer-urls",
        &peers,
    ]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
    command.args(more).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("it is installed")
}

/// A call past all seats.
fn raw(options: &EtcdOptions, method: &str, body: Value) -> Result<Value, EtcdError> {
    Etcd::new(options, LONG)?.call(method, &body)
}

/// The seats of a forwarder on a node of its own.
fn connect(scratch: &Scratch, options: &EtcdOptions, own: u16) -> Result<LeasedSeats, SeatsError> {
    connect_for(LONG, scratch, options, own)
}

fn connect_for(
    ttl: Duration,
    scratch: &Scratch,
    options: &EtcdOptions,
    own: u16,
) -> Result<LeasedSeats, SeatsError> {
    let export = ExportOptions {
        apart: Some(Fence::default()),
        ..ExportOptions::new(LAYOUT)
    };
    let files = PosixFiles::open(scratch.path(), &export).expect("export");
    let seats = Seats::open(&files, LAYOUT, own).expect("seats");
    let lease = LeaseOptions {
        ttl_ns: ttl.as_nanos() as u64,
        outlives_node: true,
        one_node: false,
        fence: Fence::default(),
    };
    LeasedSeats::by_etcd(&seats, options, ExportId(7), lease)
}

fn forwarder(scratch: &Scratch, options: &EtcdOptions, own: u16) -> LeasedSeats {
    connect(scratch, options, own).expect("etcd runs")
}

fn short(scratch: &Scratch, options: &EtcdOptions, own: u16) -> LeasedSeats {
    connect_for(TTL, scratch, options, own).expect("etcd runs")
}

fn try_take(seats: &mut LeasedSeats, seat: u16) -> Option<TakenSeat> {
    match seats.try_take(seat).expect("etcd runs") {
        Tried::Taken(taken, _) => Some(taken),
        Tried::GoesOn => try_take(seats, seat),
        Tried::Busy => None,
        Tried::Waits(name) => panic!("nobody waits for {name} with etcd"),
    }
}

fn taken(seats: &mut LeasedSeats, seat: u16) -> u64 {
    try_take(seats, seat).expect("the seat is free").generation
}

fn lost(seats: &mut LeasedSeats) -> String {
    let renewal = seats.renew();
    assert!(renewal.until.is_none(), "{:?}", renewal.lost);
    let [(0, why)] = &*renewal.lost else {
        panic!("the seat is not lost: {:?}", renewal.trouble);
    };
    why.clone()
}

fn key(part: &str) -> String {
    bytes(&format!("/test/{}/seat.0/{part}", ExportId(7)))
}

#[test]
fn one_forwarder_at_a_time_has_a_seat_and_numbers_rise_over_twenty_takings() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-export"), server.options());
    let (mut a, mut b) = (forwarder(&scratch, &etcd, 0), forwarder(&scratch, &etcd, 1));
    let mut numbers = Vec::new();
    for turn in 0..20 {
        let (one, other) = if turn % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        numbers.push(taken(one, 0));
        assert!(try_take(other, 0).is_none(), "turn {turn}");
        assert!(one.renew().until.is_some());
        one.release(0).expect("etcd runs");
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    // Many at once.
    for round in 0..10 {
        let both = std::thread::scope(|scope| {
            let tries = [&mut a, &mut b].map(|one| scope.spawn(|| try_take(one, 3)));
            tries.map(|one| one.join().expect("no panic").is_some())
        });
        assert_ne!(both, [true, true], "round {round}");
        a.release(3).expect("etcd runs");
        b.release(3).expect("etcd runs");
    }
    drop((a, b));
    // etcd has lost all: the files know the last number.
    let all = json!({ "key": bytes("/test/"), "range_end": bytes("/test0") });
    raw(&etcd, "kv/deleterange", all).expect("etcd runs");
    let mut again = forwarder(&scratch, &etcd, 0);
    assert!(taken(&mut again, 0) > numbers[19]);
}

#[test]
fn a_seat_is_lost_with_its_lease_its_key_and_to_a_higher_number() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-lost"), server.options());
    let (mut a, mut b) = (forwarder(&scratch, &etcd, 0), forwarder(&scratch, &etcd, 1));
    let first = try_take(&mut a, 0).expect("free");
    raw(&etcd, "kv/deleterange", json!({ "key": key("held") })).expect("etcd runs");
    assert!(lost(&mut a).contains("its key in etcd is gone"));
    assert!(
        first.table.persist().is_err(),
        "nothing is written any more"
    );
    a.release(0).expect("etcd runs");
    let second = taken(&mut a, 0);
    assert_eq!(second, first.generation + 1);
    let leases = raw(&etcd, "lease/leases", json!({})).expect("etcd runs");
    for one in leases["leases"].as_array().expect("there is one") {
        raw(&etcd, "lease/revoke", json!({ "ID": one["ID"] })).expect("etcd runs");
    }
    let third = taken(&mut b, 0);
    assert_eq!(third, second + 1, "its key went with the lease");
    let why = lost(&mut a);
    assert!(
        why.contains("its lease") || why.contains("has taken it"),
        "{why}"
    );
    a.release(0).expect("etcd runs");
    assert!(
        b.renew().until.is_some(),
        "who was released late takes nothing from the next one"
    );
    // Somebody goes past b with a higher number.
    let value = json!({ "generation": third + 5, "forwarder": 3, "host": "io3", "id": 1,
        "boot": 1, "namespace": 1, "pid": 1, "began": 1 });
    let put = json!({ "key": key("held"), "value": bytes(&value.to_string()) });
    raw(&etcd, "kv/put", put).expect("etcd runs");
    let why = lost(&mut b);
    assert!(why.contains(&format!("generation {}", third + 5)), "{why}");
}

#[test]
fn a_holder_that_does_not_renew_is_followed_when_its_lease_has_ended() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-expiry"), server.options());
    let (mut a, mut b) = (short(&scratch, &etcd, 0), short(&scratch, &etcd, 1));
    let began = Instant::now();
    let Some(first) = try_take(&mut a, 0) else {
        panic!("it is free");
    };
    let second = loop {
        if let Some(second) = try_take(&mut b, 0) {
            break second;
        }
        assert!(began.elapsed() < 5 * TTL, "its lease does not end");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(began.elapsed() >= TTL, "after {:?}", began.elapsed());
    assert_eq!(second.generation, first.generation + 1);
    assert!(
        first.table.persist().is_err(),
        "the first one has stopped by itself"
    );
    assert!(a.renew().until.is_none());
}

#[test]
fn an_etcd_that_comes_back_soon_costs_nothing_and_late_a_taking() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-restart"), server.options());
    let mut a = short(&scratch, &etcd, 0);
    let first = taken(&mut a, 0);
    server.kill();
    let began = Instant::now();
    let renewal = a.renew();
    let trouble = renewal.trouble.expect("nobody answers").to_string();
    assert!(trouble.contains("etcd does not answer"), "{trouble}");
    assert!(began.elapsed() < TTL / 2, "it took {:?}", began.elapsed());
    assert!(renewal.lost.is_empty() && renewal.until.is_none());
    server.again();
    // On a slow machine its start may have taken more than the lease had left.
    if a.renew().until.is_none() {
        println!("etcd came back after {:?}", began.elapsed());
    }
    a.release(0).expect("etcd runs");
    let second = taken(&mut a, 0);
    assert!(second > first);
    server.kill();
    std::thread::sleep(TTL);
    let renewal = a.renew();
    assert!(
        renewal.until.is_none(),
        "its time is over, whatever etcd would say"
    );
    let _ = a.release(0);
    server.again();
    // Its own key may be there still.
    assert!(taken(&mut a, 0) > second);
}

#[test]
fn who_is_cut_off_for_longer_than_the_lease_loses_the_seat() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-cut"), server.options());
    let mut a = short(&scratch, &etcd, 0);
    let first = try_take(&mut a, 0).expect("free");
    server.signal(rustix::process::Signal::STOP);
    let began = Instant::now();
    while first.table.persist().is_ok() {
        assert!(
            began.elapsed() < TTL,
            "it goes on though nobody renews its lease"
        );
        let renewal = a.renew();
        assert!(renewal.until.is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let stopped = began.elapsed();
    assert!(
        stopped <= TTL * 4 / 5 + Duration::from_millis(500),
        "after {stopped:?}"
    );
    std::thread::sleep(TTL);
    server.signal(rustix::process::Signal::CONT);
    let mut b = short(&scratch, &etcd, 1);
    let began = Instant::now();
    let second = loop {
        if let Ok(Tried::Taken(second, _)) = b.try_take(0) {
            break second;
        }
        assert!(began.elapsed() < 5 * TTL, "its lease does not end");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(second.generation > first.generation);
    assert!(a.renew().until.is_none());
    let _ = a.release(0);
    assert!(try_take(&mut a, 0).is_none(), "the second one has it");
}

#[test]
fn an_owner_that_waits_gets_its_seat_from_the_stand_in_and_nobody_else_does() {
    let Some(server) = Server::start() else {
        return;
    };
    let (scratch, etcd) = (Scratch::new("etcd-wanted"), server.options());
    let [mut owner, mut stand_in, mut third] = [0, 1, 2].map(|i| forwarder(&scratch, &etcd, i));
    taken(&mut stand_in, 0);
    assert!(try_take(&mut owner, 0).is_none());
    assert_eq!(stand_in.wanted(&[0]).expect("etcd runs"), [0; 0]);
    owner.want(0).expect("etcd runs");
    assert_eq!(stand_in.wanted(&[0]).expect("etcd runs"), [0]);
    let revision = || {
        let read = raw(&etcd, "kv/range", json!({ "key": key("wanted") })).expect("etcd runs");
        number(&read["header"]["revision"])
    };
    let before = revision();
    owner.want(0).expect("etcd runs");
    assert_eq!(
        revision(),
        before,
        "an owner says it again five times a second"
    );
    // The word is lost with etcd's lease, and said again by the next try.
    raw(&etcd, "kv/deleterange", json!({ "key": key("wanted") })).expect("etcd runs");
    assert!(try_take(&mut owner, 0).is_none());
    assert_eq!(stand_in.wanted(&[0]).expect("etcd runs"), [0]);
    stand_in.release(0).expect("etcd runs");
    assert!(try_take(&mut third, 0).is_none(), "its owner waits for it");
    taken(&mut owner, 0);
    assert_eq!(owner.wanted(&[0]).expect("etcd runs"), [0; 0]);
    assert!(third.double(0).is_none());
    // Another process of the same index is told by name. It lives: it is this one.
    let mut twin = forwarder(&scratch, &etcd, 0);
    assert!(try_take(&mut twin, 0).is_none());
    assert!(
        twin.double(0)
            .expect("it holds it")
            .starts_with("forwarder 0 on ")
    );
    // What goes in order frees its seats at once.
    owner.release(0).expect("etcd runs");
    drop(owner);
    taken(&mut twin, 0);
}
