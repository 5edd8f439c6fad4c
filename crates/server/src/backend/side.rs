//! A folder as one mount shows it, on which the operations of trials are executed.

use super::op::{Answer, OPEN_CREATE, OPEN_DIRECT, Op, Verb};
use crate::storage::ofd::{self, Kind};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The alignment for direct I/O in bytes: the largest that devices have.
pub(crate) const BLOCK: usize = 4096;
/// How long a trial of appends lasts at most. Appends are slow where two nodes take a file from
/// each other for every record.
const APPEND_MAX: Duration = Duration::from_secs(2);
/// The most open files of one side.
const FILES_MAX: usize = 32;

/// The other side does not answer any more; the text says why.
#[derive(Debug)]
pub(crate) struct Gone(pub(crate) String);

/// A side of a trial. Its answers come from its own mount. An error means that the side is gone.
pub(crate) trait Side {
    /// Executes an operation.
    fn run(&mut self, op: &Op) -> Result<Answer, Gone>;
    /// Begins an operation that takes a while. Nothing else may be executed before
    /// [`Side::finish`].
    fn begin(&mut self, op: &Op) -> Result<(), Gone>;
    /// Waits until the operation has ended.
    fn finish(&mut self) -> Result<Answer, Gone>;
}

/// A side that executes operations on this process's own mount.
pub(crate) struct Local {
    folder: Arc<OwnedFd>,
    files: BTreeMap<u8, OpenFile>,
    /// Files that are removed at the end, whatever the trial did.
    made: BTreeSet<String>,
    under_way: Option<JoinHandle<Answer>>,
}

struct OpenFile {
    file: File,
    map: Option<Map>,
}

impl Local {
    /// Executes operations in an open folder.
    pub(crate) fn new(folder: Arc<OwnedFd>) -> Local {
        Local {
            folder,
            files: BTreeMap::new(),
            made: BTreeSet::new(),
            under_way: None,
        }
    }

    fn file(&self, op: &Op) -> io::Result<&File> {
        let open = self.files.get(&op.file);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(&open.file)
    }

    fn perform(&mut self, op: &Op) -> io::Result<Answer> {
        let done = Answer::default();
        let folder = self.folder.clone();
        let folder = folder.as_fd();
        match op.verb {
            Verb::Open => self.open(op).map(|()| done),
            Verb::Close => {
                self.files.remove(&op.file);
                Ok(done)
            }
            Verb::Write => {
                let (file, begun) = (self.file(op)?, Instant::now());
                write(file, op)?;
                Ok(Answer::number(begun.elapsed().as_millis() as u64))
            }
            Verb::Read => read(self.file(op)?, op),
            Verb::Forget => {
                let advice = rustix::fs::Advice::DontNeed;
                rustix::fs::fadvise(self.file(op)?, 0, None, advice)?;
                Ok(done)
            }
            Verb::Sync if op.file == 0 => Ok(rustix::fs::fsync(folder).map(|()| done)?),
            Verb::Sync => self.file(op)?.sync_all().map(|()| done),
            Verb::StatOpen => stat(self.file(op)?.as_fd(), "", op.at == 1),
            Verb::Lock => {
                let kind = match op.len {
                    1 => Kind::Shared,
                    _ => Kind::Exclusive,
                };
                let had = ofd::try_lock(self.file(op)?.as_fd(), op.at, kind)?;
                Ok(Answer::number(u64::from(had)))
            }
            Verb::Unlock => ofd::unlock(self.file(op)?.as_fd(), op.at).map(|()| done),
            Verb::Locked => {
                let by = ofd::held_elsewhere(self.file(op)?.as_fd(), op.at)?;
                Ok(Answer::number(u64::from(by.is_some())))
            }
            Verb::Flock => {
                let how = FlockOperation::NonBlockingLockExclusive;
                match rustix::fs::flock(self.file(op)?, how) {
                    Ok(()) => Ok(Answer::number(1)),
                    Err(Errno::WOULDBLOCK) => Ok(Answer::number(0)),
                    Err(error) => Err(error.into()),
                }
            }
            Verb::Mapped => self.mapped(op),
            _ => {
                let made = [&op.name, &op.to]
                    .into_iter()
                    .filter(|name| !name.is_empty());
                self.made.extend(made.cloned());
                by_name(folder, op)
            }
        }
    }

    fn open(&mut self, op: &Op) -> io::Result<()> {
        if self.files.len() >= FILES_MAX {
            return Err(Errno::MFILE.into());
        }
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if op.at & OPEN_CREATE != 0 {
            flags |= OFlags::CREATE;
            self.made.insert(op.name.clone());
        }
        if op.at & OPEN_DIRECT != 0 {
            flags |= OFlags::DIRECT;
        }
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::openat(self.folder.as_fd(), &op.name, flags, mode)?;
        let file = File::from(fd);
        self.files.insert(op.file, OpenFile { file, map: None });
        Ok(())
    }

    fn mapped(&mut self, op: &Op) -> io::Result<Answer> {
        let open = self.files.get_mut(&op.file);
        let open = open.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        // Reading a byte beyond the end of the file would raise SIGBUS.
        if open.file.metadata()?.len() < BLOCK as u64 || op.at >= BLOCK as u64 {
            return Err(Errno::INVAL.into());
        }
        let map = match open.map.take() {
            Some(map) => map,
            None => Map::new(&open.file)?,
        };
        let byte = map.byte(op.at as usize)?;
        open.map = Some(map);
        Ok(Answer::number(u64::from(byte)))
    }
}

impl Side for Local {
    fn run(&mut self, op: &Op) -> Result<Answer, Gone> {
        Ok(self
            .perform(op)
            .unwrap_or_else(|error| Answer::failed(&error)))
    }

    fn begin(&mut self, op: &Op) -> Result<(), Gone> {
        let (folder, op) = (self.folder.clone(), op.clone());
        for name in [&op.name, &op.to] {
            self.made.insert(name.clone());
        }
        let work =
            move || by_name(folder.as_fd(), &op).unwrap_or_else(|error| Answer::failed(&error));
        let thread = std::thread::Builder::new().name("trial".to_string());
        let thread = thread.spawn(work);
        self.under_way = Some(thread.map_err(|error| Gone(format!("no thread: {error}")))?);
        Ok(())
    }

    fn finish(&mut self) -> Result<Answer, Gone> {
        let thread = self.under_way.take().expect("it was begun");
        thread
            .join()
            .map_err(|_| Gone("its thread ended".to_owned()))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(thread) = self.under_way.take() {
            let _ = thread.join();
        }
        self.files.clear();
        for name in self.made.iter().filter(|name| !name.is_empty()) {
            // Often the other side has removed the file already, or the trial has renamed it.
            let _ = rustix::fs::unlinkat(self.folder.as_fd(), name, AtFlags::empty());
        }
    }
}

/// Executes an operation that needs no open file.
fn by_name(folder: BorrowedFd<'_>, op: &Op) -> io::Result<Answer> {
    let done = Answer::default();
    let (name, to) = (op.name.as_str(), op.to.as_str());
    match op.verb {
        Verb::Make => make(folder, name).map(|_| done),
        Verb::Truncate => {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
            rustix::fs::ftruncate(&file, op.len)?;
            Ok(done)
        }
        Verb::Stat => stat(folder, name, op.at == 1),
        Verb::Link => {
            rustix::fs::linkat(folder, name, folder, to, AtFlags::empty())?;
            Ok(done)
        }
        Verb::Rename => {
            match RenameFlags::from_bits_retain(op.at as u32) {
                flags if flags.is_empty() => rustix::fs::renameat(folder, name, folder, to)?,
                flags => rustix::fs::renameat_with(folder, name, folder, to, flags)?,
            }
            Ok(done)
        }
        Verb::Unlink => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
            Ok(done)
        }
        Verb::List => list(folder, name),
        Verb::Churn => churn(folder, op),
        Verb::Watch => watch(folder, op),
        Verb::Append => append(folder, op),
        _ => Err(Errno::INVAL.into()),
    }
}

fn make(folder: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(fd))
}

fn stat(at: BorrowedFd<'_>, name: &str, fresh: bool) -> io::Result<Answer> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    if fresh {
        flags |= AtFlags::STATX_FORCE_SYNC;
    }
    let mask = StatxFlags::SIZE | StatxFlags::NLINK | StatxFlags::INO;
    let found = rustix::fs::statx(at, name, flags, mask)?;
    Ok(Answer {
        number: found.stx_size,
        other: u64::from(found.stx_nlink),
        inode: found.stx_ino,
        ..Answer::default()
    })
}

fn list(folder: BorrowedFd<'_>, prefix: &str) -> io::Result<Answer> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && names.len() < 64 {
            names.push(name);
        }
    }
    Ok(Answer {
        names,
        ..Answer::default()
    })
}

fn write(file: &File, op: &Op) -> io::Result<()> {
    let mut memory = Aligned::new(op.len as usize);
    memory.bytes().fill(op.fill);
    file.write_all_at(memory.bytes(), op.at)
}

fn read(file: &File, op: &Op) -> io::Result<Answer> {
    let mut memory = Aligned::new(op.len as usize);
    let bytes = memory.bytes();
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], op.at + len as u64) {
            Ok(0) => break,
            // Direct I/O can only append whole blocks.
            Ok(more) if more % BLOCK != 0 => {
                len += more;
                break;
            }
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let first = bytes[..len].first().copied();
    let same = bytes[..len].iter().all(|byte| Some(*byte) == first);
    Ok(Answer {
        number: len as u64,
        other: first.filter(|_| same).map_or(256, u64::from),
        ..Answer::default()
    })
}

/// Renames new files over one that the other side looks up.
fn churn(folder: BorrowedFd<'_>, op: &Op) -> io::Result<Answer> {
    let until = Instant::now() + Duration::from_millis(op.len);
    let mut count = 0;
    while Instant::now() < until {
        drop(make(folder, &op.name)?);
        rustix::fs::renameat(folder, op.name.as_str(), folder, op.to.as_str())?;
        count += 1;
    }
    Ok(Answer::number(count))
}

fn watch(folder: BorrowedFd<'_>, op: &Op) -> io::Result<Answer> {
    let until = Instant::now() + Duration::from_millis(op.len);
    let (mut looks, mut missing, mut stale) = (0, 0, 0);
    while Instant::now() < until {
        looks += 1;
        match stat(folder, &op.name, true) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => missing += 1,
            // The file was found and replaced before it was examined: the caller may look again.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => stale += 1,
            other => drop(other?),
        }
    }
    Ok(Answer {
        number: looks,
        other: missing,
        inode: stale,
        ..Answer::default()
    })
}

fn append(folder: BorrowedFd<'_>, op: &Op) -> io::Result<Answer> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(folder, op.name.as_str(), flags, Mode::empty())?;
    let record = vec![op.fill; op.len as usize];
    let until = Instant::now() + APPEND_MAX;
    let mut count = 0;
    while count < op.at && Instant::now() < until {
        rustix::io::write(&fd, &record)?;
        count += 1;
    }
    Ok(Answer::number(count))
}

/// Opens or makes a folder that only this user may access.
pub(crate) fn private_folder(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&folder)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o022 != 0 {
        let what = format!("{name} in it is another user's, or others may write it; remove it");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(folder)
}

/// Memory with the alignment for direct I/O.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Aligned {
        let memory = vec![0; len + BLOCK];
        let begin = memory.as_ptr().align_offset(BLOCK);
        Aligned { memory, begin, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len]
    }
}

/// Fails if the first page of a file cannot be mapped as shared memory.
pub(crate) fn can_map(file: &File) -> rustix::io::Result<()> {
    let io = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    Map::new(file)
        .and_then(|map| map.byte(0))
        .map(drop)
        .map_err(io)
}

/// One shared page of a file.
struct Map(*mut libc::c_void);

impl Map {
    fn new(file: &File) -> io::Result<Map> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place that the kernel chooses; it is unmapped when dropped.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                BLOCK,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Ok(Map(at?))
    }

    /// A byte of the page. The kernel copies it, so a page that cannot be loaded is an error
    /// (EFAULT). If the program read it directly, SIGBUS would end the program.
    fn byte(&self, at: usize) -> io::Result<u8> {
        assert!(at < BLOCK, "inside the mapping");
        let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // SAFETY: the place lies in the mapping, and the kernel only reads one byte there.
        let written = unsafe { libc::write(to.as_raw_fd(), self.0.cast::<u8>().add(at).cast(), 1) };
        if written != 1 {
            return Err(io::Error::last_os_error());
        }
        let mut byte = [0];
        rustix::io::read(&from, &mut byte)?;
        Ok(byte[0])
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference into it lives.
        let _ = unsafe { rustix::mm::munmap(self.0, BLOCK) };
    }
}

// SAFETY: the mapping is memory of the process, reached through this value only.
unsafe impl Send for Map {}
