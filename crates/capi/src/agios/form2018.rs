//! The interface of AGIOS from 2015 to 2018: `struct client`, results of type `int`, statistics.
//! `agios.h` has it under `AGIOS_INTERFACE` 2015 and 2018, and says which calls became these.

use super::program::{Callbacks, RunManyInt, RunManyWide, RunOneInt, RunOneWide};
use super::session::{add_request, end_request, session, with};
use super::{Start, algorithm_name, start};
use crate::call::{answer, text_of};
use crate::failure::{Failure, TG_SCHED_E_FULL};
use std::ffi::{c_char, c_int};
use std::sync::Once;

/// `struct client` of the header. What its functions take depends on the size that
/// `agios_2018_init` is told.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct client {
    process_request: Option<unsafe extern "C" fn()>,
    process_requests: Option<unsafe extern "C" fn()>,
    is_dev_idle: Option<unsafe extern "C" fn() -> c_int>,
}

/// The client's functions, for data of `size` bytes.
///
/// # Safety
/// They are of the types that the header gives them for this size.
unsafe fn callbacks(client: client, size: usize) -> Option<Callbacks> {
    let (one, many) = (client.process_request?, client.process_requests);
    // SAFETY: the caller's word on the types.
    unsafe {
        use std::mem::transmute;
        Some(match size {
            size if size == size_of::<isize>() => Callbacks::Wide(
                transmute::<unsafe extern "C" fn(), RunOneWide>(one),
                many.map(|many| transmute::<unsafe extern "C" fn(), RunManyWide>(many)),
            ),
            _ => Callbacks::Int(
                transmute::<unsafe extern "C" fn(), RunOneInt>(one),
                many.map(|many| transmute::<unsafe extern "C" fn(), RunManyInt>(many)),
            ),
        })
    }
}

/// Starts the library; 0, or -EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_2018_init(
    client: *const client,
    config_file: *const c_char,
    max_app_id: c_int,
    data_size: usize,
) -> c_int {
    // SAFETY: the header's words: NULL or a client, whose functions are of these types.
    let callbacks = unsafe { client.as_ref().and_then(|it| callbacks(*it, data_size)) };
    let how = Start {
        callbacks,
        each: false,
        metrics: true,
        // The largest number of an application, not how many there are.
        queues: i64::from(max_app_id) + i64::from(max_app_id > 0),
    };
    // SAFETY: the header's word on the path.
    match unsafe { start(how, config_file) } {
        true => 0,
        false => -libc::EINVAL,
    }
}

/// Hands in a request; 0, -ENOMEM if the queue is full, or else -EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_2018_add_request(
    file_id: *const c_char,
    kind: c_int,
    offset: i64,
    len: i64,
    data: i64,
    _client: *const client,
    app_id: c_int,
) -> c_int {
    // SAFETY: the header's word on the name.
    match unsafe { add_request(file_id, kind, offset, len, data, app_id, None) } {
        0 => 0,
        TG_SCHED_E_FULL => -libc::ENOMEM,
        _ => -libc::EINVAL,
    }
}

/// A request has been performed; 1, or 0 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_2018_release_request(
    file_id: *const c_char,
    kind: c_int,
    len: i64,
    offset: i64,
) -> c_int {
    // SAFETY: the header's word on the name.
    unsafe { end_request(file_id, kind, len, offset, true) }.into()
}

/// A request is not wanted any more; 1, or 0 if none waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_2018_cancel_request(
    file_id: *const c_char,
    kind: c_int,
    len: i64,
    offset: i64,
) -> c_int {
    // SAFETY: the header's word on the name.
    unsafe { end_request(file_id, kind, len, offset, false) }.into()
}

/// Writes what requests were like since the last reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_print_stats_file(filename: *const c_char) {
    // SAFETY: the header's word: a string.
    let path = unsafe { text_of("filename", filename) };
    let written = path.and_then(|path| {
        let mut text = String::new();
        with(|instance| {
            text = session(instance)?.metrics_text(algorithm_name());
            Ok(())
        })?;
        std::fs::write(path, text)
            .map_err(|error| Box::new(Failure::System(format!("{path}: {error}"))))
    });
    if answer("agios_print_stats_file", 0, written.map(|()| 0)) != 0 {
        super::complain();
    }
}

/// Begins to count anew.
#[unsafe(no_mangle)]
pub extern "C" fn agios_reset_stats() {
    let result = with(|instance| {
        session(instance)?.take_metrics();
        Ok(())
    });
    answer("agios_reset_stats", 0, result.map(|()| 0));
}

/// Means nothing here, and says so once; 1, which is success.
#[unsafe(no_mangle)]
pub extern "C" fn agios_set_stripe_size(_file_id: *const c_char, _stripe_size: c_int) -> c_int {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!("agios: agios_set_stripe_size has no effect: no algorithm here looks at stripes");
    });
    1
}

/// Traces are read before `agios_init` returns, so there is nothing to wait for.
#[unsafe(no_mangle)]
pub extern "C" fn agios_wait_predict_init() {}
