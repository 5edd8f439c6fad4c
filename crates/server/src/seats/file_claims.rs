//! Claims seats by files of the back end: by byte locks, and by lease records that have not changed
//! for long enough.
//!
//! A claimant first takes the lock of `.tidegate/seat.SEAT`. Then it waits until the last holder's
//! lease must have expired ([`tidegate_forward::lease`]). Its generation is that of the file which
//! it then makes exclusively.

use super::claims::{Claim, Claims};
use super::generations::Generations;
use super::lease_record::Last;
use super::{HELD_BYTE, Seats, SeatsError, lock};
use crate::storage::Fence;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tidegate_forward::lease::{LeaseRecord, LeaseWatch, wait_ns};
use tidegate_sched::Time;

/// Claims seats by files of the back end.
pub(super) struct FileClaims {
    locks: Arc<Seats>,
    generations: Generations,
    /// The random number of this process.
    id: u64,
    fence: Fence,
    ttl_ns: u64,
    watches: BTreeMap<u16, LeaseWatch>,
    /// Another process with the same index, which holds the own seat.
    double: Option<Double>,
}

/// Another holder of the own seat, by its record.
struct Double {
    lease: LeaseRecord,
    since: Time,
    /// Whether the record was renewed while it was watched. A dead process does not renew its
    /// record, although the back end may keep its lock for long.
    renewed: bool,
}

impl FileClaims {
    /// No seat is claimed yet.
    pub(super) fn new(
        locks: Arc<Seats>,
        id: u64,
        fence: Fence,
        ttl_ns: u64,
    ) -> io::Result<FileClaims> {
        Ok(FileClaims {
            generations: Generations::of(locks.folder.as_fd())?,
            locks,
            id,
            fence,
            ttl_ns,
            watches: BTreeMap::new(),
            double: None,
        })
    }
}

impl Claims for FileClaims {
    fn claim(&mut self, seat: u16) -> Result<Claim, SeatsError> {
        if seat != self.locks.own && self.locks.wanted(seat) {
            return Ok(Claim::Busy);
        }
        let file = self.locks.open_file(seat)?;
        if !self.locks.try_lock(seat, &file, HELD_BYTE)? {
            return Ok(Claim::Busy);
        }
        // From here on the lock goes with `file` if anything fails.
        let error = |e| self.locks.file_error(seat, e);
        let files = self.generations.of_seat(seat).map_err(error)?;
        let last = files
            .newest()
            .map(|newest| self.generations.record(seat, newest));
        let last = last.transpose().map_err(error)?;
        let now = self.fence.now();
        let watch = self.watches.entry(seat).or_default();
        let mut lease = last.as_ref().map(Last::lease);
        if let Some(lease) = &mut lease {
            // Seats that this process held and released too late to record it.
            lease.free |= lease.holder == self.id;
        }
        if !watch.may_take(now, lease, self.ttl_ns) {
            let name = last.map_or_else(String::new, |last| last.name());
            return Ok(Claim::Waits(name));
        }
        self.watches.remove(&seat);
        lock(&self.locks.held).insert(seat, file);
        Ok(Claim::Ours {
            generation: files.next(),
            // Others that watch the record count from its first form, which is not written yet.
            began: self.fence.now(),
        })
    }

    fn confirm(&mut self, seat: u16) -> io::Result<()> {
        if self.locks.locks_work && !self.locks.is_held(seat)? {
            let what = "the lock of the seat's file was granted and is not seen to be held: byte \
                        locks do not work on this mount";
            return Err(io::Error::other(what));
        }
        self.locks.stop_wanting(seat);
        Ok(())
    }

    fn renew(&mut self, held: &[(u16, u64)]) -> io::Result<Vec<io::Result<Option<String>>>> {
        let dropped = |(seat, _): &(u16, u64)| {
            let there = !self.locks.locks_work || self.locks.is_held(*seat)?;
            Ok((!there).then(|| "the back end has dropped its lock".to_owned()))
        };
        Ok(held.iter().map(dropped).collect())
    }

    fn release(&mut self, seat: u16) -> io::Result<()> {
        self.locks.release(seat);
        // An owner that could not take its seat leaves it to others until it asks again.
        self.locks.stop_wanting(seat);
        Ok(())
    }

    fn settle(&mut self, seat: u16) -> Result<(), SeatsError> {
        self.locks.settle(seat)
    }

    fn want(&mut self, seat: u16) -> Result<(), SeatsError> {
        self.locks.want(seat)
    }

    fn wanted(&mut self, held: &[u16]) -> io::Result<Vec<u16>> {
        let wanted = held.iter().filter(|seat| self.locks.wanted(**seat));
        Ok(wanted.copied().collect())
    }

    /// Starts to watch the record: the wait for its lease counts from now on.
    fn look(&mut self, seat: u16) {
        // What cannot be read now is read when the seat is requested again.
        if let Some(last) = self.generations.last(seat).ok().flatten() {
            let watch = self.watches.entry(seat).or_default();
            watch.may_take(self.fence.now(), Some(last.lease()), self.ttl_ns);
        }
    }

    fn double(&mut self, seat: u16) -> Option<String> {
        let Last::Record(record) = self.generations.last(seat).ok().flatten()? else {
            return None;
        };
        let lease = record.lease();
        if record.holder.forwarder != seat || lease.holder == self.id || lease.free {
            self.double = None;
            return None;
        }
        let (now, last) = (self.fence.now(), self.double.take());
        let same = last.filter(|last| last.lease.generation == lease.generation);
        let double = match same {
            Some(same) if same.lease == lease => same,
            same => Double {
                renewed: same.is_some(),
                since: now,
                lease,
            },
        };
        let lives = now < double.since + wait_ns(lease.ttl_ns.max(self.ttl_ns));
        let double = self.double.insert(double);
        (double.renewed && lives).then(|| record.holder.name())
    }
}
