//! What the holder of a secret may do, as text that both ends of a connection read the same way.
//!
//! A grant has no key of its own: the site's forwarders compute the key of every grant from the
//! site's secret and the grant's text. So a changed text has another key, and a forwarder needs no
//! list of the grants that were made.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Longest text of a grant, bytes.
pub const GRANT_MAX: usize = 1024;
/// Longest name of a grant, bytes.
const NAME_MAX: usize = 64;
/// Most groups of a user's ticket.
const GROUPS_MAX: usize = 64;

/// The part that a client plays towards forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has the site's secret itself, and may do everything: it acts for all users and
    /// administers forwarders.
    Site,
    /// It acts for all users, as the mount of a node does, and administers nothing.
    Mount,
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
            Role::Mount => "mount",
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
}

/// Why a text is no grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantError(String);

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for GrantError {}

impl Grant {
    /// The grant of whoever has the site's secret.
    pub fn site() -> Grant {
        Grant {
            role: Role::Site,
            name: "".into(),
            expires: None,
        }
    }

    /// Whether it is void at this second since 1970.
    pub fn is_void(&self, now_s: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now_s)
    }

    /// Reads the text of a grant. Only what `to_string` makes is taken: each grant has one text,
    /// and so one key.
    pub fn parse(text: &[u8]) -> Result<Grant, GrantError> {
        let wrong = |what: &str| GrantError(format!("no grant: {what}"));
        if text.len() > GRANT_MAX {
            return Err(wrong("it is too long"));
        }
        let text = core::str::from_utf8(text).map_err(|_| wrong("it is no text"))?;
        let mut fields = Fields::of(text)?;
        let role = match fields.take("role")? {
            "site" => Role::Site,
            "mount" => Role::Mount,
            "operator" => Role::Operator,
            "user" => Role::User {
                uid: id(fields.take("uid")?)?,
                gid: id(fields.take("gid")?)?,
                groups: groups(fields.take("groups")?)?,
            },
            _ => return Err(wrong("its role is unknown")),
        };
        let grant = Grant {
            name: match role {
                Role::Site => "".into(),
                Role::Mount | Role::Operator | Role::User { .. } => fields.take("name")?.into(),
            },
            expires: match fields.is_next("expires") {
                true => Some(number(fields.take("expires")?)?),
                false => None,
            },
            role,
        };
        grant.check()?;
        match format!("{grant}") == text {
            true => Ok(grant),
            false => Err(wrong("it is not written as grants are")),
        }
    }

    /// Checks what the types allow and a grant must not have.
    pub fn check(&self) -> Result<(), GrantError> {
        let wrong = |what: &str| Err(GrantError(what.into()));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_named = (1..=NAME_MAX).contains(&self.name.len());
        match &self.role {
            Role::Site if !self.name.is_empty() || self.expires.is_some() => {
                return wrong("the site's secret has no name and does not expire");
            }
            Role::Site => return Ok(()),
            Role::User { uid, gid, groups } => {
                if groups.len() > GROUPS_MAX {
                    return wrong("it has too many groups");
                }
                if groups.iter().chain([uid, gid]).any(|id| *id == u32::MAX) {
                    return wrong("4294967295 is no user and no group");
                }
            }
            Role::Mount | Role::Operator => {}
        }
        match is_named && self.name.chars().all(is_plain) {
            true => Ok(()),
            false => wrong("its name needs 1 to 64 letters, digits, \".\", \"_\" or \"-\""),
        }
    }
}

/// One line a field, in a fixed order.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Role::Site => return f.write_str("role=site\n"),
            Role::Mount => f.write_str("role=mount\n")?,
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
        match self.expires {
            Some(expires) => writeln!(f, "expires={expires}"),
            None => Ok(()),
        }
    }
}

/// Fields that are taken from the front of a text.
struct Fields<'a> {
    left: &'a str,
}

impl<'a> Fields<'a> {
    fn of(text: &'a str) -> Result<Fields<'a>, GrantError> {
        Ok(Fields { left: text })
    }

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

    fn grants() -> [Grant; 5] {
        let named = |role, expires| Grant {
            role,
            name: "cn17.rack-2_a".into(),
            expires,
        };
        let user = |groups: &[u32]| Role::User {
            uid: 1000,
            gid: 100,
            groups: groups.into(),
        };
        [
            Grant::site(),
            named(Role::Mount, Some(1_800_000_000)),
            named(Role::Operator, None),
            named(user(&[]), Some(7)),
            named(user(&[100, 27, 4_294_967_294]), None),
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

    #[test]
    fn a_grant_is_void_from_its_second_on() {
        let grant = &grants()[3];
        assert!(!grant.is_void(6) && grant.is_void(7));
        assert!(!Grant::site().is_void(u64::MAX));
    }
}
