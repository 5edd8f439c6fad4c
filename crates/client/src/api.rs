//! Blocking calls for many threads: what the mount, the C ABI and programs use.
//!
//! [`Client`] belongs to the process that made it. A fork child must not use it: there each call
//! ends with EIO and dropping it does nothing, so that the parent's sessions stay whole. A child
//! that wants one connects anew.

mod data;
mod files;
mod locks;
mod names;

pub use self::data::{Pending, Room};
pub use self::files::OpenFile;
pub use crate::application::app_id;
pub use crate::core::{Answer, Data, Errno};
pub use crate::driver::{CancelToken, Context};
pub use crate::options::{ConnectError, Options};

use crate::core::Application;
use crate::driver::Host;
use crate::wire::{Attr, Handle, Keep, Op, Outcome, SetAttr, Statfs};
use bytes::Bytes;
use std::sync::Arc;

/// One client of a set of forwarders. Methods block the calling thread, may be called from any
/// number of threads, and end at the latest with the timeout.
pub struct Client {
    host: Host,
    coalesce_bytes: usize,
}

impl Client {
    /// Asks the forwarders who they are, and opens sessions; succeeds as soon as one forwarder has
    /// granted one. A list that does not fit the export is an error; a forwarder that is down is
    /// none, and is checked when it comes.
    pub fn connect(options: Options) -> Result<Arc<Client>, ConnectError> {
        Ok(Arc::new(Client {
            coalesce_bytes: options.coalesce_bytes_allowed(),
            host: Host::start(options)?,
        }))
    }

    /// Root directory of the export, as it was when the first session was granted.
    pub fn root(&self) -> Attr {
        self.host.root()
    }

    /// How another process of this machine reaches the same forwarders: a line for
    /// [`Options::from_text`].
    pub fn reached(&self) -> &str {
        self.host.reached()
    }

    /// Addresses of the forwarders, in the order of the layout.
    pub fn addresses(&self) -> &[String] {
        self.host.addresses()
    }

    /// Which addresses of the list are no forwarder's and were left out, a line for people each.
    pub fn left_out(&self) -> &[String] {
        self.host.left_out()
    }

    /// Bytes of small writes that one open file may hold back; 0: none.
    pub(crate) fn coalesce_bytes(&self) -> usize {
        self.coalesce_bytes
    }

    /// How far the forwarders' clocks are ahead of this node's, ns: the median of those measured.
    pub fn clock_ahead_ns(&self) -> i64 {
        self.host.clock_ahead_ns()
    }

    /// Bytes of a stripe: of consecutive ones of a file each lies on another forwarder.
    pub fn stripe_bytes(&self) -> Option<u64> {
        self.host.stripe_bytes()
    }

    /// Number of forwarders.
    pub fn forwarders(&self) -> usize {
        self.host.forwarders()
    }

    /// Most bytes of one append: the smallest payload bound of the sessions so far.
    pub fn payload_max(&self) -> u32 {
        self.host.payload_max()
    }

    /// Any operation as the wire names it; splits, routes, retries and replays as needed.
    /// Used by every call below. Operations of sessions and opens are refused with EINVAL.
    pub fn call(&self, ctx: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno> {
        if matches!(op, Op::Open { .. } | Op::Close { .. }) {
            // Their numbers are chosen here.
            return Err(Errno::INVAL);
        }
        self.host.call(ctx, op, payload)
    }

    /// The same, and how long after the call each forwarder had served its last part of it, in ns.
    /// From the first such call on, every call notes this: meant for benchmarks.
    pub fn call_served(
        &self,
        ctx: &Context,
        op: Op,
        payload: Bytes,
    ) -> Result<(Answer, Vec<(usize, u64)>), Errno> {
        self.host.call_served(ctx, op, payload)
    }

    /// State of forwarder `index` as JSON text.
    pub fn status(&self, index: usize) -> Result<String, Errno> {
        match self.host.call_forwarder(index, Op::Status)?.outcome {
            Outcome::Text(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            _ => Err(Errno::IO),
        }
    }

    /// Changes the policy of forwarder `index`: text of a `[scheduler]` table, and how long it
    /// holds.
    pub fn set_policy(&self, index: usize, text: &str, keep: Keep) -> Result<(), Errno> {
        let op = Op::SetPolicy {
            text: text.as_bytes().into(),
            keep,
        };
        self.host.call_forwarder(index, op).map(|_| ())
    }

    /// Sets forwarder `index` aside, or takes it back (`undo`): see [`Op::Drain`]. It may still
    /// hold seats when this returns: its state says when it has let them go.
    pub fn drain(&self, index: usize, undo: bool) -> Result<(), Errno> {
        let op = Op::Drain { undo };
        self.host.call_forwarder(index, op).map(|_| ())
    }

    /// Changes who is promised what at forwarder `index`: the text of all rules, and how long they
    /// hold. `after` is when the rules were set that the change was made from (`shares_set_ns` of
    /// the state; [`u64::MAX`]: whatever they are), `at` when these are, ns since 1970. ESTALE if
    /// others were set since, EBUSY while another change is being written down.
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

    /// Says who an application is, so that forwarders know its name; returns its id, for
    /// [`Context::app`]. An application that is not named is known by its id alone.
    pub fn name_application(&self, application: Application) -> u64 {
        self.host.name_application(application)
    }

    /// Forgets what is known of a handle's path (the mount's nodes were forgotten).
    pub fn forget(&self, handle: Handle) {
        self.host.forget(handle);
    }

    /// Says goodbye and ends the threads, within a second; waiting calls end with EIO. Also done on
    /// drop.
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

    /// Whether the caller may: mask as access(2).
    pub fn access(&self, ctx: &Context, handle: Handle, mask: u32) -> Result<(), Errno> {
        self.call_done(ctx, Op::Access { handle, mask })
    }

    /// The file system's state.
    pub fn statfs(&self, ctx: &Context) -> Result<Statfs, Errno> {
        match self.call(ctx, Op::Statfs, Bytes::new())?.outcome {
            Outcome::Statfs(statfs) => Ok(statfs),
            _ => Err(Errno::IO),
        }
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, ctx: &Context, handle: Handle, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.call_text(
            ctx,
            Op::Getxattr {
                handle,
                name: name.into(),
            },
        )
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
        self.call_done(
            ctx,
            Op::Removexattr {
                handle,
                name: name.into(),
            },
        )
    }
}

/// Calls by what they yield. A forwarder that answers with another kind of outcome is broken: EIO.
impl Client {
    fn call_done(&self, ctx: &Context, op: Op) -> Result<(), Errno> {
        self.call(ctx, op, Bytes::new()).map(|_| ())
    }

    fn call_attr(&self, ctx: &Context, op: Op) -> Result<Attr, Errno> {
        match self.call(ctx, op, Bytes::new())?.outcome {
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(Errno::IO),
        }
    }

    fn call_text(&self, ctx: &Context, op: Op) -> Result<Vec<u8>, Errno> {
        match self.call(ctx, op, Bytes::new())?.outcome {
            Outcome::Text(text) => Ok(text.into_vec()),
            _ => Err(Errno::IO),
        }
    }
}
