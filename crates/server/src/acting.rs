//! For whom a forwarder can act: for each of its callers, or for its own user only.
//!
//! One that root started takes on each caller's user and groups. Root of a user namespace may not
//! always do so: where the namespace was made without a privileged helper, its
//! `/proc/self/setgroups` says `deny`, and no process in it can set groups. So this is tried once.

use rustix::process::{Gid, getgroups};
use rustix::thread::set_thread_groups;
use std::io;

/// Which ids of a user namespace the kernel maps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    Users,
    Groups,
}

/// For whom this process can act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acting {
    /// For each caller. Between callers threads have these groups, which are the process's own.
    ForCallers(Box<[u32]>),
    /// For its own user, because it is not root.
    ForItself,
    /// For its own user, although it is root: of a namespace that has no other. The text says why.
    Alone(Box<str>),
    /// For nobody: there are other users, as whom it cannot act. The text says why.
    Refused(Box<str>),
}

impl Acting {
    /// Tries it, in a thread of its own, whose groups change.
    pub(crate) fn of_process() -> Acting {
        if !rustix::process::geteuid().is_root() {
            return Acting::ForItself;
        }
        let groups = getgroups().unwrap_or_default();
        let tried = std::thread::scope(|scope| {
            let trial = std::thread::Builder::new().spawn_scoped(scope, || usable(&groups))?;
            trial.join().expect("it does not panic")
        });
        let denied = match tried {
            Ok(groups) => return Acting::ForCallers(groups),
            Err(error) => error,
        };
        let says_deny = std::fs::read_to_string("/proc/self/setgroups");
        let says_deny = says_deny.is_ok_and(|text| text.trim() == "deny");
        without_groups(&denied, says_deny, users_count(&map(Ids::Users)))
    }
}

/// What follows where groups cannot be set, in a namespace with so many users.
fn without_groups(denied: &io::Error, says_deny: bool, users: u64) -> Acting {
    let why = match says_deny {
        true => "this user namespace lets no process set groups (/proc/self/setgroups is deny)",
        false => "this process may not set groups",
    };
    match users {
        1 => Acting::Alone(why.into()),
        _ => Acting::Refused(
            format!(
                "it is root and cannot act for other users: {why}: {denied}; run it as an ordinary \
                 user, or {}",
                match says_deny {
                    true => "map the namespace's ids with newuidmap and newgidmap",
                    false => "with the capabilities CAP_SETGID and CAP_SETUID",
                }
            )
            .into(),
        ),
    }
}

/// Those of the groups that this thread can set again. Groups that the namespace does not map
/// cannot be.
fn usable(groups: &[Gid]) -> io::Result<Box<[u32]>> {
    if set_thread_groups(groups).is_err() {
        set_thread_groups(&[])?;
    }
    let can = |group: &&Gid| set_thread_groups(&[**group]).is_ok();
    Ok(groups
        .iter()
        .filter(can)
        .map(|group| group.as_raw())
        .collect())
}

/// The kernel's map of these ids: a line `INSIDE OUTSIDE COUNT` for each range. Where it cannot be
/// read, there is no other namespace, and all ids are mapped.
fn map(ids: Ids) -> String {
    let file = match ids {
        Ids::Users => "/proc/self/uid_map",
        Ids::Groups => "/proc/self/gid_map",
    };
    std::fs::read_to_string(file).unwrap_or_else(|_| "0 0 4294967295".to_owned())
}

/// The ranges of a map: the first id inside, and how many.
fn ranges(map: &str) -> impl Iterator<Item = (u64, u64)> {
    map.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map(str::parse);
        match (words.next(), words.nth(1)) {
            (Some(Ok(first)), Some(Ok(count))) => Some((first, count)),
            _ => None,
        }
    })
}

fn users_count(map: &str) -> u64 {
    ranges(map).map(|(_, count)| count).sum()
}

/// An id for a trial that nobody uses: this one where the namespace maps it, else the last one that
/// is mapped. None where root's is the only one.
pub(crate) fn unused(ids: Ids, wanted: u32) -> Option<u32> {
    unused_of(&map(ids), wanted)
}

fn unused_of(map: &str, wanted: u32) -> Option<u32> {
    let wanted = u64::from(wanted);
    let is_mapped = |(first, count): (u64, u64)| (first..first + count).contains(&wanted);
    let last = || ranges(map).map(|(first, count)| first + count - 1).max();
    let id = match ranges(map).any(is_mapped) {
        true => wanted,
        false => last()?,
    };
    u32::try_from(id).ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_acts_for_callers_and_others_for_themselves() {
        let acting = Acting::of_process();
        match rustix::process::geteuid().is_root() {
            true => assert!(!matches!(acting, Acting::ForItself)),
            false => assert_eq!(acting, Acting::ForItself),
        }
    }

    #[test]
    fn who_cannot_set_groups_is_alone_or_refused() {
        let denied = || io::Error::from_raw_os_error(libc::EPERM);
        let alone = without_groups(&denied(), true, users_count("0 1000 1\n"));
        assert!(matches!(&alone, Acting::Alone(why) if why.contains("setgroups is deny")));
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(users_count(map), 65537);
        for (says_deny, advice) in [(true, "newgidmap"), (false, "CAP_SETGID")] {
            let refused = without_groups(&denied(), says_deny, users_count(map));
            assert!(matches!(&refused, Acting::Refused(why) if why.contains(advice)));
        }
    }

    #[test]
    fn a_trial_takes_ids_that_the_namespace_has() {
        assert_eq!(
            unused_of("0 0 4294967295\n", 2_000_000_017),
            Some(2_000_000_017)
        );
        assert_eq!(
            unused_of("0 1000 1\n1 100000 65536\n", 2_000_000_017),
            Some(65_536)
        );
        assert_eq!(unused_of("0 1000 1\n", 2_000_000_017), None);
        assert_eq!(unused_of("nonsense\n", 7), None);
    }
}
