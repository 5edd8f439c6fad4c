//! The forwarder's state, and the methods that its host calls. The files of the folder implement
//! the steps of a request.
//!
//! The forwarder checks a request in this order: its session ([`receive`], [`sessions`]), its seat
//! and reply slot ([`seat_gate`]), and the client's right to the file ([`permissions`]). Reads,
//! writes and operations on a whole file (fsync, truncate, fallocate) then pass the scheduler
//! ([`data_requests`]). Other operations on the back end do not ([`operation_jobs`]). The host's
//! storage executes both as jobs. The rest the forwarder answers from its own tables
//! ([`open_files`], [`seat_locks`]). [`seat_gate`] makes every reply. What replies lend to clients
//! [`loans`] keeps.

mod accounts;
mod admission;
mod applications;
mod counters;
mod data_requests;
mod device_time;
mod effective_shares;
pub(crate) mod holdings;
mod ill;
mod loans;
mod name_queues;
mod open_files;
mod operation_jobs;
mod parked;
mod permissions;
mod pool;
mod reached;
mod receive;
mod seat_gate;
mod seat_holding;
mod seat_locks;
mod seat_loss;
mod served_facts;
mod sessions;
mod standing;
mod status;
mod sync_errors;
mod wait;
mod wait_status;
mod wait_sums;
mod waits;

use crate::advisory_locks::Locks;
use crate::host::{
    Config, ConnId, Input, IoPart, JobId, JobResult, Output, OwnershipFacts, PolicyId, Recorded,
    ReplySlotAddress, StorageFacts,
};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;
use applications::Applications;
use counters::Counters;
use data_requests::SerialTransfers;
use effective_shares::EffectiveShares;
use ill::BackEnd;
use loans::Loans;
use name_queues::NameQueues;
use open_files::OpenFiles;
use parked::Parked;
use pool::Pool;
pub use pool::{ArrivalNumber, Queue};
pub use receive::is_scheduled;
use receive::{Key, Pending};
use seat_gate::Seats;
use seat_loss::Lease;
use served_facts::Noted;
use sessions::{Client, Connection};
use status::TextsTold;
use tidegate_sched::{OptionsError, Scheduler, Time};
use tidegate_wire::{Handle, Listed, Outcome, Status};
use waits::Waits;

/// The state of one forwarder, without its I/O.
pub struct Forwarder {
    config: Config,
    now: Time,
    outputs: VecDeque<Output>,
    connections: BTreeMap<ConnId, Connection>,
    clients: BTreeMap<u64, Client>,
    /// Connections of all sessions, beside the first one of each.
    joined: usize,
    requests: Slab<Pending>,
    jobs: Slab<(u32, Running)>,
    job_serial: u32,
    pool: Pool,
    seats: Seats,
    names: NameQueues,
    opens: OpenFiles,
    locks: Locks<Key>,
    loans: Loans,
    scheduler: Scheduler,
    /// Requests that the scheduler takes before it rejects more.
    queued_max: u32,
    scheduler_wakes: Option<Time>,
    /// When the host last finished a batch.
    io_finished_at: Time,
    parked: Parked,
    serial_transfers: SerialTransfers,
    batch: Vec<tidegate_sched::Request>,
    spare_ids: Vec<Vec<u64>>,
    /// Requests that wait for the host to read a policy's text.
    policies: BTreeMap<PolicyId, Key>,
    policy_serial: u64,
    /// Where the export's forwarders listen.
    listed: Box<[Listed]>,
    applications: Applications,
    shares: EffectiveShares,
    counters: Counters,
    waits: Waits,
    texts_told: TextsTold,
    /// What the log has said about refusals.
    refusals: holdings::Refusals,
    /// Facts about outstanding requests, by their number; empty unless the host records requests.
    noted: Vec<Noted>,
    recorded: Option<Recorded>,
    /// How the host's storage works, if the host has reported it.
    storage: Option<StorageFacts>,
    ownership: Option<OwnershipFacts>,
    /// The address of another process that was configured with this forwarder's index by mistake.
    doubled: Option<Box<str>>,
    lease: Lease,
    /// When the host last renewed the lease.
    renewed_at: Option<Time>,
    /// Requests that the forwarder answered before their jobs ended.
    answered_early: usize,
    back_end: BackEnd,
    /// The earliest time at which something may be due.
    timer: Option<Time>,
    /// Whether the process is stopping.
    draining: bool,
    /// Whether an operator has taken the forwarder out of service ([`Op::Drain`]).
    aside: bool,
    drained: bool,
}

/// A job that the host is executing.
enum Running {
    /// Requests of the scheduler, in the order of the job's parts.
    Io(Vec<u64>),
    /// A request's operation.
    Op(Key),
    /// The check whether a client may read or write a file: by the file's mode, then as its owner.
    Check {
        key: Key,
        handle: Handle,
        write: bool,
        owner: bool,
    },
    /// The look whether a client can reach a file by itself.
    Reach { key: Key, handle: Handle },
    /// The look-up of an intent that the seat's last holder left in a reply slot.
    Resolve { seat: u16 },
    /// The last open of a file.
    Closed { handle: Handle },
    /// The persisting of a seat's marks of clients that hold opens or locks, for which these
    /// requests wait.
    Persist {
        seat: u16,
        answers: Vec<(Key, Result<Outcome, Status>)>,
    },
}

impl Forwarder {
    /// A forwarder that holds no seat yet and asks its host for the seat that it owns.
    pub fn new(mut config: Config) -> Result<Forwarder, OptionsError> {
        assert!(
            config.layout.seats > config.forwarder,
            "a forwarder owns the seat of its own index"
        );
        config.credits = config.credits.max(1);
        let shares = EffectiveShares::new(&config);
        let options = shares.options();
        let mut forwarder = Forwarder {
            now: Time(0),
            outputs: VecDeque::new(),
            connections: BTreeMap::new(),
            clients: BTreeMap::new(),
            joined: 0,
            requests: Slab::new(),
            jobs: Slab::new(),
            job_serial: 0,
            pool: Pool::new(config.pool_bytes_max, config.payload_max),
            seats: Seats::new(),
            names: NameQueues::default(),
            opens: OpenFiles::default(),
            locks: Locks::new(),
            loans: Loans::new(match config.layout.seats {
                1 => config.loan_ns,
                _ => 0,
            }),
            scheduler: Scheduler::new(&options)?,
            queued_max: options.queued_max,
            scheduler_wakes: None,
            io_finished_at: Time(0),
            parked: Parked::default(),
            serial_transfers: SerialTransfers::default(),
            batch: Vec::new(),
            spare_ids: Vec::new(),
            policies: BTreeMap::new(),
            policy_serial: 0,
            listed: Box::default(),
            applications: Applications::default(),
            shares,
            counters: Counters::default(),
            waits: Waits::default(),
            texts_told: TextsTold::default(),
            refusals: holdings::Refusals::default(),
            noted: Vec::new(),
            recorded: None,
            storage: None,
            ownership: None,
            doubled: None,
            lease: Lease::NotNeeded,
            renewed_at: None,
            answered_early: 0,
            back_end: BackEnd::default(),
            timer: None,
            draining: false,
            aside: false,
            drained: false,
            config,
        };
        forwarder.take_seat(forwarder.config.forwarder);
        Ok(forwarder)
    }

    /// Takes the result of a job. Returns what the host should do first, which is the reply if one
    /// request waited for the job. [`Forwarder::poll`] may ask for more.
    pub fn finished(&mut self, now: Time, job: JobId, result: JobResult) -> Option<Output> {
        self.pass(now);
        self.job_finished(job, result);
        self.outputs.pop_front()
    }

    /// Takes a report of the host. `now` never goes back.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.pass(now);
        match input {
            Input::Connected { conn, peer } => self.connected(conn, peer),
            Input::Proved { conn, grant } => self.proved(conn, grant),
            Input::Received {
                conn,
                request,
                slot,
            } => {
                let waited_ns = slot.map_or(0, |slot| self.pool.waited_ns(slot));
                self.received(conn, request, slot, waited_ns);
            }
            Input::Sent { slot } => {
                self.pool.sent(slot);
            }
            Input::PolicyParsed { policy, options } => self.policy_parsed(policy, options),
            Input::SharesParsed { policy, rules } => self.shares_parsed(policy, rules),
            Input::PolicyFound(options) => self.policy_found(options),
            Input::SharesFound(rules) => self.shares_found(rules),
            Input::Forwarders(listed) => self.listed = listed,
            Input::Closed { conn } => self.connection_closed(conn),
            Input::Finished { job, result } => self.job_finished(job, result),
            Input::SeatTaken {
                seat,
                generation,
                table,
            } => self.seat_taken(seat, generation, table),
            Input::LeaseRenewed { until } => self.lease_renewed(until),
            Input::SeatLost { seat } => self.seat_lost(seat),
            Input::SeatRefused { seat } => self.seat_refused(seat),
            Input::SeatWanted { seat } => self.seat_wanted(seat),
            Input::Ownership(facts) => self.ownership = Some(facts),
            Input::Doubled(other) => self.doubled = other,
            Input::Storage(facts) => self.storage = Some(facts),
            Input::BackEnd(trouble) => self.back_end.told(trouble),
            Input::Recorded(recorded) => self.recorded = Some(recorded),
            Input::Counted(counts) => self.counters.host = Some(counts),
            Input::PeerService(report) => {
                let heard = self
                    .scheduler
                    .handle(self.now, tidegate_sched::Input::PeerService(report));
                heard.expect("what is heard is never refused");
            }
            Input::Drain => self.drain(),
        }
    }

    /// What the host should do now. The host calls this until it returns None.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        self.pass(now);
        self.expire();
        self.settle_loans();
        if self.outputs.is_empty() {
            self.dispatch();
        }
        if self.outputs.is_empty() && self.draining && !self.drained && self.nothing_left() {
            self.drained = true;
            return Some(Output::Drained);
        }
        self.outputs.pop_front()
    }

    /// Notes the time. If nobody called for much longer than [`Forwarder::wake_at`] asked for, this
    /// process (or its node) was stopped and out of the clients' reach: extends their leases.
    fn pass(&mut self, now: Time) {
        let now = self.now.max(now);
        let gap = now.since(self.now);
        if gap > self.config.lease_ns / 2 && self.now > Time(0) {
            self.move_leases_on(gap);
        }
        self.now = now;
        if let Lease::Until(until) = self.lease
            && now >= until
        {
            self.lease_ran_out();
        }
    }

    #[cold]
    fn move_leases_on(&mut self, gap: u64) {
        if self.clients.is_empty() {
            return;
        }
        for client in self.clients.values_mut() {
            client.seen = client.seen + gap;
        }
        for seat in self.seats.iter_mut() {
            seat.pause(gap);
        }
    }

    /// When the host must call [`Forwarder::poll`] again even if nothing happens before; None if it
    /// need not.
    pub fn wake_at(&self) -> Option<Time> {
        match (self.timer, self.scheduler_wakes) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Makes sure that [`Forwarder::expire`] runs at `at`.
    fn wake_by(&mut self, at: Time) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// Does what is due.
    fn expire(&mut self) {
        if self.timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        self.timer = None;
        if let Lease::Until(until) = self.lease {
            self.wake_by(until);
        }
        let dead: Vec<u64> = {
            let late = |seen: Time| seen + self.config.lease_ns <= self.now;
            let clients = self.clients.values();
            clients
                .filter(|client| late(client.seen))
                .map(|client| client.id)
                .collect()
        };
        for client in dead {
            self.lease_ended(client);
        }
        for seat in self.seats.numbers() {
            self.expire_seat(seat);
        }
        self.expire_back_end();
        self.expire_loans();
        let alive = self.clients.values().filter(|client| !client.ended);
        if let Some(oldest) = alive.map(|client| client.seen).min() {
            // Often enough that a gap between two calls tells a pause of this process.
            let often = self.now + (self.config.lease_ns / 8).max(1);
            self.wake_by(often.min(oldest + self.config.lease_ns));
        }
    }

    /// How many batches may run at once now, as the scheduler decides.
    pub fn depth(&self) -> u32 {
        self.scheduler.depth()
    }

    /// Starts a job.
    fn start(&mut self, running: Running, mut work: crate::host::Job) {
        if self.seats.any_lost() {
            self.refuse_if_late(&running, &mut work);
        }
        self.job_serial = self.job_serial.wrapping_add(1);
        let place = self.jobs.insert((self.job_serial, running));
        let job = JobId(u64::from(self.job_serial) << 32 | u64::from(place));
        self.outputs.push_back(Output::Start { job, work });
    }

    /// Takes the result of a job. Ignores the result of a job that is not outstanding.
    fn job_finished(&mut self, job: JobId, result: JobResult) {
        let (serial, place) = ((job.0 >> 32) as u32, job.0 as u32);
        if self.jobs.get(place).is_none_or(|(its, _)| *its != serial) {
            return self.log(format!("a result for the unknown job {}", job.0));
        }
        let (_, running) = self.jobs.remove(place).expect("looked up above");
        if self.back_end.away || self.back_end.read_only || result.has_failed() {
            self.note_health(&running, &result);
        }
        match (running, result) {
            (Running::Io(ids), JobResult::Io { parts, device_ns }) => {
                self.io_finished(ids, parts, device_ns);
            }
            (Running::Op(key), JobResult::Op(result)) => self.operation_finished(key, result),
            (Running::Op(key), JobResult::Change { result, directory }) => {
                self.requests[key].directory = directory;
                self.operation_finished(key, result);
            }
            (
                Running::Check {
                    key,
                    handle,
                    write,
                    owner,
                },
                JobResult::Op(result),
            ) => self.permission_checked(key, (handle, write), owner, result),
            (Running::Reach { key, handle }, JobResult::Op(result)) => {
                self.reach_finished(key, handle, result);
            }
            (Running::Resolve { seat }, JobResult::Done) => self.intent_resolved(seat),
            (Running::Closed { handle }, JobResult::Done) => self.file_closed(handle),
            (Running::Persist { seat, answers }, JobResult::Op(result)) => {
                self.persisted(seat, answers, result.is_ok());
            }
            _ => panic!("the host's result is of another kind than its job"),
        }
    }

    fn nothing_left(&self) -> bool {
        self.requests.len() == 0 && self.jobs.len() == 0 && self.seats.all_released()
    }

    fn log(&mut self, text: impl Into<Box<str>>) {
        self.outputs.push_back(Output::Log { text: text.into() });
    }

    fn reply_slot_address(&self, key: Key) -> Option<ReplySlotAddress> {
        let pending = &self.requests[key];
        Some(ReplySlotAddress {
            unresolved: Vec::new(),
            seat: pending.seat,
            table: self.seats[pending.seat].table.clone()?,
            reply_slot: pending.reply_slot_number?,
            sequence: pending.reply_slot?.sequence,
        })
    }
}

/// Values by number. A number that was freed is given again first, without an allocation.
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = Some(value);
                at
            }
            None => {
                let at = u32::try_from(self.places.len()).expect("bounded by credits and sessions");
                self.places.push(Some(value));
                at
            }
        }
    }

    /// The numbers of the values that are there.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let places = self.places.iter().enumerate();
        let taken = places.filter_map(|(at, place)| place.is_some().then_some(at as u32));
        taken.collect()
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        self.get(at).expect("the place is taken")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.get_mut(at).expect("the place is taken")
    }
}
