//! One scheduler behind a handle: the scheduler itself, and what the C ABI needs around it.

use crate::abi::tg_sched_entry;
use crate::clock::clock_ns;
use crate::failure::{Failure, fail};
use crate::thread::Thread;
use std::any::Any;
use tidegate_sched::{Input, Options, Output, Request, RequestId, Scheduler, Stats, Time};

/// Another interface over a scheduler, with names of its own for requests. It lies under the
/// scheduler's lock, so that a call takes one lock for both.
pub(crate) trait Adapter: Any + Send {
    /// These requests go to the host; from here on they bear the names of the interface.
    fn dispatched(&mut self, batch: &mut [tg_sched_entry]);

    /// These requests were cancelled by `stop`; from here on they bear those names too.
    fn cancelled(&mut self, requests: &mut [tg_sched_entry]);
}

/// A scheduler and its surroundings.
pub(crate) struct Instance {
    scheduler: Scheduler,
    options: Options,
    now: Time,
    batch: Vec<Request>,
    /// Nothing is kept, poisoned, or run by a thread of ours: one test on the data path for all.
    plain: bool,
    /// `batch` was dispatched by the scheduler, but its host had no room for it.
    kept: bool,
    /// What an earlier call panicked with.
    poison: Option<String>,
    /// The library's own thread, from start to stop.
    thread: Option<Thread>,
    /// The thread waits for something that has just happened.
    pub(crate) poke: bool,
    /// The other interface that the requests come through, if they do.
    pub(crate) adapter: Option<Box<dyn Adapter>>,
}

/// What `poll` says; `Batch` leaves the requests in [`Instance::batch`].
pub(crate) enum Next {
    Batch,
    WaitUntil(Time),
    Idle,
}

impl Instance {
    pub(crate) fn new(options: Options) -> Result<Instance, Box<Failure>> {
        let scheduler =
            Scheduler::new(&options).map_err(|error| Failure::Options(error.to_string()))?;
        Ok(Instance {
            scheduler,
            options,
            now: Time(0),
            batch: Vec::new(),
            plain: true,
            kept: false,
            poison: None,
            thread: None,
            poke: false,
            adapter: None,
        })
    }

    fn settle(&mut self) {
        self.plain = !self.kept && self.poison.is_none() && self.thread.is_none();
    }

    /// The library's own thread.
    #[inline(always)]
    pub(crate) fn thread(&self) -> Option<&Thread> {
        if self.plain {
            return None;
        }
        self.thread.as_ref()
    }

    pub(crate) fn thread_mut(&mut self) -> Option<&mut Thread> {
        self.thread.as_mut()
    }

    pub(crate) fn set_thread(&mut self, thread: Thread) {
        self.thread = Some(thread);
        self.settle();
    }

    pub(crate) fn take_thread(&mut self) -> Option<Thread> {
        let thread = self.thread.take();
        self.settle();
        thread
    }

    /// What an earlier call panicked with.
    #[inline(always)]
    pub(crate) fn poison(&self) -> Option<&String> {
        if self.plain {
            return None;
        }
        self.poison.as_ref()
    }

    /// Remembers a panic: the scheduler is not looked at again.
    #[cold]
    pub(crate) fn spoil(&mut self, text: String) {
        self.poison = Some(text);
        self.settle();
    }

    /// The time of a call: the caller's, or the clock's when the library has a thread of its own.
    /// A clock that goes back stands still instead.
    #[inline(always)]
    fn at(&mut self, now_ns: u64) -> Time {
        let now_ns = match self.thread() {
            None => now_ns,
            Some(_) => clock_ns(),
        };
        self.now = self.now.max(Time(now_ns));
        self.now
    }

    /// Wakes the thread if it waits.
    #[inline(always)]
    fn happened(&mut self) {
        if !self.plain
            && let Some(thread) = &mut self.thread
        {
            self.poke |= std::mem::take(&mut thread.waits);
        }
    }

    #[inline(always)]
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        request: impl FnOnce() -> Request,
    ) -> Result<(), Box<Failure>> {
        self.submit_at(now_ns, |_| request())
    }

    #[inline(always)]
    fn submit_at(
        &mut self,
        now_ns: u64,
        request: impl FnOnce(Time) -> Request,
    ) -> Result<(), Box<Failure>> {
        let now = self.at(now_ns);
        if self.thread().is_some_and(Thread::stops) {
            return fail(Failure::State("the scheduler is being stopped"));
        }
        self.scheduler
            .handle(now, Input::Arrived(request(now)))
            .map_err(Failure::Rejected)?;
        self.happened();
        Ok(())
    }

    /// As `submit`, for a request that is stamped with the time of the library's own thread and
    /// what makes a wall clock of it, both in nanoseconds.
    #[inline(always)]
    pub(crate) fn submit_by_clock(
        &mut self,
        request: impl FnOnce(u64, u64) -> Request,
    ) -> Result<(), Box<Failure>> {
        let wall_offset_ns = self.options.wall_offset_ns;
        self.submit_at(0, |now| request(now.0, wall_offset_ns))
    }

    #[inline(always)]
    pub(crate) fn complete(&mut self, now_ns: u64, id: u64) -> Result<(), Box<Failure>> {
        let id = RequestId(id);
        if self.has_kept_batch() && self.batch.iter().any(|request| request.id == id) {
            // The scheduler has dispatched it; its host has not seen it yet.
            let refused = tidegate_sched::Rejected::NotRunning(id);
            return fail(Failure::Rejected(refused));
        }
        let now = self.at(now_ns);
        self.scheduler
            .handle(now, Input::Finished(id))
            .map_err(Failure::Rejected)?;
        self.happened();
        Ok(())
    }

    /// Whether the request was still waiting, and so will never run.
    pub(crate) fn cancel(&mut self, now_ns: u64, id: u64) -> Result<bool, Box<Failure>> {
        let now = self.at(now_ns);
        let before = self.scheduler.queued();
        self.scheduler
            .handle(now, Input::Cancelled(RequestId(id)))
            .map_err(Failure::Rejected)?;
        self.happened();
        Ok(self.scheduler.queued() < before)
    }

    /// What to do next.
    #[inline(always)]
    pub(crate) fn next(&mut self, now_ns: u64) -> Next {
        if self.has_kept_batch() {
            return Next::Batch;
        }
        let now = self.at(now_ns);
        let mut output = self.scheduler.poll(now, &mut self.batch);
        // Nobody hears it: a host of the library says itself what others gave.
        while let Output::Broadcast(_) = output {
            output = self.scheduler.poll(now, &mut self.batch);
        }
        match output {
            Output::Broadcast(_) => unreachable!("asked until it tells no more"),
            Output::Dispatch => Next::Batch,
            Output::WaitUntil(until) => Next::WaitUntil(until),
            Output::Idle => Next::Idle,
        }
    }

    /// The requests of the last `Next::Batch`.
    #[inline(always)]
    pub(crate) fn batch(&self) -> &[Request] {
        &self.batch
    }

    /// Keeps the batch for the next call of `next`, or no longer.
    #[inline(always)]
    pub(crate) fn keep_batch(&mut self, kept: bool) {
        if self.kept != kept {
            self.kept = kept;
            self.settle();
        }
    }

    #[inline(always)]
    pub(crate) fn has_kept_batch(&self) -> bool {
        !self.plain && self.kept
    }

    pub(crate) fn set_policy(&mut self, now_ns: u64, options: Options) -> Result<(), Box<Failure>> {
        let now = self.at(now_ns);
        self.scheduler
            .set_policy(now, &options)
            .map_err(|error| Failure::Options(error.to_string()))?;
        self.options = options;
        self.happened();
        Ok(())
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    pub(crate) fn policy(&self) -> &str {
        self.scheduler.policy()
    }

    pub(crate) fn epoch(&mut self, now_ns: u64) -> u64 {
        let now = self.at(now_ns);
        self.scheduler.epoch(now)
    }

    /// Cancels every request that waits, in order of arrival.
    pub(crate) fn cancel_all(&mut self, into: &mut Vec<tg_sched_entry>) {
        for request in self.scheduler.waiting() {
            let cancelled = Input::Cancelled(request.id);
            self.scheduler
                .handle(self.now, cancelled)
                .expect("a request that waits has an id");
            into.push(tg_sched_entry::from(&request));
        }
    }
}
