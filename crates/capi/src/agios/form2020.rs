//! The interface of AGIOS in which each request may bring its own callback: its development branch
//! of 2020, which GekkoFWD compiles against. `agios.h` has it under `AGIOS_INTERFACE` 2020.

use super::program::{Callbacks, Own, RunEach, RunMany, RunOne};
use super::session::{add_request, session, with};
use super::{Start, start};
use std::ffi::{c_char, c_void};

/// `agios_metrics_t` of the header.
#[repr(C)]
pub struct agios_metrics_t {
    total_reqnb: i64,
    reads: i64,
    writes: i64,
    avg_time_between_requests: i64,
    avg_request_size: i64,
    max_request_size: i64,
    filenb: i64,
    avg_offset_distance: i64,
    served_bytes: i64,
}

/// As `agios_init`; the callbacks may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_2020_init(
    run_one: Option<RunOne>,
    run_many: Option<RunMany>,
    config_file: *const c_char,
    max_queue_id: i32,
) -> bool {
    let how = Start {
        callbacks: Some(Callbacks::Plain(run_one, run_many)),
        each: run_one.is_none(),
        metrics: true,
        queues: max_queue_id.into(),
    };
    // SAFETY: the header's word on the path.
    unsafe { start(how, config_file) }
}

/// As `agios_add_request`, with a callback for this request alone, unless it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_2020_add_request(
    file_id: *const c_char,
    kind: i32,
    offset: i64,
    len: i64,
    identifier: i64,
    queue_id: i32,
    callback: Option<RunEach>,
    user_info: *mut c_void,
) -> bool {
    let own = callback.map(|callback| Own::new(callback, user_info));
    // SAFETY: the header's word on the name.
    unsafe { add_request(file_id, kind, offset, len, identifier, queue_id, own) == 0 }
}

/// What requests were like since the last call. The program frees it with free(); NULL without
/// memory, or outside of init and exit.
#[unsafe(no_mangle)]
pub extern "C" fn agios_get_metrics_and_reset() -> *mut agios_metrics_t {
    let mut taken = None;
    let result = with(|instance| {
        taken = Some(session(instance)?.take_metrics());
        Ok(())
    });
    crate::call::answer("agios_get_metrics_and_reset", 0, result.map(|()| 0));
    let Some(metrics) = taken else {
        return std::ptr::null_mut();
    };
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    // SAFETY: nothing is asked of the caller.
    let place = unsafe { libc::malloc(size_of::<agios_metrics_t>()) }.cast::<agios_metrics_t>();
    if !place.is_null() {
        let metrics = agios_metrics_t {
            total_reqnb: number(metrics.requests()),
            reads: number(metrics.reads),
            writes: number(metrics.writes),
            avg_time_between_requests: number(metrics.between_ns()),
            avg_request_size: number(metrics.len_mean()),
            max_request_size: number(metrics.len_max),
            filenb: number(metrics.files()),
            avg_offset_distance: number(metrics.distance_mean()),
            served_bytes: number(metrics.served_bytes),
        };
        // SAFETY: it is ours, and as large as that.
        unsafe { place.write(metrics) };
    }
    place
}
