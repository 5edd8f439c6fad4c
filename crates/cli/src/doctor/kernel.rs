//! What of the kernel forwarders and clients use where it is there, and what they do without it.

use super::finding::Finding;
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tidegate_server::kernel::{Landlock, has_seccomp, io_uring, landlock};

/// What the configurations of a state directory ask of io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// `io = "direct"`: it is used where it can be had.
    pub wished: bool,
    /// `engine = "uring"`: a forwarder does not start without it.
    pub needed: bool,
}

/// What there is.
#[derive(Clone)]
pub struct Kernel {
    openat2: bool,
    memfd: Result<(), Errno>,
    pidfd: Result<(), Errno>,
    landlock: Landlock,
    seccomp: bool,
    io_uring: Result<(), String>,
}

impl Kernel {
    /// Looks.
    pub fn look() -> Kernel {
        Kernel {
            openat2: has_openat2(),
            memfd: sealed_memory(),
            pidfd: pidfd_open(getpid(), PidfdFlags::empty()).map(drop),
            landlock: landlock(),
            seccomp: has_seccomp(),
            io_uring: io_uring().map_err(|refused| refused.to_string()),
        }
    }

    /// What is to be said of it.
    pub fn findings(&self, rings: Rings) -> Vec<Finding> {
        vec![
            self.openat2(),
            self.memory(),
            self.pidfd(),
            self.landlock(),
            self.seccomp(),
            self.io_uring(rings),
        ]
    }

    fn openat2(&self) -> Finding {
        match self.openat2 {
            true => Finding::ok("openat2", "there"),
            false => Finding::fails(
                "openat2",
                "not to be had: forwarders do not start, for nothing else keeps names within the \
                 exported directory",
                "use Linux 5.6 or later, or a container whose seccomp profile allows the call",
            ),
        }
    }

    fn memory(&self) -> Finding {
        match self.memfd {
            Ok(()) => Finding::ok("shared memory", "memfd with seals"),
            Err(error) => Finding::warning(
                "shared memory",
                format!(
                    "no sealed memfd ({error}): payload between clients and forwarders of this \
                     node goes through sockets, and is copied twice more"
                ),
                "allow memfd_create (the seccomp profile of a container)",
            ),
        }
    }

    fn pidfd(&self) -> Finding {
        match self.pidfd {
            Ok(()) => Finding::ok("pidfd", "there"),
            Err(error) => Finding::fails(
                "pidfd",
                format!("{error}: `up`, `down` and `stat` do not find the processes of a set"),
                "use Linux 5.3 or later, or a container whose seccomp profile allows pidfd_open",
            ),
        }
    }

    fn landlock(&self) -> Finding {
        let Landlock {
            version,
            confines,
            is_whole,
        } = self.landlock;
        let text = match version {
            0 => "none".to_string(),
            version => format!("version {version}"),
        };
        match (confines, is_whole) {
            (false, _) => Finding::warning(
                "Landlock",
                format!(
                    "{text}: a forwarder that is taken over can reach all files of its user, not \
                     its export alone"
                ),
                "use Linux 5.19 or later, with landlock in the kernel's lsm=",
            ),
            (true, false) => Finding::ok(
                "Landlock",
                format!("{text}: confines a forwarder to its files, and not its signals (6)"),
            ),
            (true, true) => Finding::ok("Landlock", text),
        }
    }

    fn seccomp(&self) -> Finding {
        match self.seccomp {
            true => Finding::ok("seccomp", "there"),
            false => Finding::warning(
                "seccomp",
                "none: a forwarder or mount that is taken over can start programs and change \
                 mounts, as far as its user may",
                "use a kernel with CONFIG_SECCOMP_FILTER",
            ),
        }
    }

    fn io_uring(&self, rings: Rings) -> Finding {
        let check = "io_uring";
        let without = "direct I/O is done by threads, at four times the processor time";
        match &self.io_uring {
            Ok(()) => Finding::ok(check, "there"),
            Err(why) if rings.needed => Finding::fails(
                check,
                format!("{why}: forwarders with engine = \"uring\" do not start"),
                "allow it, or set engine = \"auto\" in [storage]",
            ),
            Err(why) if rings.wished => {
                Finding::warning(check, format!("{why}: {without}"), "allow it on I/O nodes")
            }
            Err(why) => Finding::ok(check, format!("not used here: {why}; {without}")),
        }
    }
}

fn has_openat2() -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    opened.is_ok()
}

/// Memory as clients share it with forwarders.
fn sealed_memory() -> Result<(), Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(c"tidegate-doctor", flags)?;
    rustix::fs::ftruncate(&memory, 4096)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::SEAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn whole() -> Kernel {
        Kernel {
            openat2: true,
            memfd: Ok(()),
            pidfd: Ok(()),
            landlock: Landlock {
                version: 7,
                confines: true,
                is_whole: true,
            },
            seccomp: true,
            io_uring: Ok(()),
        }
    }

    fn worst(kernel: &Kernel, rings: Rings) -> (String, Verdict) {
        let found = kernel.findings(rings).into_iter();
        let worst = found.max_by_key(|one| one.verdict).expect("there are some");
        (worst.check, worst.verdict)
    }

    #[test]
    fn each_lack_is_told_as_it_matters() {
        let none = Rings::default();
        assert_eq!(worst(&whole(), none).1, Verdict::Ok);
        let lacks = |change: fn(&mut Kernel), rings| {
            let mut kernel = whole();
            change(&mut kernel);
            let (check, verdict) = worst(&kernel, rings);
            match verdict {
                Verdict::Ok => ("nothing".to_string(), verdict),
                _ => (check, verdict),
            }
        };
        let told = |check: &str, verdict| (check.to_string(), verdict);
        assert_eq!(
            lacks(|it| it.openat2 = false, none),
            told("openat2", Verdict::Fails)
        );
        assert_eq!(
            lacks(|it| it.memfd = Err(Errno::PERM), none),
            told("shared memory", Verdict::Warning)
        );
        assert_eq!(
            lacks(|it| it.seccomp = false, none),
            told("seccomp", Verdict::Warning)
        );
        assert_eq!(
            lacks(|it| it.landlock.confines = false, none),
            told("Landlock", Verdict::Warning)
        );
        let off = |it: &mut Kernel| it.io_uring = Err("it is switched off".to_string());
        let rings = |wished, needed| Rings { wished, needed };
        assert_eq!(lacks(off, none), told("nothing", Verdict::Ok));
        assert_eq!(
            lacks(off, rings(true, false)),
            told("io_uring", Verdict::Warning)
        );
        assert_eq!(
            lacks(off, rings(true, true)),
            told("io_uring", Verdict::Fails)
        );
    }
}
