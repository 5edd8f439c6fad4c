//! Checks whether the forwarders can meet all shares together, and shows the arithmetic.

use serde_json::Value;
use tidegate_sched::{Rate, Share};
use tidegate_server::config::rule::{AppRule, LatencyText, Rules, matches};

/// What all forwarders give together.
struct Capacity {
    forwarders: u64,
    bytes: u64,
    operations: u64,
    /// The least operations each second of one forwarder.
    slowest: u64,
    measured: bool,
}

impl Capacity {
    fn of(states: &[Value]) -> Option<Capacity> {
        let parts: Vec<&Value> = states.iter().map(|state| &state["capacity"]).collect();
        let known = || parts.iter().filter(|part| part.is_object());
        let sum = |key: &str| {
            let parts = known().filter_map(|part| part[key].as_u64());
            parts.fold(0, u64::saturating_add)
        };
        let operations = known().filter_map(|part| part["operations_per_s"].as_u64());
        Some(Capacity {
            forwarders: known().count() as u64,
            bytes: sum("bytes_per_s"),
            operations: sum("operations_per_s"),
            slowest: operations.min()?,
            measured: known().all(|part| part["measured"] == true),
        })
    }

    /// What a rate takes of all, in millionths; and in bytes.
    fn part(&self, rate: Rate) -> u64 {
        let of = |amount: u64, all: u64| {
            let part = u128::from(amount) * 1_000_000 / u128::from(all.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        match rate {
            Rate::Bytes(bytes) => of(bytes, self.bytes),
            Rate::Operations(operations) => of(operations, self.operations),
            Rate::Device(thousandths) => thousandths.saturating_mul(1000),
        }
    }

    fn source(&self) -> &'static str {
        match self.measured {
            true => "measured",
            false => "by the cost model; none was busy long enough to be measured",
        }
    }
}

/// What the forwarders cannot meet, and which rules are never used; one line each.
pub fn warnings(rules: &Rules, states: &[Value]) -> Vec<String> {
    let mut warnings = unused(rules);
    let Some(capacity) = Capacity::of(states) else {
        return warnings;
    };
    warnings.extend(reservations(rules, &capacity));
    warnings.extend(groups(rules, &capacity));
    warnings.extend(latencies(rules, &capacity));
    warnings
}

/// Rules for applications that an earlier rule matches all of.
fn unused(rules: &Rules) -> Vec<String> {
    let covers = |first: &AppRule, later: &AppRule| {
        let uid = |rule: &AppRule| rule.user.as_ref().map(|user| user.uid);
        let user = first.user.is_none() || uid(first) == uid(later);
        let job = first.job.is_none() || first.job == later.job;
        // A star of the later name matches what one ? does not.
        let name = matches(&first.name, &later.name)
            && !(first.name.contains('?') && later.name.contains('*'));
        user && job && name
    };
    let one = |(at, later): (usize, &AppRule)| {
        let first = rules.apps[..at].iter().find(|first| covers(first, later))?;
        Some(format!(
            "the rule for {} is never used: that for {} stands before it and matches the same \
             applications; the first that matches counts",
            later.name, first.name
        ))
    };
    rules.apps.iter().enumerate().filter_map(one).collect()
}

/// Checks the reservations of groups, and of applications outside groups, against the capacity.
fn reservations(rules: &Rules, capacity: &Capacity) -> Option<String> {
    let groups = rules.groups.iter().map(|group| (&group.name, &group.share));
    let apps = rules.apps.iter().filter(|app| app.group.is_none());
    let apps = apps.map(|app| (&app.name, &app.share));
    let parts: Vec<(String, u64)> = groups
        .chain(apps)
        .filter_map(|(name, share)| Some(term(name, share.min?, capacity)))
        .collect();
    let sum = parts
        .iter()
        .fold(0u64, |sum, (_, part)| sum.saturating_add(*part));
    if sum <= 1_000_000 {
        return None;
    }
    let terms: Vec<String> = parts.into_iter().map(|(text, _)| text).collect();
    Some(format!(
        "the reservations cannot be met together: {} = {} of what {} forwarders give, {} a second \
         or {} ({}); when all ask at once, each gets its part of that",
        terms.join(" + "),
        percent(sum),
        capacity.forwarders,
        megabytes(capacity.bytes),
        Rate::Operations(capacity.operations),
        capacity.source()
    ))
}

/// Checks the reservations within a group against the group's limit.
fn groups(rules: &Rules, capacity: &Capacity) -> Vec<String> {
    let one = |group: &tidegate_server::config::rule::GroupRule| {
        let max = group.share.max?;
        let apps = rules.apps.iter();
        let apps = apps.filter(|app| app.group.as_ref() == Some(&group.name));
        let parts: Vec<(String, u64)> = apps
            .filter_map(|app| Some(term(&app.name, app.share.min?, capacity)))
            .collect();
        let sum = parts
            .iter()
            .fold(0u64, |sum, (_, part)| sum.saturating_add(*part));
        let terms: Vec<String> = parts.into_iter().map(|(text, _)| text).collect();
        (sum > capacity.part(max)).then(|| {
            format!(
                "the reservations within group {} cannot be met together: {} = {} of all, and its \
                 max {} is {}",
                group.name,
                terms.join(" + "),
                percent(sum),
                max,
                percent(capacity.part(max))
            )
        })
    };
    rules.groups.iter().filter_map(one).collect()
}

/// Checks latency targets against the time of one request.
fn latencies(rules: &Rules, capacity: &Capacity) -> Vec<String> {
    let request_ns = 1_000_000_000 / capacity.slowest.max(1);
    let groups = rules.groups.iter().map(|group| (&group.name, &group.share));
    let apps = rules.apps.iter().map(|app| (&app.name, &app.share));
    let one = |(name, share): (&String, &Share)| {
        let latency = share.latency?;
        (latency.ns < request_ns).then(|| {
            format!(
                "the latency of {name} cannot be met: one request takes {} ms alone, 1 s / {}, and \
                 the target is {} ({})",
                request_ns / 1_000_000,
                capacity.slowest,
                LatencyText(latency.ns),
                capacity.source()
            )
        })
    };
    groups.chain(apps).filter_map(one).collect()
}

/// A reservation in words, and its part of the capacity in millionths.
fn term(name: &str, rate: Rate, capacity: &Capacity) -> (String, u64) {
    let part = capacity.part(rate);
    let each = match name.contains(['*', '?']) {
        true => " each",
        false => "",
    };
    let text = format!("{name} {rate}{each} ({})", percent(part));
    (text, part)
}

fn percent(millionths: u64) -> String {
    format!("{}.{} %", millionths / 10_000, millionths / 1000 % 10)
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_server::config::rules;

    fn warned(text: &str) -> Vec<String> {
        let one = json!({ "capacity": {
            "bytes_per_s": 25_000_000, "operations_per_s": 50, "measured": true
        }});
        let rules = rules(text, "x").expect("it is valid");
        warnings(&rules, &[one.clone(), one, json!({ "error": "no answer" })])
    }

    #[test]
    fn minima_are_added_up_in_all_units() {
        let fits =
            "[[app]]\nname = \"a\"\nmin = \"25 MB/s\"\n[[app]]\nname = \"b\"\nmin = \"50 op/s\"\n";
        assert_eq!(warned(fits), [""; 0]);
        let more = format!("{fits}[[app]]\nname = \"c*\"\nmin = \"20 %\"\n");
        assert_eq!(
            warned(&more),
            [
                "the reservations cannot be met together: a 25 MB/s (50.0 %) + b 50 op/s (50.0 %) \
              + c* 20 % each (20.0 %) = 120.0 % of what 2 forwarders give, 50.0 MB a second or \
              100 op/s (measured); when all ask at once, each gets its part of that"
            ]
        );
    }

    #[test]
    fn a_rule_behind_one_that_matches_all_of_it_is_told() {
        let text = |names: &[&str]| -> String {
            let rules = names
                .iter()
                .map(|name| format!("[[app]]\nname = \"{name}\"\n"));
            rules.collect()
        };
        for (names, unused) in [
            (&["a", "*"][..], ""),
            (&["*", "a"], "a"),
            (&["io*", "ior-*"], "ior-*"),
            (&["io?", "io*"], ""),
            (&["a\"\njob = \"7", "a"], ""),
            (&["a", "a\"\njob = \"7"], "a"),
        ] {
            let warnings = warned(&text(names));
            assert_eq!(warnings.len(), usize::from(!unused.is_empty()), "{names:?}");
            let said = format!("the rule for {unused} is never used");
            assert!(warnings.iter().all(|warning| warning.starts_with(&said)));
        }
    }

    #[test]
    fn a_group_s_maximum_and_one_request_s_time_are_bounds() {
        let text = "[[group]]\nname = \"g\"\nmax = \"10 MB/s\"\n\
                    [[app]]\nname = \"a\"\ngroup = \"g\"\nmin = \"30 %\"\nlatency = \"5 ms\"\n";
        let warnings = warned(text);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].contains("a 30 % (30.0 %) = 30.0 % of all"),
            "{warnings:?}"
        );
        assert!(
            warnings[1].contains("one request takes 20 ms alone, 1 s / 50"),
            "{warnings:?}"
        );
    }
}
