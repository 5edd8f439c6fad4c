//! What is fuzzed: one function for each place where bytes come from outside. It takes any bytes,
//! and panics where the product does or where a promise does not hold.
//!
//! `fuzz/` makes a fuzzer of each function. `fuzz/corpus` keeps inputs for each, which the test of
//! this crate replays with the ordinary compiler.

mod client;
mod configuration;
mod darshan;
mod draw;
mod driver;
mod etcd;
mod folder;
mod frame;
mod fuse;
mod greeting;
mod host;
mod kept;
mod memory;
mod operation;
mod shown;
mod states;
mod table;
mod told;
mod trace;
mod users;

use draw::Draw;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that takes bytes from outside.
pub struct Target {
    /// Its name, which its fuzzer and its corpus have.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
    /// The most memory that the product may hold while it runs, in bytes.
    pub memory_max: usize,
}

/// All of them.
pub const ALL: &[Target] = &[
    target("client", client::run, 64 * MIB),
    target("configuration", configuration::run, 64 * MIB),
    target("darshan", darshan::run, 64 * MIB),
    target("driver", driver::run, 64 * MIB),
    target("etcd", etcd::run, 64 * MIB),
    target("frame", frame::run, 64 * MIB),
    target("fuse", fuse::run, 64 * MIB),
    target("greeting", greeting::run, 64 * MIB),
    target("kept", kept::run, 64 * MIB),
    target("shown", shown::run, 64 * MIB),
    target("states", states::run, 64 * MIB),
    target("table", table::run, 64 * MIB),
    target("told", told::run, 64 * MIB),
    target("trace", trace::run, 64 * MIB),
    target("users", users::run, 64 * MIB),
];

const MIB: usize = 1 << 20;

const fn target(name: &'static str, run: fn(&[u8]), memory_max: usize) -> Target {
    Target {
        name,
        run,
        memory_max,
    }
}

impl Target {
    /// Runs the function, and checks that the product has not held more memory than it may, and
    /// that no thread of it has panicked.
    pub fn check(&self, bytes: &[u8]) {
        note_panics();
        let panics = PANICS.load(Ordering::Relaxed);
        let most = memory::most_of(|| (self.run)(bytes));
        assert_eq!(PANICS.load(Ordering::Relaxed), panics, "a thread panicked");
        let (name, most_mib) = (self.name, most / MIB);
        assert!(most <= self.memory_max, "{name} has held {most_mib} MiB");
    }
}

/// Panics of the client's threads, which the client catches: its calls end with an error.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            if thread
                .name()
                .is_some_and(|name| name.starts_with("tidegate"))
            {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            before(info);
        }));
    });
}

/// Runs the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = ALL.iter().find(|target| target.name == name);
    target.expect("there is a target of this name").check(bytes);
}
