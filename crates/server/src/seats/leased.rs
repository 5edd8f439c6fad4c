//! Seats held by leases, where forwarders run on several nodes.
//!
//! Each taking of a seat has a number, its generation, and a file
//! `.tidegate/lease.SEAT.GENERATION`, which its taker makes exclusively. So no generation is used
//! twice, and what a holder writes too late lands in a file that is not read any more. The file is
//! made ahead ([`super::spare`]). Its first page has the lease's record ([`super::lease_record`]),
//! and the reply table follows. A taker first claims the seat ([`super::claims`]), and then takes
//! over the file and the table ([`taking`]). The record bypasses the page cache, and so does the
//! table where it must survive a crash of the node. Calls wait for the back end.

mod taking;

use super::claims::{Claim, Claims};
use super::etcd::EtcdClaims;
use super::file_claims::FileClaims;
use super::generations::{Generations, SeatFiles, file_name};
use super::lease_record::{Holder, Record, Stage};
use super::persisted_table::{AllWritten, WrittenTable, pages_needed};
use super::room::{Room, is_full};
use super::spare::{self, Spare};
use super::uncached::{UncachedFile, Way};
use super::{Seats, SeatsError, TakenSeat};
use crate::config::EtcdOptions;
use crate::storage::Fence;
use crate::storage::posix::NOT_HELD;
use rustix::fs::AtFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taking::Taking;
use tidegate_forward::lease::serves_until;
use tidegate_sched::Time;
use tidegate_wire::ExportId;

/// How a forwarder keeps its seats.
#[derive(Clone)]
pub struct LeaseOptions {
    /// How long a holder keeps a seat after the last renewal, in ns.
    pub ttl_ns: u64,
    /// Whether persisted data survives a crash of the node, and not only of the process.
    pub outlives_node: bool,
    /// Whether the back end is a file system of this node.
    pub one_node: bool,
    /// Closes when the lease has expired.
    pub fence: Fence,
}

/// The seats of one export, as one forwarder uses them.
pub struct LeasedSeats {
    claims: Box<dyn Claims>,
    generations: Generations,
    /// The path of the hidden folder, for messages.
    path: PathBuf,
    options: LeaseOptions,
    holder: Holder,
    held: BTreeMap<u16, Held>,
    /// A taking whose table is not copied completely.
    taking: Option<Taking>,
    /// The files that the last renewal has found.
    seen: BTreeMap<u16, SeatFiles>,
    /// Until when a full back end is not asked for more room.
    full_until: Time,
    /// Whether the back end has room for what tables must store at once.
    room: Room,
}

/// For how many generations of a seat files are made ahead. The seat can change hands that often
/// where no new files can be made.
const SPARES: usize = 3;
/// How many renewals a time to live has.
pub(super) const RENEWALS: u32 = 5;
/// How many times to live pass between two tries to write what a full back end had no room for.
const FULL_TTLS: u64 = 2;

struct Held {
    file: Arc<UncachedFile>,
    record: Record,
    table: Arc<WrittenTable>,
    /// The spare files for the next holders.
    spares: [Spare; SPARES],
    /// Whether the grace period still runs for clients that the table may have lacked. The table
    /// may still lack them until it ends.
    in_grace: bool,
    /// Until when the seat may be served according to its own record.
    until: Time,
    /// Whether the seat is known to be lost and not released yet.
    lost: bool,
}

/// The result of trying to take a seat.
pub enum Tried {
    /// The seat is held here, at first until that time.
    Taken(TakenSeat, Time),
    /// A part of the seat's table was copied. The caller must call again, and renew its leases in
    /// between.
    GoesOn,
    /// Another forwarder holds the seat.
    Busy,
    /// The seat is free, but its last holder, named here, may still believe that it holds it.
    Waits(String),
}

/// The result of renewing leases.
#[derive(Default)]
pub struct Renewal {
    /// Seats that other forwarders have now, and why.
    pub lost: Vec<(u16, String)>,
    /// Until when the remaining seats are held here; None if they could not be renewed.
    pub until: Option<Time>,
    /// Why they could not be renewed, or what else is wrong with the back end.
    pub trouble: Option<io::Error>,
}

impl LeasedSeats {
    /// Claims seats by files of the back end, where its locks hold between nodes. Holds no seat
    /// yet. Fails if the files cannot be used.
    pub fn by_files(locks: Seats, options: LeaseOptions) -> Result<LeasedSeats, SeatsError> {
        locks.agree_on_keeper("files of the back end")?;
        let locks = Arc::new(locks);
        let leased = Holder::own(locks.own)
            .and_then(|holder| LeasedSeats::by_locks(&locks, holder, options));
        leased.map_err(|source| SeatsError::File {
            path: locks.path.clone(),
            source,
        })
    }

    /// Claims seats in etcd, whatever the back end's locks do. Holds no seat yet.
    pub fn by_etcd(
        seats: &Seats,
        etcd: &EtcdOptions,
        export: ExportId,
        options: LeaseOptions,
    ) -> Result<LeasedSeats, SeatsError> {
        let (fence, ttl) = (options.fence.clone(), Duration::from_nanos(options.ttl_ns));
        let claims = EtcdClaims::connect(etcd, export, seats, fence, ttl)?;
        seats.agree_on_keeper(&claims.place())?;
        let holder = claims.holder().clone();
        let leased = LeasedSeats::new(Box::new(claims), seats, holder, options);
        leased.map_err(|source| SeatsError::File {
            path: seats.path.clone(),
            source,
        })
    }

    fn by_locks(
        locks: &Arc<Seats>,
        holder: Holder,
        options: LeaseOptions,
    ) -> io::Result<LeasedSeats> {
        let (id, fence) = (holder.id, options.fence.clone());
        let claims = FileClaims::new(locks.clone(), id, fence, options.ttl_ns)?;
        LeasedSeats::new(Box::new(claims), locks, holder, options)
    }

    fn new(
        claims: Box<dyn Claims>,
        seats: &Seats,
        holder: Holder,
        options: LeaseOptions,
    ) -> io::Result<LeasedSeats> {
        let ttl_ns = options.ttl_ns;
        Ok(LeasedSeats {
            claims,
            generations: Generations::of(seats.folder.as_fd())?,
            path: seats.path.clone(),
            options,
            holder,
            held: BTreeMap::new(),
            taking: None,
            seen: BTreeMap::new(),
            full_until: Time(0),
            room: Room::asked_after(ttl_ns / 2),
        })
    }

    /// Takes one step to take a seat with a new generation. The caller repeats this until it is
    /// done.
    pub fn try_take(&mut self, seat: u16) -> Result<Tried, SeatsError> {
        if self.held.contains_key(&seat) {
            return Ok(Tried::Busy);
        }
        let (generation, tried) = match self.taking.take() {
            Some(taking) if taking.seat == seat => (taking.record.generation, self.go_on(taking)),
            other => {
                self.taking = other;
                if self.taking.is_some() || self.lapsed() {
                    return Ok(Tried::Busy);
                }
                match self.claims.claim(seat)? {
                    Claim::Ours { generation, began } => {
                        (generation, self.begin(seat, generation, began))
                    }
                    Claim::Busy => return Ok(Tried::Busy),
                    Claim::Waits(name) => return Ok(Tried::Waits(name)),
                }
            }
        };
        if !matches!(tried, Ok(Tried::Taken(..) | Tried::GoesOn)) {
            self.unclaim(seat);
        }
        tried.map_err(|source| SeatsError::File {
            path: self.path.join(file_name(seat, generation)),
            source,
        })
    }

    fn unclaim(&mut self, seat: u16) {
        if let Err(error) = self.claims.release(seat) {
            tracing::warn!(seat, %error, "a seat that could not be taken stays claimed for now");
        }
    }

    /// Looks at the lease of a seat that the forwarder wants.
    pub fn look(&mut self, seat: u16) {
        self.claims.look(seat);
    }

    /// The name of another live process with the same forwarder index, if it holds the seat.
    pub fn double(&mut self, seat: u16) -> Option<String> {
        self.claims.double(seat)
    }

    /// Tells a stand-in on the seat that the owner waits for it.
    pub fn want(&mut self, seat: u16) -> Result<(), SeatsError> {
        self.claims.want(seat)
    }

    /// Which of these seats, all held here, their owners wait for.
    pub fn wanted(&mut self, held: &[u16]) -> io::Result<Vec<u16>> {
        self.claims.wanted(held)
    }

    /// How far writes of a lease's record go, and writes of its table.
    fn ways(&self) -> (Way, Way) {
        let record = match self.options.one_node {
            true => Way::Stable,
            false => Way::Past,
        };
        match self.options.outlives_node {
            true => (record, record),
            false => (record, Way::Cached),
        }
    }

    /// Removes files that are not needed any more. The next taking removes what stays.
    fn remove_older(&self, seat: u16, record: &Record, files: &SeatFiles) {
        let dir = self.generations.folder();
        let own = record.generation;
        let older = files.leases.iter().filter(|number| **number < own);
        for number in older.filter(|number| **number != record.table_of) {
            let _ = rustix::fs::unlinkat(dir, file_name(seat, *number), AtFlags::empty());
        }
        for number in files.spares.iter().filter(|number| **number <= own) {
            spare::remove(dir, seat, *number);
        }
        for draft in files.drafts.iter().filter(|(_, maker)| *maker < own) {
            spare::remove_draft(dir, seat, *draft);
        }
    }

    /// Whether there are leases to renew.
    pub fn has_leases(&self) -> bool {
        self.taking.is_some() || self.held.values().any(|held| !held.lost)
    }

    /// Renews the leases of the seats held here. Lost seats stay listed until they are released.
    pub fn renew(&mut self) -> Renewal {
        let mut renewal = Renewal::default();
        if !self.has_leases() || self.lapsed() {
            return renewal;
        }
        let began = self.options.fence.now();
        if let Err(error) = self.renew_all(began, &mut renewal) {
            renewal.trouble = Some(error);
        }
        renewal
    }

    /// Writes what could wait so far and what had no room so far, gives unused room back, and makes
    /// spare files for the next takings. Begins no call after `until`. A full back end stores no
    /// more reply slots, but the seats are held all the same.
    pub fn write_tables(&mut self, until: Instant) -> io::Result<()> {
        let now = self.options.fence.now();
        if now < self.full_until {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let held = self.held.values_mut().filter(|held| !held.lost);
        let mut held = held.map(|held| held.write(until));
        let written = held.try_for_each(|written| written);
        let made = written.and_then(|()| self.make_spares(until));
        if made.as_ref().is_err_and(is_full) {
            // A full back end takes a second to refuse, and renewals must not wait.
            self.full_until = now + self.options.ttl_ns * FULL_TTLS;
        }
        made
    }

    /// Writes what could wait so far of one seat. True if nothing is left to write.
    pub fn flush(&self, seat: u16, until: Instant) -> io::Result<bool> {
        match self.held.get(&seat) {
            Some(held) if !held.lost && !self.lapsed() => held.table.write_until(true, Some(until)),
            _ => Ok(true),
        }
    }

    /// Makes spare files for the next takings, and removes what is left of earlier ones.
    fn make_spares(&mut self, until: Instant) -> io::Result<()> {
        let none = SeatFiles::default();
        let (way, _) = self.ways();
        for seat in self.held() {
            let files = self.seen.get(&seat).unwrap_or(&none);
            self.remove_older(seat, &self.held[&seat].record, files);
            let held = self.held.get_mut(&seat).expect("it is one of them");
            let (dir, own) = (self.generations.folder(), held.record.generation);
            let needed = pages_needed(&held.table);
            for (spare, next) in held.spares.iter_mut().zip(own + 1..) {
                spare.fit(dir, (seat, next), needed, way, until)?;
            }
        }
        Ok(())
    }

    /// Renews each lease. A seat that cannot be renewed while the others are served on is lost
    /// alone, one renewal before its time ends; until then no seat is served for longer than it.
    fn renew_all(&mut self, began: Time, renewal: &mut Renewal) -> io::Result<()> {
        self.seen = self.generations.list()?;
        let mut ours = Vec::new();
        for (seat, held) in self.held.iter_mut().filter(|(_, held)| !held.lost) {
            let newest = self.seen.get(seat).and_then(SeatFiles::newest);
            if newest == Some(held.record.generation) {
                ours.push((*seat, held.record.generation));
                continue;
            }
            let newer = newest.filter(|newest| *newest > held.record.generation);
            let by = newer.map_or("its lease's file is gone".to_owned(), |newest| {
                let record = self.generations.record(*seat, newest);
                let name = record.map_or_else(|_| String::new(), |last| last.name());
                format!("{name} has taken it with generation {newest}")
            });
            held.lose();
            renewal.lost.push((*seat, by));
        }
        let taking = self.taking.as_ref().map(Taking::claim);
        let claims: Vec<_> = ours.iter().copied().chain(taking).collect();
        let mut claimed = self.claims.renew(&claims)?;
        let taking_claimed = claimed.split_off(ours.len()).pop();
        let until = serves_until(began, self.options.ttl_ns);
        let mut failed = Vec::new();
        for ((seat, _), claimed) in ours.iter().zip(claimed) {
            let held = self.held.get_mut(seat).expect("it is held");
            let renewed = match claimed {
                Ok(None) => held.renew(self.generations.folder(), *seat),
                claimed => claimed,
            };
            match renewed {
                Ok(None) => held.until = until,
                Ok(Some(why)) => {
                    held.lose();
                    renewal.lost.push((*seat, why));
                }
                Err(error) => failed.push((*seat, error)),
            }
        }
        self.lose_late(began, failed, renewal);
        if let Err(error) = self.renew_taking(began, taking_claimed) {
            renewal.trouble = Some(error);
        }
        let held = || self.held.values().filter(|held| !held.lost);
        let fence = &self.options.fence;
        let Some(ends) = held().map(|held| held.until).min() else {
            return Ok(());
        };
        let goes_on = held().any(|held| held.until == until) || ends > fence.until();
        // Else the renewal came too late: the forwarder has given the seats up by now.
        if goes_on && !fence.is_closed() {
            fence.opens_until(ends);
            renewal.until = Some(ends);
        }
        Ok(())
    }

    /// Loses those of the failed seats that would keep the others from being served.
    fn lose_late(&mut self, began: Time, failed: Vec<(u16, io::Error)>, renewal: &mut Renewal) {
        let between_ns = self.options.ttl_ns / u64::from(RENEWALS);
        // The next try may come too late, or fail.
        let last_try = began + 2 * between_ns;
        for (seat, error) in failed {
            let until = self.held[&seat].until;
            let mut others = self.held.values().filter(|held| !held.lost);
            if last_try >= until && others.any(|held| held.until >= until + between_ns) {
                self.held.get_mut(&seat).expect("it is held").lose();
                let why = format!("its lease cannot be renewed: {error}");
                renewal.lost.push((seat, why));
            }
            renewal.trouble = Some(error);
        }
    }

    /// Releases a seat: with a record if this forwarder may still write it, otherwise without one.
    pub fn release(&mut self, seat: u16) -> io::Result<()> {
        let lapsed = self.lapsed();
        let Some(mut held) = self.held.remove(&seat) else {
            return Ok(());
        };
        let mut said = Ok(());
        if !held.lost && !lapsed {
            held.record.stage = Stage::Free;
            said = match held.table.write(true) {
                Ok(()) => {
                    held.record.table_of = 0;
                    Ok(())
                }
                // Waiting until the lease ends would not give the next holder a more complete
                // table.
                Err(error) if is_full(&error) => {
                    held.record.lacks_holders = held.table.lacks_some() || held.in_grace;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            said = said.and_then(|()| held.record.write_next(&held.file));
        }
        held.table.close();
        self.claims.release(seat).and(said)
    }

    /// Records that the grace period of a seat held here has ended.
    pub fn settle(&mut self, seat: u16) -> Result<(), SeatsError> {
        let lapsed = self.lapsed();
        let Some(held) = self.held.get_mut(&seat) else {
            return Ok(());
        };
        if held.lost || lapsed {
            return Err(SeatsError::File {
                path: self.path.join(file_name(seat, held.record.generation)),
                source: io::Error::other(NOT_HELD),
            });
        }
        held.in_grace = false;
        self.claims.settle(seat)
    }

    /// Seats held here that are not known to be lost.
    pub fn held(&self) -> Vec<u16> {
        let ours = self.held.iter().filter(|(_, held)| !held.lost);
        ours.map(|(seat, _)| *seat).collect()
    }

    /// Whether the lease has expired and its seats are not released yet.
    fn lapsed(&self) -> bool {
        !self.held.is_empty() && self.options.fence.is_closed()
    }
}

impl Held {
    /// Writes the record of a seat that is still held here. Returns why it is lost, if it is.
    fn renew(&mut self, dir: BorrowedFd<'_>, seat: u16) -> io::Result<Option<String>> {
        let lacks = self.table.lacks_some();
        self.record.lacks_holders = lacks || self.in_grace;
        self.record.write_next(&self.file)?;
        if lacks {
            self.table.lack_recorded();
        }
        let there = self
            .file
            .is_at(dir, &file_name(seat, self.record.generation))?;
        Ok((!there).then(|| "another has its lease's name".to_owned()))
    }

    /// Writes what could wait so far, and records what has changed by that.
    fn write(&mut self, until: Instant) -> io::Result<()> {
        let written = self.table.write_all(until)?;
        if written == AllWritten::GoesOn {
            return Ok(());
        }
        if self.record.table_of != 0 || written == AllWritten::LacksNoneNow {
            self.record.table_of = 0;
            self.record.lacks_holders = self.in_grace;
            self.record.write_next(&self.file)?;
        }
        self.table.set_partial(false);
        self.table.punch_until(until);
        Ok(())
    }

    /// Notes that another forwarder has the seat, so that nothing is written any more.
    fn lose(&mut self) {
        self.lost = true;
        self.table.close();
    }
}

#[cfg(test)]
mod tests;
