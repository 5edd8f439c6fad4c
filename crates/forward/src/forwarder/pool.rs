//! Accounts for the memory of payload. A payload has a slot of the [`Pool`] from before the host
//! reads it until after the host has sent or written it.

#[cfg(test)]
mod tests;
mod waiting;

use crate::host::{ConnId, SlotId};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;
use tidegate_wire::Request;
pub use waiting::ArrivalNumber;
use waiting::Waiting;

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
    owner: Owner,
    /// The index of the region whose bytes it has.
    region: usize,
    /// How long the request had waited for it.
    waited_ns: u64,
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

    /// Whether it has a part of the pool at most.
    fn has_part(self) -> bool {
        self.kind != Kind::Reserve
    }

    /// A user who is not trusted.
    pub(super) fn user(uid: u32) -> Holder {
        Holder {
            kind: Kind::User,
            number: uid,
        }
    }

    /// The queue of those who wait for this holder's part of the pool.
    fn own_queue(self) -> Queue {
        Queue {
            holder: Some(self.number),
            ..Queue::of(self.kind)
        }
    }
}

/// As part of which application of which holder a payload counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    holder: Holder,
    /// 0 for what is not data.
    app: u64,
}

impl Owner {
    /// Of what takes nothing of the pool.
    const NONE: Owner = Owner {
        holder: Holder::RESERVE,
        app: 0,
    };

    /// Of a request of this holder.
    pub(super) fn of(holder: Holder, request: &Request) -> Owner {
        Owner {
            holder,
            app: request.hints.as_ref().map_or(0, |hints| hints.app),
        }
    }

    pub(super) fn app(self) -> u64 {
        self.app
    }

    /// The queue of those who wait until this application has less of the pool, or others have.
    fn own_queue(self) -> Queue {
        Queue {
            app: Some(self.app),
            ..self.holder.own_queue()
        }
    }
}

/// In which order a connection waits for room in the pool: one for each application, one for each
/// holder that has a part of its own, and one for each kind of holder. Those behind the first of a
/// queue need not be asked for before it has found room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queue {
    kind: Kind,
    holder: Option<u32>,
    app: Option<u64>,
}

impl Queue {
    /// The queues of those who wait for more than a part of their own.
    pub const OF_KINDS: [Queue; 3] = [
        Queue::of(Kind::User),
        Queue::of(Kind::Node),
        Queue::of(Kind::Reserve),
    ];

    /// Of an application of a client that has the reserve.
    #[cfg(test)]
    pub(crate) fn of_app(app: u64) -> Queue {
        Owner {
            holder: Holder::RESERVE,
            app,
        }
        .own_queue()
    }

    /// Whose queue it is, if it is an application's.
    fn owner(self) -> Option<Owner> {
        let holder = Holder {
            kind: self.kind,
            number: self.holder?,
        };
        let app = self.app?;
        Some(Owner { holder, app })
    }

    const fn of(kind: Kind) -> Queue {
        Queue {
            kind,
            holder: None,
            app: None,
        }
    }
}

/// Whether a payload has room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    Slot(SlotId),
    /// The pool is full, or others wait for what is left.
    Full,
    /// The payload's holder, or its application, has as much of the pool as one may have.
    FullForOwner,
}

/// The part of the pool that one holder may have, in powers of two: a quarter.
const OF_HOLDER_SHIFT: u32 = 2;

/// What is left to nodes, and what to clients that have the reserve, in powers of two: a sixteenth.
const LEFT_SHIFT: u32 = 4;

/// A pool of so many payloads of the largest size has something to leave.
const LEAVES_MIN: u64 = 8;

/// How many times as much as what is free one application may have, in powers of two: 8 times. So
/// one application alone leaves a ninth, and `n` of them leave one part in `8 n + 1`.
const OF_FREE_SHIFT: u32 = 3;

/// So many counts of applications may stay that have nothing: to make one again for each request
/// would cost 400 instructions.
const KEPT_MAX: usize = 64;

/// Accounts for the slots of all sessions' payload, so that it never exceeds the pool.
///
/// Connections that find no room wait in order of arrival. A later one gets room only if enough is
/// left for those before it, so small requests do not starve a large one.
///
/// A holder has a part of the pool at most, whatever it does with it: payload that it does not
/// send, or replies that it does not read. Its connections beyond that wait apart, and keep no room
/// from others. All users and nodes together leave some to clients that have the reserve, and all
/// users some to nodes, in regions of their own. Clients that have the reserve may have all.
///
/// An application that has some may have more only up to a multiple of what is still free to its
/// holder (the dynamic thresholds of Choudhury and Hahne, "Dynamic Queue Length Thresholds for
/// Shared-Memory Packet Switches", 1998), and waits apart beyond. So an application that has much
/// under way leaves room to those that come later, and the policy sees their requests: what waits
/// for room is in no order but that of arrival. Who has nothing waits in order of arrival at most.
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
    /// Bytes of each application that has some, and of some that have had.
    of_applications: BTreeMap<Owner, u64>,
    /// Whether the pool is large enough for applications to leave something.
    leaves: bool,
    /// Whether a holder's part is.
    part_leaves: bool,
    /// Connections that wait for their holder's part, or their application's.
    apart: BTreeMap<ConnId, Queue>,
    /// The same by what they wait for.
    apart_of: BTreeMap<Queue, Waiting>,
    /// Holders whose part has room again, for which connections may wait.
    roomier: Vec<Holder>,
    /// After which of `apart_of` to look for one that may have more: since something was freed, the
    /// host was told of those before.
    looked_until: Bound<Queue>,
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

    /// Whether a request may have so many bytes now.
    fn has_room(&self, number: ArrivalNumber, bytes: u64) -> bool {
        let room = self.bytes_max - self.bytes;
        self.waiting.leaves(number, room, bytes)
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
            of_applications: BTreeMap::new(),
            leaves: left > 0,
            part_leaves: (bytes_max >> OF_HOLDER_SHIFT) / largest >= LEAVES_MIN,
            apart: BTreeMap::new(),
            apart_of: BTreeMap::new(),
            roomier: Vec::new(),
            looked_until: Bound::Unbounded,
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

    /// A slot for a payload that the host is about to read from a connection. If there is no room,
    /// the connection waits with the request of this number.
    pub(super) fn admit(
        &mut self,
        conn: ConnId,
        number: ArrivalNumber,
        len: u32,
        owner: Owner,
    ) -> Room {
        let bytes = slot_bytes(len);
        let holder = owner.holder;
        self.no_longer_apart(conn);
        if holder.has_part()
            && (self.is_behind(holder.own_queue(), number)
                || self.of_holder(holder) + bytes > self.of_holder_max)
        {
            return self.waits_apart(conn, holder.own_queue(), number, bytes);
        }
        let has = self.of_applications.get(&owner).copied().unwrap_or(0);
        if self.is_behind(owner.own_queue(), number) || !self.may_have(holder, has, bytes) {
            return self.waits_apart(conn, owner.own_queue(), number, bytes);
        }
        let its = regions_of(holder.kind);
        let regions = &mut self.regions;
        let Some(region) = its.iter().find(|at| regions[**at].has_room(number, bytes)) else {
            its.iter()
                .for_each(|at| regions[*at].waiting.enter(conn, number, bytes));
            return Room::Full;
        };
        for at in its {
            if regions[*at].waiting.leave(conn) {
                self.looked_until = Bound::Unbounded;
            }
        }
        if holder.has_part() {
            *self.of_holders.entry(holder).or_default() += bytes;
        }
        *self.of_applications.entry(owner).or_default() += bytes;
        Room::Slot(self.give(conn, bytes, owner, *region))
    }

    fn of_holder(&self, holder: Holder) -> u64 {
        self.of_holders.get(&holder).copied().unwrap_or(0)
    }

    /// Whether an application of this holder that has `has` bytes may have so many more, if there
    /// is room.
    fn may_have(&self, holder: Holder, has: u64, bytes: u64) -> bool {
        if has == 0 || !self.leaves {
            return true;
        }
        let its = regions_of(holder.kind).iter().map(|at| &self.regions[*at]);
        let free: u64 = its.map(|region| region.bytes_max - region.bytes).sum();
        // Whoever waits in order of arrival waits in the first region, and has nothing yet.
        let mut free = free.saturating_sub(self.regions[0].waiting.bytes);
        if holder.has_part() && self.part_leaves {
            free = free.min(self.of_holder_max - self.of_holder(holder));
        }
        has + bytes <= free.saturating_sub(bytes) << OF_FREE_SHIFT
    }

    /// Whether one that came before a request waits apart in this queue: no request passes those of
    /// its application, or for its holder's part, that came before it.
    fn is_behind(&self, queue: Queue, number: ArrivalNumber) -> bool {
        let first = self.apart_of.get(&queue).and_then(Waiting::first);
        first.is_some_and(|(first, _)| first < number.0)
    }

    /// Puts a connection apart from those that wait in order of arrival.
    fn waits_apart(
        &mut self,
        conn: ConnId,
        queue: Queue,
        number: ArrivalNumber,
        bytes: u64,
    ) -> Room {
        self.leave_order(conn);
        self.apart.insert(conn, queue);
        let its = self.apart_of.entry(queue).or_default();
        its.enter(conn, number, bytes);
        Room::FullForOwner
    }

    fn no_longer_apart(&mut self, conn: ConnId) {
        if let Some(queue) = self.apart.remove(&conn) {
            let its = self.apart_of.get_mut(&queue);
            let its = its.expect("the connection waits there");
            its.leave(conn);
            if its.first().is_none() {
                self.apart_of.remove(&queue);
            }
        }
    }

    /// Where a connection waits.
    pub(super) fn queue_of(&self, conn: ConnId) -> Queue {
        if let Some(queue) = self.apart.get(&conn) {
            return *queue;
        }
        let waits = |at: usize| self.regions[at].waiting.has(conn);
        Queue::of(match (waits(1), waits(2)) {
            (_, true) => Kind::Reserve,
            (true, false) => Kind::Node,
            (false, false) => Kind::User,
        })
    }

    /// The queue of a holder, or of an application, for whose part connections wait and that got
    /// room again. Each once, until something is freed again.
    pub(super) fn roomier(&mut self) -> Option<Queue> {
        if let Some(holder) = self.roomier.pop() {
            return Some(holder.own_queue());
        }
        let rest = (self.looked_until, Bound::Unbounded);
        let mut rest = self.apart_of.range(rest);
        let found = rest.find(|(queue, waiting)| {
            let (Some(owner), Some((_, bytes))) = (queue.owner(), waiting.first()) else {
                return false;
            };
            let has = self.of_applications.get(&owner).copied().unwrap_or(0);
            self.may_have(owner.holder, has, bytes)
        });
        let queue = *found?.0;
        self.looked_until = Bound::Excluded(queue);
        Some(queue)
    }

    /// A slot for a payload that lies in the client's own memory.
    pub(super) fn admit_shared(&mut self, conn: ConnId) -> SlotId {
        self.give(conn, 0, Owner::NONE, 0)
    }

    /// Notes how long a request has waited for its slot.
    pub(super) fn waited(&mut self, slot: SlotId, ns: u64) {
        self.slots[slot.0 as usize].waited_ns = ns;
    }

    /// How long the request that has a slot had waited for it.
    pub(super) fn waited_ns(&self, slot: SlotId) -> u64 {
        let slot = self.slots.get(slot.0 as usize);
        slot.map_or(0, |slot| slot.waited_ns)
    }

    /// Whether a slot's payload lies in the client's own memory.
    pub(super) fn is_shared(&self, slot: SlotId) -> bool {
        self.slots[slot.0 as usize].bytes == 0
    }

    fn give(&mut self, conn: ConnId, bytes: u64, owner: Owner, region: usize) -> SlotId {
        self.regions[region].bytes += bytes;
        self.bytes_peak = self.bytes_peak.max(self.bytes());
        let slot = Slot {
            bytes,
            used: Use::Admitted(conn),
            owner,
            region,
            waited_ns: 0,
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
        self.leave_order(conn);
        self.no_longer_apart(conn);
    }

    /// Removes a connection from those that wait in order of arrival. What they wait for counts as
    /// not free, so there may be more for others.
    fn leave_order(&mut self, conn: ConnId) {
        for region in &mut self.regions {
            if region.waiting.leave(conn) {
                self.looked_until = Bound::Unbounded;
            }
        }
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

    /// An owner has so much less.
    fn left_by(&mut self, owner: Owner, bytes: u64) {
        self.looked_until = Bound::Unbounded;
        lessen(&mut self.of_applications, &owner, bytes, KEPT_MAX);
        let holder = owner.holder;
        if holder.has_part() {
            lessen(&mut self.of_holders, &holder, bytes, 0);
            if !self.apart.is_empty() && !self.roomier.contains(&holder) {
                self.roomier.push(holder);
            }
        }
    }

    fn change(&mut self, slot: SlotId, from: Use, to: Use) -> bool {
        match self.slots.get_mut(slot.0 as usize) {
            Some(entry) if entry.used == from => {
                entry.used = to;
                if to == Use::Free {
                    let (bytes, owner) = (entry.bytes, entry.owner);
                    self.regions[entry.region].bytes -= bytes;
                    self.free.push(slot.0);
                    if bytes > 0 {
                        self.left_by(owner, bytes);
                    }
                }
                true
            }
            _ => false,
        }
    }
}

/// Takes bytes from a count, which goes at 0, but that so many counts may stay.
fn lessen<K: Ord>(counts: &mut BTreeMap<K, u64>, of: &K, bytes: u64, kept_max: usize) {
    if let Some(count) = counts.get_mut(of) {
        *count -= bytes;
        if *count == 0 && counts.len() > kept_max {
            counts.remove(of);
        }
    }
}
