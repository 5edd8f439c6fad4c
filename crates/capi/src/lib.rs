//! The C ABI of the scheduler: what `include/tidegate_sched.h` declares.
//!
//! Every call answers with a code, and keeps a text of what went wrong. Handles are numbers in the
//! shape of pointers that are looked up and never followed; no panic goes further than the call.
//! Other pointers are the caller's word, checked for NULL: each `unsafe` below relies on what the
//! header asks of them. [`agios`] is the interface of AGIOS over the same.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

pub mod abi;
pub mod agios;
mod call;
mod callbacks;
mod clock;
mod failure;
mod files;
mod handles;
mod hash;
mod history;
mod instance;
mod lock;
mod options;
mod thread;
mod worker;

pub use abi::{
    TG_SCHED_ALONE, TG_SCHED_CANCEL, TG_SCHED_DISPATCH, TG_SCHED_DRAIN, TG_SCHED_IDLE,
    TG_SCHED_READ, TG_SCHED_WAIT, TG_SCHED_WRITE, tg_sched, tg_sched_callbacks, tg_sched_entry,
    tg_sched_options, tg_sched_request, tg_sched_statistics,
};
use abi::{read_sized, same_size, write_sized};
use call::{answer, caught, put, text_of};
pub use callbacks::{tg_sched_start, tg_sched_stop};
use failure::{Failure, fail};
use hash::hash;
use instance::{Instance, Next};
use options::Settings;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;
use tidegate_sched::policies;

/// Version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL in it"),
        };
    VERSION.as_ptr()
}

/// The name of policy number `index`, from 0; NULL beyond the last.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_policy_name(index: usize) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let named = |name: &&str| CString::new(*name).expect("names have no NUL in them");
        policies::NAMES.iter().map(named).collect()
    });
    names
        .get(index)
        .map_or(std::ptr::null(), |name| name.as_ptr())
}

/// The id of an application or a file from `len` bytes of its name; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_hash(name: *const c_void, len: usize) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller's word: `len` readable bytes.
    hash(unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len) })
}

/// Why the last failed call of this thread failed, if it was on `handle` or `handle` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_error(handle: *const tg_sched) -> *const c_char {
    failure::last_text(handle as usize)
}

/// CLOCK_MONOTONIC in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_clock_ns() -> u64 {
    clock::clock_ns()
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_wall_offset_ns() -> u64 {
    clock::wall_offset_ns()
}

/// Makes options for `policy`, with everything else at its default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_options_new(
    policy: *const c_char,
    options: *mut *mut tg_sched_options,
) -> c_int {
    caught("options_new", 0, || {
        // SAFETY: the header's words on both arguments.
        unsafe {
            put("options", options, || {
                let name = text_of("policy", policy)?;
                Ok(options::insert(Settings::for_policy(name)))
            })
        }
    })
}

/// Sets one option from text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_options_set(
    options: *mut tg_sched_options,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    caught("options_set", options as usize, || {
        // SAFETY: the header's words on both strings.
        let (name, value) = unsafe { (text_of("name", name)?, text_of("value", value)?) };
        options::with(options as usize, |settings| settings.set(name, value))?;
        Ok(0)
    })
}

/// Sets the options of a line such as "depth=4 window_ms=250".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_options_parse(
    options: *mut tg_sched_options,
    line: *const c_char,
) -> c_int {
    caught("options_parse", options as usize, || {
        // SAFETY: the header's words on the string.
        let line = unsafe { text_of("line", line)? };
        options::with(options as usize, |settings| settings.parse(line))?;
        Ok(0)
    })
}

/// Ends options. Schedulers made from them do not need them.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_options_free(options: *mut tg_sched_options) -> c_int {
    caught("options_free", options as usize, || {
        options::remove(options as usize)?;
        Ok(0)
    })
}

/// Makes a scheduler with nothing queued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_new(
    options: *const tg_sched_options,
    handle: *mut *mut tg_sched,
) -> c_int {
    caught("new", options as usize, || {
        // SAFETY: the header's word on `handle`.
        unsafe {
            put("handle", handle, || {
                let settings = options::copy(options as usize)?;
                let single = settings.single_thread;
                handles::insert(Instance::new(settings.finish())?, single)
            })
        }
    })
}

/// Ends a scheduler and forgets its requests.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_free(handle: *mut tg_sched) -> c_int {
    let removed = handles::remove(handle as usize);
    answer("free", handle as usize, removed.map(|()| 0))
}

/// Hands in a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_submit(
    handle: *mut tg_sched,
    now_ns: u64,
    request: *const tg_sched_request,
) -> c_int {
    // SAFETY: the header's word on the request.
    let Some(request) = (unsafe { same_size(request) }) else {
        // SAFETY: as above.
        return unsafe { submit_other_size(handle, now_ns, request) };
    };
    let result = handles::with(handle as usize, |instance| {
        request.check()?;
        instance.submit(now_ns, || request.request())
    });
    answer("submit", handle as usize, result.map(|()| 0))
}

/// As `tg_sched_submit`, for a host that was compiled with another header.
///
/// # Safety
/// As [`read_sized`].
#[cold]
#[inline(never)]
unsafe fn submit_other_size(
    handle: *mut tg_sched,
    now_ns: u64,
    request: *const tg_sched_request,
) -> c_int {
    let min = offset_of!(tg_sched_request, stamp_ns);
    // SAFETY: the caller's word.
    match unsafe { read_sized("request", request, min) } {
        Ok(mut request) => {
            request.size = size_of::<tg_sched_request>();
            // SAFETY: it lies here, and has its size now.
            unsafe { tg_sched_submit(handle, now_ns, &request) }
        }
        Err(failure) => answer("submit", handle as usize, Err(failure)),
    }
}

/// Tells that nobody waits for a request any more. 1: it will not run; 0: it runs already.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_cancel(handle: *mut tg_sched, now_ns: u64, id: u64) -> c_int {
    let result = handles::with(handle as usize, |instance| instance.cancel(now_ns, id));
    answer("cancel", handle as usize, result.map(c_int::from))
}

/// Asks what to do next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_poll(
    handle: *mut tg_sched,
    now_ns: u64,
    entries: *mut tg_sched_entry,
    room: usize,
    count: *mut usize,
    wake_ns: *mut u64,
) -> c_int {
    if entries.is_null() || count.is_null() {
        let what = if count.is_null() { "count" } else { "entries" };
        return answer("poll", handle as usize, fail(Failure::Null(what)));
    }
    let mut what = TG_SCHED_IDLE;
    let result = handles::with(handle as usize, |instance| {
        if instance.thread().is_some() {
            return fail(Failure::State("the scheduler's own thread polls it"));
        }
        // SAFETY: the header's words: `count` and `wake_ns` are places, `entries` an array of
        // `room`.
        what = unsafe { poll(instance, now_ns, (entries, room), count, wake_ns) }?;
        Ok(())
    });
    answer("poll", handle as usize, result.map(|()| what))
}

/// # Safety
/// `into` is an array with that room; `count` is a place, and `wake_ns` is one or NULL.
#[inline(always)]
unsafe fn poll(
    instance: &mut Instance,
    now_ns: u64,
    (entries, room): (*mut tg_sched_entry, usize),
    count: *mut usize,
    wake_ns: *mut u64,
) -> Result<c_int, Box<Failure>> {
    let (answer, found, until) = match instance.next(now_ns) {
        Next::Batch => (TG_SCHED_DISPATCH, instance.batch().len(), u64::MAX),
        Next::WaitUntil(until) => (TG_SCHED_WAIT, 0, until.0),
        Next::Idle => (TG_SCHED_IDLE, 0, u64::MAX),
    };
    // SAFETY: the caller's word.
    unsafe {
        count.write(found);
        if !wake_ns.is_null() {
            wake_ns.write(until);
        }
    }
    if answer != TG_SCHED_DISPATCH {
        return Ok(answer);
    }
    if found > room {
        instance.keep_batch(true);
        return fail(Failure::Room {
            needed: found,
            room,
        });
    }
    for index in 0..found {
        // SAFETY: the batch has `found` requests, and there is room for so many.
        unsafe {
            let request = instance.batch().get_unchecked(index);
            entries.add(index).write(tg_sched_entry::from(request));
        }
    }
    instance.keep_batch(false);
    Ok(answer)
}

/// Tells that a dispatched request is done, whether or not it succeeded.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_complete(handle: *mut tg_sched, now_ns: u64, id: u64) -> c_int {
    let result = handles::with(handle as usize, |instance| instance.complete(now_ns, id));
    answer("complete", handle as usize, result.map(|()| 0))
}

/// Changes policy and options; no request is lost.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_set_policy(
    handle: *mut tg_sched,
    now_ns: u64,
    options: *const tg_sched_options,
) -> c_int {
    let result = options::copy(options as usize).and_then(|settings| {
        handles::with(handle as usize, |instance| {
            // Unlike for a new scheduler: NULL would make it fifo without a word.
            if options.is_null() {
                return fail(Failure::Null("options"));
            }
            let mut changed = settings.finish();
            if changed.wall_offset_ns == 0 {
                changed.wall_offset_ns = instance.options().wall_offset_ns;
            }
            instance.set_policy(now_ns, changed)
        })
    });
    answer("set_policy", handle as usize, result.map(|()| 0))
}

/// Copies the name of the current policy, cut to `len` bytes with its NUL; returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_policy(
    handle: *mut tg_sched,
    buffer: *mut c_char,
    len: usize,
) -> c_int {
    let result = handles::with(handle as usize, |instance| {
        if buffer.is_null() && len > 0 {
            return fail(Failure::Null("buffer"));
        }
        let name = instance.policy();
        if len > 0 {
            let copied = name.len().min(len - 1);
            // SAFETY: the header's word: the buffer has `len` bytes.
            unsafe {
                buffer.copy_from_nonoverlapping(name.as_ptr().cast(), copied);
                buffer.add(copied).write(0);
            }
        }
        Ok(name.len() as c_int)
    });
    answer("policy", handle as usize, result)
}

/// Counts since the start, and what is there now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_stats(
    handle: *mut tg_sched,
    statistics: *mut tg_sched_statistics,
) -> c_int {
    let result = handles::with(handle as usize, |instance| {
        let counted = tg_sched_statistics::from(instance.stats());
        // SAFETY: the header's word on the structure.
        unsafe { write_sized("statistics", statistics, &counted) }
    });
    answer("stats", handle as usize, result.map(|()| 0))
}

/// The number of the current window, which goes into replies; 0 without windows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_epoch(
    handle: *mut tg_sched,
    now_ns: u64,
    epoch: *mut u64,
) -> c_int {
    let result = handles::with(handle as usize, |instance| {
        if epoch.is_null() {
            return fail(Failure::Null("epoch"));
        }
        // SAFETY: the header's word: a place for a number.
        unsafe { epoch.write(instance.epoch(now_ns)) };
        Ok(0)
    });
    answer("epoch", handle as usize, result)
}
