//! Direct I/O through io_uring. The thread of the forwarder's loop submits data jobs to the kernel;
//! a thread pool executes all other jobs.
//!
//! The ring takes a job if three things hold: each part can bypass the page cache (place and memory
//! are aligned), the file's direct descriptor is open, and no call on the file goes through the
//! page cache. The pool executes every other job, and also what the ring left undone, because the
//! pool's threads may wait and the loop's thread may not. Completions come in any order. The
//! buffers of a job, its descriptor and its pass are held until its last completion has come.

mod plan;
mod ring;
mod writers;

pub use ring::UringRefused;

use super::cache_gate::Pass;
use super::completion_queue::{CompletionQueue, Sink};
use super::job_queue::Asker;
use super::posix::Direct;
use super::slots::SlotBuffer;
use super::{
    Completion, Counts, Faults, Fence, PoolOptions, PosixFiles, Slots, Storage, ThreadPool, Wake,
};
use plan::{Piece, Plan};
use ring::Ring;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidegate_forward::{Access, Errno, IoPart, Job, JobId, JobResult};
use tidegate_sched::Direction;
use tidegate_wire::{Caller, Handle};

/// Tries whether the kernel gives this process a ring with the calls that are needed.
pub(crate) fn try_kernel() -> Result<(), UringRefused> {
    ring::made(2).map(drop)
}

/// How long shutting down waits for the kernel to finish what it was given.
const END_MAX: Duration = Duration::from_secs(30);

/// The size of the ring.
#[derive(Clone, Copy, Debug)]
pub struct UringOptions {
    /// How many calls the kernel has at once, at least 1. Further calls wait in this process.
    pub depth: u32,
}

/// Executes data jobs by io_uring and all others by a thread pool.
pub struct Uring {
    ring: Ring,
    pool: ThreadPool,
    files: PosixFiles,
    slots: Slots,
    faults: Faults,
    fence: Fence,
    wake: Wake,
    done: Arc<CompletionQueue>,
    /// Jobs that the pool finishes for the ring.
    halves: Arc<Mutex<BTreeMap<JobId, Half>>>,
    tasks: Vec<Option<Task>>,
    spare: Vec<usize>,
    /// Pieces that the kernel has not been given: the task, and the piece's number in it.
    waiting: VecDeque<(usize, usize)>,
    waiting_max: usize,
    flying: u32,
    flying_max: u32,
    ended: Vec<Completion>,
    /// How many jobs the ring was given.
    rung: u64,
}

/// A job that the ring works on.
struct Task {
    job: JobId,
    handle: Handle,
    direction: Direction,
    parts: Vec<IoPart>,
    writer: Option<Caller>,
    results: Vec<Result<u32, Access>>,
    /// Parts that the ring left undone, for the pool.
    again: Vec<usize>,
    pieces: Vec<Piece>,
    /// How many pieces have not completed.
    left: usize,
    /// The buffers that the pieces use. They must not be freed before the pieces have completed.
    _buffers: Vec<SlotBuffer>,
    direct: Arc<Direct>,
    pass: Option<Pass>,
    began: Instant,
}

/// A job that the ring did only partly.
struct Half {
    results: Vec<Result<u32, Access>>,
    /// The parts that the pool executes, in order.
    again: Vec<usize>,
    began: Instant,
}

impl Uring {
    /// Tries io_uring on the export, and starts the threads. Fails if the kernel, the export or the
    /// limit of threads does not allow it.
    pub fn new(
        files: &PosixFiles,
        slots: &Slots,
        pool: &PoolOptions,
        options: &UringOptions,
        wake: Wake,
    ) -> Result<Uring, UringRefused> {
        let ring = Ring::open(files, options.depth.max(1))?;
        let done = CompletionQueue::new(wake.clone());
        let halves = Arc::new(Mutex::new(BTreeMap::new()));
        let sink: Sink = {
            let (done, halves) = (done.clone(), halves.clone());
            Arc::new(move |completion| done.push(joined(&halves, completion)))
        };
        let threads = ThreadPool::with_sink(files, slots, pool, done.clone(), sink);
        Ok(Uring {
            ring,
            pool: threads.map_err(UringRefused::Threads)?,
            files: files.clone(),
            slots: slots.clone(),
            faults: pool.faults.clone(),
            fence: pool.fence.clone(),
            wake,
            done,
            halves,
            tasks: Vec::new(),
            spare: Vec::new(),
            waiting: VecDeque::new(),
            waiting_max: pool.queued_max,
            flying: 0,
            flying_max: options.depth.max(1),
            ended: Vec::new(),
            rung: 0,
        })
    }

    /// How many jobs the ring was given since the start. The pool executed the others.
    pub fn rung(&self) -> u64 {
        self.rung
    }

    /// Whether buffers can be registered with the kernel; if not, the error says why.
    pub fn registers(&self) -> Result<(), &str> {
        self.ring.registered.works()
    }

    fn start(
        &mut self,
        job: JobId,
        handle: Handle,
        direction: Direction,
        (parts, writer): (Vec<IoPart>, Option<Caller>),
        plan: Plan,
    ) {
        self.faults.job();
        self.rung += 1;
        let meter = self.pool.meter(direction);
        meter.calls.fetch_add(1, Ordering::Relaxed);
        let pieces = plan.pieces.len();
        meter.syscalls.fetch_add(pieces as u64, Ordering::Relaxed);
        let task = Task {
            job,
            handle,
            direction,
            results: vec![Ok(0); parts.len()],
            parts,
            writer,
            again: Vec::new(),
            pieces: plan.pieces,
            left: pieces,
            _buffers: plan.buffers,
            direct: plan.direct,
            pass: plan.pass,
            began: Instant::now(),
        };
        let at = self.spare.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        self.tasks[at] = Some(task);
        self.waiting.extend((0..pieces).map(|piece| (at, piece)));
    }

    /// Submits as many pieces as the depth allows.
    fn launch(&mut self) {
        while self.flying < self.flying_max
            && let Some(&(at, number)) = self.waiting.front()
        {
            let task = self.tasks[at]
                .as_mut()
                .expect("a task stays while a piece waits");
            if !task.may_begin(number, &self.fence) {
                self.waiting.pop_front();
                task.refused(number);
                self.end_if_landed(at);
                continue;
            }
            let credentials = match task.direction {
                Direction::Read => Ok(None),
                Direction::Write => self.ring.credentials(&self.files, task.writer.as_ref()),
            };
            let Ok(credentials) = credentials else {
                // A thread of the pool can take on the rights of any writer.
                self.waiting.pop_front();
                task.refused(number);
                self.end_if_landed(at);
                continue;
            };
            let entry = task.pieces[number].entry(&task.direct, task.direction);
            let mark = (at as u64) << 32 | number as u64;
            // SAFETY: the task keeps memory, list of buffers and descriptor until the completion
            // with this mark was seen, and is leaked if that never comes.
            if !unsafe { self.ring.push(entry, credentials, mark) } {
                break;
            }
            self.waiting.pop_front();
            self.flying += 1;
        }
        if let Err(error) = self.ring.submit() {
            tracing::warn!(%error, "io_uring takes nothing now; trying again");
            (self.wake)();
        }
    }

    /// Takes the completions of the kernel.
    fn reap(&mut self) {
        while let Some((mark, result)) = self.ring.next() {
            self.flying -= 1;
            let (at, number) = ((mark >> 32) as usize, (mark & u64::from(u32::MAX)) as usize);
            let task = self.tasks[at]
                .as_mut()
                .expect("a task stays while a piece flies");
            if result == -libc::EINVAL {
                self.files.direct_refused(task.handle, task.direction);
            }
            task.landed(number, result);
            self.end_if_landed(at);
        }
    }

    fn end_if_landed(&mut self, at: usize) {
        if let Some(task) = self.tasks[at].take_if(|task| task.left == 0) {
            self.spare.push(at);
            self.finish(task);
        }
    }

    fn finish(&mut self, task: Task) {
        let meter = self.pool.meter(task.direction);
        let moved = task
            .results
            .iter()
            .flatten()
            .map(|&len| u64::from(len))
            .sum();
        meter.bytes.fetch_add(moved, Ordering::Relaxed);
        if task.again.is_empty() {
            if task.direction == Direction::Write {
                self.faults.effect("write");
            }
            let (job, result) = (task.job, result(task.results, task.began));
            let asker = Asker::Scheduler;
            self.ended.push(Completion { job, asker, result });
            return;
        }
        let parts = task.again.iter().map(|&part| task.parts[part].clone());
        let work = Job::Io {
            handle: task.handle,
            direction: task.direction,
            parts: parts.collect(),
            writer: task.writer,
        };
        let half = Half {
            results: task.results,
            again: task.again,
            began: task.began,
        };
        // The pool enters the gate itself.
        drop(task.pass);
        lock(&self.halves).insert(task.job, half);
        self.pool.submit(task.job, work);
    }

    /// Waits up to `time` until the kernel has completed all pieces.
    fn land_all(&mut self) {
        let give_up = Instant::now() + END_MAX;
        while (self.flying > 0 || !self.waiting.is_empty()) && Instant::now() < give_up {
            self.launch();
            self.ring.wait(Duration::from_millis(100));
            self.reap();
        }
        if self.flying > 0 {
            tracing::error!("io_uring has not finished; its buffers stay where they are");
            // The kernel may still write there.
            std::mem::forget(std::mem::take(&mut self.tasks));
            self.flying = 0;
        }
    }
}

impl Task {
    /// Whether this forwarder still holds the seats of everything that a piece writes.
    fn may_begin(&self, number: usize, fence: &Fence) -> bool {
        let parts = &self.parts[self.pieces[number].parts.clone()];
        let lost = || fence.is_closed() || parts.iter().any(|part| fence.is_lost(part.seat));
        self.direction == Direction::Read || !lost()
    }

    /// Handles a piece that was not submitted: the pool may execute those of its parts whose seats
    /// are held.
    fn refused(&mut self, number: usize) {
        self.left -= 1;
        self.again.extend(self.pieces[number].parts.clone());
        self.again.sort_unstable();
    }

    /// Takes the kernel's result of a piece: a number of bytes, or a negative errno.
    fn landed(&mut self, number: usize, result: i32) {
        self.left -= 1;
        let piece = &self.pieces[number];
        let moved = usize::try_from(result).ok();
        let all = moved == Some(piece.len);
        let end = || self.direction == Direction::Read && self.direct.is_end(moved.unwrap_or(0));
        if !all && !end() {
            // A signal, a short write, or a read that may have reached the end: the pool finds out.
            self.again.extend(piece.parts.clone());
            self.again.sort_unstable();
            return;
        }
        let mut left = moved.unwrap_or(0) as u64;
        for part in piece.parts.clone() {
            let done = left.min(self.parts[part].len.into());
            self.results[part] = Ok(done as u32);
            left -= done;
        }
    }
}

impl Storage for Uring {
    fn submit(&mut self, job: JobId, work: Job) {
        let Job::Io {
            handle,
            direction,
            parts,
            writer,
        } = work
        else {
            return self.pool.submit(job, work);
        };
        let (files, slots, ring) = (&self.files, &self.slots, &mut self.ring);
        let planned = Plan::make(files, slots, ring, handle, direction, &parts);
        let full = self.waiting.len() >= self.waiting_max;
        match planned {
            Some(_) if full => {
                let work = Job::Io {
                    handle,
                    direction,
                    parts,
                    writer,
                };
                let result = work.refused().result(Errno::EAGAIN);
                let asker = Asker::Scheduler;
                self.done.push(Completion { job, asker, result });
            }
            Some(plan) => self.start(job, handle, direction, (parts, writer), plan),
            None => {
                let work = Job::Io {
                    handle,
                    direction,
                    parts,
                    writer,
                };
                self.pool.submit(job, work);
            }
        }
    }

    fn flush(&mut self) {
        self.launch();
    }

    fn wake_fd(&self) -> Option<RawFd> {
        Some(self.ring.fd())
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.reap();
        if !self.waiting.is_empty() {
            self.launch();
        }
        into.append(&mut self.ended);
        self.pool.completions(into);
    }

    fn depth(&self) -> u32 {
        self.flying_max
    }

    fn oldest(&self) -> Duration {
        let own = self.tasks.iter().flatten().map(|task| task.began.elapsed());
        own.fold(self.pool.oldest(), Duration::max)
    }

    fn failure(&self) -> Option<String> {
        self.pool.failure()
    }

    fn counts(&self) -> Counts {
        let counts = self.pool.counts();
        let own = self.tasks.len() - self.spare.len();
        Counts {
            pending: counts.pending + own as u64,
            ..counts
        }
    }

    fn shutdown(&mut self) {
        self.land_all();
        self.pool.shutdown();
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Joins a completion of the pool with what the ring had done of the job before.
fn joined(halves: &Mutex<BTreeMap<JobId, Half>>, completion: Completion) -> Completion {
    let Some(half) = lock(halves).remove(&completion.job) else {
        return completion;
    };
    let mut results = half.results;
    if let JobResult::Io { parts, .. } = &completion.result {
        for (part, done) in half.again.into_iter().zip(parts) {
            results[part] = *done;
        }
    }
    Completion {
        result: result(results, half.began),
        ..completion
    }
}

fn result(parts: Vec<Result<u32, Access>>, began: Instant) -> JobResult {
    let device_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    JobResult::Io { parts, device_ns }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are put in and taken out whole.
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests;
