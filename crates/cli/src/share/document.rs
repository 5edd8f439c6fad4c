//! The rules of shares as a document, which commands change key by key.

use crate::fail::Fail;
use std::fmt;
use tidegate_server::config::rule::Rules;
use tidegate_server::config::{ConfigError, rules};
use toml::{Table, Value};

/// What a rule of shares may say, besides whom it is for.
const SHARES: [&str; 5] = ["weight", "min", "max", "latency", "percentile"];

/// Identifies a rule: the kind of table, and what tells it from others.
pub struct Key {
    kind: &'static str,
    words: Vec<(&'static str, Option<String>)>,
}

impl Key {
    /// The rule for applications of this name, and only those of a user or a job.
    pub fn app(name: &str, user: Option<String>, job: Option<String>) -> Key {
        Key {
            kind: "app",
            words: vec![
                ("name", Some(name.to_string())),
                ("user", user),
                ("job", job),
            ],
        }
    }

    /// The group of this name.
    pub fn group(name: &str) -> Key {
        Key {
            kind: "group",
            words: vec![("name", Some(name.to_string()))],
        }
    }

    /// The view of this name.
    pub fn view(name: &str) -> Key {
        Key {
            kind: "view",
            words: vec![("name", Some(name.to_string()))],
        }
    }

    fn is_of(&self, rule: &Table) -> bool {
        let mut words = self.words.iter();
        words.all(|(key, word)| rule.get(*key).and_then(Value::as_str) == word.as_deref())
    }

    fn name(&self) -> &str {
        self.words[0].1.as_deref().unwrap_or_default()
    }
}

/// All rules.
pub struct Document(Table);

impl Document {
    /// The document of effective rules.
    pub fn of(rules: &Rules) -> Document {
        let table = rules.to_string().parse();
        Document(table.expect("rules are written as TOML"))
    }

    /// Changes a rule, or adds one: words that follow from flags, and KEY=VALUE pairs. The word
    /// "none" takes a key away.
    pub fn set(
        &mut self,
        key: &Key,
        words: &[(&str, Option<&str>)],
        shares: &[String],
    ) -> Result<(), Fail> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(
            words
                .iter()
                .filter_map(|(key, word)| Some((*key, (*word)?))),
        );
        for pair in shares {
            match pair.split_once('=') {
                Some((name, value)) if SHARES.contains(&name) => pairs.push((name, value)),
                _ => {
                    let known = SHARES.join(", ");
                    let wrong = format!("\"{pair}\" must be KEY=VALUE, with a KEY of {known}");
                    return Err(Fail::usage(wrong));
                }
            }
        }
        for (number, (key, _)) in pairs.iter().enumerate() {
            if pairs[..number].iter().any(|(before, _)| before == key) {
                let wrong = format!("{key} is there twice; say it once");
                return Err(Fail::usage(wrong));
            }
        }
        let list = self.list(key.kind);
        let at = match list.iter().position(|rule| is(rule, key)) {
            Some(at) => at,
            None => {
                let words = key.words.iter();
                let words = words.filter_map(|(key, word)| Some((*key, word.clone()?)));
                let rule: Table = words
                    .map(|(key, word)| (key.to_string(), Value::String(word)))
                    .collect();
                let at = place(list, &rule);
                list.insert(at, Value::Table(rule));
                at
            }
        };
        let Value::Table(rule) = &mut list[at] else {
            unreachable!("rules are tables");
        };
        for (key, value) in pairs {
            let number = || value.parse().map(Value::Integer).ok();
            let number = ["weight", "percentile"].contains(&key).then(number);
            let value = match number.flatten() {
                _ if value == "none" => {
                    rule.remove(key);
                    if key == "latency" {
                        rule.remove("percentile");
                    }
                    continue;
                }
                Some(number) => number,
                None => Value::String(value.to_string()),
            };
            rule.insert(key.to_string(), value);
        }
        Ok(())
    }

    /// Takes a rule away.
    pub fn remove(&mut self, key: &Key) -> Result<(), Fail> {
        let name = key.name();
        if key.kind == "group" {
            let counts = |rule: &&Value| rule.get("group").and_then(Value::as_str) == Some(name);
            if let Some(rule) = self.list("app").iter().find(counts) {
                let app = rule.get("name").and_then(Value::as_str).unwrap_or_default();
                return Err(Fail::usage(format!(
                    "group {name} is named by the rule for {app}; `tidegate share set {app} \
                     --group none` first"
                )));
            }
        }
        let list = self.list(key.kind);
        match list.iter().position(|rule| is(rule, key)) {
            Some(at) => drop(list.remove(at)),
            None => {
                let (what, shows) = match key.kind {
                    "app" => (format!("rule for \"{name}\" of that user and job"), "share"),
                    "view" => (format!("view \"{name}\""), "view"),
                    kind => (format!("{kind} \"{name}\""), "share"),
                };
                return Err(Fail::usage(format!(
                    "there is no {what}; `tidegate {shows}` shows all"
                )));
            }
        }
        Ok(())
    }

    /// The rules, if all of them are right; `what` names the command in messages.
    pub fn check(&self, what: &str) -> Result<Rules, Fail> {
        let wrong = |error: ConfigError| Fail::usage(format!("{what}: {}", error.what()));
        rules(&self.to_string(), what).map_err(wrong)
    }

    /// Whether there is such a rule.
    pub fn has(&mut self, key: &Key) -> bool {
        self.list(key.kind).iter().any(|rule| is(rule, key))
    }

    /// The value of a word in an existing rule.
    pub fn word(&mut self, key: &Key, word: &str) -> Option<String> {
        let rule = self.list(key.kind).iter().find(|rule| is(rule, key))?;
        rule.get(word)?.as_str().map(str::to_string)
    }

    fn list(&mut self, kind: &str) -> &mut Vec<Value> {
        let list = self
            .0
            .entry(kind)
            .or_insert_with(|| Value::Array(Vec::new()));
        match list {
            Value::Array(list) => list,
            _ => unreachable!("rules are lists of tables"),
        }
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
        let full = self.0.iter().filter(|(_, list)| full(list));
        let table: Table = full
            .map(|(key, list)| (key.clone(), list.clone()))
            .collect();
        table.fmt(f)
    }
}

fn is(rule: &Value, key: &Key) -> bool {
    rule.as_table().is_some_and(|rule| key.is_of(rule))
}

/// Where a new rule goes: before the first that is less specific, because the first that matches
/// counts.
fn place(list: &[Value], rule: &Table) -> usize {
    let exactness = |rule: &Table| {
        let name = rule.get("name").and_then(Value::as_str).unwrap_or_default();
        let letters = name.chars().filter(|c| !"*?".contains(*c)).count();
        let is_name = letters == name.chars().count();
        let more = ["user", "job"]
            .iter()
            .filter(|key| rule.contains_key(**key));
        // Names do not shadow each other, whatever their lengths.
        (is_name, if is_name { 0 } else { letters }, more.count())
    };
    let new = exactness(rule);
    let less = |one: &Value| one.as_table().is_some_and(|one| exactness(one) < new);
    list.iter().position(less).unwrap_or(list.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| word.to_string()).collect()
    }

    #[test]
    fn rules_are_added_before_less_exact_ones_changed_and_removed() {
        let all = rules("[[app]]\nname = \"ior-*\"\n[[app]]\nname = \"*\"\n", "x").expect("valid");
        let mut document = Document::of(&all);
        let set = |document: &mut Document, key: &Key, pairs: &[&str]| {
            document.set(key, &[], &words(pairs)).expect("it is right");
        };
        set(
            &mut document,
            &Key::app("a", None, None),
            &["weight=3", "min=25MB/s"],
        );
        let root = Some("root".to_string());
        set(
            &mut document,
            &Key::app("a", root.clone(), None),
            &["weight=9"],
        );
        set(&mut document, &Key::app("ior-big-*", None, None), &[]);
        set(
            &mut document,
            &Key::app("a", None, None),
            &["min=none", "latency=100ms"],
        );
        let now = rules(&document.to_string(), "x").expect("valid");
        let names: Vec<_> = now.apps.iter().map(|app| app.name.as_str()).collect();
        assert_eq!(names, ["a", "a", "ior-big-*", "ior-*", "*"]);
        assert_eq!(now.apps[0].share.weight, 9);
        let share = now.apps[1].share;
        assert_eq!((share.weight, share.min), (3, None));
        assert!(share.latency.is_some());

        document.remove(&Key::app("a", root, None)).expect("there");
        assert!(document.has(&Key::app("a", None, None)));
        assert!(document.remove(&Key::app("b", None, None)).is_err());
        for (wrong, said) in [
            (&["colour=red"][..], "\"colour=red\" must be KEY=VALUE"),
            (
                &["weight=3", "min=none", "weight=4"],
                "weight is there twice",
            ),
        ] {
            let wrong = document.set(&Key::group("g"), &[], &words(wrong));
            let fail = wrong.expect_err(said);
            assert!(fail.message.starts_with(said), "{}", fail.message);
        }
    }

    #[test]
    fn a_group_that_is_named_stays() {
        let mut document = Document::of(&Rules::default());
        document
            .set(&Key::group("g"), &[("user", Some("0"))], &[])
            .expect("right");
        let group = [("group", Some("g"))];
        let app = Key::app("a", None, None);
        document.set(&app, &group, &[]).expect("right");
        assert!(rules(&document.to_string(), "x").is_ok());
        assert!(document.remove(&Key::group("g")).is_err());
        document
            .set(&app, &[("group", Some("none"))], &[])
            .expect("right");
        document.remove(&Key::group("g")).expect("nobody names it");
        document.remove(&app).expect("there");
        assert_eq!(document.to_string(), "");
    }
}
