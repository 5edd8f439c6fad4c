//! The files of a seat's generations in the hidden folder: which exist, and what they record.

use super::lease_record::Record;
use super::uncached::{UncachedFile, Way};
use super::{record_place, spare};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tidegate_forward::lease::LeaseRecord;

/// The files of generations in the hidden folder.
pub(super) struct Generations(OwnedFd);

impl Generations {
    pub(super) fn of(hidden: BorrowedFd<'_>) -> io::Result<Generations> {
        hidden.try_clone_to_owned().map(Generations)
    }

    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The files of all seats.
    pub(super) fn list(&self) -> io::Result<BTreeMap<u16, SeatFiles>> {
        let mut found = BTreeMap::<u16, SeatFiles>::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Some((seat, generation)) = parse_after("lease.", name) {
                found.entry(seat).or_default().leases.push(generation);
            } else if let Some((seat, generation)) = spare::parse_name(name) {
                found.entry(seat).or_default().spares.push(generation);
            } else if let Some((seat, draft)) = spare::parse_draft(name) {
                found.entry(seat).or_default().drafts.push(draft);
            }
        }
        found
            .values_mut()
            .for_each(|all| all.leases.sort_unstable());
        Ok(found)
    }

    /// The files of one seat.
    pub(super) fn of_seat(&self, seat: u16) -> io::Result<SeatFiles> {
        Ok(self.list()?.remove(&seat).unwrap_or_default())
    }

    /// What the newest file of a seat records.
    pub(super) fn last(&self, seat: u16) -> io::Result<Option<Last>> {
        let newest = self.of_seat(seat)?.leases.pop();
        newest.map(|newest| self.record(seat, newest)).transpose()
    }

    /// What a file records.
    pub(super) fn record(&self, seat: u16, generation: u64) -> io::Result<Last> {
        record_place::read(self.folder(), seat, generation)
    }

    pub(super) fn open(
        &self,
        seat: u16,
        number: u64,
        way: Way,
    ) -> io::Result<Option<UncachedFile>> {
        UncachedFile::open(self.folder(), &file_name(seat, number), way)
    }
}

/// The generations of a seat that have a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SeatFiles {
    /// Generations that were taken, in order.
    pub leases: Vec<u64>,
    /// Generations that nobody has taken yet.
    pub spares: Vec<u64>,
    /// Drafts, which are not complete or were not needed: their generations, and those of their
    /// makers.
    pub drafts: Vec<(u64, u64)>,
}

impl SeatFiles {
    /// The last generation that was taken.
    pub(super) fn newest(&self) -> Option<u64> {
        self.leases.last().copied()
    }

    /// The generation of the next taking. If a failed taking has used up the spare file for the
    /// next number, and a later number still has one, it is the later number: the back end may have
    /// no room for another file.
    pub(super) fn next(&self) -> u64 {
        let Some(newest) = self.newest() else {
            return first_generation();
        };
        let ahead = self.spares.iter().filter(|number| **number > newest);
        ahead.min().map_or(newest + 1, |number| *number)
    }
}

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

/// The first generation of a seat. It is the current time, so that generations keep increasing if
/// the hidden folder was removed.
pub(super) fn first_generation() -> u64 {
    crate::identity::wall_ns() / 1_000_000_000
}

pub(super) fn file_name(seat: u16, generation: u64) -> String {
    format!("lease.{seat}.{generation}")
}

/// The seat and the generation that follow a word in a file's name.
pub(super) fn parse_after(word: &str, name: &[u8]) -> Option<(u16, u64)> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(word)?;
    let (seat, generation) = rest.split_once('.')?;
    Some((seat.parse().ok()?, generation.parse().ok()?))
}
