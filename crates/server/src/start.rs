//! Starts a forwarder: checks its configuration, makes its parts and threads, and stops them again.

mod guard;
mod seat_setup;
mod storage;
mod tidying;

use crate::adapters::gossip::Gossip;
use crate::adapters::jitter::Jitter;
use crate::adapters::kept::{self, Advertised, Kept, Texts, What};
use crate::adapters::policy_changes::PolicyChanges;
use crate::adapters::recording::Recording;
use crate::backend::{Backend, Peers};
use crate::clock::{Zero, wall_ns};
use crate::config::{Address, Config, ConfigError, Encryption, Io, rules, scheduler_options};
use crate::connections::Patience;
use crate::connections::site_secrets::SiteSecrets;
use crate::connections::ticket_desk::TicketDesk;
use crate::descriptors::Descriptors;
use crate::forwarder_loop::{ForwarderLoop, Parts, Stop};
use crate::identity::WriteCache;
use crate::seats::SeatsError;
use crate::short_turns;
use crate::storage::{
    EmulatedError, ExportError, ExportOptions, FailCall, Faults, Fence, HIDDEN, KillAfterEffect,
    PosixFiles, Slots, Trust, UringRefused, Wake, prepare_process,
};
use crate::thread_rights::{Work, keep_for, within};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidegate_forward::share_rules::Rules;
use tidegate_forward::{Access, Files, Forwarder, Input};
use tidegate_net::{ListenError, Listener, SecretError};
use tidegate_sched::{CostModel, OptionsError, Prediction, Time};
use tidegate_trace::{Header, Origin};
use tidegate_wire::{Attr, ExportId, Listed};
use tidying::Tidying;
use tracing::info;

const MS: u64 = 1_000_000;

/// Why a forwarder did not start. The message is one line that says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The exported directory does not exist, or cannot be opened.
    #[error(
        "export directory {}: {error}; name an existing directory that you may use",
        path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The exported directory cannot be used.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The emulated device cannot be made.
    #[error(transparent)]
    Device(#[from] EmulatedError),
    /// The configuration demands io_uring, and io_uring cannot be used.
    #[error("engine = \"uring\": {0}; or set engine = \"auto\" in [storage]")]
    Uring(UringRefused),
    /// The export's file system, or the way in which it is mounted, does not allow forwarders on
    /// several nodes.
    #[error("{0}")]
    NotFit(String),
    /// The process may open too few files.
    #[error("{0}")]
    Descriptors(String),
    /// The seats of the export cannot be used.
    #[error(transparent)]
    Seats(#[from] SeatsError),
    /// The configuration demands fail-over where fail-over cannot work.
    #[error("{0}")]
    FailOver(String),
    /// Forwarders on several nodes would give wrong results on this back end.
    #[error("{0}")]
    Unshared(String),
    /// The forwarder cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The shared secret cannot be used.
    #[error("secret file {} {error}", path.display())]
    Secret {
        /// The file with the secret.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        error: SecretError,
    },
    /// The policy or the share rules that are kept for the export cannot be used.
    #[error("{0}; correct or remove that file")]
    Kept(ConfigError),
    /// A file that the forwarders keep for each other cannot be read.
    #[error("{}: {error}", path.display())]
    KeptFile {
        /// The file, or the hidden folder.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The scheduler refuses its options.
    #[error("scheduler: {0}")]
    Scheduler(#[from] OptionsError),
    /// The trace that the configuration demands cannot be recorded.
    #[error("trace file {}: {error}", path.display())]
    Trace {
        /// The trace's file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The forwarder served requests, and cannot go on.
    #[error("stopped: {0}")]
    Stopped(io::Error),
    /// A call to the system failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl StartError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
        move |error| StartError::System { what, error }
    }
}

/// A forwarder that listens and does not serve yet.
pub struct Server {
    serving: ForwarderLoop,
    addresses: Vec<Address>,
    files: PosixFiles,
    /// The other forwarders, where several nodes may have the export.
    peers: Option<Peers>,
    /// What the thread does that serves.
    work: Work,
}

impl Server {
    /// Checks everything that can be wrong, and binds the addresses. Sets the umask of the process
    /// to 0, because clients have already applied their umasks to the modes that they send.
    pub fn bind(config: &Config) -> Result<Server, StartError> {
        check_directories(config)?;
        let (secrets, listeners) = (secrets(config)?, listeners(config)?);
        prepare_process();
        let (zero, descriptors) = (Zero::now(), descriptors(config)?);
        let fence = Fence::new(zero);
        let (export, mut files, cache, shared) = export(config, &descriptors, &fence)?;
        let seats = seat_setup::locks(config, &files)?;
        let peers = Peers::of_export(config, &files).map_err(StartError::NotFit)?;
        let mut scheduler = config.scheduler.clone();
        scheduler.wall_offset_ns = wall_ns();
        let (poller, waker) = ForwarderLoop::poller().map_err(StartError::system("epoll"))?;
        let notify = waker.notify();
        let slots = Slots::new(config.pool_bytes).with_pipes(descriptors.pipes_max);
        let (threads_max, made) = (descriptors.threads_max, (&files, &slots, &fence));
        let chosen = storage::choose((config, threads_max), &export, made, waker.wake())?;
        if !config.depth_written && config.device.is_none() {
            scheduler.depth = chosen.storage.depth();
        }
        let hidden = hidden(&files)?;
        let addresses: Vec<Address> = listeners.iter().map(|one| one.address().clone()).collect();
        let found = found(config, hidden.as_fd(), &addresses)?;
        let configured = (scheduler.clone(), config.shares.clone());
        let (recording, export_id) = (recording(config, scheduler.wall_offset_ns)?, found.export);
        let (scheduler, shares) = effective(config, &scheduler, &found.texts)?;
        let mut forwarder = Forwarder::new(tidegate_forward::Config {
            export: found.export,
            scheduler: scheduler.clone(),
            shares,
            ..forward_config(config, &mut files, cache, descriptors.joined_max)?
        })?;
        forwarder.handle(Time(0), Input::Forwarders(found.listed.clone()));
        forwarder.handle(Time(0), Input::Storage(chosen.facts));
        forwarder.handle(Time(0), seat_setup::ownership(config, shared));
        let kept = found.keep(&hidden, notify.clone())?;
        let parts = Parts {
            listeners,
            forwarder,
            storage: chosen.storage,
            slots,
            seats: seat_setup::keeper(config, seats, (&files, export_id), shared, &fence, &notify)?,
            policy_changes: PolicyChanges::new(configured, scheduler, config.window_ms, kept),
            secrets,
            desk: TicketDesk::start(config).map_err(StartError::system("munge = \"on\""))?,
            encryption: config.encryption,
            payload_max: config.payload_max,
            shared_memory: config.shared_memory,
            conns_max: descriptors.conns_max,
            patience: patience(config),
            reactors: config.reactors as usize,
            kill_at_request: config.faults.kill_at_request,
            jitter: jitter(config).map_err(StartError::system("timer"))?,
            zero,
            recording,
            gossip: Gossip::new(hidden, config.forwarder, config.seats, notify),
        };
        let serving =
            ForwarderLoop::new(poller, waker, parts).map_err(StartError::system("epoll"))?;
        if let Some(peers) = &peers {
            let stop = serving.stop();
            peers.on_failure(move || stop.ask());
        }
        Ok(Server {
            serving,
            addresses,
            files,
            peers,
            work: Work::of_loop(config.storage.io),
        })
    }

    /// The addresses on which the forwarder listens. A TCP port 0 is replaced by the actual port.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The effective policy, as text. Share rules may require another one than the configured one.
    pub fn policy(&self) -> Box<str> {
        self.serving.policy()
    }

    /// A handle that stops the forwarder from another thread.
    pub fn stop(&self) -> Stop {
        self.serving.stop()
    }

    /// Serves in this thread until the forwarder is stopped. True if all accepted requests were
    /// finished in time.
    pub fn run(self) -> Result<bool, StartError> {
        self.run_with(|| ())
    }

    /// The same in a thread that does nothing else: when it has started all others, it gives up the
    /// capabilities that it does not need. `goes_first`: and has a larger share of a processor, if
    /// it leaves the calls on files to other threads.
    pub(crate) fn run_alone(self, goes_first: bool) -> Result<bool, StartError> {
        let work = self.work;
        self.run_with(|| {
            if goes_first && work != Work::RingLoop {
                short_turns::go_first();
            }
            keep_for(work);
        })
    }

    fn run_with(self, started: impl FnOnce()) -> Result<bool, StartError> {
        let tidying = Tidying::start(self.files);
        let tidying = tidying.map_err(StartError::system("starting a thread"))?;
        started();
        let result = self.serving.run().map_err(StartError::Stopped);
        tidying.end();
        match self.peers.and_then(|peers| peers.failure()) {
            Some(reason) => Err(StartError::Stopped(io::Error::other(reason))),
            None => result,
        }
    }

    /// Serves in a thread of its own. Fails if the thread cannot be started.
    pub fn spawn(self) -> Result<Running, StartError> {
        let (addresses, stop) = (self.addresses.clone(), self.stop());
        let thread = std::thread::Builder::new().name("forwarder".to_string());
        let thread = thread.spawn(move || self.run_alone(false));
        let thread = thread.map_err(StartError::system("starting a thread"))?;
        Ok(Running {
            addresses,
            stop,
            thread: Some(thread),
        })
    }
}

/// A forwarder that serves in a thread of this process. Dropping it stops the forwarder.
pub struct Running {
    addresses: Vec<Address>,
    stop: Stop,
    thread: Option<JoinHandle<Result<bool, StartError>>>,
}

impl Running {
    /// The addresses on which the forwarder listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Drains and stops the forwarder. True if all accepted requests were finished in time.
    pub fn shutdown(mut self) -> Result<bool, StartError> {
        self.end().unwrap_or(Ok(true))
    }

    fn end(&mut self) -> Option<Result<bool, StartError>> {
        self.stop.ask();
        let thread = self.thread.take()?;
        Some(
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = self.end();
        }
    }
}

/// Checks what can be checked of a configuration while its forwarder may be running: that the
/// export is a directory, and that the files of its secrets can be read. Changes nothing, and
/// listens nowhere.
pub fn check_config(config: &Config) -> Result<(), StartError> {
    let wrong = |error| StartError::Directory {
        path: config.export.clone(),
        error,
    };
    match std::fs::metadata(&config.export).map_err(wrong)?.is_dir() {
        true => secrets(config).map(|_| ()),
        false => Err(wrong(io::ErrorKind::NotADirectory.into())),
    }
}

fn secrets(config: &Config) -> Result<Option<SiteSecrets>, StartError> {
    let Some(path) = &config.secret_file else {
        return Ok(None);
    };
    if config.encryption < Encryption::On && config.listen.iter().any(Address::is_remote) {
        let encryption = config.encryption.name();
        tracing::warn!(encryption, "others can read what goes over the network");
    }
    let old = config.old_secret_file.as_deref();
    let secrets = SiteSecrets::read(path, old, config.revoked_file.as_deref());
    let secrets = secrets.map_err(|(path, error)| StartError::Secret { path, error })?;
    Ok(Some(secrets))
}

fn listeners(config: &Config) -> Result<Vec<Listener>, StartError> {
    let listeners = config.listen.iter().map(Listener::bind);
    listeners
        .collect::<Result<_, _>>()
        .map_err(StartError::from)
}

fn jitter(config: &Config) -> io::Result<Option<Jitter>> {
    let emulation = &config.emulation;
    match emulation.message_jitter_us {
        0 => Ok(None),
        max_us => Jitter::new(max_us, emulation.message_jitter_seed).map(Some),
    }
}

fn check_directories(config: &Config) -> Result<(), StartError> {
    let path = &config.export;
    let error = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            guard::check(config)?;
            return guard::check_sockets(config);
        }
        Ok(_) => io::ErrorKind::NotADirectory.into(),
        Err(error) => error,
    };
    Err(StartError::Directory {
        path: path.to_path_buf(),
        error,
    })
}

fn descriptors(config: &Config) -> Result<Descriptors, StartError> {
    Descriptors::of_process(config).map_err(StartError::Descriptors)
}

/// Opens the export. Returns its options, its files, the memory of unsynced bytes, and whether
/// forwarders on several nodes may have the export.
fn export(
    config: &Config,
    descriptors: &Descriptors,
    fence: &Fence,
) -> Result<(ExportOptions, PosixFiles, WriteCache, bool), StartError> {
    guard::check_acting()?;
    let unknown = || StartError::system("the export's file system");
    let backend = Backend::of_path(&config.export).map_err(|error| StartError::Directory {
        path: config.export.clone(),
        error,
    })?;
    let trust = backend.trust(config);
    let options = ExportOptions {
        // Where locks reach other nodes, the back end itself tells what is open.
        apart: config.ownership.etcd.is_some().then(|| fence.clone()),
        ..export_options(config, descriptors, trust)
    };
    let files = PosixFiles::open(&config.export, &options)?;
    if backend.is_fuse() {
        storage::check_groups(config, &files)?;
    }
    if !trust.pages {
        storage::check_layers(config, &backend)?;
    } else {
        storage::warn_of_layers(config, &backend);
    }
    let cache = match trust.pages {
        true => WriteCache::of_page_cache(files.hidden(), backend.is_fuse()).map_err(unknown())?,
        false => WriteCache::of_servers(),
    };
    Ok((options, files, cache, backend.is_shared(config)))
}

fn export_options(config: &Config, descriptors: &Descriptors, trust: Trust) -> ExportOptions {
    let kill = config.faults.kill_after_effect.clone();
    let kill = kill.map(|(operation, count)| KillAfterEffect { operation, count });
    let fail = config.faults.fail_call.clone();
    let fail = fail.map(|(operation, count, errno)| FailCall {
        operation,
        count,
        errno,
    });
    let faults = match (config.faults.dead_mount_at, kill, fail) {
        (Some(job), ..) => Faults::dead_mount_at(job),
        (None, Some(kill), _) => Faults::kill_after(kill),
        (None, None, Some(fail)) => Faults::fail_call(fail),
        (None, None, None) => Faults::default(),
    };
    ExportOptions {
        fds_max: Some(descriptors.files_max),
        direct: config.storage.io == Io::Direct && trust.pages,
        trust,
        faults,
        ..ExportOptions::new(config.layout())
    }
}

fn hidden(files: &PosixFiles) -> Result<OwnedFd, StartError> {
    let hidden = files.hidden().try_clone_to_owned();
    hidden.map_err(StartError::system("the hidden folder"))
}

fn root(files: &mut PosixFiles) -> Result<Attr, StartError> {
    files.root().map_err(|access| {
        let error = match access {
            Access::Errno(errno) => io::Error::from_raw_os_error(errno.0.into()),
            Access::UnknownHandle | Access::NotHeld => io::ErrorKind::NotFound.into(),
        };
        StartError::System {
            what: "the export's root",
            error,
        }
    })
}

fn forward_config(
    config: &Config,
    files: &mut PosixFiles,
    cache: WriteCache,
    joined_max: usize,
) -> Result<tidegate_forward::Config, StartError> {
    let process = getrandom::u64().map_err(|error| StartError::System {
        what: "random numbers",
        error: io::Error::other(error.to_string()),
    })?;
    Ok(tidegate_forward::Config {
        forwarder: config.forwarder,
        layout: config.layout(),
        fail_over: config.fail_over,
        payload_max: config.payload_max,
        pipelining: config.pipelining,
        pool_bytes_max: config.pool_bytes,
        credits: config.credits,
        sessions_max: config.sessions_max,
        sessions_of_user_max: config.sessions_of_user_max,
        connections: config.reactors as u16,
        joined_max: joined_max as u32,
        lease_ns: u64::from(config.lease_ms) * MS,
        loan_ns: u64::from(config.loan_ms()) * MS,
        grace_ns: u64::from(config.grace_ms) * MS,
        uid: rustix::process::geteuid().as_raw(),
        acts_for_callers: files.acts_for_callers(),
        host: cache.host,
        boot: cache.boot,
        export: ExportId::default(),
        process,
        root: root(files)?,
        scheduler: config.scheduler.clone(),
        shares: config.shares.clone(),
        record: config.trace.is_some(),
    })
}

fn patience(config: &Config) -> Patience {
    Patience {
        stall_ns_max: u64::from(config.stall_ms) * MS,
        hello_ns_max: u64::from(config.hello_ms) * MS,
        payload_rate_min: config.payload_rate_min,
    }
}

/// What the forwarders of the export keep for each other, as it was at the start.
struct Found {
    export: ExportId,
    own: Advertised,
    texts: Texts,
    listed: Box<[Listed]>,
}

impl Found {
    /// Starts the thread that watches and writes the kept files.
    fn keep(self, hidden: &OwnedFd, notify: Wake) -> Result<Kept, StartError> {
        let started = hidden
            .try_clone()
            .and_then(|folder| Kept::start(folder, self.own, (self.texts, self.listed), notify));
        started.map_err(StartError::system("starting a thread"))
    }
}

/// Reads what is kept for the export, and announces to the other forwarders where this one listens.
fn found(
    config: &Config,
    hidden: BorrowedFd<'_>,
    listening: &[Address],
) -> Result<Found, StartError> {
    let path = config.export.join(HIDDEN);
    let wrong = |path: PathBuf| move |error| StartError::KeptFile { path, error };
    let export = kept::export_id(hidden).map_err(wrong(path.join("export")))?;
    let told = match config.advertise.is_empty() {
        true => kept::advertised(listening),
        false => config.advertise.clone(),
    };
    let own = Advertised::new(config.forwarder, config.seats, &told);
    own.tell(hidden);
    Ok(Found {
        export,
        own,
        texts: Texts::read(hidden).map_err(wrong(path.clone()))?,
        listed: kept::forwarders(hidden, config.seats).map_err(wrong(path))?,
    })
}

/// The effective policy and rules at the start: those set at run time, else the configuration's.
fn effective(
    config: &Config,
    configured: &tidegate_sched::Options,
    texts: &Texts,
) -> Result<(tidegate_sched::Options, Rules), StartError> {
    let file = |what: What| {
        let path = config.export.join(HIDDEN).join(what.file());
        path.display().to_string()
    };
    let mut scheduler = configured.clone();
    if let Some(text) = &texts.policy {
        let path = file(What::Policy);
        // Another forwarder, which has traces, may have kept it.
        let mut base = configured.clone();
        base.prediction
            .get_or_insert_with(|| Arc::new(Prediction::new(&[], &CostModel::default())));
        let kept = scheduler_options(text, &base, config.window_ms);
        scheduler =
            kept.map_err(|error| StartError::Kept(ConfigError::new(&path, error.what())))?;
        let policy = &scheduler.policy;
        info!("policy {policy} from {path}, in the place of the configuration's");
    }
    let mut shares = config.shares.clone();
    if let Some(text) = &texts.shares {
        let path = file(What::Shares);
        shares = rules(text, &path).map_err(StartError::Kept)?;
        let count = shares.len();
        info!("{count} rules of shares from {path}, in the place of the configuration's");
    }
    Ok((scheduler, shares))
}

/// Begins the trace that the configuration asks for.
fn recording(config: &Config, zero_wall_ns: u64) -> Result<Option<Recording>, StartError> {
    let Some(trace) = &config.trace else {
        return Ok(None);
    };
    let header = Header {
        zero_wall_ns,
        forwarders: config.seats,
        stripe: config.stripe,
        origin: Origin::Forwarder,
    };
    let path = trace.file.clone();
    let begin = || Recording::begin(path, trace.buffer_records, config.forwarder, &header);
    match within(Work::OwnFiles, begin) {
        Ok(recording) => Ok(Some(recording)),
        Err(error) => Err(StartError::Trace {
            path: trace.file.clone(),
            error,
        }),
    }
}
