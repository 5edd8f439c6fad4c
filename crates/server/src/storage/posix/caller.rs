//! Acts for a caller: a storage thread takes on the caller's ids for one operation.
//!
//! Only the *effective* ids of the thread change, by raw system calls that concern one thread.
//! Leaving effective uid 0 also clears every effective capability. So the kernel decides as for the
//! caller itself: no trusted attributes, no device nodes, no reserved blocks, and set-uid bits are
//! cleared as on a local file system. Data is written by threads of root through descriptors of
//! root, whoever has written it. For that the threads give up `CAP_FSETID`, so that the kernel
//! clears the set-id bits as of any file that is written to.

use super::sys::{Done, no};
use rustix::process::{Gid, Uid, getgroups};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::cell::{Cell, RefCell};
use tidegate_forward::Errno;
use tidegate_wire::Caller;

/// The forwarder's own ids, and whether it can take on others.
pub(super) struct Own {
    uid: Uid,
    gid: Gid,
    groups: Vec<u32>,
}

thread_local! {
    /// Whether the thread's effective capabilities include `CAP_FSETID`, if it may have that at
    /// all. Unknown at first, because a thread inherits the capabilities of the thread that started
    /// it.
    static KEEPS_SET_ID: Cell<Option<bool>> = const { Cell::new(None) };
}

/// While this exists the thread has the caller's uid.
pub(super) struct Acting<'a> {
    own: Option<&'a Own>,
}

impl Own {
    /// The ids of this process.
    pub(super) fn of_process() -> Own {
        let groups = getgroups().unwrap_or_default();
        Own {
            uid: rustix::process::geteuid(),
            gid: rustix::process::getegid(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
        }
    }

    /// The forwarder's user.
    pub(super) fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Whether callers' ids are used: a forwarder that is not root acts as itself only.
    pub(super) fn acts_for_callers(&self) -> bool {
        self.uid.is_root()
    }

    /// The uid by which the kernel judges an operation of this caller.
    pub(super) fn effective_uid(&self, caller: Option<&Caller>) -> u32 {
        match caller {
            Some(caller) if self.acts_for_callers() => caller.uid,
            _ => self.uid(),
        }
    }

    /// Takes on the caller's ids until the guard is dropped. Calls must not nest.
    pub(super) fn act_as(&self, caller: Option<&Caller>) -> Done<Acting<'_>> {
        if !self.acts_for_callers() {
            return Ok(Acting { own: None });
        }
        let Some(caller) = caller else {
            keep_set_id(true)?;
            self.join_groups(self.gid.as_raw(), &self.groups)?;
            return Ok(Acting { own: None });
        };
        if caller.uid == u32::MAX || caller.gid == u32::MAX {
            return Err(Errno::EINVAL.into());
        }
        self.join_groups(caller.gid, &caller.groups)?;
        if caller.uid == self.uid.as_raw() {
            keep_set_id(true)?;
            return Ok(Acting { own: None });
        }
        set_thread_res_uid(None, Uid::from_raw(caller.uid), None).map_err(no)?;
        Ok(Acting { own: Some(self) })
    }

    /// Prepares the thread to write data: files that it writes to lose their set-id bits, until the
    /// thread next acts for a caller.
    pub(super) fn write_as_anybody(&self) -> Done<()> {
        match self.acts_for_callers() {
            true => keep_set_id(false),
            false => Ok(()),
        }
    }

    /// Gives the thread a group and supplementary groups. They stay after the operation, because
    /// the next one is often for the same caller. They have no effect while the uid is root's and
    /// no file is made.
    fn join_groups(&self, gid: u32, groups: &[u32]) -> Done<()> {
        thread_local! {
            /// Unknown at first, because a thread inherits the ids of the thread that started it.
            static JOINED: RefCell<Option<(u32, Vec<u32>)>> = const { RefCell::new(None) };
        }
        JOINED.with_borrow_mut(|joined| {
            if joined
                .as_ref()
                .is_some_and(|(g, all)| *g == gid && all == groups)
            {
                return Ok(());
            }
            // Unknown again until both calls have succeeded.
            *joined = None;
            let all: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
            set_thread_groups(&all).map_err(no)?;
            set_thread_res_gid(None, Gid::from_raw(gid), None).map_err(no)?;
            *joined = Some((gid, groups.to_vec()));
            Ok(())
        })
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let Some(own) = self.own else { return };
        // The real and saved uids never changed, so the kernel cannot refuse; a thread with foreign
        // rights must not go on.
        set_thread_res_uid(None, own.uid, None).expect("real uid is root's");
        // Coming back to uid 0 makes all permitted capabilities effective.
        KEEPS_SET_ID.set(Some(true));
    }
}

/// Makes `CAP_FSETID` effective for this thread, if it is permitted, or not effective.
fn keep_set_id(keep: bool) -> Done<()> {
    if KEEPS_SET_ID.get() == Some(keep) {
        return Ok(());
    }
    let mut sets = capabilities(None).map_err(no)?;
    let before = sets.effective;
    let set_id = sets.permitted & CapabilitySet::FSETID;
    sets.effective.set(set_id, keep);
    if sets.effective != before {
        set_capabilities(None, sets).map_err(no)?;
    }
    KEEPS_SET_ID.set(Some(keep));
    Ok(())
}
