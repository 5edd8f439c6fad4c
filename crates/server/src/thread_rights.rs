//! The capabilities of each thread of a forwarder: it keeps those that its work needs, for good.
//!
//! Threads of one process share their memory, so this holds nobody who makes a thread do what he
//! likes. It keeps a thread from doing by mistake what it never should, as opening a file that a
//! peer has named, or from acting for a user.

use crate::config::Io;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It opens, makes and changes files for all users.
    Files,
    /// It decides, and keeps what the forwarder has for itself: seats, secrets, sockets. Reads of
    /// what is open already are all that it does with users' files.
    Loop,
    /// The same over a ring of the kernel, to which it hands the rights of each writer.
    RingLoop,
    /// It keeps files of the forwarder's own.
    OwnFiles,
    /// It serves connections.
    Network,
    /// It needs no file and no connection.
    Nothing,
}

impl Work {
    /// That of the forwarder's loop.
    pub(crate) fn of_loop(io: Io) -> Work {
        match io {
            Io::Direct => Work::RingLoop,
            Io::Buffered => Work::Loop,
        }
    }

    /// The capabilities that it needs, if the process has them.
    fn needs(self) -> CapabilitySet {
        // Any user's files are opened with the forwarder's own rights, and root's requests are
        // carried out with root's rights: device nodes, capabilities of files, `trusted.`
        // attributes. Without SYS_ADMIN the pipes of large reads would also be counted against a
        // limit. SETUID and SETGID take on a caller's ids.
        const FILES: CapabilitySet = CapabilitySet::CHOWN
            .union(CapabilitySet::DAC_OVERRIDE)
            .union(CapabilitySet::DAC_READ_SEARCH)
            .union(CapabilitySet::FOWNER)
            .union(CapabilitySet::FSETID)
            .union(CapabilitySet::MKNOD)
            .union(CapabilitySet::SETFCAP)
            .union(CapabilitySet::SYS_ADMIN)
            .union(CapabilitySet::SETUID)
            .union(CapabilitySet::SETGID);
        // Files of the forwarder's own may lie in folders of somebody else.
        const OWN_FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE;
        // Memory that libfabric and io_uring pin.
        const PINS: CapabilitySet = CapabilitySet::IPC_LOCK;
        // Looks at peers, where no process apart does.
        const LOOKS: CapabilitySet = CapabilitySet::SYS_PTRACE;
        match self {
            Work::Files => FILES,
            Work::Loop => OWN_FILES.union(PINS).union(LOOKS),
            Work::RingLoop => FILES.union(PINS).union(LOOKS),
            Work::OwnFiles => OWN_FILES,
            Work::Network => PINS,
            Work::Nothing => CapabilitySet::empty(),
        }
    }

    /// What some thread of a forwarder of root needs that listens on no privileged port and looks
    /// at no peers. `pins`: it pins memory.
    pub(crate) fn all(pins: bool) -> CapabilitySet {
        let pinning = match pins {
            true => Work::Network.needs(),
            false => CapabilitySet::empty(),
        };
        Work::Files.needs() | pinning
    }
}

/// Gives up, for this thread and those that it starts, what this work does not need. Logs what
/// fails.
pub(crate) fn keep_for(work: Work) {
    if let Err(error) = keep(work.needs()) {
        tracing::warn!(%error, ?work, "a thread keeps capabilities that it does not need");
    }
}

/// Runs this in a thread of its own with the rights of this work, and waits for it, so that the
/// threads that it starts have no others.
pub(crate) fn within<R: Send>(work: Work, run: impl FnOnce() -> R + Send) -> R {
    let ran = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            keep_for(work);
            run()
        });
        thread.join()
    });
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn keep(needed: CapabilitySet) -> rustix::io::Result<()> {
    let before = capabilities(None)?;
    let sets = CapabilitySets {
        effective: before.effective & needed,
        permitted: before.permitted & needed,
        // The kernel takes what is not inheritable out of the ambient ones too.
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_its_work_needs_and_so_do_those_that_it_starts() {
        for work in [Work::Files, Work::Loop, Work::OwnFiles, Work::Nothing] {
            let before = capabilities(None).expect("they are told").permitted;
            let of_its_thread = within(work, || {
                let thread = std::thread::spawn(|| capabilities(None).expect("they are told"));
                thread.join().expect("it does not panic")
            });
            assert_eq!(of_its_thread.permitted, before & work.needs(), "{work:?}");
            assert_eq!(
                of_its_thread.effective & !work.needs(),
                CapabilitySet::empty()
            );
            assert!(of_its_thread.inheritable.is_empty());
            let own = capabilities(None).expect("they are told").permitted;
            assert_eq!(own, before, "this thread has what it had");
        }
    }

    #[test]
    fn no_thread_has_more_than_the_process() {
        let all = Work::all(true) | CapabilitySet::SYS_PTRACE;
        for work in [Work::Files, Work::Loop, Work::RingLoop, Work::Network] {
            assert!(all.contains(work.needs()), "{work:?}");
        }
        assert!(!all.contains(CapabilitySet::SYS_RESOURCE));
        assert!(!Work::all(false).contains(CapabilitySet::IPC_LOCK));
    }
}
