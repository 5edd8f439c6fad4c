//! An emulated device around the thread pool: data jobs take as long as the model of a disk or SSD
//! says.
//!
//! The pool reads or writes the data at once. The completion is held back until the model has
//! finished the job. So the effects of scheduling on a slow device show on any machine, with real
//! data. An fsync waits for the cache of the model. Other jobs on names and attributes, appends
//! included, are not slowed down.

use super::completion_queue::{CompletionQueue, Sink};
use super::pool::{PoolOptions, ThreadPool};
use super::{Completion, Counts, PosixFiles, Slots, Storage, Wake};
use crate::lock::lock;
use crate::thread_rights::{Work, keep_for};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_device::address::{Mapping, local_offset};
use tidegate_device::{Access, Device, DeviceOptions, OptionsError};
use tidegate_forward::{IoPart, Job, JobId, JobResult};
use tidegate_sched::Direction;
use tidegate_wire::{Handle, Layout, Op};

/// Why the emulated device cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatedError {
    /// The options of the device contradict each other.
    #[error("device: {0}")]
    Options(OptionsError),
    /// A thread could not be started.
    #[error("storage threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// A thread pool behind an emulated device.
pub struct Emulated {
    files: PosixFiles,
    pool: ThreadPool,
    depth: u32,
    mapping: Mapping,
    layout: Layout,
    timeline: Arc<Timeline>,
    timer: Option<JoinHandle<()>>,
    accesses: Vec<Access>,
}

/// The jobs of the device, shared with the thread that waits until they are finished.
struct Timeline {
    zero: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    device: Device,
    /// Jobs whose end the device has yet to tell, and when each was given to it, in ns.
    running: BTreeMap<JobId, u64>,
    /// When the device finishes each other job, in order.
    finishes: BTreeSet<(u64, JobId)>,
    /// When the device has finished all of these, in ns.
    free_at_ns: u64,
    /// The time that the model charged for each of them, in ns.
    charged: BTreeMap<JobId, u64>,
    /// Completions of jobs that the pool has executed and the device has not finished.
    withheld: BTreeMap<JobId, Completion>,
    closed: bool,
}

impl Emulated {
    /// Starts the pool and the device. The layout determines where on the device a file lies. Fails
    /// if an option is wrong or a thread cannot be started.
    pub fn new(
        files: &PosixFiles,
        slots: &Slots,
        options: &PoolOptions,
        device: &DeviceOptions,
        layout: Layout,
        wake: Wake,
    ) -> Result<Emulated, EmulatedError> {
        let model = Device::new(device).map_err(EmulatedError::Options)?;
        let done = CompletionQueue::new(wake);
        let depth = model.depth();
        let timeline = Arc::new(Timeline {
            zero: Instant::now(),
            state: Mutex::new(State::new(model)),
            changed: Condvar::new(),
        });
        let sink: Sink = {
            let (timeline, done) = (timeline.clone(), done.clone());
            Arc::new(move |completion| timeline.worked(completion, &done))
        };
        let pool = ThreadPool::with_sink(files, slots, options, done.clone(), sink)?;
        let timer = {
            let (timeline, done) = (timeline.clone(), done.clone());
            let thread = std::thread::Builder::new().name("device".to_owned());
            thread.spawn(move || {
                keep_for(Work::Nothing);
                timeline.run(&done);
            })?
        };
        Ok(Emulated {
            files: files.clone(),
            pool,
            depth,
            mapping: Mapping::with_unit(device.capacity_bytes(), 0, device.unit_bytes()),
            layout,
            timeline,
            timer: Some(timer),
            accesses: Vec::new(),
        })
    }

    /// Gives the device what a job asks of it, if it does.
    fn dispatch(&mut self, job: JobId, work: &Job) {
        match work {
            // A device sees nothing of a file that is not found: the job fails before it.
            Job::Io { handle, .. } if !self.files.knows(*handle) => {}
            Job::Io {
                handle,
                direction,
                parts,
                ..
            } => {
                let (mapping, layout) = (&self.mapping, self.layout);
                map(
                    mapping,
                    layout,
                    *handle,
                    *direction,
                    parts,
                    &mut self.accesses,
                );
                let accesses = &self.accesses;
                self.timeline
                    .ask(job, |device, now_ns| device.submit(now_ns, job.0, accesses));
            }
            Job::Op {
                op: Op::Fsync { .. },
                ..
            } => {
                self.timeline
                    .ask(job, |device, now_ns| device.flush(now_ns, job.0));
            }
            _ => {}
        }
    }
}

impl Storage for Emulated {
    fn submit(&mut self, job: JobId, work: Job) {
        self.dispatch(job, &work);
        self.pool.submit(job, work);
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        self.pool.completions(into);
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn oldest(&self) -> Duration {
        self.pool.oldest()
    }

    fn failure(&self) -> Option<String> {
        self.pool.failure()
    }

    fn counts(&self) -> Counts {
        self.pool.counts()
    }

    fn shutdown(&mut self) {
        self.pool.shutdown();
        self.timeline.lock().closed = true;
        self.timeline.changed.notify_one();
        if let Some(timer) = self.timer.take() {
            let _ = timer.join();
        }
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Timeline {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Gives the device a job, after all earlier ones.
    fn ask(&self, job: JobId, ask: impl FnOnce(&mut Device, u64) -> Option<u64>) {
        let mut state = self.lock();
        let now_ns = self.now_ns();
        let finish_ns = ask(&mut state.device, now_ns);
        state.takes(job, now_ns, finish_ns);
        drop(state);
        self.changed.notify_one();
    }

    /// Takes the completion of a job that the pool has executed.
    fn worked(&self, completion: Completion, done: &CompletionQueue) {
        let mut state = self.lock();
        if !state.has(completion.job) {
            drop(state);
            done.push(completion);
            return;
        }
        state.withheld.insert(completion.job, completion);
        drop(state);
        self.changed.notify_one();
    }

    /// Passes completions on when the device has finished the jobs, until the timeline is closed
    /// and empty.
    fn run(&self, done: &CompletionQueue) {
        // Without this, waits end up to 50 us late. It fails only where a sandbox forbids it, and
        // then waits are late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut state = self.lock();
        loop {
            let now_ns = self.now_ns();
            state.advance(now_ns);
            let due = state.due(now_ns);
            if !due.is_empty() {
                drop(state);
                due.into_iter().for_each(|completion| done.push(completion));
                state = self.lock();
                continue;
            }
            if state.closed && state.finishes.is_empty() && state.running.is_empty() {
                return;
            }
            let wait_ns = state
                .next_ns(now_ns)
                .map_or(u64::MAX >> 10, |at| at - now_ns);
            let waited = self
                .changed
                .wait_timeout(state, Duration::from_nanos(wait_ns));
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn new(device: Device) -> State {
        State {
            device,
            running: BTreeMap::new(),
            finishes: BTreeSet::new(),
            free_at_ns: 0,
            charged: BTreeMap::new(),
            withheld: BTreeMap::new(),
            closed: false,
        }
    }

    /// The device has been given a job, and finishes it then, or will tell.
    fn takes(&mut self, job: JobId, now_ns: u64, finish_ns: Option<u64>) {
        let Some(finish_ns) = finish_ns else {
            self.running.insert(job, now_ns);
            return;
        };
        let began_ns = match self.device.depth() {
            1 => now_ns.max(self.free_at_ns),
            _ => now_ns,
        };
        self.free_at_ns = self.free_at_ns.max(finish_ns);
        self.finishes.insert((finish_ns, job));
        self.charged.insert(job, finish_ns.saturating_sub(began_ns));
    }

    /// Whether the device has a job, or has just finished it.
    fn has(&self, job: JobId) -> bool {
        self.running.contains_key(&job) || self.charged.contains_key(&job)
    }

    /// Takes from the device what it has finished.
    fn advance(&mut self, now_ns: u64) {
        let mut ended = Vec::new();
        self.device.advance(now_ns, &mut ended);
        for (call, finish_ns) in ended {
            let job = JobId(call);
            let given_ns = self.running.remove(&job).unwrap_or(finish_ns);
            self.finishes.insert((finish_ns, job));
            self.charged.insert(job, finish_ns.saturating_sub(given_ns));
        }
    }

    /// When the device finishes something next. Jobs that are due and that the pool has not
    /// executed yet report themselves.
    fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let mut finishes = self.finishes.iter().map(|(finish_ns, _)| *finish_ns);
        let finish = finishes.find(|finish_ns| *finish_ns > now_ns);
        let device = self.device.next_ns().map(|at| at.max(now_ns));
        [finish, device].into_iter().flatten().min()
    }

    /// Takes the completions of jobs that both pool and device have finished.
    fn due(&mut self, now_ns: u64) -> Vec<Completion> {
        let finished = self
            .finishes
            .iter()
            .take_while(|(finish_ns, _)| *finish_ns <= now_ns);
        let ready = |entry: &&(u64, JobId)| self.withheld.contains_key(&entry.1);
        let ready: Vec<(u64, JobId)> = finished.filter(ready).copied().collect();
        let mut due = Vec::with_capacity(ready.len());
        for entry in ready {
            self.finishes.remove(&entry);
            let charged_ns = self.charged.remove(&entry.1).unwrap_or(0);
            let Some(mut completion) = self.withheld.remove(&entry.1) else {
                continue;
            };
            if let JobResult::Io { device_ns, .. } = &mut completion.result {
                *device_ns = charged_ns;
            }
            due.push(completion);
        }
        due
    }
}

/// The addresses of a job's parts on the device. Parts that are adjacent on this forwarder are one
/// access.
fn map(
    mapping: &Mapping,
    layout: Layout,
    handle: Handle,
    direction: Direction,
    parts: &[IoPart],
    into: &mut Vec<Access>,
) {
    into.clear();
    let write = direction == Direction::Write;
    let mut run: Option<(u64, u64)> = None;
    for part in parts {
        let at = local_offset(part.offset, layout.stripe, u64::from(layout.seats));
        let len = u64::from(part.len);
        run = match run {
            Some((begin, end)) if end == at => Some((begin, end + len)),
            Some((begin, end)) => {
                mapping.map(handle.inode, begin, end - begin, write, into);
                Some((at, at + len))
            }
            None => Some((at, at + len)),
        };
    }
    if let Some((begin, end)) = run {
        mapping.map(handle.inode, begin, end - begin, write, into);
    }
}

#[cfg(test)]
mod tests;
