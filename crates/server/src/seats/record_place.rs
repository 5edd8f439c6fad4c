//! Where a lease's record is written: in the first page of its file or, if the back end has no room
//! for that, in an extended attribute of the file.
//!
//! Some full back ends accept no bytes at all, not even in place of others, but set attributes
//! (CephFS). Others overwrite existing bytes and set no attributes (GlusterFS). Each record has a
//! higher count than those before, so the newest record counts, wherever it is.

use super::lease_record::{Record, Unread};
use super::uncached::{Page, UncachedFile};
use std::io;
use tidegate_forward::lease::LeaseRecord;

/// What a lease's file records.
pub(super) enum Last {
    Record(Record),
    /// It has no record: its maker has not written one.
    Unwritten(u64),
    /// It was listed, and does not exist any more.
    Gone(u64),
    /// It contains something else; the text says why that is no record.
    Unreadable(u64, String),
}

impl Last {
    pub(super) fn lease(&self) -> LeaseRecord {
        match self {
            Last::Record(record) => record.lease(),
            Last::Unwritten(generation)
            | Last::Gone(generation)
            | Last::Unreadable(generation, _) => LeaseRecord {
                generation: *generation,
                holder: 0,
                renewals: 0,
                ttl_ns: 0,
                free: false,
            },
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Last::Record(record) => record.holder.name(),
            _ => "a forwarder that did not say its name".to_owned(),
        }
    }
}

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

/// The record in the file of a generation. If the page or the attribute is damaged and the other
/// one is a valid record, the valid one counts, because the two are not written together.
pub(super) fn read(file: &UncachedFile, generation: u64) -> io::Result<Last> {
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
