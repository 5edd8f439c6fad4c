//! For which users the holder of a mount's secret may act.

use crate::message::Caller;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// Groups of a user for which a ticket has room, whatever their numbers, unless its giver's grant
/// has long lists of limits.
pub const TICKET_GROUPS: usize = 240;

/// Why a text is no grant, or why there is no ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// There is no room for all groups of the user. A giver with long lists of limits leaves less.
    TooLong {
        /// The user.
        uid: u32,
        /// How many groups he has.
        groups: usize,
    },
    /// What else is wrong, in words.
    Wrong(String),
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrantError::TooLong { uid, groups } if *groups > TICKET_GROUPS => write!(
                f,
                "user {uid} is in {groups} groups, and a ticket has room for {TICKET_GROUPS}"
            ),
            GrantError::TooLong { uid, groups } => write!(
                f,
                "user {uid} is in {groups} groups, and a ticket has no room for them beside the \
                 limits of the secret that gives it"
            ),
            GrantError::Wrong(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for GrantError {}

/// User and group without rights of their own, where nothing else was chosen.
pub const NOBODY: Anonymous = Anonymous {
    anonuid: 65_534,
    anongid: 65_534,
};
/// Most ranges of one list.
const RANGES_MAX: usize = 16;

/// For which users a mount acts, in the words of NFS exports. Without any limit it acts for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// As whom root's requests are done. The group 0 of others is replaced likewise.
    pub root_squash: Option<Anonymous>,
    /// The users whose requests are done. Those of others are refused.
    pub uids: Option<Ids>,
    /// The groups that count. A request whose first group is another one is refused; others among
    /// its further groups do not count.
    pub gids: Option<Ids>,
}

/// The user and group as whom a request is done whose own do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anonymous {
    /// The user, never 0.
    pub anonuid: u32,
    /// The group, never 0.
    pub anongid: u32,
}

/// Users or groups: up to 16 ranges of ids, which ascend and do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids(Box<[(u32, u32)]>);

impl Limits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// As whom a request is done that is made for this caller; None if it is refused.
    pub fn admit(&self, caller: Caller) -> Option<Caller> {
        if caller.uid == 0
            && let Some(anonymous) = self.root_squash
        {
            return Some(anonymous.caller());
        }
        let squash = |gid: u32| match self.root_squash {
            Some(anonymous) if gid == 0 => anonymous.anongid,
            _ => gid,
        };
        let gid = squash(caller.gid);
        if !has(&self.uids, caller.uid) || !self.has_gid(gid) {
            return None;
        }
        let groups = caller.groups.iter().map(|gid| squash(*gid));
        Some(Caller {
            uid: caller.uid,
            gid,
            groups: groups.filter(|gid| self.has_gid(*gid)).collect(),
        })
    }

    /// As whom a request is done that names no caller, of a client which serves this user.
    pub fn admit_or_nobody(&self, user: Caller) -> Caller {
        let nobody = || self.root_squash.unwrap_or(NOBODY).caller();
        self.admit(user).unwrap_or_else(nobody)
    }

    /// Whether a request for this user is done as him, with all his groups.
    pub fn leave_whole(&self, user: &Caller) -> bool {
        self.admit(user.clone()).as_ref() == Some(user)
    }

    fn has_gid(&self, gid: u32) -> bool {
        let anonymous = self.root_squash.map(|it| it.anongid);
        anonymous == Some(gid) || has(&self.gids, gid)
    }
}

fn has(ids: &Option<Ids>, id: u32) -> bool {
    ids.as_ref().is_none_or(|ids| ids.has(id))
}

impl Anonymous {
    fn caller(self) -> Caller {
        Caller::alone(self.anonuid, self.anongid)
    }

    /// Checks what the type allows and must not be.
    pub fn check(self) -> Result<(), GrantError> {
        let is_real = |id: u32| id != 0 && id != u32::MAX;
        match is_real(self.anonuid) && is_real(self.anongid) {
            true => Ok(()),
            false => wrong("neither 0 nor 4294967295 is an anonymous user or group"),
        }
    }
}

impl Ids {
    /// Whether an id is one of them.
    pub fn has(&self, id: u32) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&id))
    }
}

impl fmt::Display for Anonymous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.anonuid, self.anongid)
    }
}

impl FromStr for Anonymous {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Anonymous, GrantError> {
        let Some((anonuid, anongid)) = text.split_once(':') else {
            return Err(GrantError::Wrong(format!("{text:?} is no UID:GID")));
        };
        let anonymous = Anonymous {
            anonuid: id(anonuid)?,
            anongid: id(anongid)?,
        };
        anonymous.check()?;
        Ok(anonymous)
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (from, to)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match from == to {
                true => write!(f, "{comma}{from}")?,
                false => write!(f, "{comma}{from}-{to}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Ids {
    type Err = GrantError;

    /// Reads `1000-60000,70001`: ids and ranges of them, ascending, with commas between.
    fn from_str(text: &str) -> Result<Ids, GrantError> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for range in text.split(',') {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to) = (id(from)?, id(to)?);
            let ascends = ranges.last().is_none_or(|(_, last)| *last < from);
            if from > to || !ascends {
                return wrong("ranges of ids ascend and do not overlap");
            }
            if to == u32::MAX {
                return wrong("4294967295 is no user and no group");
            }
            if ranges.len() == RANGES_MAX {
                return wrong("a list of ids has at most 16 ranges");
            }
            ranges.push((from, to));
        }
        Ok(Ids(ranges.into()))
    }
}

fn id(text: &str) -> Result<u32, GrantError> {
    let id = text.parse().ok();
    id.ok_or_else(|| GrantError::Wrong(format!("{text:?} is no user or group id")))
}

fn wrong<T>(what: &str) -> Result<T, GrantError> {
    Err(GrantError::Wrong(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn limits() -> Limits {
        Limits {
            root_squash: Some(NOBODY),
            uids: Some("1000-60000,70001".parse().expect("right")),
            gids: Some("100,1000-2000".parse().expect("right")),
        }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: groups.into(),
        }
    }

    #[test]
    fn ids_are_read_as_they_are_written_and_nothing_else_is() {
        for text in ["0", "7,9", "1000-60000,70001", "0-4294967294"] {
            let ids: Ids = text.parse().expect("right");
            assert_eq!(ids.to_string(), text);
        }
        for text in [
            "",
            ",",
            "1,",
            "-1",
            "1-",
            "2-1",
            "1,1",
            "1-5,5",
            "9,7",
            "4294967295",
            "0-4294967295",
            "a",
            "1 - 2",
        ] {
            assert!(text.parse::<Ids>().is_err(), "{text:?}");
        }
        let many = |count: u32| {
            (0..count)
                .map(|it| (2 * it).to_string())
                .collect::<Vec<_>>()
        };
        assert!(many(16).join(",").parse::<Ids>().is_ok());
        assert!(many(17).join(",").parse::<Ids>().is_err());
        for text in ["0:5", "5:0", "5", "5:4294967295", ":", "5:6:7"] {
            assert!(text.parse::<Anonymous>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn root_is_nobody_and_others_outside_are_refused() {
        let admit = |uid, gid, groups: &[u32]| limits().admit(caller(uid, gid, groups));
        let nobody = Caller::alone(65_534, 65_534);
        assert_eq!(admit(0, 0, &[0, 100]), Some(nobody.clone()));
        for uid in [1, 999, 60_001, 65_534, 70_000, 70_002, u32::MAX] {
            assert_eq!(admit(uid, 100, &[]), None, "{uid}");
        }
        for uid in [1000, 60_000, 70_001] {
            assert_eq!(admit(uid, 100, &[]), Some(caller(uid, 100, &[])));
        }
        // Groups: 0 is the anonymous one, others outside do not count, or refuse as the first.
        let squashed = caller(1000, 65_534, &[65_534, 1500]);
        assert_eq!(admit(1000, 0, &[0, 6, 1500]), Some(squashed));
        assert_eq!(admit(1000, 6, &[]), None);
        // Who names nobody is nobody where the client's own user does not count.
        assert_eq!(limits().admit_or_nobody(Caller::alone(0, 0)), nobody);
        let only_uids = Limits {
            root_squash: None,
            ..limits()
        };
        assert_eq!(only_uids.admit(Caller::alone(0, 0)), None);
        assert_eq!(only_uids.admit_or_nobody(Caller::alone(0, 0)), nobody);
        let user = caller(1000, 100, &[1500]);
        assert_eq!(limits().admit_or_nobody(user.clone()), user);
    }

    #[test]
    fn without_limits_nothing_changes() {
        let none = Limits::default();
        assert!(none.is_none() && !limits().is_none());
        for user in [caller(0, 0, &[0, 5]), caller(7, 0, &[6])] {
            assert!(none.leave_whole(&user));
        }
        assert!(!limits().leave_whole(&caller(0, 0, &[])));
        assert!(!limits().leave_whole(&caller(1000, 100, &[6])));
        assert!(limits().leave_whole(&caller(1000, 100, &[1000])));
    }
}
