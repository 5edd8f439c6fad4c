//! Seats by lock and lease, where forwarders run on several nodes.
//!
//! Each taking of a seat has a number, its generation, and a file of that number,
//! `.tidegate/lease.SEAT.GENERATION`, that its taker makes exclusively: so no number is given
//! twice, and what a holder writes too late lands in a file that nobody reads any more. The file
//! has the lease's record in its first page, and the reply table behind it. A taker has the lock of
//! `.tidegate/seat.SEAT` first, waits until the last holder's lease must be over
//! ([`tidegate_forward::lease`]), makes the next file, copies the table, and then says that it
//! holds the seat. All of it goes past the page cache. These calls wait for the back end.

use super::record::{Holder, Record, Stage};
use super::uncached::{Page, UncachedFile, Way};
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
}

struct Held {
    lock: File,
    file: Arc<UncachedFile>,
    record: Record,
    table: Arc<WrittenTable>,
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
        let last = files.last().map(|number| self.record(seat, *number));
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
        let newest = files.get(&seat).and_then(|all| all.last());
        newest.map(|newest| self.record(seat, *newest)).transpose()
    }

    /// Makes the next generation's file, with the table of the last one that is complete.
    fn take(&mut self, seat: u16, lock: File, files: &[u64]) -> io::Result<Tried> {
        let next = files.last().map_or_else(first_generation, |last| last + 1);
        let name = file_name(seat, next);
        let folder = self.locks.folder.try_clone()?;
        let dir = folder.as_fd();
        let Some(file) = UncachedFile::make(dir, &name, self.way)? else {
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
        };
        file.write(0, &[record.encode()])?;
        let mut complete = None;
        for number in files.iter().rev() {
            if let Last::Record(found) = self.record(seat, *number)?
                && found.stage != Stage::Taking
            {
                complete = UncachedFile::open(dir, &file_name(seat, *number), self.way)?;
                break;
            }
        }
        let fence = self.options.fence.clone();
        let table = WrittenTable::take_over(file.clone(), fence, complete.as_ref())?;
        let until = serves_until(began, self.options.ttl_ns);
        self.options.fence.opens_until(match self.held.is_empty() {
            true => until,
            false => until.min(self.options.fence.until()),
        });
        table.write(true)?;
        record.stage = Stage::Held;
        file.write(0, &[record.encode()])?;
        if self.locks.locks_work && !self.locks.is_held(seat)? {
            let what = "the lock of the seat's file was granted and is not seen to be held: byte \
                        locks do not work on this mount";
            return Err(io::Error::other(what));
        }
        for number in files {
            // One that stays is removed by the next taking.
            let _ = rustix::fs::unlinkat(dir, file_name(seat, *number), AtFlags::empty());
        }
        let table = Arc::new(table);
        let held = Held {
            lock,
            file,
            record,
            table: table.clone(),
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

    /// Renews what is held here. Seats that are lost stay here until they are released.
    pub fn renew(&mut self) -> Renewal {
        let mut renewal = Renewal::default();
        if self.held.values().all(|held| held.lost) || self.lapsed() {
            return renewal;
        }
        match self.renew_all(&mut renewal.lost) {
            // A back end that is full takes no more rows, and the seats are held all the same.
            Ok(until) => (renewal.until, renewal.trouble) = (until, self.write_tables().err()),
            Err(error) => renewal.trouble = Some(error),
        }
        for (seat, _) in &renewal.lost {
            let held = self.held.get_mut(seat).expect("it was held");
            held.lost = true;
            held.table.close();
        }
        renewal
    }

    /// Writes what could wait until now.
    fn write_tables(&self) -> io::Result<()> {
        let mut held = self.held.values().filter(|held| !held.lost);
        held.try_for_each(|held| held.table.write(true))
    }

    fn renew_all(&mut self, lost: &mut Vec<(u16, String)>) -> io::Result<Option<Time>> {
        let began = self.options.fence.now();
        let files = self.generations()?;
        let mut renewed = false;
        for (seat, held) in self.held.iter_mut().filter(|(_, held)| !held.lost) {
            let newest = files.get(seat).and_then(|all| all.last()).copied();
            if newest != Some(held.record.generation) {
                let newer = newest.filter(|newest| *newest > held.record.generation);
                let by = newer.map_or("its lease's file is gone".to_owned(), |newest| {
                    let record = read_record(&self.locks, *seat, newest);
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
            held.record.renewals += 1;
            held.file.write(0, &[held.record.encode()])?;
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
            let page = held.record.encode();
            said = held.table.write(true);
            said = said.and_then(|()| held.file.write(0, &[page]));
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
    pub fn settle(&self, seat: u16) -> Result<(), SeatsError> {
        match self.held.get(&seat) {
            Some(held) => self
                .locks
                .try_lock(seat, &held.lock, SETTLED_BYTE)
                .map(|_| ()),
            None => Ok(()),
        }
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

    /// The generations that have a file, by seat, in order.
    fn generations(&self) -> io::Result<BTreeMap<u16, Vec<u64>>> {
        let mut found = BTreeMap::<u16, Vec<u64>>::new();
        for entry in rustix::fs::Dir::read_from(&self.locks.folder)? {
            let entry = entry?;
            if let Some((seat, generation)) = parse_name(entry.file_name().to_bytes()) {
                found.entry(seat).or_default().push(generation);
            }
        }
        found.values_mut().for_each(|all| all.sort_unstable());
        Ok(found)
    }

    fn record(&self, seat: u16, generation: u64) -> io::Result<Last> {
        read_record(&self.locks, seat, generation)
    }
}

/// What a lease's file says.
enum Last {
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

fn read_record(locks: &Seats, seat: u16, generation: u64) -> io::Result<Last> {
    let file = UncachedFile::open(
        locks.folder.as_fd(),
        &file_name(seat, generation),
        Way::Past,
    )?;
    let mut page = [Page::ZERO];
    if let Some(file) = file {
        file.read(0, &mut page)?;
    }
    let record = Record::decode(&page[0]).filter(|record| record.generation == generation);
    Ok(record.map_or(Last::Unwritten(generation), Last::Record))
}

/// The first number of a seat. It is the time, so that numbers go on rising where the hidden folder
/// was removed.
pub(super) fn first_generation() -> u64 {
    crate::identity::wall_ns() / 1_000_000_000
}

fn file_name(seat: u16, generation: u64) -> String {
    format!("lease.{seat}.{generation}")
}

fn parse_name(name: &[u8]) -> Option<(u16, u64)> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix("lease.")?;
    let (seat, generation) = rest.split_once('.')?;
    Some((seat.parse().ok()?, generation.parse().ok()?))
}

#[cfg(test)]
mod tests;
