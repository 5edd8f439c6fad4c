//! Operations on open files.

use super::names::{R_OK, W_OK, X_OK};
use super::opens::OpenFile;
use super::{Asked, RemoteFiles, convert, process};
use crate::Checks;
use crate::fuse::{self, Copy, Errno, Opened, Payload, Read, Reply, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tidegate_client::wire::{Extent, Handle, Op, Outcome};
use tidegate_client::{Application, Bytes};

/// Flags of `open(2)` as Linux numbers them on every machine that it shares with this code.
const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0o0;
const O_WRONLY: u32 = 0o1;
const O_APPEND: u32 = 0o2000;
const O_DSYNC: u32 = 0o10000;
/// The bit that O_SYNC has and O_DSYNC has not.
const O_SYNC_ALONE: u32 = 0o4000000;
/// The kernel opens the file to run it: its `__FMODE_EXEC`, which no program can ask for.
const FMODE_EXEC: u32 = 0o40;

/// Largest offset of a file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Whether an open needs the right to read, and the right to write. A program that is run needs
/// neither: the right to execute is enough, which the kernel or a question (`Access`) has checked.
fn asks_for(flags: u32) -> (bool, bool) {
    let mode = flags & O_ACCMODE;
    (
        mode != O_WRONLY && flags & FMODE_EXEC == 0,
        mode != O_RDONLY,
    )
}

/// The mask of access(2) for an open.
fn access_for(flags: u32) -> u32 {
    let run = if flags & FMODE_EXEC == 0 { 0 } else { X_OK };
    let (read, write) = asks_for(flags);
    run | if read { R_OK } else { 0 } | if write { W_OK } else { 0 }
}

impl RemoteFiles {
    pub(super) fn answer_open(&self, reply: Reply, asked: &Asked, flags: u32) {
        let opened = self
            .handle_of(asked)
            .and_then(|handle| self.open(asked, handle, flags))
            .and_then(|opened| self.judge_opened(asked, flags, opened));
        match opened {
            Ok(opened) => {
                if !reply.opened(&opened) {
                    self.files.remove(opened.handle);
                }
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Whether the caller may open a file that is open now. Forwarders let a file's owner open it
    /// in any way, for one who has made it, or who has it open and comes from another forwarder;
    /// and they know of no programs that are run. They are not asked where the mode lets the owner:
    /// if they have judged by another user than this process's, they have looked at the mode.
    fn judge_opened(&self, asked: &Asked, flags: u32, opened: Opened) -> Result<Opened, Errno> {
        if self.checks == Checks::Kernel {
            return Ok(opened);
        }
        let attr = self.files.find(opened.handle)?.held.attr();
        let is_own = attr.uid == rustix::process::geteuid().as_raw();
        let mask = access_for(flags);
        if is_own && mask & X_OK == 0 && attr.mode >> 6 & mask == mask {
            return Ok(opened);
        }
        self.judge(asked, mask)
            .inspect_err(|_| drop(self.files.remove(opened.handle)))
            .map(|()| opened)
    }

    /// Tells forwarders who an application is, on behalf of one of its processes.
    pub(super) fn introduce(&self, caller: fuse::Caller, application: Application) {
        let fuse::Caller { uid, gid, tid } = caller;
        let caller = self.pass_callers.then(|| process::caller(uid, gid, tid));
        self.forwarders.name_application(Application {
            caller,
            ..application
        });
    }

    /// Opens a file, and records for which application.
    pub(super) fn open(&self, asked: &Asked, handle: Handle, flags: u32) -> Result<Opened, Errno> {
        let tell = |application| self.introduce(asked.caller, application);
        let app = self.applications.id(asked.caller, tell);
        let call = self.call(asked);
        let (read, write) = asks_for(flags);
        let held = self.forwarders.open(call.context(), handle, read, write);
        let held = held.map_err(convert::errno)?;
        let caller = call.context().caller.clone();
        let number = self.files.insert(|number| OpenFile {
            number,
            handle,
            app: app.into(),
            caller,
            hints: Mutex::default(),
            is_hinted: AtomicBool::new(false),
            held,
        });
        Ok(Opened {
            handle: number,
            direct_io: true,
            parallel_direct_writes: true,
            keep_cache: false,
        })
    }

    pub(super) fn answer_read(&self, reply: Reply, asked: &Asked, read: Read) {
        match self.read(asked, read) {
            Ok(pieces) => {
                let pieces: Vec<_> = pieces.iter().map(|piece| piece.raw()).collect();
                reply.pieces(&pieces);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(&self, asked: &Asked, read: Read) -> Result<Vec<tidegate_client::Payload>, Errno> {
        let file = self.files.find(read.handle)?;
        let len = u64::from(read.len).min(OFFSET_MAX.saturating_sub(read.offset));
        if len == 0 {
            return Ok(Vec::new());
        }
        let extent = Extent {
            offset: read.offset,
            len,
        };
        let op = Op::Read {
            handle: file.handle,
            extents: extent.into(),
        };
        let collective = file.collective(read.offset, len);
        let call = self.call_through(asked, &file).part_of(collective);
        Ok(call.answer(op, Bytes::new())?.data.pieces)
    }

    /// Writes the payload without copying it, and makes it stable where the program has asked for
    /// that when it opened the file (`O_SYNC`, `O_DSYNC`) or with this write (`RWF_DSYNC`): the
    /// kernel leaves that to the file system. It cuts a long write, and does not say which piece is
    /// the last, so each piece is synced, by the forwarders that took it.
    pub(super) fn write(
        &self,
        asked: &Asked,
        write: Write,
        payload: Payload,
    ) -> Result<u32, Errno> {
        let file = self.files.find(write.handle)?;
        let len = payload.len() as u64;
        if len == 0 {
            return Ok(0);
        }
        let handle = file.handle;
        // What the page cache writes back has its place; only a program's own call appends.
        let appends = write.flags & O_APPEND != 0 && !write.from_cache;
        let extent = Extent {
            offset: write.offset,
            len,
        };
        let op = match appends {
            true => Op::Append { handle },
            false => Op::Write {
                handle,
                extents: extent.into(),
            },
        };
        let collective = file.collective(write.offset, len);
        let call = self.call_through(asked, &file).part_of(collective);
        let written = call.written(op, Bytes::from_owner(payload))?;
        drop(call);
        if write.flags & O_DSYNC != 0 && !write.from_cache {
            // The forwarder in charge of the file's first byte has appended.
            let range = match appends {
                true => Extent { offset: 0, len: 1 },
                false => extent,
            };
            let data_only = write.flags & O_SYNC_ALONE == 0;
            let call = self.call_through(asked, &file).by(&file).within(range);
            call.done(Op::Fsync { handle, data_only })?;
        }
        Ok(u32::try_from(written).unwrap_or(u32::MAX))
    }

    pub(super) fn fsync(&self, asked: &Asked, number: u64, data_only: bool) -> Result<(), Errno> {
        let file = self.files.find(number)?;
        let op = Op::Fsync {
            handle: file.handle,
            data_only,
        };
        self.call_through(asked, &file).by(&file).done(op)
    }

    pub(super) fn fallocate(
        &self,
        asked: &Asked,
        number: u64,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let file = self.files.find(number)?;
        let op = Op::Fallocate {
            handle: file.handle,
            mode,
            offset,
            len,
        };
        self.call_through(asked, &file).done(op)
    }

    pub(super) fn seek(
        &self,
        asked: &Asked,
        number: u64,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        let file = self.files.find(number)?;
        let op = Op::Seek {
            handle: file.handle,
            offset,
            whence,
        };
        match self.call_through(asked, &file).outcome(op)? {
            Outcome::Offset(offset) => Ok(offset),
            _ => Err(Errno::IO),
        }
    }

    pub(super) fn copy(&self, asked: &Asked, copy: Copy) -> Result<u64, Errno> {
        if copy.flags != 0 {
            return Err(Errno::INVAL);
        }
        let (from, to) = (
            self.files.find(copy.handle_in)?,
            self.files.find(copy.handle_out)?,
        );
        let op = Op::CopyRange {
            source: from.handle,
            source_offset: copy.offset_in,
            handle: to.handle,
            offset: copy.offset_out,
            len: copy.len,
        };
        self.call_through(asked, &to).written(op, Bytes::new())
    }

    pub(super) fn test_lock(&self, asked: &Asked, lock: &fuse::Lock) -> Result<fuse::Lock, Errno> {
        let file = self.files.find(lock.handle)?;
        let op = Op::TestLock {
            handle: file.handle,
            lock: convert::wire_lock(lock),
        };
        match self.call_through(asked, &file).outcome(op)? {
            Outcome::Lock(found) => Ok(convert::kernel_lock(lock, found)),
            _ => Err(Errno::IO),
        }
    }

    pub(super) fn set_lock(
        &self,
        asked: &Asked,
        lock: &fuse::Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        let file: Arc<OpenFile> = self.files.find(lock.handle)?;
        let call = self.call_through(asked, &file);
        self.locks.set(call.context(), &file, lock, wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_asks_for_what_its_flags_need() {
        const O_RDWR: u32 = 0o2;
        assert_eq!(asks_for(O_RDONLY), (true, false));
        assert_eq!(asks_for(O_WRONLY | O_APPEND), (false, true));
        assert_eq!(asks_for(O_RDWR), (true, true));
        assert_eq!(asks_for(O_RDONLY | FMODE_EXEC), (false, false));
        let masks = [O_RDONLY, O_WRONLY | O_APPEND, O_RDWR, FMODE_EXEC].map(access_for);
        assert_eq!(masks, [R_OK, W_OK, R_OK | W_OK, X_OK]);
    }
}
