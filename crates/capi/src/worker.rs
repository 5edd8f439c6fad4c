//! The library's own thread, for hosts without a loop: it polls, and calls the host back.
//!
//! All that it shares with callers is the scheduler of its entry, under that entry's lock. The lock
//! is free while it waits and while the host's callbacks run.

use crate::abi::{TG_SCHED_CANCEL, TG_SCHED_DRAIN, tg_sched_entry};
use crate::clock::{clock_ns, wall_offset_ns};
use crate::failure::{Failure, fail};
use crate::handles::{self, HandleEntry};
use crate::instance::{Instance, Next};
use crate::thread::{Stop, Thread};
use std::ffi::c_int;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};

/// Whom the thread calls.
pub(crate) trait Host: Send {
    /// Starts the requests of one batch.
    fn run(&mut self, batch: &[tg_sched_entry]);
    /// These requests were cancelled by `stop`.
    fn cancelled(&mut self, requests: &[tg_sched_entry]);
}

/// Gives a scheduler a thread.
pub(crate) fn start(handle: usize, host: Box<dyn Host>) -> Result<(), Box<Failure>> {
    let entry = handles::shared(handle)?;
    handles::with(handle, |instance| {
        if instance.thread().is_some() {
            return fail(Failure::State("the scheduler was started already"));
        }
        if instance.has_kept_batch() {
            return fail(Failure::State(
                "a batch was polled without room for it; poll it before the start",
            ));
        }
        if instance.options().wall_offset_ns == 0 {
            let mut options = instance.options().clone();
            options.wall_offset_ns = wall_offset_ns();
            instance.set_policy(0, options)?;
        }
        let joined = without_signals(|| {
            let named = thread::Builder::new().name("tidegate-sched".to_string());
            named.spawn(move || work(entry, host))
        });
        let joined = joined.map_err(|error| {
            Failure::System(format!("the thread could not be started: {error}"))
        })?;
        instance.set_thread(Thread {
            waits: false,
            stop: None,
            ended: false,
            joined,
        });
        Ok(())
    })
}

/// Ends a scheduler's thread: after what waits has run, or with what waits cancelled.
pub(crate) fn stop(handle: usize, how: c_int, timeout_ns: u64) -> Result<(), Box<Failure>> {
    let how = match how {
        TG_SCHED_DRAIN => Stop::Drain,
        TG_SCHED_CANCEL => Stop::Cancel,
        _ => {
            return fail(Failure::Argument(format!(
                "how = {how} is neither TG_SCHED_DRAIN nor TG_SCHED_CANCEL"
            )));
        }
    };
    let entry = handles::shared(handle)?;
    handles::with_poisoned(handle, |instance| {
        let Some(thread) = instance.thread_mut() else {
            return fail(Failure::State("the scheduler was not started"));
        };
        // SAFETY: nothing is asked of the caller. The thread is not joined yet, so its id is its.
        if unsafe { libc::pthread_self() } == thread.joined.as_pthread_t() {
            return fail(Failure::State(
                "stop was called from a callback, and would wait for itself",
            ));
        }
        // Once they are being cancelled they cannot be drained any more.
        if thread.stop != Some(Stop::Cancel) {
            thread.stop = Some(how);
        }
        instance.poke = true;
        Ok(())
    })?;
    let deadline_ns = clock_ns().checked_add(timeout_ns);
    let joined = wait_for_end(entry, handle, deadline_ns)?;
    // It has ended but for its last few instructions.
    joined.map_or(Ok(()), |joined| {
        joined
            .join()
            .or_else(|panic| fail(Failure::Poisoned(handles::panic_text(&*panic))))
    })
}

/// The thread to join, unless another call has done so.
fn wait_for_end(
    entry: &'static HandleEntry,
    handle: usize,
    deadline_ns: Option<u64>,
) -> Result<Option<JoinHandle<()>>, Box<Failure>> {
    let mut shared = entry.lock();
    loop {
        // Somebody else may have stopped it, and even have freed the handle.
        if handles::shared(handle).is_err() {
            return Ok(None);
        }
        let Some(instance) = shared.as_mut() else {
            return Ok(None);
        };
        match instance.thread() {
            None => return Ok(None),
            Some(thread) if thread.ended => {
                return Ok(instance.take_thread().map(|thread| thread.joined));
            }
            // Ours was stopped, and joined by another call; this one was started since.
            Some(thread) if !thread.stops() => return Ok(None),
            Some(_) => {}
        }
        if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= clock_ns()) {
            let stats = instance.stats();
            return fail(Failure::Timeout(format!(
                "the thread has not ended: {} requests wait, {} run; complete them, or stop again",
                stats.queued, stats.running
            )));
        }
        entry.ended.wait(&mut shared, deadline_ns);
    }
}

/// What the thread does next.
enum Work {
    Run,
    TellCancelled,
    End,
}

fn work(entry: &'static HandleEntry, mut host: Box<dyn Host>) {
    let mut batch = Vec::new();
    let called = catch_unwind(AssertUnwindSafe(|| {
        loop {
            batch.clear();
            match next_work(entry, &mut batch) {
                Work::Run => host.run(&batch),
                Work::TellCancelled => host.cancelled(&batch),
                Work::End => break,
            }
        }
    }));
    drop(host);
    if let Some(instance) = entry.lock().as_mut() {
        if let Err(panic) = called {
            instance.spoil(handles::panic_text(&*panic));
        }
        if let Some(thread) = instance.thread_mut() {
            thread.ended = true;
        }
    }
    entry.ended.tell_all();
}

/// Waits for something to do. The requests of it are put in `batch`.
fn next_work(entry: &'static HandleEntry, batch: &mut Vec<tg_sched_entry>) -> Work {
    let mut shared = entry.lock();
    loop {
        // The instance cannot be freed before the thread has ended.
        let Some(instance) = shared.as_mut() else {
            return Work::End;
        };
        let until_ns = match look(instance, batch) {
            Ok(work) => return work,
            Err(until_ns) => until_ns,
        };
        set_waits(instance, true);
        entry.wake.wait(&mut shared, until_ns);
        if let Some(instance) = shared.as_mut() {
            set_waits(instance, false);
        }
    }
}

fn set_waits(instance: &mut Instance, waits: bool) {
    if let Some(thread) = instance.thread_mut() {
        thread.waits = waits;
    }
}

/// What there is to do now, or until when there is nothing.
fn look(instance: &mut Instance, batch: &mut Vec<tg_sched_entry>) -> Result<Work, Option<u64>> {
    let stop = instance.thread().and_then(|thread| thread.stop);
    let found = handles::guarded(instance, |instance| {
        if stop == Some(Stop::Cancel) {
            instance.cancel_all(batch);
            if let Some(adapter) = &mut instance.adapter {
                adapter.cancelled(batch);
            }
            let work = if batch.is_empty() {
                Work::End
            } else {
                Work::TellCancelled
            };
            return Ok(Ok(work));
        }
        Ok(match instance.next(0) {
            Next::Batch => {
                batch.extend(instance.batch().iter().map(tg_sched_entry::from));
                if let Some(adapter) = &mut instance.adapter {
                    adapter.dispatched(batch);
                }
                Ok(Work::Run)
            }
            Next::WaitUntil(until) => Err(Some(until.0)),
            Next::Idle if stop == Some(Stop::Drain) && instance.stats().queued == 0 => {
                Ok(Work::End)
            }
            Next::Idle => Err(None),
        })
    });
    found.unwrap_or(Ok(Work::End))
}

/// Runs `call` with all signals blocked, so that a thread that it starts never runs a handler of
/// the host.
fn without_signals<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are ours; the calls cannot fail with these arguments.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}
