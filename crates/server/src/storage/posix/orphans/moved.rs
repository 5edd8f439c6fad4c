//! Notes that tell where open files and directories were renamed to.
//!
//! When a forwarder does not know a file, the client sends it the path under which the client found
//! the file. That path leads nowhere if another client has renamed the file since. So a forwarder
//! that renames an open file, or any directory, leaves a note `.tidegate/moved/<inode>-<birth>`: a
//! symbolic link, which nobody follows. Its text is the new path below the root, and before that
//! the handles of the directories on the path, for these may be renamed too, and have notes of
//! their own then. A note is only a hint, because the file that is found is compared with the
//! handle. The note of a file is removed by the file's last close or by the sweep of its seat, that
//! of a directory after an hour at the latest.

use super::{Opens, hidden_name, ignore_absent, lock, parse_hidden_name};
use crate::storage::posix::hidden::{HIDDEN, draft_name, make_folder};
use crate::storage::posix::place::Trail;
use crate::storage::posix::sys::{self, Done, check_name, no};
use crate::storage::{Permit, ofd};
use rustix::fs::{AtFlags, Dir, DirEntry};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_wire::{Handle, PATH_MAX};

/// How long the note of a directory is kept.
const DIRECTORY_KEPT: Duration = Duration::from_secs(3600);

/// So long no note goes because there are many: forwarders read the notes about once a second, and
/// know then where their open files are.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// The most notes of directories that one forwarder keeps that are older than that, and in all.
/// Beyond either it removes the oldest.
const DIRECTORIES_MAX: (usize, usize) = (1024, 16_384);

/// The same for notes of files. A file whose note is gone is found again by the forwarders that
/// have read it, and by others only under the path that the client knows.
const FILES_MAX: (usize, usize) = (16_384, 131_072);

/// How many old notes go at once with a new one, and between two looks whether to go on.
const AT_ONCE: usize = 16;

/// The notes are read again after this time whatever the folder shows, because a node may see late
/// that it has changed.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// What a forwarder has noted, the oldest first, each once. The notes of some may be gone.
struct Noted {
    max: (usize, usize),
    kept: Duration,
    /// By the numbers of the notes.
    order: BTreeMap<u64, (Handle, Instant)>,
    numbers: HashMap<Handle, u64>,
}

impl Noted {
    fn new(max: (usize, usize), kept: Duration) -> Noted {
        Noted {
            max,
            kept,
            order: BTreeMap::new(),
            numbers: HashMap::new(),
        }
    }

    /// Adds a note with its number, in place of an older one.
    fn add(&mut self, handle: Handle, number: u64, now: Instant) {
        self.forget(handle);
        self.order.insert(number, (handle, now));
        self.numbers.insert(handle, number);
    }

    /// Forgets those that are too old or too many, a few at most. Their notes must go.
    fn surplus(&mut self, now: Instant) -> Vec<(Handle, u64)> {
        let mut gone = Vec::new();
        while let Some((number, (oldest, since))) = self.order.first_key_value() {
            let (count, age) = (self.order.len(), now.saturating_duration_since(*since));
            let many = count > self.max.0 && age > READ_WITHIN || count > self.max.1;
            if !many && age <= self.kept || gone.len() == AT_ONCE {
                break;
            }
            let (oldest, number) = (*oldest, *number);
            gone.push((oldest, number));
            self.forget(oldest);
        }
        gone
    }

    fn forget(&mut self, handle: Handle) {
        if let Some(number) = self.numbers.remove(&handle) {
            self.order.remove(&number);
        }
    }
}

/// The folder of notes.
pub(super) struct Notes {
    folder: OwnedFd,
    /// The number of the next note. Those of other forwarders begin elsewhere, by chance.
    next: AtomicU64,
    files: Mutex<Noted>,
    /// Directories that this forwarder has noted. A sweep removes the notes of forwarders that have
    /// ended.
    directories: Mutex<Noted>,
    read: Mutex<Mark>,
}

/// Which state of the folder was read last.
#[derive(Clone, Copy, Default)]
pub(in crate::storage::posix) struct Mark {
    /// The time of its last change, in seconds and nanoseconds.
    changed: (i64, u32),
    /// Whether it was the same at the reading before: what is changed in the same tick of the clock
    /// shows no other time.
    twice: bool,
    /// When it was read.
    at: Option<Instant>,
}

impl Notes {
    /// Opens the folder of notes in the hidden folder.
    pub(super) fn open(hidden: BorrowedFd<'_>) -> std::io::Result<Notes> {
        let mut first = [0; 8];
        getrandom::fill(&mut first).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Notes {
            folder: make_folder(hidden, "moved")?,
            // So that counting never overflows.
            next: AtomicU64::new(u64::from_le_bytes(first) >> 1),
            files: Mutex::new(Noted::new(FILES_MAX, Duration::MAX)),
            directories: Mutex::new(Noted::new(DIRECTORIES_MAX, DIRECTORY_KEPT)),
            read: Mutex::default(),
        })
    }

    /// Writes a note, in place of an older one, and remembers it. If the file system cannot take it
    /// (it is full, or the path is too long), the older note stays.
    fn write(&self, noted: &Mutex<Noted>, handle: Handle, mut trail: Trail) {
        let name = hidden_name(handle);
        let draft = draft_name(&name);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let written = loop {
            match rustix::fs::symlinkat(text_of(number, &trail), &self.folder, &draft) {
                // The directories near the root are left out first.
                Err(rustix::io::Errno::NAMETOOLONG) if !trail.dirs.is_empty() => {
                    trail.dirs.drain(..trail.dirs.len().div_ceil(2));
                }
                written => break written,
            }
        };
        let written =
            written.and_then(|()| rustix::fs::renameat(&self.folder, &draft, &self.folder, &name));
        match written {
            Ok(()) => lock(noted).add(handle, number, Instant::now()),
            Err(error) => {
                let _ = rustix::fs::unlinkat(&self.folder, &draft, AtFlags::empty());
                tracing::debug!(inode = handle.inode, %error, "renamed file gets no note");
            }
        }
    }

    fn read(&self, handle: Handle) -> Option<(u64, Trail)> {
        let text = rustix::fs::readlinkat(&self.folder, hidden_name(handle), Vec::new()).ok()?;
        parse_text(text.as_bytes())
    }

    fn remove(&self, name: impl rustix::path::Arg) -> Done<()> {
        let removed = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        removed.or_else(ignore_absent).map_err(no)
    }

    /// Removes some of the notes that are too old or too many. False if there are none.
    fn remove_surplus(&self, noted: &Mutex<Noted>) -> bool {
        let surplus = lock(noted).surplus(Instant::now());
        for (handle, number) in &surplus {
            // Another forwarder may have renamed it since. Then the note is that one's.
            let is_ours = self
                .read(*handle)
                .is_some_and(|(theirs, _)| theirs == *number);
            if is_ours && let Err(error) = self.remove(hidden_name(*handle)) {
                tracing::debug!(inode = handle.inode, ?error, "old note stays");
            }
        }
        !surplus.is_empty()
    }

    /// Whether a note is older than those of directories may become.
    fn is_old(&self, name: &std::ffi::CStr) -> bool {
        let Ok(stat) = sys::stat_at(&self.folder, name, AtFlags::empty()) else {
            return true;
        };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let kept = DIRECTORY_KEPT.as_secs() as i64;
        now.saturating_sub(stat.stx_mtime.tv_sec) > kept
    }
}

/// The text of a note: its number and the handles of the directories, with colons between them,
/// then a slash and the path.
fn text_of(number: u64, trail: &Trail) -> Vec<u8> {
    let mut text = format!("{number:x}");
    for Handle { inode, birth } in &trail.dirs {
        let _ = write!(text, ":{inode:x}-{birth:x}");
    }
    [text.as_bytes(), b"/", &trail.path].concat()
}

/// The number and the trail in the text of a note. None if it leads to no name that users can give.
fn parse_text(text: &[u8]) -> Option<(u64, Trail)> {
    let slash = text.iter().position(|byte| *byte == b'/')?;
    let (head, path) = (
        std::str::from_utf8(&text[..slash]).ok()?,
        &text[slash + 1..],
    );
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let mut words = head.split(':');
    let number = hex(words.next()?)?;
    let dirs = words.map(|word| {
        let (inode, birth) = word.split_once('-')?;
        Some(Handle {
            inode: hex(inode)?,
            birth: hex(birth)?,
        })
    });
    let dirs = dirs.collect::<Option<Vec<Handle>>>()?;
    let mut names = path.split(|byte| *byte == b'/');
    let is_hidden = names.clone().next() == Some(HIDDEN.as_bytes());
    let path = path.to_vec();
    let usable = !is_hidden && names.all(|name| check_name(name).is_ok());
    usable.then_some((number, Trail { path, dirs }))
}

/// The file or directory of a note in the folder.
pub(in crate::storage::posix) fn noted(note: &DirEntry) -> Option<Handle> {
    parse_hidden_name(note.file_name().to_bytes())
}

impl Opens {
    /// Notes that a file or directory was renamed, and where it is. Of files, only those that may
    /// be open somewhere are noted.
    pub(in crate::storage::posix) fn moved(
        &self,
        handle: Handle,
        kind: u32,
        trail: impl FnOnce() -> Trail,
        permit: &Permit,
    ) {
        let noted = match kind {
            sys::DIRECTORY => &self.notes.directories,
            sys::REGULAR => &self.notes.files,
            _ => return,
        };
        let is_file = kind == sys::REGULAR;
        if is_file && !self.may_be_open(&self.group(handle), handle, permit) {
            return;
        }
        let trail = trail();
        if trail.path.len() >= PATH_MAX {
            return;
        }
        self.notes.write(noted, handle, trail);
        // The last close may have come before the note was there to be removed.
        if is_file && let Err(error) = self.remove_if_unused(&self.group(handle), handle, permit) {
            tracing::debug!(inode = handle.inode, ?error, "note stays");
        }
        self.notes.remove_surplus(noted);
    }

    /// Removes the notes of this forwarder that are too old or too many, as long as `goes_on` says
    /// so.
    pub(in crate::storage::posix) fn trim_moves(&self, goes_on: &mut dyn FnMut() -> bool) {
        for noted in [&self.notes.files, &self.notes.directories] {
            while goes_on() && self.notes.remove_surplus(noted) {}
        }
    }

    /// Where the file was put when it was last renamed while it was open.
    pub(in crate::storage::posix) fn moved_to(&self, handle: Handle) -> Option<Trail> {
        self.notes.read(handle).map(|(_, trail)| trail)
    }

    /// What to pass to [`Opens::moves_are_read`] when all notes have been read; None if none can
    /// have come since they last were. `asks` says how the folder is looked at.
    pub(in crate::storage::posix) fn unread_moves(&self, asks: AtFlags) -> Done<Option<Mark>> {
        let folder = &self.notes.folder;
        let stat = sys::stat_at(folder, c"", AtFlags::EMPTY_PATH | asks).map_err(no)?;
        let changed = (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        let before = *lock(&self.notes.read);
        let twice = before.changed == changed;
        let fresh = before.at.is_some_and(|at| at.elapsed() < READ_AGAIN);
        let mark = Mark {
            changed,
            twice,
            at: Some(Instant::now()),
        };
        Ok((!(twice && before.twice && fresh)).then_some(mark))
    }

    /// Notes that all notes have been read.
    pub(in crate::storage::posix) fn moves_are_read(&self, mark: Mark) {
        *lock(&self.notes.read) = mark;
    }

    /// The notes, and names that are none.
    pub(in crate::storage::posix) fn list_moves(&self) -> rustix::io::Result<Dir> {
        Dir::read_from(&self.notes.folder)
    }

    /// Removes the note of a file whose last open here has ended, unless it is open elsewhere.
    pub(super) fn forget_move(
        &self,
        group: &HashSet<Handle>,
        handle: Handle,
        permit: &Permit,
    ) -> Done<()> {
        match sys::stat_at(&self.notes.folder, hidden_name(handle), AtFlags::empty()) {
            Ok(_) => self.remove_if_unused(group, handle, permit),
            Err(_) => Ok(()),
        }
    }

    /// Removes a note if it is of a file of these seats that nobody has open, or an old one of a
    /// directory. `leads` tells whether there is still a directory where it was put.
    pub(in crate::storage::posix) fn sweep_moved(
        &self,
        note: &DirEntry,
        seats: &[u16],
        permit: &Permit,
        leads: impl Fn(Handle, Trail) -> bool,
    ) -> Done<()> {
        let name = note.file_name();
        let Some(handle) = noted(note) else {
            let is_note = !matches!(name.to_bytes(), b"." | b"..");
            return match is_note && self.notes.is_old(name) {
                // A draft of a forwarder that died.
                true => self.notes.remove(name),
                false => Ok(()),
            };
        };
        if !seats.contains(&self.layout.seat_of_file(handle))
            || self.group(handle).contains(&handle)
        {
            return Ok(());
        }
        let is_needed = || {
            let trail = self.moved_to(handle);
            !self.notes.is_old(name) && trail.is_some_and(|trail| leads(handle, trail))
        };
        match is_needed() {
            true => Ok(()),
            false => self.remove_if_unused(&self.group(handle), handle, permit),
        }
    }

    fn may_be_open(&self, group: &HashSet<Handle>, handle: Handle, permit: &Permit) -> bool {
        if self.apart.is_some() {
            let settled = self.is_settled(self.layout.seat_of_file(handle));
            return group.contains(&handle) || !settled;
        }
        if group.contains(&handle) || !self.locks_work {
            return group.contains(&handle);
        }
        let seat = self.layout.seat_of_file(handle);
        let told = self.holds(seat, permit) || self.is_settled(seat);
        !told
            || !matches!(
                ofd::held_elsewhere(self.excluding.as_fd(), super::byte(handle)),
                Ok(None)
            )
    }

    fn remove_if_unused(
        &self,
        group: &HashSet<Handle>,
        handle: Handle,
        permit: &Permit,
    ) -> Done<()> {
        if !self.lock_if_unused(group, handle, permit)? {
            return Ok(());
        }
        let removed = self.notes.remove(hidden_name(handle));
        self.unlock(handle)?;
        lock(&self.notes.files).forget(handle);
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;

    fn file(inode: usize) -> Handle {
        Handle {
            inode: inode as u64,
            birth: 1,
        }
    }

    #[test]
    fn notes_are_bounded_and_the_oldest_goes() {
        let (max, most) = (100, 300);
        let mut noted = Noted::new((max, most), 3 * READ_WITHIN);
        let begin = Instant::now();
        let mut number = 0;
        let mut add = |noted: &mut Noted, inode, at| {
            number += 1;
            noted.add(file(inode), number, at);
            let gone = noted.surplus(at).into_iter();
            gone.map(|(handle, _)| handle).collect::<Vec<_>>()
        };
        // Within the time in which they are read, only the whole number counts.
        for inode in 0..most {
            assert_eq!(add(&mut noted, inode, begin), []);
        }
        assert_eq!(add(&mut noted, 0, begin), [], "it is noted already");
        for inode in 1..10 {
            assert_eq!(add(&mut noted, most + inode, begin), [file(inode)]);
        }
        // A new one takes few along, however many are too old.
        let later = begin + 2 * READ_WITHIN;
        let mut gone = add(&mut noted, 1, later).len();
        assert_eq!(gone, AT_ONCE);
        while noted.order.len() > max {
            gone += noted.surplus(later).len();
        }
        assert_eq!(gone, most + 1 - max);
        assert_eq!(add(&mut noted, 2, later).len(), 1);
        assert_eq!((noted.order.len(), noted.numbers.len()), (max, max));
        // Whose note is gone counts no more.
        noted.forget(file(1));
        assert_eq!(add(&mut noted, 3, later), []);
        let after = begin + 4 * READ_WITHIN;
        let mut gone = add(&mut noted, 4, after).len();
        while noted.order.len() > 3 {
            gone += noted.surplus(after).len();
        }
        assert_eq!(gone, max - 2);
    }

    #[test]
    fn an_old_note_that_another_forwarder_has_written_anew_stays() {
        let scratch = Scratch::new("notes-anew");
        let hidden = std::fs::File::open(scratch.path()).expect("a folder");
        let open = || Notes::open(hidden.as_fd()).expect("room");
        let (one, other) = (open(), open());
        *lock(&one.files) = Noted::new((0, 1), Duration::MAX);
        let trail = |path: &[u8]| Trail {
            path: path.to_vec(),
            dirs: Vec::new(),
        };
        one.write(&one.files, file(1), trail(b"here"));
        one.write(&one.files, file(2), trail(b"there"));
        one.write(&one.files, file(3), trail(b"there"));
        // It was away, and came back to the same path.
        other.write(&other.files, file(1), trail(b"away"));
        other.write(&other.files, file(1), trail(b"here"));
        assert!(one.remove_surplus(&one.files) && !one.remove_surplus(&one.files));
        let left = [1, 2, 3].map(|inode| one.read(file(inode)).is_some());
        assert_eq!(left, [true, false, true]);
    }

    #[test]
    fn a_note_tells_the_directories_as_far_as_there_is_room() {
        let scratch = Scratch::new("notes-long");
        let hidden = std::fs::File::open(scratch.path()).expect("a folder");
        let notes = Notes::open(hidden.as_fd()).expect("room");
        let put = |path: Vec<u8>| {
            let dirs = (0..100).map(|number| Handle {
                inode: u64::MAX - number,
                birth: u64::MAX,
            });
            let dirs: Vec<Handle> = dirs.collect();
            let trail = Trail { path, dirs };
            notes.write(&notes.files, file(1), trail.clone());
            let read = notes.read(file(1)).expect("written").1;
            assert_eq!(read.path, trail.path);
            assert!(trail.dirs.ends_with(&read.dirs), "the nearest ones");
            read.dirs.len()
        };
        assert_eq!(put(b"a/b".to_vec()), 100);
        let names = |count: usize| vec![[b'x'; 99].as_slice(); count].join(&b'/');
        assert!((10..90).contains(&put(names(20))));
        assert_eq!(put(names(40)), 1);
    }

    #[test]
    fn only_what_a_forwarder_writes_is_a_note() {
        for text in [
            "a",
            "/a",
            "0",
            "0/",
            "0/.tidegate/x",
            "0/../a",
            "0/a//b",
            "0:1/a",
            "g/a",
        ] {
            assert_eq!(parse_text(text.as_bytes()), None, "{text}");
        }
        let (_, trail) = parse_text(b"ff:1-2:3-4/a/b:c").expect("a note");
        let dirs = [(1, 2), (3, 4)].map(|(inode, birth)| Handle { inode, birth });
        assert_eq!((&*trail.path, &*trail.dirs), (&b"a/b:c"[..], &dirs[..]));
    }
}
