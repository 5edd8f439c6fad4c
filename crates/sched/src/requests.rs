//! The table of requests that a scheduler holds, and the lists that run through them.
//!
//! Every request has one entry from its arrival until it has finished, found by its id or its
//! index. What concerns one request alone lies in that entry. Policies keep requests in [`List`]s.
//! Lists link entries by index, so a move from queue to queue allocates nothing. The links lie
//! apart from the entries: to unlink a request from the middle of a long queue changes its
//! neighbours, which are then close by in memory.

use crate::hash_table::{Buckets, Chained, NONE};
use crate::types::{Request, RequestId, Time};
use alloc::vec::Vec;
use core::hint::black_box;

/// The place of a request in the table [`Requests`].
pub(crate) type Index = u32;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The entry is free.
    Free,
    /// Waits for an overlapping request to finish; the policy does not know it yet.
    Held,
    /// With the policy.
    Queued,
    /// Dispatched.
    Running,
}

/// One entry of the table: three lines of the cache.
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
    /// The next request under the same hash of its id.
    same_hash: Index,
    /// The number of its file.
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
    next: Index,
    prev: Index,
}

const ALONE: Links = Links {
    next: NONE,
    prev: NONE,
};

/// A queue of requests. A request is in at most one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: Index,
    tail: Index,
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

/// The table of requests.
pub(crate) struct Requests {
    entries: Vec<Entry>,
    /// By request: neighbours in the policy's list.
    links: Vec<Links>,
    ids: Buckets,
    free: Vec<Index>,
    arrivals: u64,
}

impl core::ops::Index<Index> for Requests {
    type Output = Entry;

    #[inline]
    fn index(&self, index: Index) -> &Entry {
        &self.entries[index as usize]
    }
}

impl core::ops::IndexMut<Index> for Requests {
    #[inline]
    fn index_mut(&mut self, index: Index) -> &mut Entry {
        &mut self.entries[index as usize]
    }
}

impl Requests {
    /// An empty table. It grows as requests come, and never shrinks.
    pub(crate) fn new() -> Requests {
        Requests {
            entries: Vec::new(),
            links: Vec::new(),
            ids: Buckets::new(),
            free: Vec::new(),
            arrivals: 0,
        }
    }

    /// The index of a request, or `NONE`.
    #[inline]
    pub(crate) fn find(&self, id: RequestId) -> Index {
        self.ids.find(&self.entries, id.0)
    }

    /// Adds a request that arrived now and whose id is not in use. Its stage is held.
    #[inline(always)]
    pub(crate) fn insert(&mut self, now: Time, request: &Request) -> Index {
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
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                let index = Index::try_from(self.entries.len()).expect("queued_max is below 2^32");
                self.entries.push(entry);
                self.links.push(ALONE);
                index
            }
        };
        self.ids.insert(&mut self.entries, index);
        index
    }

    /// Frees the entry of a finished or cancelled request.
    #[inline(always)]
    pub(crate) fn release(&mut self, index: Index) {
        assert!(
            self[index].stage != Stage::Free,
            "a request was released twice"
        );
        self.ids.remove(&mut self.entries, index);
        self[index].stage = Stage::Free;
        self.free.push(index);
    }

    /// Brings a request that will soon be needed into the cache, while other things are done.
    #[inline]
    pub(crate) fn prefetch(&self, index: Index) {
        let entry = &self.entries[index as usize];
        // Something of each of its lines.
        black_box(entry.request.offset);
        black_box(entry.request.direction);
        black_box(entry.stage);
        black_box(self.links[index as usize].next);
    }

    /// As `prefetch`, of the first request of a list.
    #[inline]
    pub(crate) fn prefetch_front(&self, list: &List) {
        if list.head != NONE {
            self.prefetch(list.head);
        }
    }

    /// Brings what finds a request by its id into the cache. The request is there already.
    #[inline]
    pub(crate) fn prefetch_id(&self, index: Index) {
        self.ids.prefetch(self[index].request.id.0);
    }

    /// The requests at `stage`, in order of arrival. Visits the whole table, so not for the data
    /// path.
    pub(crate) fn at_stage(&self, stage: Stage) -> Vec<Index> {
        let indices = 0..self.entries.len() as Index;
        let mut found: Vec<Index> = indices
            .filter(|&index| self[index].stage == stage)
            .collect();
        found.sort_unstable_by_key(|&index| self[index].arrival);
        found
    }

    /// Entries that were ever made.
    #[cfg(test)]
    pub(crate) fn entries_made(&self) -> usize {
        self.entries.len()
    }

    /// Appends a request that is in no list.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, index: Index) {
        self.insert_behind(list, self.back(list), index);
    }

    /// Puts a request that is in no list behind another one of a list; behind `None` is its front.
    #[inline]
    pub(crate) fn insert_behind(&mut self, list: &mut List, other: Option<Index>, index: Index) {
        let prev = other.unwrap_or(NONE);
        let next = other.map_or(list.head, |other| self.links[other as usize].next);
        self.links[index as usize] = Links { next, prev };
        match prev {
            NONE => list.head = index,
            _ => self.links[prev as usize].next = index,
        }
        match next {
            NONE => list.tail = index,
            _ => self.links[next as usize].prev = index,
        }
    }

    /// The last request of a list.
    #[inline]
    pub(crate) fn back(&self, list: &List) -> Option<Index> {
        (list.tail != NONE).then_some(list.tail)
    }

    /// The first request of a list.
    #[inline]
    pub(crate) fn front(&self, list: &List) -> Option<Index> {
        (list.head != NONE).then_some(list.head)
    }

    /// The request after one that is in a list.
    #[inline]
    pub(crate) fn after(&self, index: Index) -> Option<Index> {
        let next = self.links[index as usize].next;
        (next != NONE).then_some(next)
    }

    /// Takes a request out of the list that it is in.
    #[inline]
    pub(crate) fn unlink(&mut self, list: &mut List, index: Index) {
        let Links { next, prev } = self.links[index as usize];
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
    pub(crate) fn pop_front(&mut self, list: &mut List) -> Option<Index> {
        let index = self.front(list)?;
        self.unlink(list, index);
        Some(index)
    }

    /// Takes the first requests out of a list, as many as there is room for in `into`, and fetches
    /// them all at once. Returns how many there were.
    pub(crate) fn pop_fronts(&mut self, list: &mut List, into: &mut [Index]) -> usize {
        let mut count = 0;
        while list.head != NONE && count < into.len() {
            into[count] = list.head;
            self.prefetch(list.head);
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
    pub(crate) fn split_behind(&mut self, list: &mut List, index: Index) -> List {
        let head = core::mem::replace(&mut self.links[index as usize].next, NONE);
        let tail = core::mem::replace(&mut list.tail, index);
        match head {
            NONE => List::new(),
            _ => {
                self.links[head as usize].prev = NONE;
                List { head, tail }
            }
        }
    }
}
