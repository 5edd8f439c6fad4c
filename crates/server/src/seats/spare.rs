//! The file for the next taking of a seat, made ahead of it. A full back end makes no new file, or
//! accepts no bytes for which it has no room yet, and seats must be able to change hands even then.
//!
//! `.tidegate/spare.SEAT.GENERATION` becomes `lease.SEAT.GENERATION` when that generation is taken.
//! The holder of the generation before makes the spare file, with zeros where the record and the
//! reply table will be, so that the room is allocated. The holder gives the file this name when it
//! is complete, and never writes to it again. So nothing that the holder writes too late can reach
//! the file of the next one. A taker that finds no spare file makes one. So every taking is a
//! rename of a file, and only one of several takers can succeed. Even full file systems can rename.

use super::generations::{draft_name, file_name, spare_name};
use super::uncached::{PAGE, Page, UncachedFile, Way};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// The most pages of zeros that one call writes.
const WRITTEN_TOGETHER: usize = 256;
/// A file is made again if it lacks more than one in this many of its pages. If pages are missing
/// in the end, the table stays where it is until there is room.
const MAY_LACK: usize = 8;

/// The spare file that a holder has made.
#[derive(Default)]
pub(super) struct Spare {
    /// The holder's generation. It is part of a draft's name, so that a late holder cannot publish
    /// a draft that the next holder is still writing.
    maker: u64,
    /// How many pages have room.
    pages: usize,
    /// The next spare file, which is not complete yet.
    draft: Option<Draft>,
}

struct Draft {
    file: UncachedFile,
    /// How many pages it will have, and how many it has.
    pages: usize,
    written: usize,
}

impl Spare {
    /// No spare file yet; `maker` is the generation of the holder.
    pub(super) fn by(maker: u64) -> Spare {
        Spare {
            maker,
            ..Spare::default()
        }
    }

    /// Makes the spare file of `generation`, or makes it again if it has too little room for the
    /// pages that are needed now. Begins no call after `until`; a later call continues.
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
        // The draft is gone if it was renamed.
        let _ = rustix::fs::unlinkat(dir, &name, AtFlags::empty());
        made
    }

    /// A spare file that was begun, for tests.
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

    /// Publishes the complete draft, or removes it if the generation was taken meanwhile.
    fn give_name(
        &mut self,
        dir: BorrowedFd<'_>,
        (seat, generation): (u16, u64),
        pages: usize,
    ) -> io::Result<()> {
        if !UncachedFile::is_there(dir, &file_name(seat, generation))? {
            let draft = draft_name(seat, (generation, self.maker));
            rustix::fs::renameat(dir, draft, dir, spare_name(seat, generation))?;
            self.pages = pages;
        }
        Ok(())
    }
}

impl Draft {
    /// Begins a file that is to have room for `pages` pages, all zeros.
    fn begin(dir: BorrowedFd<'_>, name: &str, pages: usize, way: Way) -> io::Result<Draft> {
        // An earlier try may have left a draft.
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        let file = UncachedFile::make(dir, name, way)?.ok_or(Errno::EXIST)?;
        Ok(Draft {
            file,
            pages,
            written: 0,
        })
    }

    /// Continues to write. True when the file is complete.
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

/// Takes a generation: renames its spare file. The record of the lease is still unwritten. None if
/// another taker was first. `made` says that the spare file was seen.
pub(super) fn take(
    dir: BorrowedFd<'_>,
    seat: u16,
    generation: u64,
    made: bool,
    way: Way,
) -> io::Result<Option<UncachedFile>> {
    let (spare, lease) = (spare_name(seat, generation), file_name(seat, generation));
    if !made {
        // If another taker has made a spare file since, only one of the two can rename it.
        UncachedFile::make(dir, &spare, way)?;
    }
    // A taker may have looked before the file was renamed, and then made the name again. It finds
    // here that the generation was taken.
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
                // Other takers would wait for the lease.
                let _ = rustix::fs::unlinkat(dir, &lease, AtFlags::empty());
            }
            opened
        }
        Err(Errno::NOENT | Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes the spare file of a generation that is over. What cannot be removed is removed another
/// time.
pub(super) fn remove(dir: BorrowedFd<'_>, seat: u16, generation: u64) {
    let _ = rustix::fs::unlinkat(dir, spare_name(seat, generation), AtFlags::empty());
}

/// Removes a draft, given by its generation and that of its maker.
pub(super) fn remove_draft(dir: BorrowedFd<'_>, seat: u16, draft: (u64, u64)) {
    let _ = rustix::fs::unlinkat(dir, draft_name(seat, draft), AtFlags::empty());
}
