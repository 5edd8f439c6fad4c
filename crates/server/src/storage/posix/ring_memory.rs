//! Memory that the forwarders of one user on a node share, by a name. It is never in a file of the
//! back end: a store into a mapped file there ends the process where the back end is full, or gone.
//!
//! It lies in a tmpfs and has all its pages from the start. The last of these forwarders that ends
//! takes the name away, also where it ends before it has served ([`leave`]). What one that was
//! killed has left, the next one that starts in the folder takes away.

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock,
    fstat, fstatfs, open, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The number by which the kernel names a tmpfs.
const TMPFS: i64 = 0x0102_1994;

/// How the names of all such memory begin.
pub(super) const NAMED: &str = "removed-";

/// How often the name is looked up while others that end take it away, and the pause before another
/// look while they still do.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

pub(super) struct RingMemory {
    start: NonNull<AtomicU64>,
    words: usize,
    named: Arc<Named>,
}

/// The name of such a memory.
struct Named {
    folder: OwnedFd,
    name: String,
    /// Locked shared for as long as the memory is used.
    file: OwnedFd,
}

/// What this process uses.
static USED: Mutex<Vec<Arc<Named>>> = Mutex::new(Vec::new());

/// While there is this, the process makes no such memory.
pub(crate) struct Left {
    _used: MutexGuard<'static, Vec<Arc<Named>>>,
}

/// Takes away the names of what this process alone uses, because it ends and may not drop all.
pub(crate) fn leave() -> Left {
    let mut used = crate::lock::lock(&USED);
    for named in used.drain(..) {
        // Others use it, or it is gone.
        let _ = named.remove_unused();
    }
    Left { _used: used }
}

// SAFETY: the memory is mapped for the life of the value and only accessed through atomics.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Maps so many words of the memory that has this name in this folder; new ones are 0. Fails if
    /// the folder is no tmpfs, if the name is that of another user's file or of something else, and
    /// if there is no room.
    pub(super) fn share(folder: &Path, name: &str, words: usize) -> io::Result<RingMemory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(folder, flags, Mode::empty())?;
        if fstatfs(&folder)?.f_type as i64 != TMPFS {
            return Err(io::Error::other("the folder is no tmpfs"));
        }
        // What is left costs memory, and nothing else.
        let _ = sweep(&folder);
        for _ in 0..TRIES {
            // Until it is noted that the memory is used here. Who leaves waits for this, so nothing
            // here waits for another process.
            let mut used = crate::lock::lock(&USED);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(
                &folder,
                name,
                flags | OFlags::NONBLOCK,
                Mode::RUSR | Mode::WUSR,
            )?;
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                Err(Errno::WOULDBLOCK) => {
                    // Another one looks whether it can take the name away.
                    drop(used);
                    std::thread::sleep(PAUSE);
                    continue;
                }
                locked => locked?,
            }
            let found = fstat(&file)?;
            check(&found)?;
            // Another one may have taken the name away before this one had the lock.
            if !is_named(&folder, name, &found)? {
                continue;
            }
            let bytes = words * size_of::<u64>();
            fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: the kernel chooses the place, so no existing memory is touched.
            let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, &file, 0)? };
            let named = Arc::new(Named {
                folder,
                name: name.to_string(),
                file,
            });
            used.push(named.clone());
            return Ok(RingMemory {
                start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
                words,
                named,
            });
        }
        Err(io::Error::other(
            "others take its name away, or look long whether they can",
        ))
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped and have pages, which no forwarder takes away; everyone
        // accesses them through atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

/// Whether it is a file that only this user can have changed.
fn check(found: &Stat) -> io::Result<()> {
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let is_own = found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o077 == 0;
    match is_file && is_own && found.st_nlink <= 1 {
        true => Ok(()),
        false => Err(io::Error::other("it is not this user's alone")),
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this size, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * size_of::<u64>()) };
        let mut used = crate::lock::lock(&USED);
        used.retain(|named| !Arc::ptr_eq(named, &self.named));
        let _ = self.named.remove_unused();
    }
}

impl Named {
    fn remove_unused(&self) -> io::Result<()> {
        remove_unused(&self.folder, &self.name, &self.file)
    }
}

/// Whether the name is that of this file.
fn is_named(folder: &OwnedFd, name: &str, file: &Stat) -> io::Result<bool> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (file.st_dev, file.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the name of a file away that nobody uses: whoever does has the lock too. One that is just
/// looking finds the name gone when it has the lock, and makes it anew.
fn remove_unused(folder: &OwnedFd, name: &str, file: &OwnedFd) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    if is_named(folder, name, &fstat(file)?)? {
        unlinkat(folder, name, AtFlags::empty())?;
    }
    Ok(())
}

/// Removes all memory in the folder that nobody uses.
fn sweep(folder: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in Dir::new(openat(folder, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        let Some(name) = entry
            .file_name()
            .to_str()
            .ok()
            .filter(|name| name.starts_with(NAMED))
        else {
            continue;
        };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if let Ok(file) = openat(folder, name, flags, Mode::empty()) {
            let _ = remove_unused(folder, name, &file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    fn place(name: &str) -> (PathBuf, String) {
        let name = format!("tidegate-test-memory-{name}-{}", std::process::id());
        (PathBuf::from("/dev/shm"), name)
    }

    #[test]
    fn all_see_the_same_words_and_the_last_takes_the_name_away() {
        let (folder, name) = place("words");
        let one = RingMemory::share(&folder, &name, 1000).expect("there is a tmpfs");
        let other = RingMemory::share(&folder, &name, 1000).expect("it is there");
        assert_eq!(other.words().len(), 1000);
        one.words()[999].store(7, Ordering::Relaxed);
        assert_eq!(other.words()[999].load(Ordering::Relaxed), 7);
        drop(one);
        assert!(folder.join(&name).exists());
        drop(other);
        assert!(!folder.join(&name).exists());
        let new = RingMemory::share(&folder, &name, 1000).expect("made anew");
        assert_eq!(new.words()[999].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_killed_forwarders_have_left_is_taken_away() {
        let (folder, name) = place("left");
        let folder = folder.join(&name);
        std::fs::create_dir(&folder).expect("room");
        let left = [folder.join("removed-left"), folder.join("other")];
        for path in &left {
            std::fs::write(path, "").expect("room");
        }
        let used = RingMemory::share(&folder, "removed-used", 10).expect("room");
        assert_eq!(left.each_ref().map(|path| path.exists()), [false, true]);
        drop(RingMemory::share(&folder, "removed-new", 10).expect("room"));
        assert!(folder.join("removed-used").exists());
        drop(used);
        std::fs::remove_file(&left[1]).expect("own");
        std::fs::remove_dir(&folder).expect("empty");
    }

    /// A forwarder that was stopped while it looked whether it can take the name away.
    #[test]
    fn who_waits_for_another_forwarder_keeps_no_signal_waiting() {
        let (folder, name) = place("stopped");
        let path = folder.join(&name);
        let stopped = std::fs::File::options()
            .write(true)
            .create_new(true)
            .open(&path);
        let stopped = stopped.expect("room");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("own");
        flock(&stopped, FlockOperation::LockExclusive).expect("nobody else has it");
        let (folder, name) = (&folder, &name);
        std::thread::scope(|scope| {
            let share = scope.spawn(move || RingMemory::share(folder, name, 10));
            let until = Instant::now() + Duration::from_secs(5);
            let mut free = 0;
            // Again and again, so that one look is while it waits.
            while free < 20 && Instant::now() < until && !share.is_finished() {
                free += u32::from(USED.try_lock().is_ok());
                std::thread::sleep(Duration::from_millis(1));
            }
            flock(&stopped, FlockOperation::Unlock).expect("held");
            let shared = share.join().expect("it does not panic");
            assert_eq!(free, 20, "the list is locked while one waits");
            shared.expect("the other one goes on");
        });
        assert!(!path.exists());
    }

    #[test]
    fn what_others_could_change_is_not_shared() {
        let (folder, name) = place("refused");
        let path = folder.join(&name);
        let share = || RingMemory::share(&folder, &name, 1000).map(drop).is_ok();
        std::fs::write(&path, "").expect("room");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o620)).expect("own");
        assert!(!share(), "its group may write");
        std::fs::remove_file(&path).expect("own");
        symlink("/dev/null", &path).expect("room");
        assert!(!share(), "a link");
        std::fs::remove_file(&path).expect("own");
        std::fs::create_dir(&path).expect("room");
        assert!(!share(), "a folder");
        std::fs::remove_dir(&path).expect("own");
        assert!(share());
        let disk = std::env::current_dir().expect("there is one");
        assert!(RingMemory::share(&disk, &name, 1000).is_err(), "no tmpfs");
        assert!(!disk.join(&name).exists());
    }
}
