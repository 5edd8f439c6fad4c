//! Seats by lock and lease, where forwarders run on several nodes.
//!
//! Each taking of a seat has a number, its generation, and a file of that number,
//! `.tidegate/lease.SEAT.GENERATION`, that its taker makes exclusively: so no number is given
//! twice, and what a holder writes too late lands in a file that nobody reads any more. The file
//! is made ahead (`spare.rs`), has the lease's record in its first page (`recorded.rs`), and the
//! reply table behind it. A taker has the lock of
//! `.tidegate/seat.SEAT` first, waits until the last holder's lease must be over
//! ([`tidegate_forward::lease`]), makes the next file, copies the table, and then says that it
//! holds the seat. All of it goes past the page cache. These calls wait for the back end.

use super::record::{Holder, Record, Stage};
use super::recorded;
use super::spare::{self, Spare};
use super::uncached::{UncachedFile, Way};
use super::written::WrittenTable;
use super::{HELD_BYTE, SETTLED_BYTE, Seats, SeatsError, TakenSeat};
use crate::storage::Fence;
use crate::storage::ofd;
use rustix::fs::AtFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_forward::SeatTable;
use tidegate_forward::lease::{LeaseRecord, LeaseWatch, serves_until};
use tidegate_sched::Time;

/// How a forwarder keeps its seats.
pub struct LeaseOptions {
    /// How long a seat stays its holder's after the last renewal, ns.
    pub ttl_ns: u64,
    /// What is persisted outlives the node, and not only the process.
    pub outlives_node: bool,
    /// The back end is a file system of this node.
    pub one_node: bool,
    /// Closes when the lease has run out.
    pub fence: Fence,
}

/// The seats of one export, as one forwarder sees them.
pub struct LeasedSeats {
    locks: Seats,
    options: LeaseOptions,
    way: Way,
    holder: Holder,
    held: BTreeMap<u16, Held>,
    watches: BTreeMap<u16, LeaseWatch>,
    /// The back end was full, and is not asked for more room until then.
    full_until: Time,
}

/// Generations of a seat for which files are made ahead: so often it changes hands where no new
/// files are made.
const SPARES: usize = 3;
/// Times to live between two tries to write what a full back end had no room for.
const FULL_TTLS: u64 = 2;

struct Held {
    lock: File,
    file: Arc<UncachedFile>,
    record: Record,
    table: Arc<WrittenTable>,
    /// For the next holders.
    spares: [Spare; SPARES],
    /// Clients that the table may have lacked have time to come: until then it may lack them still.
    in_grace: bool,
    /// It is known to be lost, and waits to be let go.
    lost: bool,
}

/// What came of a try to take a seat.
pub enum Tried {
    /// It is held here, until that time at first.
    Taken(TakenSeat, Time),
    /// Somebody holds its lock.
    Busy,
    /// Its lock is free; its last holder, of this name, may still believe that it holds it.
    Waits(String),
}

/// What came of a renewal.
#[derive(Default)]
pub struct Renewal {
    /// Seats that are somebody else's now, and why.
    pub lost: Vec<(u16, String)>,
    /// Until when the others are ours; None if they could not be renewed.
    pub until: Option<Time>,
    /// Why not, or what else is wrong with the back end.
    pub trouble: Option<io::Error>,
}

impl LeasedSeats {
    /// Nothing is held yet.
    pub fn new(locks: Seats, options: LeaseOptions) -> io::Result<LeasedSeats> {
        let way = match (options.outlives_node, options.one_node) {
            (false, _) => Way::Cached,
            (true, false) => Way::Past,
            (true, true) => Way::Stable,
        };
        Ok(LeasedSeats {
            holder: Holder::own(locks.own)?,
            locks,
            options,
            way,
            held: BTreeMap::new(),
            watches: BTreeMap::new(),
            full_until: Time(0),
        })
    }

    /// The locks, for what is said by them alone.
    pub fn locks(&self) -> &Seats {
        &self.locks
    }

    /// Takes a seat with a new generation, if that can be done now.
    pub fn try_take(&mut self, seat: u16) -> Result<Tried, SeatsError> {
        let wanted = seat != self.locks.own && self.locks.wanted(seat);
        if self.held.contains_key(&seat) || wanted || self.lapsed() {
            return Ok(Tried::Busy);
        }
        let lock = self.locks.open_file(seat)?;
        if !self.locks.try_lock(seat, &lock, HELD_BYTE)? {
            return Ok(Tried::Busy);
        }
        // From here on the lock goes with `lock` if anything fails.
        let error = |e| self.locks.file_error(seat, e);
        let files = self.generations().map_err(error)?;
        let files = files.get(&seat).cloned().unwrap_or_default();
        let last = files.leases.last().map(|number| self.record(seat, *number));
        let last = last.transpose().map_err(error)?;
        let now = self.options.fence.now();
        let watch = self.watches.entry(seat).or_default();
        let mut lease = last.as_ref().map(Last::lease);
        if let Some(lease) = &mut lease {
            // What this process held and let go too late to say so.
            lease.free |= lease.holder == self.holder.id;
        }
        if !watch.may_take(now, lease, self.options.ttl_ns) {
            let name = last.map_or_else(String::new, |last| last.name());
            return Ok(Tried::Waits(name));
        }
        self.watches.remove(&seat);
        let taken = self.take(seat, lock, &files);
        taken.map_err(|e| self.locks.file_error(seat, e))
    }

    /// Looks at the lease of a seat that was asked for, so that the time counts from now on.
    pub fn look(&mut self, seat: u16) {
        // What cannot be seen now is seen when the seat is asked for again.
        let last = self.last(seat).ok().flatten();
        let (now, ttl_ns) = (self.options.fence.now(), self.options.ttl_ns);
        if let Some(last) = last {
            let watch = self.watches.entry(seat).or_default();
            watch.may_take(now, Some(last.lease()), ttl_ns);
        }
    }

    /// The name of another live process that was given the index of a seat, if it holds the seat.
    pub fn double(&self, seat: u16) -> Option<String> {
        let Last::Record(record) = self.last(seat).ok().flatten()? else {
            return None;
        };
        let lease = record.lease();
        let other = record.holder.forwarder == seat && record.holder.id != self.holder.id;
        (other && !lease.free && lease.renewals > 0).then(|| record.holder.name())
    }

    fn last(&self, seat: u16) -> io::Result<Option<Last>> {
        let files = self.generations()?;
        let newest = files.get(&seat).and_then(|all| all.leases.last());
        newest.map(|newest| self.record(seat, *newest)).transpose()
    }

    /// Makes the next generation's file, with the table of the last one that is complete.
    fn take(&mut self, seat: u16, lock: File, files: &Generations) -> io::Result<Tried> {
        let next = files
            .leases
            .last()
            .map_or_else(first_generation, |last| last + 1);
        let folder = self.locks.folder.try_clone()?;
        let dir = folder.as_fd();
        let made = files.spares.contains(&next);
        let Some(file) = spare::take(dir, seat, next, made, self.way)? else {
            // Somebody is faster, whatever the lock says.
            return Ok(Tried::Busy);
        };
        let file = Arc::new(file);
        // Whoever looks at the record counts from its first form, so the holder does too.
        let began = self.options.fence.now();
        let mut record = Record {
            stage: Stage::Taking,
            generation: next,
            renewals: 0,
            ttl_ns: self.options.ttl_ns,
            holder: self.holder.clone(),
            table_of: 0,
            lacks_holders: false,
        };
        recorded::write(&file, &mut record)?;
        let (table_of, lack) = self.complete(seat, &files.leases)?.unzip();
        record.lacks_holders = lack.unwrap_or(false);
        let complete = table_of.map(|number| file_name(seat, number));
        let complete = complete.map(|name| UncachedFile::open(dir, &name, self.way));
        let complete = complete.transpose()?.flatten();
        let fence = self.options.fence.clone();
        let table =
            WrittenTable::take_over(file.clone(), fence, complete.as_ref(), record.lacks_holders)?;
        let until = serves_until(began, self.options.ttl_ns);
        self.options.fence.opens_until(match self.held.is_empty() {
            true => until,
            false => until.min(self.options.fence.until()),
        });
        match table.write(true) {
            Err(error) if recorded::is_full(&error) => {
                record.table_of = table_of.unwrap_or(0);
                table.set_partial(true);
            }
            written => written?,
        }
        record.stage = Stage::Held;
        recorded::write(&file, &mut record)?;
        self.check_lock(seat)?;
        self.remove_older(seat, &record, files);
        let table = Arc::new(table);
        let held = Held {
            lock,
            file,
            record,
            table: table.clone(),
            spares: Default::default(),
            in_grace: table.may_lack_holders(),
            lost: false,
        };
        self.held.insert(seat, held);
        self.locks.stop_wanting(seat);
        let generation = next;
        let taken = TakenSeat {
            seat,
            generation,
            table,
        };
        Ok(Tried::Taken(taken, self.options.fence.until()))
    }

    /// A lock that was just granted must be seen to be held.
    fn check_lock(&self, seat: u16) -> io::Result<()> {
        if self.locks.locks_work && !self.locks.is_held(seat)? {
            let what = "the lock of the seat's file was granted and is not seen to be held: byte \
                        locks do not work on this mount";
            return Err(io::Error::other(what));
        }
        Ok(())
    }

    /// The generation whose file has the last whole table, and whether that may lack clients.
    fn complete(&self, seat: u16, leases: &[u64]) -> io::Result<Option<(u64, bool)>> {
        for number in leases.iter().rev() {
            if let Last::Record(found) = self.record(seat, *number)?
                && found.stage != Stage::Taking
            {
                let table_of = match found.table_of {
                    0 => *number,
                    elsewhere => elsewhere,
                };
                return Ok(Some((table_of, found.lacks_holders)));
            }
        }
        Ok(None)
    }

    /// Removes what is of no use to anybody any more. What stays is removed by the next taking.
    fn remove_older(&self, seat: u16, record: &Record, files: &Generations) {
        let dir = self.locks.folder.as_fd();
        let own = record.generation;
        let older = files.leases.iter().filter(|number| **number < own);
        for number in older.filter(|number| **number != record.table_of) {
            let _ = rustix::fs::unlinkat(dir, file_name(seat, *number), AtFlags::empty());
        }
        let ahead = files.spares.iter().chain(&files.drafts);
        for number in ahead.filter(|number| **number <= own) {
            spare::remove(dir, seat, *number);
        }
    }

    /// Renews what is held here. Seats that are lost stay here until they are released.
    pub fn renew(&mut self) -> Renewal {
        let mut renewal = Renewal::default();
        if self.held.values().all(|held| held.lost) || self.lapsed() {
            return renewal;
        }
        let began = self.options.fence.now();
        let renewed = self.generations().and_then(|files| {
            let until = self.renew_all(began, &files, &mut renewal.lost)?;
            Ok((until, files))
        });
        match renewed {
            // A back end that is full takes no more rows, and the seats are held all the same.
            Ok((until, files)) => {
                renewal.until = until;
                if until.is_some() && began >= self.full_until {
                    let written = self.write_tables();
                    let made = written.and_then(|()| self.make_spares(&files));
                    if made.as_ref().is_err_and(recorded::is_full) {
                        // A full back end takes a second to say so, and renewals must not wait.
                        self.full_until = began + self.options.ttl_ns * FULL_TTLS;
                    }
                    renewal.trouble = made.err();
                } else if began < self.full_until {
                    renewal.trouble = Some(io::Error::from_raw_os_error(libc::ENOSPC));
                }
            }
            Err(error) => renewal.trouble = Some(error),
        }
        for (seat, _) in &renewal.lost {
            let held = self.held.get_mut(seat).expect("it was held");
            held.lost = true;
            held.table.close();
        }
        renewal
    }

    /// Writes what could wait until now, and what had no room until now.
    fn write_tables(&mut self) -> io::Result<()> {
        let held = self.held.values_mut().filter(|held| !held.lost);
        for held in held {
            let knows_all = held.table.write_all()?;
            if held.record.table_of != 0 || knows_all {
                held.record.table_of = 0;
                held.record.lacks_holders = held.in_grace;
                recorded::write(&held.file, &mut held.record)?;
            }
            held.table.set_partial(false);
        }
        Ok(())
    }

    /// Makes what the next takings need, and removes what is left of earlier ones.
    fn make_spares(&mut self, files: &BTreeMap<u16, Generations>) -> io::Result<()> {
        let none = Generations::default();
        for seat in self.held() {
            let files = files.get(&seat).unwrap_or(&none);
            self.remove_older(seat, &self.held[&seat].record, files);
            let held = self.held.get_mut(&seat).expect("it is one of them");
            let (dir, own) = (self.locks.folder.as_fd(), held.record.generation);
            for (spare, next) in held.spares.iter_mut().zip(own + 1..) {
                spare.fit(dir, (seat, next), &held.table, self.way)?;
            }
        }
        Ok(())
    }

    fn renew_all(
        &mut self,
        began: Time,
        files: &BTreeMap<u16, Generations>,
        lost: &mut Vec<(u16, String)>,
    ) -> io::Result<Option<Time>> {
        let mut renewed = false;
        for (seat, held) in self.held.iter_mut().filter(|(_, held)| !held.lost) {
            let newest = files.get(seat).and_then(|all| all.leases.last()).copied();
            if newest != Some(held.record.generation) {
                let newer = newest.filter(|newest| *newest > held.record.generation);
                let by = newer.map_or("its lease's file is gone".to_owned(), |newest| {
                    let record = recorded::read(&self.locks, *seat, newest);
                    let name = record.map_or_else(|_| String::new(), |last| last.name());
                    format!("{name} has taken it with generation {newest}")
                });
                lost.push((*seat, by));
                continue;
            }
            if self.locks.locks_work && !self.locks.is_held(*seat)? {
                let why = "the back end has dropped its lock".to_owned();
                lost.push((*seat, why));
                continue;
            }
            let lacks = held.table.lacks_some();
            held.record.lacks_holders = lacks || held.in_grace;
            recorded::write(&held.file, &mut held.record)?;
            if lacks {
                held.table.lack_recorded();
            }
            let name = file_name(*seat, held.record.generation);
            if !held.file.is_at(self.locks.folder.as_fd(), &name)? {
                lost.push((*seat, "another has its lease's name".to_owned()));
                continue;
            }
            renewed = true;
        }
        if !renewed {
            return Ok(None);
        }
        let until = serves_until(began, self.options.ttl_ns);
        if self.options.fence.is_closed() {
            // It came too late: the core has given the seats up by now.
            return Ok(None);
        }
        self.options.fence.opens_until(until);
        Ok(Some(until))
    }

    /// Lets a seat go: at once where that is still ours to say, else without a word.
    pub fn release(&mut self, seat: u16) -> io::Result<()> {
        let lapsed = self.lapsed();
        let Some(mut held) = self.held.remove(&seat) else {
            return Ok(());
        };
        let mut said = Ok(());
        if !held.lost && !lapsed {
            held.record.stage = Stage::Free;
            said = held.table.write(true);
            held.record.table_of = 0;
            said = said.and_then(|()| recorded::write(&held.file, &mut held.record));
        }
        held.table.close();
        for byte in [SETTLED_BYTE, HELD_BYTE] {
            if self.locks.locks_work {
                ofd::unlock(held.lock.as_fd(), byte)?;
            }
        }
        said
    }

    /// Says that the grace period of a seat held here is over.
    pub fn settle(&mut self, seat: u16) -> Result<(), SeatsError> {
        let Some(held) = self.held.get_mut(&seat) else {
            return Ok(());
        };
        held.in_grace = false;
        let settled = self.locks.try_lock(seat, &held.lock, SETTLED_BYTE);
        settled.map(|_| ())
    }

    /// Seats held here that are not known to be lost.
    pub fn held(&self) -> Vec<u16> {
        let ours = self.held.iter().filter(|(_, held)| !held.lost);
        ours.map(|(seat, _)| *seat).collect()
    }

    /// The lease has run out, and what was held under it is not released yet.
    fn lapsed(&self) -> bool {
        !self.held.is_empty() && self.options.fence.is_closed()
    }

    /// The generations that have a file, by seat.
    fn generations(&self) -> io::Result<BTreeMap<u16, Generations>> {
        let mut found = BTreeMap::<u16, Generations>::new();
        for entry in rustix::fs::Dir::read_from(&self.locks.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Some((seat, generation)) = parse_after("lease.", name) {
                found.entry(seat).or_default().leases.push(generation);
            } else if let Some((seat, generation)) = spare::parse_name(name) {
                found.entry(seat).or_default().spares.push(generation);
            } else if let Some((seat, generation)) = spare::parse_draft(name) {
                found.entry(seat).or_default().drafts.push(generation);
            }
        }
        found
            .values_mut()
            .for_each(|all| all.leases.sort_unstable());
        Ok(found)
    }

    fn record(&self, seat: u16, generation: u64) -> io::Result<Last> {
        recorded::read(&self.locks, seat, generation)
    }
}

/// The generations of a seat that have a file.
#[derive(Clone, Debug, Default)]
struct Generations {
    /// Those that were taken, in order.
    leases: Vec<u64>,
    /// Those that nobody has taken yet.
    spares: Vec<u64>,
    /// Those whose files are not whole, or were not needed.
    drafts: Vec<u64>,
}

/// What a lease's file says.
pub(super) enum Last {
    Record(Record),
    /// It has no record: whoever made it has not written one, or a part of it.
    Unwritten(u64),
}

impl Last {
    fn lease(&self) -> LeaseRecord {
        match self {
            Last::Record(record) => record.lease(),
            Last::Unwritten(generation) => LeaseRecord {
                generation: *generation,
                holder: 0,
                renewals: 0,
                ttl_ns: 0,
                free: false,
            },
        }
    }

    fn name(&self) -> String {
        match self {
            Last::Record(record) => record.holder.name(),
            Last::Unwritten(_) => "a forwarder that did not say its name".to_owned(),
        }
    }
}

/// The first number of a seat. It is the time, so that numbers go on rising where the hidden folder
/// was removed.
pub(super) fn first_generation() -> u64 {
    crate::identity::wall_ns() / 1_000_000_000
}

pub(super) fn file_name(seat: u16, generation: u64) -> String {
    format!("lease.{seat}.{generation}")
}

/// Seat and generation behind a word.
pub(super) fn parse_after(word: &str, name: &[u8]) -> Option<(u16, u64)> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(word)?;
    let (seat, generation) = rest.split_once('.')?;
    Some((seat.parse().ok()?, generation.parse().ok()?))
}

#[cfg(test)]
mod tests;
