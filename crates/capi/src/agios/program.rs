//! The program of AGIOS as the library's thread calls it: the callbacks of its three interfaces,
//! and with what error a callback is called for a request that was dropped.

use crate::abi::tg_sched_entry;
use crate::worker;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    static ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// Called for one request.
pub(super) type RunOne = unsafe extern "C" fn(i64) -> *mut c_void;
/// Called for several.
pub(super) type RunMany = unsafe extern "C" fn(*mut i64, i32) -> *mut c_void;
/// A request's own callback, with what the program gave for it.
pub(super) type RunEach = unsafe extern "C" fn(i64, *mut c_void) -> *mut c_void;
/// As [`RunOne`] and [`RunMany`], where requests have numbers of type `int`.
pub(super) type RunOneInt = unsafe extern "C" fn(c_int);
pub(super) type RunManyInt = unsafe extern "C" fn(*mut c_int, c_int);
/// As [`RunOne`] and [`RunMany`], of the interface whose callbacks return nothing.
pub(super) type RunOneWide = unsafe extern "C" fn(isize);
pub(super) type RunManyWide = unsafe extern "C" fn(*mut isize, c_int);

/// The callbacks for all requests.
#[derive(Clone, Copy)]
pub(super) enum Callbacks {
    /// From 2019 on. The first may be missing where every request has its own.
    Plain(Option<RunOne>, Option<RunMany>),
    /// Up to 2018, with numbers as large as a pointer.
    Wide(RunOneWide, Option<RunManyWide>),
    /// Up to 2018, with numbers of type `int`.
    Int(RunOneInt, Option<RunManyInt>),
}

/// What a request brings for its own callback; none of it if it has none.
#[derive(Clone, Copy, Default)]
pub(super) struct Own {
    callback: usize,
    info: usize,
}

impl Own {
    pub(super) fn new(callback: RunEach, info: *mut c_void) -> Own {
        Own {
            callback: callback as usize,
            info: info as usize,
        }
    }

    /// Puts it where the thread finds it. What the scheduler says of application and file means
    /// nothing to the program, which knows its requests by their identifiers.
    #[inline]
    pub(super) fn put(self, entry: &mut tg_sched_entry) {
        (entry.app, entry.file) = (self.callback as u64, self.info as u64);
    }

    fn of(entry: &tg_sched_entry) -> Option<(RunEach, *mut c_void)> {
        let (callback, info) = (entry.app as usize, entry.file as usize);
        // SAFETY: `put` wrote it: 0, which is None, or the address of such a function.
        let callback = unsafe { std::mem::transmute::<usize, Option<RunEach>>(callback) };
        Some((callback?, info as *mut c_void))
    }
}

/// The program.
pub(super) struct Program {
    callbacks: Callbacks,
    ids: Vec<i64>,
    wide: Vec<isize>,
    ints: Vec<c_int>,
}

impl Program {
    pub(super) fn new(callbacks: Callbacks) -> Program {
        Program {
            callbacks,
            ids: Vec::new(),
            wide: Vec::new(),
            ints: Vec::new(),
        }
    }

    /// Calls back for one request, whose own callback comes first.
    fn one(&self, entry: &tg_sched_entry) {
        let id = entry.id as i64;
        if let Some((callback, info)) = Own::of(entry) {
            // SAFETY: the header's words: a function of this type, for any thread.
            unsafe { callback(id, info) };
            return;
        }
        // SAFETY: as above.
        unsafe {
            match self.callbacks {
                Callbacks::Plain(Some(run), _) => drop(run(id)),
                // agios_add_request has refused what nobody would be called for.
                Callbacks::Plain(None, _) => {}
                Callbacks::Wide(run, _) => run(id as isize),
                Callbacks::Int(run, _) => run(id as c_int),
            }
        }
    }

    /// Calls back for all at once; false if the program cannot be called so.
    fn many(&mut self, batch: &[tg_sched_entry]) -> bool {
        let (ids, count) = (batch.iter().map(|entry| entry.id), batch.len());
        // SAFETY: the header's words: functions of these types, for any thread.
        unsafe {
            match self.callbacks {
                Callbacks::Plain(_, Some(run)) => {
                    self.ids.clear();
                    self.ids.extend(ids.map(|id| id as i64));
                    run(self.ids.as_mut_ptr(), count as i32);
                }
                Callbacks::Wide(_, Some(run)) => {
                    self.wide.clear();
                    self.wide.extend(ids.map(|id| id as isize));
                    run(self.wide.as_mut_ptr(), count as c_int);
                }
                Callbacks::Int(_, Some(run)) => {
                    self.ints.clear();
                    self.ints.extend(ids.map(|id| id as c_int));
                    run(self.ints.as_mut_ptr(), count as c_int);
                }
                _ => return false,
            }
        }
        true
    }
}

impl worker::Host for Program {
    /// The requests bear the program's identifiers, which the session has put there.
    fn run(&mut self, batch: &[tg_sched_entry]) {
        let together = batch.len() > 1 && batch.iter().all(|entry| entry.app == 0);
        if !(together && self.many(batch)) {
            for entry in batch {
                self.one(entry);
            }
        }
    }

    /// Somebody may wait for the callback: it comes, and says that the request is not to be done.
    fn cancelled(&mut self, requests: &[tg_sched_entry]) {
        eprintln!(
            "agios: agios_exit drops {} requests; they are called back with ECANCELED",
            requests.len()
        );
        ERROR.set(libc::ECANCELED);
        for entry in requests {
            self.one(entry);
        }
        ERROR.set(0);
    }
}

/// Ours: inside of a callback, 0 or why its request must not be performed.
#[unsafe(no_mangle)]
pub extern "C" fn agios_callback_error() -> c_int {
    ERROR.get()
}
