//! What the holder of a secret may do, as text that both ends of a connection read the same way.
//!
//! A grant has no key of its own: the site's forwarders compute the key of every grant from the
//! site's secret and the grant's text. So a changed text has another key, and a forwarder needs no
//! list of the grants that were made.
//!
//! Who acts for users can itself give one of them a *ticket*: the grant of that user, whose key
//! comes of the giver's key. The text of a ticket ends with the giver's grant, so that forwarders
//! can compute it, and it is void when that is.

use crate::limits::{GrantError, Limits};
use crate::message::{Caller, GROUPS_MAX};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// Longest text of a grant, bytes.
pub const GRANT_MAX: usize = 3072;
/// Longest name of a grant, bytes.
const NAME_MAX: usize = 64;

/// The part that a client plays towards forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has the site's secret itself, and may do everything: it acts for all users and
    /// administers forwarders.
    Site,
    /// It acts for users, as the mount of a node does, and administers nothing.
    Mount(Limits),
    /// It administers forwarders (policy, shares, drain), and has no access to files.
    Operator,
    /// It is one user.
    User {
        /// The user.
        uid: u32,
        /// The user's group.
        gid: u32,
        /// The user's other groups.
        groups: Box<[u32]>,
    },
}

impl Role {
    /// Its name in secrets and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Role::Site => "site",
            Role::Mount(_) => "mount",
            Role::Operator => "operator",
            Role::User { .. } => "user",
        }
    }
}

/// A grant: a role, to whom it was given, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The part that its holder plays.
    pub role: Role,
    /// To whom it was given, for logs: a node, a person. 1 to 64 letters, digits, `.`, `_` and `-`.
    /// Empty for [`Role::Site`].
    pub name: Box<str>,
    /// The second since 1970 from which on it is void.
    pub expires: Option<u64>,
    /// Of a ticket: the grant of who gave it.
    pub by: Option<Box<Grant>>,
}

/// Groups of a user for which a ticket has room, whatever their numbers, unless its giver's grant
/// has long lists of limits.
pub const TICKET_GROUPS: usize = 240;

impl Grant {
    /// The grant of whoever has the site's secret.
    pub fn site() -> Grant {
        Grant {
            role: Role::Site,
            name: "".into(),
            expires: None,
            by: None,
        }
    }

    /// The ticket by which a holder of this grant lets an ordinary user act as himself, until
    /// `expires` at the latest. `node` names the giver in logs where the grant does not.
    pub fn ticket(&self, user: Caller, node: &str, expires: u64) -> Result<Grant, GrantError> {
        let ticket = Grant {
            role: Role::User {
                uid: user.uid,
                gid: user.gid,
                groups: user.groups,
            },
            name: match self.name.is_empty() {
                true => plain(node),
                false => self.name.clone(),
            },
            expires: Some(expires),
            by: Some(Box::new(self.clone())),
        };
        ticket.check()?;
        Ok(ticket)
    }

    /// The second since 1970 from which on it is void, by itself or with its giver.
    pub fn ends(&self) -> Option<u64> {
        let by = self.by.as_ref().and_then(|by| by.expires);
        self.expires.into_iter().chain(by).min()
    }

    /// Whether it is void at this second since 1970.
    pub fn is_void(&self, now_s: u64) -> bool {
        self.ends().is_some_and(|ends| ends <= now_s)
    }

    /// Its text without that of its giver, of which the key of a ticket is made.
    pub fn own_text(&self) -> String {
        let own = Grant {
            by: None,
            ..self.clone()
        };
        format!("{own}")
    }

    /// Reads the text of a grant. Only what `to_string` makes is taken: each grant has one text,
    /// and so one key.
    pub fn parse(text: &[u8]) -> Result<Grant, GrantError> {
        let wrong = |what: &str| GrantError(format!("no grant: {what}"));
        if text.len() > GRANT_MAX {
            return Err(wrong("it is too long"));
        }
        let text = core::str::from_utf8(text).map_err(|_| wrong("it is no text"))?;
        let grant = match text.find("\n\n") {
            Some(end) => Grant {
                by: Some(Box::new(Grant::parse_one(&text[end + 2..])?)),
                ..Grant::parse_one(&text[..=end])?
            },
            None => Grant::parse_one(text)?,
        };
        grant.check()?;
        match format!("{grant}") == text {
            true => Ok(grant),
            false => Err(wrong("it is not written as grants are")),
        }
    }

    /// Reads a grant without that of its giver. The caller checks it.
    fn parse_one(text: &str) -> Result<Grant, GrantError> {
        let mut fields = Fields { left: text };
        let role = match fields.take("role")? {
            "site" => Role::Site,
            "mount" => Role::Mount(Limits {
                root_squash: fields.take_if("root_squash")?,
                uids: fields.take_if("uids")?,
                gids: fields.take_if("gids")?,
            }),
            "operator" => Role::Operator,
            "user" => Role::User {
                uid: id(fields.take("uid")?)?,
                gid: id(fields.take("gid")?)?,
                groups: groups(fields.take("groups")?)?,
            },
            _ => return Err(GrantError("no grant: its role is unknown".into())),
        };
        Ok(Grant {
            name: match role {
                Role::Site => "".into(),
                Role::Mount(_) | Role::Operator | Role::User { .. } => fields.take("name")?.into(),
            },
            expires: match fields.is_next("expires") {
                true => Some(number(fields.take("expires")?)?),
                false => None,
            },
            role,
            by: None,
        })
    }

    /// Checks what the types allow and a grant must not have.
    pub fn check(&self) -> Result<(), GrantError> {
        let wrong = |what: &str| Err(GrantError(what.into()));
        let is_named = (1..=NAME_MAX).contains(&self.name.len());
        if let Some(by) = &self.by {
            self.check_giver(by)?;
        }
        match &self.role {
            Role::Site if !self.name.is_empty() || self.expires.is_some() => {
                return wrong("the site's secret has no name and does not expire");
            }
            Role::Site => return Ok(()),
            Role::User { uid, gid, groups } => {
                // None is left out: what a group may not do, its members must not come to do.
                if groups.len() > GROUPS_MAX || self.len() > GRANT_MAX {
                    let count = groups.len();
                    return Err(GrantError(format!(
                        "user {uid} is in {count} groups, and a ticket has room for {TICKET_GROUPS}"
                    )));
                }
                if groups.iter().chain([uid, gid]).any(|id| *id == u32::MAX) {
                    return wrong("4294967295 is no user and no group");
                }
            }
            Role::Mount(Limits {
                root_squash: Some(anonymous),
                ..
            }) => anonymous.check()?,
            Role::Mount(_) | Role::Operator => {}
        }
        match is_named && self.name.chars().all(is_plain) {
            true => Ok(()),
            false => wrong("its name needs 1 to 64 letters, digits, \".\", \"_\" or \"-\""),
        }
    }

    /// Bytes of its text.
    fn len(&self) -> usize {
        struct Count(usize);
        impl fmt::Write for Count {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0 += text.len();
                Ok(())
            }
        }
        let mut count = Count(0);
        // Counting cannot fail.
        let _ = fmt::Write::write_fmt(&mut count, format_args!("{self}"));
        count.0
    }

    /// Checks that a ticket gives less than its giver has.
    fn check_giver(&self, by: &Grant) -> Result<(), GrantError> {
        let wrong = |what: &str| Err(GrantError(what.into()));
        let user = match &self.role {
            Role::User { uid, gid, groups } if *uid != 0 => Caller {
                uid: *uid,
                gid: *gid,
                groups: groups.clone(),
            },
            Role::Site | Role::Mount(_) | Role::Operator | Role::User { .. } => {
                return wrong("a ticket is for an ordinary user");
            }
        };
        match &by.role {
            Role::Site => {}
            // None of his groups is left out here either.
            Role::Mount(limits) if limits.leave_whole(&user) => {}
            Role::Mount(_) => return wrong("its giver does not act for this user"),
            Role::Operator | Role::User { .. } => {
                return wrong("only who acts for users gives tickets");
            }
        }
        match self.expires {
            Some(_) => Ok(()),
            None => wrong("a ticket expires"),
        }
    }
}

/// A name without what names must not have.
fn plain(name: &str) -> Box<str> {
    let mut plain: String = name
        .chars()
        .filter(|c| is_plain(*c))
        .take(NAME_MAX)
        .collect();
    if plain.is_empty() {
        plain.push_str("node");
    }
    plain.into()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// One line a field, in a fixed order; before the grant of a giver an empty one.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Role::Site => return f.write_str("role=site\n"),
            Role::Mount(limits) => {
                f.write_str("role=mount\n")?;
                if let Some(anonymous) = limits.root_squash {
                    writeln!(f, "root_squash={anonymous}")?;
                }
                for (key, ids) in [("uids", &limits.uids), ("gids", &limits.gids)] {
                    if let Some(ids) = ids {
                        writeln!(f, "{key}={ids}")?;
                    }
                }
            }
            Role::Operator => f.write_str("role=operator\n")?,
            Role::User { uid, gid, groups } => {
                write!(f, "role=user\nuid={uid}\ngid={gid}\ngroups=")?;
                for (number, group) in groups.iter().enumerate() {
                    let comma = if number == 0 { "" } else { "," };
                    write!(f, "{comma}{group}")?;
                }
                f.write_str("\n")?;
            }
        }
        writeln!(f, "name={}", self.name)?;
        if let Some(expires) = self.expires {
            writeln!(f, "expires={expires}")?;
        }
        match &self.by {
            Some(by) => write!(f, "\n{by}"),
            None => Ok(()),
        }
    }
}

/// Fields that are taken from the front of a text.
struct Fields<'a> {
    left: &'a str,
}

impl<'a> Fields<'a> {
    fn is_next(&self, key: &str) -> bool {
        let rest = self.left.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with('='))
    }

    fn take(&mut self, key: &str) -> Result<&'a str, GrantError> {
        let missing = || GrantError(format!("no grant: it lacks {key}"));
        let rest = self.left.strip_prefix(key).ok_or_else(missing)?;
        let rest = rest.strip_prefix('=').ok_or_else(missing)?;
        let (value, left) = rest.split_once('\n').ok_or_else(missing)?;
        self.left = left;
        Ok(value)
    }

    /// The value of a field that may be left out.
    fn take_if<T: FromStr<Err = GrantError>>(
        &mut self,
        key: &str,
    ) -> Result<Option<T>, GrantError> {
        match self.is_next(key) {
            true => Ok(Some(self.take(key)?.parse()?)),
            false => Ok(None),
        }
    }
}

fn number(text: &str) -> Result<u64, GrantError> {
    let number = text.parse().ok();
    number.ok_or_else(|| GrantError(format!("no grant: {text:?} is no number")))
}

fn id(text: &str) -> Result<u32, GrantError> {
    let id = text.parse().ok();
    id.ok_or_else(|| GrantError(format!("no grant: {text:?} is no user or group id")))
}

fn groups(text: &str) -> Result<Box<[u32]>, GrantError> {
    if text.is_empty() {
        return Ok(Box::default());
    }
    let groups: Result<Vec<u32>, GrantError> = text.split(',').map(id).collect();
    groups.map(Vec::into_boxed_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn named(role: Role, expires: Option<u64>) -> Grant {
        Grant {
            role,
            name: "cn17.rack-2_a".into(),
            expires,
            by: None,
        }
    }

    fn limited() -> Role {
        Role::Mount(Limits {
            root_squash: Some(crate::NOBODY),
            uids: Some("1000-60000,70001".parse().expect("right")),
            gids: Some("100".parse().expect("right")),
        })
    }

    fn grants() -> [Grant; 6] {
        let user = |groups: &[u32]| Role::User {
            uid: 1000,
            gid: 100,
            groups: groups.into(),
        };
        [
            Grant::site(),
            named(Role::Mount(Limits::default()), Some(1_800_000_000)),
            named(Role::Operator, None),
            named(user(&[]), Some(7)),
            named(user(&[100, 27, 4_294_967_294]), None),
            named(limited(), Some(1_800_000_000)),
        ]
    }

    #[test]
    fn what_is_written_is_read_the_same() {
        for grant in grants() {
            let text = grant.to_string();
            assert_eq!(Grant::parse(text.as_bytes()), Ok(grant), "{text}");
        }
    }

    #[test]
    fn every_other_text_is_refused() {
        for grant in grants() {
            let text = grant.to_string();
            for cut in 0..text.len() {
                // Without its last line it is another grant, which has another key.
                let is_shorter = text[cut..].starts_with("expires=");
                let parsed = Grant::parse(&text.as_bytes()[..cut]);
                assert_eq!(parsed.is_ok(), is_shorter, "{text:?} {cut}");
            }
            for more in [
                " ",
                "\n",
                "a",
                "name=x\n",
                "expires=9\n",
                "expires=9\nexpires=9\n",
            ] {
                let grant = Grant::parse(format!("{text}{more}").as_bytes());
                let may_expire = grant.is_ok() && more == "expires=9\n";
                assert!(grant.is_err() || may_expire, "{text:?} {more:?}");
            }
        }
        let user = |id: &str| format!("role=user\nuid={id}\ngid=1\ngroups=\nname=a\n");
        assert!(Grant::parse(user("1").as_bytes()).is_ok());
        for id in ["+1", "01", "-1", "4294967295", "4294967296", "", "1 "] {
            assert!(Grant::parse(user(id).as_bytes()).is_err(), "{id}");
        }
        for text in [
            "role=mount\n",
            "role=guest\nname=a\n",
            "role=operator\nname=\n",
            "role=operator\nname=a b\n",
            "role=site\nname=a\n",
            "role=user\nuid=1\ngid=1\ngroups=1,,2\nname=a\n",
        ] {
            assert!(Grant::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        let long = format!("role=operator\nname={}\n", "a".repeat(NAME_MAX + 1));
        assert!(Grant::parse(long.as_bytes()).is_err());
    }

    fn caller(uid: u32) -> Caller {
        Caller {
            uid,
            gid: 100,
            groups: [27, 4_294_967_294].into(),
        }
    }

    #[test]
    fn a_ticket_is_read_with_its_giver_and_nothing_else_is() {
        for giver in [
            Grant::site(),
            named(Role::Mount(Limits::default()), Some(9)),
        ] {
            let ticket = giver.ticket(caller(1000), "cn 17!", 8).expect("it may");
            let named = if giver.name.is_empty() {
                "cn17"
            } else {
                "cn17.rack-2_a"
            };
            assert_eq!((&*ticket.name, ticket.by.as_deref()), (named, Some(&giver)));
            let text = ticket.to_string();
            assert_eq!(text, format!("{}\n{giver}", ticket.own_text()));
            assert_eq!(Grant::parse(text.as_bytes()), Ok(ticket.clone()));
            for cut in 0..text.len() {
                if let Ok(other) = Grant::parse(&text.as_bytes()[..cut]) {
                    assert_ne!(other, ticket, "{cut}");
                }
            }
            let twice = format!("{}\n{text}", ticket.own_text());
            for wrong in [
                twice.as_str(),
                &format!("\n{text}"),
                &format!("{text}\n"),
                &text.replace("\n\n", "\n\n\n"),
                &text.replace("uid=1000", "uid=0"),
                &text.replace("expires=8\n", ""),
                &"\n".repeat(GRANT_MAX),
            ] {
                assert!(Grant::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
            }
        }
    }

    #[test]
    fn only_who_acts_for_users_gives_tickets_and_only_to_ordinary_ones() {
        let mount = named(Role::Mount(Limits::default()), None);
        assert!(mount.ticket(caller(0), "cn1", 8).is_err());
        let ticket = mount.ticket(caller(7), "cn1", 8).expect("it may");
        for other in [named(Role::Operator, None), grants()[3].clone(), ticket] {
            assert!(other.ticket(caller(7), "cn1", 8).is_err(), "{other}");
        }
        let in_groups = |count: u32| Caller {
            groups: (0..count).map(|group| u32::MAX - 1 - group).collect(),
            ..caller(u32::MAX - 1)
        };
        let giver = Grant {
            name: "n".repeat(NAME_MAX).into(),
            ..named(Role::Mount(Limits::default()), Some(u64::MAX))
        };
        let longest = giver
            .ticket(in_groups(TICKET_GROUPS as u32), "", u64::MAX)
            .expect("it may");
        assert_eq!(Grant::parse(longest.to_string().as_bytes()), Ok(longest));
        // Who is in more gets none: without some of them it would be another user's.
        for count in [280, 1024, 2000] {
            let refused = giver.ticket(in_groups(count), "", 8).expect_err("too many");
            let says =
                format!("user 4294967294 is in {count} groups, and a ticket has room for 240");
            assert_eq!(refused.to_string(), says);
        }
    }

    #[test]
    fn a_mount_with_limits_gives_tickets_within_them_only() {
        let mount = named(limited(), None);
        let text = mount.to_string();
        let lines = "role=mount\nroot_squash=65534:65534\nuids=1000-60000,70001\ngids=100\nname=";
        assert!(text.starts_with(lines), "{text}");
        let in_groups = |uid, gid, groups: &[u32]| Caller {
            uid,
            gid,
            groups: groups.into(),
        };
        let inside = mount.ticket(in_groups(70_001, 100, &[100]), "", 8);
        let inside = inside.expect("it may");
        assert_eq!(
            Grant::parse(inside.to_string().as_bytes()),
            Ok(inside.clone())
        );
        for outside in [
            in_groups(0, 100, &[]),
            in_groups(999, 100, &[]),
            in_groups(1000, 0, &[]),
            in_groups(1000, 100, &[100, 27]),
        ] {
            assert!(mount.ticket(outside, "", 8).is_err());
        }
        // Nor does a text that says so otherwise.
        for (from, to) in [("uid=70001", "uid=999"), ("groups=100", "groups=27")] {
            let text = inside.to_string().replace(from, to);
            assert!(Grant::parse(text.as_bytes()).is_err(), "{text}");
        }
        let limits = [
            "root_squash=0:5",
            "uids=",
            "uids=9,7",
            "uids=1\nroot_squash=5:5",
        ];
        for wrong in limits {
            let text = format!("role=mount\n{wrong}\nname=a\n");
            assert!(Grant::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_ticket_is_void_with_its_giver() {
        let ends = |giver, own| {
            let giver = named(Role::Mount(Limits::default()), giver);
            giver.ticket(caller(7), "", own).expect("it may").ends()
        };
        assert_eq!(ends(None, 8), Some(8));
        assert_eq!(ends(Some(9), 8), Some(8));
        assert_eq!(ends(Some(7), 8), Some(7));
    }

    #[test]
    fn a_grant_is_void_from_its_second_on() {
        let grant = &grants()[3];
        assert!(!grant.is_void(6) && grant.is_void(7));
        assert!(!Grant::site().is_void(u64::MAX));
    }
}
