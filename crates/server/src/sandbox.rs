//! What a process can no longer do, whoever has taken it over: reach files that are none of its
//! work, start programs, look into other processes, change mounts or the kernel.
//!
//! The kernel holds it to that, by Landlock (`paths`) and seccomp (`calls`), for good and for
//! all threads that it starts from then on. Where the kernel lacks one of them, the log says so.

mod calls;
mod paths;

pub use paths::Landlock;
pub(crate) use paths::landlock;

use crate::config::{Address, Config, Io, Sandbox};
use crate::rights::{self, Looks};
use tidegate_net::{Place, witness};
use tracing::{info, warn};

/// Starts the process that looks at peers, which keeps a right that this one gives up. Must be
/// called before this process gives up rights and has other threads; else it looks itself.
pub(crate) fn start_witness(config: &Config) -> Looks {
    let is_unix = |one: &Address| matches!(one.place, Place::Unix(_));
    if !rustix::process::geteuid().is_root() || !config.listen.iter().any(is_unix) {
        return Looks::Apart;
    }
    let started = witness::start(|| {
        rights::keep_looking_at_processes();
        // Fails where this process's own calls cannot be refused either, which that one tells.
        let _ = calls::allow_looking();
    });
    match started {
        Ok(()) => Looks::Apart,
        Err(error) => {
            warn!(%error, "no process apart looks at peers with uid 0: this one keeps the right");
            Looks::Itself
        }
    }
}

/// To what the kernel holds a forwarder.
pub(crate) struct Held {
    files: String,
    programs: &'static str,
}

impl Held {
    /// Says so in the log.
    pub(crate) fn tell(&self) {
        info!(files = self.files, programs = self.programs, "sandbox");
    }
}

/// Confines this thread of a forwarder, and those that it starts. Must be called after its limits
/// were raised. Waits for the export's file system. None if it is switched off.
pub(crate) fn confine_forwarder(config: &Config, looks: Looks) -> Option<Held> {
    if config.sandbox == Sandbox::Off {
        warn!("sandbox = \"off\": this forwarder can reach all files, and start programs");
        return None;
    }
    let confined = match looks {
        Looks::Apart => paths::confine(config),
        // Landlock would refuse it what it looks at.
        Looks::Itself => Err("it looks at peers with uid 0 itself".into()),
    };
    let files = match confined {
        Ok(held) => held,
        Err(why) => {
            warn!("this forwarder can reach files outside its export: {why}");
            "all".to_string()
        }
    };
    let rings = config.storage.io == Io::Direct;
    let families = config.listen.iter().all(|one| one.provider.is_none());
    let programs = match calls::refuse(calls::Refused {
        rings: !rings,
        families,
        unmount: true,
    }) {
        Ok(()) => "none",
        Err(why) => {
            warn!("this forwarder can start programs and change mounts: {why}");
            "all"
        }
    };
    Some(Held { files, programs })
}

/// Confines the process of a mount, in all its threads: it can start no program, look into no
/// process's memory and make no other mount. It can still take its own mount off, for which it must
/// reach all files. If not `on`, it is left as it is, as it must be where another program takes the
/// mount off.
pub fn confine_mount(on: bool) {
    if !on {
        info!("no sandbox: it was switched off, or fusermount3 must take this mount off");
        return;
    }
    let refused = calls::Refused {
        rings: true,
        families: false,
        unmount: false,
    };
    match calls::refuse_in_all_threads(refused) {
        Ok(()) => info!(files = "all", programs = "none", "sandbox"),
        Err(why) => warn!("this mount's process can start programs: {why}"),
    }
}

#[cfg(test)]
mod tests;
