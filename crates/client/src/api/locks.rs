//! Calls on advisory locks.

use super::{Client, Context, Errno};
use crate::wire::{Handle, Lock, LockFamily, Op, Outcome};
use bytes::Bytes;
use std::time::Duration;

impl Client {
    /// Sets or releases a lock. With `wait` the call blocks until a forwarder grants the lock or
    /// the caller cancels (EINTR); it has no timeout. The client remembers the locks it holds, and
    /// reclaims them after a seat has changed hands.
    pub fn set_lock(
        &self,
        ctx: &Context,
        handle: Handle,
        lock: Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        let op = Op::SetLock {
            handle,
            lock,
            wait,
            reclaim: false,
        };
        if wait {
            let ctx = Context {
                timeout: Some(Duration::ZERO),
                ..ctx.clone()
            };
            self.call_done(&ctx, op)
        } else {
            self.call_done(ctx, op)
        }
    }

    /// A lock that conflicts with `lock`, if there is any.
    pub fn test_lock(
        &self,
        ctx: &Context,
        handle: Handle,
        lock: Lock,
    ) -> Result<Option<Lock>, Errno> {
        match self
            .call(ctx, Op::TestLock { handle, lock }, Bytes::new())?
            .outcome
        {
            Outcome::Lock(lock) => Ok(lock),
            _ => Err(Errno::IO),
        }
    }

    /// Releases all locks of an owner, in the background: never waits for a forwarder.
    pub fn drop_locks(&self, handle: Handle, family: LockFamily, owner: u64) {
        self.host.drop_locks(handle, family, owner);
    }
}
