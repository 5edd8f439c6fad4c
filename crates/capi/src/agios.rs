//! The interface of AGIOS (ICPADS'13) over our scheduler: what `include/agios/agios.h` declares.
//!
//! There is one instance in a process, with a thread that calls back. Requests are named by file,
//! type, length and offset when they are released, so a table finds them again.

mod config;
mod libconfig;
mod mapping;
mod table;
mod trace;

use crate::abi::{TG_SCHED_CANCEL, TG_SCHED_DRAIN, tg_sched_entry};
use crate::failure::{self, Failure, fail};
use crate::instance::Instance;
use crate::lock::{Guard, Lock};
use crate::{caught, hash, slots, text_of, worker};
use config::{ALGORITHMS, Config};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use table::{Key, Table};
use tidegate_sched::{AppId, CostModel, Direction, FileId, Prediction, Request, RequestId};
use trace::Trace;

/// How long `agios_exit` waits for the program to take what waits, and again for the rest.
const EXIT_NS_MAX: u64 = 10_000_000_000;

type RunOne = unsafe extern "C" fn(i64) -> *mut c_void;
type RunMany = unsafe extern "C" fn(*mut i64, i32) -> *mut c_void;

/// The library between `agios_init` and `agios_exit`.
struct Agios {
    handle: usize,
    config: Config,
    queues: u32,
    /// Made of the traces that were there at the start.
    prediction: Option<Arc<Prediction>>,
    table: Table,
    trace: Option<Trace>,
    /// `agios_exit` has begun.
    ends: bool,
}

static STATE: Lock<Option<Agios>> = Lock::new(None);

/// The number of the algorithm in use, as programs of AGIOS may read it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static config_agios_default_algorithm: AtomicI32 = AtomicI32::new(2);

fn state() -> Guard<'static, Option<Agios>> {
    STATE.lock()
}

fn not_initialised() -> Failure {
    Failure::State("agios_init was not called, or failed, or agios_exit was called since")
}

/// Whether the call succeeded; if not, why is kept for `agios_error`.
fn done(call: &'static str, run: impl FnOnce() -> Result<(), Box<Failure>>) -> bool {
    caught(call, 0, || run().map(|()| 0)) == 0
}

/// Reads the configuration and starts the thread that calls back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_init(
    run_one: Option<RunOne>,
    run_many: Option<RunMany>,
    config_file: *const c_char,
    max_queue_id: i32,
) -> bool {
    let made = done("agios_init", || {
        let path = match config_file.is_null() {
            true => "",
            // SAFETY: the header's word: a string.
            false => unsafe { text_of("config_file", config_file) }?,
        };
        let run_one = run_one.ok_or(Failure::Null("the callback for one request"))?;
        let queues = u32::try_from(max_queue_id)
            .map_err(|_| Failure::Argument(format!("max_queue_id = {max_queue_id} is negative")))?;
        let path = (!path.is_empty()).then(|| Path::new(path));
        let config = config::read(path, queues).map_err(Failure::Options)?;
        init(run_one, run_many, config, queues)
    });
    if !made {
        complain();
    }
    made
}

fn init(
    run_one: RunOne,
    run_many: Option<RunMany>,
    config: Config,
    queues: u32,
) -> Result<(), Box<Failure>> {
    let mut state = state();
    if state.is_some() {
        return fail(Failure::State(
            "agios_init was called before; call agios_exit first",
        ));
    }
    let traces = match config.predict {
        true => trace::earlier(&config).or_else(|text| fail(Failure::Options(text)))?,
        false => Vec::new(),
    };
    let prediction = match traces.is_empty() {
        true => None,
        false => Some(Arc::new(Prediction::new(&traces, &CostModel::default()))),
    };
    let options = mapping::options(
        config.default_algorithm,
        &config,
        queues,
        prediction.as_ref(),
    );
    let handle = slots::insert(Instance::new(options)?, false)?;
    let trace = match config.trace {
        true => Trace::create(&config).map(Some),
        false => Ok(None),
    };
    let started = trace
        .map_err(|text| Box::new(Failure::System(text)))
        .and_then(|trace| {
            let ids = Vec::new();
            worker::start(
                handle,
                Box::new(Program {
                    run_one,
                    run_many,
                    ids,
                }),
            )
            .map(|()| trace)
        });
    let trace = match started {
        Ok(trace) => trace,
        Err(failure) => {
            slots::remove(handle)?;
            return Err(failure);
        }
    };
    show_algorithm(config.default_algorithm);
    *state = Some(Agios {
        handle,
        config,
        queues,
        prediction,
        table: Table::new(),
        trace,
        ends: false,
    });
    Ok(())
}

fn show_algorithm(name: &str) {
    let number = ALGORITHMS.iter().position(|known| *known == name);
    let number = number.expect("the configuration takes no other name") as i32;
    config_agios_default_algorithm.store(number, Ordering::Relaxed);
}

/// Why a call failed goes to standard error, where AGIOS writes too.
fn complain() {
    let text = failure::last_text(0);
    // SAFETY: the text of this thread, which has not asked again.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    eprintln!("{}", text.to_string_lossy());
}

/// The program, as the thread calls it.
struct Program {
    run_one: RunOne,
    run_many: Option<RunMany>,
    ids: Vec<i64>,
}

impl worker::Host for Program {
    fn run(&mut self, batch: &[tg_sched_entry]) {
        self.ids.clear();
        if let Some(agios) = state().as_mut() {
            let ids = batch
                .iter()
                .map(|entry| agios.table.dispatched(entry.id as u32));
            self.ids.extend(ids);
        }
        match self.run_many {
            Some(run_many) if self.ids.len() > 1 => {
                // SAFETY: the header's words: a function of this type, for any thread.
                unsafe { run_many(self.ids.as_mut_ptr(), self.ids.len() as i32) };
            }
            _ => {
                for &id in &self.ids {
                    // SAFETY: as above.
                    unsafe { (self.run_one)(id) };
                }
            }
        }
    }

    fn cancelled(&mut self, requests: &[tg_sched_entry]) {
        if let Some(agios) = state().as_mut() {
            for entry in requests {
                agios.table.remove(entry.id as u32);
            }
        }
    }
}

/// What a program names a request by.
///
/// # Safety
/// `file_id` is NULL or a string.
unsafe fn key<'a>(
    file_id: *const c_char,
    kind: i32,
    len: i64,
    offset: i64,
) -> Result<(Key, &'a [u8]), Box<Failure>> {
    if file_id.is_null() {
        return fail(Failure::Null("file_id"));
    }
    // SAFETY: the caller's word.
    let name = unsafe { std::ffi::CStr::from_ptr(file_id) }.to_bytes();
    if !(0..=1).contains(&kind) {
        return fail(Failure::Argument(format!(
            "type = {kind} is neither RT_READ nor RT_WRITE"
        )));
    }
    if offset < 0 || len < 0 {
        return fail(Failure::Argument(format!(
            "offset = {offset} or len = {len} is negative"
        )));
    }
    let key = Key {
        file: hash(name),
        offset,
        len,
        write: kind == 1,
    };
    Ok((key, name))
}

/// Hands in a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_add_request(
    file_id: *const c_char,
    kind: i32,
    offset: i64,
    len: i64,
    identifier: i64,
    queue_id: i32,
) -> bool {
    done("agios_add_request", || {
        // SAFETY: the header's word on the name.
        let (key, name) = unsafe { key(file_id, kind, len, offset) }?;
        let mut state = state();
        let agios = state.as_mut().filter(|agios| !agios.ends);
        let agios = agios.ok_or_else(not_initialised)?;
        if agios.queues > 0 && u32::try_from(queue_id).map_or(true, |queue| queue >= agios.queues) {
            return fail(Failure::Argument(format!(
                "queue_id = {queue_id} is not from 0 to {}, below the max_queue_id of agios_init",
                agios.queues - 1
            )));
        }
        let number = agios.table.add(key, identifier);
        let submitted = slots::with(agios.handle, |instance| {
            let now_ns = worker::clock_ns();
            let queue = queue_id as u32;
            let direction = if key.write {
                Direction::Write
            } else {
                Direction::Read
            };
            let id = RequestId(number.into());
            let (app, file) = (AppId(queue.into()), FileId(key.file));
            let mut request = Request::new(id, app, file, direction, offset as u64, len as u64);
            request.stamp_ns = now_ns.saturating_add(instance.options().wall_offset_ns);
            request.queue = queue;
            instance.submit(now_ns, || request)
        });
        if submitted.is_err() {
            agios.table.remove(number);
        } else if let Some(trace) = &mut agios.trace {
            trace.arrived(name, key.write, offset, len);
        }
        submitted
    })
}

/// A request that was given to a callback has been performed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_release_request(
    file_id: *const c_char,
    kind: i32,
    len: i64,
    offset: i64,
) -> bool {
    // SAFETY: the header's word on the name.
    done("agios_release_request", || unsafe {
        end(file_id, kind, len, offset, true)
    })
}

/// A request that was not given to a callback yet is not wanted any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_cancel_request(
    file_id: *const c_char,
    kind: i32,
    len: i64,
    offset: i64,
) -> bool {
    // SAFETY: the header's word on the name.
    done("agios_cancel_request", || unsafe {
        end(file_id, kind, len, offset, false)
    })
}

/// Ends a request that was, or was not, dispatched.
///
/// # Safety
/// As [`key`].
unsafe fn end(
    file_id: *const c_char,
    kind: i32,
    len: i64,
    offset: i64,
    dispatched: bool,
) -> Result<(), Box<Failure>> {
    // SAFETY: the caller's word.
    let (key, _) = unsafe { key(file_id, kind, len, offset) }?;
    let mut state = state();
    let agios = state.as_mut().ok_or_else(not_initialised)?;
    let Some(number) = agios.table.find(key, dispatched) else {
        return fail(Failure::Argument(match dispatched {
            true => "no such request was given to a callback and not yet released".to_string(),
            false => "no such request waits; it may have been given to a callback".to_string(),
        }));
    };
    slots::with(agios.handle, |instance| match dispatched {
        true => instance.complete(0, number.into()),
        // One that the thread has taken and not yet told of stays: its callback comes.
        false => instance.cancel(0, number.into()).and_then(|waited| {
            waited
                .then_some(())
                .ok_or_else(|| Box::new(Failure::State("the request is on its way to a callback")))
        }),
    })?;
    agios.table.remove(number);
    Ok(())
}

/// Gives what waits to the callbacks, and ends the thread.
#[unsafe(no_mangle)]
pub extern "C" fn agios_exit() {
    let ended = done("agios_exit", || {
        let handle = {
            let mut state = state();
            let agios = state.as_mut().filter(|agios| !agios.ends);
            let agios = agios.ok_or_else(not_initialised)?;
            agios.ends = true;
            agios.handle
        };
        let stopped = worker::stop(handle, TG_SCHED_DRAIN, EXIT_NS_MAX).or_else(|drained| {
            if !matches!(*drained, Failure::Timeout(_)) {
                return Err(drained);
            }
            eprintln!("agios: agios_exit cancels what waits: {drained}");
            worker::stop(handle, TG_SCHED_CANCEL, EXIT_NS_MAX)
        });
        if let Err(failure) = stopped {
            if let Some(agios) = state().as_mut() {
                agios.ends = false;
            }
            return Err(failure);
        }
        if let Some(mut agios) = state().take()
            && let Some(trace) = &mut agios.trace
        {
            trace.finish();
        }
        slots::remove(handle)
    });
    if !ended {
        complain();
    }
}

/// Ours: changes the algorithm; no request is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_set_algorithm(name: *const c_char) -> bool {
    done("agios_set_algorithm", || {
        // SAFETY: the header's word: a string.
        let name = unsafe { text_of("name", name) }?;
        let name = config::algorithm(name).ok_or_else(|| {
            let known = ALGORITHMS.join(", ");
            Failure::Options(format!("there is no algorithm \"{name}\"; known: {known}"))
        })?;
        let mut state = state();
        let agios = state.as_mut().ok_or_else(not_initialised)?;
        let prediction = agios.prediction.as_ref();
        let mut options = mapping::options(name, &agios.config, agios.queues, prediction);
        slots::with(agios.handle, |instance| {
            options.wall_offset_ns = instance.options().wall_offset_ns;
            instance.set_policy(0, options)
        })?;
        show_algorithm(name);
        Ok(())
    })
}

/// Ours: why the last failed call of this thread failed.
#[unsafe(no_mangle)]
pub extern "C" fn agios_error() -> *const c_char {
    failure::last_text(0)
}

/// The name of an algorithm by its number; NULL for numbers that there are not.
#[unsafe(no_mangle)]
pub extern "C" fn get_algorithm_name_from_index(index: i32) -> *mut c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let named = |name: &str| CString::new(name).expect("names have no NUL in them");
        ALGORITHMS.into_iter().map(named).collect()
    });
    let name = usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index));
    name.map_or(std::ptr::null_mut(), |name| name.as_ptr().cast_mut())
}

/// The number of an algorithm by its name; that of SJF, and false, for names that there are not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_algorithm_from_string(name: *const c_char, index: *mut c_int) -> bool {
    done("get_algorithm_from_string", || {
        if index.is_null() {
            return fail(Failure::Null("index"));
        }
        // SAFETY: the header's words: a string and a place for a number.
        let name = unsafe { text_of("name", name) }?;
        let number = ALGORITHMS.iter().position(|known| *known == name);
        // SAFETY: as above.
        unsafe { index.write(number.unwrap_or(2) as c_int) };
        let unknown = || Failure::Options(format!("there is no algorithm \"{name}\""));
        number.map(|_| ()).ok_or_else(unknown).map_err(Box::new)
    })
}
