//! The application, or the job, that somebody asks for.

use crate::fail::Fail;
use crate::waits::{Waits, is_told};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// So many names are told of where none is right.
const TOLD_MAX: usize = 20;

/// What was found for a name, an id or a job.
pub struct Found {
    /// How it is called.
    pub name: String,
    /// The user, if all of it is one's.
    pub uid: Option<u64>,
    /// The rules of shares that hold for it, in words.
    pub rules: Vec<String>,
    /// Its ids.
    apps: BTreeSet<String>,
}

impl Found {
    /// Looks for it in the forwarders' states: by name, by id, by job.
    pub fn look(states: &[Value], asked: &str) -> Result<Found, Fail> {
        let all = || {
            let lists = states
                .iter()
                .filter_map(|state| state["applications"].as_array());
            lists.flatten().filter(|one| one["app"].is_string())
        };
        let named: Vec<&Value> = all().filter(|one| one["name"] == asked).collect();
        if !named.is_empty() && !asked.is_empty() {
            let apps: BTreeMap<&str, u64> = named
                .iter()
                .filter_map(|one| Some((one["app"].as_str()?, one["uid"].as_u64()?)))
                .collect();
            if apps.len() > 1 {
                let ids = apps.iter().map(|(app, uid)| format!("{app} of user {uid}"));
                let ids: Vec<String> = ids.collect();
                return Err(Fail::usage(format!(
                    "there are several applications `{asked}`; name one by its id: {}",
                    ids.join(", ")
                )));
            }
            return Ok(Found::of(named.into_iter(), None));
        }
        let is_asked = |one: &&Value| is_id(&one["app"], asked);
        if all().any(|one| is_asked(&one)) {
            return Ok(Found::of(all().filter(is_asked), None));
        }
        let of_job: Vec<&Value> = all().filter(|one| one["job"] == asked).collect();
        if !of_job.is_empty() && !asked.is_empty() {
            return Ok(Found::of(of_job.into_iter(), Some(asked)));
        }
        let names = all().filter_map(|one| one["name"].as_str().filter(|name| !name.is_empty()));
        Err(none(asked, names.collect()))
    }

    fn of<'v>(all: impl Iterator<Item = &'v Value>, job: Option<&str>) -> Found {
        let (mut apps, mut users, mut rules) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut names = BTreeSet::new();
        for one in all {
            let app = one["app"].as_str().unwrap_or_default();
            apps.insert(app.to_string());
            users.extend(one["uid"].as_u64());
            let name = one["name"].as_str().filter(|name| !name.is_empty());
            names.insert(name.unwrap_or(app).to_string());
            for (key, word) in [("rule", "rule"), ("group", "group")] {
                rules.extend(one[key].as_str().map(|its| format!("{word} `{its}`")));
            }
        }
        let name = match (job, names.len()) {
            (Some(job), 2..) => format!("job {job}"),
            _ => names.pop_first().unwrap_or_default(),
        };
        let rules = match rules.is_empty() {
            true => vec!["its rule".to_string()],
            false => rules.into_iter().collect(),
        };
        Found {
            name,
            uid: users.first().copied().filter(|_| users.len() == 1),
            rules,
            apps,
        }
    }

    /// The ids under which a forwarder has had requests of it, and does not tell what they waited
    /// for.
    pub fn untold<'v>(&self, state: &'v Value) -> impl Iterator<Item = &'v str> {
        let untold = self.its(state).filter(|(_, one)| !is_told(one));
        untold.map(|(app, _)| app)
    }

    /// What it waited for at a forwarder, under all ids but these.
    pub fn waits(&self, state: &Value, without: &BTreeSet<&str>) -> Waits {
        let mut waits = Waits::default();
        for (app, one) in self.its(state) {
            if !without.contains(app) {
                waits.add(&Waits::of(one));
            }
        }
        waits
    }

    fn its<'v>(&self, state: &'v Value) -> impl Iterator<Item = (&'v str, &'v Value)> {
        let all = state["applications"].as_array().into_iter().flatten();
        all.filter_map(|one| Some((one["app"].as_str()?, one)))
            .filter(|(app, _)| self.apps.contains(*app))
    }
}

/// Whether a text is this id, with or without the zeros in front.
fn is_id(app: &Value, asked: &str) -> bool {
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => u64::from_str_radix(text, 16).ok(),
        false => None,
    };
    let app = app.as_str().and_then(number);
    app.is_some() && asked.len() <= 16 && number(asked) == app
}

fn none(asked: &str, names: BTreeSet<&str>) -> Fail {
    let hint = match names.is_empty() {
        true => "there is none that has a name; `tidegate run --app NAME` gives one".to_string(),
        false => {
            let shown = names.iter().take(TOLD_MAX);
            let shown: Vec<String> = shown.map(|name| format!("`{name}`")).collect();
            let more = match names.len() > TOLD_MAX {
                true => ", and more: `tidegate stat --json` shows all",
                false => "",
            };
            format!("there are {}{more}", shown.join(", "))
        }
    };
    Fail::usage(format!(
        "no application or job of yours is called `{asked}`: {hint}"
    ))
}
