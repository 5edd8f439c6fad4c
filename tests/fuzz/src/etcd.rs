//! What a forwarder that keeps its seats in etcd reads there: whatever the answers and the keys of
//! others say, it takes a seat under a generation above all before, or says what is wrong, and asks
//! a bounded number of times.

use crate::kept::{LAYOUT, lease_options, take_leases};
use crate::{Draw, folder::Folder};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tidegate_server::config::EtcdOptions;
use tidegate_server::seats::{LeaseOptions, LeasedSeats, Seats};
use tidegate_server::storage::{ExportOptions, PosixFiles};
use tidegate_wire::ExportId;

/// Calls of a run that are too many.
const CALLS_MAX: usize = 500;
/// How long a call may take, so that a run is short.
const PATIENCE: Duration = Duration::from_millis(30);
/// The longest request of a forwarder.
const REQUEST_MAX: u64 = 1 << 16;
const CLUSTER: &str = "14841639068965178418";

pub(super) fn run(data: &[u8]) {
    let folder = Folder::new();
    let files = PosixFiles::open(folder.path(), &ExportOptions::new(LAYOUT));
    let files = files.expect("nothing is damaged");
    let seats = Seats::open(&files, LAYOUT, 0).expect("nothing is damaged");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let options = EtcdOptions {
        endpoints: vec![format!("http://{at}")],
        prefix: "/fuzz".to_owned(),
        ..EtcdOptions::default()
    };
    let lease = LeaseOptions {
        ttl_ns: 5 * PATIENCE.as_nanos() as u64,
        ..lease_options()
    };
    let calls = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &mut Draw::new(data), &calls));
        let seats = LeasedSeats::by_etcd(&seats, &options, ExportId(7), lease);
        // What is wrong is said, and nothing else happens.
        let _ = seats.and_then(take_leases);
        drop(TcpStream::connect(at).and_then(|mut end| end.write_all(END)));
    });
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls < CALLS_MAX, "it asks without end");
}

/// What the run says itself, at its end.
const END: &[u8] = b"END\r\n\r\n";

/// Serves one connection after the other.
fn serve(listener: &TcpListener, draw: &mut Draw<'_>, calls: &AtomicUsize) {
    while let Ok((socket, _)) = listener.accept() {
        // A forwarder that has hung up is told nothing more.
        if let Ok(true) = converse(&socket, draw, calls) {
            return;
        }
    }
}

/// Answers the calls of a connection; true at the end of the run.
fn converse(socket: &TcpStream, draw: &mut Draw<'_>, calls: &AtomicUsize) -> io::Result<bool> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(socket.take(REQUEST_MAX));
    loop {
        reader.get_mut().set_limit(REQUEST_MAX);
        let (mut method, mut len) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(false);
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if method.is_empty() {
                method = line;
            } else if let Some(length) = line.strip_prefix("content-length:") {
                len = length.trim().parse().expect("ureq says a number");
            }
        }
        if method == "end" {
            return Ok(true);
        }
        let mut asked = vec![0; len];
        reader.read_exact(&mut asked)?;
        let asked = serde_json::from_slice(&asked).expect("a forwarder asks in JSON");
        calls.fetch_add(1, Ordering::Relaxed);
        let mut socket = socket;
        let Some(answer) = answer(draw, &method, &asked) else {
            return Ok(false);
        };
        socket.write_all(&answer)?;
    }
}

/// The bytes of an answer; None: the connection ends without one.
fn answer(draw: &mut Draw<'_>, method: &str, asked: &Value) -> Option<Vec<u8>> {
    let mut status = 200;
    let mut body = match draw.u8() % 16 {
        0 => return None,
        1 => return Some(draw.some_bytes().to_vec()),
        2 => draw.some_bytes().to_vec(),
        3 => {
            status = draw.of(&[200, 400, 401, 404, 500, 503]);
            let message = draw.of(&["etcdserver: requested lease not found", "no", ""]);
            let (code, error) = (
                draw.u8() % 18,
                draw.of(&[json!(message), json!(null), json!({})]),
            );
            json!({ "code": code, "message": message, "error": error })
                .to_string()
                .into()
        }
        _ => told(draw, method, asked).to_string().into_bytes(),
    };
    let len = match draw.one_in(32) {
        true => draw.size().to_string(),
        false => body.len().to_string(),
    };
    if draw.one_in(32) {
        body = body.repeat(usize::from(draw.u8()));
    }
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {len}\r\n\r\n");
    Some([head.as_bytes(), &body].concat())
}

/// What etcd says to a call, or might.
fn told(draw: &mut Draw<'_>, method: &str, asked: &Value) -> Value {
    let cluster = if draw.one_in(32) { "7" } else { CLUSTER };
    let header = json!({ "cluster_id": cluster, "revision": number(draw) });
    let mut told = if method.contains("lease/") {
        json!({ "ID": number(draw), "TTL": number(draw) })
    } else if method.contains("kv/txn") {
        let count = asked["success"].as_array().map_or(0, Vec::len);
        let count = if draw.one_in(16) {
            draw.below(8)
        } else {
            count
        };
        let responses = (0..count).map(|_| json!({ "response_range": range(draw) }));
        let responses: Vec<_> = responses.collect();
        json!({ "succeeded": !draw.one_in(4), "responses": responses })
    } else {
        range(draw)
    };
    told["header"] = header;
    match draw.one_in(16) {
        true => json!({ "result": told }),
        false => told,
    }
}

fn range(draw: &mut Draw<'_>) -> Value {
    let kvs = (0..draw.u8() % 3).map(|_| {
        let value = value(draw);
        json!({
            "mod_revision": number(draw),
            "lease": number(draw),
            "value": if draw.one_in(16) { json!(value) } else { json!(BASE64.encode(value)) },
        })
    });
    let kvs: Vec<_> = kvs.collect();
    match draw.one_in(16) {
        true => Value::Null,
        false => json!({ "kvs": kvs, "count": number(draw) }),
    }
}

/// A number as the gateway sends it, or something else in its place.
fn number(draw: &mut Draw<'_>) -> Value {
    let number = match draw.yes() {
        true => 1 + u64::from(draw.u8()),
        false => draw.size(),
    };
    match draw.u8() % 16 {
        0 => json!(number),
        1 => json!(-(number as i64 as f64)),
        2 => Value::Null,
        3 => json!([number]),
        _ => json!(number.to_string()),
    }
}

/// The value of a key: a generation, a holder, or anything.
fn value(draw: &mut Draw<'_>) -> String {
    match draw.u8() % 4 {
        0 => String::from_utf8_lossy(draw.some_bytes()).into_owned(),
        1 => draw.size().to_string(),
        _ => {
            let mut holder = json!({
                "generation": draw.size(),
                "forwarder": draw.u8() % 3,
                "host": String::from_utf8_lossy(draw.some_bytes()),
                "id": draw.size(),
                "boot": draw.size(),
                "namespace": draw.size(),
                "pid": draw.size(),
                "began": draw.size(),
            });
            if draw.one_in(8) {
                holder["pid"] = json!(-1);
            }
            holder.to_string()
        }
    }
}
