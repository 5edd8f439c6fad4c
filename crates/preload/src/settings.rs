//! What the environment asks for: `TIDEGATE_SHORTCUT`.

use std::sync::atomic::{AtomicU8, Ordering};

/// How the short-cut behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything goes through the mount.
    Off = 0,
    /// Files are taken once they are worth it.
    Normal = 1,
    /// Files are taken with their first call: for tests.
    Eager = 2,
    /// As `Eager`; a descriptor that turns out to be another file than it was taken for, without
    /// that having been seen, ends the program: it tells of a hook that is missing.
    Check = 3,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Off as u8);

/// Reads the environment, once, before the program runs.
pub(crate) fn read() {
    // SAFETY: nobody changes the environment before the program runs.
    let value = unsafe { libc::getenv(c"TIDEGATE_SHORTCUT".as_ptr()) };
    let text = match value.is_null() {
        true => c"",
        // SAFETY: a variable is a string.
        false => unsafe { std::ffi::CStr::from_ptr(value) },
    };
    let mode = match text.to_bytes() {
        b"" | b"on" => Mode::Normal,
        b"eager" => Mode::Eager,
        b"check" => Mode::Check,
        b"off" => Mode::Off,
        _ => {
            say(b"tidegate: TIDEGATE_SHORTCUT is neither on, off, eager nor check; it is off\n");
            Mode::Off
        }
    };
    set(mode);
}

/// The mode in force.
#[inline]
pub(crate) fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        1 => Mode::Normal,
        2 => Mode::Eager,
        3 => Mode::Check,
        _ => Mode::Off,
    }
}

/// From now on everything goes through the mount.
pub(crate) fn set(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Writes a line to standard error, past the hooks.
pub(crate) fn say(line: &[u8]) {
    // SAFETY: the bytes are there. There is nobody to tell if it fails.
    unsafe {
        libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len());
    }
}
