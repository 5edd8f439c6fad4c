//! Reading and writing of intercepted files, and the functions of libc that this file replaces for
//! it. `hooks.rs` has those that open and close descriptors.

use crate::intercept;
use crate::state::{self, Intercepted, Kind, Mode, State};
use libc::{c_int, c_void, iovec, off_t};
use tidegate_client::{Client, Context, Errno, Payload, RawBytes, RawRoom};

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

    fn gather(&self, client: &Client) -> Payload {
        if let Some(mut room) = client.room(self.len) {
            self.fill(0, room.raw());
            return room.into();
        }
        let mut bytes = vec![0; self.len];
        self.fill(0, RawRoom::from(&mut bytes[..]));
        bytes.into()
    }

    /// Fills the room with the bytes from `at` on.
    fn fill(&self, at: usize, mut room: RawRoom<'_>) {
        let mut done = 0;
        self.each(at, room.len(), |from, len| {
            // SAFETY: the caller of the hook has that much there.
            unsafe { room.put_from_address(done, from, len) };
            done += len;
        });
    }

    fn scatter(&self, at: usize, bytes: RawBytes<'_>) {
        let mut rest = bytes;
        self.each(at, bytes.len(), |to, len| {
            let (now, later) = rest.split(len);
            // SAFETY: the caller of the hook has room for that much there.
            unsafe { now.copy_to_address(to) };
            rest = later;
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
    let known = state::kind(fd);
    if known == Kind::Foreign || known == Kind::Own || state::mode() == Mode::Off {
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
            state::set_kind(fd, Kind::Unknown);
            return Done::NotOurs;
        }
        if way == Way::Write && file.allows.appends {
            return append(state, &file, &memory, fd, at);
        }
        let done = match at {
            Some(at) => at_place(way, (state, &file), &memory, (fd, at)),
            None => at_offset(way, (state, &file), &memory, fd),
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
fn append(
    state: &State,
    file: &Intercepted,
    memory: &Memory<'_>,
    fd: c_int,
    at: Option<off_t>,
) -> Done {
    let client = file.open.client();
    if memory.len > client.payload_max() as usize {
        intercept::refresh(fd);
        return Done::NotOurs;
    }
    let bytes = memory.gather(client);
    match client.append(&file.context, file.open.handle(), bytes) {
        Ok(taken) => {
            // pwrite appends too, in Linux, and leaves the offset alone.
            if at.is_none() {
                let end = taken.offset.saturating_add(taken.len);
                // SAFETY: plain numbers.
                unsafe { libc::lseek64(fd, end as off_t, libc::SEEK_SET) };
            }
            Done::Moved(taken.len as usize)
        }
        // The append was not done: no forwarder knows the file, or none lets this user write it,
        // who has it open all the same.
        Err(Errno(libc::ESTALE | libc::EACCES)) => Done::NotOurs,
        Err(Errno::KEYEXPIRED) => {
            intercept::expired(state, file);
            intercept::refresh(fd);
            Done::NotOurs
        }
        Err(errno) => Done::Failed(errno),
    }
}

/// Reads or writes at the descriptor's offset. It belongs to the open file description, which
/// several processes may share. So this function first moves the offset by the whole length, in one
/// step, and then moves it back by what was not read or written.
fn at_offset(
    way: Way,
    (state, file): (&State, &Intercepted),
    memory: &Memory<'_>,
    fd: c_int,
) -> Done {
    let len = memory.len as off_t;
    // SAFETY: plain numbers. A FUSE file's offset is moved without asking the mount.
    let end = unsafe { libc::lseek64(fd, len, libc::SEEK_CUR) };
    if end < len {
        // The offset cannot be moved, or was not: the kernel reports why.
        return Done::NotOurs;
    }
    let done = at_place(way, (state, file), memory, (fd, end - len));
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

fn at_place(
    way: Way,
    (state, file): (&State, &Intercepted),
    memory: &Memory<'_>,
    (fd, at): (c_int, off_t),
) -> Done {
    let Some(place) = u64::try_from(at)
        .ok()
        .filter(|_| at.checked_add(memory.len as off_t).is_some())
    else {
        return Done::NotOurs;
    };
    let context = file.context_of(place, memory.len);
    let mut done = 0;
    let is_lost = |done: usize| done > 0 && mount_is_dead(fd);
    while done < memory.len {
        let len = (memory.len - done).min(PIECE);
        let at = place + done as u64;
        let moved = match way {
            Way::Read => read((file, &context), memory, done, at, len),
            Way::Write => write((file, &context), memory, done, at, len),
        };
        match moved {
            // A forwarder has refused the rest, so the mount tries it, as after an error.
            Ok(moved) if moved < len && way == Way::Write => match is_lost(done + moved) {
                true => return Done::Moved(done + moved),
                false => return Done::NotOurs,
            },
            Ok(moved) => {
                done += moved;
                if moved < len {
                    // The end of the file.
                    break;
                }
            }
            Err(errno) if is_final(errno) && done == 0 => return Done::Failed(errno),
            Err(errno) if is_final(errno) => break,
            Err(_) if is_lost(done) => break,
            Err(Errno::KEYEXPIRED) => {
                intercept::expired(state, file);
                return Done::NotOurs;
            }
            // The mount knows files that forwarders have forgotten by name, and tells them; for
            // everything else it has the last word. What was moved is moved again, to the same
            // place.
            Err(_) => return Done::NotOurs,
        }
    }
    Done::Moved(done)
}

/// Whether the mount of an open file is gone for good. Then the kernel would answer ENOTCONN for a
/// call of which a part is done, and a short count is the truth.
fn mount_is_dead(fd: c_int) -> bool {
    // SAFETY: a plain structure of numbers, which may be zero; the kernel writes no further.
    let errno = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        match libc::fstatfs(fd, &mut found) {
            0 => 0,
            _ => *libc::__errno_location(),
        }
    };
    // The latter if it has ended just now.
    [libc::ENOTCONN, libc::ECONNABORTED].contains(&errno)
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
    client.write_parts(context, handle, at, len, |from, bytes| {
        memory.fill(done + from, bytes);
    })
}

/// Makes stable what this process has written through the forwarders; the error says that it is
/// not. The mount makes stable what was written through the mount. Both have the file open, so both
/// are told of an error of the back end: the caller must ask the mount even after an error.
pub(crate) fn sync(fd: c_int, data_only: bool) -> Result<(), Errno> {
    if state::kind(fd) != Kind::Intercepted {
        return Ok(());
    }
    state::inside(Ok(()), |state| {
        let Some(file) = intercept::find(state, fd) else {
            return Ok(());
        };
        match file.open.fsync(&file.context, data_only) {
            Err(Errno(libc::ESTALE)) => Ok(()),
            Err(Errno::KEYEXPIRED) => {
                intercept::expired(state, &file);
                Ok(())
            }
            result => result,
        }
    })
}

/// Gives up a file that the program is about to map: from now on the kernel alone moves its bytes,
/// and the kernel must learn how long the file is.
pub(crate) fn mapped(fd: c_int) {
    if state::kind(fd) == Kind::Own || state::mode() == Mode::Off {
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

/// The functions of libc that this library replaces with `transfer`, `sync` and `mapped`. The
/// 64-bit names are the same functions as those without 64. A test is not to be hooked by what it
/// tests.
#[cfg(not(test))]
mod data_hooks {
    use super::{Done, Memory, Way, mapped, sync, transfer};
    use crate::libc_next;
    use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
    use tidegate_client::Errno;

    fn set_errno(errno: Errno) {
        // SAFETY: the place of this thread's errno.
        unsafe { *libc::__errno_location() = errno.0 };
    }

    /// The value that the program's call returns; None if the kernel must do the call.
    fn answer(done: Done) -> Option<ssize_t> {
        match done {
            Done::Moved(len) => Some(len as ssize_t),
            Done::Failed(errno) => {
                set_errno(errno);
                Some(-1)
            }
            Done::NotOurs => None,
        }
    }

    /// Defines hooks of data calls: their memory, their place in the file, and the call that the
    /// kernel gets instead.
    macro_rules! data {
        ($(
            $way:ident [$($name:ident)+] $arguments:tt $fd:expr, $memory:expr, $at:expr, $next:expr;
        )*) => {
            $($(data!(@one $way $name $arguments $fd, $memory, $at, $next);)+)*
        };
        (@one $way:ident $name:ident ($($argument:ident: $type:ty),*)
            $fd:expr, $memory:expr, $at:expr, $next:expr) => {
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> ssize_t {
                // SAFETY: what the caller promises libc. Nothing is dereferenced that the kernel
                // would not move bytes from or to.
                unsafe {
                    let errno = *libc::__errno_location();
                    let done = transfer(Way::$way, $fd, $memory, $at);
                    *libc::__errno_location() = errno;
                    match answer(done) {
                        Some(result) => result,
                        None => $next,
                    }
                }
            }
        };
    }

    data! {
        Read [read] (fd: c_int, buffer: *mut c_void, len: size_t)
            fd, Memory::one(buffer, len), None, libc_next::read(fd, buffer, len);
        Write [write] (fd: c_int, buffer: *const c_void, len: size_t)
            fd, Memory::one(buffer, len), None, libc_next::write(fd, buffer, len);
        Read [pread pread64] (fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t)
            fd, Memory::one(buffer, len), Some(offset), libc_next::pread64(fd, buffer, len, offset);
        Write [pwrite pwrite64] (fd: c_int, buffer: *const c_void, len: size_t, offset: off_t)
            fd, Memory::one(buffer, len), Some(offset),
            libc_next::pwrite64(fd, buffer, len, offset);
        Read [readv] (fd: c_int, vector: *const iovec, count: c_int)
            fd, Memory::new(vector, count), None, libc_next::readv(fd, vector, count);
        Write [writev] (fd: c_int, vector: *const iovec, count: c_int)
            fd, Memory::new(vector, count), None, libc_next::writev(fd, vector, count);
        Read [preadv preadv64] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t)
            fd, Memory::new(vector, count), Some(offset),
            libc_next::preadv64(fd, vector, count, offset);
        Write [pwritev pwritev64] (fd: c_int, vector: *const iovec, count: c_int, offset: off_t)
            fd, Memory::new(vector, count), Some(offset),
            libc_next::pwritev64(fd, vector, count, offset);
        Read [preadv2 preadv64v2] (
            fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int
        )
            fd, without(flags, vector, count), place(offset),
            libc_next::preadv64v2(fd, vector, count, offset, flags);
        Write [pwritev2 pwritev64v2] (
            fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int
        )
            fd, without(flags, vector, count), place(offset),
            libc_next::pwritev64v2(fd, vector, count, offset, flags);
        Read [__read_chk] (fd: c_int, buffer: *mut c_void, len: size_t, room: size_t)
            fd, fitting(buffer, len, room), None, libc_next::__read_chk(fd, buffer, len, room);
        Read [__pread_chk __pread64_chk] (
            fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t, room: size_t
        )
            fd, fitting(buffer, len, room), Some(offset),
            libc_next::__pread64_chk(fd, buffer, len, offset, room);
    }

    /// The memory of a call without flags; flags are the kernel's.
    ///
    /// # Safety
    /// As [`Memory::new`].
    unsafe fn without<'a>(flags: c_int, vector: *const iovec, count: c_int) -> Option<Memory<'a>> {
        if flags != 0 {
            return None;
        }
        // SAFETY: the caller says so.
        unsafe { Memory::new(vector, count) }
    }

    /// The place of a call in the file; None for -1, which stands for the descriptor's offset.
    fn place(offset: off_t) -> Option<off_t> {
        (offset != -1).then_some(offset)
    }

    /// The memory of a buffer of which the compiler knows the size, `room`. None if the call would
    /// overrun it: then libc ends the program.
    fn fitting<'a>(buffer: *mut c_void, len: size_t, room: size_t) -> Option<Memory<'a>> {
        Memory::one(buffer, len).filter(|_| len <= room)
    }

    /// Defines hooks of calls that make a file's bytes stable.
    macro_rules! stable {
        ($($name:ident $data_only:literal;)*) => {
            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name(fd: c_int) -> c_int {
                    let ours = sync(fd, $data_only);
                    // SAFETY: a plain number.
                    let mounts = unsafe { libc_next::$name(fd) };
                    match ours {
                        Ok(()) => mounts,
                        Err(errno) => {
                            set_errno(errno);
                            -1
                        }
                    }
                }
            )*
        };
    }

    stable! {
        fsync false;
        fdatasync true;
    }

    /// Defines hooks of `mmap`.
    macro_rules! map {
        ($($name:ident)*) => {
            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name(
                    at: *mut c_void,
                    len: size_t,
                    protection: c_int,
                    flags: c_int,
                    fd: c_int,
                    offset: off_t,
                ) -> *mut c_void {
                    if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
                        mapped(fd);
                    }
                    // SAFETY: what the caller promises libc.
                    unsafe { libc_next::mmap64(at, len, protection, flags, fd, offset) }
                }
            )*
        };
    }

    map!(mmap mmap64);
}
