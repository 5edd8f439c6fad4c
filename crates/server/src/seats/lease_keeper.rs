//! The thread that keeps a forwarder's leases: it takes seats, renews their leases, and releases
//! them.
//!
//! These calls wait for the back end, which may be slow or unreachable, and the forwarder's loop
//! must go on meanwhile. If this thread cannot renew a lease in time, the forwarder sees the lease
//! expire by the clock. The thread reports what happens as inputs for the forwarder, in order.

use super::leased::{LeasedSeats, RENEWALS, Tried};
use crate::lock::lock;
use crate::storage::posix::dead;
use crate::storage::{PosixFiles, Wake};
use crate::thread_rights::{Work, keep_for};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_forward::Input;
use tracing::{error, info, warn};

/// How often the own seat is tried, and how often the thread looks whether the owner of another
/// seat is back.
const LOOK: Duration = Duration::from_millis(200);
/// How long a seat that could not be taken is not tried again.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a stopping process may take to release the seat of its index.
const STOPS_MAX: Duration = Duration::from_secs(60);
/// How long a requested seat is watched, in times to live of a lease.
const HOPES: u32 = 3;
/// How long tables are written before the leases are looked at again, as a fraction of the time to
/// live.
const WRITES: u32 = 10;
/// How long the last releases may take when the forwarder ends.
const END_MAX: Duration = Duration::from_secs(5);

enum Command {
    Take(u16),
    Release(u16),
    Reclaimed(u16),
    #[cfg(test)]
    Panic,
}

/// What the thread reports.
#[derive(Default)]
struct Said {
    inputs: Vec<Input>,
    /// Why the forwarder cannot go on, if so.
    failure: Option<String>,
}

/// The loop's end of the thread.
pub struct LeaseKeeper {
    commands: Option<Sender<Command>>,
    said: Arc<Mutex<Said>>,
    ended: Receiver<()>,
}

/// The thread's side.
struct Rounds {
    seats: LeasedSeats,
    files: PosixFiles,
    own: u16,
    ttl: Duration,
    said: Arc<Mutex<Said>>,
    notify: Wake,
    awaits_own: bool,
    /// When the own seat is tried again. After a failure stand-ins come first for a while.
    own_again: Instant,
    /// Whether the last renewal failed. The next renewals must then not wait for other calls.
    behind: bool,
    /// Since when another process with the same index holds the own seat.
    doubled_since: Option<Instant>,
    /// Seats of other forwarders held here, and for each whether the forwarder knows that the owner
    /// is back.
    foreign: BTreeMap<u16, bool>,
    /// Seats of other forwarders that could not be taken.
    hoped: BTreeMap<u16, Hope>,
    renew_at: Instant,
    look_at: Instant,
    /// The problem that was logged last.
    trouble: String,
    /// A seat that could not be taken, and when. The thread may have to wait before it tries again,
    /// and the problem persists meanwhile.
    failed: Option<(u16, Instant)>,
}

/// A seat of another forwarder that could not be taken.
#[derive(Clone, Copy)]
struct Hope {
    /// When the forwarder last asked for it.
    asked: Instant,
    /// When it was last tried. Many clients may cause requests, and each try makes calls to the
    /// back end.
    tried: Instant,
}

impl Hope {
    /// Notes a request for the seat. True if it should be tried now.
    fn ask(&mut self, now: Instant) -> bool {
        self.asked = now;
        let due = now >= self.tried + TRY_AGAIN;
        if due {
            self.tried = now;
        }
        due
    }
}

impl LeaseKeeper {
    /// Starts the thread. `notify` tells the loop that there are reports.
    pub fn start(
        seats: LeasedSeats,
        files: PosixFiles,
        own: u16,
        ttl: Duration,
        notify: Wake,
    ) -> io::Result<LeaseKeeper> {
        let (commands, heard) = channel();
        let (end, ended) = channel();
        let said = Arc::<Mutex<Said>>::default();
        let now = Instant::now();
        let mut rounds = Rounds {
            seats,
            files,
            own,
            ttl,
            said: said.clone(),
            notify,
            awaits_own: false,
            own_again: now,
            behind: false,
            doubled_since: None,
            foreign: BTreeMap::new(),
            hoped: BTreeMap::new(),
            renew_at: now,
            look_at: now,
            trouble: String::new(),
            failed: None,
        };
        let thread = std::thread::Builder::new().name("leases".to_owned());
        thread.spawn(move || {
            keep_for(Work::OwnFiles);
            // Ends with the thread.
            let _end: Sender<()> = end;
            if catch_unwind(AssertUnwindSafe(|| rounds.run(&heard))).is_err() {
                let why = "the thread that keeps the leases of the seats has panicked, and the log \
                           says where: start this forwarder again";
                rounds.fail(why.to_owned());
            }
        })?;
        Ok(LeaseKeeper {
            commands: Some(commands),
            said,
            ended,
        })
    }

    fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The thread ends only after this end.
            let _ = commands.send(command);
        }
    }

    /// Asks for a seat. `SeatTaken` or `SeatRefused` follows; for the own seat only `SeatTaken`.
    pub fn take(&self, seat: u16) {
        self.tell(Command::Take(seat));
    }

    /// Releases a seat.
    pub fn release(&self, seat: u16) {
        self.tell(Command::Release(seat));
    }

    /// Notes that the clients of a seat have reclaimed their open files.
    pub fn reclaimed(&self, seat: u16) {
        self.tell(Command::Reclaimed(seat));
    }

    /// The reports since the last call.
    pub fn inputs(&self) -> Vec<Input> {
        std::mem::take(&mut lock(&self.said).inputs)
    }

    /// Why the forwarder cannot go on, or None.
    pub fn failure(&self) -> Option<String> {
        lock(&self.said).failure.clone()
    }
}

impl Drop for LeaseKeeper {
    /// Waits a while for the last requests. A seat that is released in order is free at once.
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

impl Rounds {
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let due = self.renew_at.min(self.look_at);
            let wait = due.saturating_duration_since(Instant::now());
            match commands.recv_timeout(wait) {
                Ok(command) => self.perform(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.release_untold(),
            }
            let now = Instant::now();
            self.renew_when_due();
            if now >= self.look_at {
                self.look_at = now + LOOK;
                self.look();
            }
        }
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Take(seat) if seat == self.own => {
                self.awaits_own = true;
                self.take_own(true);
            }
            Command::Take(seat) => self.take_other(seat),
            Command::Release(seat) => self.release(seat),
            Command::Reclaimed(seat) => self.reclaimed(seat),
            #[cfg(test)]
            // Ends the thread without the backtrace that a panic prints, which takes long.
            Command::Panic => std::panic::resume_unwind(Box::new("a test asked for this")),
        }
    }

    /// Releases seats that were taken after the forwarder had ended, under which nothing was begun.
    /// Seats that the forwarder knew of and has not released may have calls under way.
    fn release_untold(&mut self) {
        let untold = std::mem::take(&mut lock(&self.said).inputs);
        for input in untold {
            if let Input::SeatTaken { seat, .. } = input {
                self.release(seat);
            }
        }
    }

    fn say(&self, inputs: impl IntoIterator<Item = Input>) {
        lock(&self.said).inputs.extend(inputs);
        (self.notify)();
    }

    fn fail(&self, why: String) {
        error!("{why}");
        lock(&self.said).failure.get_or_insert(why);
        (self.notify)();
    }

    /// Logs a problem with the back end once, until it changes.
    fn note_trouble(&mut self, trouble: Option<&io::Error>) {
        if let Some(error) = trouble {
            self.end_if_final(error);
        }
        let text = trouble.map_or_else(String::new, ToString::to_string);
        if text == self.trouble {
            return;
        }
        match trouble {
            Some(error) => warn!(%error, "trouble with the leases of the seats"),
            None => info!("the trouble with the leases of the seats is over"),
        }
        self.trouble = text;
        let text = Some(&*self.trouble).filter(|text| !text.is_empty());
        self.say([Input::BackEnd(text.map(Into::into))]);
    }

    /// Ends the forwarder if the mount is dead, which either this error or the export's root
    /// proves.
    fn end_if_final(&self, error: &io::Error) {
        if is_final(error) {
            self.fail(dead::words(error));
        } else if let Some(error) = dead::proof(&self.files) {
            self.fail(dead::words(&error));
        }
    }

    fn renew_when_due(&mut self) {
        let now = Instant::now();
        if now >= self.renew_at {
            self.renew_at = now + self.ttl / RENEWALS;
            self.renew();
        }
    }

    /// Renews the leases before anything else, because writing tables may take long.
    fn renew(&mut self) {
        if !self.seats.has_leases() {
            return;
        }
        let renewal = self.seats.renew();
        let renewed = renewal.until.is_some();
        self.behind = !renewed && renewal.trouble.is_some();
        let mut inputs: Vec<Input> = Vec::new();
        for (seat, why) in renewal.lost {
            warn!(seat, "seat lost: {why}");
            self.files.seat_lost(seat);
            inputs.push(Input::SeatLost { seat });
        }
        if let Some(until) = renewal.until {
            inputs.push(Input::LeaseRenewed { until });
        }
        if !inputs.is_empty() {
            self.say(inputs);
        }
        let mut trouble = renewal.trouble;
        if renewed {
            let until = Instant::now() + self.ttl / WRITES;
            trouble = trouble.or(self.seats.write_tables(until).err());
        }
        if trouble.is_some() || renewed && !self.has_failed() {
            self.note_trouble(trouble.as_ref());
        }
    }

    /// Whether a seat that is still requested could not be taken.
    fn has_failed(&self) -> bool {
        self.failed
            .is_some_and(|(_, when)| when.elapsed() < self.ttl * HOPES)
    }

    fn look(&mut self) {
        if self.behind && self.seats.has_leases() {
            return;
        }
        if self.awaits_own && Instant::now() >= self.own_again {
            self.take_own(false);
        }
        let mut back = Vec::new();
        let untold = self.foreign.iter().filter(|(_, told)| !**told);
        let untold: Vec<u16> = untold.map(|(seat, _)| *seat).collect();
        // Renewals report a keeper that does not answer. It is asked again in the next round.
        for seat in self.seats.wanted(&untold).unwrap_or_default() {
            self.foreign.insert(seat, true);
            info!(seat, "the owner of a seat is back");
            back.push(Input::SeatWanted { seat });
        }
        if !back.is_empty() {
            self.say(back);
        }
        let old = self.ttl * HOPES;
        self.hoped.retain(|_, hope| hope.asked.elapsed() < old);
        for seat in self.hoped.keys().copied().collect::<Vec<_>>() {
            self.seats.look(seat);
        }
    }

    fn take_own(&mut self, first: bool) {
        match self.try_take(self.own) {
            Some(Tried::Taken(..)) => self.doubled_since = None,
            None => {
                self.doubled_since = None;
                self.own_again = Instant::now() + self.ttl / 2;
            }
            Some(Tried::Busy | Tried::GoesOn) => self.wait_for_own(first, None),
            Some(Tried::Waits(name)) => self.wait_for_own(first, Some(name)),
        }
    }

    /// Logs why the own seat cannot be taken, and tells its holder that the owner waits.
    fn wait_for_own(&mut self, first: bool, lease_of: Option<String>) {
        let seat = self.own;
        if first {
            match lease_of {
                None => info!(seat, "another forwarder has the own seat; waiting for it"),
                Some(name) => info!(
                    seat,
                    "the lease of {name} may still run; waiting for its end"
                ),
            }
        }
        // Repeat this: the back end may have dropped the lock by which the holder learns of it.
        if let Err(error) = self.seats.want(seat)
            && first
        {
            warn!(seat, %error, "the stand-in cannot be told that its owner is back");
        }
        let Some(name) = self.seats.double(seat) else {
            self.doubled_since = None;
            return;
        };
        let since = *self.doubled_since.get_or_insert_with(|| {
            warn!(
                "{name} holds the seat of this index and renews it: if it does not stop, two \
                 forwarders were given the index {seat}"
            );
            Instant::now()
        });
        // The lease of a dead process may still run.
        if since.elapsed() > STOPS_MAX.max(self.ttl * 2) {
            self.fail(format!(
                "two forwarders were given the index {seat}: this one and {name}; give each its own"
            ));
        }
    }

    fn take_other(&mut self, seat: u16) {
        let now = Instant::now();
        let due = self.hoped.get_mut(&seat).is_none_or(|hope| hope.ask(now));
        let tried = match due {
            true => self.try_take(seat),
            false => None,
        };
        if !matches!(tried, Some(Tried::Taken(..))) {
            let first = Hope {
                asked: now,
                tried: now,
            };
            self.hoped.entry(seat).or_insert(first);
            self.say([Input::SeatRefused { seat }]);
        }
    }

    /// Tries to take a seat, and reports it if that succeeds.
    fn try_take(&mut self, seat: u16) -> Option<Tried> {
        let tried = loop {
            match self.seats.try_take(seat) {
                Ok(Tried::GoesOn) => self.renew_when_due(),
                other => break other,
            }
        };
        let tried = match tried {
            Ok(tried) => tried,
            Err(error) => {
                self.failed = Some((seat, Instant::now()));
                self.note_trouble(Some(&io::Error::other(error.to_string())));
                if let super::SeatsError::File { source, .. } = &error {
                    self.end_if_final(source);
                }
                return None;
            }
        };
        if !matches!(tried, Tried::Waits(_)) {
            self.failed = self.failed.filter(|(failed, _)| *failed != seat);
        }
        // While a seat is held, a problem that a renewal has found ends when a renewal succeeds.
        let of_tries = self.seats.held().is_empty() || matches!(tried, Tried::Taken(..));
        if of_tries && !self.has_failed() {
            self.note_trouble(None);
        }
        if let Tried::Taken(taken, until) = &tried {
            let generation = taken.generation;
            info!(seat, generation, "seat taken");
            match seat == self.own {
                true => self.awaits_own = false,
                false => {
                    self.foreign.insert(seat, false);
                    self.hoped.remove(&seat);
                }
            }
            let table = taken.table.clone();
            self.say([
                Input::LeaseRenewed { until: *until },
                Input::SeatTaken {
                    seat,
                    generation,
                    table,
                },
            ]);
        }
        Some(tried)
    }

    fn release(&mut self, seat: u16) {
        // The release reports an error.
        while let Ok(false) = self.seats.flush(seat, Instant::now() + self.ttl / WRITES) {
            self.renew_when_due();
        }
        if let Err(error) = self.seats.release(seat) {
            warn!(seat, %error, "the next holder of a seat has to wait for its lease to end");
        }
        self.files.seat_released(seat);
        self.foreign.remove(&seat);
        info!(seat, "seat released");
    }

    fn reclaimed(&mut self, seat: u16) {
        let settled = self.seats.settle(seat);
        if settled.is_ok() && self.seats.held().contains(&seat) {
            self.files.seat_settled(seat);
        }
        super::sweep_if_settled(&self.files, seat, settled);
    }
}

/// Whether after this error a mount never works again, whatever file the call was for: its server
/// has evicted this client. ENOTCONN is not such an error: one seat's lease may lie on a part of
/// the back end that is unreachable (a brick without a replica) while other seats' leases do not.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESHUTDOWN | libc::ENODEV))
}

#[cfg(test)]
mod tests;
