//! How many claims hold, test a policy, and reproduce a paper's number, over several scenarios.

use super::Findings;
use tidegate_sim::result::{Reproduction, Verdict};
use tidegate_sim::scenario::Tests;

/// The counts in words, a line each; the claims that fail and those that hold without the policy
/// that they test are named. Nothing without claims.
pub fn counts<'a>(all: impl Iterator<Item = &'a Findings> + Clone) -> Vec<String> {
    let claims: Vec<(&str, &Verdict)> = all
        .flat_map(|its| {
            its.claims
                .iter()
                .map(|claim| (its.scenario.as_str(), claim))
        })
        .collect();
    if claims.is_empty() {
        return Vec::new();
    }
    let count = |wanted: &dyn Fn(&Verdict) -> bool| {
        let claims = claims.iter().filter(|(_, claim)| wanted(claim));
        claims.count()
    };
    let of_paper = |what| count(&|claim| claim.reproduction == Some(what));
    let mut lines = vec![
        format!(
            "Numbers of papers: {} ({} reproduced, {} differ, {} not comparable).",
            count(&|claim| claim.reproduction.is_some()),
            of_paper(Reproduction::Reproduced),
            of_paper(Reproduction::Differs),
            of_paper(Reproduction::NotComparable),
        ),
        format!(
            "Claims: {} ({} test a policy, {} describe); {} do not hold; {} that test a policy \
             hold as well when it is replaced by its baseline.",
            claims.len(),
            count(&|claim| claim.tests == Tests::Policy),
            count(&|claim| claim.tests == Tests::Describes),
            count(&|claim| !claim.holds),
            count(&|claim| claim.survives),
        ),
    ];
    for (scenario, claim) in &claims {
        let what = match (claim.holds, claim.survives) {
            (false, _) => "does not hold",
            (true, true) => "holds without the policy",
            (true, false) if claim.is_untested() => "the baseline has no such number",
            (true, false) => continue,
        };
        lines.push(format!("{scenario}: {}: {what}.", claim.text));
    }
    lines
}
