//! Checks a scenario as a whole, and refuses what would measure, draw or judge nothing.

use super::policies::Policy;
use super::source::{ScenarioError, Source};
use super::{Claim, FigureOptions, Machine, PointEntry, Scenario, Series, SeriesEntry, Tests};
use crate::metrics::Metric;

/// Why there must be a `[figure]`.
pub(super) const NO_FIGURE: &str =
    "no [figure]: say what is measured, such as figure = { metric = \"completion_mean\" }";

/// Checks that the policies' labels differ, because results go by them.
pub(super) fn labels(source: &Source, policies: &[Policy]) -> Result<(), ScenarioError> {
    for (number, policy) in policies.iter().enumerate() {
        if policies[..number].iter().any(|it| it.label == policy.label) {
            let reason = format!(
                "two policies are called {:?}; give one a label",
                policy.label
            );
            return Err(source.wrong("policy", reason));
        }
    }
    Ok(())
}

/// Checks that each policy's baseline is another policy of the scenario.
pub(super) fn baselines(source: &Source, policies: &[Policy]) -> Result<(), ScenarioError> {
    for policy in policies {
        let Some(label) = &policy.baseline else {
            continue;
        };
        let reason = match policies.iter().any(|it| it.label == *label) {
            _ if *label == policy.label => "a policy is not its own baseline".to_string(),
            true => continue,
            false => format!("{}: there is no policy {label:?}", policy.label),
        };
        return Err(source.wrong("policy.baseline", reason));
    }
    Ok(())
}

/// Checks that the series exist from which policies are to be trained.
pub(super) fn training(
    source: &Source,
    policies: &[Policy],
    series: &[Series],
) -> Result<(), ScenarioError> {
    for policy in policies {
        if let Some(name) = &policy.training.traces_of
            && !series.iter().any(|it| it.name == *name)
        {
            let reason = format!("{}: there is no series {name:?}", policy.label);
            return Err(source.wrong("policy.traces_of", reason));
        }
    }
    Ok(())
}

/// Checks that the names of series, and the x of their points, differ, because results go by them.
pub(super) fn places(
    source: &Source,
    series: &[SeriesEntry],
    points: &[PointEntry],
) -> Result<(), ScenarioError> {
    for (number, one) in series.iter().enumerate() {
        if series[..number].iter().any(|it| it.name == one.name) {
            let reason = format!("two series are called {:?}", one.name);
            return Err(source.wrong(&format!("series[{number}].name"), reason));
        }
    }
    for (number, point) in points.iter().enumerate() {
        let place = match source.has("vary") {
            true => format!("vary.values[{number}]"),
            false => format!("point[{number}].x"),
        };
        if !point.x.is_finite() {
            return Err(source.wrong(&place, format!("{} is no place on an axis", point.x)));
        }
        if points[..number].iter().any(|it| it.x == point.x) {
            return Err(source.wrong(&place, format!("there are two points at {}", point.x)));
        }
    }
    Ok(())
}

/// Checks that the runs measure every metric that the figure shows.
pub(super) fn figure(source: &Source, figure: &FigureOptions) -> Result<(), ScenarioError> {
    measured(source, figure, figure.metric, "figure.metric")?;
    for (number, metric) in figure.also.iter().enumerate() {
        measured(source, figure, *metric, &format!("figure.also[{number}]"))?;
    }
    if let Some(timeline) = &figure.timeline {
        if timeline.every.0 == 0 {
            return Err(source.wrong("figure.timeline.every", "must be positive"));
        }
        if timeline.show.is_empty() {
            return Err(source.wrong("figure.timeline.show", "shows nothing"));
        }
    }
    Ok(())
}

/// Checks that what servers change is not asked for without them, nor what they make impossible.
pub(super) fn servers(source: &Source, scenario: &Scenario) -> Result<(), ScenarioError> {
    let machines = scenario.series.iter().flat_map(|series| &series.points);
    let machines = machines.map(|point| &point.machine);
    let direct = scenario.policies.iter().find(|policy| policy.direct);
    if let Some(policy) = direct
        && !machines.clone().all(Machine::has_servers)
    {
        let reason = format!(
            "{}: there are no [servers] that clients could reach without forwarders",
            policy.label
        );
        return Err(source.wrong("policy.direct", reason));
    }
    let with_servers = machines.clone().any(Machine::has_servers);
    if scenario.figure.optimum && with_servers {
        let reason = "is known where each forwarder has a device of its own: without [servers]";
        return Err(source.wrong("figure.optimum", reason));
    }
    Ok(())
}

fn measured(
    source: &Source,
    figure: &FigureOptions,
    metric: Metric,
    place: &str,
) -> Result<(), ScenarioError> {
    let is_on = match metric.needs() {
        Some("alone") => figure.alone,
        Some("requests") => figure.requests,
        Some("promises") => figure.promises,
        Some("optimum") => figure.optimum,
        _ => true,
    };
    match (is_on, metric.needs()) {
        (false, Some(key)) => {
            let reason = format!("{} needs {key} = true in [figure]", metric.name());
            Err(source.wrong(place, reason))
        }
        _ => Ok(()),
    }
}

/// Checks that claims name things that exist and can hold.
pub(super) fn claims(source: &Source, scenario: &Scenario) -> Result<(), ScenarioError> {
    for (number, claim) in scenario.claims.iter().enumerate() {
        let place = format!("claim[{number}]");
        measured(
            source,
            &scenario.figure,
            claim.metric,
            &format!("{place}.metric"),
        )?;
        if !claim.against_best.is_empty() {
            let place = format!("{place}.against_best");
            measured(source, &scenario.figure, Metric::TargetKept500ms, &place)?;
        }
        let checked = names(scenario, claim)
            .and_then(|()| band(claim))
            .and_then(|()| meaning(scenario, claim));
        checked.map_err(|(key, reason)| match key {
            "" => source.wrong(&place, reason),
            key => source.wrong(&format!("{place}.{key}"), reason),
        })?;
    }
    Ok(())
}

/// A key of a claim, and what is wrong with it.
type Wrong = (&'static str, String);

fn names(scenario: &Scenario, claim: &Claim) -> Result<(), Wrong> {
    let labels = scenario.policies.iter().map(|it| it.label.as_str());
    let labels: Vec<&str> = labels.collect();
    let named = [
        ("policy", Some(&claim.policy)),
        ("against", claim.against.as_ref()),
        ("baseline", claim.baseline.as_ref()),
    ];
    let best = claim.against_best.iter();
    let best = best.map(|label| ("against_best", Some(label)));
    for (key, label) in named.into_iter().chain(best) {
        if let Some(label) = label.filter(|label| !labels.contains(&label.as_str())) {
            let reason = format!("there is no {label:?}; there are {}", labels.join(", "));
            return Err((key, reason));
        }
    }
    for (key, name) in [
        ("series", &claim.series),
        ("against_series", &claim.against_series),
    ] {
        let known = |name: &String| scenario.series.iter().any(|it| it.name == *name);
        if let Some(name) = name.as_ref().filter(|name| !known(name)) {
            return Err((key, format!("there is no series {name:?}")));
        }
    }
    let known = |name: &&String| scenario.series.iter().any(|it| it.name == **name);
    if let Some(name) = claim.over.iter().find(|name| !known(name)) {
        return Err(("over", format!("there is no series {name:?}")));
    }
    let mut points = scenario.series.iter().flat_map(|it| &it.points);
    match claim.x {
        Some(x) if !points.any(|it| it.x == x) => Err(("x", format!("there is no point at {x}"))),
        _ => Ok(()),
    }
}

fn band(claim: &Claim) -> Result<(), Wrong> {
    let numbers = [
        ("paper", claim.paper),
        ("min", claim.min),
        ("max", claim.max),
    ];
    for (key, number) in numbers {
        if let Some(number) = number.filter(|number| !number.is_finite()) {
            return Err((key, format!("{number} is no number to compare with")));
        }
    }
    match (claim.min, claim.max) {
        (None, None) => Err(("", "claims nothing: give min, max or both".to_string())),
        (Some(min), Some(max)) if min > max => Err((
            "min",
            format!("no number is {min} at least and {max} at most"),
        )),
        _ if claim.mean && claim.spread => {
            Err(("mean", "either mean or spread, not both".to_string()))
        }
        _ if !claim.against_best.is_empty()
            && (claim.against.is_some() || claim.against_series.is_some() || claim.spread) =>
        {
            let reason = "is a comparison of its own: without against, against_series and spread";
            Err(("against_best", reason.to_string()))
        }
        _ if !claim.over.is_empty() && (claim.series.is_some() || claim.spread) => {
            let reason = "is a mean over series: without series and spread";
            Err(("over", reason.to_string()))
        }
        _ => Ok(()),
    }
}

/// Checks that the policy of a claim that tests it has a baseline, and that it is said why the
/// paper's number is another one.
fn meaning(scenario: &Scenario, claim: &Claim) -> Result<(), Wrong> {
    let policy = scenario.policy(&claim.policy).unwrap_or_default();
    if claim.tests == Tests::Policy && scenario.baseline(claim) == policy {
        let reason = format!(
            "{} is what others are replaced by: its claims say tests = \"describes\"",
            claim.policy
        );
        return Err(("tests", reason));
    }
    match (claim.paper, &claim.not_comparable, &claim.why) {
        (None, Some(_), _) => Err(("not_comparable", "there is no paper's number".to_string())),
        (Some(_), Some(_), Some(_)) => {
            let reason = "either why or not_comparable, not both".to_string();
            Err(("not_comparable", reason))
        }
        (Some(paper), None, None) if !claim.reproduces(paper) => Err((
            "why",
            format!("is missing: the band has not two sides with the paper's {paper} in between"),
        )),
        _ => Ok(()),
    }
}
