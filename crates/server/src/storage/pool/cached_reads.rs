//! Small reads of data in the page cache, which the thread of the forwarder's loop executes at
//! once. To wake a pool's thread, and to let it sleep again, would take longer than the read.

use super::Shared;
use crate::storage::PosixFiles;
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tidegate_forward::{Job, JobResult};
use tidegate_sched::Direction;

/// Longer reads would delay the loop's other work for too long.
const BYTES_MAX: u32 = 64 << 10;

/// What such reads need.
pub(super) struct CachedReads {
    files: PosixFiles,
    /// Whether the back end does not support reads that return instead of waiting.
    unable: AtomicBool,
}

impl CachedReads {
    pub(super) fn new(files: PosixFiles) -> CachedReads {
        CachedReads {
            files,
            unable: AtomicBool::new(false),
        }
    }

    /// The result, if the job is such a read and can be executed without waiting.
    pub(super) fn try_read(&self, shared: &Shared, work: &Job) -> Option<JobResult> {
        let Job::Io {
            handle,
            direction: Direction::Read,
            parts,
        } = work
        else {
            return None;
        };
        let [part] = &**parts else {
            return None;
        };
        if part.len > BYTES_MAX || self.unable.load(Ordering::Relaxed) || shared.faults.are_set() {
            return None;
        }
        let began = Instant::now();
        let fd = self.files.open_read_fd(*handle)?;
        let buffer = shared.slots.buffer(part.slot)?;
        // A thread may use another part of the buffer, for as long as the back end takes.
        let mut bytes = buffer.try_lock().ok()?;
        let begin = part.slot_offset as usize;
        let place = bytes.get_mut(begin..begin + part.len as usize)?;
        let into = &mut [IoSliceMut::new(place)];
        match rustix::io::preadv2(&fd, into, part.offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == part.len as usize => {}
            // The end of the file, or of what is in the cache.
            Ok(_) => return None,
            Err(Errno::OPNOTSUPP) => {
                self.unable.store(true, Ordering::Relaxed);
                return None;
            }
            Err(_) => return None,
        }
        shared.reads.calls.fetch_add(1, Ordering::Relaxed);
        shared.reads.syscalls.fetch_add(1, Ordering::Relaxed);
        let read = u64::from(part.len);
        shared.reads.bytes.fetch_add(read, Ordering::Relaxed);
        let device_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Some(JobResult::Io {
            parts: vec![Ok(part.len)],
            device_ns,
        })
    }
}
