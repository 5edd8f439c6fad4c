//! The jobs that wait for a storage thread, by turns of users, so that one who asks much keeps
//! nobody else waiting for long.
//!
//! Each user has a line of jobs in order of arrival, and so has the forwarder itself. The lines
//! have turns of one job. A user's jobs never take all threads (`job_width.rs`). Nor do they run
//! while the forwarder's loop has many results of theirs to look at, behind which those of others
//! would wait. What the scheduler has let through is not of a user here. It keeps the scheduler's
//! order, and takes turns with all lines together; how much of it there is at once, the scheduler
//! decides.

use super::job_width::{JobTime, Width, Widths};
use std::collections::{BTreeMap, VecDeque};
use tidegate_forward::{Job, is_scheduled};

/// The most results of one user that wait for the forwarder's loop, beside one of each thread that
/// works for that user.
const RESULTS_MAX: usize = 8;

/// Lines without jobs that are kept, because their users often ask again.
const IDLE_KEPT: usize = 64;

/// The jobs for which the memory of an empty line is kept.
const ROOM_KEPT: usize = 256;

/// From so many threads on, one takes jobs of the scheduler alone.
const THREADS_TO_KEEP_ONE: u32 = 4;

/// Whose turn a job takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asker {
    /// The scheduler has decided that it is the job's turn.
    Scheduler,
    /// Root, or the forwarder itself.
    Own,
    /// Another user.
    User(u32),
}

impl Asker {
    pub(super) fn of(work: &Job) -> Asker {
        match work {
            Job::Io { .. } => Asker::Scheduler,
            Job::Op { op, .. } if is_scheduled(op) => Asker::Scheduler,
            Job::Op { caller, .. } => match caller {
                Some(caller) if caller.uid != 0 => Asker::User(caller.uid),
                Some(_) | None => Asker::Own,
            },
            Job::Resolve { .. } | Job::Closed { .. } | Job::Persist { .. } | Job::Refused(_) => {
                Asker::Own
            }
        }
    }
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Any,
    /// Those that the scheduler has let through. Such a thread has short turns at the processor, so
    /// it needs not wait for one that lists a directory for somebody else.
    Scheduled,
}

impl Takes {
    /// What the thread of this number takes, of so many.
    pub(super) fn of(number: usize, threads: u32) -> Takes {
        match number {
            0 if keeps_one(threads) => Takes::Scheduled,
            _ => Takes::Any,
        }
    }

    /// Whether it takes a job of this asker.
    pub(super) fn takes(self, asker: Asker) -> bool {
        self == Takes::Any || asker == Asker::Scheduler
    }
}

/// Whether one of so many threads takes jobs of the scheduler alone.
pub(super) fn keeps_one(threads: u32) -> bool {
    threads >= THREADS_TO_KEEP_ONE
}

/// The jobs that wait, and the number of those that run.
pub(super) struct JobQueue<T> {
    scheduled: VecDeque<T>,
    /// The lines of all others. Those that have nothing at the moment are dropped when there are
    /// many.
    lines: BTreeMap<Asker, Line<T>>,
    /// The lines that have a job which may be taken. The first has the next turn.
    turns: VecDeque<Asker>,
    /// Whether the last job was one of the scheduler.
    was_scheduled: bool,
    /// The jobs that wait.
    len: usize,
    /// How many of them may be taken at once.
    open: usize,
    of_user: Widths,
    /// Nobody looks at results any more.
    closed: bool,
    /// So many lines there may be before those without jobs are dropped.
    lines_max: usize,
}

struct Line<T> {
    jobs: VecDeque<T>,
    running: usize,
    /// Those that run, and those whose results the forwarder's loop has not seen.
    unseen: usize,
    /// The most that run.
    width: Width,
    /// So often [`JobQueue::widen_stuck`] looked since a job ended, or since none ran.
    looks: u32,
    unseen_max: usize,
}

impl<T> Line<T> {
    fn new(width: Width, unseen_max: usize) -> Line<T> {
        Line {
            jobs: VecDeque::new(),
            running: 0,
            unseen: 0,
            width,
            looks: 0,
            unseen_max,
        }
    }

    /// How many of the jobs that wait may be taken.
    fn open(&self) -> usize {
        let running = self.width.get().saturating_sub(self.running);
        let unseen = self.unseen_max - self.unseen;
        self.jobs.len().min(running).min(unseen)
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.running == 0 && self.unseen == 0
    }
}

impl<T> JobQueue<T> {
    /// A queue for so many threads, at least 1, on so many processors.
    pub(super) fn new(threads: usize, processors: usize) -> JobQueue<T> {
        JobQueue {
            scheduled: VecDeque::new(),
            lines: BTreeMap::new(),
            turns: VecDeque::new(),
            was_scheduled: false,
            len: 0,
            open: 0,
            of_user: Widths::new(threads, processors),
            closed: false,
            lines_max: IDLE_KEPT,
        }
    }

    /// The jobs that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many jobs may be taken at once.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    fn new_line(&self, asker: Asker) -> Line<T> {
        match asker {
            Asker::User(_) if !self.closed => {
                let results = self.of_user.most() + RESULTS_MAX;
                Line::new(Width::new(self.of_user), results)
            }
            _ => Line::new(Width::unbounded(), usize::MAX),
        }
    }

    /// Changes a line and gives it a turn, if one of its jobs may be taken since. No change takes
    /// a job's leave away. The scheduler has no line.
    fn change(&mut self, asker: Asker, change: impl FnOnce(&mut Line<T>)) {
        let Some(line) = self.lines.get_mut(&asker) else {
            return;
        };
        let before = line.open();
        change(line);
        let after = line.open();
        self.open = self.open - before + after;
        if before == 0 && after > 0 {
            self.turns.push_back(asker);
        }
    }

    /// Adds a job. False if it cannot be taken before another one of the same user has ended.
    pub(super) fn push(&mut self, asker: Asker, job: T) -> bool {
        self.len += 1;
        if asker == Asker::Scheduler {
            self.scheduled.push_back(job);
            self.open += 1;
            return true;
        }
        if self.lines.len() >= self.lines_max && !self.lines.contains_key(&asker) {
            self.drop_idle();
        }
        if !self.lines.contains_key(&asker) {
            self.lines.insert(asker, self.new_line(asker));
        }
        let before = self.open;
        self.change(asker, |line| line.jobs.push_back(job));
        self.open > before
    }

    /// How many jobs of the scheduler wait.
    pub(super) fn scheduled(&self) -> usize {
        self.scheduled.len()
    }

    /// Takes the scheduler's next job, if there is one.
    pub(super) fn take_scheduled(&mut self) -> Option<(Asker, T)> {
        let job = self.scheduled.pop_front()?;
        self.was_scheduled = true;
        self.len -= 1;
        self.open -= 1;
        Some((Asker::Scheduler, job))
    }

    /// Takes the next job, if there is one that may run. [`JobQueue::ended`] and then
    /// [`JobQueue::seen`] must follow.
    pub(super) fn take(&mut self) -> Option<(Asker, T)> {
        let first = match self.was_scheduled && !self.turns.is_empty() {
            true => None,
            false => self.scheduled.pop_front(),
        };
        let taken = match first {
            Some(job) => (Asker::Scheduler, job),
            None => self.take_of_line()?,
        };
        self.was_scheduled = taken.0 == Asker::Scheduler;
        self.len -= 1;
        self.open -= 1;
        Some(taken)
    }

    fn take_of_line(&mut self) -> Option<(Asker, T)> {
        let asker = self.turns.pop_front()?;
        let line = self.lines.get_mut(&asker)?;
        let job = line.jobs.pop_front()?;
        if line.running == 0 {
            line.looks = 0;
        }
        line.running += 1;
        line.unseen += 1;
        if line.open() > 0 {
            self.turns.push_back(asker);
        }
        if line.jobs.is_empty() && line.jobs.capacity() > ROOM_KEPT {
            line.jobs = VecDeque::new();
        }
        Some((asker, job))
    }

    /// Notes that a job which was taken has ended, and for a user's job its times.
    pub(super) fn ended(&mut self, asker: Asker, time: Option<JobTime>) {
        self.change(asker, |line| {
            line.running -= 1;
            line.looks = 0;
            if let Some(time) = time {
                line.width.ended(time);
            }
        });
    }

    /// Whether a job waits for the end of another one of the same user.
    pub(super) fn holds_back(&self) -> bool {
        self.len > self.open
    }

    /// Lets one more job run of each user none of whose jobs has ended between two calls, and so
    /// on: those that run wait for the back end.
    pub(super) fn widen_stuck(&mut self) {
        let is_waiting = |line: &&mut Line<T>| line.running > 0 && !line.jobs.is_empty();
        let waiting = self.lines.iter_mut().filter(|it| is_waiting(&it.1));
        let looked = waiting.map(|(asker, line)| {
            line.looks += 1;
            (*asker, line.looks)
        });
        let stuck: Vec<_> = looked.filter(|it| it.1 > 1).collect();
        for (asker, _) in stuck {
            self.change(asker, |line| line.width.widen());
        }
    }

    /// Notes that the forwarder's loop has the result of a job which was taken. It may do so before
    /// the thread says that the job has ended.
    pub(super) fn seen(&mut self, asker: Asker) {
        self.change(asker, |line| line.unseen -= 1);
    }

    /// From now on every job may be taken, because nobody looks at results any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        let askers: Vec<Asker> = self.lines.keys().copied().collect();
        for asker in askers {
            self.change(asker, |line| {
                line.width = Width::unbounded();
                line.unseen_max = usize::MAX;
            });
        }
    }

    #[cold]
    fn drop_idle(&mut self) {
        self.lines.retain(|_, line| !line.is_idle());
        self.lines_max = (2 * self.lines.len()).max(IDLE_KEPT);
    }
}

#[cfg(test)]
mod tests;
