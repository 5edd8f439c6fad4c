//! Where a lease's record is written: the first page of its file; or, where the back end has no
//! room for it, an extended attribute of the file.
//!
//! Some back ends that are full take no bytes at all, not even in the place of others (CephFS), and
//! set attributes all the same; others take bytes where there are some, and set no attributes
//! (GlusterFS). Each record has a higher count than those before, so the newest one counts,
//! wherever it is.

use super::generations::{Last, file_name};
use super::record::Record;
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

/// The record of a generation of a seat.
pub(super) fn read(dir: BorrowedFd<'_>, seat: u16, generation: u64) -> io::Result<Last> {
    let file = UncachedFile::open(dir, &file_name(seat, generation), Way::Past)?;
    let mut found = None;
    if let Some(file) = file {
        let mut page = [Page::ZERO];
        file.read(0, &mut page)?;
        let noted = file.note()?.and_then(|bytes| Record::lengthen(&bytes));
        let both = [Some(&page[0]), noted.as_ref()];
        let records = both.into_iter().flatten().filter_map(Record::decode);
        let own = records.filter(|record| record.generation == generation);
        found = own.max_by_key(|record| record.renewals);
    }
    Ok(found.map_or(Last::Unwritten(generation), Last::Record))
}

/// Whether there is no room, or none for us.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
