//! Rules of shares as text: the tables `[[app]]`, `[[group]]` and `[[view]]`, checked.

use super::source::{Entry, Section, Source, written};
use super::{ConfigError, Value, units};
use std::path::Path;
use tidegate_forward::share_rules::{AppRule, GroupRule, RULES_MAX, Rules, User, View};
use tidegate_sched::{Latency, Rate, Share};
use tidegate_wire::NAME_MAX;

/// Bytes of all rules: they are told with all else that a forwarder tells of itself.
const TEXT_MAX: usize = 32 * 1024;

/// The largest weight.
const WEIGHT_MAX: u64 = tidegate_sched::WEIGHT_MAX as u64;

/// Percent of an application's requests that a latency target is for, unless it says so.
const PERCENTILE: u64 = 95;

/// Reads rules that came as text of their own; `file` names it in messages.
pub fn rules(text: &str, file: &str) -> Result<Rules, ConfigError> {
    let mut source = Source::parse(text, file)?;
    let rules = from_source(&mut source)?;
    let top = source.section("");
    match top.finish() {
        Ok(()) => Ok(rules),
        Err(error) => Err(ConfigError::new(
            &error.place,
            format!("{}; rules are [[app]], [[group]] and [[view]]", error.what),
        )),
    }
}

/// Reads rules from a file that may not be there.
pub fn rules_file(path: &Path) -> Result<Option<Rules>, ConfigError> {
    let file = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ConfigError::new(&file, format!("cannot be read: {error}"))),
    };
    rules(&text, &file).map(Some)
}

/// Takes the rules out of settings.
pub(super) fn from_source(source: &mut Source) -> Result<Rules, ConfigError> {
    let mut rules = Rules::default();
    for mut section in source.tables("group") {
        let (rule, place) = group(&mut section)?;
        section.finish()?;
        if rules.group(&rule.name).is_some() {
            let what = format!("there is a group \"{}\" already; give each once", rule.name);
            return Err(ConfigError::new(&place, what));
        }
        rules.groups.push(rule);
        room(&rules, &place)?;
    }
    for mut section in source.tables("app") {
        let (rule, place) = app(&mut section, &rules)?;
        section.finish()?;
        if let Some(at) = rules.apps.iter().position(|known| same_match(known, &rule)) {
            let what = format!(
                "rule {} of [[app]] matches the same, and the first counts; remove one",
                at + 1
            );
            return Err(ConfigError::new(&place, what));
        }
        rules.apps.push(rule);
        room(&rules, &place)?;
    }
    for mut section in source.tables("view") {
        let (view, place) = view(&mut section)?;
        section.finish()?;
        if rules.views.iter().any(|known| known.name == view.name) {
            let what = format!("there is a view \"{}\" already; give each once", view.name);
            return Err(ConfigError::new(&place, what));
        }
        rules.views.push(view);
        room(&rules, &place)?;
    }
    Ok(rules)
}

/// Whether two rules match the same applications by the same words.
pub fn same_match(one: &AppRule, other: &AppRule) -> bool {
    let uid = |rule: &AppRule| rule.user.as_ref().map(|user| user.uid);
    (&one.name, uid(one), &one.job) == (&other.name, uid(other), &other.job)
}

fn room(rules: &Rules, place: &str) -> Result<(), ConfigError> {
    if rules.len() + rules.views.len() > RULES_MAX {
        let what = format!("more than {RULES_MAX} rules; a name with * can stand for many");
        return Err(ConfigError::new(place, what));
    }
    // What is in force must fit one message, as it is told and set.
    if rules.to_string().len() > TEXT_MAX {
        let what = format!("the rules are more than {TEXT_MAX} bytes; use names with * for many");
        return Err(ConfigError::new(place, what));
    }
    Ok(())
}

fn group(section: &mut Section) -> Result<(GroupRule, String), ConfigError> {
    let (name, place) = name(section, "name the group")?;
    if let Some(sign) = name.chars().find(|c| "*?".contains(*c)) {
        let what = format!("name = \"{name}\" has a {sign}; a group has one name");
        return Err(ConfigError::new(&place, what));
    }
    let rule = GroupRule {
        name,
        user: user(section)?,
        project: text(section, "project")?.map(|(text, _)| text),
        share: share(section)?,
    };
    Ok((rule, place))
}

fn app(section: &mut Section, rules: &Rules) -> Result<(AppRule, String), ConfigError> {
    let advice = "name the application; * stands for any characters, ? for one";
    let (name, place) = name(section, advice)?;
    let group = text(section, "group")?;
    if let Some((group, place)) = &group
        && rules.group(group).is_none()
    {
        let known: Vec<&str> = rules.groups.iter().map(|one| one.name.as_str()).collect();
        let known = match known.is_empty() {
            true => "there are none; add a [[group]]".to_string(),
            false => format!("known: {}", known.join(", ")),
        };
        let what = format!("there is no group \"{group}\"; {known}");
        return Err(ConfigError::new(place, what));
    }
    let rule = AppRule {
        name,
        user: user(section)?,
        job: job(section)?,
        share: share(section)?,
        group: group.map(|(group, _)| group),
    };
    Ok((rule, place))
}

fn view(section: &mut Section) -> Result<(View, String), ConfigError> {
    let (name, place) = name(section, "name the view")?;
    if let Some(sign) = name.chars().find(|c| "*?".contains(*c)) {
        let what = format!("name = \"{name}\" has a {sign}; a view has one name");
        return Err(ConfigError::new(&place, what));
    }
    let Some((directory, at)) = text(section, "directory")? else {
        let what = "\"directory\" is missing: name a directory of the export";
        return Err(ConfigError::new(&place, what));
    };
    let directory = directory.trim_matches('/').to_string();
    let part = |part: &str| tidegate_wire::frame::name_is_valid(part.as_bytes());
    if directory.is_empty() || !directory.split('/').all(part) {
        let what = format!(
            "directory = \"{directory}\" must be a path from the export's root, without . and .."
        );
        return Err(ConfigError::new(&at, what));
    }
    Ok((View { name, directory }, place))
}

/// The key `name`, which each table must have.
fn name(section: &mut Section, advice: &str) -> Result<(String, String), ConfigError> {
    match text(section, "name")? {
        Some(found) => Ok(found),
        None => Err(section.missing("name", advice)),
    }
}

/// Text that is neither empty nor longer than a name may be.
fn text(section: &mut Section, key: &'static str) -> Result<Option<(String, String)>, ConfigError> {
    match section.text(key)? {
        Some((text, place)) if text.is_empty() || text.len() > NAME_MAX => {
            let what = format!("{key} must have 1 to {NAME_MAX} bytes, not {}", text.len());
            Err(ConfigError::new(&place, what))
        }
        // They would break the lines in which rules and applications are shown.
        Some((text, place)) if text.chars().any(char::is_control) => {
            let what = format!("{key} = {text:?} has a control character; write it without");
            Err(ConfigError::new(&place, what))
        }
        found => Ok(found),
    }
}

/// A user by name or number.
fn user(section: &mut Section) -> Result<Option<User>, ConfigError> {
    let Some(Entry { value, place }) = section.take("user") else {
        return Ok(None);
    };
    let known = |uid, name: String| Ok(Some(User { uid, name }));
    match &value {
        Value::Integer(number) if u32::try_from(*number).is_ok() => {
            known(*number as u32, number.to_string())
        }
        Value::Text(name) => match name.parse().ok().or_else(|| crate::identity::uid_of(name)) {
            Some(uid) => known(uid, name.clone()),
            None => {
                let what =
                    format!("there is no user \"{name}\" on this machine; name another, or a uid");
                Err(ConfigError::new(&place, what))
            }
        },
        other => {
            let what = format!("user = {} must be a user's name or number", written(other));
            Err(ConfigError::new(&place, what))
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// A job: batch systems have numbers, and names with numbers in them.
fn job(section: &mut Section) -> Result<Option<String>, ConfigError> {
    match section.take("job") {
        None => Ok(None),
        Some(Entry { value, place }) => match value {
            Value::Integer(number) if number >= 0 => Ok(Some(number.to_string())),
            Value::Text(text) if is_name(&text) => Ok(Some(text)),
            other => {
                let what = format!("job = {} must be a job's number or name", written(&other));
                Err(ConfigError::new(&place, what))
            }
        },
    }
}

fn share(section: &mut Section) -> Result<Share, ConfigError> {
    let weight = section.number("weight", 1, (1, WEIGHT_MAX))? as u32;
    let min = rate(section, "min")?;
    let max = rate(section, "max")?;
    if let (Some((min, _)), Some((max, place))) = (&min, &max)
        && exceeds(*min, *max)
    {
        let what = format!(
            "max = {} is less than min = {}; raise it or lower min",
            max, min
        );
        return Err(ConfigError::new(place, what));
    }
    let percentile_at = section.place("percentile");
    let percentile = section.number("percentile", PERCENTILE, (1, 100))? as u8;
    let latency = match section.take("latency") {
        None => match percentile_at {
            Some(place) => {
                let what = "percentile is of a latency, and there is none; add latency";
                return Err(ConfigError::new(&place, what));
            }
            None => None,
        },
        Some(Entry { value, place }) => {
            let ns = units::latency_ns(&value);
            let ns = ns.map_err(|what| ConfigError::new(&place, format!("latency = {what}")))?;
            Some(Latency { ns, percentile })
        }
    };
    Ok(Share {
        weight,
        min: min.map(|(rate, _)| rate),
        max: max.map(|(rate, _)| rate),
        latency,
    })
}

fn rate(section: &mut Section, key: &'static str) -> Result<Option<(Rate, String)>, ConfigError> {
    match section.take(key) {
        None => Ok(None),
        Some(Entry { value, place }) => match units::rate(&value) {
            Ok(rate) => Ok(Some((rate, place))),
            Err(what) => Err(ConfigError::new(&place, format!("{key} = {what}"))),
        },
    }
}

/// Whether a minimum is above a maximum, as far as they count the same.
fn exceeds(min: Rate, max: Rate) -> bool {
    match (min, max) {
        (Rate::Bytes(min), Rate::Bytes(max))
        | (Rate::Operations(min), Rate::Operations(max))
        | (Rate::Device(min), Rate::Device(max)) => min > max,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written_the_same() {
        let text = "[[group]]\nname = \"anna\"\nuser = \"0\"\nproject = \"cli*\"\nweight = 4\n\
                    [[app]]\nname = \"ior-?\"\nuser = \"root\"\njob = \"17\"\ngroup = \"anna\"\n\
                    weight = 3\nmin = \"25 MB/s\"\nmax = \"50 %\"\n\
                    latency = \"100 ms\"\npercentile = 99\n\
                    [[app]]\nname = \"*\"\nweight = 1\nmax = \"1000 op/s\"\n\
                    [[view]]\nname = \"fast\"\ndirectory = \"a/b\"\n";
        let read = rules(text, "f").expect("it is valid");
        assert_eq!(read.to_string(), text);
        assert_eq!(read.groups[0].user.as_ref().map(|user| user.uid), Some(0));
        assert_eq!(rules("", "f").expect("none is valid"), Rules::default());
    }

    /// Behind a rule of two lines, and what is said to them.
    const MISTAKES: &[(&str, &str)] = &[
        (
            "weight = 0",
            "f:3: weight = 0 must be a number from 1 to 65536",
        ),
        ("weight = -3", "f:3: weight = -3 must be a number from 1"),
        (
            "weight = 99999999999999999999",
            "f:3: weight must be a whole number",
        ),
        (
            "min = \"-5 MB/s\"",
            "f:3: min = \"-5 MB/s\" is no rate; write",
        ),
        (
            "min = \"0 MB/s\"",
            "f:3: min = \"0 MB/s\" is impossible: 1 to",
        ),
        ("min = 25", "f:3: min = \"25\" is no rate; write"),
        (
            "max = \"99999999999 TB/s\"",
            "f:3: max = \"99999999999 TB/s\" is impossible",
        ),
        ("max = \"120 %\"", "f:3: max = \"120 %\" is impossible"),
        ("max = \"5 parsec\"", "f:3: max = \"5 parsec\" is no rate"),
        (
            "min = \"9 MB/s\"\nmax = \"8 MB/s\"",
            "f:4: max = 8 MB/s is less than min = 9 MB/s",
        ),
        ("latency = \"0 ms\"", "f:3: latency = \"0 ms\" must be"),
        ("latency = 100", "f:3: latency = 100 must be"),
        (
            "percentile = 101",
            "f:3: percentile = 101 must be a number from 1 to 100",
        ),
        (
            "percentile = 99",
            "f:3: percentile is of a latency, and there is none; add latency",
        ),
        (
            "group = \"x\"",
            "f:3: there is no group \"x\"; there are none",
        ),
        (
            "user = \"no such user\"",
            "f:3: there is no user \"no such user\"",
        ),
        (
            "user = -1",
            "f:3: user = -1 must be a user's name or number",
        ),
        ("job = true", "f:3: job = true or false must be"),
        (
            "colour = 1",
            "f:3: unknown key \"colour\" in [[app]]; known: name, group",
        ),
        (
            "[[app]]\nname = \"a\"",
            "f:4: rule 1 of [[app]] matches the same",
        ),
        (
            "[[app]]\nweight = 2",
            "f:3: \"name\" is missing: name the application",
        ),
        (
            "[[app]]\nname = \"a\\nb\"",
            "f:4: name = \"a\\nb\" has a control character",
        ),
        ("job = \"a\\u001b\"", "f:3: job = \"a"),
        ("[[app]]\nname = \"\"", "f:4: name must have 1 to 255 bytes"),
        ("[[view]]\nname = \"v\"", "f:4: \"directory\" is missing"),
        (
            "[[view]]\nname = \"v\"\ndirectory = \"a/../b\"",
            "f:5: directory = \"a/../b\" must",
        ),
        ("[[grupp]]\nname = \"v\"", "f:3: unknown key \"grupp\""),
        ("[app]\nname = \"v\"", "f:"),
    ];

    #[test]
    fn every_mistake_is_told_with_its_place_and_what_to_do() {
        let app = "[[app]]\nname = \"a\"\n";
        for (text, expected) in MISTAKES.iter().copied() {
            let error = rules(&format!("{app}{text}\n"), "f")
                .expect_err(text)
                .to_string();
            assert!(error.starts_with(expected), "{error}\nnot {expected}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = rules("app = 3\n", "f").expect_err("no table").to_string();
        assert!(
            error.starts_with("f:1: app must be written as [[app]]"),
            "{error}"
        );
    }
}
