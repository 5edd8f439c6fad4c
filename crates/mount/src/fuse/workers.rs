//! The threads of a session (leader and followers): one thread reads a request, and before it
//! serves that request it hands the reading to another thread.
//!
//! So one thread always reads interrupts, however many requests block. The number of threads is
//! bounded. When all are busy, the last one only reads, and queues the requests. The session
//! answers a request that is cancelled in the queue without serving it.

use super::cancel::Registration;
use super::connection::Connection;
use super::messages::{Messages, Task};
use super::{FileSystem, Limits};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The threads of one session, and what they share.
pub(super) struct Workers {
    messages: Messages,
    file_system: Arc<dyn FileSystem>,
    limits: Limits,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    /// All threads, those about to start included.
    threads: usize,
    /// Threads that read, or are about to.
    reading: usize,
    /// Requests that found no free thread.
    queue: VecDeque<Waiting>,
    queued_bytes: usize,
    /// The mount is gone.
    ended: bool,
}

/// A task in the queue, taken out when it is cancelled.
struct Waiting {
    task: Task,
    _cancelled: Registration,
}

impl Workers {
    /// Starts the first thread. `len` is the length of the longest message.
    pub(super) fn start(
        connection: Arc<Connection>,
        file_system: Arc<dyn FileSystem>,
        limits: Limits,
        len: usize,
    ) -> std::io::Result<Arc<Self>> {
        let workers = Arc::new(Self {
            messages: Messages::new(connection, len),
            file_system,
            limits,
            state: Mutex::new(State {
                threads: 1,
                reading: 1,
                ..State::default()
            }),
            finished: Condvar::new(),
        });
        workers.spawn()?;
        Ok(workers)
    }

    /// Whether the mount is gone. Requests that threads were serving then may still run.
    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Waits until the mount is gone and no thread is left.
    pub(super) fn wait(&self) {
        let mut state = self.state();
        while state.threads > 0 {
            state = self
                .finished
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that has been counted already.
    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let workers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-fuse".into());
        thread.spawn(move || workers.run()).map(drop)
    }

    /// The life of a thread, which begins and ends as a reading one.
    fn run(self: Arc<Self>) {
        while let Some(task) = self.read() {
            if let Some(task) = self.admit(task) {
                self.serve(task);
                if !self.rejoin() {
                    return;
                }
            }
        }
        let mut state = self.state();
        state.ended = true;
        state.reading -= 1;
        state.threads -= 1;
        let abandoned = std::mem::take(&mut state.queue);
        drop(state);
        drop(abandoned);
        self.messages.connection.interrupts.cancel_all();
        self.finished.notify_all();
    }

    /// Reads the next request for the file system, and handles messages for the session itself on
    /// the way. `None` when the mount is gone.
    fn read(&self) -> Option<Task> {
        let mut buffer = self.messages.buffers.take();
        loop {
            let len = match self.messages.connection.read(&mut buffer) {
                Ok(len) => len?,
                Err(errno) => {
                    tracing::error!(%errno, "cannot read requests any more");
                    return None;
                }
            };
            match self.messages.take_in(buffer, len, &*self.file_system) {
                Ok(task) => return Some(task),
                Err(back) => buffer = back,
            }
        }
    }

    /// A reading thread calls this with the task that it has read. Returns the task if the thread
    /// is to serve it and no longer reads. Otherwise this takes care of the task, and the thread
    /// goes on reading.
    fn admit(self: &Arc<Self>, task: Task) -> Option<Task> {
        let mut state = self.state();
        if state.reading > 1 {
            state.reading -= 1;
            return Some(task);
        }
        if state.threads < self.limits.threads_max {
            // The new thread reads instead of this one: the number of those that do stays.
            state.threads += 1;
            drop(state);
            match self.spawn() {
                Ok(()) => return Some(task),
                Err(error) => tracing::warn!(%error, "cannot start another thread"),
            }
            state = self.state();
            state.threads -= 1;
        }
        if state.threads == 1 {
            // There is no other thread that could ever take it from the queue.
            state.reading -= 1;
            return Some(task);
        }
        drop(state);
        if task.request.operation.is_prompt() {
            self.serve(task);
            return None;
        }
        self.queue(task)
    }

    /// Keeps a task until a thread is free. Returns it if the calling thread is to serve it.
    fn queue(self: &Arc<Self>, task: Task) -> Option<Task> {
        let (unique, len) = (task.request.unique, task.request.payload.len());
        let cancel = task.request.cancel.clone();
        let workers = Arc::downgrade(self);
        let registration = cancel.on_cancel(move || {
            if let Some(workers) = workers.upgrade() {
                workers.withdraw(unique);
            }
        });
        let mut state = self.state();
        // Others may have come back since this thread looked, and found nothing in the queue. Then
        // all read, and none would look there again before the next request.
        if state.reading > 1 || state.threads == 1 {
            state.reading -= 1;
            drop(state);
            return Some(task);
        }
        let full = state.queue.len() >= self.limits.queued_max
            || state.queued_bytes + len > self.limits.queued_bytes_max;
        if full || cancel.is_cancelled() {
            drop(state);
            task.reply
                .error(if full { Errno::NOMEM } else { Errno::INTR });
            return None;
        }
        state.queued_bytes += len;
        state.queue.push_back(Waiting {
            task,
            _cancelled: registration,
        });
        drop(state);
        // Cancelled between the look above and being found in the queue: look again.
        if cancel.is_cancelled() {
            self.withdraw(unique);
        }
        None
    }

    /// Answers a cancelled request that is still in the queue.
    fn withdraw(&self, unique: u64) {
        let mut state = self.state();
        let at = state
            .queue
            .iter()
            .position(|waiting| waiting.task.request.unique == unique);
        let withdrawn = at.and_then(|at| state.queue.remove(at));
        if let Some(waiting) = withdrawn {
            state.queued_bytes -= waiting.task.request.payload.len();
            drop(state);
            waiting.task.reply.error(Errno::INTR);
        }
    }

    fn serve(&self, task: Task) {
        task.serve(&*self.file_system);
    }

    /// A thread that has served its request calls this. Serves what is queued; then returns true if
    /// the thread is to read again. Otherwise the thread is no longer counted.
    fn rejoin(&self) -> bool {
        loop {
            let mut state = self.state();
            if let Some(waiting) = state.queue.pop_front() {
                state.queued_bytes -= waiting.task.request.payload.len();
                drop(state);
                // Its registration goes with `waiting`, without the lock that its waker takes.
                let Waiting { task, _cancelled } = waiting;
                self.serve(task);
                continue;
            }
            if state.ended || state.reading >= self.limits.idle_max {
                state.threads -= 1;
                self.finished.notify_all();
                return false;
            }
            state.reading += 1;
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reply, Request, abi};
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::time::{Duration, Instant};
    use zerocopy::IntoBytes;

    /// Answers each request, and is busy for a moment after that, each time for another time.
    struct Lingers;

    impl FileSystem for Lingers {
        fn handle(&self, request: Request, reply: Reply) {
            let busy = Duration::from_nanos(request.unique % 97 * 300);
            reply.error(Errno::NOENT);
            let until = Instant::now() + busy;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }

        fn forget(&self, _node: u64, _lookups: u64) {}
    }

    #[test]
    fn no_request_stays_behind_where_no_more_threads_are_to_be_had() {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None);
        let (device, kernel) = pair.expect("room for two descriptors");
        let limits = Limits {
            threads_max: 2,
            ..Limits::default()
        };
        let connection = Connection::new(device);
        let workers = Workers::start(connection, Arc::new(Lingers), limits, 4096);
        let workers = workers.expect("room for a thread");
        let patience = Some(Duration::from_secs(20));
        rustix::net::sockopt::set_socket_timeout(
            &kernel,
            rustix::net::sockopt::Timeout::Recv,
            patience,
        )
        .expect("a time");
        let body = abi::GetattrIn::default();
        // One after the other, as one program calls.
        for unique in 1..=20_000 {
            let len = size_of::<abi::InHeader>() + size_of::<abi::GetattrIn>();
            let header = abi::InHeader {
                len: u32::try_from(len).expect("short"),
                opcode: abi::opcode::GETATTR,
                unique,
                node: 1,
                ..Default::default()
            };
            let message = [header.as_bytes(), body.as_bytes()].concat();
            rustix::io::write(&kernel, &message).expect("its reader lives");
            let mut answer = [0; 64];
            let len = rustix::io::read(&kernel, &mut answer);
            assert_eq!(
                len,
                Ok(size_of::<abi::OutHeader>()),
                "no answer to {unique}"
            );
        }
        drop(kernel);
        workers.wait();
    }
}
