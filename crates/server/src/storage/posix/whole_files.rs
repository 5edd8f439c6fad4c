//! Whole-file operations on data: sync, allocate, copy, seek, append.

use super::ends::Ends;
use super::handle_table::{Known, Writers};
use super::sys::{self, Done, EXDEV, no};
use super::untold::of_both;
use super::{PosixFiles, dead};
use crate::storage::Permit;
use crate::storage::cache_gate::{Kind, Pass};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::retry_on_intr;
use std::os::fd::OwnedFd;
use tidegate_forward::{Access, Errno};
use tidegate_wire::Handle;

/// The most bytes that one copy moves, so that it does not occupy a thread for minutes.
/// copy_file_range may copy less than was asked for, and callers continue.
const COPY_MAX: u64 = 256 << 20;

/// Buffer of copies that the back end cannot do by itself.
const COPY_BUFFER: usize = 512 << 10;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl PosixFiles {
    pub(super) fn sync(&self, handle: Handle, data_only: bool) -> Done<()> {
        let known = self.export.known(handle)?;
        self.export.faults.failure("fsync")?;
        let syncing = known.syncing.read();
        let _syncing = syncing.unwrap_or_else(|poisoned| poisoned.into_inner());
        let sync = |fd: &OwnedFd| {
            let synced = match data_only {
                true => retry_on_intr(|| rustix::fs::fdatasync(fd)),
                false => retry_on_intr(|| rustix::fs::fsync(fd)),
            };
            synced.map_err(no)
        };
        // The descriptors that were used for writing have received the write-back errors. Of direct
        // writes the kernel itself has told them all.
        let Writers { buffered, direct } = known.sync_begins();
        let directly = direct.filter(|_| !self.export.is_local);
        let directly = directly.map(|direct| sync(&direct.fd));
        let synced = match (buffered, directly) {
            (Some(fd), directly) => of_both(sync(&fd), directly.unwrap_or(Ok(()))),
            (None, Some(directly)) => directly,
            (None, None) => sync(&*self.read_fd(&known)?),
        };
        if synced.is_err() {
            known.set_unsynced();
        }
        // What a closed descriptor was told counts as told to this one.
        let before = self.export.untold.take(handle);
        of_both(before.map_or(Ok(()), Err), synced)
    }

    /// The pass for calls through the page cache; None where no direct writes exist.
    fn buffered_pass(&self, known: &Known) -> Option<Pass> {
        self.is_direct().then(|| known.gate.enter(Kind::Buffered))
    }

    /// The passes of two files.
    fn buffered_passes(&self, one: &Known, other: &Known) -> [Option<Pass>; 2] {
        // Always in the same order: two threads that each waited for the other would deadlock.
        match one.handle.cmp(&other.handle) {
            std::cmp::Ordering::Equal => [self.buffered_pass(one), None],
            std::cmp::Ordering::Less => [self.buffered_pass(one), self.buffered_pass(other)],
            std::cmp::Ordering::Greater => [self.buffered_pass(other), self.buffered_pass(one)],
        }
    }

    pub(super) fn allocate(&self, handle: Handle, mode: u32, offset: u64, len: u64) -> Done<()> {
        let flags = FallocateFlags::from_bits_retain(mode);
        let keep = FallocateFlags::KEEP_SIZE;
        let allowed = [
            FallocateFlags::empty(),
            keep,
            keep | FallocateFlags::PUNCH_HOLE,
            FallocateFlags::ZERO_RANGE,
            keep | FallocateFlags::ZERO_RANGE,
        ];
        if !allowed.contains(&flags) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let fd = self.writing_fd(&*self.export.known(handle)?)?;
        let call = |flags| {
            self.permit.begin()?;
            retry_on_intr(|| rustix::fs::fallocate(&fd, flags, offset, len)).map_err(no)
        };
        match flags.contains(FallocateFlags::ZERO_RANGE) && !self.export.trust.zero_range {
            true => zero_surely(flags, call),
            false => call(flags),
        }
    }

    pub(super) fn copy(
        &self,
        (from, from_offset): (Handle, u64),
        (to, to_offset): (Handle, u64),
        len: u64,
    ) -> Done<u64> {
        let (from, to) = (self.export.known(from)?, self.export.known(to)?);
        let source = self.read_fd(&from)?;
        let target = self.writing_fd(&to)?;
        let _passes = self.buffered_passes(&from, &to);
        let len = len.min(COPY_MAX);
        let by_hand = || {
            let source = Source {
                fd: &source,
                ends: Ends::of(self, from.handle),
            };
            source.copy(from_offset, (&target, to_offset), len, &self.permit)
        };
        if self.bypasses() {
            // The kernel would do part of it through the page cache.
            return by_hand();
        }
        let (mut source_at, mut target_at, mut done) = (from_offset, to_offset, 0);
        let mut ends = Ends::of(self, from.handle);
        while done < len {
            let want = (len - done) as usize;
            self.permit.begin()?;
            let (at, to_at) = (Some(&mut source_at), Some(&mut target_at));
            match rustix::fs::copy_file_range(&source, at, &target, to_at, want) {
                Ok(0) if ends.is_at(source_at)? => break,
                Ok(0) => {}
                Ok(copied) => done += copied as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) if done == 0 && can_copy_by_hand(error) => {
                    return by_hand();
                }
                // Bytes that were copied before an error count; the next call returns the error.
                Err(error) if done == 0 => return Err(no(error)),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    pub(super) fn seek_from(&self, handle: Handle, offset: u64, whence: u32) -> Done<u64> {
        let to = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::EINVAL.into()),
        };
        if i64::try_from(offset).is_err() {
            return Err(sys::ENXIO.into());
        }
        // The position of the description changes, but nobody reads by it.
        let known = self.export.known(handle)?;
        if !self.trusts_attributes() {
            // The kernel seeks up to the end that it knows of: let it know the true one.
            self.export.stat(&known.path).map_err(no)?;
        }
        let fd = self.read_fd(&known)?;
        rustix::fs::seek(&fd, to).map_err(no)
    }

    pub(super) fn read_whole(&self, handle: Handle, offset: u64, len: u64) -> Done<Vec<u8>> {
        let known = self.export.known(handle)?;
        let fd = self.read_fd(&known)?;
        let _pass = self.buffered_pass(&known);
        let mut bytes = vec![0; len as usize];
        let mut source = Source {
            fd: &fd,
            ends: Ends::of(self, handle),
        };
        let mut done = 0;
        while done < bytes.len() {
            match source.read(offset + done as u64, &mut bytes[done..])? {
                0 => break,
                read => done += read,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    pub(super) fn write_whole(&self, handle: Handle, offset: u64, bytes: &[u8]) -> Done<u64> {
        let known = self.export.known(handle)?;
        let fd = self.writing_fd(&known)?;
        let _pass = self.buffered_pass(&known);
        let (written, ended) = write_fully(&fd, offset, bytes, &self.permit);
        match ended {
            // After the mount has died no result can be trusted: another forwarder finds out what
            // was written.
            Err(error)
                if written == 0 || error == Access::NotHeld || dead::is_proven(self, error) =>
            {
                return Err(error);
            }
            _ => {}
        }
        self.export.faults.effect("append");
        Ok(written)
    }

    /// Makes all copies of a file agree on a range at the file's end, which is at `size`.
    pub(super) fn end_copies_alike(
        &self,
        handle: Handle,
        size: u64,
        (offset, len): (u64, u64),
    ) -> Done<()> {
        let end = size.min(offset.saturating_add(len));
        if end > offset {
            let found = self.read_whole(handle, offset, end - offset)?;
            if found.len() as u64 != end - offset {
                // The copy that was read has another end.
                return Err(Errno::EIO.into());
            }
            match self.write_copies_alike(handle, offset, &found) {
                Err(Access::Errno(Errno::ENOSPC | Errno::EDQUOT)) if end == size => {
                    return self.write_copies_alike(handle, offset, &[]);
                }
                written => written?,
            }
        }
        match end == size {
            true => self.write_copies_alike(handle, size, &[]),
            // Others have written beyond it since.
            false => Ok(()),
        }
    }

    /// Writes the bytes that were read from one copy, or sets the file's end, so that the back end
    /// does the same to every copy.
    pub(super) fn write_copies_alike(&self, handle: Handle, offset: u64, found: &[u8]) -> Done<()> {
        if self.export.trust.copies {
            return Ok(());
        }
        if found.is_empty() {
            return self.truncate(None, &*self.export.known(handle)?, offset);
        }
        let mut done = 0;
        while done < found.len() {
            // After a short write the next call returns the error.
            done += self.write_whole(handle, offset + done as u64, &found[done..])? as usize;
        }
        Ok(())
    }
}

/// Whether the back end refuses to copy between these two files although the bytes can be read and
/// written.
fn can_copy_by_hand(error: rustix::io::Errno) -> bool {
    let Access::Errno(errno) = no(error) else {
        return false;
    };
    errno == EXDEV || errno == Errno::EOPNOTSUPP || error == rustix::io::Errno::NOSYS
}

/// A file that is read from its beginning to its end.
struct Source<'a> {
    fd: &'a OwnedFd,
    ends: Ends,
}

impl Source<'_> {
    /// pread; 0 only where the file ends.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Done<usize> {
        let len = buffer.len() as u64;
        loop {
            self.ends.before(self.fd, offset, len)?;
            let read = retry_on_intr(|| rustix::io::pread(self.fd, &mut *buffer, offset));
            let read = read.map_err(no)?;
            let last = || buffer[read - 1];
            if let Some(found) = self.ends.found(self.fd, (offset, len), read, last)? {
                return Ok(found);
            }
        }
    }

    fn copy(
        mut self,
        mut source_at: u64,
        (target, mut target_at): (&OwnedFd, u64),
        len: u64,
        permit: &Permit,
    ) -> Done<u64> {
        let mut buffer = vec![0; COPY_BUFFER.min(len as usize)];
        let mut done = 0;
        while done < len {
            let want = buffer.len().min((len - done) as usize);
            let read = self.read(source_at, &mut buffer[..want])?;
            if read == 0 {
                break;
            }
            let (written, ended) = write_fully(target, target_at, &buffer[..read], permit);
            source_at += written;
            target_at += written;
            done += written;
            match ended {
                Ok(()) => {}
                Err(error) if done == 0 || error == Access::NotHeld => return Err(error),
                // As with the back end's own copies, the next call returns the error.
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

/// Zeroes a range by fallocate. Tries several modes, the requested one first. A back end that has
/// no support or no room refuses a mode, and the bytes stay as they are. A back end that reports
/// success may only have allocated the range.
fn zero_surely(
    flags: FallocateFlags,
    mut call: impl FnMut(FallocateFlags) -> Done<()>,
) -> Done<()> {
    call(flags)?;
    call(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE)?;
    // A hole reads as zeros but has no room, and later writes to the range must have room. If
    // others have used up the room meanwhile, the range is zero all the same, which is what was
    // asked for.
    match call(flags.difference(FallocateFlags::ZERO_RANGE)) {
        Err(Access::Errno(Errno::ENOSPC | Errno::EDQUOT)) => Ok(()),
        allocated => allocated,
    }
}

/// Repeats pwrite until all is written. Returns how much was written, and the error if that is not
/// all.
fn write_fully(fd: &OwnedFd, offset: u64, bytes: &[u8], permit: &Permit) -> (u64, Done<()>) {
    let mut done = 0;
    let mut write_on = || {
        while done < bytes.len() {
            permit.begin()?;
            let (rest, at) = (&bytes[done..], offset + done as u64);
            match retry_on_intr(|| rustix::io::pwrite(fd, rest, at)).map_err(no)? {
                0 => return Err(Errno::EIO.into()),
                written => done += written,
            }
        }
        Ok(())
    };
    let ended = write_on();
    (done as u64, ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Fence;
    use crate::storage::scratch::Scratch;

    /// A file of 20,000 bytes of which 20,000 from 10,000 on are zeroed in two ways, the latter of
    /// which makes it longer, by a back end that does `instead`.
    fn zeroed(
        instead: impl Fn(FallocateFlags) -> Option<FallocateFlags>,
    ) -> (Vec<Done<()>>, Vec<u8>) {
        let scratch = Scratch::new("zeroed");
        let path = scratch.path().join("file");
        std::fs::write(&path, [7; 20_000]).expect("room");
        let file = std::fs::File::options().write(true).open(&path);
        let file = file.expect("just made");
        let call = |flags| {
            let flags = instead(flags).ok_or(Access::from(Errno::EOPNOTSUPP))?;
            rustix::fs::fallocate(&file, flags, 10_000, 20_000).map_err(no)
        };
        let keep = FallocateFlags::KEEP_SIZE;
        let told = [keep, FallocateFlags::empty()];
        let told = told.map(|flags| zero_surely(flags | FallocateFlags::ZERO_RANGE, call));
        (told.into(), std::fs::read(&path).expect("there"))
    }

    #[test]
    fn a_range_is_zeroed_by_a_back_end_that_only_allocates_it() {
        let (told, bytes) = zeroed(|flags| Some(flags.difference(FallocateFlags::ZERO_RANGE)));
        assert_eq!(told, [Ok(()), Ok(())]);
        assert_eq!(bytes.len(), 30_000);
        assert!(bytes[..10_000].iter().all(|byte| *byte == 7));
        assert!(bytes[10_000..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_hole_that_gets_no_room_again_is_zero_all_the_same() {
        let (keep, zero) = (FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE);
        let third_ends_in = |errno: Errno| {
            let mut calls = Vec::new();
            let told = zero_surely(keep | zero, |flags| {
                calls.push(flags);
                match calls.len() {
                    3 => Err(errno.into()),
                    _ => Ok(()),
                }
            });
            assert_eq!(
                calls,
                [keep | zero, keep | FallocateFlags::PUNCH_HOLE, keep]
            );
            told
        };
        assert_eq!(third_ends_in(Errno::ENOSPC), Ok(()));
        assert_eq!(third_ends_in(Errno::EDQUOT), Ok(()));
        assert_eq!(third_ends_in(Errno::EIO), Err(Errno::EIO.into()));
    }

    #[test]
    fn a_back_end_that_zeroes_no_range_leaves_the_bytes() {
        let allowed = |flags: FallocateFlags| !flags.contains(FallocateFlags::ZERO_RANGE);
        let (told, bytes) = zeroed(|flags| allowed(flags).then_some(flags));
        assert_eq!(told, [Err(Errno::EOPNOTSUPP.into()); 2]);
        assert_eq!(bytes, [7; 20_000]);
    }

    #[test]
    fn a_copy_by_hand_ends_with_the_call_under_which_the_seat_was_lost() {
        let scratch = Scratch::new("copy");
        let open = |name: &str| {
            let mut options = std::fs::OpenOptions::new();
            let path = scratch.path().join(name);
            let options = options.read(true).write(true).create(true).truncate(false);
            OwnedFd::from(options.open(path).expect("room"))
        };
        let len = 3 * COPY_BUFFER as u64;
        std::fs::write(scratch.path().join("from"), vec![7; len as usize]).expect("room");
        let (from, to) = (open("from"), open("to"));
        let copy = |permit: &Permit| {
            let (fd, ends) = (&from, Ends::default());
            Source { fd, ends }.copy(0, (&to, 0), len, permit)
        };
        let permit = Fence::closing_after(1).permit(Some(0));
        assert_eq!(copy(&permit), Err(Access::NotHeld));
        let size = || rustix::fs::fstat(&to).expect("open").st_size;
        assert_eq!(size(), COPY_BUFFER as i64);
        assert_eq!(copy(&Permit::default()), Ok(len));
        assert_eq!(size(), len as i64);
    }
}
