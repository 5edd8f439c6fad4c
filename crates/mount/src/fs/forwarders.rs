//! The calls that the file system makes to forwarders. The client implements them; tests have an
//! implementation of their own.

use std::sync::Arc;
use std::time::Duration;
use tidegate_client::wire::{Attr, Caller, Handle, LockFamily, Op};
use tidegate_client::{Answer, Application, Bytes, Client, Context, Errno, Invalidates, OpenFile};

/// A file that is open at the forwarders until this is dropped.
pub trait Held: Send + Sync {
    /// The number of the open file for [`Context::open`].
    fn number(&self) -> u64;

    /// The file's attributes when it was opened.
    fn attr(&self) -> Attr;
}

impl Held for OpenFile {
    fn number(&self) -> u64 {
        OpenFile::number(self)
    }

    fn attr(&self) -> Attr {
        *OpenFile::attr(self)
    }
}

/// The calls of [`Client`] that the file system is built on.
pub trait Forwarders: Send + Sync + 'static {
    /// Root directory of the export.
    fn root(&self) -> Attr;

    /// Largest number of bytes of one append.
    fn payload_max(&self) -> u32;

    /// Does one operation. Blocks until it is done, cancelled or out of time.
    fn call(&self, ctx: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno>;

    /// Opens a file. It stays open, also without a name, until the result is dropped, which does
    /// not wait for a forwarder.
    fn open(
        &self,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<Box<dyn Held>, Errno>;

    /// Releases all locks of an owner without waiting for a forwarder.
    fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64);

    /// Tells the forwarders the name of an application whose id later calls carry. Does not wait
    /// for a forwarder.
    fn name_application(&self, _application: Application) {}

    /// A line of options with which a program reaches the same forwarders without the mount; None
    /// if it cannot. See [`tidegate_client::shortcut`].
    fn reached(&self) -> Option<&str> {
        None
    }

    /// The same for an ordinary user, who cannot read a secret of root's.
    fn reached_by_user(&self) -> Option<&str> {
        self.reached()
    }

    /// The answer to [`tidegate_client::shortcut::TICKET`] for this user. ENOTTY where programs
    /// need no ticket, or get none.
    fn ticket_for(&self, _user: Caller) -> Result<Vec<u8>, Errno> {
        Err(Errno::NOTTY)
    }

    /// How far the forwarders' clocks are ahead of this node's, ns.
    fn clock_ahead_ns(&self) -> i64 {
        0
    }

    /// Bytes of a stripe, and the number of forwarders; 0 if not known.
    fn striping(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Where a file is below the root of the export, if that is known.
    fn path_of(&self, _handle: Handle) -> Option<Box<[u8]>> {
        None
    }

    /// Lets calls cache attributes whose context says that they do; `cache` is cleared of them
    /// before others may change them. False: nothing may be cached.
    fn caches_by(&self, _cache: Arc<dyn Invalidates>) -> bool {
        false
    }

    /// Forgets a file that later calls will not name. Does not wait for a forwarder.
    fn forget(&self, handle: Handle);
}

/// The forwarders of a client, which the product uses.
pub(crate) struct ClientForwarders {
    pub(crate) client: Arc<Client>,
    /// The root of the mount.
    pub(crate) root: Attr,
    /// What users get to reach the forwarders by themselves, if they get it.
    pub(crate) tickets: Option<Tickets>,
}

/// Tickets of a mount.
pub(crate) struct Tickets {
    /// The line that says where programs get them.
    pub(crate) reached: String,
    /// How long each is good.
    pub(crate) life: Duration,
}

impl Forwarders for ClientForwarders {
    fn root(&self) -> Attr {
        self.root
    }

    fn payload_max(&self) -> u32 {
        self.client.payload_max()
    }

    fn call(&self, ctx: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno> {
        self.client.call(ctx, op, payload)
    }

    fn open(
        &self,
        ctx: &Context,
        handle: Handle,
        read: bool,
        write: bool,
    ) -> Result<Box<dyn Held>, Errno> {
        Ok(Box::new(self.client.open(ctx, handle, read, write)?))
    }

    fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.client.drop_locks(handle, family, owner);
    }

    fn name_application(&self, application: Application) {
        self.client.name_application(application);
    }

    fn reached(&self) -> Option<&str> {
        match self.client.is_vouched() {
            // It has no secret, and its own ticket is no text to keep.
            true => self.tickets.as_ref().map(|tickets| &*tickets.reached),
            false => Some(self.client.reached()),
        }
    }

    fn reached_by_user(&self) -> Option<&str> {
        let reached = self.tickets.as_ref().map(|tickets| &*tickets.reached);
        reached.or_else(|| self.reached())
    }

    fn ticket_for(&self, user: Caller) -> Result<Vec<u8>, Errno> {
        let tickets = self.tickets.as_ref().ok_or(Errno::NOTTY)?;
        self.client.ticket_for(user, tickets.life)
    }

    fn clock_ahead_ns(&self) -> i64 {
        self.client.clock_ahead_ns()
    }

    fn striping(&self) -> (u64, u64) {
        let stripe = self.client.stripe_bytes().unwrap_or(0);
        (stripe, self.client.forwarders() as u64)
    }

    fn path_of(&self, handle: Handle) -> Option<Box<[u8]>> {
        self.client.path_of(handle)
    }

    fn caches_by(&self, cache: Arc<dyn Invalidates>) -> bool {
        let started = self.client.caches_by(cache);
        if let Err(error) = &started {
            tracing::warn!(%error, "cannot start a thread; the kernel caches no attributes");
        }
        started.is_ok()
    }

    fn forget(&self, handle: Handle) {
        self.client.forget(handle);
    }
}
