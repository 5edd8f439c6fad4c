//! Calls of many threads: sockets, threads and clocks around the core.
//!
//! A thread that makes a call gives it to the core, under the client's one lock ([`shared`]). The
//! core answers with requests, which the same thread writes to its [`connection`]s once it has
//! released the lock. Then the thread waits for the reply. One thread at a time, the [`leader`],
//! waits for all [`sockets`] and takes in the replies of all calls. The other threads sleep on
//! their [`waiter`] until the leader has taken in their reply or makes one of them the leader.
//! Meanwhile each thread holds a [`SignalGuard`], which lets signals in only where it sleeps.

mod caches;
mod connection;
mod context;
mod leader;
mod reply_memory;
mod shared;
mod sockets;
mod start;
mod tickets;
mod waiter;

use crate::application::app_id;
use crate::arena::Piece;
use crate::core::{Answer, Application, Call, CallId, Errno, Input, Operation, Served};
use crate::options::Options;
use crate::payload::Payload;
use crate::signals::{SignalGuard, Uncancelled};
use crate::wire::{Attr, Extent, Handle, LockFamily, Op, Outcome};
pub use caches::Invalidates;
use context::Attached;
pub use context::{CancelToken, Context};
use leader::LeaderFollower;
use mio::Waker;
use shared::{Shared, State, wall_ns};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tickets::Tickets;
use waiter::{Permit, Waiter, Woken};

/// A call to forwarders.
pub(crate) struct CallSpec {
    op: Op,
    payload: Payload,
    /// The forwarder to ask, for calls to one forwarder.
    forwarder: usize,
    operation: Option<Operation>,
}

impl CallSpec {
    /// A call that is an operation of its own.
    pub(crate) fn new(op: Op, payload: Payload) -> CallSpec {
        CallSpec {
            op,
            payload,
            forwarder: 0,
            operation: None,
        }
    }

    /// A call that is a part of an operation.
    pub(crate) fn part(op: Op, payload: Payload, operation: Operation) -> CallSpec {
        CallSpec {
            operation: Some(operation),
            ..CallSpec::new(op, payload)
        }
    }
}

/// A core with the sockets and the I/O thread that serve it.
pub(crate) struct Host {
    shared: Arc<Shared>,
    leader: Arc<LeaderFollower>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
    /// Attributes of the export's root directory.
    pub(crate) root: Attr,
    /// A line of options with which another process of this machine reaches the same forwarders.
    pub(crate) reached: String,
    /// What it was made with.
    pub(crate) options: Options,
    /// What it shows to forwarders, if these are tickets.
    pub(crate) tickets: Option<Arc<Tickets>>,
    /// Addresses of the list that the client left out, with the reason; one line each.
    pub(crate) left_out: Vec<String>,
    app: u64,
    timeout: Duration,
    open_next: AtomicU64,
}

impl Host {
    /// Addresses of the forwarders, in the order of the layout.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.shared.names
    }

    /// Smallest payload limit of the sessions so far, in bytes.
    pub(crate) fn payload_max(&self) -> u32 {
        // A client after a panic refuses every append: its limit is 0.
        self.state().map_or(0, |state| state.core.payload_max())
    }

    /// Whether there are forwarders that read and write payload in place.
    pub(crate) fn shares_memory(&self) -> bool {
        self.shared.accepted_arena().is_some()
    }

    /// Memory for a write's bytes, if there is any left: where forwarders read them in place, or,
    /// if none does, memory of this process alone.
    pub(crate) fn room(&self, len: usize) -> Option<Piece> {
        let own = || self.shared.reply_memory.arena();
        self.shared.accepted_arena().or_else(own)?.take(len)
    }

    /// The bytes of a write, moved to where forwarders read them in place if they can.
    fn placed(&self, payload: Payload) -> Payload {
        let arena = self.shared.accepted_arena();
        // They may lie in another client's memory, which the forwarders of this one have not got.
        let Some(arena) = arena.filter(|arena| payload.place_in(arena).is_none()) else {
            return payload;
        };
        let len = payload.len();
        let Some(mut piece) = arena.take(len) else {
            return payload;
        };
        piece.raw_room().put_raw(0, payload.raw());
        Payload::of_piece(piece, len).unwrap_or(payload)
    }

    /// Makes a call and waits for its end.
    pub(crate) fn call(&self, ctx: &Context, op: Op, payload: Payload) -> Result<Answer, Errno> {
        let guard = SignalGuard::begin();
        self.call_guarded(&guard, &Arc::default(), ctx, CallSpec::new(op, payload))
    }

    /// Like [`Host::call`], and returns how long after the start each forwarder answered its last
    /// part, in ns.
    pub(crate) fn call_served(
        &self,
        ctx: &Context,
        op: Op,
        payload: Payload,
    ) -> Result<(Answer, Vec<(usize, u64)>), Errno> {
        let guard = SignalGuard::begin();
        self.state()?.core.note_served();
        let waiter = Arc::default();
        let start_ns = self.shared.now_ns();
        let answer = self.call_guarded(&guard, &waiter, ctx, CallSpec::new(op, payload))?;
        let since = |served: Served| (served.forwarder, served.at_ns.saturating_sub(start_ns));
        Ok((
            answer,
            waiter.take_served().into_iter().map(since).collect(),
        ))
    }

    /// Makes a call to one forwarder.
    pub(crate) fn call_forwarder(&self, index: usize, op: Op) -> Result<Answer, Errno> {
        if index >= self.addresses().len() {
            return Err(Errno::INVAL);
        }
        let guard = SignalGuard::begin();
        let spec = CallSpec {
            forwarder: index,
            ..CallSpec::new(op, Payload::new())
        };
        self.call_guarded(&guard, &Arc::default(), &Context::default(), spec)
    }

    /// Begins an operation of several calls on parts of the extent; None where the caller must make
    /// it one call.
    pub(crate) fn begin_operation(
        &self,
        ctx: &Context,
        handle: Handle,
        extent: Extent,
    ) -> Option<Operation> {
        let _guard = SignalGuard::begin();
        let mut state = self.state().ok()?;
        state
            .core
            .begin_operation(wall_ns(), handle, extent, ctx.collective)
    }

    /// How far the forwarders' clocks are ahead of this node's, in ns.
    pub(crate) fn clock_ahead_ns(&self) -> i64 {
        let _guard = SignalGuard::begin();
        self.state().map_or(0, |state| state.core.clock_ahead_ns())
    }

    /// Bytes of a stripe, once a forwarder has said so.
    pub(crate) fn stripe_bytes(&self) -> Option<u64> {
        let _guard = SignalGuard::begin();
        let layout = self.state().ok()?.core.layout();
        layout.map(|layout| layout.stripe)
    }

    /// Opens a file under a new number; returns that, and the file's attributes.
    pub(crate) fn open(
        &self,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<(u64, Attr), Errno> {
        let open = self.open_next.fetch_add(1, Ordering::Relaxed);
        let opened = self.call(
            ctx,
            Op::Open {
                handle,
                open,
                read,
                write,
            },
            Payload::new(),
        );
        let attr = opened.and_then(|answer| match answer.outcome {
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(Errno::IO),
        });
        if attr.is_err() {
            // The forwarder may have opened the file all the same.
            self.close(handle, open);
        }
        attr.map(|attr| (open, attr))
    }

    /// Closes a file in the background.
    pub(crate) fn close(&self, handle: Handle, open: u64) {
        self.call_detached(Op::Close { handle, open });
    }

    /// Releases locks in the background.
    pub(crate) fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.call_detached(Op::DropLocks {
            handle,
            family,
            owner,
        });
    }

    /// The path of a file below the root, if a name of it is known.
    pub(crate) fn path_of(&self, handle: Handle) -> Option<Box<[u8]>> {
        let _guard = SignalGuard::begin();
        self.state().ok()?.core.path_of(handle)
    }

    /// Notes the path of a file.
    pub(crate) fn tell_path(&self, handle: Handle, path: &[u8]) {
        let path = path.into();
        self.report(Input::Told { handle, path });
    }

    /// Forgets a file's name.
    pub(crate) fn forget(&self, handle: Handle) {
        self.report(Input::Forget { handle });
    }

    /// Gives the core an input for whose result nobody waits, unless the client has ended.
    fn report(&self, input: Input) {
        let _guard = SignalGuard::begin();
        if let Ok(mut state) = self.state() {
            let work = self.shared.handle(&mut state, input);
            drop(state);
            self.shared.carry_out(work);
        }
    }

    /// From now on calls whose context says so may cache attributes; `cache` clears what they do.
    pub(crate) fn caches_by(&self, cache: Arc<dyn Invalidates>) -> std::io::Result<()> {
        self.shared.caches_by(cache)
    }

    /// Names an application to the core; returns its id.
    pub(crate) fn name_application(&self, application: Application) -> u64 {
        let app = app_id(&application.name);
        self.report(Input::Application { app, application });
        app
    }

    fn call_guarded(
        &self,
        guard: &SignalGuard,
        waiter: &Arc<Waiter>,
        ctx: &Context,
        spec: CallSpec,
    ) -> Result<Answer, Errno> {
        self.begin_guarded(guard, waiter, ctx, spec)?
            .wait_guarded(guard)
    }

    /// Starts a call; the caller waits later for its end.
    pub(crate) fn begin(&self, ctx: &Context, spec: CallSpec) -> Result<InFlight<'_>, Errno> {
        self.begin_guarded(&SignalGuard::begin(), &Arc::default(), ctx, spec)
    }

    fn begin_guarded(
        &self,
        guard: &SignalGuard,
        waiter: &Arc<Waiter>,
        ctx: &Context,
        spec: CallSpec,
    ) -> Result<InFlight<'_>, Errno> {
        let CallSpec {
            op,
            payload,
            forwarder,
            operation,
        } = spec;
        if self.is_foreign() {
            return Err(Errno::IO);
        }
        let attached = ctx.cancel.as_ref().map(|token| token.attach(waiter));
        let timeout = ctx.timeout.unwrap_or(self.timeout);
        let until = (!timeout.is_zero())
            .then(|| Instant::now().checked_add(timeout))
            .flatten();
        let bytes = match &op {
            Op::Read { extents, .. } => extents.bytes(),
            _ => payload.len() as u64,
        };
        let permit = self.shared.budget.take(guard, bytes, waiter, until);
        let permit = permit.map_err(|errno| self.shared.why_ended().unwrap_or(errno))?;
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
            caches: ctx.caches && self.shared.has_cache(),
            open: ctx.open,
            range: ctx.range,
        };
        let mut state = self.shared.live_state()?;
        let id = state.number(Some(waiter));
        let work = self.shared.handle(&mut state, Input::Call { id, call });
        drop(state);
        self.shared.carry_out_as_caller(work);
        Ok(InFlight {
            host: self,
            id,
            waiter: Arc::clone(waiter),
            permit: Some(permit),
            attached,
        })
    }

    /// Starts a call for whose result nobody waits.
    fn call_detached(&self, op: Op) {
        if self.is_foreign() {
            return;
        }
        let call = Call {
            op,
            caller: None,
            app: self.app,
            payload: Payload::new(),
            // Without a deadline: the forwarder keeps the open or lock until this request arrives.
            deadline_ns: None,
            forwarder: 0,
            operation: None,
            collective: None,
            caches: false,
            open: None,
            range: None,
        };
        let _guard = SignalGuard::begin();
        if let Ok(mut state) = self.state() {
            let id = state.number(None);
            let work = self.shared.handle(&mut state, Input::Call { id, call });
            drop(state);
            self.shared.carry_out(work);
        }
    }

    /// Whether this is a fork child: there the lock may be held for ever, and the sockets are the
    /// parent's.
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

/// A call that was started. If it is dropped, the call goes on although nobody waits for it.
pub(crate) struct InFlight<'h> {
    host: &'h Host,
    id: CallId,
    waiter: Arc<Waiter>,
    /// Held until somebody has waited for the call, or nobody will.
    permit: Option<Permit<'h>>,
    attached: Option<Attached>,
}

impl InFlight<'_> {
    /// Waits for the end.
    pub(crate) fn wait(self) -> Result<Answer, Errno> {
        self.wait_guarded(&SignalGuard::begin())
    }

    fn wait_guarded(mut self, guard: &SignalGuard) -> Result<Answer, Errno> {
        let ended = self.ended(guard);
        self.leave();
        ended
    }

    fn ended(&self, guard: &SignalGuard) -> Result<Answer, Errno> {
        let (host, id) = (self.host, self.id);
        loop {
            match host.leader.wait(guard, &host.shared, id, &self.waiter) {
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

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.permit.is_some() {
            let _guard = SignalGuard::begin();
            self.leave();
        }
    }
}

/// Wakes the thread that waits for the sockets.
fn wake(waker: &Waker) {
    let mut uncancelled = Uncancelled::begin();
    // Fails only if the client is gone, and the wait with it.
    let _ = waker.wake();
    uncancelled.end();
}
