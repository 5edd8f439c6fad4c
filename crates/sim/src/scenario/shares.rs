//! The shares of a scenario's applications and groups: `share = { ... }` of an application, and
//! `[[group]]`.

use super::load::{Group as Programs, Load};
use super::source::{ScenarioError, Source, tables};
use crate::units::Duration;
use serde::Deserialize;
use tidegate_sched::{AppId, AppShare, Latency, Options, Rate, Scheduler, Share, Shares};

/// The percentile of a latency target that names none.
const PERCENTILE: u8 = 95;

/// The share of an application, or of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    weight: Option<i64>,
    min: Option<String>,
    max: Option<String>,
    latency: Option<Duration>,
    percentile: Option<i64>,
    /// Of a group, its own name.
    group: Option<String>,
}

impl Written {
    /// The share, checked by the scheduler itself.
    fn share(&self, source: &Source, place: &str) -> Result<Share, ScenarioError> {
        let wrong = |key: &str, reason: String| source.wrong(&format!("{place}.{key}"), reason);
        let rate = |key: &str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => Rate::parse(text)
                .map(Some)
                .map_err(|error| wrong(key, error.to_string())),
        };
        if self.percentile.is_some() && self.latency.is_none() {
            let reason = "is of a latency; give latency too".to_string();
            return Err(wrong("percentile", reason));
        }
        let percentile = self.percentile.unwrap_or(PERCENTILE.into());
        let percentile = u8::try_from(percentile)
            .map_err(|_| wrong("percentile", format!("{percentile} is outside of 1 to 100")))?;
        let weight = self.weight.unwrap_or(1);
        let share = Share {
            weight: u32::try_from(weight)
                .map_err(|_| wrong("weight", format!("{weight} is no weight")))?,
            min: rate("min", &self.min)?,
            max: rate("max", &self.max)?,
            latency: self.latency.map(|latency| Latency {
                ns: latency.0,
                percentile,
            }),
        };
        let options = Options {
            shares: Shares {
                groups: vec![share],
                ..Shares::default()
            },
            ..Options::for_policy("fifo")
        };
        let checked = Scheduler::new(&options).map(|_| ());
        checked.map_err(|error| source.wrong(place, error.to_string()))?;
        Ok(share)
    }
}

/// Takes the groups out of a scenario's table, and puts what everybody is promised together.
pub(super) fn shares(
    source: &Source,
    table: &mut toml::Table,
    programs: &[(Programs, Load)],
    forwarders: u16,
) -> Result<Shares, ScenarioError> {
    let mut names = Vec::new();
    let mut shares = Shares {
        forwarders: u32::from(forwarders).max(1),
        ..Shares::default()
    };
    for (number, mut entry) in tables(source, table, "group")?.into_iter().enumerate() {
        let place = format!("group[{number}]");
        let name = match entry.remove("name") {
            Some(toml::Value::String(name)) if !name.is_empty() => name,
            Some(_) => return Err(source.wrong(&format!("{place}.name"), "takes text")),
            None => return Err(source.wrong(&place, "its name is missing")),
        };
        if names.contains(&name) {
            let reason = format!("two groups are called {name:?}");
            return Err(source.wrong(&format!("{place}.name"), reason));
        }
        let written: Written = source.shape(&place, entry)?;
        if written.group.is_some() {
            let reason = "a group is in no other group";
            return Err(source.wrong(&format!("{place}.group"), reason));
        }
        shares.groups.push(written.share(source, &place)?);
        names.push(name);
    }
    for (number, (programs, load)) in programs.iter().enumerate() {
        let Some(value) = &programs.share else {
            continue;
        };
        let place = format!("application[{number}].share");
        let written: Written = source.shape(&place, value.clone())?;
        let share = written.share(source, &place)?;
        let of_name = |name: &String| {
            let number = names.iter().position(|known| known == name);
            number.map(|number| number as u32).ok_or_else(|| {
                let reason = match names.len() {
                    0 => format!("there is no group {name:?}: there is no [[group]]"),
                    _ => format!("there is no group {name:?}; there are {}", names.join(", ")),
                };
                source.wrong(&format!("{place}.group"), reason)
            })
        };
        let group = written.group.as_ref().map(of_name).transpose()?;
        for copy in 0..programs.copies {
            for name in load.names(programs, &programs.copy_name(number, copy)) {
                let app = AppId::from_name(&name);
                shares.apps.insert(app, AppShare { share, group });
            }
        }
    }
    Ok(shares)
}
