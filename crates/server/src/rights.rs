//! The capabilities of a forwarder: at its start it gives up, for good, all that it does not need.
//!
//! A forwarder that is no longer root of everything does less harm when somebody takes it over. It
//! also writes with no more room than users have: see [`crate::storage`]. Of the rest each thread
//! keeps what its work needs: see [`crate::thread_rights`].

use crate::config::{Address, Config, Io};
use crate::thread_rights::Work;
use rustix::thread::CapabilitySet;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities};
use tidegate_net::Place;

/// Which process looks at peers with uid 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// None, or one apart.
    Apart,
    /// This one, which keeps the right to look into other processes.
    Itself,
}

/// Gives up what this thread, and the threads and programs that it starts, do not need. Must be
/// called after limits were raised and before other threads start. A forwarder that is not root
/// keeps only what its addresses, its pinned memory and the threads that answer need. Logs what
/// fails.
pub(crate) fn give_up_unneeded(config: &Config, looks: Looks) {
    let mut needed = needed(config, rustix::process::geteuid().is_root());
    if looks == Looks::Itself {
        needed |= CapabilitySet::SYS_PTRACE;
    }
    if let Err(error) = keep(needed) {
        tracing::warn!(%error, "this forwarder keeps capabilities that it does not need");
    }
}

/// Keeps the right to look into other processes and no other, and no ids of root where there are
/// others. For a process that does nothing else, with one thread.
pub(crate) fn keep_looking_at_processes() {
    /// Of nobody on any system, so no other process may send this one a signal. It lies where no
    /// system takes ids from, and is none of those that mean "none".
    const ALONE: u32 = 0xffff_fff0;
    /// Where a namespace has few ids.
    const NOBODY: u32 = 65_534;
    let looking = CapabilitySet::SYS_PTRACE;
    // SAFETY: calls on this process's own ids, which take no memory. What they refuse, as in a
    // namespace with few ids, leaves ids that have no right of their own below.
    unsafe {
        libc::prctl(libc::PR_SET_KEEPCAPS, 1);
        libc::setgroups(0, std::ptr::null());
        for id in [ALONE, NOBODY] {
            if libc::setresgid(id, id, id) == 0 && libc::setresuid(id, id, id) == 0 {
                break;
            }
        }
    }
    let Ok(before) = capabilities(None) else {
        return;
    };
    let sets = CapabilitySets {
        effective: before.permitted & looking,
        permitted: before.permitted & looking,
        inheritable: CapabilitySet::empty(),
    };
    let _ = rustix::thread::clear_ambient_capability_set();
    let _ = set_capabilities(None, sets);
    let _ = rustix::thread::set_no_new_privs(true);
}

/// With which the threads that answer go first; they give it up then. No program needs it.
const UNTIL_IT_SERVES: CapabilitySet = CapabilitySet::SYS_NICE;

fn needed(config: &Config, is_root: bool) -> CapabilitySet {
    let fabric = config.listen.iter().any(|one| one.provider.is_some());
    let pins = fabric || config.storage.io == Io::Direct;
    let mut needed = match is_root {
        true => Work::all(pins),
        false => CapabilitySet::IPC_LOCK,
    };
    needed |= UNTIL_IT_SERVES;
    if config.listen.iter().any(is_privileged) {
        needed |= CapabilitySet::NET_BIND_SERVICE;
    }
    needed
}

/// Whether only a privileged process may listen there.
fn is_privileged(address: &Address) -> bool {
    let Place::Tcp(host_port) = &address.place else {
        return false;
    };
    let port = host_port.rsplit_once(':').map(|(_, port)| port.parse());
    matches!(port, Some(Ok(1..1024_u16)))
}

fn keep(needed: CapabilitySet) -> rustix::io::Result<()> {
    let before = capabilities(None)?;
    let kept = before.permitted & needed;
    // Bounds what a program could get back that this process starts; takes SETPCAP.
    if before.effective.contains(CapabilitySet::SETPCAP) {
        for one in (!needed | UNTIL_IT_SERVES).iter() {
            // Unknown to an older kernel.
            if rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false) {
                rustix::thread::remove_capability_from_bounding_set(one)?;
            }
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets {
        effective: before.effective & kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    // No program that this process starts gains rights by its file.
    rustix::thread::set_no_new_privs(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    const SECRET: &str = "secret_file = \"/tmp/secret\"\n";

    fn needs_a_privileged_port(listen: &str) -> bool {
        let text = format!("export = \"/tmp\"\nlisten = [\"{listen}\"]\n{SECRET}");
        let source = Source::parse(&text, "test").expect("TOML");
        let config = Config::from_source(source).expect("right");
        needed(&config, true).contains(CapabilitySet::NET_BIND_SERVICE)
    }

    #[test]
    fn only_a_privileged_port_needs_a_capability_of_the_network() {
        assert!(needs_a_privileged_port("tcp:127.0.0.1:600"));
        assert!(!needs_a_privileged_port("tcp:127.0.0.1:4600"));
        assert!(!needs_a_privileged_port("unix:/tmp/socket"));
    }

    #[test]
    fn what_is_not_needed_is_gone_for_good() {
        // In a thread of its own, for capabilities belong to threads.
        let thread = std::thread::spawn(|| {
            let before = capabilities(None).expect("they are told").permitted;
            let needed = Work::all(true) | UNTIL_IT_SERVES;
            keep(needed).expect("giving up is always allowed");
            let sets = capabilities(None).expect("they are told");
            assert_eq!(sets.permitted, before & needed);
            assert!(!sets.permitted.contains(CapabilitySet::SYS_RESOURCE));
            assert!(sets.inheritable.is_empty());
            if before.contains(CapabilitySet::SETPCAP) {
                let has = rustix::thread::capability_is_in_bounding_set;
                assert_eq!(has(CapabilitySet::SYS_RESOURCE), Ok(false));
                assert_eq!(has(CapabilitySet::SETUID), Ok(true));
                assert_eq!(has(CapabilitySet::SYS_NICE), Ok(false));
            }
            let again = CapabilitySets {
                permitted: before,
                ..sets
            };
            assert!(before == sets.permitted || set_capabilities(None, again).is_err());
        });
        thread.join().expect("it does not panic");
    }
}
