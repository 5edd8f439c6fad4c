//! The seats of a simulated export: who holds them, their generations and reply tables.

use super::{Event, World};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_forward::{Input, SEGMENT_BYTES, SeatTable};

/// How long an owner waits before it asks again for a seat that somebody holds.
const SEAT_RETRY_NS: u64 = 20_000_000;
/// How often a stand-in looks whether the owner is back.
const SEAT_LOOK_NS: u64 = 100_000_000;

/// Bytes that are stored together.
const PAGE: usize = 256;

type Pages = BTreeMap<u32, Box<[u8; PAGE]>>;

/// A reply table in which only pages that are not zero take memory: a thousand forwarders have one
/// each.
#[derive(Clone, Default)]
pub struct SparseTable(Arc<Mutex<Pages>>);

impl SparseTable {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Nothing here is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `piece` with each page that `len` bytes from `at` on touch: its number, where in it, and
/// which of the bytes.
fn by_page(at: usize, len: usize, mut piece: impl FnMut(u32, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let (page, from) = ((at + done) / PAGE, (at + done) % PAGE);
        let part = (PAGE - from).min(len - done);
        piece(page as u32, from, done..done + part);
        done += part;
    }
}

impl SeatTable for SparseTable {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        let pages = self.pages();
        by_page(at, bytes.len(), |page, from, range| {
            let into = &mut bytes[range];
            match pages.get(&page) {
                Some(page) => into.copy_from_slice(&page[from..from + into.len()]),
                None => into.fill(0),
            }
        });
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let mut pages = self.pages();
        by_page(at, bytes.len(), |page, from, range| {
            let bytes = &bytes[range];
            if let Some(page) = pages.get_mut(&page) {
                page[from..from + bytes.len()].copy_from_slice(bytes);
            } else if bytes.iter().any(|byte| *byte != 0) {
                let page = pages.entry(page).or_insert_with(|| Box::new([0; PAGE]));
                page[from..from + bytes.len()].copy_from_slice(bytes);
            }
        });
    }

    fn grow(&self) -> bool {
        // As many clients as a segment has room for is what can be simulated.
        false
    }

    fn len(&self) -> usize {
        SEGMENT_BYTES
    }
}

#[derive(Clone, Default)]
struct Seat {
    holder: Option<usize>,
    wanted: bool,
    generation: u64,
    table: SparseTable,
}

/// All seats of an export.
pub struct Seats(Vec<Seat>);

impl Seats {
    /// Seats that nobody holds.
    pub fn new(count: usize) -> Seats {
        Seats((0..count).map(|_| Seat::default()).collect())
    }

    /// Takes a free seat, unless its owner waits for it: its new generation and its table.
    pub fn take(&mut self, seat: u16, forwarder: usize) -> Option<(u64, SparseTable)> {
        let own = usize::from(seat) == forwarder;
        let seat = &mut self.0[usize::from(seat)];
        if seat.holder.is_some() || (seat.wanted && !own) {
            seat.wanted |= own;
            return None;
        }
        seat.holder = Some(forwarder);
        seat.wanted &= !own;
        seat.generation += 1;
        Some((seat.generation, seat.table.clone()))
    }

    /// The stand-in that holds the seat, if the owner waits for it.
    pub fn stand_in(&self, seat: u16) -> Option<usize> {
        let seat = &self.0[usize::from(seat)];
        seat.holder.filter(|_| seat.wanted)
    }

    /// Releases a seat.
    pub fn release(&mut self, seat: u16, forwarder: usize) {
        let seat = &mut self.0[usize::from(seat)];
        assert_eq!(
            seat.holder,
            Some(forwarder),
            "a seat is released by its holder"
        );
        seat.holder = None;
    }

    /// Releases the locks of a forwarder that died.
    pub fn died(&mut self, forwarder: usize) {
        for (index, seat) in self.0.iter_mut().enumerate() {
            if seat.holder == Some(forwarder) {
                seat.holder = None;
            }
            seat.wanted &= index != forwarder;
        }
    }
}

impl World {
    /// A forwarder asks for a seat.
    pub(super) fn take_seat(&mut self, forwarder: u32, seat: u16) {
        let now = self.now();
        let index = forwarder as usize;
        let life = self.hosts[index].life;
        let own = usize::from(seat) == index;
        match self.seats.take(seat, index) {
            Some((generation, table)) => {
                let table = std::sync::Arc::new(table);
                let input = Input::SeatTaken {
                    seat,
                    generation,
                    table,
                };
                self.hosts[index].tell(now, input);
            }
            None if own => {
                if let Some(stand_in) = self.seats.stand_in(seat) {
                    let look = Event::GiveBack {
                        forwarder: stand_in as u32,
                        life: self.hosts[stand_in].life,
                        seat,
                    };
                    self.events.push(now + SEAT_LOOK_NS, look);
                }
                let again = Event::TakeSeat {
                    forwarder,
                    life,
                    seat,
                };
                self.events.push(now + SEAT_RETRY_NS, again);
            }
            None => self.hosts[index].tell(now, Input::SeatRefused { seat }),
        }
    }

    /// Has a stand-in give up a seat, because the owner is back.
    pub(super) fn give_back(&mut self, forwarder: u32, seat: u16) {
        if self.seats.stand_in(seat) == Some(forwarder as usize) {
            let now = self.now();
            self.hosts[forwarder as usize].tell(now, Input::SeatWanted { seat });
            self.pump_host(forwarder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_as_it_was_stored_and_zeros_take_no_room() {
        let table = SparseTable::default();
        table.store(1000, &[0; 4096]);
        assert!(table.pages().is_empty());
        table.store(PAGE - 2, &[1, 2, 3, 4]);
        let mut read = [9; 6];
        table.load(PAGE - 3, &mut read);
        assert_eq!(read, [0, 1, 2, 3, 4, 0]);
        assert_eq!(table.pages().len(), 2);
        table.store(PAGE, &[0, 0]);
        table.load(PAGE - 3, &mut read);
        assert_eq!(read, [0, 1, 2, 0, 0, 0]);
    }

    #[test]
    fn an_owner_that_waits_gets_its_seat_back() {
        let mut seats = Seats::new(2);
        assert_eq!(seats.take(0, 1).map(|(generation, _)| generation), Some(1));
        assert_eq!(seats.stand_in(0), None);
        assert!(seats.take(0, 0).is_none());
        assert_eq!(seats.stand_in(0), Some(1));
        seats.release(0, 1);
        assert!(seats.take(0, 1).is_none());
        assert_eq!(seats.take(0, 0).map(|(generation, _)| generation), Some(2));
        seats.died(0);
        assert!(seats.take(0, 1).is_some());
    }
}
