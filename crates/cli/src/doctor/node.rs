//! This program, the node's kernel and C library, and the limits of this process.

use super::finding::Finding;
use crate::table;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use tidegate_client::wire::frame::VERSION;
use tidegate_server::open_files_lack;

/// Versions of Linux from which on something works.
const OF_FORWARDERS: (u32, u32) = (5, 6);
const OF_MOUNTS: (u32, u32) = (5, 10);
const OF_SHARED_MAPPINGS: (u32, u32) = (6, 6);

/// Locked memory that direct I/O by io_uring and libfabric should have.
const LOCKED_BYTES: u64 = 64 << 20;

/// Threads of four forwarders and a mount, about.
const THREADS_OF_A_SET: u64 = 100;

/// Processes that are looked at.
const PROCESSES_MAX: usize = 100_000;

/// What is known of program and node.
pub struct Node {
    kernel: String,
    machine: String,
    libc: String,
}

impl Node {
    /// Looks.
    pub fn look() -> Node {
        let system = rustix::system::uname();
        let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
        Node {
            kernel: text(system.release()),
            machine: text(system.machine()),
            libc: libc_version(),
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "tidegate": env!("CARGO_PKG_VERSION"),
            "protocol": VERSION,
            "kernel": self.kernel,
            "machine": self.machine,
            "libc": self.libc,
        })
    }

    /// What is to be said of them.
    pub fn findings(&self) -> Vec<Finding> {
        let version = env!("CARGO_PKG_VERSION");
        let program = format!("tidegate {version}, protocol {VERSION}");
        vec![Finding::ok("program", program), self.kernel()]
    }

    fn kernel(&self) -> Finding {
        let Node {
            kernel,
            machine,
            libc,
        } = self;
        let text = format!("Linux {kernel} on {machine}, {libc}");
        let newer = |(major, minor): (u32, u32)| format!("use Linux {major}.{minor} or later");
        match numbers(kernel) {
            None => Finding::ok("kernel", text),
            Some(found) if found < OF_FORWARDERS => Finding::fails(
                "kernel",
                format!("{text}: forwarders do not start"),
                newer(OF_MOUNTS),
            ),
            Some(found) if found < OF_MOUNTS => Finding::warning(
                "kernel",
                format!("{text}: forwarders run, and mounts were not tried with it"),
                newer(OF_MOUNTS),
            ),
            Some(found) if found < OF_SHARED_MAPPINGS => Finding::warning(
                "kernel",
                format!("{text}: programs cannot map files of a mount to share them (MAP_SHARED)"),
                format!("{} where programs need that", newer(OF_SHARED_MAPPINGS)),
            ),
            Some(_) => Finding::ok("kernel", text),
        }
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(target_env = "gnu")]
fn libc_version() -> String {
    // SAFETY: it returns a text that lives as long as the process.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn libc_version() -> String {
    "another C library than glibc".to_string()
}

/// Limits of this process, which forwarders that it starts have too. None: no limit.
pub struct Limits {
    open_files: Option<u64>,
    locked_bytes: Option<u64>,
    processes: Option<u64>,
    /// Processes and threads that this user has now.
    used: u64,
    is_root: bool,
}

impl Limits {
    /// Looks.
    pub fn look() -> Limits {
        let hard = |resource| getrlimit(resource).maximum;
        Limits {
            open_files: hard(Resource::Nofile),
            locked_bytes: hard(Resource::Memlock),
            processes: getrlimit(Resource::Nproc).current,
            used: threads_of_user(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// What is to be said of them. `direct`: whether a forwarder of the state directory is
    /// configured for direct I/O.
    pub fn findings(&self, direct: bool) -> Vec<Finding> {
        vec![self.open_files(), self.locked(direct), self.processes()]
    }

    fn open_files(&self) -> Finding {
        let check = "open files";
        let raise = "raise the hard limit (ulimit -Hn, LimitNOFILE=)";
        let limit = self.open_files.map_or("no limit".to_string(), |limit| {
            format!("{limit} (hard limit)")
        });
        match open_files_lack(self.open_files) {
            Ok(None) => Finding::ok(check, limit),
            Ok(Some(warning)) => Finding::warning(check, warning, raise),
            Err(why) => Finding::fails(check, why, raise),
        }
    }

    fn locked(&self, direct: bool) -> Finding {
        let check = "locked memory";
        let wanted = match (direct, cfg!(feature = "fabric")) {
            (true, _) => Some("direct I/O by io_uring"),
            (false, true) => Some("libfabric"),
            (false, false) => None,
        };
        let Some(limit) = self.locked_bytes.filter(|_| !self.is_root) else {
            return Finding::ok(check, "no limit");
        };
        let shown = table::bytes(limit);
        match wanted {
            Some(what) if limit < LOCKED_BYTES => Finding::warning(
                check,
                format!("{shown}: {what} pins less memory than the payload in flight"),
                "raise the limit to 64 MiB or more (ulimit -l, LimitMEMLOCK=)",
            ),
            Some(_) => Finding::ok(check, shown),
            None => Finding::ok(check, format!("{shown}; nothing here needs it")),
        }
    }

    fn processes(&self) -> Finding {
        let check = "processes";
        let Some(limit) = self.processes.filter(|_| !self.is_root) else {
            return Finding::ok(check, "no limit");
        };
        let left = limit.saturating_sub(self.used);
        let text = format!("{limit} of this user, of which {} are there now", self.used);
        match left < THREADS_OF_A_SET {
            false => Finding::ok(check, text),
            true => Finding::warning(
                check,
                format!("{text}: four forwarders and a mount have some {THREADS_OF_A_SET} threads"),
                "raise the limit (ulimit -u, TasksMax=), or end what is not needed",
            ),
        }
    }
}

/// How many threads the processes of this user have, as far as /proc tells.
fn threads_of_user() -> u64 {
    let own = rustix::process::getuid().as_raw();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = entries.filter(|it| it.file_name().to_str().is_some_and(is_process));
    let own = processes.take(PROCESSES_MAX).filter_map(|process| {
        let is_own = process.metadata().ok()?.uid() == own;
        let path = process.path().join("task");
        is_own.then(|| std::fs::read_dir(path).map_or(1, |tasks| tasks.count() as u64))
    });
    own.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn old_kernels_are_told_with_what_does_not_work() {
        let verdict = |kernel: &str| {
            let node = Node {
                kernel: kernel.to_string(),
                machine: "x86_64".to_string(),
                libc: "glibc 2.36".to_string(),
            };
            let found = node.kernel();
            (found.verdict, found.text)
        };
        let (found, text) = verdict("5.4.0-150-generic");
        assert_eq!(found, Verdict::Fails);
        assert!(text.contains("forwarders do not start"), "{text}");
        assert_eq!(verdict("5.6.1").0, Verdict::Warning);
        let (found, text) = verdict("6.1.0-18-amd64");
        assert_eq!(found, Verdict::Warning);
        assert!(text.contains("MAP_SHARED"), "{text}");
        assert_eq!(verdict("6.6").0, Verdict::Ok);
        assert_eq!(verdict("10.0.1").0, Verdict::Ok);
        assert_eq!(verdict("unknown").0, Verdict::Ok);
    }

    #[test]
    fn limits_that_are_too_low_are_told() {
        let plenty = || Limits {
            open_files: Some(1 << 20),
            locked_bytes: Some(8 << 20),
            processes: Some(4096),
            used: 20,
            is_root: false,
        };
        let verdicts = |limits: &Limits, direct| {
            let found = limits.findings(direct);
            found.iter().map(|it| it.verdict).collect::<Vec<_>>()
        };
        use Verdict::{Fails, Ok, Warning};
        assert_eq!(verdicts(&plenty(), true)[1], Warning);
        if !cfg!(feature = "fabric") {
            assert_eq!(verdicts(&plenty(), false), [Ok, Ok, Ok]);
        }
        let few = Limits {
            open_files: Some(1024),
            processes: Some(64),
            ..plenty()
        };
        assert_eq!(verdicts(&few, true), [Warning, Warning, Warning]);
        let none = Limits {
            open_files: Some(32),
            is_root: true,
            ..few
        };
        assert_eq!(verdicts(&none, true), [Fails, Ok, Ok]);
    }
}
