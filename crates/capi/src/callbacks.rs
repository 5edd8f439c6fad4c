//! Starting and stopping the library's own thread from C, and the C functions that it calls.

use crate::abi::tg_sched;
use crate::abi::{read_sized, tg_sched_callbacks, tg_sched_entry};
use crate::call::caught;
use crate::failure::Failure;
use crate::worker;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// The host of a started scheduler: C functions.
struct CHost {
    callbacks: tg_sched_callbacks,
    run: unsafe extern "C" fn(*mut c_void, *const tg_sched_entry),
}

// SAFETY: the header says that the callbacks run on another thread, with the same context.
unsafe impl Send for CHost {}

impl worker::Host for CHost {
    fn run(&mut self, batch: &[tg_sched_entry]) {
        let context = self.callbacks.context;
        match self.callbacks.run_list {
            Some(run_list) if batch.len() > 1 => {
                // SAFETY: the header's words: functions of these types, for any thread.
                unsafe { run_list(context, batch.as_ptr(), batch.len()) };
            }
            _ => {
                for entry in batch {
                    // SAFETY: as above.
                    unsafe { (self.run)(context, entry) };
                }
            }
        }
    }

    fn cancelled(&mut self, requests: &[tg_sched_entry]) {
        if let Some(cancelled) = self.callbacks.cancelled {
            for entry in requests {
                // SAFETY: as above.
                unsafe { cancelled(self.callbacks.context, entry) };
            }
        }
    }
}

/// Gives the scheduler a thread that polls it and calls back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_sched_start(
    handle: *mut tg_sched,
    callbacks: *const tg_sched_callbacks,
) -> c_int {
    caught("start", handle as usize, || {
        let min = offset_of!(tg_sched_callbacks, run_list);
        // SAFETY: the header's word on the structure.
        let callbacks = unsafe { read_sized("callbacks", callbacks, min) }?;
        let run = callbacks.run.ok_or(Failure::Null("callbacks->run"))?;
        worker::start(handle as usize, Box::new(CHost { callbacks, run }))?;
        Ok(0)
    })
}

/// Ends that thread.
#[unsafe(no_mangle)]
pub extern "C" fn tg_sched_stop(handle: *mut tg_sched, how: c_int, timeout_ns: u64) -> c_int {
    caught("stop", handle as usize, || {
        worker::stop(handle as usize, how, timeout_ns)?;
        Ok(0)
    })
}
