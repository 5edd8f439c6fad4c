//! Takes seats for the forwarder and lets them go: its own until it has it, others while their
//! owner is away. On one node the loop's thread does so itself, by locks; on several a thread does,
//! by leases.

use crate::seats::{LeaseKeeper, Seats, SeatsError, TakenSeat, sweep_if_settled};
use crate::storage::{PosixFiles, dead};
use std::collections::BTreeMap;
use tidegate_forward::Input;
use tidegate_sched::Time;
use tracing::{info, warn};

/// Between two tries for the own seat while a stand-in has it.
const TRY_NS: u64 = 50_000_000;
/// Between two looks at whether an owner is back.
const LOOK_NS: u64 = 100_000_000;

/// The seats as the forwarder's loop sees them.
pub enum SeatKeeper {
    /// By locks of this node, which cannot be lost.
    Locks(LockKeeper),
    /// By locks and leases of a back end that other nodes use too.
    Leases(LeaseKeeper),
}

/// Seats by locks alone. Its calls are short, but for the flush of a seat's new generation, which
/// is rare.
pub struct LockKeeper {
    seats: Seats,
    files: PosixFiles,
    own: u16,
    /// The own seat was asked for and is not had yet.
    awaits_own: bool,
    /// Seats of others held here, and whether the core knows that the owner is back.
    foreign: BTreeMap<u16, bool>,
    turn_at: Option<Time>,
    /// Why the forwarder cannot go on: the mount is dead, or it is not the only one.
    failure: Option<String>,
}

impl SeatKeeper {
    /// When the seats are to be looked at again.
    pub fn wake_at(&self) -> Option<Time> {
        match self {
            SeatKeeper::Locks(locks) => locks.turn_at,
            SeatKeeper::Leases(_) => None,
        }
    }

    /// Lets a seat go.
    pub fn release(&mut self, seat: u16) {
        match self {
            SeatKeeper::Locks(locks) => locks.release(seat),
            SeatKeeper::Leases(leases) => leases.release(seat),
        }
    }

    /// The clients of a seat have told what they have open: the rest of its hidden files may go.
    pub fn reclaimed(&self, seat: u16) {
        match self {
            SeatKeeper::Locks(locks) => locks.reclaimed(seat),
            SeatKeeper::Leases(leases) => leases.reclaimed(seat),
        }
    }

    /// Why the forwarder cannot go on, if so.
    pub fn failure(&self) -> Option<String> {
        match self {
            SeatKeeper::Locks(locks) => locks.failure.clone(),
            SeatKeeper::Leases(leases) => leases.failure(),
        }
    }

    /// Tries to take a seat; None: nothing to say yet.
    pub fn take(&mut self, now: Time, seat: u16) -> Option<Input> {
        match self {
            SeatKeeper::Locks(locks) => locks.take(now, seat),
            SeatKeeper::Leases(leases) => {
                leases.take(seat);
                None
            }
        }
    }

    /// What has changed.
    pub fn turn(&mut self, now: Time) -> Vec<Input> {
        match self {
            SeatKeeper::Locks(locks) => locks.turn(now),
            SeatKeeper::Leases(leases) => leases.inputs(),
        }
    }
}

impl LockKeeper {
    /// Nothing is held yet.
    pub fn new(seats: Seats, files: PosixFiles, own: u16) -> LockKeeper {
        let foreign = BTreeMap::new();
        LockKeeper {
            seats,
            files,
            own,
            awaits_own: false,
            foreign,
            turn_at: None,
            failure: None,
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
        match self.seats.try_take(seat) {
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
            Ok(None) => {}
            Err(error) => {
                warn!(seat, %error, "seat not taken");
                self.failure = match error {
                    SeatsError::Elsewhere { .. } => Some(error.to_string()),
                    _ => dead::proof(&self.files).map(|error| dead::words(&error)),
                };
            }
        }
        if seat != self.own {
            return Some(Input::SeatRefused { seat });
        }
        if !self.awaits_own {
            info!(
                seat,
                "another forwarder holds the seat of this one; waiting until it lets go"
            );
            if let Err(error) = self.seats.want(seat) {
                warn!(seat, %error, "the stand-in cannot be told that its owner is back");
            }
        }
        self.awaits_own = true;
        self.turn_by(now + TRY_NS);
        None
    }

    /// What has changed, when it is time to look.
    fn turn(&mut self, now: Time) -> Vec<Input> {
        if self.turn_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.turn_at = None;
        let mut inputs = Vec::new();
        if self.awaits_own {
            inputs.extend(self.take(now, self.own));
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
