//! Service reports between forwarders, through files of the hidden folder.
//!
//! Reports are exchanged if `report_ms` is above 0. Then a thread writes to `.tidegate/given.N`
//! what this forwarder has given each application since it started: device time, bytes and
//! requests. Five times a second the thread also reads the files of the other forwarders. The
//! forwarder's loop never waits for this thread. The thread replaces a file as a whole, and a mark
//! at the end shows a reader that the file is complete. The files hold sums, so the next report
//! makes up for one that is lost or late.

use crate::lock::lock;
use crate::short_turns;
use crate::storage::Wake;
use crate::storage::posix::{open_hidden_file, replace_hidden_file};
use crate::thread_rights::{Work, keep_for};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_sched::{AppId, ServiceReport};
use tracing::warn;

/// How often the thread writes and reads files.
const ROUND: Duration = Duration::from_millis(200);

/// Rounds without a report after which the thread sleeps until there is one.
const QUIET_ROUNDS: u32 = 25;

/// The most applications of a file: those with the most device time.
const APPS_MAX: usize = 1024;

/// The largest size of a file with that many applications, in bytes.
const FILE_BYTES_MAX: usize = APPS_MAX * 100;

/// The first word of a file, and the version of its format.
const HEAD: &str = "tidegate-given 2";

/// Sums by application.
type Sums = BTreeMap<u64, ServiceReport>;

/// What other forwarders' files have said.
#[derive(Default)]
pub struct Heard {
    /// For each other forwarder: the start of its process, and its sums when they were last read.
    others: BTreeMap<u16, (u64, Sums)>,
}

impl Heard {
    /// What a forwarder has given each application since the last call that was handed a whole file
    /// of this life of its process. `bytes` are its file; one that is not whole says nothing.
    pub fn take(&mut self, other: u16, bytes: &[u8]) -> Vec<ServiceReport> {
        let text = std::str::from_utf8(bytes).ok();
        let Some((life, sums)) = text.and_then(parse) else {
            return Vec::new();
        };
        let known = self.others.get(&other).filter(|(known, _)| *known == life);
        // Device time that was given before the first reading belongs to an earlier period.
        let heard = known.map_or_else(Vec::new, |(_, before)| {
            sums.values().filter_map(|now| more(now, before)).collect()
        });
        self.others.insert(other, (life, sums));
        heard
    }
}

/// The file of a forwarder whose process is told from others by `life`.
pub fn file_of(life: u64, given: impl IntoIterator<Item = ServiceReport>) -> String {
    let mut sums = Sums::new();
    given.into_iter().for_each(|report| add(&mut sums, &report));
    forget(&mut sums);
    text(life, &sums)
}

/// What the forwarder's loop and the thread share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    given: Sums,
    changed: bool,
    heard: Vec<ServiceReport>,
    ends: bool,
}

/// The service reports of one forwarder, and its end of the thread that exchanges them.
pub struct Gossip {
    shared: Arc<Shared>,
    /// What the thread needs. The thread starts at the first report.
    waiting: Option<Rounds>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Gossip {
    /// Starts without a report. `folder` is the hidden folder, and `own` is this forwarder's number
    /// among `seats`. `notify` tells the loop that reports of others have arrived.
    pub fn new(folder: OwnedFd, own: u16, seats: u16, notify: Wake) -> Gossip {
        let shared = Arc::<Shared>::default();
        let rounds = Rounds {
            folder,
            own,
            seats,
            // Tells this process from an earlier one, whose sums were different.
            life: u64::from(std::process::id()) << 32 | u64::from(started()),
            shared: shared.clone(),
            notify,
            heard: Heard::default(),
            fails: false,
        };
        Gossip {
            shared,
            waiting: Some(rounds),
            thread: None,
        }
    }

    /// Adds the device time that this forwarder has given since its last report.
    pub fn broadcast(&mut self, report: ServiceReport) {
        if let Some(rounds) = self.waiting.take() {
            let thread = std::thread::Builder::new().name("gossip".to_string());
            let run = move || {
                short_turns::go_with_others();
                keep_for(Work::OwnFiles);
                rounds.run();
            };
            match thread.spawn(run) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => warn!(%error, "others are not told what this forwarder gives"),
            }
        }
        let mut state = self.shared.lock();
        add(&mut state.given, &report);
        state.changed = true;
        self.shared.told.notify_one();
    }

    /// The reports of other forwarders since the last call.
    pub fn received(&mut self) -> Vec<ServiceReport> {
        match self.thread {
            None => Vec::new(),
            Some(_) => std::mem::take(&mut self.shared.lock().heard),
        }
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.told.notify_one();
        // The thread is not joined: a back end that hangs must not delay the end of the process.
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the few lines under this lock leaves valid sums.
        lock(&self.state)
    }
}

/// The thread's side.
struct Rounds {
    folder: OwnedFd,
    own: u16,
    seats: u16,
    life: u64,
    shared: Arc<Shared>,
    notify: Wake,
    heard: Heard,
    fails: bool,
}

impl Rounds {
    fn run(mut self) {
        let mut quiet = 0;
        loop {
            let text = {
                let mut state = self.shared.lock();
                while quiet >= QUIET_ROUNDS && !state.changed && !state.ends {
                    let slept = self.shared.told.wait(state);
                    state = slept.unwrap_or_else(PoisonError::into_inner);
                }
                if state.ends {
                    return;
                }
                quiet = if state.changed { 0 } else { quiet + 1 };
                let changed = std::mem::take(&mut state.changed);
                changed.then(|| {
                    forget(&mut state.given);
                    text(self.life, &state.given)
                })
            };
            let result = self.round(text.as_deref());
            if let Err(error) = &result
                && !self.fails
            {
                warn!(%error, "others are not told, or not heard, what forwarders give");
            }
            self.fails = result.is_err();
            std::thread::sleep(ROUND);
        }
    }

    /// Writes this forwarder's file if it has changed, and reads the files of the others.
    fn round(&mut self, text: Option<&str>) -> io::Result<()> {
        if let Some(text) = text {
            replace_hidden_file(self.folder.as_fd(), &name(self.own), text, false)?;
        }
        let mut heard = Vec::new();
        for other in (0..self.seats).filter(|other| *other != self.own) {
            let file = open_hidden_file(self.folder.as_fd(), &name(other)).map(File::from)?;
            let mut bytes = vec![0; FILE_BYTES_MAX];
            let len = file.read_at(&mut bytes, 0)?;
            // If it is incomplete, or nobody has written it yet, the next round reads it again.
            heard.extend(self.heard.take(other, &bytes[..len]));
        }
        if !heard.is_empty() {
            self.shared.lock().heard.extend(heard);
            (self.notify)();
        }
        Ok(())
    }
}

/// The name of a forwarder's file.
fn name(forwarder: u16) -> String {
    format!("given.{forwarder}")
}

/// The wall clock in seconds. It tells a process from an earlier one with the same process id.
fn started() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec as u32
}

fn add(sums: &mut Sums, given: &ServiceReport) {
    let sum = sums.entry(given.app.0).or_insert(ServiceReport {
        app: given.app,
        ..ServiceReport::default()
    });
    sum.device_ns = sum.device_ns.saturating_add(given.device_ns);
    sum.bytes = sum.bytes.saturating_add(given.bytes);
    sum.operations = sum.operations.saturating_add(given.operations);
}

/// Drops all applications but those with the most device time.
fn forget(sums: &mut Sums) {
    while sums.len() > APPS_MAX {
        let least = sums.values().min_by_key(|sum| sum.device_ns);
        let least = least.map(|sum| sum.app.0).expect("there are many");
        sums.remove(&least);
    }
}

/// What an application was given since its sum was last read.
fn more(now: &ServiceReport, before: &Sums) -> Option<ServiceReport> {
    let before = before.get(&now.app.0).copied().unwrap_or_default();
    let more = ServiceReport {
        app: now.app,
        device_ns: now.device_ns.saturating_sub(before.device_ns),
        bytes: now.bytes.saturating_sub(before.bytes),
        operations: now.operations.saturating_sub(before.operations),
    };
    (more.operations > 0).then_some(more)
}

fn text(life: u64, sums: &Sums) -> String {
    let mut text = format!("{HEAD} {life:016x}\n");
    for sum in sums.values() {
        let ServiceReport {
            app,
            device_ns,
            bytes,
            operations,
        } = sum;
        let line = writeln!(text, "{:016x} {device_ns} {bytes} {operations}", app.0);
        line.expect("a string takes all");
    }
    let end = format!("end {:016x}\n", mark(&text));
    text + &end
}

/// A checksum by which a file that mixes parts of two writes is recognised.
fn mark(text: &str) -> u64 {
    AppId::from_name(text).0
}

/// The start of the process and the sums in a file; None if the file is not complete.
fn parse(text: &str) -> Option<(u64, Sums)> {
    let (text, end) = text.strip_suffix('\n')?.rsplit_once("end ")?;
    if u64::from_str_radix(end, 16).ok()? != mark(text) {
        return None;
    }
    let text = text.strip_prefix(HEAD)?;
    let (life, lines) = text.split_once('\n')?;
    let life = u64::from_str_radix(life.trim(), 16).ok()?;
    let mut sums = Sums::new();
    for line in lines.lines() {
        let mut words = line.split(' ');
        let app = u64::from_str_radix(words.next()?, 16).ok()?;
        let mut number = || words.next()?.parse().ok();
        let sum = ServiceReport {
            app: AppId(app),
            device_ns: number()?,
            bytes: number()?,
            operations: number()?,
        };
        sums.insert(app, sum);
    }
    Some((life, sums))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::time::Instant;

    fn given(app: u64, device_ns: u64) -> ServiceReport {
        ServiceReport {
            app: AppId(app),
            device_ns,
            bytes: device_ns.saturating_mul(2),
            operations: 1,
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_or_not_at_all() {
        let mut sums = Sums::new();
        for app in [1, u64::MAX] {
            add(&mut sums, &given(app, 10));
            add(&mut sums, &given(app, u64::MAX));
        }
        let whole = text(7, &sums);
        assert_eq!(parse(&whole), Some((7, sums)));
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        for lines in ["12 3 4\n", "12 3 4 -5\n"] {
            let wrong = format!("{HEAD} 0\n{lines}");
            assert_eq!(parse(&format!("{wrong}end {:016x}\n", mark(&wrong))), None);
        }
        // The first half is of one time, the second of another one.
        let torn = whole.replacen("18446744073709551615", "18446744073709551614", 1);
        assert!(torn.len() == whole.len() && torn != whole);
        assert_eq!(parse(&torn), None, "{torn}");
    }

    #[test]
    fn of_many_applications_those_with_most_are_kept_and_fit() {
        let mut sums = Sums::new();
        for app in 0..2 * APPS_MAX as u64 {
            add(&mut sums, &given(u64::MAX - app, u64::MAX - app));
        }
        forget(&mut sums);
        assert_eq!(sums.len(), APPS_MAX);
        assert!(sums.contains_key(&u64::MAX) && text(u64::MAX, &sums).len() <= FILE_BYTES_MAX);
    }

    #[test]
    fn forwarders_hear_what_others_give_once() {
        let scratch = Scratch::new("gossip");
        let gossip = |own| {
            let folder = std::fs::File::open(scratch.path()).expect("folder");
            Gossip::new(OwnedFd::from(folder), own, 3, Arc::new(|| ()))
        };
        let (mut one, mut other) = (gossip(0), gossip(2));
        assert!(one.received().is_empty());
        let until = Instant::now() + Duration::from_secs(20);
        let mut sum = 0;
        // Each round tells; the first that is read is where it begins.
        while sum < 1000 {
            assert!(Instant::now() < until, "heard {sum}");
            one.broadcast(given(5, 1));
            other.broadcast(given(9, 100));
            for heard in one.received() {
                assert_eq!((heard.app, heard.bytes), (AppId(9), 2 * heard.device_ns));
                sum += heard.device_ns;
            }
            std::thread::sleep(ROUND / 4);
        }
        assert!(other.received().iter().all(|heard| heard.app == AppId(5)));
    }
}
