//! Takes seats for the forwarder and releases them. It tries for the forwarder's own seat until it
//! holds it, and for another seat while the owner of that seat is away. Where one node has the back
//! end, the loop's thread does this, by locks. Where several nodes have it, a separate thread does
//! this, by leases.

use crate::seats::{LeaseKeeper, Seats, SeatsError, TakenSeat, sweep_if_settled};
use crate::storage::PosixFiles;
use crate::storage::posix::dead;
use std::collections::BTreeMap;
use tidegate_forward::Input;
use tidegate_sched::Time;
use tracing::{info, warn};

/// How long after one try for the own seat the next one follows while a stand-in holds it, in ns.
const TRY_NS: u64 = 50_000_000;
/// How often to look whether the owner of a held seat is back, in ns.
const LOOK_NS: u64 = 100_000_000;

/// The seats, as the forwarder's loop uses them.
pub enum SeatKeeper {
    /// Seats held by locks of this node. A process cannot lose them while it runs.
    Locks(LockKeeper),
    /// Seats held by locks and leases, on a back end that several nodes use.
    Leases(LeaseKeeper),
}

/// Seats held by locks alone. Its calls are short, except for writing a seat's new generation to
/// the device, which is rare.
pub struct LockKeeper {
    seats: Box<Seats>,
    files: PosixFiles,
    own: u16,
    /// Whether the forwarder wants its own seat and does not hold it yet.
    awaits_own: bool,
    /// Seats of other forwarders held here, and for each whether the forwarder knows that the owner
    /// is back.
    foreign: BTreeMap<u16, bool>,
    turn_at: Option<Time>,
    /// Why the forwarder cannot go on: the mount is dead, or another mount of the export is in use.
    failure: Option<Box<str>>,
    trouble: Box<Trouble>,
}

/// Why the own seat could not be taken at the last try.
struct Trouble {
    text: Option<String>,
    /// Whether the forwarder knows it.
    is_told: bool,
}

impl SeatKeeper {
    /// When to look at the seats again.
    pub fn wake_at(&self) -> Option<Time> {
        match self {
            SeatKeeper::Locks(locks) => locks.turn_at,
            SeatKeeper::Leases(_) => None,
        }
    }

    /// Releases a seat.
    pub fn release(&mut self, seat: u16) {
        match self {
            SeatKeeper::Locks(locks) => locks.release(seat),
            SeatKeeper::Leases(leases) => leases.release(seat),
        }
    }

    /// Notes that the clients of a seat have reclaimed their open files. The seat's other hidden
    /// files may be removed.
    pub fn reclaimed(&self, seat: u16) {
        match self {
            SeatKeeper::Locks(locks) => locks.reclaimed(seat),
            SeatKeeper::Leases(leases) => leases.reclaimed(seat),
        }
    }

    /// Why the forwarder cannot go on, or None.
    pub fn failure(&self) -> Option<String> {
        match self {
            SeatKeeper::Locks(locks) => locks.failure.as_deref().map(str::to_string),
            SeatKeeper::Leases(leases) => leases.failure(),
        }
    }

    /// Tries to take a seat. Returns the result for the forwarder, or None if it is not known yet.
    pub fn take(&mut self, now: Time, seat: u16) -> Option<Input> {
        match self {
            SeatKeeper::Locks(locks) => locks.take(now, seat),
            SeatKeeper::Leases(leases) => {
                leases.take(seat);
                None
            }
        }
    }

    /// Changes of the seats since the last call, as input for the forwarder.
    pub fn turn(&mut self, now: Time) -> Vec<Input> {
        match self {
            SeatKeeper::Locks(locks) => locks.turn(now),
            SeatKeeper::Leases(leases) => leases.inputs(),
        }
    }
}

impl LockKeeper {
    /// A keeper that holds no seat yet.
    pub fn new(seats: Seats, files: PosixFiles, own: u16) -> LockKeeper {
        let foreign = BTreeMap::new();
        LockKeeper {
            seats: Box::new(seats),
            files,
            own,
            awaits_own: false,
            foreign,
            turn_at: None,
            failure: None,
            trouble: Box::new(Trouble {
                text: None,
                is_told: true,
            }),
        }
    }

    fn release(&mut self, seat: u16) {
        self.seats.release(seat);
        self.files.seat_released(seat);
        self.foreign.remove(&seat);
        info!(seat, "seat released");
    }

    fn reclaimed(&self, seat: u16) {
        sweep_if_settled(&self.files, seat, self.seats.settle(seat));
    }

    fn take(&mut self, now: Time, seat: u16) -> Option<Input> {
        let tried = self.seats.try_take(seat);
        if seat == self.own {
            self.note(tried.as_ref().err().map(SeatsError::to_string));
        }
        match tried {
            Ok(Some(TakenSeat {
                seat,
                generation,
                table,
            })) => {
                info!(seat, generation, "seat taken");
                if seat == self.own {
                    self.awaits_own = false;
                } else {
                    self.foreign.insert(seat, false);
                    self.turn_by(now + LOOK_NS);
                }
                return Some(Input::SeatTaken {
                    seat,
                    generation,
                    table,
                });
            }
            Ok(None) if seat == self.own && !self.awaits_own => {
                info!(
                    seat,
                    "another forwarder holds the seat of this one; waiting until it lets go"
                );
            }
            Ok(None) => {}
            Err(error) => {
                if seat != self.own || !self.awaits_own {
                    warn!(seat, %error, "seat not taken");
                }
                let failure = match error {
                    SeatsError::Elsewhere { .. } => Some(error.to_string()),
                    _ => dead::proof(&self.files).map(|error| dead::words(&error)),
                };
                self.failure = failure.map(String::into_boxed_str);
            }
        }
        if seat != self.own {
            return Some(Input::SeatRefused { seat });
        }
        if !self.awaits_own
            && let Err(error) = self.seats.want(seat)
        {
            warn!(seat, %error, "the stand-in cannot be told that its owner is back");
        }
        self.awaits_own = true;
        self.turn_by(now + TRY_NS);
        None
    }

    /// Notes why the own seat could not be taken, for the forwarder's status.
    fn note(&mut self, trouble: Option<String>) {
        if self.trouble.text != trouble {
            *self.trouble = Trouble {
                text: trouble,
                is_told: false,
            };
        }
    }

    /// Changes of the seats, if it is time to look.
    fn turn(&mut self, now: Time) -> Vec<Input> {
        if self.turn_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.turn_at = None;
        let mut inputs = Vec::new();
        if self.awaits_own {
            inputs.extend(self.take(now, self.own));
        }
        if !std::mem::replace(&mut self.trouble.is_told, true) {
            let trouble = self.trouble.text.as_deref();
            inputs.push(Input::BackEnd(trouble.map(Box::from)));
        }
        for (seat, told) in self.foreign.iter_mut().filter(|(_, told)| !**told) {
            if self.seats.wanted(*seat) {
                *told = true;
                info!(seat, "the owner of a seat is back");
                inputs.push(Input::SeatWanted { seat: *seat });
            }
        }
        if self.foreign.values().any(|told| !told) {
            self.turn_by(now + LOOK_NS);
        }
        inputs
    }

    fn turn_by(&mut self, at: Time) {
        self.turn_at = Some(self.turn_at.map_or(at, |earlier| earlier.min(at)));
    }
}
