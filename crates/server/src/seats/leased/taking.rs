//! Takes a seat in steps: makes the file of a new generation, copies the last complete table, and
//! records that the seat is held. Between two steps the forwarder renews its leases, including this
//! one, so a table may have any size.

use super::{Held, LeasedSeats, Tried};
use crate::seats::TakenSeat;
use crate::seats::generations::{SeatFiles, file_name};
use crate::seats::lease_record::{Last, Record, Stage};
use crate::seats::persisted_table::TakeOver;
use crate::seats::spare::{self, Spare};
use crate::seats::uncached::{UncachedFile, Way};
use rustix::fs::AtFlags;
use std::io;
use std::sync::Arc;
use tidegate_forward::SeatTable;
use tidegate_forward::lease::serves_until;
use tidegate_sched::Time;

/// A taking whose table is not copied completely.
pub(super) struct Taking {
    pub(super) seat: u16,
    /// When its lease began.
    began: Time,
    file: Arc<UncachedFile>,
    pub(super) record: Record,
    table: TakeOver,
    /// The generation whose file has the last complete table.
    table_of: Option<u64>,
    /// The files that existed before.
    files: SeatFiles,
}

/// The last complete table.
struct Complete {
    /// The generation whose file has it.
    table_of: u64,
    file: UncachedFile,
    /// Whether it may lack clients.
    lacks: bool,
}

impl Taking {
    pub(super) fn claim(&self) -> (u16, u64) {
        (self.seat, self.record.generation)
    }
}

impl LeasedSeats {
    /// Makes the file of a generation, and looks for the last complete table.
    pub(super) fn begin(&mut self, seat: u16, generation: u64, began: Time) -> io::Result<Tried> {
        let (record_way, _) = self.ways();
        // Check this before the file is made, because each try would leave a file.
        let files = self.generations.of_seat(seat)?;
        let last = self.complete(seat, &files.leases)?;
        let dir = self.generations.folder();
        let made = files.spares.contains(&generation);
        let Some(file) = spare::take(dir, seat, generation, made, record_way)? else {
            // Another forwarder was faster, whatever the keeper says.
            return Ok(Tried::Busy);
        };
        let begun = self.begin_with(seat, (generation, began), file, (files, last));
        if !matches!(begun, Ok(Tried::GoesOn)) {
            self.give_up(seat, generation);
        }
        begun
    }

    /// Continues when the file exists.
    fn begin_with(
        &mut self,
        seat: u16,
        (generation, began): (u64, Time),
        file: UncachedFile,
        (files, mut last): (SeatFiles, Option<Complete>),
    ) -> io::Result<Tried> {
        let (_, table_way) = self.ways();
        let mut record = Record {
            stage: Stage::Taking,
            generation,
            renewals: 0,
            ttl_ns: self.options.ttl_ns,
            holder: self.holder.clone(),
            table_of: 0,
            lacks_holders: false,
        };
        record.write_next(&file)?;
        // The earlier listing may have been stale, and the number of a removed file must not be
        // used again.
        let mut now = self.generations.of_seat(seat)?;
        if now.newest().is_some_and(|newest| newest > generation) {
            return Ok(Tried::Busy);
        }
        now.leases.retain(|number| *number < generation);
        if now.leases != files.leases {
            last = self.complete(seat, &now.leases)?;
        }
        let gone = || io::Error::other("it is gone, and was made a moment ago");
        let table = self.generations.open(seat, generation, table_way)?;
        let table = Arc::new(table.ok_or_else(gone)?);
        record.lacks_holders = last.as_ref().is_some_and(|last| last.lacks);
        let table_of = last.as_ref().map(|last| last.table_of);
        let last = last.map(|last| last.file);
        self.taking = Some(Taking {
            seat,
            began,
            file: Arc::new(file),
            table: TakeOver::begin(table, last, record.lacks_holders)?,
            record,
            table_of,
            files: now,
        });
        Ok(Tried::GoesOn)
    }

    /// The last complete table. Fails if a file cannot be read that may have it: operations which
    /// that table records as done would be done again.
    fn complete(&self, seat: u16, leases: &[u64]) -> io::Result<Option<Complete>> {
        for number in leases.iter().rev() {
            let refused = |number: u64, why: &str| {
                let name = file_name(seat, number);
                let what = format!(
                    "the last holder's file {name} cannot be read: {why}; if its table is to be \
                     given up, stop all forwarders and remove it"
                );
                io::Error::new(io::ErrorKind::InvalidData, what)
            };
            let record = match self.generations.record(seat, *number)? {
                Last::Record(record) if record.stage == Stage::Taking => continue,
                Last::Unwritten(_) => continue,
                Last::Gone(_) => return Err(refused(*number, "it is gone")),
                Last::Unreadable(_, why) => return Err(refused(*number, &why)),
                Last::Record(record) => record,
            };
            let table_of = match record.table_of {
                0 => *number,
                elsewhere => elsewhere,
            };
            // What another node has written is not in this node's page cache.
            let file = self.generations.open(seat, table_of, Way::Past)?;
            return Ok(Some(Complete {
                table_of,
                file: file.ok_or_else(|| refused(table_of, "it is gone"))?,
                lacks: record.lacks_holders,
            }));
        }
        Ok(None)
    }

    /// Copies a part of the table. When it is complete, records that the seat is held.
    pub(super) fn go_on(&mut self, mut taking: Taking) -> io::Result<Tried> {
        let copied = self
            .still_ours(&taking)
            .and_then(|()| taking.table.go_on())
            .and_then(|whole| self.still_ours(&taking).map(|()| whole));
        match copied {
            Ok(true) => {}
            Ok(false) => {
                self.taking = Some(taking);
                return Ok(Tried::GoesOn);
            }
            Err(error) => {
                self.give_up(taking.seat, taking.record.generation);
                return Err(error);
            }
        }
        if taking.table.is_partial() {
            taking.record.table_of = taking.table_of.unwrap_or(0);
        }
        taking.record.stage = Stage::Held;
        taking.record.write_next(&taking.file)?;
        self.claims.confirm(taking.seat)?;
        self.still_ours(&taking)?;
        let (seat, generation) = taking.claim();
        self.remove_older(seat, &taking.record, &taking.files);
        let until = serves_until(taking.began, self.options.ttl_ns);
        let fence = &self.options.fence;
        fence.opens_until(match self.held.is_empty() {
            true => until,
            false => until.min(fence.until()),
        });
        if fence.is_closed() {
            return Err(too_slow());
        }
        let table = Arc::new(taking.table.done(fence.taken(seat), self.room.clone()));
        let held = Held {
            file: taking.file,
            record: taking.record,
            table: table.clone(),
            spares: std::array::from_fn(|_| Spare::by(generation)),
            in_grace: table.may_lack_holders(),
            until,
            lost: false,
        };
        self.held.insert(seat, held);
        let taken = TakenSeat {
            seat,
            generation,
            table,
        };
        Ok(Tried::Taken(taken, self.options.fence.until()))
    }

    /// Removes the file of a failed taking, because others would wait for its lease. Nobody needs
    /// its contents before it records that the seat is held.
    fn give_up(&self, seat: u16, generation: u64) {
        let name = file_name(seat, generation);
        let _ = rustix::fs::unlinkat(self.generations.folder(), name, AtFlags::empty());
    }

    /// Fails if the lease of a taking, or of seats already held, has expired.
    fn still_ours(&self, taking: &Taking) -> io::Result<()> {
        let until = serves_until(taking.began, self.options.ttl_ns);
        match self.options.fence.now() >= until || self.lapsed() {
            true => Err(too_slow()),
            false => Ok(()),
        }
    }

    /// Renews the lease of a taking, or gives the taking up if another forwarder has the seat.
    pub(super) fn renew_taking(
        &mut self,
        began: Time,
        claimed: Option<io::Result<Option<String>>>,
    ) -> io::Result<()> {
        let dropped = claimed.transpose()?.flatten().is_some();
        let Some(mut taking) = self.taking.take() else {
            return Ok(());
        };
        let (seat, generation) = taking.claim();
        let newest = self.seen.get(&seat).and_then(SeatFiles::newest);
        if newest != Some(generation) || dropped {
            self.unclaim(seat);
            return Ok(());
        }
        let written = taking.record.write_next(&taking.file);
        if written.is_ok() && self.still_ours(&taking).is_ok() {
            taking.began = began;
        }
        self.taking = Some(taking);
        written
    }
}

fn too_slow() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the back end is too slow: the lease ran out before the seat was taken; raise ttl_ms",
    )
}
