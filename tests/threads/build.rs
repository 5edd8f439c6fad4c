//! Copies the product's files on what threads share, with loom's locks and atomics in place of the
//! standard library's. The files are otherwise as they are, without their own tests.

use std::path::Path;
use std::{env, fs};

/// What a file says of itself and what the copy says instead. All of it must be there.
type Replaced = &'static [(&'static str, &'static str)];

/// The copy's name, the product's file, what is replaced.
const COPIES: &[(&str, &str, Replaced)] = &[
    (
        "mailbox.rs",
        "crates/net/src/mailbox.rs",
        &[
            ("std::sync", "crate::sync"),
            ("mio::Waker", "crate::sync::Waker"),
        ],
    ),
    (
        "ring.rs",
        "crates/trace/src/ring.rs",
        &[("std::sync", "crate::sync")],
    ),
    (
        "waiter.rs",
        "crates/client/src/driver/waiter.rs",
        &[
            ("std::sync", "crate::sync"),
            ("std::time", "crate::time"),
            ("mio::Waker", "crate::sync::Waker"),
            ("rustix::thread::futex", "crate::futex"),
        ],
    ),
    (
        "leader.rs",
        "crates/client/src/driver/leader.rs",
        &[
            ("std::sync", "crate::sync"),
            ("std::time", "crate::time"),
            ("Mutex<Sockets>", "crate::sync::TryMutex<Sockets>"),
            ("Mutex::new(sockets)", "crate::sync::TryMutex::new(sockets)"),
            (
                "MutexGuard<'_, Sockets>",
                "crate::sync::TryGuard<'_, Sockets>",
            ),
        ],
    ),
];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for (copy, path, replaced) in COPIES {
        let path = root.join(path);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; name the file anew", path.display()));
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        // Inner comments may not stand in the middle of a file, where the copy is included.
        let lines = code.lines().filter(|line| !line.starts_with("//!"));
        let code: String = lines.flat_map(|line| [line, "\n"]).collect();
        let mut code = code.replace("use crate::", "use super::");
        for (from, to) in *replaced {
            assert!(code.contains(from), "{} has no {from}", path.display());
            code = code.replace(from, to);
        }
        fs::write(Path::new(&out).join(copy), code).expect("cargo's folder can be written to");
    }
}
