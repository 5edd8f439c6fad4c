//! For tests: the daemon kills itself at a chosen point, so that a test can restart it, or treats
//! its mount of the back end as dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ends the process after an effect, before its result is recorded or reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillAfterEffect {
    /// `create`, `mkdir`, `mknod`, `symlink`, `link`, `unlink`, `rmdir`, `rename`, `append` or
    /// `write`.
    pub operation: String,
    /// Which effect of that operation; the first is 1.
    pub count: u64,
}

/// The faults to inject; by default none. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    kill_after_effect: Option<KillAfterEffect>,
    kill_at_request: Option<u64>,
    panic_at_request: Option<u64>,
    dead_mount_at: Option<u64>,
    effects: AtomicU64,
    requests: AtomicU64,
}

impl Faults {
    /// Ends the process at the given points. `kill_at_request` counts jobs from 1; the process ends
    /// before that job.
    pub fn new(kill_after_effect: Option<KillAfterEffect>, kill_at_request: Option<u64>) -> Faults {
        Faults::with_panic(kill_after_effect, kill_at_request, None)
    }

    /// The faults of [`Faults::new`], and the number of a job that panics instead of running.
    pub fn with_panic(
        kill_after_effect: Option<KillAfterEffect>,
        kill_at_request: Option<u64>,
        panic_at_request: Option<u64>,
    ) -> Faults {
        if kill_after_effect.is_none() && kill_at_request.is_none() && panic_at_request.is_none() {
            return Faults::default();
        }
        Faults::of(kill_after_effect, kill_at_request, panic_at_request, None)
    }

    /// The mount of the back end dies during the job with this number, counted from 1. That job
    /// takes effect. It and all later jobs report that the mount is dead.
    pub fn with_dead_mount(job: u64) -> Faults {
        Faults::of(None, None, None, Some(job))
    }

    fn of(
        kill_after_effect: Option<KillAfterEffect>,
        kill_at_request: Option<u64>,
        panic_at_request: Option<u64>,
        dead_mount_at: Option<u64>,
    ) -> Faults {
        let shared = Shared {
            kill_after_effect,
            kill_at_request,
            panic_at_request,
            dead_mount_at,
            effects: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        };
        Faults {
            shared: Some(Arc::new(shared)),
        }
    }

    /// Whether the injected fault has killed the mount.
    pub(crate) fn mount_is_dead(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| {
            let at = shared.dead_mount_at;
            at.is_some_and(|at| shared.requests.load(Ordering::Relaxed) >= at)
        })
    }

    /// Storage calls this when an operation has taken effect.
    pub(crate) fn effect(&self, operation: &str) {
        let Some(shared) = &self.shared else { return };
        let Some(kill) = &shared.kill_after_effect else {
            return;
        };
        if kill.operation == operation
            && shared.effects.fetch_add(1, Ordering::Relaxed) + 1 == kill.count
        {
            die();
        }
    }

    /// Whether any fault is to be injected.
    pub(crate) fn are_set(&self) -> bool {
        self.shared.is_some()
    }

    /// Storage calls this before a job runs.
    pub(crate) fn request(&self) {
        let Some(shared) = &self.shared else { return };
        let number = shared.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if shared.kill_at_request == Some(number) {
            die();
        }
        if shared.panic_at_request == Some(number) {
            panic!("a test asked for this panic");
        }
    }
}

/// SIGKILL, so that nothing of the process gets to run any more, not even a destructor.
fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
