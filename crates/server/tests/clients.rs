//! Real clients of a forwarder that is killed again and again: what they read is what was written,
//! whether payload goes through shared memory, through the socket, or both.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{Random, Scratch};
use tidegate_client::wire::Handle;
use tidegate_client::{Bytes, CancelToken, Client, Context, Errno, Options};
use tidegate_server::config::Config;

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

const THREADS: u64 = 8;
const BLOCKS: usize = 64;
const BLOCK: usize = 8192;
const KILLS: u64 = 4;
/// Calls that end between two kills.
const ROUNDS: u64 = 300;
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test by itself: the body of the forwarder's process.
#[test]
fn child() {
    let Some(config) = std::env::var_os("TIDEGATE_TEST_CHILD") else {
        return;
    };
    let config = Config::read(Path::new(&config)).expect("the parent wrote it");
    let in_time = tidegate_server::serve(&config).expect("it starts");
    std::process::exit(if in_time { 0 } else { 1 });
}

/// A forwarder that dies with its owner.
struct Forwarder(Child);

impl Drop for Forwarder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn forwarder(scratch: &Scratch, listen: &str) -> Forwarder {
    let (path, pid) = (scratch.0.join("child.toml"), scratch.0.join("pid"));
    let export = scratch.export();
    let reactors = crate::REACTORS;
    let text = format!(
        "export = {export:?}\nlisten = {listen:?}\npid_file = {pid:?}\n\
         insecure = true\nreactors = {reactors}\n"
    );
    std::fs::write(&path, text).expect("the directory is ours");
    let child = Command::new(std::env::current_exe().expect("we run"))
        .args([
            &support::test_name(module_path!(), "child"),
            "--exact",
            "--nocapture",
        ])
        .env("TIDEGATE_TEST_CHILD", path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("this test can run itself");
    let until = Instant::now() + Duration::from_secs(30);
    let number = child.id().to_string();
    while !std::fs::read_to_string(&pid).is_ok_and(|text| text.trim() == number) {
        assert!(Instant::now() < until, "the forwarder does not start");
        thread::sleep(Duration::from_millis(5));
    }
    Forwarder(child)
}

/// What a block of one thread's file holds after a write.
fn content(thread: u64, block: usize, version: u64) -> u64 {
    thread << 56 | (block as u64) << 40 | version
}

/// One thread's part: writes all of which end, and reads some of which are given up. `done` counts
/// those of all threads.
fn work(client: &Client, file: Handle, number: u64, done: &AtomicU64) {
    let mut random = Random(number + 1);
    let mut versions = [0; BLOCKS];
    let mut round = 0;
    while done.fetch_add(1, Ordering::Relaxed) < (KILLS + 1) * ROUNDS {
        round += 1;
        let first = random.below(BLOCKS);
        let count = 1 + random.below((BLOCKS - first).min(16));
        let (offset, blocks) = ((first * BLOCK) as u64, first..first + count);
        if random.below(2) == 0 {
            let mut bytes = Vec::with_capacity(count * BLOCK);
            for block in blocks {
                versions[block] = round;
                let word = content(number, block, round).to_le_bytes();
                bytes.extend(std::iter::repeat_n(word, BLOCK / 8).flatten());
            }
            let written = client.write(&Context::default(), file, offset, Bytes::from(bytes));
            assert_eq!(written, Ok(count * BLOCK), "thread {number}, round {round}");
            continue;
        }
        let token = CancelToken::new();
        let how = random.below(4);
        let ctx = Context {
            timeout: (how == 0).then(|| Duration::from_micros(50 * random.below(20) as u64 + 1)),
            cancel: (how == 1).then(|| token.clone()),
            ..Context::default()
        };
        let read = thread::scope(|scope| {
            if how == 1 {
                let wait = Duration::from_micros(20 * random.below(20) as u64);
                scope.spawn(move || {
                    thread::sleep(wait);
                    token.cancel();
                });
            }
            client.read(&ctx, file, offset, count * BLOCK)
        });
        let bytes = match read {
            Ok(data) => data.into_bytes(),
            Err(Errno::TIMEDOUT) if how == 0 => continue,
            Err(Errno::INTR) if how == 1 => continue,
            Err(error) => panic!("thread {number}, round {round}: {error}"),
        };
        assert_eq!(bytes.len(), count * BLOCK);
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK)) {
            let word = match versions[block] {
                0 => [0; 8],
                version => content(number, block, version).to_le_bytes(),
            };
            let wrong = bytes.chunks(8).position(|found| found != word);
            assert_eq!(wrong, None, "thread {number}, round {round}, block {block}");
        }
    }
}

fn survive(name: &str, shared_memory_bytes: u64, transport: &str) {
    let scratch = Scratch::new(name);
    let listen = match transport {
        "fabric:tcp" => format!("fabric:tcp:127.0.0.1:{}", free_port()),
        _ => format!("{transport}:{}", scratch.socket().display()),
    };
    let mut running = Some(forwarder(&scratch, &listen));
    let mut options = Options::new([listen.clone()]);
    options.shared_memory_bytes = shared_memory_bytes;
    options.timeout = Duration::from_secs(100);
    options.connections = crate::REACTORS as u16;
    let client = Client::connect(options).expect("the forwarder is there");
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        let root = client.root().handle;
        for number in 0..THREADS {
            let name = format!("file{number}");
            let (client, done) = (&client, &done);
            scope.spawn(move || {
                let ctx = Context::default();
                let made = client.create(&ctx, root, name.as_bytes(), 0o644, true);
                let file = made.expect("a new name").handle;
                let zeros = Bytes::from(vec![0; BLOCKS * BLOCK]);
                let written = client.write(&ctx, file, 0, zeros);
                assert_eq!(written, Ok(BLOCKS * BLOCK));
                work(client, file, number, done);
            });
        }
        for kill in 1..=KILLS {
            let until = Instant::now() + PATIENCE;
            while done.load(Ordering::Relaxed) < kill * ROUNDS {
                assert!(Instant::now() < until, "no call ends");
                thread::sleep(Duration::from_millis(1));
            }
            drop(running.take());
            running = Some(forwarder(&scratch, &listen));
        }
    });
    let connections = match transport {
        "unix" => crate::REACTORS,
        _ => 1,
    };
    let status = client.status(0).expect("the forwarder is there");
    let expected = format!("\"connections\":{connections},\"unanswered\"");
    assert!(status.contains(&expected), "{expected} is not in {status}");
    drop(running);
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    listener.local_addr().expect("it is bound").port()
}

#[test]
fn killed_forwarders_lose_nothing_through_sockets() {
    survive("sockets", 0, "unix");
}

#[test]
fn killed_forwarders_lose_nothing_through_shared_memory() {
    survive("memory", 64 << 20, "unix");
}

#[test]
fn killed_forwarders_lose_nothing_where_shared_memory_is_scarce() {
    survive("scarce", 512 << 10, "unix");
}

#[cfg(feature = "fabric")]
#[test]
fn killed_forwarders_lose_nothing_through_a_fabric_of_tcp() {
    survive("fabric-tcp", 64 << 20, "fabric:tcp");
}

#[cfg(feature = "fabric")]
#[test]
fn killed_forwarders_lose_nothing_through_a_fabric_of_tcp_without_remote_access() {
    survive("fabric-plain", 0, "fabric:tcp");
}

#[cfg(feature = "fabric")]
#[test]
fn killed_forwarders_lose_nothing_through_a_fabric_of_shared_memory() {
    survive("fabric-shm", 64 << 20, "fabric:shm");
}
