//! The file of a seat's next taking, made ahead of it: a back end that is full makes no new file,
//! or takes no bytes that it has no room for yet, and seats must change hands there too.
//!
//! `.tidegate/spare.SEAT.GENERATION` becomes `lease.SEAT.GENERATION` when that generation is taken.
//! The holder of the generation before makes it, with zeros wherever the record and the reply table
//! will be, so that their room is had. It gives the file that name when all is written, and writes
//! nothing more to it: whatever a holder does too late, the next one's file has its bytes. A
//! taker that finds none makes one, so every taking is a rename of a name that is there once: of
//! several takers one moves it. Renames are what even full file systems do.

use super::generations::{file_name, parse_after};
use super::uncached::{PAGE, Page, UncachedFile, Way};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Pages of zeros that one call writes at most.
const WRITTEN_TOGETHER: usize = 256;
/// A file is made anew when it lacks more than one in so many of the pages that it has. Where some
/// are missing in the end, the table stays where it is until there is room.
const MAY_LACK: usize = 8;

/// What a holder has made ahead.
#[derive(Default)]
pub(super) struct Spare {
    /// Its generation. The name of what it has not written whole yet says so: a holder that is late
    /// must not give the spare file's name to what the next one is still writing.
    maker: u64,
    /// Pages that have room.
    pages: usize,
    /// The next one, which is not whole yet.
    draft: Option<Draft>,
}

struct Draft {
    file: UncachedFile,
    /// Pages that it is to have, and those that it has.
    pages: usize,
    written: usize,
}

impl Spare {
    /// Nothing yet, for the holder of that generation.
    pub(super) fn by(maker: u64) -> Spare {
        Spare {
            maker,
            ..Spare::default()
        }
    }

    /// Makes the file of that generation, or makes it anew, if it has too little room for as many
    /// pages as are needed now. No call begins after a time: the rest follows the next time.
    pub(super) fn fit(
        &mut self,
        dir: BorrowedFd<'_>,
        (seat, generation): (u16, u64),
        needed: usize,
        way: Way,
        until: Instant,
    ) -> io::Result<()> {
        let name = draft_name(seat, (generation, self.maker));
        if self.draft.is_none() {
            if needed <= self.pages + self.pages / MAY_LACK || Instant::now() >= until {
                return Ok(());
            }
            self.draft = Some(Draft::begin(dir, &name, needed, way)?);
        }
        let Some(draft) = &mut self.draft else {
            return Ok(());
        };
        let pages = draft.pages;
        let made = match draft.go_on(until) {
            Ok(false) => return Ok(()),
            Ok(true) => self.give_name(dir, (seat, generation), pages),
            Err(error) => Err(error),
        };
        self.draft = None;
        // It is gone if it was renamed.
        let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
        made
    }

    /// One whose file is begun.
    #[cfg(test)]
    pub(super) fn begun(
        dir: BorrowedFd<'_>,
        (seat, generation): (u16, u64),
        maker: u64,
        way: Way,
    ) -> io::Result<Spare> {
        let name = draft_name(seat, (generation, maker));
        let draft = Draft::begin(dir, &name, 600, way)?;
        Ok(Spare {
            maker,
            pages: 0,
            draft: Some(draft),
        })
    }

    /// The draft is whole; it is of no use any more where the generation has been taken meanwhile.
    fn give_name(
        &mut self,
        dir: BorrowedFd<'_>,
        (seat, generation): (u16, u64),
        pages: usize,
    ) -> io::Result<()> {
        if !UncachedFile::is_there(dir, &file_name(seat, generation))? {
            let draft = draft_name(seat, (generation, self.maker));
            rustix::fs::renameat(dir, draft, dir, name(seat, generation))?;
            self.pages = pages;
        }
        Ok(())
    }
}

impl Draft {
    /// A file that is to have room for so many pages, all zeros.
    fn begin(dir: BorrowedFd<'_>, name: &str, pages: usize, way: Way) -> io::Result<Draft> {
        // One may be left of an earlier try.
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        let file = UncachedFile::make(dir, name, way)?.ok_or(Errno::EXIST)?;
        Ok(Draft {
            file,
            pages,
            written: 0,
        })
    }

    /// Whether it is whole.
    fn go_on(&mut self, until: Instant) -> io::Result<bool> {
        while self.written < self.pages {
            if Instant::now() >= until {
                return Ok(false);
            }
            let together = WRITTEN_TOGETHER.min(self.pages - self.written);
            let zeros = vec![Page::ZERO; together];
            self.file.write((self.written * PAGE) as u64, &zeros)?;
            self.written += together;
        }
        Ok(true)
    }
}

/// Takes a generation: its lease's file, whose record is not written. None if somebody is faster.
/// `made`: its spare file has been seen.
pub(super) fn take(
    dir: BorrowedFd<'_>,
    seat: u16,
    generation: u64,
    made: bool,
    way: Way,
) -> io::Result<Option<UncachedFile>> {
    let (spare, lease) = (name(seat, generation), file_name(seat, generation));
    if !made {
        // Where another has made one since, one of us will move it.
        UncachedFile::make(dir, &spare, way)?;
    }
    // Whoever makes the name a second time, for it looked before it was moved, finds it moved now.
    if UncachedFile::is_there(dir, &lease)? {
        remove(dir, seat, generation);
        return Ok(None);
    }
    let never_over = rustix::fs::renameat_with(dir, &spare, dir, &lease, RenameFlags::NOREPLACE);
    let moved = match never_over {
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(dir, &spare, dir, &lease),
        moved => moved,
    };
    match moved {
        Ok(()) => {
            let opened = UncachedFile::open(dir, &lease, way);
            if opened.is_err() {
                // Others would wait for the lease.
                let _ = rustix::fs::unlinkat(dir, &lease, AtFlags::empty());
            }
            opened
        }
        Err(Errno::NOENT | Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes what was made for a generation that is over. What stays is removed another time.
pub(super) fn remove(dir: BorrowedFd<'_>, seat: u16, generation: u64) {
    let _ = rustix::fs::unlinkat(dir, name(seat, generation), AtFlags::empty());
}

/// The same of what was not written whole, by its generation and its maker's.
pub(super) fn remove_draft(dir: BorrowedFd<'_>, seat: u16, draft: (u64, u64)) {
    let _ = rustix::fs::unlinkat(dir, draft_name(seat, draft), AtFlags::empty());
}

/// Seat and generation of a spare file.
pub(super) fn parse_name(name: &[u8]) -> Option<(u16, u64)> {
    parse_after("spare.", name)
}

/// The same of one that has not got its name yet, and its maker's generation.
pub(super) fn parse_draft(name: &[u8]) -> Option<(u16, (u64, u64))> {
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    let maker = std::str::from_utf8(&name[dot + 1..]).ok()?.parse().ok()?;
    let (seat, generation) = parse_after("draft.", &name[..dot])?;
    Some((seat, (generation, maker)))
}

fn name(seat: u16, generation: u64) -> String {
    format!("spare.{seat}.{generation}")
}

fn draft_name(seat: u16, (generation, maker): (u64, u64)) -> String {
    format!("draft.{seat}.{generation}.{maker}")
}
