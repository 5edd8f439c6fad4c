//! Files that a forwarder can reach (Landlock): its export, the places that its configuration
//! names, and what the system's own libraries read. It can execute none.
//!
//! A rule holds for a directory and what is below it, as it was found at the start. Files that are
//! replaced by others, as secrets are, need a rule for their directory.

use crate::backend::Backend;
use crate::config::{Address, Config};
use crate::node_memory::own_folder;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};
use tidegate_net::Place;

/// The newest set of rights that is asked for. Older kernels hold what they know of it.
const ASKED: ABI = ABI::V6;
/// The oldest with which files can be renamed and linked between directories.
const LEAST: ABI = ABI::V2;

/// What the system's libraries read: other processes' states, the machine, names of users and of
/// hosts, and libraries that they load late.
const READ: &[&str] = &[
    "/proc",
    "/sys",
    "/usr",
    "/lib",
    "/lib64",
    "/dev/urandom",
    "/etc/machine-id",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/gai.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/var/lib/sss",
];

/// What libfabric's providers use besides.
const FABRIC: &[&str] = &["/dev/shm", "/dev/infiniband", "/dev/hugepages"];
const FABRIC_READ: &[&str] = &["/etc/libibverbs.d", "/etc/rdma"];

/// Directories and files with what may be done there.
type Rules = Vec<(PathBuf, BitFlags<AccessFs>)>;

/// Confines this thread, and those that it starts. Returns what holds, for the log; an error says
/// why nothing does.
pub(super) fn confine(config: &Config) -> Result<String, String> {
    let abi = ABI::from(kernel());
    if abi < LEAST {
        return Err(match abi {
            ABI::Unsupported => {
                "the kernel has no Landlock, or it is not switched on (lsm=)".into()
            }
            _ => "Landlock of this kernel cannot rename between directories (Linux 5.19)".into(),
        });
    }
    let refused = |error: RulesetError| error.to_string();
    let mut ruleset = made(&rules(config)).map_err(refused)?;
    ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
    let status = ruleset.restrict_self().map_err(refused)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("Landlock holds nothing here".to_string()),
        _ => Ok(format!("export (Landlock {})", kernel())),
    }
}

/// The version of the kernel's Landlock; 0: it has none.
pub(super) fn kernel() -> i32 {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: with this flag the call takes no memory, and says a number.
    let found = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    i32::try_from(found).unwrap_or(0).max(0)
}

/// What the kernel's Landlock can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landlock {
    /// Its version; 0: the kernel has none, or it is not switched on.
    pub version: i32,
    /// Whether it can confine a forwarder to its files.
    pub confines: bool,
    /// Whether it has all that is asked for, signals to other processes too.
    pub is_whole: bool,
}

/// The kernel's Landlock.
pub(crate) fn landlock() -> Landlock {
    let abi = ABI::from(kernel());
    Landlock {
        version: kernel(),
        confines: abi >= LEAST,
        is_whole: abi >= ASKED,
    }
}

fn made(rules: &Rules) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ASKED))?
        .scope(Scope::Signal)?
        .create()?;
    for (path, rights) in rules {
        // What is not there is not reached; whoever needs it says so himself.
        let Ok(found) = PathFd::new(path) else {
            continue;
        };
        let rights = match path.is_dir() {
            true => *rights,
            false => *rights & AccessFs::from_file(ASKED),
        };
        if !rights.is_empty() {
            ruleset = ruleset.add_rule(PathBeneath::new(found, rights))?;
        }
    }
    Ok(ruleset)
}

/// What a forwarder with this configuration needs.
fn rules(config: &Config) -> Rules {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let all = AccessFs::from_all(ASKED) & !BitFlags::from(AccessFs::Execute);
    let changed = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
    let changed = changed | AccessFs::RemoveFile;
    let bound = read | AccessFs::MakeSock | AccessFs::RemoveFile;
    let mut rules = vec![(config.export.clone(), all)];
    rules.extend(READ.iter().map(|path| (path.into(), read)));
    rules.push(("/dev/null".into(), read | AccessFs::WriteFile));
    let sockets = config.listen.iter().filter_map(socket);
    rules.extend(sockets.map(|path| (folder(path), bound)));
    let trace = config.trace.as_ref().map(|trace| &trace.file);
    let written = config.pid_file.iter().chain(trace);
    rules.extend(written.map(|path| (folder(path), changed)));
    rules.extend(own_folder().map(|folder| (folder, changed)));
    let etcd = config.ownership.etcd.as_ref();
    let etcd = etcd.map(|it| [&it.ca, &it.cert, &it.key, &it.password_file]);
    let etcd = etcd.into_iter().flatten().flatten();
    let secrets = config.secret_file.iter().chain(&config.old_secret_file);
    let secrets = secrets.chain(&config.revoked_file);
    // A secret may be a symbolic link, which is followed.
    let followed = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let secrets = secrets.chain(etcd);
    let secrets = secrets.flat_map(|path| [folder(path), folder(followed(path))]);
    rules.extend(secrets.map(|path| (path, read)));
    // A GlusterFS volume tells its settings in a folder of its root.
    let backend = Backend::of_path(&config.export).ok();
    let gluster = backend.filter(Backend::is_gluster);
    rules.extend(gluster.map(|it| (it.settings_folder(), read)));
    if config.listen.iter().any(|one| one.provider.is_some()) {
        rules.extend(FABRIC.iter().map(|path| (path.into(), all)));
        rules.extend(FABRIC_READ.iter().map(|path| (path.into(), read)));
    }
    rules
}

fn socket(address: &Address) -> Option<&PathBuf> {
    match &address.place {
        Place::Unix(path) => Some(path),
        Place::Tcp(_) => None,
    }
}

/// The directory of a file.
fn folder(path: impl AsRef<Path>) -> PathBuf {
    match path.as_ref().parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
