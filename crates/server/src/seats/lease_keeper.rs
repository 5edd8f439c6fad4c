//! The thread that keeps a forwarder's leases: it takes seats, renews them, and lets them go.
//!
//! All of this waits for the back end, which may be far away or gone, and the reactor must go on:
//! a lease that this thread cannot renew in time runs out there by the clock. What it has to say
//! comes as inputs for the forwarder's core, in order.

use super::leased::{LeasedSeats, RENEWALS, Tried};
use crate::storage::{PosixFiles, dead};
use mio::Waker;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_forward::Input;
use tracing::{error, info, warn};

/// Between two tries for the own seat, and two looks at whether the owner of another is back.
const LOOK: Duration = Duration::from_millis(200);
/// A seat that could not be had is not tried again sooner.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long a process that stops may take to let the seat of its index go.
const STOPS_MAX: Duration = Duration::from_secs(60);
/// How long a seat that was asked for is looked at, in times to live.
const HOPES: u32 = 3;
/// How long tables are written between two looks at the leases, as a part of the time to live.
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

/// What the thread says.
#[derive(Default)]
struct Said {
    inputs: Vec<Input>,
    /// The forwarder cannot go on: why.
    failure: Option<String>,
}

/// The reactor's end.
pub struct LeaseKeeper {
    commands: Option<Sender<Command>>,
    said: Arc<Mutex<Said>>,
    ended: Receiver<()>,
}

/// The thread's end.
struct Rounds {
    seats: LeasedSeats,
    files: PosixFiles,
    own: u16,
    ttl: Duration,
    said: Arc<Mutex<Said>>,
    waker: Arc<Waker>,
    awaits_own: bool,
    /// When the own seat is tried again: after a failure stand-ins come first for a while.
    own_again: Instant,
    /// The last renewal did not come through, and those to come must not wait for other calls.
    behind: bool,
    /// Since when another process of the own index is seen to hold the own seat.
    doubled_since: Option<Instant>,
    /// Seats of others held here, and whether the core knows that the owner is back.
    foreign: BTreeMap<u16, bool>,
    /// Seats of others that could not be had.
    hoped: BTreeMap<u16, Hope>,
    renew_at: Instant,
    look_at: Instant,
    /// The last trouble that was logged.
    trouble: String,
    /// A seat that could not be taken, and when: it may have to be waited for before it is tried
    /// again, and the trouble is not over meanwhile.
    failed: Option<(u16, Instant)>,
}

/// A seat of another that could not be had.
#[derive(Clone, Copy)]
struct Hope {
    /// When it was asked for last.
    asked: Instant,
    /// When it was tried last: many clients may ask, and each try asks the back end.
    tried: Instant,
}

impl Hope {
    /// It is asked for; whether it is to be tried now.
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
    /// Starts the thread. `waker` wakes the reactor when something was said.
    pub fn start(
        seats: LeasedSeats,
        files: PosixFiles,
        own: u16,
        ttl: Duration,
        waker: Arc<Waker>,
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
            waker,
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

    /// Asks for a seat: `SeatTaken` or `SeatRefused` follows, for the own seat `SeatTaken` alone.
    pub fn take(&self, seat: u16) {
        self.tell(Command::Take(seat));
    }

    /// Lets a seat go.
    pub fn release(&self, seat: u16) {
        self.tell(Command::Release(seat));
    }

    /// The clients of a seat have told what they have open.
    pub fn reclaimed(&self, seat: u16) {
        self.tell(Command::Reclaimed(seat));
    }

    /// What was said since the last call.
    pub fn inputs(&self) -> Vec<Input> {
        std::mem::take(&mut lock(&self.said).inputs)
    }

    /// Why the forwarder cannot go on, if so.
    pub fn failure(&self) -> Option<String> {
        lock(&self.said).failure.clone()
    }
}

impl Drop for LeaseKeeper {
    /// Waits a while for what was asked last: seats that are let go in order are free at once.
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
            // Without the trace that a panic prints, which takes long.
            Command::Panic => std::panic::resume_unwind(Box::new("a test asked for this")),
        }
    }

    /// Lets go of what was taken when the core had ended: nothing of it was ever begun. What the
    /// core knew of and has not let go may have calls under way.
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
        // This fails once the loop has ended.
        let _ = self.waker.wake();
    }

    fn fail(&self, why: String) {
        error!("{why}");
        lock(&self.said).failure.get_or_insert(why);
        let _ = self.waker.wake();
    }

    /// Logs what is wrong with the back end, once until it changes.
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

    /// Ends the forwarder if the mount is dead: the call itself says so, or the root does.
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

    /// Says first that the leases go on: tables may take long to write.
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

    /// Whether a seat that is still asked for could not be taken.
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
        // A keeper that does not answer is told of by renewals, and asked again.
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

    /// Says why the own seat is not had, and that its owner waits.
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
        // Again and again: the back end may have dropped the sign.
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
        // A dead one's lease may still run.
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

    /// Tries to take a seat, and tells the core if it could.
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
        // Where something is held, what renewals found is over when a renewal says so.
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
        // An error is told by the release.
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

/// Errors after which a mount never works again, whatever file said so: its server has shut this
/// client out. ENOTCONN is none: the lease of one seat may lie on a part of the back end that is
/// out of reach (a brick without a replica), and other seats do not.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESHUTDOWN | libc::ENODEV))
}

fn lock(said: &Mutex<Said>) -> std::sync::MutexGuard<'_, Said> {
    // Lists are whole whatever panicked.
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
