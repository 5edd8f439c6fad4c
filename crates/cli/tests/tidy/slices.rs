//! Slices that are made of an address: each is a promise that nobody else changes the bytes, which
//! no process can make of memory that it shares with others.

use super::{report, sources};
use std::collections::BTreeMap;

/// The files that make some, how many, and of which memory.
const KNOWN: &[(&str, usize, &str)] = &[
    ("capi/src/abi.rs", 1, "the caller's"),
    ("capi/src/lib.rs", 1, "the caller's"),
    (
        "client/src/arena.rs",
        2,
        "pieces of an arena that no forwarder gets",
    ),
    ("client/src/capi/files.rs", 1, "the caller's"),
    ("client/src/capi/lists.rs", 1, "the caller's"),
    (
        "fabric/src/memory.rs",
        1,
        "messages, in which no peer has a place",
    ),
    ("net/src/munge.rs", 1, "the munge library's"),
    ("preload/src/again.rs", 1, "the program's"),
    ("preload/src/data.rs", 1, "the program's list of buffers"),
    ("preload/src/hints.rs", 1, "the caller's"),
    ("preload/src/starts.rs", 1, "the program's"),
    ("server/src/seats/mapped_table.rs", 1, "atomics"),
    ("server/src/seats/uncached.rs", 2, "a buffer of its own"),
    ("server/src/storage/posix/ring_memory.rs", 1, "atomics"),
    ("server/src/storage/slots.rs", 2, "a buffer of its own"),
];

#[test]
fn no_slice_is_made_of_memory_that_others_change() {
    let mut known: BTreeMap<String, usize> = KNOWN
        .iter()
        .map(|(path, count, _)| (format!("crates/{path}"), *count))
        .collect();
    let mut problems = Vec::new();
    for source in sources() {
        if !source.is("rs") || !source.path.contains("/src/") {
            continue;
        }
        let count = source.text.matches("from_raw_parts").count();
        let wanted = known.remove(&source.path).unwrap_or(0);
        if count != wanted {
            problems.push(format!(
                "{} makes {count} slices of addresses, and {wanted} are known",
                source.path
            ));
        }
    }
    problems.extend(known.into_keys().map(|path| format!("{path} is not there")));
    report(
        problems,
        "bytes that another process can write are `RawBytes`; a slice of other memory has a line \
         in crates/cli/tests/tidy/slices.rs, which says whose memory it is",
    );
}
