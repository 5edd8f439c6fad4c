//! The setting from the environment: `TIDEGATE_SHORTCUT`.

use std::sync::atomic::{AtomicU8, Ordering};

/// How the short-cut behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The mount serves everything.
    Off = 0,
    /// The library intercepts a file after several data calls on it.
    Normal = 1,
    /// The library intercepts a file with its first data call: for tests.
    Eager = 2,
    /// Like `Eager`. In addition, a descriptor that became another file without a hook seeing it
    /// ends the program, because it shows that a hook is missing.
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

/// The effective mode.
#[inline]
pub(crate) fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        1 => Mode::Normal,
        2 => Mode::Eager,
        3 => Mode::Check,
        _ => Mode::Off,
    }
}

/// Sets the mode.
pub(crate) fn set(mode: Mode) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Writes a line to standard error, without the hooks.
pub(crate) fn say(line: &[u8]) {
    // SAFETY: the bytes are there. There is nobody to tell if it fails.
    unsafe {
        libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len());
    }
}
