//! What commands of `tidegate` and `tidegate-lab` print. A reader that goes away, as in
//! `tidegate sim --list | head -1`, ends the printing and not the command; any other error of
//! standard output makes the command fail at its end.
//!
//! The standard library's `println!` panics in both cases, so commands use [`outln!`](crate::outln)
//! and its kin.

use crate::fail::Fail;
use crate::plain;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// The first error of standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints to standard output, unless that has failed before. Others may have chosen words in it.
pub fn print(text: Arguments<'_>) {
    let text = plain::page(&text.to_string());
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if failed.is_none() {
        *failed = io::stdout().write_all(text.as_bytes()).err();
    }
}

/// Draws on standard error, with orders to the terminal. There is nowhere to say that this fails.
pub fn draw(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Prints to standard error. Others may have chosen words in it.
pub fn complain(text: Arguments<'_>) {
    let _ = io::stderr().write_all(plain::page(&text.to_string()).as_bytes());
}

/// Hands on what was printed; false if nobody reads it any more.
pub fn flush() -> bool {
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if failed.is_none() {
        *failed = io::stdout().flush().err();
    }
    failed.is_none()
}

/// Hands on what was printed. An error if some of it was lost, but for a reader that went away.
pub fn finish() -> Result<(), Fail> {
    flush();
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    match failed.take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Fail::runtime(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints to standard output, as `print!` does.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line to standard output, as `println!` does.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Draws on standard error, as `eprint!` does, with orders to the terminal.
#[macro_export]
macro_rules! err {
    ($($text:tt)*) => { $crate::output::draw(format_args!($($text)*)) };
}

/// Prints a line to standard error, as `eprintln!` does.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($text)*))) };
}
