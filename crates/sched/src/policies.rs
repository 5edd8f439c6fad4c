//! The list of policies. One policy is one file of `policies/`, one line of modules and one line of
//! [`ALL`].

mod aioli;
mod auto;
mod dsfq;
mod edf;
mod fifo;
mod hio;
mod least_attained;
mod mlf;
mod round_robin;
mod sjf;
mod smallest_bottleneck;
mod time_order;
mod twins;
mod two_level;
mod wfq;
mod window;

use crate::options::Options;
use crate::options_error::OptionsError;
use crate::policy::{Policy, PolicySpec};
use crate::policy_options::OptionValue;
use alloc::boxed::Box;

/// All policies, by name.
pub const ALL: &[&PolicySpec] = &[
    &aioli::SPEC,
    &auto::SPEC,
    &dsfq::SPEC,
    &edf::SPEC,
    &fifo::SPEC,
    &hio::SPEC,
    &least_attained::SPEC,
    &mlf::SPEC,
    &round_robin::SPEC,
    &sjf::SPEC,
    &smallest_bottleneck::SPEC,
    &time_order::SPEC,
    &twins::SPEC,
    &two_level::SPEC,
    &wfq::SPEC,
    &window::SPEC,
];

/// The names of all policies.
pub const NAMES: &[&str] = &{
    let mut names = [""; ALL.len()];
    let mut at = 0;
    while at < ALL.len() {
        names[at] = ALL[at].name;
        at += 1;
    }
    names
};

/// What is said of the policy with this name.
pub fn find(name: &str) -> Option<&'static PolicySpec> {
    ALL.iter().copied().find(|spec| spec.name == name)
}

/// The value that a text states for an option of a policy, by the option's type. A text for an
/// option that there is not stays text, and is refused when the policy is made.
pub fn read_option(policy: &str, option: &str, text: &str) -> OptionValue {
    let spec = find(policy).and_then(|policy| policy.options.iter().find(|one| one.name == option));
    spec.map_or_else(|| text.into(), |spec| spec.kind.read(text))
}

/// Makes the policy that `options` name. Returns it with the options that it follows: those that
/// were given, and the defaults of the others.
pub(crate) fn build(options: &Options) -> Result<(Options, Box<dyn Policy>), OptionsError> {
    let spec = find(&options.policy).ok_or_else(|| OptionsError::UnknownPolicy {
        policy: options.policy.clone(),
        known: NAMES,
    })?;
    let effective = Options {
        merge: Some(options.merge.unwrap_or(spec.merges)),
        table: options.table.complete(spec.name, spec.options)?,
        ..options.clone()
    };
    let policy = (spec.make)(&effective)?;
    Ok((effective, policy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_options::OptionKind;
    use std::vec::Vec;

    #[test]
    fn policies_and_options_stand_in_order_and_name_options_that_there_are() {
        assert!(NAMES.is_sorted());
        for policy in ALL {
            let names: Vec<&str> = policy.options.iter().map(|spec| spec.name).collect();
            assert!(names.is_sorted(), "{}: {names:?}", policy.name);
            for spec in policy.options {
                let mut needed = Vec::new();
                needed.extend(spec.except.map(|(option, ..)| option));
                if let OptionKind::Below(bound) = spec.kind {
                    needed.push(bound);
                }
                let is_there = |option: &&str| names.contains(option);
                assert!(
                    needed.iter().all(is_there),
                    "{} of {}",
                    spec.name,
                    policy.name
                );
            }
        }
    }

    #[test]
    fn what_an_option_takes_can_depend_on_another() {
        let refused = |policy, name, value: u64, others: &[(&str, &str)]| {
            let mut options = Options::for_policy(policy);
            options.table = others.iter().copied().collect();
            options.table.set(name, value);
            let error = build(&options).err().expect("it is refused");
            std::string::ToString::to_string(&error)
        };
        assert_eq!(
            refused("twins", "start", 4, &[]),
            "start = 4 is outside of 0 to 3"
        );
        assert_eq!(
            refused("dsfq", "report_ms", 0, &[("sync", "threshold")]),
            "report_ms = 0 is outside of 1 to 60000"
        );
        let mut options = Options::for_policy("two-level");
        options.table.set("sync", "threshold");
        let (effective, _) = build(&options).expect("it is valid");
        assert_eq!(effective.table.get("report_ms"), Some(&50.into()));
    }
}
