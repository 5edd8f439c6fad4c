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
        let wrong = |what: &str| GrantError::Wrong(format!("no grant: {what}"));
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
            _ => return Err(GrantError::Wrong("no grant: its role is unknown".into())),
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
        let wrong = |what: &str| Err(GrantError::Wrong(what.into()));
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
                    return Err(GrantError::TooLong {
                        uid: *uid,
                        groups: groups.len(),
                    });
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
        match is_named && self.name.chars().all(may_name) {
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
        let wrong = |what: &str| Err(GrantError::Wrong(what.into()));
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
        .filter(|c| may_name(*c))
        .take(NAME_MAX)
        .collect();
    if plain.is_empty() {
        plain.push_str("node");
    }
    plain.into()
}

/// Whether names of grants may have this character.
fn may_name(c: char) -> bool {
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
        let missing = || GrantError::Wrong(format!("no grant: it lacks {key}"));
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
    number.ok_or_else(|| GrantError::Wrong(format!("no grant: {text:?} is no number")))
}

fn id(text: &str) -> Result<u32, GrantError> {
    let id = text.parse().ok();
    id.ok_or_else(|| GrantError::Wrong(format!("no grant: {text:?} is no user or group id")))
}

fn groups(text: &str) -> Result<Box<[u32]>, GrantError> {
    if text.is_empty() {
        return Ok(Box::default());
    }
    let groups: Result<Vec<u32>, GrantError> = text.split(',').map(id).collect();
    groups.map(Vec::into_boxed_slice)
}

#[cfg(test)]
mod tests;
