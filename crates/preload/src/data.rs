//! Reading and writing of intercepted files.

use crate::descriptors::{self, Kind};
use crate::intercept;
use crate::settings::{self, Mode};
use crate::state::{self, Intercepted};
use libc::{c_int, c_void, iovec, off_t};
use std::sync::atomic::Ordering;
use tidegate_client::{Bytes, Client, Context, Errno};

/// Largest number of bytes of one call to the client; longer calls are divided.
const PIECE: usize = 4 << 20;

/// Largest number of bytes that one call moves, as in Linux.
const CALL_MAX: usize = 0x7fff_f000;

/// The result of a call.
pub(crate) enum Done {
    /// The call moved this many bytes.
    Moved(usize),
    /// The call failed, and would fail on the mount too.
    Failed(Errno),
    /// The kernel must do the call.
    NotOurs,
}

/// Where the bytes of a call lie in memory, in order.
pub(crate) struct Memory<'a> {
    parts: Parts<'a>,
    len: usize,
}

enum Parts<'a> {
    One(iovec),
    Many(&'a [iovec]),
}

impl<'a> Memory<'a> {
    /// The memory of a vector of buffers. None where the kernel would refuse it: then the call goes
    /// to the kernel, which reports the error.
    ///
    /// # Safety
    /// The vector must be as `readv` and `writev` require. Only addresses in it may be wrong, such
    /// that the kernel would refuse them with EFAULT.
    pub(crate) unsafe fn new(vector: *const iovec, count: c_int) -> Option<Memory<'a>> {
        let count = usize::try_from(count).ok()?;
        if vector.is_null() || count > 1024 {
            return None;
        }
        // SAFETY: the caller says so.
        Memory::of(Parts::Many(unsafe {
            std::slice::from_raw_parts(vector, count)
        }))
    }

    /// The memory of one buffer.
    pub(crate) fn one(base: *const c_void, len: usize) -> Option<Memory<'a>> {
        Memory::of(Parts::One(iovec {
            iov_base: base.cast_mut(),
            iov_len: len,
        }))
    }

    fn of(parts: Parts<'a>) -> Option<Memory<'a>> {
        let mut len = 0usize;
        for part in parts.all() {
            if part.iov_base.is_null() && part.iov_len > 0 {
                return None;
            }
            len = len.checked_add(part.iov_len)?;
        }
        // Nothing to move, or more than fits, has rules that the kernel knows.
        (len > 0 && len <= CALL_MAX).then_some(Memory { parts, len })
    }

    /// Calls `with` on the memory of the bytes from `at` on, at most `len` of them.
    fn each(&self, at: usize, len: usize, mut with: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (at, len);
        for part in self.parts.all() {
            let from = skip.min(part.iov_len);
            let take = (part.iov_len - from).min(left);
            skip -= from;
            if take > 0 {
                with(part.iov_base.cast::<u8>().wrapping_add(from), take);
            }
            left -= take;
            if left == 0 {
                return;
            }
        }
    }

    fn gather(&self, client: &Client) -> Bytes {
        if let Some(mut room) = client.room(self.len) {
            self.fill(0, &mut room);
            return room.into();
        }
        let mut bytes = vec![0; self.len];
        self.fill(0, &mut bytes);
        bytes.into()
    }

    /// Fills `bytes` with those from `at` on.
    fn fill(&self, at: usize, bytes: &mut [u8]) {
        let mut done = 0;
        self.each(at, bytes.len(), |from, len| {
            // SAFETY: the caller of the hook has that much there.
            let from = unsafe { std::slice::from_raw_parts(from, len) };
            bytes[done..done + len].copy_from_slice(from);
            done += len;
        });
    }

    fn scatter(&self, at: usize, bytes: &[u8]) {
        let mut done = 0;
        self.each(at, bytes.len(), |to, len| {
            // SAFETY: the caller of the hook has room for that much there, and `bytes` that many.
            unsafe { to.copy_from_nonoverlapping(bytes[done..].as_ptr(), len) };
            done += len;
        });
    }
}

impl Parts<'_> {
    fn all(&self) -> &[iovec] {
        match self {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }
}

/// Whether the call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// Does a data call at a place in the file or, with None, at the descriptor's offset, which it
/// moves.
pub(crate) fn transfer(way: Way, fd: c_int, memory: Option<Memory<'_>>, at: Option<off_t>) -> Done {
    let known = descriptors::kind(fd);
    if known == Kind::Foreign || known == Kind::Own || settings::mode() == Mode::Off {
        return Done::NotOurs;
    }
    let Some(memory) = memory else {
        return Done::NotOurs;
    };
    state::inside(Done::NotOurs, |state| {
        let Some(file) = intercept::find(state, fd) else {
            return Done::NotOurs;
        };
        let allowed = match way {
            Way::Read => file.allows.reads,
            Way::Write => file.allows.writes,
        };
        if !allowed {
            return Done::NotOurs;
        }
        if way == Way::Write && intercept::appends(fd) != file.allows.appends {
            // Another process that shares the open file description has changed O_APPEND.
            descriptors::set(fd, Kind::Unknown);
            return Done::NotOurs;
        }
        if way == Way::Write && file.allows.appends {
            return append(&file, &memory, fd, at);
        }
        let done = match at {
            Some(at) => at_place(way, &file, &memory, at),
            None => at_offset(way, &file, &memory, fd),
        };
        if matches!(done, Done::Failed(_)) {
            // Whatever is wrong here, the file goes through the mount from now on.
            intercept::give_up(state, file.identity);
        }
        done
    })
}

/// Appends. The forwarder knows where the file ends; the kernel does not, because it has not seen
/// the writes past its end.
fn append(file: &Intercepted, memory: &Memory<'_>, fd: c_int, at: Option<off_t>) -> Done {
    let client = file.open.client();
    if memory.len > client.payload_max() as usize {
        intercept::refresh(fd);
        return Done::NotOurs;
    }
    let bytes = memory.gather(client);
    match client.append(&file.context, file.open.handle(), bytes) {
        Ok(taken) => {
            file.wrote.store(true, Ordering::Relaxed);
            // pwrite appends too, in Linux, and leaves the offset alone.
            if at.is_none() {
                let end = taken.offset.saturating_add(taken.len);
                // SAFETY: plain numbers.
                unsafe { libc::lseek64(fd, end as off_t, libc::SEEK_SET) };
            }
            Done::Moved(taken.len as usize)
        }
        // The append was not done: no forwarder knows the file.
        Err(Errno(libc::ESTALE)) => Done::NotOurs,
        Err(errno) => Done::Failed(errno),
    }
}

/// Reads or writes at the descriptor's offset. It belongs to the open file description, which
/// several processes may share. So this function first moves the offset by the whole length, in one
/// step, and then moves it back by what was not read or written.
fn at_offset(way: Way, file: &Intercepted, memory: &Memory<'_>, fd: c_int) -> Done {
    let len = memory.len as off_t;
    // SAFETY: plain numbers. A FUSE file's offset is moved without asking the mount.
    let end = unsafe { libc::lseek64(fd, len, libc::SEEK_CUR) };
    if end < len {
        // The offset cannot be moved, or was not: the kernel reports why.
        return Done::NotOurs;
    }
    let done = at_place(way, file, memory, end - len);
    let moved = match &done {
        Done::Moved(moved) => *moved as off_t,
        _ => 0,
    };
    if moved < len {
        // SAFETY: plain numbers.
        unsafe { libc::lseek64(fd, moved - len, libc::SEEK_CUR) };
    }
    done
}

fn at_place(way: Way, file: &Intercepted, memory: &Memory<'_>, at: off_t) -> Done {
    let Some(place) = u64::try_from(at)
        .ok()
        .filter(|_| at.checked_add(memory.len as off_t).is_some())
    else {
        return Done::NotOurs;
    };
    let context = file.context_of(place, memory.len);
    let mut done = 0;
    while done < memory.len {
        let len = (memory.len - done).min(PIECE);
        let at = place + done as u64;
        let moved = match way {
            Way::Read => read((file, &context), memory, done, at, len),
            Way::Write => write((file, &context), memory, done, at, len),
        };
        match moved {
            // A forwarder has refused the rest, so the mount tries it, as after an error.
            Ok(moved) if moved < len && way == Way::Write => return Done::NotOurs,
            Ok(moved) => {
                done += moved;
                if moved < len {
                    // The end of the file.
                    break;
                }
            }
            Err(errno) if is_final(errno) && done == 0 => return Done::Failed(errno),
            Err(errno) if is_final(errno) => break,
            // The mount knows files that forwarders have forgotten by name, and tells them; for
            // everything else it has the last word. What was moved is moved again, to the same
            // place.
            Err(_) => return Done::NotOurs,
        }
    }
    Done::Moved(done)
}

/// Whether to return the error to the program: the mount would need as long again to come to it.
fn is_final(errno: Errno) -> bool {
    errno.0 == libc::ETIMEDOUT || errno.0 == libc::EINTR
}

fn read(
    (file, context): (&Intercepted, &Context),
    memory: &Memory<'_>,
    done: usize,
    at: u64,
    len: usize,
) -> Result<usize, Errno> {
    let (client, handle) = (file.open.client(), file.open.handle());
    client.read_parts(context, handle, at, len, |from, bytes| {
        memory.scatter(done + from, bytes);
    })
}

fn write(
    (file, context): (&Intercepted, &Context),
    memory: &Memory<'_>,
    done: usize,
    at: u64,
    len: usize,
) -> Result<usize, Errno> {
    let (client, handle) = (file.open.client(), file.open.handle());
    file.wrote.store(true, Ordering::Relaxed);
    client.write_parts(context, handle, at, len, |from, bytes| {
        memory.fill(done + from, bytes);
    })
}

/// Makes stable what this process has written through the forwarders; the error says that it is
/// not. The mount makes stable what was written through the mount.
pub(crate) fn sync(fd: c_int, data_only: bool) -> Result<(), Errno> {
    if descriptors::kind(fd) != Kind::Intercepted {
        return Ok(());
    }
    state::inside(Ok(()), |state| {
        let Some(file) =
            intercept::find(state, fd).filter(|file| file.wrote.load(Ordering::Relaxed))
        else {
            return Ok(());
        };
        let (client, handle) = (file.open.client(), file.open.handle());
        match client.fsync(&file.context, handle, data_only) {
            Err(Errno(libc::ESTALE)) => Ok(()),
            result => result,
        }
    })
}

/// Gives up a file that the program is about to map: from now on the kernel alone moves its bytes,
/// and the kernel must learn how long the file is.
pub(crate) fn mapped(fd: c_int) {
    if descriptors::kind(fd) == Kind::Own || settings::mode() == Mode::Off {
        return;
    }
    state::inside((), |state| {
        let Some(identity) = intercept::identity(fd) else {
            return;
        };
        if !intercept::is_on_mount(state, fd, identity.0) {
            return;
        }
        state::lock(&state.mapped).insert(identity);
        intercept::give_up(state, identity);
        intercept::refresh(fd);
    });
}
