//! Removes hidden names that nobody needs any more.

use super::{Opens, ignore_absent, lock, parse_hidden_name};
use crate::storage::Permit;
use crate::storage::posix::sys::{self, Done, no};
use rustix::fs::AtFlags;
use std::collections::HashSet;

impl Opens {
    /// The seats that only this forwarder can sweep, and must sweep again and again.
    pub(in crate::storage::posix) fn to_sweep(&self) -> Vec<u16> {
        match self.apart {
            Some(_) => lock(&self.settled).iter().copied().collect(),
            None => {
                // Once more when that has ended: others may have kept names until then.
                let mut seats = self.vouching.withheld();
                let before = std::mem::replace(&mut *lock(&self.swept), seats.clone());
                seats.extend(before);
                seats.sort_unstable();
                seats.dedup();
                seats
            }
        }
    }

    /// Has a seat swept once more, because its sweep has failed.
    pub(in crate::storage::posix) fn sweep_again(&self, seat: u16) {
        let mut swept = lock(&self.swept);
        if !swept.contains(&seat) {
            swept.push(seat);
        }
    }

    /// Removes the hidden names of a seat's files that nobody has open, and returns their number.
    /// The seat must be settled.
    ///
    /// Where locks do not reach other nodes, another forwarder may just have made a hidden name and
    /// not yet removed the file's other name, by which clients can open it. Such a hidden name
    /// stays until the next sweep. Ends early where `goes_on`, asked before each name, says so.
    pub(in crate::storage::posix) fn sweep(
        &self,
        seat: u16,
        permit: &Permit,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Done<u64> {
        let mut removed = 0;
        let mut left = HashSet::new();
        for entry in rustix::fs::Dir::read_from(&self.orphans).map_err(no)? {
            if !goes_on() {
                return Ok(removed);
            }
            let entry = entry.map_err(no)?;
            let Some(handle) = parse_hidden_name(entry.file_name().to_bytes()) else {
                continue;
            };
            if self.layout.seat_of_file(handle) != seat {
                continue;
            }
            let group = self.group(handle);
            let alone = || {
                let stat = sys::stat_at(&self.orphans, entry.file_name(), AtFlags::empty());
                stat.is_ok_and(|stat| stat.stx_nlink == 1)
            };
            let told = self.apart.is_none() && !self.vouching.is_withheld_of(seat);
            if !told && !lock(&self.left).contains(&handle) && !alone() {
                left.insert(handle);
                continue;
            }
            if self.lock_if_unused(&group, handle, permit)? {
                let name = entry.file_name();
                let remove = |()| rustix::fs::unlinkat(&self.orphans, name, AtFlags::empty());
                let gone = permit.begin().map(remove);
                self.unlock(handle)?;
                let gone = gone?;
                removed += u64::from(gone.is_ok());
                gone.or_else(ignore_absent).map_err(no)?;
                self.gone(handle);
            }
        }
        let mut all = lock(&self.left);
        all.retain(|handle| self.layout.seat_of_file(*handle) != seat);
        all.extend(left);
        Ok(removed)
    }
}
