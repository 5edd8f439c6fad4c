//! A forwarder that takes data past the page cache, over real sockets and files.

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::{Peer, Scratch, start};
use tidegate_server::config::{Address, Config, Engine, Io};
use tidegate_server::storage::{
    ExportOptions, Faults, PoolOptions, PosixFiles, Slots, Uring, UringOptions,
};
use tidegate_server::{Server, StartError};
use tidegate_wire::{Extent, Layout, Op, Outcome};

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

/// Whether this machine and directory have io_uring for direct I/O; else a line says why not.
fn has_ring(dir: &Path) -> bool {
    let layout = Layout {
        seats: 1,
        stripe: 1 << 20,
    };
    let options = ExportOptions {
        direct: true,
        ..ExportOptions::new(layout)
    };
    let files = PosixFiles::open(dir, &options).expect("export");
    let pool = PoolOptions {
        threads: 1,
        queued_max: 1,
        faults: Faults::default(),
        fence: Default::default(),
    };
    let (slots, ring) = (Slots::new(4096), UringOptions { depth: 1 });
    match Uring::new(&files, &slots, &pool, &ring, Arc::new(|| ())) {
        Ok(_) => true,
        Err(refused) => {
            println!("skipped: {refused}");
            false
        }
    }
}

fn status(peer: &mut Peer) -> String {
    match peer.call(Op::Status, &[]).0.result {
        Ok(Outcome::Text(text)) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("no status: {other:?}"),
    }
}

#[test]
fn every_engine_gives_back_what_was_written() {
    for engine in [Engine::Auto, Engine::Threads] {
        let scratch = Scratch::new("direct");
        let running = start(&scratch, |config| {
            config.storage.io = Io::Direct;
            config.storage.engine = engine;
        });
        let mut peer = Peer::unix(&scratch.socket()).greet();
        let file = peer.create("data");
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i / 7) as u8).collect();
        // Whole pages, then an odd end.
        for at in (0..bytes.len()).step_by(1 << 18) {
            peer.write(file, at as u64, &bytes[at..bytes.len().min(at + (1 << 18))]);
        }
        peer.write(file, 4097, &bytes[4097..9000]);
        assert_eq!(peer.read(file, 0, 1 << 20), bytes);
        assert_eq!(
            peer.read(file, 8192, 1 << 16),
            bytes[8192..8192 + (1 << 16)]
        );
        assert_eq!(peer.read(file, 999_999, 100), bytes[999_999..]);
        assert_eq!(peer.read(file, 1 << 30, 4096), b"");
        let on_disk = std::fs::read(scratch.export().join("data")).expect("an ordinary file");
        assert!(on_disk == bytes);
        assert!(running.shutdown().expect("it ends"));
    }
}

#[test]
fn many_reads_in_flight_are_all_answered_by_the_ring() {
    let scratch = Scratch::new("direct");
    if !has_ring(&scratch.export()) {
        return;
    }
    let running = start(&scratch, |config| {
        config.storage.io = Io::Direct;
        config.storage.engine = Engine::Uring;
        // Fewer calls at once than requests.
        config.storage.depth = 4;
    });
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let file = peer.create("data");
    for at in 0..16u64 {
        peer.write(file, at << 16, &[at as u8; 1 << 16]);
    }
    let mut frames = Vec::new();
    for at in 0..16u64 {
        let extents = Extent {
            offset: at << 16,
            len: 1 << 16,
        };
        let read = Op::Read {
            handle: file,
            extents: extents.into(),
        };
        frames.extend(peer.frame(read, &[]));
    }
    peer.send(&frames).expect("sent");
    let mut seen = [false; 16];
    for _ in 0..16 {
        let (_, bytes) = peer.receive().expect("answered");
        assert!(bytes.len() == 1 << 16 && bytes.iter().all(|byte| *byte == bytes[0]));
        seen[bytes[0] as usize] = true;
    }
    assert_eq!(seen, [true; 16]);
    let state = status(&mut peer);
    assert!(
        state.contains("\"storage\":{\"io\":\"direct\",\"engine\":\"uring\""),
        "{state}"
    );
    assert!(running.shutdown().expect("it ends"));
}

/// A ramfs over a directory, which takes no direct I/O; unmounted when dropped.
struct Ramfs<'a>(&'a Path);

impl Ramfs<'_> {
    /// None, with a printed line, where mounting is not allowed.
    fn mount(at: &Path) -> Option<Ramfs<'_>> {
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "ramfs", "ramfs"]).arg(at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Ramfs(at)),
            _ => {
                println!("skipped, a ramfs cannot be mounted here");
                None
            }
        }
    }
}

impl Drop for Ramfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn an_export_without_direct_io_is_served_through_the_page_cache_or_refused() {
    let scratch = Scratch::new("direct");
    let export = scratch.export();
    let Some(_mounted) = Ramfs::mount(&export) else {
        return;
    };
    let mut config = Config::local(&export, Address::unix(scratch.socket()));
    config.storage.io = Io::Direct;
    config.storage.engine = Engine::Uring;
    let refusal = Server::bind(&config).err().expect("it is refused");
    assert!(matches!(refusal, StartError::Uring(_)));
    let words = refusal.to_string();
    assert!(words.contains("set engine = \"auto\""), "{words}");
    let running = start(&scratch, |config| config.storage.io = Io::Direct);
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let file = peer.create("data");
    peer.write(file, 0, &[7; 1 << 16]);
    assert_eq!(peer.read(file, 0, 1 << 20), [7; 1 << 16]);
    let state = status(&mut peer);
    assert!(
        state.contains("\"storage\":{\"io\":\"buffered\""),
        "{state}"
    );
    assert!(running.shutdown().expect("it ends"));
}
