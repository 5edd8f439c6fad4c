//! Records requests while a forwarder serves them, and never blocks the forwarder.
//!
//! The forwarder puts records into a ring of fixed size, and a thread writes them to the file. When
//! the ring is full, the recorder drops the record and counts it. When the file refuses a write,
//! the recorder says so once, tries again, and counts the records for which the ring has no room
//! meanwhile.

mod file;

use crate::format::{self, BLOCK_LEN, Block};
use crate::record::{Header, Record};
use crate::ring::Ring;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long the writing thread sleeps while the ring is less than half full.
const LOOK: Duration = Duration::from_millis(100);
/// How long the writing thread waits before it writes again to a file that refused.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long the writing thread waits before it writes again to a pipe that is full.
const TRY_PIPE: Duration = Duration::from_millis(10);
/// Most blocks of records written at once.
const BATCH: usize = 1024;

const RUNNING: u8 = 0;
const FINISH: u8 = 1;
const GIVE_UP: u8 = 2;

/// An event that a recorder reports.
#[derive(Debug)]
pub enum Event {
    /// The file cannot be written to; said once until it can.
    Failed(io::Error),
    /// It can be written to again.
    WentOn,
}

/// How many requests the recorder has recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests in the file.
    pub recorded: u64,
    /// Requests in the ring.
    pub buffered: u64,
    /// Requests that were dropped.
    pub dropped: u64,
}

/// Records requests into a file.
pub struct Recorder {
    shared: Arc<Shared>,
    writer: Thread,
    ended: Receiver<()>,
    finished: bool,
}

struct Shared {
    ring: Ring,
    /// Records for which the ring had no room; written by the recording side only.
    overflowed: AtomicU64,
    /// Records in the file, and records given up by the writing side.
    recorded: AtomicU64,
    given_up: AtomicU64,
    /// Records in the ring or on their way to the file.
    taken: AtomicU64,
    state: AtomicU8,
}

impl Recorder {
    /// Records into a file with room for so many records in memory, 96 bytes each, or half as many
    /// that have shuffles. A trace that is there already is gone on with; another file is refused.
    /// `tell` is called from a thread of the recorder.
    pub fn create(
        path: &Path,
        header: &Header,
        buffer_records: u32,
        tell: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Recorder> {
        Recorder::over(file::open(path)?, header, buffer_records, tell)
    }

    /// The same to anything that can be written to. Its header is written before this returns.
    pub fn over(
        mut to: impl Write + Send + 'static,
        header: &Header,
        buffer_records: u32,
        tell: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Recorder> {
        to.write_all(&Block::Header(header.clone()).encode())?;
        let shared = Arc::new(Shared {
            ring: Ring::new(buffer_records as usize),
            overflowed: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            state: AtomicU8::new(RUNNING),
        });
        let (end, ended) = channel();
        let writing = Writing {
            shared: shared.clone(),
            to,
            tell,
            pending: Vec::with_capacity((BATCH + 2) * BLOCK_LEN),
            pending_records: 0,
            sent: 0,
            dropped_told: 0,
            last_ns: 0,
            failing: false,
            _end: end,
        };
        let thread = std::thread::Builder::new().name("trace".to_string());
        let thread = thread.spawn(move || writing.run())?;
        Ok(Recorder {
            shared,
            writer: thread.thread().clone(),
            ended,
            finished: false,
        })
    }

    /// Records a request. Takes no lock, allocates nothing, never waits.
    pub fn record(&mut self, record: &Record) {
        let shared = &*self.shared;
        // Both or none. A ring of one block has no room for a shuffle, ever.
        let shuffle = record.shuffle.filter(|_| shared.ring.len_max() > 1);
        let fits = shuffle.is_none_or(|_| shared.ring.has_room(2));
        if let Some(shuffle) = shuffle.filter(|_| fits) {
            shared.ring.push(&format::encode_shuffle(&shuffle));
        }
        if !fits || !shared.ring.push(&format::encode_record(record)) {
            let overflowed = shared.overflowed.load(Ordering::Relaxed);
            shared.overflowed.store(overflowed + 1, Ordering::Release);
            return;
        }
        let taken = shared.taken.load(Ordering::Relaxed);
        shared.taken.store(taken + 1, Ordering::Release);
        if shared.ring.len() >= shared.ring.len_max().div_ceil(2) {
            self.writer.unpark();
        }
    }

    /// How much was recorded so far.
    pub fn counts(&self) -> Counts {
        let shared = &self.shared;
        let taken = shared.taken.load(Ordering::Acquire);
        let recorded = shared.recorded.load(Ordering::Acquire);
        let given_up = shared.given_up.load(Ordering::Acquire);
        Counts {
            recorded,
            buffered: taken.saturating_sub(recorded + given_up),
            dropped: given_up + shared.overflowed.load(Ordering::Acquire),
        }
    }

    /// Writes what is buffered and the trace's end, for at most so long.
    pub fn finish(mut self, patience: Duration) -> Counts {
        self.end(patience);
        self.counts()
    }

    fn end(&mut self, patience: Duration) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        for (state, patience) in [(FINISH, patience), (GIVE_UP, 2 * TRY_PIPE)] {
            self.shared.state.store(state, Ordering::Release);
            self.writer.unpark();
            // The thread's end closes the channel. One that hangs in the file system is left.
            if self.ended.recv_timeout(patience)
                == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
            {
                return;
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end(Duration::from_secs(1));
    }
}

/// The writing side.
struct Writing<W, T> {
    shared: Arc<Shared>,
    to: W,
    tell: T,
    /// Bytes that are being written, and how many of them are.
    pending: Vec<u8>,
    sent: usize,
    pending_records: u64,
    /// Dropped records that the trace tells of.
    dropped_told: u64,
    /// The latest time of a record, ns since the zero.
    last_ns: u64,
    failing: bool,
    /// Closes the channel when the thread ends.
    _end: Sender<()>,
}

impl<W: Write, T: Fn(Event)> Writing<W, T> {
    fn run(mut self) {
        loop {
            let state = self.shared.state.load(Ordering::Acquire);
            self.gather();
            if !self.pending.is_empty() {
                self.write();
            } else if state != RUNNING {
                break;
            } else {
                std::thread::park_timeout(LOOK);
            }
            if self.shared.state.load(Ordering::Acquire) == GIVE_UP && !self.pending.is_empty() {
                return self.give_up();
            }
        }
        let end = Block::End {
            recorded: self.shared.recorded.load(Ordering::Relaxed),
            dropped: self.dropped_told,
            at_ns: self.last_ns,
        };
        self.pending.extend_from_slice(&end.encode());
        while !self.pending.is_empty() && self.shared.state.load(Ordering::Acquire) != GIVE_UP {
            self.write();
        }
    }

    /// Takes the next batch from the ring, once the last is written.
    fn gather(&mut self) {
        if !self.pending.is_empty() {
            return;
        }
        // Read before the records: what was dropped by then was dropped before the last of them.
        let overflowed = self.shared.overflowed.load(Ordering::Acquire);
        // No more than the ring holds, however fast it is filled again: the user gave that bound.
        let batch = BATCH.min(self.shared.ring.len_max()) * BLOCK_LEN;
        while self.pending.len() < batch
            && let Some(mut block) = self.shared.ring.pop()
        {
            format::seal(&mut block);
            self.pending.extend_from_slice(&block);
            if format::is_record(&block) {
                self.last_ns = self.last_ns.max(format::done_ns(&block));
                self.pending_records += 1;
            }
        }
        if overflowed != self.dropped_told {
            self.dropped_told = overflowed;
            self.pending
                .extend_from_slice(&Block::Loss(overflowed).encode());
        }
    }

    /// Writes once, or waits a moment for the file.
    fn write(&mut self) {
        match self.to.write(&self.pending[self.sent..]) {
            Ok(0) => self.failed(ErrorKind::WriteZero.into()),
            Ok(len) => {
                self.sent += len;
                if std::mem::take(&mut self.failing) {
                    (self.tell)(Event::WentOn);
                }
                if self.sent == self.pending.len() {
                    let written = std::mem::take(&mut self.pending_records);
                    self.shared.recorded.fetch_add(written, Ordering::Release);
                    self.pending.clear();
                    self.sent = 0;
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock => std::thread::sleep(TRY_PIPE),
                _ => self.failed(error),
            },
        }
    }

    fn failed(&mut self, error: io::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            (self.tell)(Event::Failed(error));
        }
        let until = Instant::now() + TRY_AGAIN;
        let state = self.shared.state.load(Ordering::Acquire);
        // Slept in slices: the end must not wait for the next try.
        while Instant::now() < until && self.shared.state.load(Ordering::Acquire) == state {
            std::thread::sleep(TRY_PIPE);
        }
    }

    /// The file did not take the rest in time.
    fn give_up(mut self) {
        let mut lost = self.pending_records;
        while let Some(block) = self.shared.ring.pop() {
            lost += u64::from(format::is_record(&block));
        }
        self.pending.clear();
        self.shared.given_up.fetch_add(lost, Ordering::Release);
    }
}
