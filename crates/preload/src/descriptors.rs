//! What the library knows of each descriptor number: one word, which it changes without a lock.
//!
//! A word is valid in the generation in which it was written. A new generation, in a fork child or
//! after a call that may have changed many descriptors at once, makes all numbers unknown.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The library leaves descriptors from this number on to the mount.
const DESCRIPTORS_MAX: usize = 65_536;

/// The last number that has a word.
pub(crate) const LAST: u32 = DESCRIPTORS_MAX as u32 - 1;

/// The client's own descriptors begin at this number, or below it where the limit is lower.
pub(crate) const OWN_FROM_MAX: u64 = 60_000;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not examined yet.
    Unknown,
    /// The kernel serves it, for whatever reason.
    Foreign,
    /// A file on a mount, with this number of data calls so far.
    Seen(u16),
    /// A file whose data calls this library sends to the forwarders.
    Intercepted,
    /// The client's own descriptor, which the program must not close.
    Own,
}

static WORDS: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];
static GENERATION: AtomicU16 = AtomicU16::new(0);

const FOREIGN: u32 = 1;
const ADOPTED: u32 = 2;
const OWN: u32 = 3;
const SEEN: u32 = 4;
/// The largest count of calls.
const CALLS_MAX: u16 = 0x0fff;

fn word(fd: i32) -> Option<&'static AtomicU32> {
    WORDS.get(usize::try_from(fd).ok()?)
}

fn generation() -> u32 {
    u32::from(GENERATION.load(Ordering::Relaxed)) << 16
}

/// What the library knows of a descriptor.
#[inline]
pub(crate) fn kind(fd: i32) -> Kind {
    let Some(word) = word(fd) else {
        return Kind::Foreign;
    };
    let value = word.load(Ordering::Acquire);
    if value & 0xffff_0000 != generation() {
        return Kind::Unknown;
    }
    match value & 0xffff {
        0 => Kind::Unknown,
        FOREIGN => Kind::Foreign,
        ADOPTED => Kind::Intercepted,
        OWN => Kind::Own,
        seen => Kind::Seen((seen - SEEN) as u16),
    }
}

/// Records what a descriptor is.
pub(crate) fn set(fd: i32, kind: Kind) {
    let value = match kind {
        Kind::Unknown => 0,
        Kind::Foreign => FOREIGN,
        Kind::Intercepted => ADOPTED,
        Kind::Own => OWN,
        Kind::Seen(calls) => SEEN + u32::from(calls.min(CALLS_MAX)),
    };
    if let Some(word) = word(fd) {
        word.store(generation() | value, Ordering::Release);
    }
}

/// Makes all descriptors unknown, the client's own too.
pub(crate) fn forget_all() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_until_the_next_generation() {
        let kinds = [
            Kind::Foreign,
            Kind::Intercepted,
            Kind::Own,
            Kind::Seen(0),
            Kind::Seen(7),
            Kind::Unknown,
        ];
        for (fd, kind_of) in (0..).zip(kinds) {
            set(fd, kind_of);
        }
        for (fd, kind_of) in (0..).zip(kinds) {
            assert_eq!(kind(fd), kind_of);
        }
        set(9, Kind::Seen(u16::MAX));
        assert_eq!(kind(9), Kind::Seen(CALLS_MAX));
        forget_all();
        assert!((0..10).all(|fd| kind(fd) == Kind::Unknown));
        // Numbers that have no word.
        for fd in [-1, i32::MIN, DESCRIPTORS_MAX as i32] {
            set(fd, Kind::Intercepted);
            assert_eq!(kind(fd), Kind::Foreign);
        }
    }
}
