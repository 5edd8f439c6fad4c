//! What is fuzzed: one function for each place where bytes come from outside. It takes any bytes,
//! and panics where the product does or where a promise does not hold.
//!
//! `fuzz/` makes a fuzzer of each function. `fuzz/corpus` keeps inputs for each, which the test of
//! this crate replays with the ordinary compiler.

mod client;
mod configuration;
mod darshan;
mod draw;
mod frame;
mod fuse;
mod greeting;
mod host;
mod kept;
mod operation;
mod table;
mod trace;
mod users;

use draw::Draw;

/// A function that takes bytes from outside.
pub struct Target {
    /// Its name, which its fuzzer and its corpus have.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
}

/// All of them.
pub const ALL: &[Target] = &[
    target("client", client::run),
    target("configuration", configuration::run),
    target("darshan", darshan::run),
    target("frame", frame::run),
    target("fuse", fuse::run),
    target("greeting", greeting::run),
    target("kept", kept::run),
    target("table", table::run),
    target("trace", trace::run),
    target("users", users::run),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Runs the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = ALL.iter().find(|target| target.name == name);
    (target.expect("there is a target of this name").run)(bytes);
}
