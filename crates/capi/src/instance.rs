//! One scheduler behind a handle: the scheduler itself, and what the C ABI needs around it.

use crate::abi::tg_sched_entry;
use crate::failure::{Failure, fail};
use crate::worker::Thread;
use tidegate_sched::{Input, Options, Output, Request, RequestId, Scheduler, Stats, Time};

/// A scheduler and its surroundings.
pub(crate) struct Instance {
    scheduler: Scheduler,
    options: Options,
    now: Time,
    batch: Vec<Request>,
    /// `batch` was dispatched by the scheduler, but its host had no room for it.
    kept: bool,
    /// What an earlier call panicked with.
    pub(crate) poison: Option<String>,
    /// The library's own thread, from start to stop.
    pub(crate) thread: Option<Thread>,
    /// The thread waits for something that has just happened.
    pub(crate) poke: bool,
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
            kept: false,
            poison: None,
            thread: None,
            poke: false,
        })
    }

    /// The time of a call: the caller's, or the clock's when the library has a thread of its own.
    /// A clock that goes back stands still instead.
    #[inline(always)]
    fn at(&mut self, now_ns: u64) -> Time {
        let now_ns = match self.thread {
            None => now_ns,
            Some(_) => crate::worker::clock_ns(),
        };
        self.now = self.now.max(Time(now_ns));
        self.now
    }

    /// Wakes the thread if it waits.
    #[inline(always)]
    fn happened(&mut self) {
        if let Some(thread) = &mut self.thread {
            self.poke |= std::mem::take(&mut thread.waits);
        }
    }

    #[inline(always)]
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        request: impl FnOnce() -> Request,
    ) -> Result<(), Box<Failure>> {
        if self.thread.as_ref().is_some_and(|thread| thread.stops()) {
            return fail(Failure::State("the scheduler is being stopped"));
        }
        let now = self.at(now_ns);
        self.scheduler
            .handle(now, Input::Arrived(request()))
            .map_err(Failure::Rejected)?;
        self.happened();
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn complete(&mut self, now_ns: u64, id: u64) -> Result<(), Box<Failure>> {
        let id = RequestId(id);
        if self.kept && self.batch.iter().any(|request| request.id == id) {
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
        if self.kept {
            return Next::Batch;
        }
        let now = self.at(now_ns);
        let mut output = self.scheduler.poll(now, &mut self.batch);
        // Nobody hears it: a host of the library says itself what others gave.
        while let Output::Tell(_) = output {
            output = self.scheduler.poll(now, &mut self.batch);
        }
        match output {
            Output::Tell(_) => unreachable!("asked until it tells no more"),
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
        self.kept = kept;
    }

    pub(crate) fn has_kept_batch(&self) -> bool {
        self.kept
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
