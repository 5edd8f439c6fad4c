//! Accounts for the payload that all sessions together may have here.
//!
//! Every payload has a slot from before it is read until after it is sent or written. Connections
//! that found no room wait in order of arrival: whoever came later gets room only if those before
//! it would still find theirs, so a large request does not starve behind small ones.

use crate::host::{ConnId, SlotId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The least a slot counts, which bounds the number of slots.
const SLOT_BYTES_MIN: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// Given to a connection that reads the payload.
    Admitted(ConnId),
    /// With a request.
    InHand,
    /// With a reply.
    Sending,
}

struct Slot {
    bytes: u64,
    used: Use,
}

pub(super) struct Pool {
    slots: Vec<Slot>,
    free: Vec<u32>,
    bytes_max: u64,
    bytes: u64,
    bytes_peak: u64,
    /// Who waits, in order of arrival, and for how many bytes.
    waiting: BTreeMap<u64, (ConnId, u64)>,
    /// The place in `waiting` of each of them.
    places: BTreeMap<ConnId, u64>,
    /// Bytes that they wait for, all together.
    wanted: u64,
    /// The next place.
    arrivals: u64,
}

impl Pool {
    /// A pool with room for at least one payload of the largest size.
    pub(super) fn new(bytes_max: u64, payload_max: u32) -> Pool {
        Pool {
            slots: Vec::new(),
            free: Vec::new(),
            bytes_max: bytes_max.max(u64::from(payload_max)).max(SLOT_BYTES_MIN),
            bytes: 0,
            bytes_peak: 0,
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            wanted: 0,
            arrivals: 0,
        }
    }

    /// A slot for a payload that a connection is about to read; None: the connection waits.
    pub(super) fn admit(&mut self, conn: ConnId, len: u32) -> Option<SlotId> {
        let bytes = u64::from(len).max(SLOT_BYTES_MIN);
        let at = match self.waiting.is_empty() {
            true => None,
            false => self.places.get(&conn).copied(),
        };
        let reserved = match at {
            None => self.wanted,
            // Empty for the first, and those that wait are asked first.
            Some(at) => self.waiting.range(..at).map(|(_, (_, bytes))| bytes).sum(),
        };
        if self.bytes.saturating_add(reserved).saturating_add(bytes) > self.bytes_max {
            self.wait(conn, at, bytes);
            return None;
        }
        if at.is_some() {
            self.wait_no_longer(conn);
        }
        Some(self.give(conn, bytes))
    }

    /// A slot for a payload that lies in the client's own memory.
    pub(super) fn admit_shared(&mut self, conn: ConnId) -> SlotId {
        self.give(conn, 0)
    }

    fn give(&mut self, conn: ConnId, bytes: u64) -> SlotId {
        self.bytes += bytes;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        let slot = Slot {
            bytes,
            used: Use::Admitted(conn),
        };
        SlotId(match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        })
    }

    /// The request came with its payload. False if the slot is not the connection's.
    pub(super) fn received(&mut self, conn: ConnId, slot: SlotId) -> bool {
        self.change(slot, Use::Admitted(conn), Use::InHand)
    }

    /// The slot goes out with a reply.
    pub(super) fn sending(&mut self, slot: SlotId) {
        self.change(slot, Use::InHand, Use::Sending);
    }

    /// The reply has gone out. False if there was none.
    pub(super) fn sent(&mut self, slot: SlotId) -> bool {
        self.change(slot, Use::Sending, Use::Free)
    }

    /// The request needs its slot no longer.
    pub(super) fn done(&mut self, slot: SlotId) -> bool {
        self.change(slot, Use::InHand, Use::Free)
    }

    fn wait(&mut self, conn: ConnId, at: Option<u64>, bytes: u64) {
        let at = at.unwrap_or_else(|| {
            self.arrivals += 1;
            self.places.insert(conn, self.arrivals);
            self.arrivals
        });
        let before = self.waiting.insert(at, (conn, bytes));
        self.wanted += bytes;
        self.wanted -= before.map_or(0, |(_, bytes)| bytes);
    }

    /// A connection waits no longer, if it did.
    pub(super) fn wait_no_longer(&mut self, conn: ConnId) {
        let entry = self.places.remove(&conn);
        if let Some((_, bytes)) = entry.and_then(|at| self.waiting.remove(&at)) {
            self.wanted -= bytes;
        }
    }

    /// A connection that was admitted more than it has received is gone: frees what it was reading
    /// into, one slot a call.
    pub(super) fn closed(&mut self, conn: ConnId) -> Option<SlotId> {
        let mut slots = self.slots.iter();
        let at = slots.position(|slot| slot.used == Use::Admitted(conn))?;
        let slot = SlotId(at as u32);
        self.change(slot, Use::Admitted(conn), Use::Free);
        Some(slot)
    }

    /// Bytes in use, the most ever in use, and the limit.
    pub(super) fn usage(&self) -> (u64, u64, u64) {
        (self.bytes, self.bytes_peak, self.bytes_max)
    }

    fn change(&mut self, slot: SlotId, from: Use, to: Use) -> bool {
        match self.slots.get_mut(slot.0 as usize) {
            Some(entry) if entry.used == from => {
                entry.used = to;
                if to == Use::Free {
                    self.bytes -= entry.bytes;
                    self.free.push(slot.0);
                }
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnId = ConnId(1);
    const B: ConnId = ConnId(2);

    #[test]
    fn a_single_payload_of_any_size_fits_an_empty_pool() {
        let mut pool = Pool::new(1, 1 << 20);
        let slot = pool.admit(A, 1 << 20).expect("an empty pool has room");
        assert_eq!(pool.admit(B, 1), None);
        assert!(pool.received(A, slot) && pool.done(slot));
        assert!(pool.admit(B, 1).is_some());
    }

    #[test]
    fn a_small_payload_passes_a_waiting_large_one_only_if_both_fit() {
        let mut pool = Pool::new(100_000, 100_000);
        let first = pool.admit(A, 40_000).expect("room");
        assert!(pool.received(A, first));
        assert_eq!(pool.admit(A, 90_000), None);
        assert_eq!(
            pool.admit(B, 20_000),
            None,
            "60,000 are free, but A waits for 90,000"
        );
        assert!(pool.done(first));
        assert_eq!(pool.admit(B, 20_000), None);
        assert!(pool.admit(A, 90_000).is_some());
        assert!(pool.admit(B, 8_000).is_some());
    }

    #[test]
    fn shared_memory_takes_nothing_of_the_pool() {
        let mut pool = Pool::new(4096, 4096);
        let full = pool.admit(A, 4096).expect("room");
        let shared = pool.admit_shared(A);
        assert_eq!(pool.usage().0, 4096);
        assert!(pool.received(A, shared) && pool.done(shared));
        assert_eq!(pool.closed(A), Some(full));
        assert_eq!(pool.usage().0, 0);
    }

    #[test]
    fn a_closed_connection_gives_back_what_it_was_reading_into() {
        let mut pool = Pool::new(10_000, 4096);
        let slot = pool.admit(A, 4096).expect("room");
        assert_eq!(pool.closed(A), Some(slot));
        assert_eq!(pool.closed(A), None);
        assert!(!pool.sent(slot), "freed already");
        assert_eq!(pool.usage().0, 0);
    }

    #[test]
    fn a_slot_is_used_by_its_own_connection_only() {
        let mut pool = Pool::new(10_000, 4096);
        let slot = pool.admit(A, 10).expect("room");
        assert!(!pool.received(B, slot));
        assert!(pool.received(A, slot));
        assert!(!pool.received(A, slot));
    }
}
