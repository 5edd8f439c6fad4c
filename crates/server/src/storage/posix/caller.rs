//! Acts for a caller: a storage thread takes on the caller's ids for one operation.
//!
//! For operations on names and attributes only the *effective* ids of the thread change, by raw
//! system calls that concern one thread. Leaving effective uid 0 also clears every effective
//! capability. So the kernel decides as for the caller itself: no trusted attributes, no device
//! nodes, no reserved blocks, and set-uid bits are cleared as on a local file system.
//!
//! Data is written through descriptors that the forwarder has opened, by a thread with the writer's
//! *file system* uid and groups. That gives up the capabilities over files, `CAP_FSETID` among
//! them, so the kernel clears the set-id bits of a file that is written to. It also grants no room
//! that file systems reserve for root. Threads that write have no `CAP_SYS_RESOURCE` at all, with
//! which the kernel ignores quotas and reserves. Where root itself writes, only `CAP_FSETID` goes.
//! The file system uid stays after the call, because the next write is often for the same user.

use super::sys::{Done, no};
use crate::acting::Acting as For;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::cell::{Cell, RefCell};
use tidegate_forward::Errno;
use tidegate_wire::Caller;

/// The forwarder's own ids, and whether it can take on others.
pub(super) struct Own {
    uid: Uid,
    gid: Gid,
    groups: Box<[u32]>,
    for_callers: bool,
}

/// As whom the kernel sees a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// Not known: a thread inherits the rights of the thread that started it.
    Unknown,
    /// The forwarder's, with all its capabilities; or those of the caller for whom it acts.
    Own,
    /// Those of a user who writes data.
    Writer(u32),
}

thread_local! {
    static RIGHTS: Cell<Rights> = const { Cell::new(Rights::Unknown) };
}

/// While this exists the thread has the caller's uid.
pub(super) struct Acting<'a> {
    own: Option<&'a Own>,
}

impl Own {
    /// The ids of this process.
    pub(super) fn of_process() -> Own {
        let (for_callers, groups) = match For::of_process() {
            For::ForCallers(groups) => (true, groups),
            For::ForItself | For::Alone(_) => (false, Box::default()),
            // Each call of another user fails, rather than act as root.
            For::Refused(_) => (true, Box::default()),
        };
        Own {
            uid: rustix::process::geteuid(),
            gid: rustix::process::getegid(),
            groups,
            for_callers,
        }
    }

    /// The forwarder's user.
    pub(super) fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Whether callers' ids are used: a forwarder that is not root acts as itself only, and so does
    /// one that cannot take them on.
    pub(super) fn acts_for_callers(&self) -> bool {
        self.for_callers
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
            self.act_as_itself()?;
            self.join_groups(self.gid.as_raw(), &self.groups)?;
            return Ok(Acting { own: None });
        };
        check(caller)?;
        self.join_groups(caller.gid, &caller.groups)?;
        if caller.uid == self.uid() {
            self.act_as_itself()?;
            return Ok(Acting { own: None });
        }
        set_thread_res_uid(None, Uid::from_raw(caller.uid), None).map_err(no)?;
        RIGHTS.set(Rights::Own);
        Ok(Acting { own: Some(self) })
    }

    /// Prepares the thread to write data for this user, None being the forwarder itself, until the
    /// thread next acts otherwise.
    pub(super) fn write_as(&self, writer: Option<&Caller>) -> Done<()> {
        if !self.acts_for_callers() {
            return Ok(());
        }
        let (uid, gid, groups) = match writer {
            Some(writer) => {
                check(writer)?;
                (writer.uid, writer.gid, &writer.groups[..])
            }
            None => (self.uid(), self.gid.as_raw(), &self.groups[..]),
        };
        self.join_groups(gid, groups)?;
        if RIGHTS.get() == Rights::Writer(uid) {
            return Ok(());
        }
        if uid == self.uid() {
            self.act_as_itself()?;
            keep_set_id(false)?;
        } else {
            RIGHTS.set(Rights::Unknown);
            set_file_system_uid(uid)?;
        }
        RIGHTS.set(Rights::Writer(uid));
        Ok(())
    }

    /// Gives the thread the forwarder's own rights again if it has those of a writer.
    pub(super) fn act_as_itself(&self) -> Done<()> {
        let before = RIGHTS.get();
        if !self.acts_for_callers() || before == Rights::Own {
            return Ok(());
        }
        // Coming back to file system uid 0 makes the permitted capabilities over files effective.
        set_file_system_uid(self.uid())?;
        if before == Rights::Unknown || before == Rights::Writer(self.uid()) {
            keep_set_id(true)?;
        }
        RIGHTS.set(Rights::Own);
        Ok(())
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
        RIGHTS.set(Rights::Own);
    }
}

/// Makes `CAP_FSETID` effective for this thread, if it is permitted, or not effective.
fn keep_set_id(keep: bool) -> Done<()> {
    let mut sets = capabilities(None).map_err(no)?;
    let before = sets.effective;
    let set_id = sets.permitted & CapabilitySet::FSETID;
    sets.effective.set(set_id, keep);
    if sets.effective != before {
        set_capabilities(None, sets).map_err(no)?;
    }
    Ok(())
}

/// Sets the uid by which the kernel judges accesses to files, of this thread alone.
fn set_file_system_uid(uid: u32) -> Done<()> {
    // SAFETY: both calls change or tell one number of this thread's credentials. The second one
    // asks for an id that no user has, which the kernel refuses, and tells the present one.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX)
    };
    match now as u32 == uid {
        true => Ok(()),
        false => Err(Errno::EPERM.into()),
    }
}

/// Refuses the id 2^32 - 1, which stands for "no change" in the kernel's calls.
fn check(caller: &Caller) -> Done<()> {
    let ids = [caller.uid, caller.gid];
    match ids.iter().chain(&caller.groups).any(|id| *id == u32::MAX) {
        true => Err(Errno::EINVAL.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{geteuid, getgroups};
    use std::process::Command;

    /// Set where the test runs in the namespace that it has made.
    const INSIDE: &str = "TIDEGATE_TEST_WITHOUT_GROUPS";

    /// In a user namespace without other users whose processes can set no groups.
    #[test]
    fn a_root_that_can_set_no_groups_acts_for_nobody() {
        if std::env::var_os(INSIDE).is_some() {
            return acts_for_nobody();
        }
        let unshare = || Command::new("unshare");
        let made = unshare()
            .args(["--user", "--map-root-user", "true"])
            .status();
        if !made.is_ok_and(|made| made.success()) {
            let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(
                !(is_ci && geteuid().is_root()),
                "root of a CI can make namespaces"
            );
            println!("skipped, needs the right to make a user namespace");
            return;
        }
        let name = "storage::posix::caller::tests::a_root_that_can_set_no_groups_acts_for_nobody";
        let inside = unshare()
            .args(["--user", "--map-root-user"])
            .arg(std::env::current_exe().expect("it runs"))
            .args(["--exact", name])
            .env(INSIDE, "1")
            .output()
            .expect("it has just been called");
        let told = String::from_utf8_lossy(&inside.stdout);
        assert!(
            inside.status.success() && told.contains("1 passed"),
            "{told}"
        );
    }

    fn acts_for_nobody() {
        assert!(matches!(For::of_process(), For::Alone(why) if why.contains("setgroups is deny")));
        let own = Own::of_process();
        assert!(!own.acts_for_callers());
        let groups = getgroups().expect("they are few");
        for uid in [0, 1, 65_534] {
            let caller = Caller::alone(uid, uid);
            assert_eq!(own.effective_uid(Some(&caller)), 0);
            let acting = own.act_as(Some(&caller)).expect("it acts as itself");
            assert!(acting.own.is_none() && geteuid().is_root());
            assert_eq!(own.write_as(Some(&caller)), Ok(()));
            assert_eq!(own.act_as_itself(), Ok(()));
        }
        assert_eq!(getgroups().expect("they are few"), groups);
    }
}
