//! The interfaces of AGIOS (ICPADS'13) over our scheduler: what `include/agios.h` declares.
//!
//! There is one instance in a process, with a thread that calls back. This file begins and ends it;
//! `agios/session.rs` is what happens to a request. Its functions are the interface of 2019, those
//! of others are in files of their own.

mod config;
mod form2018;
mod form2020;
mod libconfig;
mod mapping;
mod metrics;
mod program;
mod session;
mod table;
mod trace;

use crate::abi::{TG_SCHED_CANCEL, TG_SCHED_DRAIN};
use crate::call::{caught, text_of};
use crate::failure::{self, Failure, fail};
use crate::instance::Instance;
use crate::lock::{Guard, Lock};
use crate::{handles, worker};
use config::{ALGORITHMS, Config};
use program::{Callbacks, Program, RunMany, RunOne};
use session::{HANDLE, Session, add_request, end_request, not_initialised, session};
use std::any::Any;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_sched::{CostModel, Prediction};
use trace::Trace;

/// How long `agios_exit` waits for the program to take what waits, and again for the rest.
const EXIT_NS_MAX: u64 = 10_000_000_000;

/// The library between `agios_init` and `agios_exit`.
struct Agios {
    handle: usize,
    config: Config,
    queues: u32,
    /// Made of the traces that were there at the start.
    prediction: Option<Arc<Prediction>>,
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

/// Whether the call succeeded; if not, why is kept for `agios_error`.
fn done(call: &'static str, run: impl FnOnce() -> Result<(), Box<Failure>>) -> bool {
    caught(call, 0, || run().map(|()| 0)) == 0
}

/// How the library is started.
struct Start {
    /// None: the program gave none.
    callbacks: Option<Callbacks>,
    /// Each request brings its own.
    each: bool,
    /// Whether requests are counted.
    metrics: bool,
    /// How many numbers of queues are in use.
    queues: i64,
}

/// Reads the configuration and starts the thread that calls back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agios_init(
    run_one: Option<RunOne>,
    run_many: Option<RunMany>,
    config_file: *const c_char,
    max_queue_id: i32,
) -> bool {
    let how = Start {
        callbacks: run_one.map(|run_one| Callbacks::Plain(Some(run_one), run_many)),
        each: false,
        metrics: false,
        queues: max_queue_id.into(),
    };
    // SAFETY: the header's word on the path.
    unsafe { start(how, config_file) }
}

/// Starts the library; says on standard error why it cannot, and which settings mean nothing.
///
/// # Safety
/// `config_file` is NULL or a string.
unsafe fn start(how: Start, config_file: *const c_char) -> bool {
    let made = done("agios_init", || {
        let path = match config_file.is_null() {
            true => "",
            // SAFETY: the caller's word.
            false => unsafe { text_of("config_file", config_file) }?,
        };
        let callbacks = how.callbacks;
        let callbacks = callbacks.ok_or(Failure::Null("the callback for one request"))?;
        let queues = u32::try_from(how.queues)
            .map_err(|_| Failure::Argument(format!("max_queue_id = {} is negative", how.queues)))?;
        let path = (!path.is_empty()).then(|| Path::new(path));
        let config = config::read(path, queues).map_err(Failure::Options)?;
        let without_effect = config.without_effect.join(", ");
        init(Program::new(callbacks), config, queues, &how)?;
        if !without_effect.is_empty() {
            let path = path.unwrap_or(Path::new(config::DEFAULT_PATH)).display();
            eprintln!("agios: {path}: these settings have no effect: {without_effect}");
        }
        Ok(())
    });
    if !made {
        complain();
    }
    made
}

fn init(program: Program, config: Config, queues: u32, how: &Start) -> Result<(), Box<Failure>> {
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
    let mut instance = Instance::new(options)?;
    let trace = match config.trace {
        true => Some(Trace::create(&config).map_err(Failure::System)?),
        false => None,
    };
    let session = Session::new(queues, trace, how.metrics, how.each);
    instance.adapter = Some(Box::new(session));
    let handle = handles::insert(instance, false)?;
    if let Err(failure) = worker::start(handle, Box::new(program)) {
        handles::remove(handle)?;
        return Err(failure);
    }
    show_algorithm(config.default_algorithm);
    *state = Some(Agios {
        handle,
        config,
        queues,
        prediction,
        ends: false,
    });
    HANDLE.store(handle, Ordering::Release);
    Ok(())
}

fn show_algorithm(name: &str) {
    let number = ALGORITHMS.iter().position(|known| *known == name);
    let number = number.expect("the configuration takes no other name") as i32;
    config_agios_default_algorithm.store(number, Ordering::Relaxed);
}

/// The name of the algorithm in use.
fn algorithm_name() -> &'static str {
    let number = config_agios_default_algorithm.load(Ordering::Relaxed);
    ALGORITHMS.get(number as usize).copied().unwrap_or("SJF")
}

/// Why a call failed goes to standard error, where AGIOS writes too.
fn complain() {
    let text = failure::last_text(0);
    // SAFETY: the text of this thread, which has not asked again.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    eprintln!("{}", text.to_string_lossy());
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
    // SAFETY: the header's word on the name.
    unsafe { add_request(file_id, kind, offset, len, identifier, queue_id, None) == 0 }
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
    unsafe { end_request(file_id, kind, len, offset, true) }
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
    unsafe { end_request(file_id, kind, len, offset, false) }
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
        set_ends(handle, true)?;
        let stopped = worker::stop(handle, TG_SCHED_DRAIN, EXIT_NS_MAX).or_else(|drained| {
            if !matches!(*drained, Failure::Timeout(_)) {
                return Err(drained);
            }
            eprintln!("agios: agios_exit drops what waits: {drained}");
            worker::stop(handle, TG_SCHED_CANCEL, EXIT_NS_MAX)
        });
        if let Err(failure) = stopped {
            if let Some(agios) = state().as_mut() {
                agios.ends = false;
            }
            set_ends(handle, false)?;
            return Err(failure);
        }
        let mut state = state();
        *state = None;
        HANDLE.store(0, Ordering::Release);
        let adapter = handles::with_poisoned(handle, |instance| Ok(instance.adapter.take()))?;
        let session = adapter.map(|adapter| (adapter as Box<dyn Any>).downcast::<Session>());
        if let Some(Ok(session)) = session {
            session.finish();
        }
        handles::remove(handle)
    });
    if !ended {
        complain();
    }
}

/// Whether no request is taken any more.
fn set_ends(handle: usize, ends: bool) -> Result<(), Box<Failure>> {
    handles::with_poisoned(handle, |instance| {
        if let Ok(session) = session(instance) {
            session.set_ends(ends);
        }
        Ok(())
    })
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
        handles::with(agios.handle, |instance| {
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
        let named = config::algorithm(name);
        let number = ALGORITHMS.iter().position(|known| Some(*known) == named);
        // SAFETY: as above.
        unsafe { index.write(number.unwrap_or(2) as c_int) };
        let unknown = || Failure::Options(format!("there is no algorithm \"{name}\""));
        number.map(|_| ()).ok_or_else(unknown).map_err(Box::new)
    })
}
