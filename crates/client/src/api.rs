//! Blocking calls for many threads. The mount, the C ABI and programs use them.
//!
//! A [`Client`] belongs to the process that made it. A fork child must not use it: each call there
//! ends with EIO. Dropping it there does nothing, so that the parent's sessions stay whole. A child
//! that needs a client connects anew.

mod data;
mod files;
mod names;
mod tickets;

pub use self::data::{Pending, Room};
pub use self::files::OpenFile;
pub use crate::application::app_id;
pub use crate::core::{Answer, Data, Errno};
pub use crate::driver::{CancelToken, Context, Invalidates};
pub use crate::options::{ConnectError, Options};

use crate::core::{Application, Told};
use crate::driver::Host;
use crate::payload::Payload;
use crate::wire::{Attr, Handle, Keep, Op, Outcome, SetAttr, Statfs};
use std::sync::Arc;

/// One client of a set of forwarders. Its methods block the calling thread, and end at the latest
/// with the timeout. Any number of threads may call them at once.
pub struct Client {
    host: Host,
    coalesce_bytes: usize,
}

impl Client {
    /// Asks the forwarders who they are, and opens sessions. Succeeds as soon as one forwarder has
    /// granted a session. A list that does not fit the export is an error. A forwarder that is down
    /// is no error: the client checks it when it comes up.
    pub fn connect(options: Options) -> Result<Arc<Client>, ConnectError> {
        Ok(Arc::new(Client {
            coalesce_bytes: options.coalesce_bytes_allowed(),
            host: Host::start(options)?,
        }))
    }

    /// Asks the forwarder at this address who it is, without a session and without its fellows, for
    /// the options' `connect_timeout` at most once its name is resolved. The error says why nobody
    /// who proves to be a forwarder has answered there.
    pub fn ask(options: &Options, address: &str) -> Result<Told, ConnectError> {
        Host::ask_one(options, address)
    }

    /// Attributes of the export's root directory, as they were when the first forwarder granted a
    /// session.
    pub fn root(&self) -> Attr {
        self.host.root
    }

    /// A line for [`Options::from_text`], with which another process of this machine reaches the
    /// same forwarders.
    pub fn reached(&self) -> &str {
        &self.host.reached
    }

    /// Addresses of the forwarders, in the order of the layout.
    pub fn addresses(&self) -> &[String] {
        self.host.addresses()
    }

    /// Addresses of the list that the client left out because no forwarder of the export is there,
    /// with the reason; one line each.
    pub fn left_out(&self) -> &[String] {
        &self.host.left_out
    }

    /// Bytes of small writes that one open file may hold back; 0: none.
    pub(crate) fn coalesce_bytes(&self) -> usize {
        self.coalesce_bytes
    }

    /// How far the forwarders' clocks are ahead of this node's, in ns: the median of those
    /// measured.
    pub fn clock_ahead_ns(&self) -> i64 {
        self.host.clock_ahead_ns()
    }

    /// Bytes of a stripe. Consecutive stripes of a file belong to different forwarders.
    pub fn stripe_bytes(&self) -> Option<u64> {
        self.host.stripe_bytes()
    }

    /// Number of forwarders.
    pub fn forwarders(&self) -> usize {
        self.host.addresses().len()
    }

    /// Largest number of bytes of one append: the smallest payload limit of the sessions so far.
    pub fn payload_max(&self) -> u32 {
        self.host.payload_max()
    }

    /// Makes any call of the protocol. The client splits it into requests, routes them, and sends
    /// them again where needed. All methods below use it. Operations on sessions and opens are
    /// refused with EINVAL.
    pub fn call(
        &self,
        ctx: &Context,
        op: Op,
        payload: impl Into<Payload>,
    ) -> Result<Answer, Errno> {
        if matches!(op, Op::Open { .. } | Op::Close { .. }) {
            // Their numbers are chosen here.
            return Err(Errno::INVAL);
        }
        self.host.call(ctx, op, payload.into())
    }

    /// Like [`Client::call`], and returns how long after the start of the call each forwarder
    /// answered its last part, in ns. From the first such call on, the client measures this for
    /// every call: it is meant for benchmarks.
    pub fn call_served(
        &self,
        ctx: &Context,
        op: Op,
        payload: impl Into<Payload>,
    ) -> Result<(Answer, Vec<(usize, u64)>), Errno> {
        self.host.call_served(ctx, op, payload.into())
    }

    /// State of forwarder `index` as JSON text.
    pub fn status(&self, index: usize) -> Result<String, Errno> {
        match self.host.call_forwarder(index, Op::Status)?.outcome {
            Outcome::Text(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Err(Errno::IO),
        }
    }

    /// Changes the policy of forwarder `index`: `text` is a `[scheduler]` table, `keep` says how
    /// long the change holds.
    pub fn set_policy(&self, index: usize, text: &str, keep: Keep) -> Result<(), Errno> {
        let op = Op::SetPolicy {
            text: text.as_bytes().into(),
            keep,
        };
        self.host.call_forwarder(index, op).map(|_| ())
    }

    /// Drains forwarder `index`, or with `undo` ends its draining: see [`Op::Drain`]. The forwarder
    /// may still hold seats when this returns; its state shows when it has released them.
    pub fn drain(&self, index: usize, undo: bool) -> Result<(), Errno> {
        let op = Op::Drain { undo };
        self.host.call_forwarder(index, op).map(|_| ())
    }

    /// Replaces the shares at forwarder `index`: `text` has all rules, `keep` says how long they
    /// hold. `after` is the time at which the rules were set that the caller has changed
    /// (`shares_set_ns` of the state; [`u64::MAX`]: any rules). `at` is the time of the new rules.
    /// Both are in ns since 1970. ESTALE if others have set rules since, EBUSY while the forwarder
    /// writes another change to disk.
    pub fn set_shares(
        &self,
        index: usize,
        text: &str,
        keep: Keep,
        (after, at): (u64, u64),
    ) -> Result<(), Errno> {
        let op = Op::SetShares {
            text: text.as_bytes().into(),
            keep,
            after,
            at,
        };
        self.host.call_forwarder(index, op).map(|_| ())
    }

    /// Lets calls cache attributes, those whose context says that they do ([`Context::caches`]).
    /// The client clears them from `cache` before others may change them, and when their time is
    /// over. Fails if it has a cache already, or if no thread can be started.
    pub fn caches_by(&self, cache: Arc<dyn Invalidates>) -> std::io::Result<()> {
        self.host.caches_by(cache)
    }

    /// Names an application to the forwarders; returns its id, for [`Context::app`]. Forwarders
    /// know an application without a name by its id alone.
    pub fn name_application(&self, application: Application) -> u64 {
        self.host.name_application(application)
    }

    /// Where a file is below the root of the export, as far as this client has seen its name.
    pub fn path_of(&self, handle: Handle) -> Option<Box<[u8]>> {
        self.host.path_of(handle)
    }

    /// Tells where a file is below the root of the export, for forwarders that do not know its
    /// handle. For a file that this client has not looked up.
    pub fn tell_path(&self, handle: Handle, path: &[u8]) {
        self.host.tell_path(handle, path);
    }

    /// Forgets the path of a handle (for the mount, whose kernel has forgotten the node).
    pub fn forget(&self, handle: Handle) {
        self.host.forget(handle);
    }

    /// Says goodbye to the forwarders and ends the client's threads, within a second. Waiting calls
    /// end with EIO. Dropping the client does the same.
    pub fn shutdown(&self) {
        self.host.shutdown();
    }
}

/// Attributes.
impl Client {
    /// Attributes of a file.
    pub fn getattr(&self, ctx: &Context, handle: Handle) -> Result<Attr, Errno> {
        self.call_attr(ctx, Op::Getattr { handle })
    }

    /// Sets attributes; a size truncates or extends.
    pub fn setattr(&self, ctx: &Context, handle: Handle, set: SetAttr) -> Result<Attr, Errno> {
        self.call_attr(ctx, Op::Setattr { handle, set })
    }

    /// Checks whether the caller may access the file; `mask` as for access(2). EACCES if not.
    pub fn access(&self, ctx: &Context, handle: Handle, mask: u32) -> Result<(), Errno> {
        self.call_done(ctx, Op::Access { handle, mask })
    }

    /// Size and free space of the file system.
    pub fn statfs(&self, ctx: &Context) -> Result<Statfs, Errno> {
        match self.call(ctx, Op::Statfs, Payload::new())?.outcome {
            Outcome::Statfs(statfs) => Ok(statfs),
            _ => Err(Errno::IO),
        }
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, ctx: &Context, handle: Handle, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let name = name.into();
        self.call_text(ctx, Op::Getxattr { handle, name })
    }

    /// Sets an extended attribute; flags as setxattr(2).
    pub fn setxattr(
        &self,
        ctx: &Context,
        handle: Handle,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let (name, value) = (name.into(), value.into());
        self.call_done(
            ctx,
            Op::Setxattr {
                handle,
                name,
                value,
                flags,
            },
        )
    }

    /// Names of extended attributes, each ended by NUL.
    pub fn listxattr(&self, ctx: &Context, handle: Handle) -> Result<Vec<u8>, Errno> {
        self.call_text(ctx, Op::Listxattr { handle })
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, ctx: &Context, handle: Handle, name: &[u8]) -> Result<(), Errno> {
        let name = name.into();
        self.call_done(ctx, Op::Removexattr { handle, name })
    }
}

/// Calls by what they yield. A forwarder that answers with another kind of outcome is broken: EIO.
impl Client {
    fn call_done(&self, ctx: &Context, op: Op) -> Result<(), Errno> {
        self.call(ctx, op, Payload::new()).map(|_| ())
    }

    fn call_attr(&self, ctx: &Context, op: Op) -> Result<Attr, Errno> {
        match self.call(ctx, op, Payload::new())?.outcome {
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(Errno::IO),
        }
    }

    fn call_text(&self, ctx: &Context, op: Op) -> Result<Vec<u8>, Errno> {
        match self.call(ctx, op, Payload::new())?.outcome {
            Outcome::Text(text) => Ok(text.into_vec()),
            _ => Err(Errno::IO),
        }
    }
}
