//! A request of a program of AGIOS on its way: added, dispatched, released or cancelled; and what
//! all of them were like.
//!
//! All of it happens under the lock of the scheduler, one lock for each call, and no other.

use super::metrics::Metrics;
use super::program::Own;
use super::table::{Key, Table, file_number};
use super::trace::Trace;
use crate::abi::tg_sched_entry;
use crate::call::answer;
use crate::clock::clock_ns;
use crate::failure::{Failure, fail};
use crate::handles;
use crate::instance::{Adapter, Instance};
use std::any::Any;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_sched::{AppId, Direction, FileId, Request, RequestId};

/// The scheduler's handle, for requests; 0 if there is none.
pub(super) static HANDLE: AtomicUsize = AtomicUsize::new(0);

/// What requests need on their way. It belongs to the scheduler, under the same lock, so that
/// adding, dispatching and releasing take one lock each.
pub(crate) struct Session {
    /// Numbers of queues are below it; 0: there are none.
    queues: u32,
    table: Table,
    trace: Option<Trace>,
    /// For the interfaces that tell them.
    metrics: Option<Metrics>,
    /// Every request must bring its own callback: there is none for all.
    each: bool,
    /// `agios_exit` has begun.
    ends: bool,
}

impl Session {
    /// Nothing is on its way. Requests are written down in `trace` if there is one, and counted
    /// with `metrics`. With `each`, one without a callback of its own is refused.
    pub(super) fn new(queues: u32, trace: Option<Trace>, metrics: bool, each: bool) -> Session {
        Session {
            queues,
            table: Table::new(),
            trace,
            metrics: metrics.then(Metrics::default),
            each,
            ends: false,
        }
    }

    /// What requests were like since the last time.
    pub(super) fn take_metrics(&mut self) -> Metrics {
        self.metrics
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The same as text, without an end to it.
    pub(super) fn metrics_text(&self, algorithm: &str) -> String {
        match &self.metrics {
            Some(metrics) => metrics.to_text(algorithm),
            None => Metrics::default().to_text(algorithm),
        }
    }

    /// Whether no request is taken any more.
    pub(super) fn set_ends(&mut self, ends: bool) {
        self.ends = ends;
    }

    /// Ends the trace.
    pub(super) fn finish(self) {
        if let Some(mut trace) = self.trace {
            trace.finish();
        }
    }
}

impl Adapter for Session {
    /// These requests go to the program; from here on they bear its identifiers.
    fn dispatched(&mut self, batch: &mut [tg_sched_entry]) {
        for entry in batch {
            let (id, own) = self.table.dispatched(entry.id as u32);
            entry.id = id as u64;
            own.put(entry);
        }
    }

    /// These requests were cancelled by `agios_exit`.
    fn cancelled(&mut self, requests: &mut [tg_sched_entry]) {
        for entry in requests {
            let number = entry.id as u32;
            let (id, own) = self.table.dispatched(number);
            entry.id = id as u64;
            own.put(entry);
            self.table.remove_number(number);
        }
    }
}

/// Why a call before `agios_init`, or after `agios_exit`, fails.
pub(super) fn not_initialised() -> Failure {
    Failure::State("agios_init was not called, or failed, or agios_exit was called since")
}

/// Runs a call of a request under the lock of the scheduler, which no panic leaves.
#[inline(always)]
pub(super) fn with(
    call: impl FnOnce(&mut Instance) -> Result<(), Box<Failure>>,
) -> Result<(), Box<Failure>> {
    let result = handles::with(HANDLE.load(Ordering::Acquire), call);
    result.map_err(|failure| match *failure {
        // Not begun, or just ended.
        Failure::Handle(_) => Box::new(not_initialised()),
        _ => failure,
    })
}

/// The session of a scheduler that was made by `agios_init`.
pub(super) fn session(instance: &mut Instance) -> Result<&mut Session, Box<Failure>> {
    let adapter = instance.adapter.as_deref_mut();
    let adapter = adapter.and_then(|adapter| (adapter as &mut dyn Any).downcast_mut());
    adapter.ok_or_else(|| Box::new(not_initialised()))
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
        file: file_number(name),
        offset,
        len,
        write: kind == 1,
    };
    Ok((key, name))
}

/// Hands in a request, perhaps with its own callback; 0 or the code of the failure.
///
/// # Safety
/// As [`key`].
#[inline(always)]
pub(super) unsafe fn add_request(
    file_id: *const c_char,
    kind: i32,
    offset: i64,
    len: i64,
    identifier: i64,
    queue_id: i32,
    own: Option<Own>,
) -> c_int {
    // SAFETY: the caller's word.
    let result = unsafe { key(file_id, kind, len, offset) }.and_then(|(key, name)| {
        with(|instance| add(instance, key, name, identifier, queue_id, own))
    });
    answer("agios_add_request", 0, result.map(|()| 0))
}

/// Ends a request that was, or was not, dispatched; whether there is one.
///
/// # Safety
/// As [`key`].
#[inline(always)]
pub(super) unsafe fn end_request(
    file_id: *const c_char,
    kind: i32,
    len: i64,
    offset: i64,
    dispatched: bool,
) -> bool {
    let call = match dispatched {
        true => "agios_release_request",
        false => "agios_cancel_request",
    };
    // SAFETY: the caller's word.
    let result = unsafe { end(file_id, kind, len, offset, dispatched) };
    answer(call, 0, result.map(|()| 0)) == 0
}

#[inline(always)]
fn add(
    instance: &mut Instance,
    key: Key,
    name: &[u8],
    identifier: i64,
    queue_id: i32,
    own: Option<Own>,
) -> Result<(), Box<Failure>> {
    let agios = session(instance)?;
    if agios.ends {
        return fail(not_initialised());
    }
    if agios.each && own.is_none() {
        return fail(Failure::Null("callback, and agios_init was given none,"));
    }
    let queue = queue_id as u32;
    if agios.queues > 0 && queue >= agios.queues {
        return fail(Failure::Argument(format!(
            "queue_id = {queue_id} is not from 0 to {}, below the max_queue_id of agios_init",
            agios.queues - 1
        )));
    }
    let number = agios.table.add(key, identifier, own.unwrap_or_default());
    let direction = match key.write {
        true => Direction::Write,
        false => Direction::Read,
    };
    let (id, app, file) = (
        RequestId(number.into()),
        AppId(queue.into()),
        FileId(key.file),
    );
    let (offset, len) = (key.offset as u64, key.len as u64);
    let submitted = instance.submit_by_clock(|now_ns, wall_offset_ns| Request {
        stamp_ns: now_ns.saturating_add(wall_offset_ns),
        queue,
        ..Request::new(id, app, file, direction, offset, len)
    });
    let agios = session(instance)?;
    if submitted.is_err() {
        agios.table.remove_number(number);
        return submitted;
    }
    if let Some(trace) = &mut agios.trace {
        trace.arrived(name, key.write, key.offset, key.len);
    }
    if let Some(metrics) = &mut agios.metrics {
        metrics.arrived(&key, clock_ns());
    }
    submitted
}

/// Ends a request that was, or was not, dispatched.
///
/// # Safety
/// As [`key`].
#[inline(always)]
unsafe fn end(
    file_id: *const c_char,
    kind: i32,
    len: i64,
    offset: i64,
    dispatched: bool,
) -> Result<(), Box<Failure>> {
    // SAFETY: the caller's word.
    let (key, _) = unsafe { key(file_id, kind, len, offset) }?;
    with(|instance| {
        let Some(found) = session(instance)?.table.find(key, dispatched) else {
            return fail(Failure::Argument(match dispatched {
                true => "no such request was given to a callback and not yet released".to_string(),
                false => "no such request waits; it may have been given to a callback".to_string(),
            }));
        };
        match dispatched {
            true => instance.complete(0, found.number.into())?,
            false => {
                instance.cancel(0, found.number.into())?;
            }
        }
        let agios = session(instance)?;
        agios.table.remove(found);
        if let Some(metrics) = agios.metrics.as_mut().filter(|_| dispatched) {
            metrics.served(key.len);
        }
        Ok(())
    })
}
