//! For tests: the daemon kills itself at a chosen point, so that a test can restart it, treats its
//! mount of the back end as dead, or has a call to the back end fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_forward::{Access, Errno};
use tidegate_sched::Direction;

/// Ends the process after an effect, before its result is recorded or reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillAfterEffect {
    /// `create`, `mkdir`, `mknod`, `symlink`, `link`, `unlink`, `rmdir`, `rename`, `append` or
    /// `write`.
    pub operation: String,
    /// Which effect of that operation; the first is 1.
    pub count: u64,
}

/// Has a call to the back end fail once, before it does anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailCall {
    /// `write` or `fsync`.
    pub operation: String,
    /// Which call of that operation; the first is 1.
    pub count: u64,
    /// What it fails with, as Linux numbers it on x86-64.
    pub errno: u16,
}

/// The fault to inject; by default none. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    fault: Fault,
    effects: AtomicU64,
    jobs: AtomicU64,
}

/// What fails. Jobs are counted from 1.
#[derive(Debug)]
enum Fault {
    KillAfter(KillAfterEffect),
    PanicAt(u64),
    DeadMountAt(u64),
    FailCall(FailCall),
}

impl Faults {
    /// Ends the process after that effect.
    pub fn kill_after(effect: KillAfterEffect) -> Faults {
        Faults::of(Fault::KillAfter(effect))
    }

    /// The job with this number, counted from 1, panics instead of running.
    pub fn panic_at(job: u64) -> Faults {
        Faults::of(Fault::PanicAt(job))
    }

    /// The mount of the back end dies during the job with this number, counted from 1. That job
    /// takes effect. It and all later jobs report that the mount is dead.
    pub fn dead_mount_at(job: u64) -> Faults {
        Faults::of(Fault::DeadMountAt(job))
    }

    /// That call fails.
    pub fn fail_call(call: FailCall) -> Faults {
        Faults::of(Fault::FailCall(call))
    }

    fn of(fault: Fault) -> Faults {
        let shared = Shared {
            fault,
            effects: AtomicU64::new(0),
            jobs: AtomicU64::new(0),
        };
        Faults {
            shared: Some(Arc::new(shared)),
        }
    }

    /// Whether the injected fault has killed the mount.
    pub(crate) fn mount_is_dead(&self) -> bool {
        self.shared
            .as_ref()
            .is_some_and(|shared| match shared.fault {
                Fault::DeadMountAt(at) => shared.jobs.load(Ordering::Relaxed) >= at,
                _ => false,
            })
    }

    /// Storage calls this when an operation has taken effect.
    pub(crate) fn effect(&self, operation: &str) {
        if let Some(shared) = &self.shared
            && let Fault::KillAfter(kill) = &shared.fault
            && kill.operation == operation
            && shared.effects.fetch_add(1, Ordering::Relaxed) + 1 == kill.count
        {
            die();
        }
    }

    /// Storage asks this before a call: what the call fails with, if it does.
    pub(crate) fn failure(&self, operation: &str) -> Result<(), Errno> {
        if let Some(shared) = &self.shared
            && let Fault::FailCall(call) = &shared.fault
            && call.operation == operation
            && shared.effects.fetch_add(1, Ordering::Relaxed) + 1 == call.count
        {
            return Err(Errno(call.errno));
        }
        Ok(())
    }

    /// The same before a job that moves data.
    pub(crate) fn before(&self, direction: Direction) -> Result<(), Access> {
        match direction {
            Direction::Read => Ok(()),
            Direction::Write => self.failure("write").map_err(Access::from),
        }
    }

    /// Whether any fault is to be injected.
    pub(crate) fn are_set(&self) -> bool {
        self.shared.is_some()
    }

    /// Storage calls this before a job runs.
    pub(crate) fn job(&self) {
        let Some(shared) = &self.shared else { return };
        let before = shared.jobs.fetch_add(1, Ordering::Relaxed);
        if matches!(shared.fault, Fault::PanicAt(at) if at == before + 1) {
            panic!("a test asked for this panic");
        }
    }
}

/// SIGKILL, so that nothing of the process gets to run any more, not even a destructor.
pub(crate) fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
