//! Access to the hidden folder, which is used only if it belongs to the forwarder's own user.
//!
//! Anybody who may write to the export's root could make a `.tidegate` before the first forwarder
//! does. So nothing in it is followed if it is a link, or trusted if another user owns it.

use super::sys::{self, RESOLVE};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The folder in the root that no client sees. It holds seats, locks, and files that lost their
/// last name.
pub const HIDDEN: &str = ".tidegate";

/// The mode bits that give access to others than the owner.
const OTHERS: u32 = 0o077;

/// How often a folder is made and opened while another forwarder is making it.
const FOLDER_TRIES: u32 = 100;
/// How long to wait in between.
const FOLDER_PAUSE: Duration = Duration::from_millis(20);

/// After so many seconds a temporary file is nobody's any more.
const DRAFT_KEPT: i64 = 3600;

/// How many names are tried until an unused one is found.
const NAME_TRIES: u32 = 100;

/// Opens a folder in a directory. Makes the folder first if it does not exist.
pub(super) fn make_folder(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let fd = until_there(FOLDER_PAUSE, || {
        match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        open(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)
    })?;
    make_ours(&fd, name, sys::DIRECTORY)?;
    Ok(fd)
}

/// Repeats `attempt` for a while if it does not find its folder. On distributed GlusterFS a folder
/// that another forwarder is just making exists for one call and is missing for the next.
fn until_there<T>(pause: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..FOLDER_TRIES {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::thread::sleep(pause),
            done => return done,
        }
    }
    attempt()
}

/// Opens a file of the hidden folder for reading and writing. Makes the file first if it does not
/// exist.
pub(crate) fn open_hidden_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let fd = open(dir, name, OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK)?;
    make_ours(&fd, name, sys::REGULAR)?;
    Ok(fd)
}

/// Opens a regular file of the hidden folder with the given flags.
pub(crate) fn open_hidden_with(
    dir: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let fd = open(dir, name, flags | OFlags::NONBLOCK)?;
    make_ours(&fd, name, sys::REGULAR)?;
    Ok(fd)
}

/// The text of a file of the hidden folder. If the file does not exist it is made atomically with
/// the given text. If several forwarders do so at once, one of them makes it.
pub(crate) fn read_or_record(dir: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<String> {
    if let Some(recorded) = read_hidden_file(dir, name)? {
        return Ok(recorded);
    }
    let (draft, fd) = make_draft(dir, name)?;
    let mut file = std::fs::File::from(fd);
    let recorded = io::Write::write_all(&mut file, text.as_bytes())
        .and_then(|()| publish(dir, &draft, name).map_err(io::Error::from));
    // If the draft was renamed, or another forwarder swept it, it is gone already.
    let _ = rustix::fs::unlinkat(dir, &draft, AtFlags::empty());
    recorded?;
    read_hidden_file(dir, name)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Replaces a file of the hidden folder atomically: a reader gets either the old or the new text.
/// `stays` says whether the new one must survive a loss of power.
pub(crate) fn replace_hidden_file(
    dir: BorrowedFd<'_>,
    name: &str,
    text: &str,
    stays: bool,
) -> io::Result<()> {
    let (draft, fd) = make_draft(dir, name)?;
    let mut file = std::fs::File::from(fd);
    let replaced = io::Write::write_all(&mut file, text.as_bytes())
        .and_then(|()| if stays { file.sync_all() } else { Ok(()) })
        .and_then(|()| rustix::fs::renameat(dir, &draft, dir, name).map_err(io::Error::from));
    match replaced {
        // File systems that cannot sync a folder have stored the name by themselves.
        Ok(()) if stays => drop(rustix::fs::fsync(dir)),
        Ok(()) => {}
        // Whether the draft can be removed does not matter.
        Err(_) => drop(rustix::fs::unlinkat(dir, &draft, AtFlags::empty())),
    }
    replaced
}

/// A name for a temporary file or link beside `name`, which no other process uses now.
pub(super) fn draft_name(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // The clock distinguishes processes with the same number on several nodes, nearly always; and
    // the file with this name is made exclusively.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_nsec;
    let pid = rustix::process::getpid().as_raw_nonzero();
    format!("{name}.{pid}.{time}.{number}")
}

/// Removes the temporary files of forwarders that have ended before they were done with them.
pub(super) fn sweep_drafts(dir: BorrowedFd<'_>) -> io::Result<()> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let stat = |()| sys::stat_at(dir, name, AtFlags::empty()).ok();
        let old = |stat: rustix::fs::Statx| now.saturating_sub(stat.stx_mtime.tv_sec) > DRAFT_KEPT;
        if is_draft(name.to_bytes())
            .then_some(())
            .and_then(stat)
            .is_some_and(old)
        {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
    }
    Ok(())
}

/// Whether a name is one of [`draft_name`]. Those of spare files go with their seats.
fn is_draft(name: &[u8]) -> bool {
    let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let mut words = name.rsplitn(4, |byte| *byte == b'.');
    let numbers = words
        .by_ref()
        .take(3)
        .filter(|word| is_number(word))
        .count();
    numbers == 3
        && words
            .next()
            .is_some_and(|rest| !matches!(rest, b"" | b"draft"))
}

fn make_draft(dir: BorrowedFd<'_>, name: &str) -> io::Result<(String, OwnedFd)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    for _ in 0..NAME_TRIES {
        let draft = draft_name(name);
        match open(dir, &draft, flags) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((draft, made?)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Gives the draft its final name, unless another forwarder has taken that name first.
fn publish(dir: BorrowedFd<'_>, draft: &str, name: &str) -> rustix::io::Result<()> {
    use rustix::io::Errno;
    let made = match rustix::fs::linkat(dir, draft, dir, name, AtFlags::empty()) {
        // A back end without hard links.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
            rustix::fs::renameat_with(dir, draft, dir, name, rustix::fs::RenameFlags::NOREPLACE)
        }
        made => made,
    };
    match made {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Bytes of the longest text that forwarders keep in the hidden folder, and more.
const TEXT_MAX: u64 = 4 << 20;

/// Reads a text; None if there is no file of that name.
pub(crate) fn read_hidden_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<String>> {
    let fd = match open(dir, name, OFlags::RDONLY | OFlags::NONBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    make_ours(&fd, name, sys::REGULAR)?;
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(fd).take(TEXT_MAX + 1);
    if file.read_to_end(&mut bytes)? as u64 > TEXT_MAX {
        let why = format!("is longer than {TEXT_MAX} bytes, which no forwarder has written");
        return Err(refused(name, &why));
    }
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| refused(name, "is no text"))
}

fn open(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::RUSR | Mode::WUSR,
        false => Mode::empty(),
    };
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::openat2(dir, name, flags, mode, RESOLVE) {
        Err(rustix::io::Errno::LOOP) => Err(refused(name, "is a symbolic link")),
        opened => Ok(opened?),
    }
}

/// Refuses a file of another user or another type. Takes all rights of others away from a file of
/// the own user.
fn make_ours(fd: &OwnedFd, name: &str, kind: u32) -> io::Result<()> {
    let stat = sys::stat(fd)?;
    let mode = u32::from(stat.stx_mode);
    let ours = rustix::process::geteuid().as_raw();
    if stat.stx_uid != ours {
        let owner = stat.stx_uid;
        let why = format!("belongs to user {owner}, and this forwarder runs as user {ours}");
        return Err(refused(name, &why));
    }
    if mode & sys::KIND != kind {
        return Err(refused(name, "is of another type"));
    }
    if mode & OTHERS != 0 {
        let private = Mode::from_raw_mode(mode & 0o7777 & !OTHERS);
        rustix::fs::fchmod(fd.as_fd(), private)?;
    }
    Ok(())
}

/// An error whose one line says what to do.
fn refused(name: &str, why: &str) -> io::Error {
    let remedy = "if no forwarder serves this export, remove it";
    let text = format!("`{name}` {why}: not to be trusted; {remedy}");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests;
