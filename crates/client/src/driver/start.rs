//! Makes a client from its options: checks addresses and secret, and starts the I/O thread.

use super::Host;
use super::arena::Arena;
use super::leader::LeaderFollower;
use super::reactor::Reactor;
use super::shared::Shared;
use super::signal_guard::SignalGuard;
use crate::application::app_id;
use crate::core::CoreOptions;
use crate::options::{ConnectError, Options};
use crate::wire::{Attr, NAME_MAX};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use tidegate_net::{Address, Dialer, Secret};

impl Host {
    /// Checks the options and starts the I/O thread.
    pub(super) fn set_up(options: &Options, core: CoreOptions) -> Result<Host, ConnectError> {
        let dialers: Result<Vec<Dialer>, _> = options.forwarders.iter().map(dialer).collect();
        let secret = match &options.secret_file {
            None => None,
            Some(path) => match Secret::read(path) {
                Ok(secret) => Some(secret),
                Err(error) => return Err(ConnectError::Secret(path.clone(), error)),
            },
        };
        let dialers = dialers?;
        prepare_fabric(options, &dialers)?;
        let arena = arena(options);
        let reaches_memory = |dialer: &Dialer| dialer.address().reaches_memory();
        let shares_arena = arena.is_some() && dialers.iter().any(reaches_memory);
        let (reactor, waker) = Reactor::new(dialers, secret, &core, options.embedded)?;
        let in_flight_bytes_max = options.in_flight_bytes_max;
        let names = options.forwarders.clone();
        let shared = Arc::new(Shared::new(
            (core, names),
            waker,
            in_flight_bytes_max,
            arena,
            shares_arena,
        ));
        let leader = Arc::new(LeaderFollower::new(reactor));
        let thread = spawn(&shared, &leader)?;
        Ok(Host {
            shared,
            leader,
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
            root: Attr::default(),
            reached: String::new(),
            left_out: Vec::new(),
            app: app_id(&options.application),
            timeout: options.timeout,
            open_next: AtomicU64::new(1),
        })
    }
}

/// Prepares libfabric for its addresses, before the time to connect begins.
fn prepare_fabric(options: &Options, dialers: &[Dialer]) -> Result<(), ConnectError> {
    let mut addresses = dialers.iter().map(Dialer::address);
    let Some(address) = addresses.find(|address| address.provider.is_some()) else {
        return Ok(());
    };
    let unreachable = |why: String| ConnectError::Unreachable(format!("{address}: {why}"));
    if options.embedded.place.is_some() {
        let why = "libfabric has descriptors of its own, which the program may close";
        return Err(unreachable(why.to_string()));
    }
    tidegate_fabric::load().map_err(|error| unreachable(error.to_string()))
}

/// The dialer for this address.
fn dialer(text: &String) -> Result<Dialer, ConnectError> {
    let address: Address = text
        .parse()
        .map_err(|_| ConnectError::Address(text.clone()))?;
    Dialer::new(address).map_err(|error| ConnectError::Unreachable(format!("{text}: {error}")))
}

/// Memory for payload, in which forwarders on this node, or through libfabric, work. None: all
/// payload goes through the connections.
fn arena(options: &Options) -> Option<Arc<Arena>> {
    let bytes = options.shared_memory_bytes;
    if bytes == 0 {
        return None;
    }
    match Arena::new(bytes, options.embedded.place) {
        Ok(arena) => Some(arena),
        Err(error) => {
            tracing::info!(%error, "no memory to share with forwarders");
            None
        }
    }
}

/// Starts the I/O thread. It takes no signals: they are the program's.
fn spawn(shared: &Arc<Shared>, leader: &Arc<LeaderFollower>) -> std::io::Result<JoinHandle<()>> {
    let (shared, leader) = (Arc::clone(shared), Arc::clone(leader));
    let body = move || {
        leader.thread_begins();
        // Ends all calls after a panic too, so that no thread waits for ever.
        let _ = catch_unwind(AssertUnwindSafe(|| leader.run(&shared)));
        shared.abandon();
    };
    let _guard = SignalGuard::begin();
    thread::Builder::new()
        .name("tidegate-io".to_string())
        .spawn(body)
}

pub(super) fn core_options(options: &Options) -> Result<CoreOptions, ConnectError> {
    let mut client = 0;
    while client == 0 {
        client = getrandom::u64().map_err(|e| std::io::Error::other(e.to_string()))?;
    }
    let name = options.name.as_bytes();
    Ok(CoreOptions {
        client,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        name: name[..name.len().min(NAME_MAX)].into(),
        forwarders: options.forwarders.len(),
        export: options.export,
        asks: false,
        payload_max: options.payload_max_allowed(),
        connections: options.connections_allowed(),
        pipeline: options.pipeline(),
        merge_blocks: options.merge_blocks,
        names_max: options.names_max,
    })
}
