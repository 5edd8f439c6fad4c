//! Where a lease's record is written: in the first page of its file or, if the back end has no room
//! for that, in an extended attribute of the file.
//!
//! Some full back ends accept no bytes at all, not even in place of others, but set attributes
//! (CephFS). Others overwrite existing bytes and set no attributes (GlusterFS). Each record has a
//! higher count than those before, so the newest record counts, wherever it is.

use super::generations::{Last, file_name};
use super::lease_record::{Record, Unread};
use super::uncached::{Page, UncachedFile, Way};
use std::io;
use std::os::fd::BorrowedFd;

/// Writes the next record.
pub(super) fn write(file: &UncachedFile, record: &mut Record) -> io::Result<()> {
    record.renewals += 1;
    let page = record.encode();
    let written = file.write(0, std::slice::from_ref(&page));
    match &written {
        Err(error) if is_full(error) => {
            let noted = file.set_note(&Record::shorten(&page));
            noted.or(written)
        }
        _ => written,
    }
}

/// The record of a seat's generation. If the page or the attribute is damaged and the other one is
/// a valid record, the valid one counts, because the two are not written together.
pub(super) fn read(dir: BorrowedFd<'_>, seat: u16, generation: u64) -> io::Result<Last> {
    let file = UncachedFile::open(dir, &file_name(seat, generation), Way::Past)?;
    let Some(file) = file else {
        return Ok(Last::Gone(generation));
    };
    let mut page = [Page::ZERO];
    file.read(0, &mut page)?;
    let noted = file.note()?.map(|bytes| match Record::lengthen(&bytes) {
        Some(page) => Record::decode(&page),
        None => Err(Unread::Bad(format!("a note of {} bytes", bytes.len()))),
    });
    let mut found = None::<Record>;
    let mut damage = None;
    for read in [Some(Record::decode(&page[0])), noted]
        .into_iter()
        .flatten()
    {
        match read {
            Ok(record) if record.generation == generation => {
                let newer = |found: &Record| record.renewals > found.renewals;
                if found.as_ref().is_none_or(newer) {
                    found = Some(record);
                }
            }
            Ok(record) => damage = Some(format!("it speaks of generation {}", record.generation)),
            Err(Unread::Bad(why)) => damage = Some(why),
            Err(Unread::Empty) => {}
        }
    }
    Ok(match (found, damage) {
        (Some(record), _) => Last::Record(record),
        (None, Some(why)) => Last::Unreadable(generation, why),
        (None, None) => Last::Unwritten(generation),
    })
}

/// Whether the error means that there is no room, or none for this user.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
