//! The structures that C programs share with the library, and what they mean in the scheduler's
//! words. `include/tidegate_sched.h` declares the same; a test compares sizes and offsets.
#![allow(non_camel_case_types)]

use crate::failure::{Failure, fail};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use tidegate_sched::{AppId, Direction, FileId, Request, RequestId, Stats, Time};

/// A scheduler.
pub struct tg_sched {
    _private: [u8; 0],
}

/// Options of a scheduler.
pub struct tg_sched_options {
    _private: [u8; 0],
}

/// `tg_sched_poll`: perform the batch.
pub const TG_SCHED_DISPATCH: c_int = 1;
/// `tg_sched_poll`: nothing before `wake_ns`, unless something happens first.
pub const TG_SCHED_WAIT: c_int = 2;
/// `tg_sched_poll`: nothing until something happens.
pub const TG_SCHED_IDLE: c_int = 3;
/// `tg_sched_request::direction`.
pub const TG_SCHED_READ: u32 = 0;
/// `tg_sched_request::direction`.
pub const TG_SCHED_WRITE: u32 = 1;
/// `tg_sched_request::flags`: never in a batch with others.
pub const TG_SCHED_ALONE: u32 = 1;
/// `tg_sched_stop`: what waits still runs.
pub const TG_SCHED_DRAIN: c_int = 1;
/// `tg_sched_stop`: what waits is cancelled.
pub const TG_SCHED_CANCEL: c_int = 2;

/// One request, as a host submits it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tg_sched_request {
    /// The size of this structure as the host was compiled with it.
    pub size: usize,
    /// The host's name for the request, unique among those not yet completed.
    pub id: u64,
    /// The application that asks.
    pub app: u64,
    /// The file.
    pub file: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; `u64::MAX` from 0 is the whole file.
    pub len: u64,
    /// The client's wall clock at the start of its operation, in nanoseconds since 1970.
    pub stamp_ns: u64,
    /// The highest window number the client has seen.
    pub epoch_seen: u64,
    /// The number of the operation within its client.
    pub operation: u64,
    /// All bytes of the operation.
    pub operation_bytes: u64,
    /// The most bytes of the operation on one server.
    pub operation_bytes_max: u64,
    /// When it should be done, by the clock of `now_ns`; 0 for no deadline.
    pub deadline_ns: u64,
    /// Device time that other servers charged this application.
    pub charged_elsewhere_ns: u64,
    /// Work after the request before its operation is done, in microseconds.
    pub shuffle_us: u32,
    /// `TG_SCHED_READ` or `TG_SCHED_WRITE`.
    pub direction: u32,
    /// The data server or other queue of the host.
    pub queue: u32,
    /// `TG_SCHED_ALONE` or 0.
    pub flags: u32,
    /// Bytes that other servers served this application.
    pub bytes_elsewhere: u64,
    /// Requests that they served it.
    pub operations_elsewhere: u32,
    /// Milliseconds since the client's last request of the application here.
    pub away_ms: u32,
    /// Device time that this server charged the application since its last request here.
    pub charged_here_ns: u64,
    /// The longest shuffle of the operation's requests, in microseconds.
    pub shuffle_max_us: u32,
    /// How many aggregators of the operation have a longer shuffle.
    pub shuffle_rank: u32,
}

/// One request of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct tg_sched_entry {
    /// As submitted.
    pub id: u64,
    /// As submitted.
    pub app: u64,
    /// As submitted.
    pub file: u64,
    /// As submitted.
    pub offset: u64,
    /// As submitted.
    pub len: u64,
    /// As submitted.
    pub direction: u32,
    /// As submitted.
    pub queue: u32,
}

/// Counts since the start, and what is there now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tg_sched_statistics {
    /// The size of this structure as the host was compiled with it.
    pub size: usize,
    /// Requests accepted.
    pub arrived: u64,
    /// Calls that the scheduler refused.
    pub rejected: u64,
    /// Batches dispatched.
    pub batches: u64,
    /// Requests dispatched.
    pub dispatched: u64,
    /// Requests completed.
    pub completed: u64,
    /// Requests cancelled before they ran.
    pub cancelled: u64,
    /// Requests that had to wait for an overlapping one.
    pub held: u64,
    /// Requests that wait now.
    pub queued: u64,
    /// The most that ever waited.
    pub queued_peak: u64,
    /// Requests held by an overlapping one now.
    pub held_now: u64,
    /// Requests that run now.
    pub running: u64,
}

/// What a started scheduler calls.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tg_sched_callbacks {
    /// The size of this structure as the host was compiled with it.
    pub size: usize,
    /// Handed to every callback.
    pub context: *mut c_void,
    /// Starts one request. Needed.
    pub run: Option<unsafe extern "C" fn(*mut c_void, *const tg_sched_entry)>,
    /// Starts a batch of several requests; without it `run` is called for each.
    pub run_list: Option<unsafe extern "C" fn(*mut c_void, *const tg_sched_entry, usize)>,
    /// Tells of a request that `tg_sched_stop` cancelled. May be NULL.
    pub cancelled: Option<unsafe extern "C" fn(*mut c_void, *const tg_sched_entry)>,
}

impl From<&Request> for tg_sched_entry {
    #[inline]
    fn from(request: &Request) -> tg_sched_entry {
        tg_sched_entry {
            id: request.id.0,
            app: request.app.0,
            file: request.file.0,
            offset: request.offset,
            len: request.len,
            direction: request.direction as u32,
            queue: request.queue,
        }
    }
}

impl tg_sched_request {
    /// Whether it makes sense.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Box<Failure>> {
        // Both know one bit.
        if self.direction | self.flags <= 1 {
            return Ok(());
        }
        match self.direction > TG_SCHED_WRITE {
            true => fail(Failure::Direction(self.direction)),
            false => fail(Failure::Flags(self.flags)),
        }
    }

    /// The request in the scheduler's words. It is made where it is needed, because copies of it
    /// would be a good part of a call.
    #[inline(always)]
    pub(crate) fn request(&self) -> Request {
        Request {
            id: RequestId(self.id),
            app: AppId(self.app),
            file: FileId(self.file),
            direction: match self.direction {
                TG_SCHED_WRITE => Direction::Write,
                _ => Direction::Read,
            },
            offset: self.offset,
            len: self.len,
            stamp_ns: self.stamp_ns,
            epoch_seen: self.epoch_seen,
            operation: self.operation,
            operation_bytes: self.operation_bytes,
            operation_bytes_max: self.operation_bytes_max,
            deadline: (self.deadline_ns != 0).then_some(Time(self.deadline_ns)),
            shuffle_us: self.shuffle_us,
            shuffle_max_us: self.shuffle_max_us,
            shuffle_rank: u16::try_from(self.shuffle_rank).unwrap_or(u16::MAX),
            queue: self.queue,
            charged_elsewhere_ns: self.charged_elsewhere_ns,
            charged_here_ns: self.charged_here_ns,
            bytes_elsewhere: self.bytes_elsewhere,
            operations_elsewhere: self.operations_elsewhere,
            away_ms: u16::try_from(self.away_ms).unwrap_or(u16::MAX),
            mergeable: self.flags & TG_SCHED_ALONE == 0,
        }
    }
}

impl From<Stats> for tg_sched_statistics {
    fn from(stats: Stats) -> tg_sched_statistics {
        tg_sched_statistics {
            size: size_of::<tg_sched_statistics>(),
            arrived: stats.arrived,
            rejected: stats.rejected,
            batches: stats.batches,
            dispatched: stats.dispatched,
            completed: stats.finished,
            cancelled: stats.cancelled,
            held: stats.held,
            queued: stats.queued.into(),
            queued_peak: stats.queued_peak.into(),
            held_now: stats.held_now.into(),
            running: stats.running.into(),
        }
    }
}

/// The request where it lies, if its host was compiled with this very structure: the data path.
///
/// # Safety
/// As [`read_sized`].
#[inline(always)]
pub(crate) unsafe fn same_size<'a>(from: *const tg_sched_request) -> Option<&'a tg_sched_request> {
    if from.is_null() || !from.is_aligned() {
        return None;
    }
    // SAFETY: the caller's word; every such structure begins with its size.
    let size = unsafe { from.cast::<usize>().read() };
    // SAFETY: as above: so many bytes are readable.
    (size == size_of::<tg_sched_request>()).then(|| unsafe { &*from })
}

/// Reads a structure that begins with its size and may be shorter or longer than ours: what it
/// lacks is 0, and what it has more must be 0, because we could not do what it asks.
///
/// # Safety
/// `from` is NULL or points to as many readable bytes as its first field says.
pub(crate) unsafe fn read_sized<T: Copy>(
    what: &'static str,
    from: *const T,
    size_min: usize,
) -> Result<T, Box<Failure>> {
    if from.is_null() {
        return fail(Failure::Null(what));
    }
    // SAFETY: the caller's word; every such structure begins with its size.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    // A structure that nobody initialised has a wild size, so it is not believed far.
    if size < size_min || size > 4096 {
        return fail(Failure::Size { what, size });
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's word: `size` bytes are readable.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    if bytes[known..].iter().any(|&byte| byte != 0) {
        return fail(Failure::Newer { what });
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes fit into `value`, and all its fields may be 0.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), known);
        Ok(value.assume_init())
    }
}

/// Writes as much of `value` as the host's structure, which begins with its size, has room for.
///
/// # Safety
/// `into` is NULL or points to as many writable bytes as its first field says.
pub(crate) unsafe fn write_sized<T: Copy>(
    what: &'static str,
    into: *mut T,
    value: &T,
) -> Result<(), Box<Failure>> {
    if into.is_null() {
        return fail(Failure::Null(what));
    }
    let field = size_of::<usize>();
    // SAFETY: the caller's word.
    let size = unsafe { into.cast::<usize>().read_unaligned() };
    if size <= field || size > 4096 {
        return fail(Failure::Size { what, size });
    }
    let known = size.min(size_of::<T>());
    let from = std::ptr::from_ref(value).cast::<u8>();
    let into = into.cast::<u8>();
    // SAFETY: the caller's word; the size itself stays as the caller wrote it.
    unsafe {
        into.add(field)
            .copy_from_nonoverlapping(from.add(field), known - field);
        into.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_headers_are_read_as_far_as_both_know_them() {
        let request = tg_sched_request {
            size: size_of::<tg_sched_request>(),
            id: 7,
            len: 4096,
            ..Default::default()
        };
        let bytes = size_of::<tg_sched_request>();
        let mut longer = vec![0u64; bytes / 8 + 2];
        let at = longer.as_mut_ptr().cast::<tg_sched_request>();
        // SAFETY: `longer` has room for the structure and 16 bytes more.
        unsafe {
            at.write(request);
            (*at).size = bytes + 16;
            assert_eq!(read_sized("request", at.cast_const(), 48).unwrap().id, 7);
            (*at).size = 48;
            let short = read_sized("request", at.cast_const(), 48).unwrap();
            assert_eq!((short.id, short.len), (7, 4096));
            (*at).size = 40;
            assert!(read_sized("request", at.cast_const(), 48).is_err());
            (*at).size = usize::MAX;
            assert!(read_sized("request", at.cast_const(), 48).is_err());
            (*at).size = bytes + 16;
        }
        longer[bytes / 8] = 1;
        let at = longer.as_ptr().cast::<tg_sched_request>();
        // SAFETY: as above.
        let newer = unsafe { read_sized("request", at, 48) };
        assert!(matches!(
            newer.map_err(|failure| *failure),
            Err(Failure::Newer { .. })
        ));
    }
}
