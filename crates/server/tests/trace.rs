//! Requests recorded by a real forwarder: exactly those that were answered, and I/O that goes on
//! whatever becomes of the trace.

mod support;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Peer, Scratch, start, until};
use tidegate_sched::CostModel;
use tidegate_server::config::{Address, Config, Source, TraceOptions};
use tidegate_server::{Server, StartError};
use tidegate_trace::{Direction, Ending, Reader, Record};
use tidegate_wire::{Extent, Extents, Handle, Op, Outcome};

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

fn record_into(config: &mut Config, file: &Path, buffer_records: u32) {
    config.trace = Some(TraceOptions {
        file: file.to_path_buf(),
        buffer_records,
    });
}

/// The numbers under "trace" in the forwarder's status: recorded, buffered, dropped.
fn counts(peer: &mut Peer) -> BTreeMap<String, u64> {
    let (reply, _) = peer.call(Op::Status, &[]);
    let Ok(Outcome::Text(text)) = reply.result else {
        panic!("no status: {reply:?}");
    };
    let text = String::from_utf8(text.into()).expect("text");
    let (_, trace) = text.split_once("\"trace\":{").expect("it is recorded");
    let (trace, _) = trace.split_once('}').expect("its end");
    let pairs = trace.split(',').map(|pair| {
        let (key, value) = pair.split_once(':').expect("a key and a number");
        (
            key.trim_matches('"').to_string(),
            value.parse().expect("a number"),
        )
    });
    pairs.collect()
}

fn list(offsets: &[u64]) -> Extents {
    let mut extents = offsets.iter().map(|offset| Extent {
        offset: *offset,
        len: 10,
    });
    Extents {
        first: extents.next().expect("at least one"),
        rest: extents.collect(),
    }
}

#[test]
fn a_trace_has_exactly_the_requests() {
    let scratch = Scratch::new("trace");
    let file = scratch.0.join("requests.trace");
    let running = start(&scratch, |config| record_into(config, &file, 1000));
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let handle = peer.create("data");
    for at in 0..50 {
        peer.write(handle, at * 1000, &[at as u8; 1000]);
    }
    assert_eq!(peer.read(handle, 49_500, 4000).len(), 500);
    let extents = list(&[5, 500, 49_995]);
    let (reply, _) = peer.call(Op::Read { handle, extents }, &[]);
    assert!(reply.result.is_ok(), "{reply:?}");
    let (reply, _) = peer.call(Op::Append { handle }, b"tail");
    assert!(reply.result.is_ok(), "{reply:?}");
    let extents = Extent {
        offset: u64::MAX / 2,
        len: 10,
    };
    let extents = extents.into();
    let (reply, _) = peer.call(Op::Read { handle, extents }, &[]);
    assert!(reply.result.is_err(), "{reply:?}");
    peer.check_alive();
    let told = counts(&mut peer);
    assert_eq!(told["recorded"] + told["buffered"], 56, "{told:?}");
    assert!(running.shutdown().expect("it ends"));

    check_trace(&file, handle);
}

fn check_trace(file: &Path, handle: Handle) {
    let mut reader = Reader::open(file).expect("a trace");
    let header = reader.header().clone();
    assert_eq!((header.forwarders, header.stripe), (1, 1 << 20));
    let records: Vec<Record> = reader.by_ref().map(|one| one.expect("a file")).collect();
    assert_eq!((reader.ending(), reader.dropped()), (&Ending::Closed, 0));
    let short: Vec<_> = records
        .iter()
        .map(|one| {
            (
                one.direction,
                one.offset,
                one.len,
                one.done,
                one.errno,
                one.listed,
            )
        })
        .collect();
    let (r, w) = (Direction::Read, Direction::Write);
    let mut expected: Vec<_> = (0..50)
        .map(|at| (w, at * 1000, 1000, 1000, 0, false))
        .collect();
    expected.push((r, 49_500, 4000, 500, 0, false));
    expected.push((r, 5, 10, 10, 0, false));
    expected.push((r, 500, 10, 10, 0, true));
    expected.push((r, 49_995, 10, 5, 0, true));
    expected.push((w, 50_000, 4, 4, 0, false));
    expected.push((r, u64::MAX / 2, 10, 0, 22, false));
    assert_eq!(short, expected);
    assert!(records[54].append && !records[53].append);
    let answered = &records[..55];
    assert!(
        answered
            .iter()
            .all(|one| one.service_ns > Some(0) && one.wait_ns.is_some())
    );
    assert!(
        records
            .windows(2)
            .all(|pair| pair[0].arrival_ns < pair[1].arrival_ns || pair[1].listed)
    );
    let one = &records[0];
    assert_eq!((one.app.0, one.forwarder, one.issue_ns), (1, Some(0), None));
    assert!(
        records
            .iter()
            .all(|other| other.file.0 == handle.inode && other.client == one.client)
    );
}

fn pipe(path: &Path) -> File {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("ours");
    // Without waiting for who writes.
    let reader = open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
    File::from(reader.expect("it is there"))
}

/// Writes that must all be served, quickly, whatever becomes of the trace.
fn work(peer: &mut Peer, handle: Handle, count: u64) {
    let begun = Instant::now();
    for at in 0..count {
        peer.write(handle, at, b"x");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_stalled_trace_drops_and_counts_and_stalls_nobody() {
    let scratch = Scratch::new("stalled");
    let file = scratch.0.join("pipe");
    let mut reader = pipe(&file);
    let running = start(&scratch, |config| record_into(config, &file, 8));
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let handle = peer.create("data");
    // More than a pipe of 64 KiB and the buffer hold.
    work(&mut peer, handle, 2000);
    let told = counts(&mut peer);
    assert!(told["dropped"] > 1000, "{told:?}");
    assert_eq!(told.values().sum::<u64>(), 2000);
    // The reader wakes up: nothing but the dropped is missing.
    let taking = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            match reader.read_to_end(&mut bytes) {
                Ok(_) => break,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        bytes
    });
    assert!(running.shutdown().expect("it ends"));
    let bytes = taking.join().expect("it reads");
    let mut trace = Reader::new(&bytes[..], "pipe").expect("a trace");
    let records = trace.by_ref().count() as u64;
    assert_eq!(trace.ending(), &Ending::Closed);
    assert_eq!(records + trace.dropped(), 2000);
    assert_eq!(trace.dropped(), told["dropped"]);
}

#[test]
fn a_trace_that_cannot_be_written_any_more_is_an_ordinary_event() {
    let scratch = Scratch::new("broken");
    let file = scratch.0.join("pipe");
    let reader = pipe(&file);
    let running = start(&scratch, |config| record_into(config, &file, 16));
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let handle = peer.create("data");
    drop(reader);
    work(&mut peer, handle, 500);
    let told = counts(&mut peer);
    assert!(told["dropped"] > 400 && told["recorded"] == 0, "{told:?}");
    assert_eq!(told.values().sum::<u64>(), 500);
    assert_eq!(peer.read(handle, 0, 1000).len(), 500);
    let begun = Instant::now();
    assert!(running.shutdown().expect("it ends"));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_trace_that_cannot_be_begun_is_refused_at_the_start() {
    let scratch = Scratch::new("refused");
    let precious = scratch.0.join("precious");
    std::fs::write(&precious, "no trace").expect("ours");
    let unread = scratch.0.join("unread");
    drop(pipe(&unread));
    let cases = [
        (precious.as_path(), "not a trace"),
        (&scratch.0.join("none/trace"), "No such file"),
        (scratch.0.as_path(), "directory"),
        (unread.as_path(), "a pipe that nobody reads"),
        (Path::new("/dev/full"), "No space left"),
    ];
    for (file, expected) in cases {
        let mut config = Config::local(&scratch.export(), Address::unix(scratch.socket()));
        record_into(&mut config, file, 16);
        match Server::bind(&config) {
            Err(error @ StartError::Trace { .. }) => {
                let error = error.to_string();
                let place = format!("trace file {}: ", file.display());
                assert!(
                    error.starts_with(&place) && error.contains(expected),
                    "{error}"
                );
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{} was taken", file.display()),
        }
    }
    assert_eq!(std::fs::read(&precious).expect("there"), b"no trace");
}

#[test]
fn a_forwarder_that_is_started_again_goes_on_in_its_trace() {
    let scratch = Scratch::new("again");
    let file = scratch.0.join("requests.trace");
    for _ in 0..2 {
        let running = start(&scratch, |config| record_into(config, &file, 1000));
        let mut peer = Peer::unix(&scratch.socket()).greet();
        let handle = peer.create("data");
        work(&mut peer, handle, 10);
        assert!(running.shutdown().expect("it ends"));
    }
    let mut reader = Reader::open(&file).expect("a trace");
    let records: Vec<Record> = reader.by_ref().map(|one| one.expect("a file")).collect();
    assert_eq!((records.len(), reader.recordings()), (20, 2));
    assert!(
        records
            .windows(2)
            .all(|pair| pair[0].arrival_ns < pair[1].arrival_ns)
    );
}

/// A forwarder whose configuration has these lines, on accesses that cost 40 s each: what may save
/// one is waited for. Nothing is corrected by what they really take.
fn start_foretold(scratch: &Scratch, lines: &str) -> tidegate_server::Running {
    let mut cost = CostModel::default();
    cost.read_random.base_ns = 40_000_000_000;
    let file = scratch.0.join("dear.cost");
    std::fs::write(&file, cost.to_string()).expect("ours");
    let text = format!(
        "export = {:?}\nlisten = [\"unix:{}\"]\nreactors = {REACTORS}\n[scheduler]\n\
         policy = \"aioli\"\ncost_file = {file:?}\ncost_estimate = false\n\
         wait_us_max = 10000000\n{lines}",
        scratch.export(),
        scratch.socket().display(),
    );
    let source = Source::parse(&text, "f.toml").expect("it is TOML");
    let config = Config::from_source(source).unwrap_or_else(|error| panic!("{error}"));
    let server = Server::bind(&config).expect("the configuration is right");
    server.spawn().expect("a thread can be had")
}

#[test]
fn what_one_run_recorded_another_waits_for() {
    let scratch = Scratch::new("foretold");
    let file = scratch.0.join("run.trace");
    let running = start(&scratch, |config| record_into(config, &file, 1000));
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let handle = peer.create("data");
    peer.write(handle, 0, &[7; 8192]);
    peer.read(handle, 0, 4096);
    peer.read(handle, 4096, 4096);
    assert!(running.shutdown().expect("it ends"));

    let foretold = format!("prediction = \"recorded\"\ntrace_files = [{file:?}]\n");
    for (lines, waits) in [("", false), (foretold.as_str(), true)] {
        let running = start_foretold(&scratch, lines);
        let mut first = Peer::unix(&scratch.socket()).greet();
        let mut second = Peer::unix(&scratch.socket()).greet();
        let handle = first.create("data");
        let extents = Extent {
            offset: 0,
            len: 4096,
        }
        .into();
        let frame = first.frame(Op::Read { handle, extents }, &[]);
        first.send(&frame).expect("the connection is open");
        if waits {
            // Nothing else is there to do, and yet it waits for the rest.
            until("a request that waits", || second.status("\"queued\":") == 1);
        } else {
            first.receive().expect("it is answered at once");
        }
        assert_eq!(second.read(handle, 4096, 4096), [7; 4096]);
        if waits {
            let (reply, payload) = first.receive().expect("with the other");
            assert!(reply.result.is_ok() && payload == [7; 4096], "{reply:?}");
        }
        let calls = second.status("\"storage_reads\":");
        assert_eq!(calls, if waits { 1 } else { 2 });
        assert!(running.shutdown().expect("it ends"));
    }
}
