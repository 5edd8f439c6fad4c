//! The C ABI: what `include/tidegate.h` declares.
//!
//! Every function returns a negative errno on failure and leaves a text for the calling thread.
//! Handles are numbers in the shape of pointers: they are looked up and never followed, so that a
//! stale or wild one is EINVAL. A panic becomes EIO and makes its client unusable. Buffers and
//! strings are the caller's word: each `unsafe` below relies on what the function's comment, which
//! is the header's, asks of them.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod error;
mod files;
mod lists;
mod paths;
mod registry;

pub use error::tidegate_error_text;
pub use files::*;
pub use lists::*;
pub use paths::*;

use crate::{Client, Context, Options, app_id};
use error::{Failure, run};
use registry::Owner;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// A client of a set of forwarders. For many threads; not for a fork child.
pub struct tidegate_client {
    _private: [u8; 0],
}

/// An open file. For many threads.
pub struct tidegate_file {
    _private: [u8; 0],
}

/// An open directory. For many threads, which share its position.
pub struct tidegate_dir {
    _private: [u8; 0],
}

/// Opens sessions with the forwarders that `config` names, such as
/// "unix:/run/a.sock,tcp:node7:7000;secret=/etc/tidegate/secret;timeout_s=30", and sets `*client`.
/// -EINVAL for a wrong `config`, -ENOTCONN if nobody answers, -EACCES if they refuse.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_connect(
    config: *const c_char,
    client: *mut *mut tidegate_client,
) -> c_int {
    run("connect", || {
        if client.is_null() {
            return Err(Failure::invalid("client is NULL"));
        }
        // SAFETY: `config` is NULL or a string.
        let config = unsafe { text(config) }?;
        let config = std::str::from_utf8(config).map_err(|_| Failure::invalid("not UTF-8"))?;
        let connected = Client::connect(Options::from_text(config)?)?;
        let id = registry::add(Owner::new(connected));
        // SAFETY: `client` points to a place for a pointer.
        unsafe { client.write(id as *mut tidegate_client) };
        Ok(0)
    }) as c_int
}

/// Ends the sessions of a client, within a second. Calls that still run, and later ones on its
/// files, end with -EIO; the files and directories must still be closed.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_disconnect(client: *mut tidegate_client) -> c_int {
    run("disconnect", || {
        let owner = registry::remove::<Owner>(client as usize)?;
        owner.client.shutdown();
        Ok(0)
    }) as c_int
}

/// Names the application that later calls of this client belong to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_set_application(
    client: *mut tidegate_client,
    name: *const c_char,
) -> c_int {
    with_client("set_application", client, |owner, _| {
        // SAFETY: `name` is NULL or a string.
        let name = unsafe { text(name) }?;
        owner.set_app(app_id(&String::from_utf8_lossy(name)));
        Ok(0)
    }) as c_int
}

/// Copies the state of forwarder `index` as JSON text to `buffer`, cut to `len` bytes with the
/// final NUL. Returns the whole text's length without NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_status(
    client: *mut tidegate_client,
    index: usize,
    buffer: *mut c_char,
    len: usize,
) -> i64 {
    with_client("status", client, |owner, _| {
        check_buffer(buffer.cast(), len)?;
        let text = owner.client.status(index)?;
        if len > 0 {
            let copied = text.len().min(len - 1);
            // SAFETY: `buffer` has room for `len` bytes, of which at most `len` are written.
            unsafe {
                buffer.copy_from_nonoverlapping(text.as_ptr().cast(), copied);
                buffer.add(copied).write(0);
            }
        }
        Ok(text.len() as i64)
    })
}

/// Version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL in it"),
        };
    VERSION.as_ptr()
}

/// Runs `call` on a live client that no panic has spoilt, in its context.
fn with_client(
    what: &str,
    client: *mut tidegate_client,
    call: impl FnOnce(&Arc<Owner>, &Context) -> Result<i64, Failure>,
) -> i64 {
    run(what, || {
        let owner = registry::find::<Owner>(client as usize)?;
        owner.guard(|| call(&owner, &owner.context()))
    })
}

/// The bytes of a C string.
///
/// # Safety
/// `text` is NULL or points to a string that stays until the caller returns.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid("a string is NULL"));
    }
    // SAFETY: not NULL, so it is a string.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn check_buffer(buffer: *const c_void, len: usize) -> Result<(), Failure> {
    if (buffer.is_null() && len > 0) || isize::try_from(len).is_err() {
        return Err(Failure::invalid("a buffer is NULL or too long"));
    }
    Ok(())
}
