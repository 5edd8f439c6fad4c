//! Rules of shares: which application gets which share.
//!
//! An application gets the share of the first application rule that matches it. Its group is the
//! one that this rule names, or else the first group that names the application's user or project.
//! As text, rules are the tables `[[group]]`, `[[app]]` and `[[view]]` of the configuration. Hosts
//! read that text; this file writes it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use tidegate_sched::{AppShare, Share, Shares};

/// Most rules of all kinds together.
pub const RULES_MAX: usize = 4096;

/// All rules. Of each kind the first one that matches counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Groups of applications.
    pub groups: Vec<GroupRule>,
    /// Applications.
    pub apps: Vec<AppRule>,
    /// Directories with an application's name.
    pub views: Vec<View>,
}

/// A user that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The name, or the number as text.
    pub name: String,
}

/// The share of each application whose name matches a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppRule {
    /// The name, in which `*` stands for any characters and `?` for one.
    pub name: String,
    /// If given, the rule matches only applications of this user.
    pub user: Option<User>,
    /// If given, the rule matches only applications of this job of the batch system.
    pub job: Option<String>,
    /// The share of each matching application.
    pub share: Share,
    /// The name of the group in which they count.
    pub group: Option<String>,
}

/// The share that the applications of a group have together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// Its name.
    pub name: String,
    /// Applications of this user belong to it, unless their rule names another group.
    pub user: Option<User>,
    /// So do applications of projects of this name, in which `*` and `?` may stand.
    pub project: Option<String>,
    /// The group's share.
    pub share: Share,
}

/// A directory whose users count as one application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The application's name.
    pub name: String,
    /// The directory in the export, without a slash in front.
    pub directory: String,
}

/// What rules compare of an application.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its user.
    pub uid: u32,
    /// Its job, empty if it has none.
    pub job: &'a str,
    /// Its project, empty if it has none.
    pub project: &'a str,
}

impl Rules {
    /// Whether no group and no application has a rule.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.apps.is_empty()
    }

    /// How many rules groups and applications have together.
    pub fn len(&self) -> usize {
        self.groups.len() + self.apps.len()
    }

    /// The shares before any application is known: those of groups, and that of applications which
    /// no particular rule matches.
    pub fn shares(&self, forwarders: u32) -> Shares {
        let others = self.apps.iter().find(|rule| rule.is_for_all());
        Shares {
            forwarders,
            groups: self.groups.iter().map(|group| group.share).collect(),
            apps: Default::default(),
            others: others.map_or(AppShare::default(), |rule| self.by(rule, None)),
        }
    }

    /// The first rule that matches an application.
    pub fn rule_of(&self, of: &Identity<'_>) -> Option<&AppRule> {
        self.apps.iter().find(|rule| rule.matches(of))
    }

    /// The share of an application; None if neither a rule nor a group matches it.
    pub fn share_of(&self, of: &Identity<'_>) -> Option<AppShare> {
        let claims = |group: &GroupRule| group.claims(of);
        let claimed = self.groups.iter().position(claims);
        match self.rule_of(of) {
            Some(rule) => Some(self.by(rule, claimed)),
            None => claimed.map(|group| AppShare {
                share: Share::default(),
                group: Some(group as u32),
            }),
        }
    }

    fn by(&self, rule: &AppRule, claimed: Option<usize>) -> AppShare {
        let named = rule.group.as_ref().and_then(|name| self.group(name));
        AppShare {
            share: rule.share,
            group: named.or(claimed).map(|group| group as u32),
        }
    }

    /// The index of the group of that name.
    pub fn group(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.name == name)
    }
}

impl AppRule {
    fn is_for_all(&self) -> bool {
        self.user.is_none() && self.job.is_none() && self.name.bytes().all(|byte| byte == b'*')
    }

    fn matches(&self, of: &Identity<'_>) -> bool {
        let user = self.user.as_ref().is_none_or(|user| user.uid == of.uid);
        let job = self.job.as_ref().is_none_or(|job| job == of.job);
        user && job && matches(&self.name, of.name)
    }
}

impl GroupRule {
    fn claims(&self, of: &Identity<'_>) -> bool {
        let user = self.user.as_ref().map(|user| user.uid == of.uid);
        let project = self.project.as_ref();
        let project = project.map(|glob| !of.project.is_empty() && matches(glob, of.project));
        match (user, project) {
            (None, None) => false,
            (user, project) => user.unwrap_or(true) && project.unwrap_or(true),
        }
    }
}

/// Whether a name matches a pattern with `*` and `?`. The number of steps is at most the product of
/// their lengths.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // After the last star, and where the name went on behind it.
    let mut back = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, n));
                p += 1;
            }
            Some(byte) if *byte == name[n] || (*byte == b'?') => {
                p += 1;
                n += 1;
            }
            _ => match back {
                Some((star, from)) => {
                    back = Some((star, from + 1));
                    (p, n) = (star, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.groups {
            writeln!(f, "[[group]]\nname = {}", Quoted(&group.name))?;
            line(f, "user", group.user.as_ref().map(|user| &user.name))?;
            line(f, "project", group.project.as_ref())?;
            write_share(f, &group.share)?;
        }
        for app in &self.apps {
            writeln!(f, "[[app]]\nname = {}", Quoted(&app.name))?;
            line(f, "user", app.user.as_ref().map(|user| &user.name))?;
            line(f, "job", app.job.as_ref())?;
            line(f, "group", app.group.as_ref())?;
            write_share(f, &app.share)?;
        }
        for view in &self.views {
            writeln!(f, "[[view]]\nname = {}", Quoted(&view.name))?;
            line(f, "directory", Some(&view.directory))?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, key: &str, value: Option<&String>) -> fmt::Result {
    match value {
        Some(value) => writeln!(f, "{key} = {}", Quoted(value)),
        None => Ok(()),
    }
}

fn write_share(f: &mut fmt::Formatter<'_>, share: &Share) -> fmt::Result {
    writeln!(f, "weight = {}", share.weight)?;
    for (key, rate) in [("min", share.min), ("max", share.max)] {
        if let Some(rate) = rate {
            writeln!(f, "{key} = \"{rate}\"")?;
        }
    }
    if let Some(latency) = share.latency {
        let text = LatencyText(latency.ns);
        let percentile = latency.percentile;
        writeln!(f, "latency = \"{text}\"\npercentile = {percentile}")?;
    }
    Ok(())
}

/// A time in nanoseconds, shown as rules write it: in the largest unit that is exact.
pub struct LatencyText(pub u64);

impl fmt::Display for LatencyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let exact = UNITS.iter().find(|(unit, _)| self.0.is_multiple_of(*unit));
        let (unit, name) = exact.unwrap_or(&(1, "ns"));
        write!(f, "{} {name}", self.0 / unit)
    }
}

/// A string of TOML.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04X}", c as u32)?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec;
    use tidegate_sched::{Latency, Rate};

    fn rule(name: &str, weight: u32) -> AppRule {
        AppRule {
            name: name.to_string(),
            user: None,
            job: None,
            share: Share {
                weight,
                ..Share::default()
            },
            group: None,
        }
    }

    fn who(name: &'static str, uid: u32) -> Identity<'static> {
        Identity {
            name,
            uid,
            job: "17",
            project: "climate-2",
        }
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*b*b*", "abab", true),
            ("slurm-??.*", "slurm-17.0", true),
            ("slurm-??.*", "slurm-7.0", false),
            ("**x", "yyx", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_matching_rule_gives_the_share() {
        let user = |uid| {
            Some(User {
                uid,
                name: "u".to_string(),
            })
        };
        let group = GroupRule {
            name: "anna".to_string(),
            user: user(7),
            project: None,
            share: Share::default(),
        };
        let project = GroupRule {
            name: "climate".to_string(),
            user: None,
            project: Some("climate-*".to_string()),
            share: Share::default(),
        };
        let mut named = rule("io*", 4);
        named.group = Some("climate".to_string());
        let mut of_user = rule("ior", 9);
        of_user.user = user(8);
        let mut of_job = rule("*", 5);
        of_job.job = Some("18".to_string());
        let rules = Rules {
            groups: vec![group, project],
            apps: vec![of_user, of_job, named, rule("*", 2)],
            views: vec![],
        };
        let share = |name, uid| {
            let share = rules.share_of(&who(name, uid)).expect("a rule for all");
            (share.share.weight, share.group)
        };
        assert_eq!(share("ior", 8), (9, Some(1)));
        assert_eq!(share("ior", 7), (4, Some(1)));
        assert_eq!(share("btio", 7), (2, Some(0)));
        assert_eq!(rules.shares(4).others.share.weight, 2);
        let only_groups = Rules {
            apps: vec![],
            ..rules
        };
        let share = only_groups.share_of(&who("btio", 1)).expect("its project");
        assert_eq!((share.group, share.share), (Some(1), Share::default()));
        let stranger = Identity {
            project: "",
            ..who("btio", 1)
        };
        assert_eq!(only_groups.share_of(&stranger), None);
    }

    #[test]
    fn rules_are_written_as_the_configuration_has_them() {
        let mut app = rule("a \"b\"", 3);
        app.share.min = Some(Rate::Bytes(25_000_000));
        app.share.max = Some(Rate::Device(205));
        app.share.latency = Some(Latency {
            ns: 100_000_000,
            percentile: 95,
        });
        let rules = Rules {
            apps: vec![app],
            ..Rules::default()
        };
        assert_eq!(
            rules.to_string(),
            "[[app]]\nname = \"a \\\"b\\\"\"\nweight = 3\nmin = \"25 MB/s\"\nmax = \"20.5 %\"\n\
             latency = \"100 ms\"\npercentile = 95\n"
        );
        assert_eq!(LatencyText(1_500_000).to_string(), "1500 us");
    }
}
