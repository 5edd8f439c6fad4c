//! Rules of shares as text: the tables `[[app]]`, `[[group]]` and `[[view]]`, checked.

use super::ConfigError;
use super::key::Keys;
use super::keys::{AppKeys, GroupKeys, ShareKeys, ViewKeys};
use super::source::{Section, Source};
use super::value::Name;
use std::path::Path;
use tidegate_forward::share_rules::{AppRule, GroupRule, RULES_MAX, Rules, View};
use tidegate_sched::{Latency, Rate, Share};

/// Bytes of all rules: they are told with all else that a forwarder tells of itself.
const TEXT_MAX: usize = 32 * 1024;

/// Reads rules that came as text of their own; `file` names it in messages.
pub fn rules(text: &str, file: &str) -> Result<Rules, ConfigError> {
    checked(Source::parse(text, file)?)
}

/// Reads rules from a file that may not be there.
pub fn rules_file(path: &Path) -> Result<Option<Rules>, ConfigError> {
    match path.try_exists() {
        Ok(false) => Ok(None),
        _ => Source::read(path).and_then(|source| checked(source).map(Some)),
    }
}

/// The rules, where nothing else may be.
fn checked(mut source: Source) -> Result<Rules, ConfigError> {
    let rules = from_source(&mut source)?;
    let sections = [AppKeys::SECTION, GroupKeys::SECTION, ViewKeys::SECTION];
    source.only(&sections)?;
    source.section("").only(&sections)?;
    Ok(rules)
}

/// Takes the rules out of settings.
pub(super) fn from_source(source: &mut Source) -> Result<Rules, ConfigError> {
    let mut rules = Rules::default();
    for mut section in source.sections(GroupKeys::SECTION) {
        let rule = group(&mut section)?;
        if rules.group(&rule.name).is_some() {
            let what = format!("there is a group \"{}\" already; give each once", rule.name);
            return Err(section.wrong("name", what));
        }
        rules.groups.push(rule);
        room(&rules, &section)?;
    }
    for mut section in source.sections(AppKeys::SECTION) {
        let rule = app(&mut section, &rules)?;
        if let Some(at) = rules.apps.iter().position(|known| same_match(known, &rule)) {
            let what = format!(
                "rule {} of [[app]] matches the same, and the first counts; remove one",
                at + 1
            );
            return Err(section.wrong("name", what));
        }
        rules.apps.push(rule);
        room(&rules, &section)?;
    }
    for mut section in source.sections(ViewKeys::SECTION) {
        let view = view(&mut section)?;
        if rules.views.iter().any(|known| known.name == view.name) {
            let what = format!("there is a view \"{}\" already; give each once", view.name);
            return Err(section.wrong("name", what));
        }
        rules.views.push(view);
        room(&rules, &section)?;
    }
    Ok(rules)
}

/// Whether two rules match the same applications by the same words.
pub fn same_match(one: &AppRule, other: &AppRule) -> bool {
    let uid = |rule: &AppRule| rule.user.as_ref().map(|user| user.uid);
    (&one.name, uid(one), &one.job) == (&other.name, uid(other), &other.job)
}

fn room(rules: &Rules, section: &Section) -> Result<(), ConfigError> {
    if rules.len() + rules.views.len() > RULES_MAX {
        let what = format!("more than {RULES_MAX} rules; a name with * can stand for many");
        return Err(section.wrong("name", what));
    }
    // The rules that are effective must fit one message, as they are told and set.
    if rules.to_string().len() > TEXT_MAX {
        let what = format!("the rules are more than {TEXT_MAX} bytes; use names with * for many");
        return Err(section.wrong("name", what));
    }
    Ok(())
}

fn group(section: &mut Section) -> Result<GroupRule, ConfigError> {
    section.only(&[GroupKeys::NAMES, ShareKeys::NAMES].concat())?;
    let keys = GroupKeys::read(section)?;
    exact(section, &keys.name.0, "group")?;
    Ok(GroupRule {
        name: keys.name.0,
        user: keys.user,
        project: keys.project.map(|project| project.0),
        share: share(section)?,
    })
}

fn app(section: &mut Section, rules: &Rules) -> Result<AppRule, ConfigError> {
    section.only(&[AppKeys::NAMES, ShareKeys::NAMES].concat())?;
    let keys = AppKeys::read(section)?;
    if let Some(Name(group)) = &keys.group
        && rules.group(group).is_none()
    {
        let known: Vec<&str> = rules.groups.iter().map(|one| one.name.as_str()).collect();
        let known = match known.is_empty() {
            true => "there are none; add a [[group]]".to_string(),
            false => format!("known: {}", known.join(", ")),
        };
        let what = format!("there is no group \"{group}\"; {known}");
        return Err(section.wrong("group", what));
    }
    Ok(AppRule {
        name: keys.name.0,
        user: keys.user,
        job: keys.job.map(|job| job.0),
        share: share(section)?,
        group: keys.group.map(|group| group.0),
    })
}

fn view(section: &mut Section) -> Result<View, ConfigError> {
    section.only(ViewKeys::NAMES)?;
    let keys = ViewKeys::read(section)?;
    exact(section, &keys.name.0, "view")?;
    let directory = keys.directory.0.trim_matches('/').to_string();
    let part = |part: &str| tidegate_wire::frame::name_is_valid(part.as_bytes());
    if directory.is_empty() || !directory.split('/').all(part) {
        let what = format!(
            "directory = \"{directory}\" must be a path from the export's root, without . and .."
        );
        return Err(section.wrong("directory", what));
    }
    let name = keys.name.0;
    Ok(View { name, directory })
}

/// Refuses a name that stands for many.
fn exact(section: &Section, name: &str, kind: &str) -> Result<(), ConfigError> {
    match name.chars().find(|c| "*?".contains(*c)) {
        None => Ok(()),
        Some(sign) => {
            let what = format!("name = \"{name}\" has a {sign}; a {kind} has one name");
            Err(section.wrong("name", what))
        }
    }
}

fn share(section: &mut Section) -> Result<Share, ConfigError> {
    let keys = ShareKeys::read(section)?;
    if let (Some(min), Some(max)) = (keys.min, keys.max)
        && exceeds(min, max)
    {
        let what = format!("max = {max} is less than min = {min}; raise it or lower min");
        return Err(section.wrong("max", what));
    }
    if keys.latency.is_none() && section.has("percentile") {
        let what = "percentile is of a latency, and there is none; add latency";
        return Err(section.wrong("percentile", what));
    }
    let latency = keys.latency.map(|latency| Latency {
        ns: latency.0,
        percentile: keys.percentile,
    });
    Ok(Share {
        weight: keys.weight,
        min: keys.min,
        max: keys.max,
        latency,
    })
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
            "f:3: unknown key \"colour\" in [[app]]; known: name, user, job",
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
        ("[[view]]\nname = \"v\"", "f:3: \"directory\" is missing"),
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
