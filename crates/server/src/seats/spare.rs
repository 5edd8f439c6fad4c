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
use super::written::{WrittenTable, pages_with_room};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

/// Pages of zeros that one call writes at most.
const WRITTEN_TOGETHER: usize = 64;
/// A file is made anew when it lacks more than one in so many of the pages that it has. Where some
/// are missing in the end, the table stays where it is until there is room.
const MAY_LACK: usize = 8;

/// What a holder has made ahead.
#[derive(Default)]
pub(super) struct Spare {
    /// Pages that have room.
    pages: usize,
}

impl Spare {
    /// Makes the file of that generation, or makes it anew, if it has too little room for what the
    /// table holds now.
    pub(super) fn fit(
        &mut self,
        dir: BorrowedFd<'_>,
        (seat, generation): (u16, u64),
        table: &WrittenTable,
        way: Way,
    ) -> io::Result<()> {
        // The record's, and the table's.
        let pages: Vec<u64> = std::iter::once(0).chain(pages_with_room(table)).collect();
        if pages.len() <= self.pages + self.pages / MAY_LACK {
            return Ok(());
        }
        let draft = draft_name(seat, generation);
        let made = write(dir, &draft, &pages, way).and_then(|()| {
            if !UncachedFile::is_there(dir, &file_name(seat, generation))? {
                rustix::fs::renameat(dir, &draft, dir, name(seat, generation))?;
                self.pages = pages.len();
            }
            Ok(())
        });
        // It is gone if it was renamed.
        let _ = rustix::fs::unlinkat(dir, &draft, AtFlags::empty());
        made
    }
}

/// Makes a file with room for these pages, all zeros.
fn write(dir: BorrowedFd<'_>, name: &str, pages: &[u64], way: Way) -> io::Result<()> {
    // One may be left of an earlier try.
    let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
    let file = UncachedFile::make(dir, name, way)?.ok_or(Errno::EXIST)?;
    let zeros = [const { Page::ZERO }; WRITTEN_TOGETHER];
    for run in pages.chunk_by(|page, next| page + 1 == *next) {
        for part in run.chunks(WRITTEN_TOGETHER) {
            file.write(part[0] * PAGE as u64, &zeros[..part.len()])?;
        }
    }
    Ok(())
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
        Ok(()) => UncachedFile::open(dir, &lease, way),
        Err(Errno::NOENT | Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes what was made for a generation that is over. What stays is removed another time.
pub(super) fn remove(dir: BorrowedFd<'_>, seat: u16, generation: u64) {
    for name in [name(seat, generation), draft_name(seat, generation)] {
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
    }
}

/// Seat and generation of a spare file.
pub(super) fn parse_name(name: &[u8]) -> Option<(u16, u64)> {
    parse_after("spare.", name)
}

/// The same of one that has not got its name yet.
pub(super) fn parse_draft(name: &[u8]) -> Option<(u16, u64)> {
    parse_after("draft.", name)
}

fn name(seat: u16, generation: u64) -> String {
    format!("spare.{seat}.{generation}")
}

fn draft_name(seat: u16, generation: u64) -> String {
    format!("draft.{seat}.{generation}")
}
