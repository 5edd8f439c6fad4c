//! How a forwarder's host holds its seats on a back end that several nodes share: by lock and
//! lease, as the server does (`crates/server/src/seats/leased.rs`), with the same rules
//! ([`tidegate_forward::lease`]).

use super::clock::Clock;
use super::cluster::{LeaseFile, Life, Shared};
use super::plan::Mutant;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_forward::lease::{LeaseRecord, LeaseWatch, serves_until};
use tidegate_forward::model::{PersistedTable, Switch, TableFence, TableFile};
use tidegate_forward::{Forwarder, Input};
use tidegate_sched::Time;

const MS: u64 = 1_000_000;
/// Time between two looks at what may be due, ns.
pub const LOOK_NS: u64 = 10 * MS;

struct Held {
    generation: u64,
    renewals: u64,
    table: Arc<PersistedTable>,
    lost: bool,
}

struct Making {
    generation: u64,
    began: Time,
    table: Option<PersistedTable>,
}

struct Renewal {
    began: Time,
    checked: Option<Vec<u16>>,
}

/// A step of a call to the back end, which takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next step of taking a seat.
    Take(u16),
    /// The next step of renewing the lease.
    Renew,
}

/// The leases of a process, as its host knows them.
pub struct Keeper {
    life: Life,
    clock: Clock,
    rng: Rng,
    ttl_ns: u64,
    switch: Switch,
    /// The fence that jobs check.
    pub fence: TableFence,
    held: BTreeMap<u16, Held>,
    /// Seats that the core has asked for.
    asked: BTreeMap<u16, LeaseWatch>,
    making: BTreeMap<u16, Making>,
    renewal: Option<Renewal>,
    renew_at: Time,
    until: Time,
    /// Calls that wait for the back end to be reached again.
    hanging: Vec<Step>,
    /// Locks that the host could not release yet.
    to_unlock: Vec<u16>,
    /// Calls that the host has begun, and how long each takes, ns.
    pub begun: Vec<(Step, u64)>,
}

impl Keeper {
    /// A keeper that holds no seat.
    pub fn new(life: Life, clock: Clock, ttl_ns: u64, switch: Switch, rng: Rng) -> Keeper {
        Keeper {
            life,
            clock,
            rng,
            ttl_ns,
            switch,
            fence: TableFence::default(),
            held: BTreeMap::new(),
            asked: BTreeMap::new(),
            making: BTreeMap::new(),
            renewal: None,
            renew_at: Time(0),
            // As a fence that was told nothing.
            until: Time(u64::MAX),
            hanging: Vec::new(),
            to_unlock: Vec::new(),
            begun: Vec::new(),
        }
    }

    fn own(&self, seat: u16) -> bool {
        usize::from(seat) == self.life.0
    }

    /// The core asks for a seat.
    pub fn ask(&mut self, now: u64, seat: u16, shared: &mut Shared, core: &mut Forwarder) {
        self.asked.entry(seat).or_default();
        self.attempt(now, seat, shared, core);
    }

    /// Does what is due.
    pub fn look(&mut self, now: u64, shared: &mut Shared, core: &mut Forwarder) {
        if shared.reaches(self.life.0) {
            shared.ask_holders(self.life.0);
        }
        for seat in self.asked.keys().copied().collect::<Vec<_>>() {
            self.attempt(now, seat, shared, core);
        }
        for (seat, held) in &self.held {
            if !held.lost && !self.own(*seat) && shared.is_wanted(*seat) {
                let input = Input::SeatWanted { seat: *seat };
                core.handle(self.clock.shows(now), input);
            }
        }
        let time = self.clock.shows(now);
        let holds = self.held.values().any(|held| !held.lost);
        let idle = self.renewal.is_none() && self.making.is_empty();
        if holds && idle && time >= self.renew_at && !self.lapsed(time) {
            self.renew_at = time + self.ttl_ns / 5;
            self.renewal = Some(Renewal {
                began: time,
                checked: None,
            });
            self.begin(Step::Renew);
        }
    }

    /// Begins a call of the host to the back end; now and then one takes long.
    fn begin(&mut self, step: Step) {
        let ns = match self.rng.one_in(12) {
            true => self.rng.between(0, self.ttl_ns / 2),
            false => self.rng.between(MS / 5, 4 * MS),
        };
        self.begun.push((step, ns));
    }

    fn lapsed(&self, time: Time) -> bool {
        !self.held.is_empty() && time >= self.until
    }

    /// Whether the fence forbids jobs to begin.
    pub fn is_closed(&self, now: u64, shared: &Shared) -> bool {
        !shared.lacks(Mutant::NoFence) && self.clock.shows(now) >= self.until
    }

    fn attempt(&mut self, now: u64, seat: u16, shared: &mut Shared, core: &mut Forwarder) {
        let time = self.clock.shows(now);
        let cut = !shared.reaches(self.life.0);
        // One thread makes these calls, one after the other.
        let busy =
            !self.making.is_empty() || self.renewal.is_some() || self.to_unlock.contains(&seat);
        if busy || cut && self.own(seat) {
            return;
        }
        let wanted = !self.own(seat) && shared.is_wanted(seat);
        let held = self.held.contains_key(&seat) || self.lapsed(time);
        if wanted || held || cut || !self.try_lock(seat, shared) {
            return self.refused(now, seat, shared, core);
        }
        let last = shared.newest(seat, self.life.0);
        let record = last.as_ref().map(|file| LeaseRecord {
            // Of a process of its own node a host sees that it is dead.
            free: file.record.free
                || file.life.0 == self.life.0
                    && file.life != self.life
                    && file.boot == shared.boot(self.life.0),
            ..file.record
        });
        let watch = self.asked.get_mut(&seat).expect("it was asked for");
        let waited = watch.may_take(time, record, self.ttl_ns) || shared.lacks(Mutant::NoWait);
        if !waited {
            shared.unlock(seat, self.life);
            if self.own(seat) {
                shared.want(seat, true);
            }
            return;
        }
        let file = LeaseFile {
            record: LeaseRecord {
                generation: 0,
                holder: (self.life.0 as u64) << 32 | u64::from(self.life.1),
                renewals: 0,
                ttl_ns: self.ttl_ns,
                free: false,
            },
            life: self.life,
            boot: shared.boot(self.life.0),
            complete: false,
            table: TableFile::default(),
        };
        let making = Making {
            generation: shared.make(seat, file),
            began: time,
            table: None,
        };
        self.making.insert(seat, making);
        self.begin(Step::Take(seat));
    }

    fn try_lock(&mut self, seat: u16, shared: &mut Shared) -> bool {
        if shared.lock(seat, self.life) {
            return true;
        }
        if let Some(watch) = self.asked.get_mut(&seat) {
            *watch = LeaseWatch::default();
        }
        false
    }

    fn refused(&mut self, now: u64, seat: u16, shared: &mut Shared, core: &mut Forwarder) {
        if self.own(seat) {
            shared.want(seat, true);
            return;
        }
        self.asked.remove(&seat);
        core.handle(self.clock.shows(now), Input::SeatRefused { seat });
    }

    /// Carries a call out at the back end.
    pub fn step(&mut self, now: u64, step: Step, shared: &mut Shared, core: &mut Forwarder) {
        if !shared.reaches(self.life.0) {
            self.hanging.push(step);
            return;
        }
        match step {
            Step::Take(seat) => self.take_step(now, seat, shared, core),
            Step::Renew => self.renew_step(now, shared, core),
        }
    }

    fn take_step(&mut self, now: u64, seat: u16, shared: &mut Shared, core: &mut Forwarder) {
        let Some(mut making) = self.making.remove(&seat) else {
            return;
        };
        let generation = making.generation;
        let Some(file) = shared.file(seat, generation).map(|file| file.table.clone()) else {
            return self.not_taken(now, seat, shared, core);
        };
        let Some(table) = making.table.take() else {
            let last = shared.last_table(seat, self.life.0);
            // It is written under the lease that it is for.
            let fence = TableFence::default();
            let table = PersistedTable::take_over(&self.switch, file, fence, last.as_ref());
            making.table = Some(table);
            self.making.insert(seat, making);
            return self.begin(Step::Take(seat));
        };
        let until = serves_until(making.began, self.ttl_ns);
        let time = self.clock.shows(now);
        if table.write(true).is_err() || !shared.is_locked(seat) || time >= until {
            return self.not_taken(now, seat, shared, core);
        }
        shared.file(seat, generation).expect("seen above").complete = true;
        shared.remove_before(seat, generation);
        let table = Arc::new(table.fenced_by(self.fence.clone()));
        let until = match self.held.is_empty() {
            true => until,
            false => until.min(self.until),
        };
        self.asked.remove(&seat);
        if self.own(seat) {
            shared.want(seat, false);
        }
        let held = Held {
            generation,
            renewals: 0,
            table: table.clone(),
            lost: false,
        };
        self.held.insert(seat, held);
        self.tell(now, until, shared, core);
        let input = Input::SeatTaken {
            seat,
            generation,
            table,
        };
        core.handle(time, input);
    }

    /// Handles that taking a seat has failed.
    fn not_taken(&mut self, now: u64, seat: u16, shared: &mut Shared, core: &mut Forwarder) {
        shared.unlock(seat, self.life);
        self.refused(now, seat, shared, core);
    }

    /// Tells the core until when its lease holds.
    fn tell(&mut self, now: u64, until: Time, shared: &mut Shared, core: &mut Forwarder) {
        self.until = until;
        let endless = shared.lacks(Mutant::NoFence);
        if !endless {
            core.handle(self.clock.shows(now), Input::LeaseRenewed { until });
        }
        let until = match endless {
            true => u64::MAX,
            false => self.clock.when(until),
        };
        for (seat, held) in self.held.iter().filter(|(_, held)| !held.lost) {
            shared.may_answer(*seat, self.life, held.generation, now, until);
        }
    }

    fn renew_step(&mut self, now: u64, shared: &mut Shared, core: &mut Forwarder) {
        let Some(mut renewal) = self.renewal.take() else {
            return;
        };
        let time = self.clock.shows(now);
        let Some(checked) = renewal.checked.take() else {
            let ours = |seat: u16, held: &Held| {
                shared.is_newest(seat, held.generation) && shared.is_locked(seat)
            };
            let held = self.held.iter().filter(|(_, held)| !held.lost);
            let (ours, lost) = held.map(|(seat, held)| (*seat, ours(*seat, held))).fold(
                (Vec::new(), Vec::new()),
                |(mut ours, mut lost), (seat, is_ours)| {
                    match is_ours {
                        true => ours.push(seat),
                        false => lost.push(seat),
                    }
                    (ours, lost)
                },
            );
            if !shared.lacks(Mutant::NoFence) {
                for seat in lost {
                    let held = self.held.get_mut(&seat).expect("it is held");
                    held.lost = true;
                    held.table.close();
                    shared.answers_no_more(seat, self.life);
                    core.handle(time, Input::SeatLost { seat });
                }
            }
            renewal.checked = Some(ours);
            self.renewal = Some(renewal);
            return self.begin(Step::Renew);
        };
        let mut renewed = false;
        for seat in checked {
            let Some(held) = self.held.get_mut(&seat).filter(|held| !held.lost) else {
                continue;
            };
            held.renewals += 1;
            if let Some(file) = shared.file(seat, held.generation) {
                file.record.renewals = held.renewals;
                renewed = true;
            }
        }
        // One that comes too late finds that the core has given the seats up.
        let until = serves_until(renewal.began, self.ttl_ns);
        if renewed && time < self.until && time < until {
            self.tell(now, until, shared, core);
            for held in self.held.values().filter(|held| !held.lost) {
                let _ = held.table.write(true);
            }
        }
    }

    /// Releases a seat for the core.
    pub fn release(&mut self, now: u64, seat: u16, shared: &mut Shared) {
        let lapsed = self.lapsed(self.clock.shows(now));
        shared.answers_no_more(seat, self.life);
        let Some(held) = self.held.remove(&seat) else {
            return;
        };
        if !shared.reaches(self.life.0) {
            self.to_unlock.push(seat);
        } else {
            let said = held.lost || lapsed || held.table.write(true).is_err();
            if !said && let Some(file) = shared.file(seat, held.generation) {
                file.record.free = true;
            }
            shared.unlock(seat, self.life);
        }
        held.table.close();
    }

    /// Handles that the node reaches the back end again, which has dropped its locks or not.
    pub fn heal(&mut self, now: u64, dropped: bool, shared: &mut Shared, core: &mut Forwarder) {
        for seat in std::mem::take(&mut self.to_unlock) {
            shared.unlock(seat, self.life);
        }
        for step in std::mem::take(&mut self.hanging) {
            match (step, dropped) {
                (Step::Take(seat), true) => {
                    self.making.remove(&seat);
                    self.not_taken(now, seat, shared, core);
                }
                (Step::Renew, true) => self.renewal = None,
                (step, false) => self.step(now, step, shared, core),
            }
        }
    }
}
