//! A forwarder from its configuration: checks, parts, threads, start and stop.

mod seats;
mod storage;

use crate::backend::{Backend, Trust};
use crate::config::{Address, Config, ConfigError, Io, rules_file};
use crate::descriptors::Descriptors;
use crate::gossip::Gossip;
use crate::identity::{self, Place};
use crate::reactor::auth::Secret;
use crate::reactor::jitter::Jitter;
use crate::reactor::record::Trace;
use crate::reactor::shares::{ShareKeeper, file_in};
use crate::reactor::transport::Listener;
use crate::reactor::{Parts, Reactor, Stop};
use crate::seats::SeatsError;
use crate::storage::{
    EmulatedError, ExportError, ExportOptions, Faults, Fence, HIDDEN, KillAfterEffect, PosixFiles,
    Slots, UringRefused, prepare_process,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_forward::shares::Rules;
use tidegate_forward::{Access, Files, Forwarder, Input};
use tidegate_sched::{OptionsError, Time};
use tidegate_trace::{Header, Origin};
use tidegate_wire::Attr;
use tracing::{info, warn};

const MS: u64 = 1_000_000;

/// Why a forwarder did not start: one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The exported directory is not there.
    #[error(
        "export directory {}: {error}; name an existing directory that you may use",
        path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The exported directory cannot be used.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The emulated device cannot be had.
    #[error(transparent)]
    Device(#[from] EmulatedError),
    /// io_uring was asked for by name and cannot be had.
    #[error("engine = \"uring\": {0}; or set engine = \"auto\" in [storage]")]
    Uring(UringRefused),
    /// The seats of the export cannot be used.
    #[error(transparent)]
    Seats(#[from] SeatsError),
    /// Fail-over was asked for where it cannot work.
    #[error("{0}")]
    FailOver(String),
    /// Forwarders on several nodes would not be right over this back end.
    #[error("{0}")]
    Unshared(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}; {advice}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        error: io::Error,
        /// What to do.
        advice: String,
    },
    /// The shared secret cannot be used.
    #[error("secret file {} {what}", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        what: String,
    },
    /// The rules of shares that were written down cannot be used.
    #[error("{0}; correct or remove that file")]
    Shares(ConfigError),
    /// The scheduler refuses its options.
    #[error("scheduler: {0}")]
    Scheduler(#[from] OptionsError),
    /// Requests cannot be recorded as asked for.
    #[error("trace file {}: {error}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It served, and cannot go on.
    #[error("stopped: {0}")]
    Stopped(io::Error),
    /// The system lacks something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: io::Error,
    },
}

impl StartError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
        move |error| StartError::System { what, error }
    }
}

/// A forwarder that listens and has not begun to serve.
pub struct Server {
    reactor: Reactor,
    addresses: Vec<Address>,
    files: PosixFiles,
}

impl Server {
    /// Checks everything that can be wrong, and binds the addresses. Sets the process's umask to 0,
    /// because modes come from clients that have applied their own.
    pub fn bind(config: &Config) -> Result<Server, StartError> {
        check_directory(&config.export)?;
        let secret = config
            .secret_file
            .as_deref()
            .map(Secret::read)
            .transpose()?;
        let listeners = config
            .listen
            .iter()
            .map(Listener::bind)
            .collect::<Result<Vec<_>, _>>()?;
        prepare_process();
        let descriptors = Descriptors::of_process(config.sessions_max);
        if let Some(warning) = descriptors.warning(config.sessions_max) {
            warn!("{warning}");
        }
        let (export, mut files, place, shared) = export(config, &descriptors)?;
        let seats = seats::locks(config, &files)?;
        let root = root(&mut files)?;
        let zero = Instant::now();
        let fence = Fence::new(zero);
        let mut scheduler = config.scheduler.clone();
        let wall_offset_ns = identity::wall_ns();
        scheduler.wall_offset_ns = wall_offset_ns;
        let (poll, waker) = Reactor::poll().map_err(StartError::system("epoll"))?;
        let slots = Slots::new(config.pool_bytes);
        let chosen = storage::choose(config, &export, &files, &slots, &waker, &fence)?;
        if !config.depth_written && config.device.is_none() {
            scheduler.depth = chosen.storage.depth();
        }
        let hidden = files.hidden().try_clone_to_owned();
        let hidden = hidden.map_err(StartError::system("the hidden folder"))?;
        let addresses = listeners.iter().map(|one| one.address().clone()).collect();
        let hidden_path = config.export.join(HIDDEN);
        let shares = shares(config, &hidden_path)?;
        let joined_max = descriptors.joined_max;
        let core = forward_config(config, root, place, &scheduler, shares, joined_max);
        let mut forwarder = Forwarder::new(core)?;
        forwarder.handle(Time(0), Input::Storage(chosen.facts));
        let parts = Parts {
            listeners,
            forwarder,
            storage: chosen.storage,
            slots,
            seats: seats::keeper(config, seats, &files, shared, &fence, &waker)?,
            shares: ShareKeeper::new(config.shares.clone(), &hidden_path, waker.clone()),
            secret,
            payload_max: config.payload_max,
            shared_memory: config.shared_memory,
            conns_max: descriptors.conns_max,
            stall_ns_max: u64::from(config.stall_ms) * MS,
            reactors: config.reactors as usize,
            kill_at_request: config.faults.kill_at_request,
            jitter: jitter(config).map_err(StartError::system("timer"))?,
            scheduler,
            window_ms: config.window_ms,
            zero,
            trace: trace(config, wall_offset_ns)?,
            gossip: Gossip::new(hidden, config.forwarder, config.layout.seats, waker.clone()),
        };
        let reactor = Reactor::new(poll, waker, parts).map_err(StartError::system("epoll"))?;
        Ok(Server {
            reactor,
            addresses,
            files,
        })
    }

    /// Where it listens; a TCP port 0 has become the one that was given.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The policy that is followed, in words: with rules of shares perhaps not the one asked for.
    pub fn policy(&self) -> Box<str> {
        self.reactor.policy()
    }

    /// Stops it from elsewhere.
    pub fn stop(&self) -> Stop {
        self.reactor.stop()
    }

    /// Serves in this thread until it is stopped. True if everything accepted was finished in time.
    pub fn run(self) -> Result<bool, StartError> {
        let (end, ended) = channel::<()>();
        let files = self.files;
        let tidying = std::thread::Builder::new().name("tidy".to_string());
        let tidying = tidying.spawn(move || {
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                files.tidy();
            }
        });
        let tidying = tidying.map_err(StartError::system("starting a thread"))?;
        let result = self.reactor.run().map_err(StartError::Stopped);
        drop::<Sender<()>>(end);
        // A panic there is its own report; the forwarder has ended in order.
        let _ = tidying.join();
        result
    }

    /// Serves in a thread of its own.
    pub fn spawn(self) -> Result<Running, StartError> {
        let (addresses, stop) = (self.addresses.clone(), self.stop());
        let thread = std::thread::Builder::new().name("forwarder".to_string());
        let thread = thread.spawn(move || self.run());
        let thread = thread.map_err(StartError::system("starting a thread"))?;
        Ok(Running {
            addresses,
            stop,
            thread: Some(thread),
        })
    }
}

/// A forwarder that serves in a thread of this process. Dropping it stops it.
pub struct Running {
    addresses: Vec<Address>,
    stop: Stop,
    thread: Option<JoinHandle<Result<bool, StartError>>>,
}

impl Running {
    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Drains and ends it. True if everything accepted was finished in time.
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

/// Whether a file can serve as shared secret; the words for the user if not.
pub fn check_secret(path: &Path) -> Result<(), StartError> {
    Secret::read(path).map(|_| ())
}

fn jitter(config: &Config) -> io::Result<Option<Jitter>> {
    let emulation = &config.emulation;
    match emulation.message_jitter_us {
        0 => Ok(None),
        max_us => Jitter::new(max_us, emulation.message_jitter_seed).map(Some),
    }
}

fn check_directory(path: &Path) -> Result<(), StartError> {
    let error = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => io::ErrorKind::NotADirectory.into(),
        Err(error) => error,
    };
    Err(StartError::Directory {
        path: path.to_path_buf(),
        error,
    })
}

/// The files of the export, how they are exported, where what is written to them lies, and whether
/// forwarders on several nodes may have them.
fn export(
    config: &Config,
    descriptors: &Descriptors,
) -> Result<(ExportOptions, PosixFiles, Place, bool), StartError> {
    let unknown = || StartError::system("the export's file system");
    let backend = Backend::of_path(&config.export).map_err(unknown())?;
    let trust = backend.trust(config);
    let options = export_options(config, descriptors, trust);
    let files = PosixFiles::open(&config.export, &options)?;
    let place = Place::of(&backend, trust, files.hidden()).map_err(unknown())?;
    Ok((options, files, place, backend.is_shared(config)))
}

fn export_options(config: &Config, descriptors: &Descriptors, trust: Trust) -> ExportOptions {
    let kill = config.faults.kill_after_effect.clone();
    let kill = kill.map(|(operation, count)| KillAfterEffect { operation, count });
    ExportOptions {
        handles_max: Some(descriptors.handles_max),
        direct: config.storage.io == Io::Direct && trust.pages,
        trust,
        faults: Faults::new(kill, None),
        ..ExportOptions::new(config.layout)
    }
}

fn root(files: &mut PosixFiles) -> Result<Attr, StartError> {
    files.root().map_err(|access| {
        let error = match access {
            Access::Errno(errno) => io::Error::from_raw_os_error(errno.0.into()),
            Access::UnknownHandle => io::ErrorKind::NotFound.into(),
        };
        StartError::System {
            what: "the export's root",
            error,
        }
    })
}

fn forward_config(
    config: &Config,
    root: Attr,
    place: Place,
    scheduler: &tidegate_sched::Options,
    shares: Rules,
    joined_max: usize,
) -> tidegate_forward::Config {
    tidegate_forward::Config {
        forwarder: config.forwarder,
        layout: config.layout,
        fail_over: config.fail_over,
        payload_max: config.payload_max,
        pipelining: config.pipelining,
        pool_bytes_max: config.pool_bytes,
        credits: config.credits,
        sessions_max: config.sessions_max,
        connections: config.reactors as u16,
        joined_max: joined_max as u32,
        lease_ns: u64::from(config.lease_ms) * MS,
        grace_ns: u64::from(config.grace_ms) * MS,
        uid: rustix::process::geteuid().as_raw(),
        host: place.host,
        boot: place.boot,
        root,
        scheduler: scheduler.clone(),
        shares,
        record: config.trace.is_some(),
    }
}

/// The rules that are in force at first: those written down at run time, else the configuration's.
fn shares(config: &Config, hidden: &Path) -> Result<Rules, StartError> {
    let file = file_in(hidden);
    match rules_file(&file) {
        Ok(None) => Ok(config.shares.clone()),
        Ok(Some(saved)) => {
            let (rules, file) = (saved.len(), file.display());
            info!("{rules} rules of shares from {file}, in the place of the configuration's");
            Ok(saved)
        }
        Err(error) => Err(StartError::Shares(error)),
    }
}

/// Begins the trace that the configuration asks for.
fn trace(config: &Config, zero_wall_ns: u64) -> Result<Option<Trace>, StartError> {
    let Some(trace) = &config.trace else {
        return Ok(None);
    };
    let header = Header {
        zero_wall_ns,
        forwarders: config.layout.seats,
        stripe: config.layout.stripe,
        origin: Origin::Forwarder,
    };
    let path = trace.file.clone();
    match Trace::begin(path, trace.buffer_records, config.forwarder, &header) {
        Ok(trace) => Ok(Some(trace)),
        Err(error) => Err(StartError::Trace {
            path: trace.file.clone(),
            error,
        }),
    }
}
