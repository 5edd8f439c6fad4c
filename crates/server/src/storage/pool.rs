//! The thread pool: a bounded queue of jobs, threads that execute them, and a queue of completions.
//! Who comes next, the queue decides (`job_queue.rs`).

mod job_clock;
mod job_needs;

use super::batch::{self, CachedReads, Meter, Route};
use super::completion_queue::{CompletionQueue, Sink};
use super::job_queue::{Asker, JobQueue, Takes, keeps_one};
use super::job_width::JobTime;
use super::pages;
use super::posix::Ends;
use super::posix::dead::DeadMount;
use super::slots::lock_buffer;
use super::{Completion, Counts, Faults, Fence, PosixFiles, Slots, Storage, Wake};
use crate::lock::lock;
use crate::short_turns;
use crate::thread_rights::{Work, keep_for};
use job_clock::JobClock;
use job_needs::{needs_seat, seat_of, takes_room, writes_data};
use std::mem;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_forward::{Access, Errno, Files, IoPart, Job, JobId, JobResult, RefusedJob, effect};
use tidegate_net::Spin;
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle, Outcome};

/// Stands for the start time of a job on a thread that has no job.
const IDLE: u64 = u64::MAX;

/// A user's jobs of which none has ended between two looks wait for the back end.
const STUCK: Duration = Duration::from_millis(10);

/// The size of the pool, and aids for tests.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// The number of threads, at least 1.
    pub threads: u32,
    /// How many jobs may wait for a thread. A further job completes with EAGAIN.
    pub queued_max: usize,
    /// For tests: injected faults. The export must get the same value.
    pub faults: Faults,
    /// Blocks calls that change files of a seat that this forwarder has lost.
    pub fence: Fence,
}

/// Executes jobs on threads of its own.
pub struct ThreadPool {
    shared: Arc<Shared>,
    done: Arc<CompletionQueue>,
    threads: Vec<JoinHandle<()>>,
    depth: u32,
    /// Executes reads that need no thread. None where completions take another way.
    cached_reads: Option<CachedReads>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// For the threads that take any job.
    ready: Condvar,
    /// For the thread that takes jobs of the scheduler alone.
    scheduled_ready: Condvar,
    /// The number of queued jobs that may be taken, for a thread that looks without taking the
    /// lock.
    open: AtomicUsize,
    /// The number of those that are the scheduler's.
    scheduled: AtomicUsize,
    queued_max: usize,
    slots: Slots,
    /// For looking at the state of the export.
    files: PosixFiles,
    faults: Faults,
    dead: DeadMount,
    sink: Sink,
    reads: Meter,
    writes: Meter,
    operations: AtomicU64,
    pending: AtomicU64,
    /// When each thread began its job, in ns after `zero`; [`IDLE`] if it has none.
    began: Box<[AtomicU64]>,
    zero: Instant,
}

type Queued = (JobId, Job);

struct Queue {
    jobs: JobQueue<Queued>,
    /// What a thread takes that is about to take a job, so that no thread need be woken for it.
    looking: Option<Takes>,
    /// Whether the thread that takes jobs of the scheduler alone sleeps, and nobody has woken it.
    idle: bool,
    /// Of the threads that look, one after the other; with the one that looks.
    spin: Spin,
    /// Whether a thread looks after users' jobs that wait for others of theirs.
    watching: bool,
    /// When a thread last looked after them.
    watched: Instant,
    closed: bool,
}

impl Queue {
    /// Lets more of a user's jobs run if those that do take long. Every thread that takes a job
    /// looks, because there may be none that has nothing to do.
    fn look_after_stuck(&mut self) {
        if self.jobs.holds_back() && self.watched.elapsed() >= STUCK {
            self.watched = Instant::now();
            self.jobs.widen_stuck();
        }
    }
}

impl ThreadPool {
    /// Starts the threads. Each works on a clone of `files`. Fails if a thread cannot be started.
    pub fn new(
        files: &PosixFiles,
        slots: &Slots,
        options: &PoolOptions,
        wake: Wake,
    ) -> std::io::Result<ThreadPool> {
        let done = CompletionQueue::new(wake);
        let sink: Sink = {
            let done = done.clone();
            Arc::new(move |completion| done.push(completion))
        };
        let mut pool = ThreadPool::with_sink(files, slots, options, done, sink)?;
        // With direct I/O the page cache has nothing; injected faults count jobs of the threads.
        pool.cached_reads = (!files.avoids_pages() && !options.faults.are_set())
            .then(|| CachedReads::new(files.clone(), processors()));
        Ok(pool)
    }

    /// Does the same as [`ThreadPool::new`], but hands completions to `sink`, which puts them into
    /// `done` at some time.
    pub(super) fn with_sink(
        files: &PosixFiles,
        slots: &Slots,
        options: &PoolOptions,
        done: Arc<CompletionQueue>,
        sink: Sink,
    ) -> std::io::Result<ThreadPool> {
        let depth = options.threads.max(1);
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: JobQueue::new(depth as usize - usize::from(keeps_one(depth)), processors()),
                looking: None,
                idle: false,
                spin: Spin::default(),
                watching: false,
                watched: Instant::now(),
                closed: false,
            }),
            ready: Condvar::new(),
            scheduled_ready: Condvar::new(),
            open: AtomicUsize::new(0),
            scheduled: AtomicUsize::new(0),
            queued_max: options.queued_max,
            slots: slots.clone(),
            files: files.clone(),
            faults: options.faults.clone(),
            dead: DeadMount::default(),
            sink,
            reads: Meter::default(),
            writes: Meter::default(),
            operations: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            began: (0..depth).map(|_| AtomicU64::new(IDLE)).collect(),
            zero: Instant::now(),
        });
        let mut pool = ThreadPool {
            shared,
            done,
            threads: Vec::new(),
            depth,
            cached_reads: None,
        };
        for number in 0..depth {
            let mut files = files.clone();
            files.permit = options.fence.permit(None);
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name(format!("storage-{number}"));
            let takes = Takes::of(number as usize, depth);
            // If one cannot be started, dropping the pool ends the others.
            pool.threads
                .push(thread.spawn(move || shared.work(number as usize, takes, files))?);
        }
        Ok(pool)
    }
}

impl ThreadPool {
    /// The totals of a direction, for a storage that wraps this pool and also moves data itself.
    pub(super) fn meter(&self, direction: Direction) -> &Meter {
        self.shared.meter(direction)
    }
}

impl Storage for ThreadPool {
    fn submit(&mut self, job: JobId, work: Job) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if let Some(cached_reads) = &mut self.cached_reads
            && let Some(result) =
                cached_reads.try_read(&self.shared.slots, &self.shared.reads, &work)
        {
            self.shared.pending.fetch_sub(1, Ordering::Relaxed);
            let asker = Asker::Scheduler;
            self.done.push_quietly(Completion { job, asker, result });
            return;
        }
        let mut queue = lock(&self.shared.queue);
        let may_wait = matches!(work.refused(), RefusedJob::Other);
        if queue.closed || (queue.jobs.len() >= self.shared.queued_max && !may_wait) {
            drop(queue);
            let refused = work.refused().result(Errno::EAGAIN);
            // Nobody has taken it.
            self.shared.report(job, Asker::Scheduler, refused);
            return;
        }
        let asker = Asker::of(&work);
        let may_run = queue.jobs.push(asker, (job, work));
        self.shared.note_open(&queue);
        let taken = queue.jobs.open() == 1 && queue.looking.is_some_and(|it| it.takes(asker));
        let watched = queue.watching;
        let by_own = may_run && !taken && asker == Asker::Scheduler && queue.idle;
        queue.idle &= !by_own;
        drop(queue);
        // A job that may not run yet is taken by the thread that ends the one before it, unless
        // that takes long.
        match by_own {
            true => self.shared.scheduled_ready.notify_one(),
            false if (may_run && !taken) || (!may_run && !watched) => {
                self.shared.ready.notify_one();
            }
            false => {}
        }
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let before = into.len();
        self.cached_reads.iter_mut().for_each(CachedReads::taken);
        self.done.take(into);
        self.shared.seen(&into[before..]);
    }

    fn is_to_send(&self) -> bool {
        (self.cached_reads.as_ref()).is_some_and(CachedReads::is_to_send)
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn oldest(&self) -> Duration {
        let shared = &self.shared;
        let began = shared.began.iter().map(|at| at.load(Ordering::Relaxed));
        match began.min() {
            None | Some(IDLE) => Duration::ZERO,
            Some(began) => shared
                .zero
                .elapsed()
                .saturating_sub(Duration::from_nanos(began)),
        }
    }

    fn failure(&self) -> Option<String> {
        let shared = &self.shared;
        let dead = shared.dead.reason().map(str::to_owned);
        dead.or_else(|| shared.files.displaced())
    }

    fn counts(&self) -> Counts {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let shared = &self.shared;
        Counts {
            read_calls: read(&shared.reads.calls),
            write_calls: read(&shared.writes.calls),
            read_syscalls: read(&shared.reads.syscalls),
            write_syscalls: read(&shared.writes.syscalls),
            read_bytes: read(&shared.reads.bytes),
            write_bytes: read(&shared.writes.bytes),
            operations: read(&shared.operations),
            pending: read(&shared.pending),
            files: shared.files.counts(),
        }
    }

    fn shutdown(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        queue.jobs.close();
        drop(queue);
        self.shared.ready.notify_all();
        self.shared.scheduled_ready.notify_all();
        for thread in self.threads.drain(..) {
            // Jobs that panic are caught; a thread itself does not.
            let _ = thread.join();
        }
    }
}

/// The processors that this process has.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    /// What a thread does until the queue is closed and empty.
    fn work(&self, number: usize, takes: Takes, mut files: PosixFiles) {
        keep_for(Work::Files);
        if takes == Takes::Scheduled {
            short_turns::ask();
        }
        let mut before = None;
        while let Some((asker, (job, work))) = self.next(takes, before) {
            let failed = work.refused();
            let began = self.zero.elapsed();
            let clock = matches!(asker, Asker::User(_)).then(|| JobClock::start(began));
            let now = u64::try_from(began.as_nanos()).unwrap_or(IDLE);
            self.began[number].store(now, Ordering::Relaxed);
            let result = catch_unwind(AssertUnwindSafe(|| self.run(&mut files, work)));
            let result = result.unwrap_or_else(|_| {
                tracing::error!(
                    job = job.0,
                    "a storage job panicked and was answered with EIO"
                );
                failed.result(Errno::EIO)
            });
            let result = match self.faults.mount_is_dead() {
                true => failed.result(Errno::ENOTCONN),
                false => result,
            };
            self.dead.look(&files, &self.faults, &result);
            let time = clock.map(|clock| clock.end(self.zero.elapsed()));
            before = Some((asker, time));
            self.began[number].store(IDLE, Ordering::Relaxed);
            self.report(job, asker, result);
        }
    }

    /// Waits for the next job and takes it; `before` is whose job the thread had, and for a user's
    /// job its times. Of the threads without a job, the one that worked last looks for a
    /// moment before it sleeps.
    fn next(
        &self,
        takes: Takes,
        before: Option<(Asker, Option<JobTime>)>,
    ) -> Option<(Asker, Queued)> {
        let mut queue = lock(&self.queue);
        let open = queue.jobs.open();
        if let Some((asker, time)) = before {
            queue.jobs.ended(asker, time);
        }
        queue.look_after_stuck();
        // This thread takes one of the jobs that may run since, others the further ones.
        let own = usize::from(takes == Takes::Any);
        (open + own..queue.jobs.open()).for_each(|_| self.ready.notify_one());
        let mut looked = false;
        loop {
            let next = match takes {
                Takes::Any => queue.jobs.take(),
                Takes::Scheduled => queue.jobs.take_scheduled(),
            };
            self.note_open(&queue);
            match next {
                Some(next) => {
                    // This thread does not watch, so another one does.
                    if queue.jobs.holds_back() && !queue.watching {
                        self.ready.notify_one();
                    }
                    return Some(next);
                }
                None if queue.closed => return None,
                None if !looked && queue.looking.is_none() => {
                    (looked, queue.looking) = (true, Some(takes));
                    let mut spin = mem::take(&mut queue.spin);
                    drop(queue);
                    let come = match takes {
                        Takes::Any => &self.open,
                        Takes::Scheduled => &self.scheduled,
                    };
                    spin.look(Duration::MAX, || come.load(Ordering::Relaxed) > 0);
                    queue = lock(&self.queue);
                    (queue.looking, queue.spin) = (None, spin);
                }
                None if takes == Takes::Scheduled => {
                    // It was counted on for a job that another thread has taken, which was
                    // counted on for what is there.
                    if queue.jobs.open() > 0 {
                        self.ready.notify_one();
                    }
                    queue.idle = true;
                    let waited = self.scheduled_ready.wait(queue);
                    queue = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
                    queue.idle = false;
                }
                None if queue.jobs.holds_back() && !queue.watching => queue = self.watch(queue),
                None => {
                    let waited = self.ready.wait(queue);
                    queue = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            }
        }
    }

    /// Tells a thread that looks without taking the lock what may be taken.
    fn note_open(&self, queue: &Queue) {
        self.open.store(queue.jobs.open(), Ordering::Relaxed);
        self.scheduled
            .store(queue.jobs.scheduled(), Ordering::Relaxed);
    }

    /// Waits for a job, and lets one more of a user run if those before it take long.
    fn watch<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.watching = true;
        let waited = self.ready.wait_timeout(queue, STUCK);
        let (mut queue, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        queue.watching = false;
        queue.look_after_stuck();
        // If this thread takes one of the jobs, another one watches.
        let others = match queue.jobs.open() {
            0 => 0,
            open => open - 1 + usize::from(queue.jobs.holds_back()),
        };
        (0..others).for_each(|_| self.ready.notify_one());
        queue
    }

    fn report(&self, job: JobId, asker: Asker, result: JobResult) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
        (self.sink)(Completion { job, asker, result });
    }

    /// Lets users' jobs that waited for these results run.
    fn seen(&self, completions: &[Completion]) {
        let of_user = |asker: &Asker| matches!(asker, Asker::User(_));
        let askers = completions.iter().map(|completion| completion.asker);
        let mut askers = askers.filter(of_user).peekable();
        if askers.peek().is_none() {
            return;
        }
        let mut queue = lock(&self.queue);
        let before = queue.jobs.open();
        askers.for_each(|asker| queue.jobs.seen(asker));
        let open = queue.jobs.open();
        self.note_open(&queue);
        drop(queue);
        (before..open).for_each(|_| self.ready.notify_one());
    }

    fn run(&self, files: &mut PosixFiles, work: Job) -> JobResult {
        files.permit.turn_to(seat_of(files, &work));
        if files.permit.is_closed() && needs_seat(&work) {
            return work.refused().result(Access::NotHeld);
        }
        self.faults.job();
        if !writes_data(&work)
            && let Err(error) = files.act_as_itself()
        {
            return work.refused().result(error);
        }
        match work {
            Job::Io {
                handle,
                direction,
                parts,
                writer,
            } => self.transfer(files, handle, direction, (&parts, writer.as_ref())),
            Job::Op {
                caller,
                op,
                reply_slot,
                payload,
                directory,
            } => {
                self.operations.fetch_add(1, Ordering::Relaxed);
                let buffer = payload.and_then(|(slot, len)| Some((self.slots.buffer(slot)?, len)));
                let locked = buffer
                    .as_ref()
                    .map(|(buffer, len)| (lock_buffer(buffer), *len));
                let bytes = locked
                    .as_ref()
                    .map_or(Some(&[][..]), |(b, len)| b.own()?.get(..*len as usize));
                let Some(bytes) = bytes.filter(|_| payload.is_some() == locked.is_some()) else {
                    return JobResult::Op(Err(Errno::EIO.into()));
                };
                files.writer = caller.clone().filter(|_| takes_room(&op)).map(Arc::new);
                let (caller, reply_slot) = (caller.as_ref(), reply_slot.as_ref());
                let result = effect::perform(files, caller, &op, reply_slot, bytes);
                files.writer = None;
                effect::job_result(files, result, directory)
            }
            Job::Resolve { reply_slot } => {
                self.operations.fetch_add(1, Ordering::Relaxed);
                effect::resolve(files, &reply_slot);
                JobResult::Done
            }
            Job::Closed { handle } => {
                self.operations.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = files.closed(handle) {
                    tracing::warn!(
                        inode = handle.inode,
                        ?error,
                        "closed file keeps a hidden name"
                    );
                }
                JobResult::Done
            }
            Job::Persist { table } => {
                let done = table.persist_holders().map(|()| Outcome::Done);
                JobResult::Op(done.map_err(Access::Errno))
            }
            Job::Refused(refused) => refused.result(Access::NotHeld),
        }
    }

    fn meter(&self, direction: Direction) -> &Meter {
        match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        }
    }

    /// Has the file's pages sent instead of a copy, if the part's bytes are used for nothing else.
    /// Returns the number of bytes.
    fn pages(&self, files: &PosixFiles, handle: Handle, part: &IoPart) -> Option<u32> {
        if part.len < pages::BYTES_MIN || files.avoids_pages() {
            return None;
        }
        let buffer = self.slots.to_send(part)?;
        let fd = files.data_fd(handle, Direction::Read).ok()?;
        let mut calls = 0;
        let pipes = self.slots.pipes();
        let is_end = |at| Ends::of(files, handle).is_at(at) == Ok(true);
        let found = pipes.fill(&*fd, part.offset, part.len, is_end, &mut calls);
        self.reads.syscalls.fetch_add(calls, Ordering::Relaxed);
        let pages = found?;
        let len = pages.left() as u32;
        self.reads.calls.fetch_add(1, Ordering::Relaxed);
        self.reads.bytes.fetch_add(len.into(), Ordering::Relaxed);
        lock_buffer(&buffer).set_pages(Some(pages).filter(|_| len > 0));
        Some(len)
    }

    fn transfer(
        &self,
        files: &PosixFiles,
        handle: Handle,
        direction: Direction,
        (parts, writer): (&[IoPart], Option<&Caller>),
    ) -> JobResult {
        let began = Instant::now();
        let meter = self.meter(direction);
        if direction == Direction::Read
            && let [part] = parts
            && let Some(len) = self.pages(files, handle, part)
        {
            let device_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let parts = vec![Ok(len)];
            return JobResult::Io { parts, device_ns };
        }
        let may = self.faults.before(direction);
        let parts = match may.and_then(|()| Route::find(files, handle, direction, writer)) {
            Ok(mut route) => batch::transfer(&mut route, parts, &self.slots, meter),
            Err(error) => vec![Err(error); parts.len()],
        };
        if direction == Direction::Write {
            self.faults.effect("write");
        }
        let device_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        JobResult::Io { parts, device_ns }
    }
}

#[cfg(test)]
mod tests;
