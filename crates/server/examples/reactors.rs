//! Measures what several reactors gain: programs with a connection each read and write through one
//! forwarder of this process, whose files are in the page cache.
//!
//! With `shared` payload goes through shared memory; with `idle` a connection that does nothing is
//! made first, so that the next one is not the core's own thread's.
//!
//! usage: reactors REACTORS CONNECTIONS BYTES SECONDS [shared] [idle]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_client::{Bytes, Client, Context, Options};
use tidegate_server::Server;
use tidegate_server::config::{Address, Config};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> u64 {
        let text = arguments.get(at).map_or("", String::as_str);
        let usage = "usage: reactors REACTORS CONNECTIONS BYTES SECONDS [shared] [idle]";
        text.parse().expect(usage)
    };
    let (reactors, connections, bytes, seconds) = (number(0), number(1), number(2), number(3));
    let is_said = |word: &str| arguments.iter().any(|one| one == word);
    let shared = is_said("shared");
    let dir = std::env::temp_dir().join(format!("tidegate-reactors-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary directory is ours");
    let socket = Address::unix(dir.with_extension("socket"));
    let mut config = Config::local(&dir, socket.clone());
    config.reactors = reactors as u32;
    let running = Server::bind(&config).expect("it starts").spawn();
    let running = running.expect("a thread can be had");
    let options = Options::new(vec![socket.to_string()]);
    let idle = is_said("idle").then(|| Client::connect(options).expect("it serves"));
    for write in [true, false] {
        let setup = Setup {
            address: socket.to_string(),
            connections,
            bytes: bytes as usize,
            time: Duration::from_secs(seconds),
            shared,
            write,
        };
        let (calls, p50_us) = measure(&setup);
        let rate = calls as f64 / seconds as f64;
        let mib = rate * bytes as f64 / f64::from(1 << 20);
        let what = if write { "write" } else { "read" };
        println!(
            "{reactors} reactors, {connections} connections, {what} {bytes}: {rate:.0} calls/s, \
             {mib:.0} MiB/s, median {p50_us} us"
        );
    }
    drop(idle);
    let in_time = running.shutdown().expect("it ends");
    assert!(in_time, "the drain ended in time");
    let _ = std::fs::remove_dir_all(&dir);
}

struct Setup {
    address: String,
    connections: u64,
    bytes: usize,
    time: Duration,
    shared: bool,
    write: bool,
}

/// Calls that ended in the time, and the median of their durations in microseconds.
fn measure(setup: &Setup) -> (u64, u64) {
    let (calls, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Barrier::new(setup.connections as usize + 1);
    let mut durations: Vec<u32> = std::thread::scope(|scope| {
        let work = |number| work(setup, number, &begin, &over, &calls);
        let threads: Vec<_> = (0..setup.connections)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        begin.wait();
        std::thread::sleep(setup.time);
        over.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.flat_map(|it| it.expect("no call fails")).collect()
    });
    durations.sort_unstable();
    let median = durations.get(durations.len() / 2).copied().unwrap_or(0);
    (calls.load(Ordering::Relaxed), median.into())
}

fn work(
    setup: &Setup,
    number: u64,
    begin: &Barrier,
    over: &AtomicBool,
    calls: &AtomicU64,
) -> Vec<u32> {
    let mut options = Options::new(vec![setup.address.clone()]);
    if !setup.shared {
        options.shared_memory_bytes = 0;
    }
    let client = Client::connect(options).expect("the forwarder serves");
    let context = Context::default();
    let name = format!("file{number}");
    let root = client.root().handle;
    let file = client
        .create(&context, root, name.as_bytes(), 0o644, false)
        .expect("it can be made");
    let data = Bytes::from(vec![number as u8; setup.bytes]);
    let write = || client.write(&context, file.handle, 0, data.clone());
    write().expect("it is written");
    let mut durations = Vec::new();
    begin.wait();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        if setup.write {
            write().expect("it is written");
        } else {
            let read = client.read(&context, file.handle, 0, setup.bytes);
            assert_eq!(read.expect("it is read").len, setup.bytes);
        }
        durations.push(began.elapsed().as_micros() as u32);
        calls.fetch_add(1, Ordering::Relaxed);
    }
    durations
}
