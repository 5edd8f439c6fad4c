//! The interface of AGIOS (ICPADS'13) over our scheduler: what `include/agios/agios.h` declares.
//!
//! There is one instance in a process, with a thread that calls back. This file begins and ends it;
//! `agios/session.rs` is what happens to a request.

mod config;
mod libconfig;
mod mapping;
mod session;
mod table;
mod trace;

use crate::abi::{TG_SCHED_CANCEL, TG_SCHED_DRAIN, tg_sched_entry};
use crate::call::{answer, caught, text_of};
use crate::failure::{self, Failure, fail};
use crate::instance::Instance;
use crate::lock::{Guard, Lock};
use crate::{handles, worker};
use config::{ALGORITHMS, Config};
use session::{HANDLE, Session, add, end, key, not_initialised, session, with};
use std::any::Any;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_sched::{CostModel, Prediction};
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
        let ids = Vec::new();
        let program = Program {
            run_one,
            run_many,
            ids,
        };
        init(program, config, queues)
    });
    if !made {
        complain();
    }
    made
}

fn init(program: Program, config: Config, queues: u32) -> Result<(), Box<Failure>> {
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
    instance.adapter = Some(Box::new(Session::new(queues, trace)));
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
    /// The requests bear the program's identifiers: see [`Session::dispatched`].
    fn run(&mut self, batch: &[tg_sched_entry]) {
        match self.run_many {
            Some(run_many) if batch.len() > 1 => {
                self.ids.clear();
                self.ids.extend(batch.iter().map(|entry| entry.id as i64));
                // SAFETY: the header's words: a function of this type, for any thread.
                unsafe { run_many(self.ids.as_mut_ptr(), self.ids.len() as i32) };
            }
            _ => {
                for entry in batch {
                    // SAFETY: as above.
                    unsafe { (self.run_one)(entry.id as i64) };
                }
            }
        }
    }

    fn cancelled(&mut self, _requests: &[tg_sched_entry]) {
        // AGIOS has no word for it.
    }
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
    let result = unsafe { key(file_id, kind, len, offset) }
        .and_then(|(key, name)| with(|instance| add(instance, key, name, identifier, queue_id)));
    answer("agios_add_request", 0, result.map(|()| 0)) == 0
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
    let result = unsafe { end(file_id, kind, len, offset, true) };
    answer("agios_release_request", 0, result.map(|()| 0)) == 0
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
    let result = unsafe { end(file_id, kind, len, offset, false) };
    answer("agios_cancel_request", 0, result.map(|()| 0)) == 0
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
            eprintln!("agios: agios_exit cancels what waits: {drained}");
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
        let number = ALGORITHMS.iter().position(|known| *known == name);
        // SAFETY: as above.
        unsafe { index.write(number.unwrap_or(2) as c_int) };
        let unknown = || Failure::Options(format!("there is no algorithm \"{name}\""));
        number.map(|_| ()).ok_or_else(unknown).map_err(Box::new)
    })
}
