//! The forwarders of an export test their back end with each other, at start and while they serve.
//!
//! In `.tidegate/probe` each forwarder has a file of its own. A thread looks once a second whether
//! another forwarder calls, and then executes what the caller sends on its own mount. A forwarder
//! that starts first tests the folder alone, and then with the other running forwarders. If a
//! required property is missing, it does not start. Later it calls one of the others at intervals.
//! If the trials of a pair fail twice in a row, the forwarder whose mount showed the failure is
//! fenced.

use super::alone;
use super::property::{Finding, Findings, PROPERTIES, Property};
use super::side::{Local, Side, private_folder};
use super::talk::{BUSY_MAX, Call, Messenger, Peer, serve};
use super::{Backend, messages, trials};
use crate::config::Config;
use crate::lock::lock;
use crate::storage::PosixFiles;
use crate::thread_rights::{Work, keep_for};
use rustix::fs::AtFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};

/// The folder of trials, in the hidden folder.
const FOLDER: &str = "probe";
/// How often a forwarder looks for a call.
const POLL: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 1000 });
/// How often the thread looks whether it must end.
const NAP: Duration = Duration::from_millis(100);
/// How many others a forwarder tests with before it starts. The rest follows later.
const AT_START_MAX: usize = 3;
/// A back end on which all this takes longer counts as not answering.
const START_MAX: Duration = Duration::from_secs(90);
/// How soon a busy forwarder is called again.
const AGAIN: Duration = Duration::from_secs(5);
/// How often files are reopened.
const REOPEN: Duration = Duration::from_secs(60);
/// How long a forwarder that ends waits for the thread.
const END_MAX: Duration = Duration::from_secs(2);
/// The first word of a verdict about the other side.
const UNFIT: &str = "unfit-";

/// What is tested.
struct Probe {
    /// This forwarder's index.
    own: u16,
    /// How many forwarders there are.
    forwarders: u16,
    /// The interval of tests after the start; None: only at the start.
    every: Option<Duration>,
    /// The file system of the export.
    backend: Backend,
    /// The export, for messages.
    path: PathBuf,
    /// Whether etcd keeps the seats, so that the back end's locks need not hold between nodes.
    etcd: bool,
}

impl Probe {
    /// Drops the findings that do not matter.
    fn counts(&self, findings: Findings) -> Findings {
        match self.etcd {
            true => findings.without_locks(),
            false => findings,
        }
    }
}

/// This forwarder's part in the tests. Ends when it is dropped.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    ended: Receiver<()>,
}

struct Shared {
    ends: Arc<AtomicBool>,
    state: Mutex<State>,
    /// How many series were completed, for tests.
    tried: AtomicU64,
}

#[derive(Default)]
struct State {
    failure: Option<String>,
    hook: Option<Box<dyn FnOnce() + Send>>,
}

impl Peers {
    /// Begins for an export that forwarders on several nodes may have; None for other exports.
    pub(crate) fn of_export(config: &Config, files: &PosixFiles) -> Result<Option<Peers>, String> {
        let path = &config.export;
        let backend = Backend::of_path(path).map_err(|e| format!("{}: {e}", path.display()))?;
        if !backend.is_shared(config) {
            return Ok(None);
        }
        let every = u64::from(config.ownership.probe_s);
        let probe = Probe {
            own: config.forwarder,
            forwarders: config.seats,
            every: (every > 0).then(|| Duration::from_secs(every)),
            backend,
            path: path.clone(),
            etcd: config.ownership.etcd.is_some(),
        };
        Peers::start(files.hidden(), probe).map(Some)
    }

    /// Tests the back end, alone and with the running forwarders. Then continues in a thread. The
    /// error is one line that says which property is missing and what to do.
    fn start(hidden: BorrowedFd<'_>, probe: Probe) -> Result<Peers, String> {
        let make_side = |folder| -> Box<dyn Side> { Box::new(Local::new(folder)) };
        Peers::start_on(hidden, probe, make_side, |_| {})
    }

    /// Does the same with a mount that a test provides.
    fn start_on(
        hidden: BorrowedFd<'_>,
        probe: Probe,
        make_side: MakeSide,
        prepare: impl FnOnce(&mut Messenger),
    ) -> Result<Peers, String> {
        let path = probe.path.display().to_string();
        let system = |error: io::Error| format!("{path}/.tidegate/{FOLDER}: {error}");
        let folder = Arc::new(private_folder(hidden, FOLDER).map_err(system)?);
        let shared = Arc::new(Shared {
            ends: Arc::new(AtomicBool::new(false)),
            state: Mutex::default(),
            tried: AtomicU64::new(0),
        });
        let own = Messenger::new(folder.clone(), probe.own, shared.ends.clone());
        let mut own = own.map_err(system)?;
        prepare(&mut own);
        let (end, ended) = channel();
        let (tell, told) = channel();
        let thread = Thread {
            probe,
            folder,
            make_side,
            own,
            shared: shared.clone(),
            untried: Vec::new(),
            turn: 0,
            due: None,
        };
        let builder = std::thread::Builder::new().name("probe".to_string());
        let spawned = builder.spawn(move || {
            keep_for(Work::OwnFiles);
            thread.run(&tell, end);
        });
        spawned.map_err(system)?;
        let peers = Peers { shared, ended };
        match told.recv_timeout(START_MAX) {
            Ok(result) => result.map(|()| peers),
            Err(_) => Err(format!(
                "{path}: trials of the file system have not ended after {} s: it does not answer; \
                 see that it works, or try it with tidegate check",
                START_MAX.as_secs()
            )),
        }
    }

    /// Calls `hook` once if the back end, or this forwarder's mount of it, fails a test later.
    pub(crate) fn on_failure(&self, hook: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        match state.failure {
            Some(_) => hook(),
            None => state.hook = Some(Box::new(hook)),
        }
    }

    /// Why this forwarder must not serve any more, or None.
    pub(crate) fn failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    #[cfg(test)]
    fn tried(&self) -> u64 {
        self.shared.tried.load(Ordering::Acquire)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        // A back end that hangs must not delay the end of the process.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn fail(&self, reason: String) {
        let mut state = self.lock();
        if state.failure.is_some() {
            return;
        }
        error!("{reason}; this forwarder gives up its seats and ends");
        state.failure = Some(reason);
        if let Some(hook) = state.hook.take() {
            hook();
        }
    }
}

type MakeSide = fn(Arc<OwnedFd>) -> Box<dyn Side>;

/// The result of a series of trials with another forwarder.
enum Series {
    Fit,
    Unfit(Findings, String),
    /// The other forwarder was not running, or ended during the series.
    Nobody,
    /// The other forwarder was busy.
    Busy,
}

struct Thread {
    probe: Probe,
    folder: Arc<OwnedFd>,
    make_side: MakeSide,
    own: Messenger,
    shared: Arc<Shared>,
    /// Forwarders that were running at the start and were not tested with then.
    untried: Vec<u16>,
    /// The forwarder that was called last.
    turn: u16,
    /// When the next one is called.
    due: Option<Instant>,
}

impl Thread {
    fn run(mut self, tell: &Sender<Result<(), String>>, end: Sender<()>) {
        let begun = self.begin();
        let fit = begun.is_ok();
        // Nobody listens any more if this took too long. The thread then ends with the process.
        let _ = tell.send(begun);
        if fit {
            self.watch();
        }
        if let Err(error) = self.own.leave() {
            debug!(%error, "others are not told that this forwarder leaves");
        }
        drop(end);
    }

    /// Runs the tests at the start. The error is the missing property.
    fn begin(&mut self) -> Result<(), String> {
        self.sweep();
        let prefix = self.prefix();
        let folder = self.folder.clone();
        let alone = alone::trials(folder.as_fd(), &self.probe.backend, &prefix, true);
        self.judge(&self.probe.counts(alone), "")?;
        let there = self.there().unwrap_or_else(|error| {
            warn!(%error, "other forwarders cannot be heard");
            Vec::new()
        });
        self.due = self.probe.every.map(|every| Instant::now() + every);
        for (count, side) in there.into_iter().enumerate() {
            if count >= AT_START_MAX {
                self.untried.push(side);
                continue;
            }
            match self.series(side) {
                Ok(Series::Unfit(findings, host)) => {
                    self.judge(
                        &findings,
                        &format!(" (tried with forwarder {side} on {host})"),
                    )?;
                }
                Ok(Series::Busy) => self.untried.push(side),
                Ok(Series::Fit) => info!(
                    forwarder = side,
                    "tried the back end with another forwarder: fit"
                ),
                Ok(Series::Nobody) => {}
                Err(error) => warn!(forwarder = side, %error, "cannot be tried with"),
            }
        }
        if !self.untried.is_empty() {
            self.due = Some(Instant::now() + AGAIN);
        }
        Ok(())
    }

    /// Removes what a forwarder with this index left behind when it was killed in a trial.
    fn sweep(&self) {
        let begin = format!("t-{}-", self.probe.own);
        let Ok(entries) = rustix::fs::Dir::read_from(self.folder.as_fd()) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_bytes().starts_with(begin.as_bytes()) {
                // Another forwarder may have removed it already.
                let name = entry.file_name();
                let _ = rustix::fs::unlinkat(&*self.folder, name, AtFlags::empty());
            }
        }
    }

    /// A prefix of names for this trial alone.
    fn prefix(&self) -> String {
        let count = self.shared.tried.load(Ordering::Relaxed);
        format!("{}-{:x}-{count}", self.probe.own, self.own.life() as u32)
    }

    fn judge(&self, findings: &Findings, with: &str) -> Result<(), String> {
        let reach = self.probe.backend.reach;
        match findings.missing(true, reach) {
            None => Ok(()),
            Some(missing) => {
                let mut others = findings.all_missing(true, reach);
                others.retain(|name| *name != missing.property.name);
                let mut reason = self.reason(missing, with, &others);
                if findings.without_locks().missing(true, reach).is_none() {
                    reason.push_str("; or, as only locks are missing, keeper = \"etcd\" there");
                }
                Err(reason)
            }
        }
    }

    /// One line: the property, what was observed, what to do.
    fn reason(&self, missing: &Finding, with: &str, others: &[&str]) -> String {
        let Backend { kind, .. } = &self.probe.backend;
        let also = match others {
            [] => String::new(),
            others => format!("; also {}", others.join(", ")),
        };
        format!(
            "{} ({kind}) is not fit for forwarders on several nodes: {}: {}{with}{also}; {}; \
             docs/backends.md says more; or, if all forwarders run on one node over one mount, \
             one_node = true in [ownership]",
            self.probe.path.display(),
            missing.property.name,
            missing.seen,
            self.probe.backend.advice(missing),
        )
    }

    /// The running forwarders on other mounts than this one's.
    fn there(&mut self) -> io::Result<Vec<u16>> {
        let mut seen = Vec::new();
        let own = self.probe.own;
        for side in (0..self.probe.forwarders).filter(|side| *side != own) {
            seen.extend(self.other(side)?);
        }
        self.own.beat()?;
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let alive = self.own.running_of(&seen)?;
        for message in seen.iter().filter(|one| !alive.contains(&one.from)) {
            info!(
                forwarder = message.from,
                host = message.host,
                "not there: it was killed, or its back end does not show what is written here"
            );
        }
        Ok(alive)
    }

    /// The last message of a forwarder that may be running, on another mount.
    fn other(&mut self, side: u16) -> io::Result<Option<messages::Message>> {
        let message = self.own.read(side)?;
        let mount = self.own.mount();
        Ok(message.filter(|one| one.state == messages::State::Here && one.mount != mount))
    }

    fn series(&mut self, side: u16) -> io::Result<Series> {
        let prefix = self.prefix();
        let mut own = (self.make_side)(self.folder.clone());
        let reach = self.probe.backend.reach;
        let began = Instant::now();
        let mut peer = loop {
            match Peer::call(&mut self.own, side)? {
                Call::Talking(peer) => break peer,
                Call::Nobody | Call::Silent => return Ok(Series::Nobody),
                // The other may be calling this side: answer it first, then call again.
                Call::Busy if began.elapsed() > BUSY_MAX => return Ok(Series::Busy),
                Call::Busy => {}
            }
            self.answer()?;
        };
        let tried = trials::series(&mut *own, &mut peer, &prefix, true);
        let tried = tried.map(|findings| self.probe.counts(findings));
        let host = peer.host().to_owned();
        let result = match tried {
            Ok(findings) if findings.missing(true, reach).is_some() => {
                peer.end("")?;
                Series::Unfit(findings, host)
            }
            Ok(_) => {
                peer.end("")?;
                Series::Fit
            }
            Err(gone) => {
                debug!(forwarder = side, "trial not ended: {}", gone.0);
                self.own.beat()?;
                return Ok(Series::Nobody);
            }
        };
        self.shared.tried.fetch_add(1, Ordering::AcqRel);
        let ms = began.elapsed().as_millis() as u64;
        debug!(forwarder = side, ms, "tried");
        Ok(result)
    }

    /// Answers calls.
    fn answer(&mut self) -> io::Result<()> {
        let Some(caller) = self.own.caller()? else {
            return Ok(());
        };
        let mut own = (self.make_side)(self.folder.clone());
        let said = serve(&mut self.own, &caller, &mut *own)?;
        if let Some(property) = said.as_deref().and_then(verdict) {
            let (from, host) = (caller.from, caller.host);
            self.shared.fail(format!(
                "{}: forwarder {from} on {host} found that this forwarder's mount no longer has: \
                 {}; docs/backends.md has its settings",
                self.probe.path.display(),
                property.name
            ));
        }
        Ok(())
    }

    /// Answers calls and makes tests until the forwarder ends.
    fn watch(&mut self) {
        let mut fails = false;
        let mut opened = Instant::now();
        while !self.own.ends() && self.shared.lock().failure.is_none() {
            if opened.elapsed() > REOPEN {
                opened = Instant::now();
                self.own.reopen();
            }
            let result = self.answer().and_then(|()| self.call_one());
            if let Err(error) = &result
                && !fails
            {
                warn!(%error, "the back end cannot be tried with other forwarders");
            }
            fails = result.is_err();
            let until = Instant::now() + POLL;
            while Instant::now() < until && !self.own.ends() {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Tests with the next forwarder, if it is time.
    fn call_one(&mut self) -> io::Result<()> {
        if self.due.is_none_or(|due| due > Instant::now()) {
            return Ok(());
        }
        self.due = self.probe.every.map(|every| Instant::now() + every);
        let Some(side) = self.next()? else {
            return Ok(());
        };
        match self.series(side)? {
            Series::Unfit(..) => {}
            Series::Busy => {
                self.due = Some(Instant::now() + AGAIN);
                return Ok(());
            }
            Series::Fit | Series::Nobody => return Ok(()),
        }
        // Twice in a row, so that no accident ends a forwarder.
        if let Series::Unfit(findings, host) = self.series(side)? {
            self.fence(side, &host, &findings)?;
        }
        Ok(())
    }

    /// The next forwarder that may be running.
    fn next(&mut self) -> io::Result<Option<u16>> {
        if let Some(side) = self.untried.pop() {
            return Ok(Some(side));
        }
        let count = self.probe.forwarders;
        for step in 1..=count {
            let side = (self.turn + step) % count;
            if side != self.probe.own && self.other(side)?.is_some() {
                self.turn = side;
                return Ok(Some(side));
            }
        }
        Ok(None)
    }

    /// Fences one of two forwarders that do not see the same: the one whose mount showed the
    /// failure. If both mounts did, the one with the larger index.
    fn fence(&mut self, side: u16, host: &str, findings: &Findings) -> io::Result<()> {
        let missing = findings.missing(true, self.probe.backend.reach);
        let missing = missing.expect("it is unfit");
        let own = match missing.here {
            Some(here) => here,
            None => self.probe.own > side,
        };
        if own {
            let with = format!(" (tried with forwarder {side} on {host})");
            let failed = self.judge(findings, &with);
            self.shared.fail(failed.expect_err("it is unfit"));
            return Ok(());
        }
        warn!(
            forwarder = side,
            property = missing.property.name,
            seen = missing.seen,
            "its mount of the back end is wrong; it is told to end"
        );
        if let Call::Talking(peer) = Peer::call(&mut self.own, side)? {
            let at = PROPERTIES.iter().position(|one| one == missing.property);
            peer.end(&format!("{UNFIT}{}", at.expect("it is of the list")))?;
        }
        Ok(())
    }
}

/// The property that a verdict calls missing.
fn verdict(said: &str) -> Option<&'static Property> {
    let number: usize = said.strip_prefix(UNFIT)?.parse().ok()?;
    PROPERTIES.get(number)
}

#[cfg(test)]
mod tests;
