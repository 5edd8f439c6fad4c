//! Accounts for the memory of payload. A payload has a slot of the [`Pool`] from before the host
//! reads it until after the host has sent or written it.

#[cfg(test)]
mod tests;

use crate::host::{ConnId, SlotId};
use alloc::boxed::Box;
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
    holder: Holder,
    /// The index of the region whose bytes it has.
    region: usize,
}

/// What a holder of payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A user who is not trusted.
    User,
    /// The mounts with limits by secrets of one name.
    Node,
    /// All clients that have the reserve.
    Reserve,
}

/// Whose a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    kind: Kind,
    number: u32,
}

impl Holder {
    /// All clients that have the reserve.
    pub(super) const RESERVE: Holder = Holder {
        kind: Kind::Reserve,
        number: 0,
    };

    /// A user who is not trusted.
    pub(super) fn user(uid: u32) -> Holder {
        Holder {
            kind: Kind::User,
            number: uid,
        }
    }

    /// The queue of those who wait for this holder's part of the pool.
    fn own_queue(self) -> Queue {
        Queue(self.kind, Some(self.number))
    }
}

/// In which order a connection waits for room in the pool: one for each holder that has a part of
/// its own, and one for each kind of holder. Those behind the first of a queue need not be asked
/// for before it has found room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queue(Kind, Option<u32>);

impl Queue {
    /// The queues of those who wait for more than a part of their own.
    pub const OF_KINDS: [Queue; 3] = [
        Queue(Kind::User, None),
        Queue(Kind::Node, None),
        Queue(Kind::Reserve, None),
    ];
}

/// Whether a payload has room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    Slot(SlotId),
    /// The pool is full, or others wait for what is left.
    Full,
    /// The payload's holder has as much of the pool as one holder may have.
    FullForHolder,
}

/// The part of the pool that one holder may have, in powers of two: a quarter.
const OF_HOLDER_SHIFT: u32 = 2;

/// What is left to nodes, and what to clients that have the reserve, in powers of two: a sixteenth.
const LEFT_SHIFT: u32 = 4;

/// A pool of so many payloads of the largest size has something to leave.
const LEAVES_MIN: u64 = 8;

/// Accounts for the slots of all sessions' payload, so that it never exceeds the pool.
///
/// Connections that find no room wait in order of arrival. A later one gets room only if enough is
/// left for those before it, so small requests do not starve a large one.
///
/// A holder has a part of the pool at most, whatever it does with it: payload that it does not
/// send, or replies that it does not read. Its connections beyond that wait apart, and keep no room
/// from others. All users and nodes together leave some to clients that have the reserve, and all
/// users some to nodes, in regions of their own. Clients that have the reserve may have all.
pub(super) struct Pool {
    slots: Vec<Slot>,
    /// The last freed is given first: its memory is still in a cache.
    free: Vec<u32>,
    /// The first is everybody's, users leave the second to nodes, and both the third to others.
    regions: [Region; 3],
    bytes_peak: u64,
    /// Bytes that one holder may have.
    of_holder_max: u64,
    /// Bytes of each holder that has some, and has a part of its own.
    of_holders: BTreeMap<Holder, u64>,
    /// Connections that wait for their holder's part, and their holders.
    apart: BTreeMap<ConnId, Holder>,
    /// Holders whose part has room again, for which connections may wait.
    roomier: Vec<Holder>,
    /// Numbers of nodes, by the name of their secret. Only a site's operator makes such names.
    nodes: BTreeMap<Box<str>, u32>,
}

/// Bytes that some holders share.
struct Region {
    bytes_max: u64,
    bytes: u64,
    waiting: Waiting,
}

impl Region {
    fn new(bytes_max: u64) -> Region {
        Region {
            bytes_max,
            bytes: 0,
            waiting: Waiting::default(),
        }
    }

    /// Whether a connection may have so many bytes now.
    fn has_room(&self, conn: ConnId, bytes: u64) -> bool {
        let room = self.bytes_max - self.bytes;
        self.waiting.leaves(conn, room, bytes)
    }
}

/// The regions in which a kind of holder may have payload, the one to try first in front.
fn regions_of(kind: Kind) -> &'static [usize] {
    match kind {
        Kind::User => &[0],
        Kind::Node => &[0, 1],
        Kind::Reserve => &[0, 2, 1],
    }
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

    fn has(&self, conn: ConnId) -> bool {
        self.place_of.contains_key(&conn)
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
        let largest = slot_bytes(payload_max);
        let bytes_max = bytes_max.max(largest);
        let left = match bytes_max / largest {
            LEAVES_MIN.. => (bytes_max >> LEFT_SHIFT).max(largest),
            _ => 0,
        };
        let regions = [bytes_max - 2 * left, left, left].map(Region::new);
        Pool {
            slots: Vec::new(),
            free: Vec::new(),
            regions,
            bytes_peak: 0,
            of_holder_max: (bytes_max >> OF_HOLDER_SHIFT).max(largest),
            of_holders: BTreeMap::new(),
            apart: BTreeMap::new(),
            roomier: Vec::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// All mounts with limits by secrets of this name.
    pub(super) fn node(&mut self, secret: &str) -> Holder {
        let next = self.nodes.len() as u32;
        let number = match self.nodes.get(secret) {
            Some(number) => *number,
            None => *self.nodes.entry(secret.into()).or_insert(next),
        };
        Holder {
            kind: Kind::Node,
            number,
        }
    }

    /// A slot for a payload that the host is about to read from a connection of this holder. If
    /// there is no room, the connection waits.
    pub(super) fn admit(&mut self, conn: ConnId, len: u32, holder: Holder) -> Room {
        let bytes = slot_bytes(len);
        let has_part = holder.kind != Kind::Reserve;
        if has_part {
            let has = self.of_holders.get(&holder).copied().unwrap_or(0);
            if has + bytes > self.of_holder_max {
                self.wait_no_longer(conn);
                self.apart.insert(conn, holder);
                return Room::FullForHolder;
            }
            self.apart.remove(&conn);
        }
        let its = regions_of(holder.kind);
        let regions = &mut self.regions;
        let Some(region) = its.iter().find(|at| regions[**at].has_room(conn, bytes)) else {
            its.iter()
                .for_each(|at| regions[*at].waiting.enter(conn, bytes));
            return Room::Full;
        };
        its.iter().for_each(|at| regions[*at].waiting.leave(conn));
        if has_part {
            *self.of_holders.entry(holder).or_default() += bytes;
        }
        Room::Slot(self.give(conn, bytes, holder, *region))
    }

    /// Where a connection waits.
    pub(super) fn queue_of(&self, conn: ConnId) -> Queue {
        if let Some(holder) = self.apart.get(&conn) {
            return holder.own_queue();
        }
        let waits = |at: usize| self.regions[at].waiting.has(conn);
        let kind = match (waits(1), waits(2)) {
            (_, true) => Kind::Reserve,
            (true, false) => Kind::Node,
            (false, false) => Kind::User,
        };
        Queue(kind, None)
    }

    /// The queue of a holder for whose part connections waited when it got room again. Each once.
    pub(super) fn roomier(&mut self) -> Option<Queue> {
        self.roomier.pop().map(Holder::own_queue)
    }

    /// A slot for a payload that lies in the client's own memory.
    pub(super) fn admit_shared(&mut self, conn: ConnId) -> SlotId {
        self.give(conn, 0, Holder::RESERVE, 0)
    }

    /// Whether a slot's payload lies in the client's own memory.
    pub(super) fn is_shared(&self, slot: SlotId) -> bool {
        self.slots[slot.0 as usize].bytes == 0
    }

    fn give(&mut self, conn: ConnId, bytes: u64, holder: Holder, region: usize) -> SlotId {
        self.regions[region].bytes += bytes;
        self.bytes_peak = self.bytes_peak.max(self.bytes());
        let slot = Slot {
            bytes,
            used: Use::Admitted(conn),
            holder,
            region,
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
        for region in &mut self.regions {
            region.waiting.leave(conn);
        }
        self.apart.remove(&conn);
    }

    /// Frees a slot that the host was reading into from a connection that has ended. One slot a
    /// call; None if there is no more.
    pub(super) fn closed(&mut self, conn: ConnId) -> Option<SlotId> {
        self.wait_no_longer(conn);
        let mut slots = self.slots.iter();
        let at = slots.position(|slot| slot.used == Use::Admitted(conn))?;
        let slot = SlotId(at as u32);
        self.change(slot, Use::Admitted(conn), Use::Free);
        Some(slot)
    }

    /// Bytes in use, the most ever in use, and the limit.
    pub(super) fn usage(&self) -> (u64, u64, u64) {
        let max = self.regions.iter().map(|region| region.bytes_max).sum();
        (self.bytes(), self.bytes_peak, max)
    }

    fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// A holder has so much less.
    fn left_by(&mut self, holder: Holder, bytes: u64) {
        let Some(has) = self.of_holders.get_mut(&holder) else {
            return;
        };
        *has -= bytes;
        if *has == 0 {
            self.of_holders.remove(&holder);
        }
        if !self.apart.is_empty() && !self.roomier.contains(&holder) {
            self.roomier.push(holder);
        }
    }

    fn change(&mut self, slot: SlotId, from: Use, to: Use) -> bool {
        match self.slots.get_mut(slot.0 as usize) {
            Some(entry) if entry.used == from => {
                entry.used = to;
                if to == Use::Free {
                    let (bytes, holder) = (entry.bytes, entry.holder);
                    self.regions[entry.region].bytes -= bytes;
                    self.free.push(slot.0);
                    if holder.kind != Kind::Reserve {
                        self.left_by(holder, bytes);
                    }
                }
                true
            }
            _ => false,
        }
    }
}
