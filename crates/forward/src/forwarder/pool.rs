//! Accounts for the memory of payload. A payload has a slot of the [`Pool`] from before the host
//! reads it until after the host has sent or written it.

#[cfg(test)]
mod tests;

use crate::host::{ConnId, SlotId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The least a slot counts, which bounds the number of slots.
const SLOT_BYTES_MIN: u64 = 4096;

/// The bytes that a payload takes of the pool: the memory of its slot, a power of two, so that the
/// next payload of similar length fits a slot that was freed.
fn slot_bytes(len: u32) -> u64 {
    u64::from(len).max(SLOT_BYTES_MIN).next_power_of_two()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// The host is reading the payload from a connection.
    Admitted(ConnId),
    /// A request has the slot.
    InHand,
    /// A reply has the slot.
    Sending,
}

struct Slot {
    bytes: u64,
    used: Use,
    /// Who counts for it, if not a client that is trusted.
    user: Option<u32>,
}

/// Whether a payload has room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    Slot(SlotId),
    /// The pool is full, or others wait for what is left.
    Full,
    /// The payload's user has as much of the pool as one user may have.
    FullForUser,
}

/// The part of the pool that one user may have, in powers of two: a quarter.
const OF_USER_SHIFT: u32 = 2;

/// Accounts for the slots of all sessions' payload, so that it never exceeds the pool.
///
/// Connections that find no room wait in order of arrival. A later one gets room only if enough is
/// left for those before it, so small requests do not starve a large one.
///
/// A user who is not trusted has a part of the pool at most, whatever he does with it: payload that
/// he does not send, or replies that he does not read. His connections beyond it wait apart, and
/// keep no room from others.
pub(super) struct Pool {
    slots: Vec<Slot>,
    /// The last freed is given first: its memory is still in a cache.
    free: Vec<u32>,
    bytes_max: u64,
    bytes: u64,
    bytes_peak: u64,
    waiting: Waiting,
    /// Bytes that one user may have.
    of_user_max: u64,
    /// Bytes of each user who is not trusted and has some.
    of_users: BTreeMap<u32, u64>,
    /// Connections that wait for their user's part, and their users.
    apart: BTreeMap<ConnId, u32>,
    /// Users whose part has room again, for whom connections may wait.
    roomier: Vec<u32>,
}

/// Connections without room, and what they wait for.
#[derive(Default)]
struct Waiting {
    /// In order of arrival.
    places: BTreeMap<u64, u64>,
    place_of: BTreeMap<ConnId, u64>,
    arrivals: u64,
    /// Of all of them.
    bytes: u64,
}

impl Waiting {
    /// Whether the connections that wait before this one leave it `bytes` of `room`. A host that
    /// asks again in order of arrival gets its answer at once from the first connection that waits:
    /// that one found no room itself.
    fn leaves(&self, conn: ConnId, room: u64, bytes: u64) -> bool {
        let Some(mut left) = room.checked_sub(bytes) else {
            return false;
        };
        let Some(place) = self.place_of.get(&conn) else {
            return self.bytes <= left;
        };
        self.places.range(..place).all(|(_, bytes)| {
            let rest = left.checked_sub(*bytes);
            left = rest.unwrap_or(0);
            rest.is_some()
        })
    }

    /// Adds a connection to those that wait, or changes the bytes that it waits for.
    fn enter(&mut self, conn: ConnId, bytes: u64) {
        let place = *self.place_of.entry(conn).or_insert_with(|| {
            self.arrivals += 1;
            self.arrivals
        });
        self.bytes += bytes;
        self.bytes -= self.places.insert(place, bytes).unwrap_or(0);
    }

    fn leave(&mut self, conn: ConnId) {
        if let Some(place) = self.place_of.remove(&conn) {
            self.bytes -= self.places.remove(&place).unwrap_or(0);
        }
    }
}

impl Pool {
    /// A pool with room for at least one payload of the largest size.
    pub(super) fn new(bytes_max: u64, payload_max: u32) -> Pool {
        let bytes_max = bytes_max.max(slot_bytes(payload_max));
        Pool {
            slots: Vec::new(),
            free: Vec::new(),
            bytes_max,
            bytes: 0,
            bytes_peak: 0,
            waiting: Waiting::default(),
            of_user_max: (bytes_max >> OF_USER_SHIFT).max(slot_bytes(payload_max)),
            of_users: BTreeMap::new(),
            apart: BTreeMap::new(),
            roomier: Vec::new(),
        }
    }

    /// A slot for a payload that the host is about to read from a connection, of a user if he is
    /// not trusted. If there is no room, the connection waits.
    pub(super) fn admit(&mut self, conn: ConnId, len: u32, user: Option<u32>) -> Room {
        let bytes = slot_bytes(len);
        if let Some(uid) = user {
            let has = self.of_users.get(&uid).copied().unwrap_or(0);
            if has + bytes > self.of_user_max {
                self.waiting.leave(conn);
                self.apart.insert(conn, uid);
                return Room::FullForUser;
            }
            self.apart.remove(&conn);
        }
        if !self
            .waiting
            .leaves(conn, self.bytes_max - self.bytes, bytes)
        {
            self.waiting.enter(conn, bytes);
            return Room::Full;
        }
        self.waiting.leave(conn);
        if let Some(uid) = user {
            *self.of_users.entry(uid).or_default() += bytes;
        }
        Room::Slot(self.give(conn, bytes, user))
    }

    /// The user for whose part of the pool a connection waits, if it does.
    pub(super) fn waits_apart(&self, conn: ConnId) -> Option<u32> {
        self.apart.get(&conn).copied()
    }

    /// A user for whose part connections waited when it got room again. Each once.
    pub(super) fn roomier(&mut self) -> Option<u32> {
        self.roomier.pop()
    }

    /// A slot for a payload that lies in the client's own memory.
    pub(super) fn admit_shared(&mut self, conn: ConnId) -> SlotId {
        self.give(conn, 0, None)
    }

    /// Whether a slot's payload lies in the client's own memory.
    pub(super) fn is_shared(&self, slot: SlotId) -> bool {
        self.slots[slot.0 as usize].bytes == 0
    }

    fn give(&mut self, conn: ConnId, bytes: u64, user: Option<u32>) -> SlotId {
        self.bytes += bytes;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        let slot = Slot {
            bytes,
            used: Use::Admitted(conn),
            user,
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

    /// The request has arrived with its payload. False if the slot is not the connection's.
    pub(super) fn received(&mut self, conn: ConnId, slot: SlotId) -> bool {
        self.change(slot, Use::Admitted(conn), Use::InHand)
    }

    /// The forwarder sends a reply with the slot. False if no request has the slot.
    pub(super) fn sending(&mut self, slot: SlotId) -> bool {
        self.change(slot, Use::InHand, Use::Sending)
    }

    /// The host has sent the reply. False if no reply has the slot.
    pub(super) fn sent(&mut self, slot: SlotId) -> bool {
        self.change(slot, Use::Sending, Use::Free)
    }

    /// The request no longer needs its slot. False if no request has it.
    pub(super) fn done(&mut self, slot: SlotId) -> bool {
        self.change(slot, Use::InHand, Use::Free)
    }

    /// Removes a connection from those that wait, if it is one of them.
    pub(super) fn wait_no_longer(&mut self, conn: ConnId) {
        self.waiting.leave(conn);
        self.apart.remove(&conn);
    }

    /// Frees a slot that the host was reading into from a connection that has ended. One slot a
    /// call; None if there is no more.
    pub(super) fn closed(&mut self, conn: ConnId) -> Option<SlotId> {
        self.waiting.leave(conn);
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

    /// A user has so much less.
    fn left_by(&mut self, uid: u32, bytes: u64) {
        if let Some(has) = self.of_users.get_mut(&uid) {
            *has -= bytes;
            if *has == 0 {
                self.of_users.remove(&uid);
            }
        }
        if !self.apart.is_empty() && !self.roomier.contains(&uid) {
            self.roomier.push(uid);
        }
    }

    fn change(&mut self, slot: SlotId, from: Use, to: Use) -> bool {
        match self.slots.get_mut(slot.0 as usize) {
            Some(entry) if entry.used == from => {
                entry.used = to;
                if to == Use::Free {
                    let (bytes, user) = (entry.bytes, entry.user);
                    self.bytes -= bytes;
                    self.free.push(slot.0);
                    if let Some(uid) = user {
                        self.left_by(uid, bytes);
                    }
                }
                true
            }
            _ => false,
        }
    }
}
