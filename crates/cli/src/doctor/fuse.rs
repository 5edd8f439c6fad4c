//! Whether this user can mount: FUSE's device, the program that mounts for users, and what may take
//! its rights away.

use super::finding::Finding;
use crate::run::found;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const DEVICE: &str = "/dev/fuse";
const PROGRAM: &str = "fusermount3";
const SETTINGS: &str = "/etc/fuse.conf";

/// The number of the capability CAP_SYS_ADMIN.
const SYS_ADMIN: u32 = 21;

const CONTAINER: &str = "in a container, pass the device and the right to mount (--device \
                         /dev/fuse --cap-add SYS_ADMIN); without FUSE only programs that link \
                         the client library reach forwarders (`tidegate up --no-mount`)";

/// The program that mounts for users who are not root.
#[derive(Clone)]
struct Mounter {
    path: PathBuf,
    /// Whether it runs with root's rights: it is root's, set-user-ID, on a mount that allows that.
    is_set_uid: bool,
}

/// What is known of FUSE here.
#[derive(Clone)]
pub struct Fuse {
    device: Result<(), Errno>,
    mounter: Option<Mounter>,
    is_root: bool,
    /// Whether this process may mount by itself.
    may_mount: bool,
    no_new_privs: bool,
    allows_others: bool,
}

impl Fuse {
    /// Looks. Mounts nothing.
    pub fn look() -> Fuse {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open(DEVICE, flags, Mode::empty()).map(drop);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let settings = std::fs::read_to_string(SETTINGS).unwrap_or_default();
        Fuse {
            device,
            mounter: found(PROGRAM).map(mounter),
            is_root: rustix::process::geteuid().is_root(),
            may_mount: has_capability(&status, "CapEff:"),
            no_new_privs: field(&status, "NoNewPrivs:") == Some("1"),
            allows_others: allows_others(&settings),
        }
    }

    /// What is to be said of it.
    pub fn findings(&self) -> Vec<Finding> {
        let mut all = vec![self.device()];
        all.extend(self.mounter());
        if !self.is_root {
            let text = match self.allows_others {
                true => format!("user_allow_other is set in {SETTINGS}"),
                false => format!(
                    "user_allow_other is not set in {SETTINGS}: `--allow-other` is refused, and \
                     your mount is yours alone"
                ),
            };
            all.push(Finding::ok("other users", text));
        }
        all
    }

    fn device(&self) -> Finding {
        let check = "FUSE device";
        match self.device {
            Ok(()) => Finding::ok(check, format!("{DEVICE} can be opened")),
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Finding::fails(
                check,
                format!("{DEVICE} is not there: nothing can be mounted"),
                format!("`modprobe fuse` as root; {CONTAINER}"),
            ),
            Err(Errno::ACCESS) => Finding::fails(
                check,
                format!("{DEVICE} may not be opened by this user, nor by {PROGRAM} for him"),
                format!("`chmod 666 {DEVICE}` as root; {CONTAINER}"),
            ),
            Err(error) => Finding::fails(check, format!("{DEVICE}: {error}"), CONTAINER),
        }
    }

    /// Root with the right to mount needs no other program.
    fn mounter(&self) -> Option<Finding> {
        if self.is_root && self.may_mount {
            return None;
        }
        let check = PROGRAM;
        let Some(Mounter { path, is_set_uid }) = &self.mounter else {
            return Some(Finding::fails(
                check,
                format!("{PROGRAM} is not on PATH: only it mounts for who may not mount"),
                "install the package fuse3",
            ));
        };
        let path = path.display();
        Some(if self.is_root {
            Finding::fails(
                check,
                format!("this root has no right to mount, and so {path} has none"),
                CONTAINER,
            )
        } else if self.no_new_privs {
            Finding::fails(
                check,
                format!("{path} gets no rights here, for this process has no_new_privs"),
                "start without it (NoNewPrivileges=, --security-opt no-new-privileges), or let \
                 root mount",
            )
        } else if !is_set_uid {
            Finding::fails(
                check,
                format!("{path} is not set-user-ID root, or its mount has nosuid"),
                format!("`chmod u+s {path}` as root, or install the package fuse3 again"),
            )
        } else {
            Finding::ok(check, path)
        })
    }
}

fn mounter(path: PathBuf) -> Mounter {
    let file = std::fs::metadata(&path);
    let is_roots = file.is_ok_and(|file| file.uid() == 0 && file.mode() & 0o4000 != 0);
    let kept = rustix::fs::statvfs(&path);
    let kept = kept.is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOSUID));
    Mounter {
        is_set_uid: is_roots && kept,
        path,
    }
}

/// Whether users may let others into their mounts.
fn allows_others(settings: &str) -> bool {
    let mut lines = settings.lines().map(str::trim);
    lines.any(|line| line == "user_allow_other")
}

/// A field of /proc/self/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut values = status.lines().filter_map(|line| line.strip_prefix(name));
    values.next().map(str::trim)
}

/// Whether this set of capabilities has the one that mounts.
fn has_capability(status: &str, set: &str) -> bool {
    let bits = field(status, set).and_then(|bits| u64::from_str_radix(bits, 16).ok());
    bits.is_some_and(|bits| bits >> SYS_ADMIN & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn user() -> Fuse {
        Fuse {
            device: Ok(()),
            mounter: Some(Mounter {
                path: "/usr/bin/fusermount3".into(),
                is_set_uid: true,
            }),
            is_root: false,
            may_mount: false,
            no_new_privs: false,
            allows_others: false,
        }
    }

    fn verdicts(fuse: &Fuse) -> Vec<(String, Verdict)> {
        let found = fuse.findings().into_iter();
        found.map(|one| (one.check, one.verdict)).collect()
    }

    #[test]
    fn who_can_mount_is_told_so() {
        assert!(verdicts(&user()).iter().all(|(_, it)| *it == Verdict::Ok));
        let root = Fuse {
            is_root: true,
            may_mount: true,
            mounter: None,
            ..user()
        };
        assert_eq!(verdicts(&root), [("FUSE device".to_string(), Verdict::Ok)]);
    }

    #[test]
    fn what_keeps_a_user_from_mounting_is_told() {
        let mut bare = user();
        bare.mounter.as_mut().expect("it is there").is_set_uid = false;
        let fails = [
            Fuse {
                device: Err(Errno::NOENT),
                ..user()
            },
            Fuse {
                device: Err(Errno::ACCESS),
                ..user()
            },
            Fuse {
                mounter: None,
                ..user()
            },
            Fuse {
                no_new_privs: true,
                ..user()
            },
            Fuse {
                is_root: true,
                ..user()
            },
            bare,
        ];
        for fuse in fails {
            let found = fuse.findings();
            let failed: Vec<_> = found
                .iter()
                .filter(|it| it.verdict == Verdict::Fails)
                .collect();
            assert_eq!(failed.len(), 1, "{found:?}");
            assert!(failed[0].advice.is_some());
        }
    }

    #[test]
    fn what_the_system_says_is_read() {
        let status = "Name:\tx\nCapEff:\t0000000000200000\nNoNewPrivs:\t1\n";
        assert!(has_capability(status, "CapEff:"));
        assert!(!has_capability("CapEff:\t0000000000100000\n", "CapEff:"));
        assert_eq!(field(status, "NoNewPrivs:"), Some("1"));
        assert!(allows_others("# user_allow_other\n user_allow_other \n"));
        assert!(!allows_others("#user_allow_other\n"));
    }
}
