//! Acting for a caller: a storage thread takes on the caller's ids for one operation.
//!
//! Only the thread's *effective* ids change, by raw system calls that concern one thread. Leaving
//! effective uid 0 also clears every effective capability, so the kernel decides as it would for
//! the caller itself: no trusted attributes, no device nodes, no reserved blocks, and the set-uid
//! bits fall where they fall on a local file system.

use super::sys::{Done, no};
use rustix::process::{Gid, Uid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tidegate_forward::Errno;
use tidegate_wire::Caller;

/// Who the forwarder is, and whether it can be others.
pub(super) struct Own {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// While it lives, the thread has the caller's ids.
pub(super) struct Acting<'a> {
    own: Option<&'a Own>,
}

impl Own {
    /// The ids of this process.
    pub(super) fn of_process() -> Own {
        Own {
            uid: rustix::process::geteuid(),
            gid: rustix::process::getegid(),
            groups: getgroups().unwrap_or_default(),
        }
    }

    /// The forwarder's user.
    pub(super) fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Whether callers count: a forwarder that is not root serves itself only.
    pub(super) fn acts_for_callers(&self) -> bool {
        self.uid.is_root()
    }

    /// The uid that an operation for this caller is judged by.
    pub(super) fn effective_uid(&self, caller: Option<&Caller>) -> u32 {
        match caller {
            Some(caller) if self.acts_for_callers() => caller.uid,
            _ => self.uid(),
        }
    }

    /// Takes on the caller's ids until the guard is dropped. Do not nest.
    pub(super) fn act_as(&self, caller: Option<&Caller>) -> Done<Acting<'_>> {
        let caller = match caller {
            Some(caller) if self.acts_for_callers() => caller,
            _ => return Ok(Acting { own: None }),
        };
        if caller.uid == u32::MAX || caller.gid == u32::MAX {
            return Err(Errno::EINVAL.into());
        }
        // Made first: whatever fails below, dropping it restores all.
        let acting = Acting { own: Some(self) };
        let groups: Vec<Gid> = caller.groups.iter().map(|&g| Gid::from_raw(g)).collect();
        set_thread_groups(&groups).map_err(no)?;
        set_thread_res_gid(None, Gid::from_raw(caller.gid), None).map_err(no)?;
        set_thread_res_uid(None, Uid::from_raw(caller.uid), None).map_err(no)?;
        Ok(acting)
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let Some(own) = self.own else { return };
        // The real and saved ids never changed, so the kernel cannot refuse; a thread with foreign
        // rights must not go on.
        set_thread_res_uid(None, own.uid, None).expect("real uid is root's");
        set_thread_res_gid(None, own.gid, None).expect("root may set its gid");
        set_thread_groups(&own.groups).expect("root may set its groups");
    }
}
