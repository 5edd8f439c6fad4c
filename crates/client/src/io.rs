//! Sockets, threads and clocks around the core.
//!
//! One thread at a time waits in epoll for all connections; see [`lead`]. A thread that makes a
//! call tells the core under the one lock, writes what the core wants to send itself, and takes in
//! replies until its own has come, or waits on its [`slot`] while another thread does. What was
//! decided under the lock is carried out after it: [`Work`].

mod arena;
mod budget;
mod connection;
mod joined;
mod lead;
mod links;
mod reactor;
mod receiver;
mod roll;
mod shared;
pub(crate) mod slot;
mod undisturbed;

use crate::api::{Answer, ConnectError, Context, Errno, Options, app_id};
use crate::cancel::Attached;
use crate::core::{Application, Call, CallId, CoreOptions, Input, Operation, Served};
use crate::wire::{Attr, Extent, Handle, LockFamily, NAME_MAX, Op};
use arena::Arena;
pub(crate) use arena::Piece;
use budget::Permit;
use bytes::Bytes;
use lead::Lead;
use reactor::Reactor;
use shared::{Shared, State, wall_ns};
use slot::{Slot, Woken};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tidegate_net::{Address, Dialer, Secret};
pub(crate) use undisturbed::Calm;

/// What is asked of forwarders.
pub(crate) struct Ask {
    op: Op,
    payload: Bytes,
    /// Only for what one forwarder is asked.
    forwarder: usize,
    operation: Option<Operation>,
}

impl Ask {
    /// An operation of its own.
    pub(crate) fn new(op: Op, payload: Bytes) -> Ask {
        Ask {
            op,
            payload,
            forwarder: 0,
            operation: None,
        }
    }

    /// A part of an operation.
    pub(crate) fn part(op: Op, payload: Bytes, operation: Operation) -> Ask {
        Ask {
            operation: Some(operation),
            ..Ask::new(op, payload)
        }
    }
}

/// A core with its sockets and its thread.
pub(crate) struct Host {
    shared: Arc<Shared>,
    lead: Arc<Lead>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
    root: Attr,
    /// How others reach the same forwarders.
    reached: String,
    /// Which addresses were named and are of no use, a line each.
    left_out: Vec<String>,
    app: u64,
    timeout: Duration,
    open_next: AtomicU64,
}

impl Host {
    /// Asks the forwarders who they are, starts the thread and waits for the first session.
    pub(crate) fn start(options: Options) -> Result<Host, ConnectError> {
        if options.forwarders.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let (options, left_out) = roll::call(options)?;
        let mut host = Host::set_up(&options, core_options(&options)?)?;
        host.name_application(Application {
            name: options.application.clone(),
            job: options.job.clone(),
            project: options.project.clone(),
            caller: None,
        });
        host.root = host
            .shared
            .first_session(&options.forwarders, options.connect_timeout)?;
        host.reached = options.to_text();
        host.left_out = left_out;
        Ok(host)
    }

    /// Starts the thread.
    fn set_up(options: &Options, core: CoreOptions) -> Result<Host, ConnectError> {
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
        let (reactor, waker) = Reactor::new(dialers, secret, &core, options.guest)?;
        let in_flight_bytes_max = options.in_flight_bytes_max;
        let names = options.forwarders.clone();
        let shared = Arc::new(Shared::new(
            (core, names),
            waker,
            in_flight_bytes_max,
            arena,
            shares_arena,
        ));
        let lead = Arc::new(Lead::new(reactor));
        let thread = spawn(&shared, &lead)?;
        Ok(Host {
            shared,
            lead,
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

    /// How another process of this machine reaches the same forwarders.
    pub(crate) fn reached(&self) -> &str {
        &self.reached
    }

    /// Which addresses were named and are of no use, a line each.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Their addresses, in the order of the layout.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.shared.names
    }

    /// The root directory.
    pub(crate) fn root(&self) -> Attr {
        self.root
    }

    /// Number of forwarders.
    pub(crate) fn forwarders(&self) -> usize {
        self.shared.forwarders
    }

    /// Smallest payload bound of the sessions so far.
    pub(crate) fn payload_max(&self) -> u32 {
        // A client that is broken inside refuses whatever is appended.
        self.state().map_or(0, |state| state.core.payload_max())
    }

    /// Whether forwarders on this node read and write payload in place.
    pub(crate) fn shares_memory(&self) -> bool {
        self.shared.shares_arena
    }

    /// Room for a write's bytes where forwarders on this node read them in place, if there is any.
    pub(crate) fn room(&self, len: usize) -> Option<Piece> {
        self.shared.arena.as_ref()?.take(len)
    }

    /// The bytes of a write, where forwarders read them in place if they can.
    fn placed(&self, payload: Bytes) -> Bytes {
        let arena = self.shared.arena.as_ref();
        let Some(arena) = arena.filter(|_| self.shared.shares_arena) else {
            return payload;
        };
        if arena.place_of(&payload).is_some() {
            return payload;
        }
        let Some(mut piece) = arena.take(payload.len()) else {
            return payload;
        };
        piece.bytes_mut().copy_from_slice(&payload);
        piece.into_bytes(payload.len()).unwrap_or(payload)
    }

    /// Makes a call and waits for its end.
    pub(crate) fn call(&self, ctx: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno> {
        let calm = Calm::begin();
        self.wait_for(&calm, &Arc::default(), ctx, Ask::new(op, payload))
    }

    /// The same, and how long after its start each forwarder had served its last part, in ns.
    pub(crate) fn call_served(
        &self,
        ctx: &Context,
        op: Op,
        payload: Bytes,
    ) -> Result<(Answer, Vec<(usize, u64)>), Errno> {
        let calm = Calm::begin();
        self.state()?.core.note_served();
        let slot = Arc::default();
        let start_ns = self.shared.now_ns();
        let answer = self.wait_for(&calm, &slot, ctx, Ask::new(op, payload))?;
        let since = |served: Served| (served.forwarder, served.at_ns.saturating_sub(start_ns));
        Ok((answer, slot.take_served().into_iter().map(since).collect()))
    }

    /// Asks one forwarder.
    pub(crate) fn call_forwarder(&self, index: usize, op: Op) -> Result<Answer, Errno> {
        if index >= self.forwarders() {
            return Err(Errno::INVAL);
        }
        let calm = Calm::begin();
        let ask = Ask {
            forwarder: index,
            ..Ask::new(op, Bytes::new())
        };
        self.wait_for(&calm, &Arc::default(), &Context::default(), ask)
    }

    /// Begins an operation of several calls on parts of the extent; None where it is to be one.
    pub(crate) fn operation(
        &self,
        ctx: &Context,
        handle: Handle,
        extent: Extent,
    ) -> Option<Operation> {
        let _calm = Calm::begin();
        let mut state = self.state().ok()?;
        state
            .core
            .operation(wall_ns(), handle, extent, ctx.collective)
    }

    /// How far the forwarders' clocks are ahead of this one's, ns.
    pub(crate) fn clock_ahead_ns(&self) -> i64 {
        let _calm = Calm::begin();
        self.state().map_or(0, |state| state.core.clock_ahead_ns())
    }

    /// Bytes of a stripe, once a forwarder has said so.
    pub(crate) fn stripe_bytes(&self) -> Option<u64> {
        let _calm = Calm::begin();
        let layout = self.state().ok()?.core.layout();
        layout.map(|layout| layout.stripe)
    }

    /// Opens a file under a new number.
    pub(crate) fn open(
        &self,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<u64, Errno> {
        let open = self.open_next.fetch_add(1, Ordering::Relaxed);
        let opened = self.call(
            ctx,
            Op::Open {
                handle,
                open,
                read,
                write,
            },
            Bytes::new(),
        );
        if opened.is_err() {
            // It may have happened all the same.
            self.close(handle, open);
        }
        opened.map(|_| open)
    }

    /// Ends an open in the background.
    pub(crate) fn close(&self, handle: Handle, open: u64) {
        self.call_unheard(Op::Close { handle, open });
    }

    /// Releases locks in the background.
    pub(crate) fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.call_unheard(Op::DropLocks {
            handle,
            family,
            owner,
        });
    }

    /// Forgets a file's name.
    pub(crate) fn forget(&self, handle: Handle) {
        self.tell(Input::Forget { handle });
    }

    /// Tells the core what nobody waits for, unless the client has ended.
    fn tell(&self, input: Input) {
        let _calm = Calm::begin();
        if let Ok(mut state) = self.state() {
            let work = self.shared.handle(&mut state, input);
            drop(state);
            self.shared.carry_out(work);
        }
    }

    /// Says who an application is; returns its id.
    pub(crate) fn name_application(&self, application: Application) -> u64 {
        let app = app_id(&application.name);
        self.tell(Input::Application { app, application });
        app
    }

    /// Says goodbye and ends the thread.
    pub(crate) fn shutdown(&self) {
        if self.is_foreign() {
            return;
        }
        self.shared.shutdown();
        self.lead.recall();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // Its panic has been told by the panic hook, and every call by EIO.
            let _ = thread.join();
        }
    }

    fn wait_for(
        &self,
        calm: &Calm,
        slot: &Arc<Slot>,
        ctx: &Context,
        ask: Ask,
    ) -> Result<Answer, Errno> {
        self.begin(calm, slot, ctx, ask)?.wait(calm)
    }

    /// Makes a call, whose end somebody waits for later.
    pub(crate) fn begin(
        &self,
        calm: &Calm,
        slot: &Arc<Slot>,
        ctx: &Context,
        ask: Ask,
    ) -> Result<Begun<'_>, Errno> {
        let Ask {
            op,
            payload,
            forwarder,
            operation,
        } = ask;
        if self.is_foreign() {
            return Err(Errno::IO);
        }
        let attached = ctx.cancel.as_ref().map(|token| token.attach(slot));
        let timeout = ctx.timeout.unwrap_or(self.timeout);
        let until = (!timeout.is_zero())
            .then(|| Instant::now().checked_add(timeout))
            .flatten();
        let bytes = match &op {
            Op::Read { extents, .. } => extents.bytes(),
            _ => payload.len() as u64,
        };
        let permit = self.shared.budget.take(calm, bytes, slot, until)?;
        let payload = match op {
            Op::Write { .. } => self.placed(payload),
            _ => payload,
        };
        let call = Call {
            op,
            caller: ctx.caller.clone(),
            app: if ctx.app == 0 { self.app } else { ctx.app },
            payload,
            deadline_ns: until.map(|until| self.shared.ns_at(until)),
            forwarder,
            operation,
            collective: ctx.collective,
        };
        let mut state = self.shared.live_state()?;
        let id = state.number(Some(slot));
        let work = self.shared.handle(&mut state, Input::Call { id, call });
        drop(state);
        self.shared.carry_out(work);
        Ok(Begun {
            host: self,
            id,
            slot: Arc::clone(slot),
            permit: Some(permit),
            attached,
        })
    }

    /// Makes a call whose result nobody waits for.
    fn call_unheard(&self, op: Op) {
        if self.is_foreign() {
            return;
        }
        let call = Call {
            op,
            caller: None,
            app: self.app,
            payload: Bytes::new(),
            // What is not told now must be told later, or the forwarder keeps it for ever.
            deadline_ns: None,
            forwarder: 0,
            operation: None,
            collective: None,
        };
        let _calm = Calm::begin();
        if let Ok(mut state) = self.state() {
            let id = state.number(None);
            let work = self.shared.handle(&mut state, Input::Call { id, call });
            drop(state);
            self.shared.carry_out(work);
        }
    }

    /// In a fork child the lock may be held for ever, and the sockets are the parent's.
    fn is_foreign(&self) -> bool {
        std::process::id() != self.process
    }

    /// The state, unless the client has ended.
    fn state(&self) -> Result<MutexGuard<'_, State>, Errno> {
        if self.is_foreign() {
            return Err(Errno::IO);
        }
        self.shared.live_state()
    }
}

/// A call that was made. Dropped, it goes on without anybody who waits.
pub(crate) struct Begun<'h> {
    host: &'h Host,
    id: CallId,
    slot: Arc<Slot>,
    /// Until the call has been waited for, or nobody will.
    permit: Option<Permit<'h>>,
    attached: Option<Attached>,
}

impl Begun<'_> {
    /// Waits for the end.
    pub(crate) fn wait(mut self, calm: &Calm) -> Result<Answer, Errno> {
        let ended = self.ended(calm);
        self.leave();
        ended
    }

    fn ended(&self, calm: &Calm) -> Result<Answer, Errno> {
        let (host, id) = (self.host, self.id);
        loop {
            match host.lead.wait(calm, &host.shared, id, &self.slot) {
                Woken::Finished(result) => return result,
                Woken::Interrupted => {
                    let mut state = host.shared.live_state()?;
                    let work = host.shared.handle(&mut state, Input::Cancel { id });
                    drop(state);
                    host.shared.carry_out(work);
                }
                // The core keeps the deadline; and the budget has admitted this call before.
                Woken::Admitted | Woken::TimedOut | Woken::Lead => {}
            }
        }
    }

    /// Takes locks.
    fn leave(&mut self) {
        self.permit = None;
        self.attached = None;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if self.permit.is_some() {
            let _calm = Calm::begin();
            self.leave();
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

/// What addresses of libfabric need before the time to connect begins.
fn prepare_fabric(options: &Options, dialers: &[Dialer]) -> Result<(), ConnectError> {
    let mut addresses = dialers.iter().map(Dialer::address);
    let Some(address) = addresses.find(|address| address.provider.is_some()) else {
        return Ok(());
    };
    let unreachable = |why: String| ConnectError::Unreachable(format!("{address}: {why}"));
    if options.guest.place.is_some() {
        let why = "libfabric has descriptors of its own, which the program may close";
        return Err(unreachable(why.to_string()));
    }
    tidegate_fabric::load().map_err(|error| unreachable(error.to_string()))
}

/// What connects to the forwarder of this address.
fn dialer(text: &String) -> Result<Dialer, ConnectError> {
    let address: Address = text
        .parse()
        .map_err(|_| ConnectError::Address(text.clone()))?;
    Dialer::new(address).map_err(|error| ConnectError::Unreachable(format!("{text}: {error}")))
}

/// Memory for payload, for forwarders on this node, or through libfabric, to work on; all payload
/// goes through the connections without.
fn arena(options: &Options) -> Option<Arc<Arena>> {
    let bytes = options.shared_memory_bytes;
    if bytes == 0 {
        return None;
    }
    match Arena::new(bytes, options.guest.place) {
        Ok(arena) => Some(arena),
        Err(error) => {
            tracing::info!(%error, "no memory to share with forwarders");
            None
        }
    }
}

/// Starts the client's own thread. It takes no signals: they are the program's.
fn spawn(shared: &Arc<Shared>, lead: &Arc<Lead>) -> std::io::Result<JoinHandle<()>> {
    let (shared, lead) = (Arc::clone(shared), Arc::clone(lead));
    let body = move || {
        lead.thread_begins();
        // Whatever has gone wrong, nobody waits for ever.
        let _ = catch_unwind(AssertUnwindSafe(|| lead.run(&shared)));
        shared.abandon();
    };
    let _calm = Calm::begin();
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
        payload_max: options.payload_max_allowed(),
        connections: options.connections_allowed(),
        pipeline: options.pipeline(),
        merge_blocks: options.merge_blocks,
        names_max: options.names_max,
    })
}
