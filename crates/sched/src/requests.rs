//! The requests that a scheduler holds, in slots, and the lists that run through them.
//!
//! Every request has one slot from its arrival until it has finished, found by its id; what
//! concerns one request alone lies there together. Policies keep requests in [`List`]s, whose links
//! go by slot, so moving a request between queues allocates nothing. Links lie apart from the
//! requests: who leaves the middle of a long queue touches its neighbours, and those should not be
//! far away in memory.

use crate::index::{Chained, Heads, NONE};
use crate::types::{Request, RequestId, Time};
use alloc::vec::Vec;
use core::hint::black_box;

/// The number of a slot.
pub(crate) type Slot = u32;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The slot is free.
    Free,
    /// Waits for an overlapping request to finish; the policy does not know it yet.
    Held,
    /// With the policy.
    Queued,
    /// Dispatched.
    Running,
}

/// One slot: three lines of the cache.
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// The request.
    pub(crate) request: Request,
    /// When it arrived.
    pub(crate) arrived: Time,
    /// When the policy got it: later than `arrived` if an overlapping request held it back.
    pub(crate) ready: Time,
    /// Its number in order of arrival, over all requests of this scheduler.
    pub(crate) arrival: u64,
    /// The next slot under the same hash of its id.
    same_hash: Slot,
    /// The slot of its file.
    pub(crate) file: u32,
    /// Its place among the requests of its file.
    pub(crate) file_at: u32,
    /// Its node in the order of overlapping requests, if it needs one.
    pub(crate) node: u32,
    /// For the policy: which of its queues the request is in.
    pub(crate) tag: u32,
    /// The batch it runs in: there are at most 65,536.
    pub(crate) batch: u16,
    /// Where it stands.
    pub(crate) stage: Stage,
}

const _: () = assert!(size_of::<Entry>() == 192);

impl Chained for Entry {
    #[inline]
    fn key(&self) -> u64 {
        self.request.id.0
    }

    #[inline]
    fn next(&self) -> u32 {
        self.same_hash
    }

    #[inline]
    fn next_mut(&mut self) -> &mut u32 {
        &mut self.same_hash
    }
}

#[derive(Clone, Copy)]
struct Links {
    next: Slot,
    prev: Slot,
}

const ALONE: Links = Links {
    next: NONE,
    prev: NONE,
};

/// A queue of requests. A request is in at most one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: Slot,
    tail: Slot,
}

impl List {
    /// An empty list.
    pub(crate) const fn new() -> List {
        List {
            head: NONE,
            tail: NONE,
        }
    }

    /// Whether nothing is in it.
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// All slots.
pub(crate) struct Requests {
    entries: Vec<Entry>,
    /// By slot: neighbours in the policy's list.
    links: Vec<Links>,
    ids: Heads,
    free: Vec<Slot>,
    arrivals: u64,
}

impl core::ops::Index<Slot> for Requests {
    type Output = Entry;

    #[inline]
    fn index(&self, slot: Slot) -> &Entry {
        &self.entries[slot as usize]
    }
}

impl core::ops::IndexMut<Slot> for Requests {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot as usize]
    }
}

impl Requests {
    /// No slots yet; they are made as requests come and kept.
    pub(crate) fn new() -> Requests {
        Requests {
            entries: Vec::new(),
            links: Vec::new(),
            ids: Heads::new(),
            free: Vec::new(),
            arrivals: 0,
        }
    }

    /// The slot of a request, or `NONE`.
    #[inline]
    pub(crate) fn find(&self, id: RequestId) -> Slot {
        self.ids.find(&self.entries, id.0)
    }

    /// Puts a request that arrived now, and whose id is not in use, into a slot, held.
    #[inline(always)]
    pub(crate) fn insert(&mut self, now: Time, request: &Request) -> Slot {
        let entry = Entry {
            request: *request,
            arrived: now,
            ready: now,
            arrival: self.arrivals,
            stage: Stage::Held,
            same_hash: NONE,
            batch: 0,
            file: NONE,
            file_at: NONE,
            node: NONE,
            tag: 0,
        };
        self.arrivals += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                let slot = Slot::try_from(self.entries.len()).expect("queued_max is below 2^32");
                self.entries.push(entry);
                self.links.push(ALONE);
                slot
            }
        };
        self.ids.insert(&mut self.entries, slot);
        slot
    }

    /// Gives the slot of a finished or cancelled request back.
    #[inline(always)]
    pub(crate) fn release(&mut self, slot: Slot) {
        assert!(self[slot].stage != Stage::Free, "a slot was released twice");
        self.ids.remove(&mut self.entries, slot);
        self[slot].stage = Stage::Free;
        self.free.push(slot);
    }

    /// Says that a request will soon be needed: what the memory takes to deliver it passes while
    /// other things are done.
    #[inline]
    pub(crate) fn touch(&self, slot: Slot) {
        let entry = &self.entries[slot as usize];
        // Something of each of its lines.
        black_box(entry.request.offset);
        black_box(entry.request.direction);
        black_box(entry.stage);
        black_box(self.links[slot as usize].next);
    }

    /// As `touch`, of the first request of a list.
    #[inline]
    pub(crate) fn touch_front(&self, list: &List) {
        if list.head != NONE {
            self.touch(list.head);
        }
    }

    /// Says that a request, which is near by now, will soon finish.
    #[inline]
    pub(crate) fn touch_id(&self, slot: Slot) {
        self.ids.touch(self[slot].request.id.0);
    }

    /// The slots at `stage`, in order of arrival. Visits every slot, so not for the data path.
    pub(crate) fn at_stage(&self, stage: Stage) -> Vec<Slot> {
        let slots = 0..self.entries.len() as Slot;
        let mut found: Vec<Slot> = slots.filter(|&slot| self[slot].stage == stage).collect();
        found.sort_unstable_by_key(|&slot| self[slot].arrival);
        found
    }

    /// Slots that were ever made.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Appends a request that is in no list.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, slot: Slot) {
        self.insert_behind(list, self.back(list), slot);
    }

    /// Puts a request that is in no list behind another one of a list; behind `None` is its front.
    #[inline]
    pub(crate) fn insert_behind(&mut self, list: &mut List, other: Option<Slot>, slot: Slot) {
        let prev = other.unwrap_or(NONE);
        let next = other.map_or(list.head, |other| self.links[other as usize].next);
        self.links[slot as usize] = Links { next, prev };
        match prev {
            NONE => list.head = slot,
            _ => self.links[prev as usize].next = slot,
        }
        match next {
            NONE => list.tail = slot,
            _ => self.links[next as usize].prev = slot,
        }
    }

    /// The last request of a list.
    #[inline]
    pub(crate) fn back(&self, list: &List) -> Option<Slot> {
        (list.tail != NONE).then_some(list.tail)
    }

    /// The first request of a list.
    #[inline]
    pub(crate) fn front(&self, list: &List) -> Option<Slot> {
        (list.head != NONE).then_some(list.head)
    }

    /// The request after one that is in a list.
    #[inline]
    pub(crate) fn after(&self, slot: Slot) -> Option<Slot> {
        let next = self.links[slot as usize].next;
        (next != NONE).then_some(next)
    }

    /// Takes a request out of the list that it is in.
    #[inline]
    pub(crate) fn unlink(&mut self, list: &mut List, slot: Slot) {
        let Links { next, prev } = self.links[slot as usize];
        match prev {
            NONE => list.head = next,
            _ => self.links[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            _ => self.links[next as usize].prev = prev,
        }
    }

    /// Takes the first request out of a list.
    #[inline]
    pub(crate) fn pop_front(&mut self, list: &mut List) -> Option<Slot> {
        let slot = self.front(list)?;
        self.unlink(list, slot);
        Some(slot)
    }

    /// Takes the first requests out of a list, as many as there is room for in `into`, and fetches
    /// them all at once. Returns how many there were.
    pub(crate) fn pop_fronts(&mut self, list: &mut List, into: &mut [Slot]) -> usize {
        let mut count = 0;
        while list.head != NONE && count < into.len() {
            into[count] = list.head;
            self.touch(list.head);
            list.head = self.links[list.head as usize].next;
            count += 1;
        }
        match list.head {
            NONE => list.tail = NONE,
            head => self.links[head as usize].prev = NONE,
        }
        count
    }

    /// Appends all of `other` and leaves it empty.
    pub(crate) fn append(&mut self, list: &mut List, other: &mut List) {
        if other.is_empty() {
            return;
        }
        match list.tail {
            NONE => list.head = other.head,
            tail => {
                self.links[tail as usize].next = other.head;
                self.links[other.head as usize].prev = tail;
            }
        }
        list.tail = other.tail;
        (other.head, other.tail) = (NONE, NONE);
    }

    /// Cuts a list behind a request that is in it; returns what follows.
    pub(crate) fn split_behind(&mut self, list: &mut List, slot: Slot) -> List {
        let head = core::mem::replace(&mut self.links[slot as usize].next, NONE);
        let tail = core::mem::replace(&mut list.tail, slot);
        match head {
            NONE => List::new(),
            _ => {
                self.links[head as usize].prev = NONE;
                List { head, tail }
            }
        }
    }
}
