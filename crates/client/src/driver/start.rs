//! Makes a client from its options, and ends it. The client asks the forwarders of its list who
//! they are, starts the I/O thread, and waits for the first session. [`list`](crate::list) checks,
//! orders and completes the list with the forwarders' answers.

use super::leader::LeaderFollower;
use super::reply_memory::ReplyMemory;
use super::shared::{Shared, State};
use super::sockets::{Origin, Proof, SecretFile, Sockets};
use super::tickets::Tickets;
use super::{Host, SignalGuard};
use crate::application::app_id;
use crate::arena::Arena;
use crate::core::{Application, CoreOptions, Member, Told};
use crate::list::{self, Candidate, Whole};
use crate::options::{ConnectError, Options};
use crate::ticket::Ticket;
use crate::wire::{Attr, ExportId, NAME_MAX};
use std::mem;
use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tidegate_net::{Address, Dialer, Secret};

const DAY: Duration = Duration::from_secs(86_400);

/// How long the client waits for forwarders without an answer once another has answered. A node
/// that is down must not keep a mount from starting.
const SILENCE_MAX: Duration = Duration::from_millis(500);

/// Pause before asking again for addresses that the answering forwarders do not know yet:
/// forwarders that were started together learn of each other within a second or two.
const LEARN_WAIT: Duration = Duration::from_millis(250);

impl Host {
    /// Asks the forwarders who they are, starts the I/O thread and waits for the first session.
    pub(crate) fn start(options: Options) -> Result<Host, ConnectError> {
        if options.forwarders.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let (options, left_out) = ask_all(options)?;
        let mut host = Host::set_up(&options, core_options(&options)?)?;
        host.name_application(Application {
            name: options.application.clone(),
            job: options.job.clone(),
            project: options.project.clone(),
            caller: None,
        });
        host.root = host.first_session(&options.forwarders, options.connect_timeout)?;
        host.reached = options.to_text();
        host.left_out = left_out;
        Ok(host)
    }

    /// Waits until a forwarder has granted a session; the error says why none has.
    fn first_session(&self, addresses: &[String], timeout: Duration) -> Result<Attr, ConnectError> {
        let until = Instant::now() + timeout.min(DAY);
        self.shared.watch_sessions(|state| {
            if let Some(root) = state.core.root() {
                return Break(Ok(root));
            }
            let left = until.saturating_duration_since(Instant::now());
            let refused = state.peers.iter().all(|peer| peer.refused);
            match refused || left.is_zero() || self.shared.is_closed() {
                true => Break(Err(list::nobody(&candidates(addresses, state)))),
                false => Continue(left),
            }
        })
    }

    /// Waits until each forwarder has answered who it is or cannot be reached. Where none has
    /// answered it waits until `until`; else those without an answer have [`SILENCE_MAX`] more.
    fn candidates(
        &self,
        addresses: &[String],
        until: Instant,
    ) -> Result<Vec<Candidate>, ConnectError> {
        let mut first = None;
        self.shared.watch_sessions(|state| {
            let members = state.core.members();
            let here = members.iter().any(|it| matches!(it, Member::Known(_)));
            let silent = members.iter().any(|it| matches!(it, Member::Silent));
            let refused = state.peers.iter().all(|peer| peer.refused);
            let now = Instant::now();
            let until = match here {
                true => until.min(*first.get_or_insert(now) + SILENCE_MAX),
                false => until,
            };
            let left = until.saturating_duration_since(now);
            match (here && !silent) || refused || left.is_zero() || self.shared.is_closed() {
                true => Break(Ok(candidates(addresses, state))),
                false => Continue(left),
            }
        })
    }

    /// Asks the forwarder at this address who it is.
    pub(crate) fn ask_one(options: &Options, address: &str) -> Result<Told, ConnectError> {
        let until = Instant::now() + options.connect_timeout.min(DAY);
        let host = Host::asking(options, vec![address.to_string()])?;
        let told = host.shared.watch_sessions(|state| {
            let left = until.saturating_duration_since(Instant::now());
            match (state.core.members().first(), state.core.member_clock(0)) {
                (Some(Member::Known(hello)), Some(clock)) => Break(Ok(Told {
                    hello: hello.clone(),
                    clock,
                })),
                (Some(Member::Silent), _)
                    if !(state.peers[0].refused || left.is_zero() || host.shared.is_closed()) =>
                {
                    Continue(left)
                }
                _ => Break(Err(list::nobody(&candidates(
                    &host.options.forwarders,
                    state,
                )))),
            }
        });
        host.shutdown();
        told
    }

    /// A client that only asks who is at these addresses.
    fn asking(options: &Options, addresses: Vec<String>) -> Result<Host, ConnectError> {
        let options = Options {
            forwarders: addresses,
            // Who asks transfers no payload.
            shared_memory_bytes: 0,
            ..options.clone()
        };
        let core = CoreOptions {
            asks: true,
            ..core_options(&options)?
        };
        Host::set_up(&options, core)
    }

    /// Checks the options and starts the I/O thread.
    fn set_up(options: &Options, core: CoreOptions) -> Result<Host, ConnectError> {
        let dialers: Result<Vec<Dialer>, _> = options.forwarders.iter().map(dialer).collect();
        let dialers = dialers?;
        let proof = proof(options, &dialers, core.asks)?;
        let tickets = proof.as_ref().and_then(Proof::tickets);
        prepare_fabric(options, &dialers)?;
        let reaches_memory = |dialer: &Dialer| dialer.address().reaches_memory();
        let arena = match dialers.iter().any(reaches_memory) {
            true => arena(options),
            false => None,
        };
        let reply_memory = ReplyMemory::new(options.shared_memory_bytes);
        let (sockets, waker) = Sockets::new(dialers, proof, &core, options.embedded)?;
        let in_flight_bytes_max = options.in_flight_bytes_max;
        let names = options.forwarders.clone();
        let shared = Arc::new(Shared::new(
            (core, names),
            waker,
            in_flight_bytes_max,
            (arena, reply_memory),
        ));
        let leader = Arc::new(LeaderFollower::new(sockets));
        let thread = spawn(&shared, &leader)?;
        Ok(Host {
            shared,
            leader,
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
            root: Attr::default(),
            reached: String::new(),
            options: options.clone(),
            tickets,
            left_out: Vec::new(),
            app: app_id(&options.application),
            timeout: options.timeout,
            open_next: AtomicU64::new(1),
        })
    }

    /// Says goodbye and ends the thread.
    pub(crate) fn shutdown(&self) {
        if self.is_foreign() {
            return;
        }
        self.shared.shutdown();
        self.leader.wake_io_thread();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The panic hook has reported its panic, and every call has ended with EIO.
            let _ = thread.join();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.is_foreign() {
            // The thread is the parent's.
            let thread = self
                .thread
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            mem::forget(thread.take());
        } else {
            self.shutdown();
        }
    }
}

/// The options with all forwarders of the export, in the order of the layout; and the addresses of
/// the list that are left out, with the reason, one line each.
fn ask_all(options: Options) -> Result<(Options, Vec<String>), ConnectError> {
    if options.export.is_some() {
        // The process that wrote the line has asked the forwarders.
        return Ok((options, Vec::new()));
    }
    let named = list::read(&options.forwarders)?;
    let until = Instant::now() + options.connect_timeout.min(DAY);
    loop {
        match once(&options, &named, until) {
            Err(ConnectError::Unknown(_)) if Instant::now() + LEARN_WAIT < until => {
                std::thread::sleep(LEARN_WAIT);
            }
            Err(error) => return Err(error),
            Ok((whole, export)) => {
                let options = Options {
                    forwarders: whole.forwarders,
                    export: Some(export),
                    ..options
                };
                return Ok((options, whole.left_out));
            }
        }
    }
}

/// Asks the forwarders of the list, then those that these name.
fn once(
    options: &Options,
    named: &[String],
    until: Instant,
) -> Result<(Whole, ExportId), ConnectError> {
    let asked = ask(options, named.to_vec(), until)?;
    let checked = list::check(&asked)?;
    let export = checked.export;
    let missing = checked.missing().into_iter();
    let learned: Vec<String> = missing.flat_map(|(_, addresses)| addresses).collect();
    // The answers of these forwarders are checked like those of the list.
    let learned = match learned.is_empty() {
        true => Vec::new(),
        false => ask(options, learned, Instant::now() + SILENCE_MAX)?,
    };
    let whole = checked.complete(&learned)?;
    for (index, address) in whole.forwarders.iter().enumerate() {
        let mut all = asked.iter().chain(&learned);
        let found = all.find(|candidate| candidate.address == *address);
        if let Some(down) = found.filter(|it| !matches!(it.member, Member::Known(_))) {
            tracing::warn!(
                forwarder = index,
                %address,
                trouble = list::trouble_of(down),
                "a forwarder is down; it is checked when it comes"
            );
        }
    }
    Ok((whole, export))
}

/// Asks all of them at once. Ends when all have answered or refused, or when one has answered and
/// the others had their time; where none answers, at `until`.
fn ask(
    options: &Options,
    addresses: Vec<String>,
    until: Instant,
) -> Result<Vec<Candidate>, ConnectError> {
    let host = Host::asking(options, addresses)?;
    let candidates = host.candidates(&host.options.forwarders, until);
    host.shutdown();
    candidates
}

/// What the client knows of the forwarders at these addresses.
fn candidates(addresses: &[String], state: &State) -> Vec<Candidate> {
    let members = state.core.members();
    let each = addresses.iter().zip(&state.peers).enumerate();
    let candidates = each.map(|(index, (address, peer))| Candidate {
        address: address.clone(),
        member: members.get(index).cloned().unwrap_or_default(),
        refused: peer.refused,
        trouble: peer.trouble.clone(),
    });
    candidates.collect()
}

/// What the client proves to forwarders of other nodes, if there are some. `asks`: it will end
/// soon, and needs one ticket.
fn proof(options: &Options, dialers: &[Dialer], asks: bool) -> Result<Option<Proof>, ConnectError> {
    let origin = match (&options.secret_file, &options.tickets) {
        (Some(path), _) => match Secret::read(path) {
            Ok(secret) => Origin::File(SecretFile::new(
                path.clone(),
                secret,
                options.embedded.thread_begins,
            )),
            Err(error) => return Err(ConnectError::Secret(path.clone(), error)),
        },
        (None, Some(mount)) if dialers.iter().any(|it| it.address().is_remote()) => {
            let (from, place) = (mount.clone(), options.embedded.place);
            let tickets = Tickets::begin(Box::new(move || Ticket::take(&from, place)), false);
            let tickets = tickets.map_err(|error| ConnectError::Ticket(mount.clone(), error))?;
            Origin::Tickets(kept(tickets, options, asks)?)
        }
        (None, None) if dialers.iter().any(|it| it.address().is_remote()) => {
            let Some(munge) = options.munge.clone() else {
                return Ok(None);
            };
            let addresses: Vec<Address> = dialers.iter().map(|it| it.address().clone()).collect();
            let limit = options.connect_timeout;
            let tickets = Tickets::begin(Box::new(move || munge.ticket(&addresses, limit)), true);
            Origin::Tickets(kept(tickets.map_err(ConnectError::Munge)?, options, asks)?)
        }
        _ => return Ok(None),
    };
    Ok(Some(Proof {
        origin,
        encryption: options.encryption,
    }))
}

/// Tickets that are taken for as long as the client is there.
fn kept(tickets: Tickets, options: &Options, asks: bool) -> std::io::Result<Arc<Tickets>> {
    let tickets = Arc::new(tickets);
    if !asks {
        tickets.keep(options.embedded.thread_begins)?;
    }
    Ok(tickets)
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
    match Arena::shared(bytes, options.embedded.place) {
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
        leader.thread_ends();
    };
    let _guard = SignalGuard::begin();
    thread::Builder::new()
        .name("tidegate-io".to_string())
        .spawn(body)
}

fn core_options(options: &Options) -> Result<CoreOptions, ConnectError> {
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
        borrows: options.loans,
        payload_max: options.payload_max_allowed(),
        connections: options.connections_allowed(),
        pipeline: options.pipeline(),
        merge_blocks: options.merge_blocks,
        names_max: options.names_max,
    })
}
