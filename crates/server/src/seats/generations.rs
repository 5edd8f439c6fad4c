//! The files of a seat's generations in the hidden folder: which exist, and what they record.

use super::lease_record::Last;
use super::uncached::{UncachedFile, Way};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
            } else if let Some((seat, generation)) = parse_after("spare.", name) {
                found.entry(seat).or_default().spares.push(generation);
            } else if let Some((seat, draft)) = parse_draft(name) {
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
        match self.open(seat, generation, Way::Past)? {
            Some(file) => Last::read(&file, generation),
            None => Ok(Last::Gone(generation)),
        }
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

/// The highest generation that is believed. Generations begin with the present second and grow by
/// one with each taking, so a higher number is none.
pub(super) const GENERATION_MAX: u64 = u64::MAX >> 1;

/// The generation that a text says; None if it says none.
pub(super) fn generation_in(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= GENERATION_MAX)
}

/// The first generation of a seat. It is the current time, so that generations keep increasing if
/// the hidden folder was removed.
pub(super) fn first_generation() -> u64 {
    crate::clock::wall_ns() / 1_000_000_000
}

/// The name of the lease's file of a generation.
pub(super) fn file_name(seat: u16, generation: u64) -> String {
    format!("lease.{seat}.{generation}")
}

/// The name of a generation's spare file.
pub(super) fn spare_name(seat: u16, generation: u64) -> String {
    format!("spare.{seat}.{generation}")
}

/// The name of a spare file that is not complete; `maker` is the generation of who makes it.
pub(super) fn draft_name(seat: u16, (generation, maker): (u64, u64)) -> String {
    format!("draft.{seat}.{generation}.{maker}")
}

/// The seat and the generation that follow a word in a file's name.
fn parse_after(word: &str, name: &[u8]) -> Option<(u16, u64)> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(word)?;
    let (seat, generation) = rest.split_once('.')?;
    Some((seat.parse().ok()?, generation_in(generation)?))
}

/// The seat of a draft, its generation, and that of its maker, from its name.
fn parse_draft(name: &[u8]) -> Option<(u16, (u64, u64))> {
    let dot = name.iter().rposition(|byte| *byte == b'.')?;
    let maker = generation_in(std::str::from_utf8(&name[dot + 1..]).ok()?)?;
    let (seat, generation) = parse_after("draft.", &name[..dot])?;
    Some((seat, (generation, maker)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_nobody_has_reached_is_no_generation() {
        assert_eq!(parse_after("lease.", b"lease.3.17"), Some((3, 17)));
        assert_eq!(parse_draft(b"draft.3.18.17"), Some((3, (18, 17))));
        for number in [GENERATION_MAX + 1, u64::MAX] {
            let name = file_name(3, number);
            assert_eq!(parse_after("lease.", name.as_bytes()), None, "{name}");
            for draft in [(number, 1), (1, number)] {
                let name = draft_name(3, draft);
                assert_eq!(parse_draft(name.as_bytes()), None, "{name}");
            }
        }
        let files = SeatFiles {
            leases: vec![GENERATION_MAX],
            ..SeatFiles::default()
        };
        assert_eq!(files.next(), GENERATION_MAX + 1, "the next one fits");
    }
}
