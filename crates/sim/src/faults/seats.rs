//! The seats' locks and reply tables, as the files in `.tidegate` keep them for real processes.

use super::cluster::{Life, Shared};
use tidegate_forward::model::{ModelTable, Switch};

/// How forwarders hold seats.
pub enum Holding {
    /// By locks that cannot be lost.
    OneNode(Seats),
    /// By locks and leases on a back end that nodes share.
    Nodes(Box<Shared>),
}

impl Holding {
    /// The back end that nodes share, if there is one.
    pub fn shared(&mut self) -> Option<&mut Shared> {
        match self {
            Holding::OneNode(_) => None,
            Holding::Nodes(shared) => Some(shared),
        }
    }
}

struct Seat {
    holder: Option<Life>,
    wanted: bool,
    generation: u64,
    table: ModelTable,
}

/// All seats of an export.
pub struct Seats(Vec<Seat>);

impl Seats {
    /// Seats that nobody holds.
    pub fn new(count: u16) -> Seats {
        let seat = |_| Seat {
            holder: None,
            wanted: false,
            generation: 0,
            table: ModelTable::new(&Switch::new()),
        };
        Seats((0..count).map(seat).collect())
    }

    /// Takes a free seat, unless its owner waits for it: its new generation, and its table as the
    /// process of `switch` sees it.
    pub fn take(&mut self, seat: u16, life: Life, switch: &Switch) -> Option<(u64, ModelTable)> {
        let own = usize::from(seat) == life.0;
        let seat = &mut self.0[usize::from(seat)];
        if seat.holder.is_some() || (seat.wanted && !own) {
            return None;
        }
        seat.holder = Some(life);
        seat.generation += 1;
        Some((seat.generation, seat.table.seen_by(switch)))
    }

    /// Notes whether the owner waits for its seat.
    pub fn want(&mut self, seat: u16, wanted: bool) {
        self.0[usize::from(seat)].wanted = wanted;
    }

    /// Seats that a process holds although their owner waits for them.
    pub fn to_give_back(&self, life: Life) -> Vec<u16> {
        let held = |seat: &&Seat| seat.holder == Some(life) && seat.wanted;
        let index = |(i, seat): (usize, &Seat)| held(&seat).then_some(i as u16);
        self.0.iter().enumerate().filter_map(index).collect()
    }

    /// Releases a seat.
    pub fn release(&mut self, seat: u16, life: Life) {
        let seat = &mut self.0[usize::from(seat)];
        assert_eq!(seat.holder, Some(life), "a seat is released by its holder");
        seat.holder = None;
    }

    /// Releases the locks of a process that died, as the kernel does.
    pub fn died(&mut self, life: Life) {
        for (index, seat) in self.0.iter_mut().enumerate() {
            if seat.holder == Some(life) {
                seat.holder = None;
            }
            if index == life.0 {
                seat.wanted = false;
            }
        }
    }
}
