//! The file on which accesses are measured. It has no name and contains random data.

use super::at_once::{Limits, Slice, at_once};
use super::{Access, BYTES_MIN, CalibrateError, Route};
use rustix::fs::{Advice, CWD, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread::Builder;
use std::time::{Duration, Instant};
use tidegate_sched::{Direction, mix64};

/// The alignment of buffers and offsets that O_DIRECT needs, in bytes.
const ALIGNMENT: usize = 4096;

/// The longest access, in bytes.
const LEN_MAX: usize = 16 << 20;

/// The file is written in pieces of this many bytes. Each is synced, so that the time limit can be
/// checked.
const FILL: usize = 4 << 20;

/// Memory with the alignment that O_DIRECT needs.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// A buffer of data that neither compresses nor repeats.
    fn new(len: usize) -> Buffer {
        let mut bytes = vec![0; len + ALIGNMENT];
        for (number, chunk) in (1..).zip(bytes.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&mix64(number).to_le_bytes());
        }
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Buffer { bytes, start }
    }

    fn slice(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// The file on which accesses are measured.
pub(super) struct Scratch {
    dir: String,
    file: File,
    buffer: Buffer,
    bytes: u64,
}

impl Scratch {
    /// Makes the file, empty. Fails if there is no room for `bytes`.
    pub fn new(dir: &Path, bytes: u64) -> Result<Scratch, CalibrateError> {
        let shown = dir.display().to_string();
        let refused = |what: String| Err(CalibrateError::Directory(what));
        match std::fs::metadata(dir) {
            Err(error) => return refused(format!("{shown}: {error}")),
            Ok(found) if !found.is_dir() => {
                return refused(format!(
                    "{shown} is not a directory: name the one to measure"
                ));
            }
            Ok(_) => {}
        }
        let file = match nameless(dir) {
            Ok(file) => file,
            Err(error) => {
                return refused(format!(
                    "{shown}: a file to measure in cannot be made: {error}"
                ));
            }
        };
        let scratch = Scratch {
            dir: shown,
            file,
            buffer: Buffer::new(LEN_MAX),
            bytes,
        };
        let state = rustix::fs::fstatvfs(&scratch.file);
        let state = state.map_err(|error| scratch.failed("fstatvfs", error.into()))?;
        let free = state.f_bavail.saturating_mul(state.f_frsize);
        // Some file systems cannot tell; then the writes will fail.
        if state.f_blocks > 0 && free < bytes {
            return Err(scratch.no_space(free));
        }
        Ok(scratch)
    }

    /// The size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the file, as much of it as `end` allows.
    pub fn fill(&mut self, end: Instant, progress: &dyn Fn(f64)) -> Result<(), CalibrateError> {
        let wanted = self.bytes;
        let mut done = 0;
        while done < wanted && (done == 0 || Instant::now() < end) {
            let len = (FILL as u64).min(wanted - done) as usize;
            let data = self.buffer.slice(len);
            // No two blocks of the file are the same.
            for block in data.chunks_mut(ALIGNMENT) {
                let stamp = mix64(done + block.len() as u64);
                block[..8].copy_from_slice(&stamp.to_le_bytes());
            }
            let written = self.file.write_all_at(data, done);
            let result = written.and_then(|()| Ok(rustix::fs::fdatasync(&self.file)?));
            if let Err(error) = result {
                return Err(match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                        self.no_space(done)
                    }
                    _ => self.failed("writing", error),
                });
            }
            done += len as u64;
            progress(done as f64 / wanted as f64);
        }
        self.bytes = done / ALIGNMENT as u64 * ALIGNMENT as u64;
        if self.bytes < BYTES_MIN {
            return Err(CalibrateError::TooSlow {
                dir: self.dir.clone(),
                bytes: done,
            });
        }
        Ok(())
    }

    /// Why direct I/O does not work; None if it does.
    pub fn probe_direct(&mut self) -> Result<Option<String>, CalibrateError> {
        let tried = self.set_direct(true).and_then(|()| {
            let data = self.buffer.slice(ALIGNMENT);
            self.file.read_exact_at(data, 0)?;
            self.file.write_all_at(data, 0)
        });
        self.set_direct(false)
            .map_err(|error| self.failed("fcntl", error))?;
        Ok(tried.err().map(|error| error.to_string()))
    }

    /// Prepares the file for accesses of one kind.
    pub fn begin(&self, access: &Access) -> Result<(), CalibrateError> {
        self.set_direct(access.by == Route::Direct)
            .map_err(|error| self.failed("fcntl", error))?;
        self.forget();
        Ok(())
    }

    /// Makes one access. Returns its duration in ns.
    pub fn access(&mut self, access: &Access, offset: u64) -> Result<u64, CalibrateError> {
        let data = self.buffer.slice(access.len as usize);
        match one(&self.file, access, offset, data) {
            Ok(took) => Ok(took.as_nanos() as u64),
            Err(error) => Err(self.failed("an access", error)),
        }
    }

    /// Makes accesses, so many at once. Sequential ones are one stream for all; `seed` determines
    /// the places.
    pub fn together(
        &self,
        access: &Access,
        seed: u64,
        limits: Limits,
    ) -> Result<Slice, CalibrateError> {
        let shared = Mutex::new(Stream::new(access, self.bytes, seed, 0));
        let shared = &shared;
        let worker = |number: u32| {
            let mut buffer = Buffer::new(access.len as usize);
            let mut own = Stream::new(access, self.bytes, seed, number);
            move || {
                let (offset, _) = match access.sequential {
                    true => shared.lock().expect("no worker panics").next(),
                    false => own.next(),
                };
                let data = buffer.slice(access.len as usize);
                one(&self.file, access, offset, data).map(|_| ())
            }
        };
        let slice = at_once(limits, |_| Builder::new(), worker);
        slice.map_err(|(what, error)| self.failed(what, error))
    }

    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let mut flags = rustix::fs::fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        Ok(rustix::fs::fcntl_setfl(&self.file, flags)?)
    }

    /// Drops the file from the page cache. Where that does not work, accesses look faster than they
    /// are.
    fn forget(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn failed(&self, what: &'static str, error: io::Error) -> CalibrateError {
        CalibrateError::Io {
            dir: self.dir.clone(),
            what,
            error,
        }
    }

    fn no_space(&self, free: u64) -> CalibrateError {
        CalibrateError::NoSpace {
            dir: self.dir.clone(),
            free,
            bytes: self.bytes,
        }
    }
}

/// Makes a file that is removed with its last descriptor.
fn nameless(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    if let Ok(fd) = rustix::fs::openat(CWD, dir, flags | OFlags::TMPFILE, mode) {
        return Ok(fd.into());
    }
    // Not all file systems can: NFS, FUSE.
    let path = dir.join(format!(".tidegate-calibrate-{}", std::process::id()));
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let fd = rustix::fs::openat(CWD, &path, flags, mode)?;
    std::fs::remove_file(&path)?;
    Ok(fd.into())
}

/// Makes one access. Returns its duration.
fn one(file: &File, access: &Access, offset: u64, data: &mut [u8]) -> io::Result<Duration> {
    let buffered = access.by == Route::Buffered;
    if buffered && access.direction == Direction::Read {
        let len = std::num::NonZeroU64::new(access.len).filter(|_| !access.sequential);
        // A sequential stream begins with nothing in the cache, and the kernel may read ahead.
        if len.is_some() || offset == 0 {
            let _ = rustix::fs::fadvise(file, offset, len, Advice::DontNeed);
        }
    }
    let start = Instant::now();
    match access.direction {
        Direction::Read => file.read_exact_at(data, offset)?,
        Direction::Write => file.write_all_at(data, offset)?,
    }
    if buffered && access.direction == Direction::Write {
        rustix::fs::fdatasync(file)?;
    }
    Ok(start.elapsed())
}

/// The offsets of accesses of one kind.
pub(super) struct Stream {
    len: u64,
    blocks: u64,
    sequential: bool,
    state: u64,
    at: u64,
    is_first: bool,
}

impl Stream {
    /// Offsets within `bytes`, which `seed` and the number of the worker determine. Sequential
    /// ones begin where the seed says.
    pub fn new(access: &Access, bytes: u64, seed: u64, worker: u32) -> Stream {
        let blocks = (bytes / access.len).max(1);
        let state = mix64(mix64(seed + 1).wrapping_add(u64::from(worker)));
        Stream {
            len: access.len,
            blocks,
            sequential: access.sequential,
            state,
            at: state % blocks,
            is_first: true,
        }
    }

    /// The next offset, and whether its time counts. The first access of a sequential stream does
    /// not count, nor the one at the beginning of the file, because they continue none.
    pub fn next(&mut self) -> (u64, bool) {
        if self.sequential {
            let block = self.at;
            self.at = (block + 1) % self.blocks;
            let continues = !std::mem::replace(&mut self.is_first, false) && block > 0;
            return (block * self.len, continues);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix64(self.state) % self.blocks * self.len, true)
    }
}
