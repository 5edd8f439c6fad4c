//! Changes of policy and of share rules at run time. A change may be kept for the whole export, in
//! the hidden folder, or undone, so that the configuration holds again. Changes that other
//! forwarders have kept are taken over.

use super::kept::{Kept, News, Order, What};
use crate::config::{self, scheduler_options};
use std::collections::BTreeMap;
use tidegate_forward::share_rules::Rules;
use tidegate_forward::{Errno, Input, PolicyId};
use tidegate_sched::Options;
use tidegate_wire::Keep;
use tracing::warn;

/// Parses changes of policy and share rules, and has them written down.
pub struct PolicyChanges {
    /// Policy and share rules of the configuration.
    configured: (Options, Rules),
    /// The options of the last policy, for what a change leaves out.
    scheduler: Options,
    /// The width of a window, in ms, where a change of policy names none and the policy has no
    /// default of its own.
    window_ms: Option<u64>,
    kept: Kept,
    /// Changes that take effect once they are written down.
    coming: BTreeMap<PolicyId, Change>,
}

enum Change {
    Policy(Box<Options>),
    Shares(Rules),
}

type Refusal = (Errno, Box<str>);

impl PolicyChanges {
    /// `configured` are the configuration's options and rules, `scheduler` the effective options.
    pub fn new(
        configured: (Options, Rules),
        scheduler: Options,
        window_ms: Option<u64>,
        kept: Kept,
    ) -> PolicyChanges {
        PolicyChanges {
            configured,
            scheduler,
            window_ms,
            kept,
            coming: BTreeMap::new(),
        }
    }

    fn options(&self, text: &[u8], keep: Keep) -> Result<Options, Refusal> {
        if keep == Keep::Configured {
            return Ok(self.configured.0.clone());
        }
        let text = std::str::from_utf8(text);
        let text = text.map_err(|_| refusal("the policy's text is not UTF-8"))?;
        let options = scheduler_options(text, &self.scheduler, self.window_ms);
        options.map_err(|error| refusal(error.to_string()))
    }

    fn rules(&self, text: &[u8], keep: Keep) -> Result<Rules, Refusal> {
        if keep == Keep::Configured {
            return Ok(self.configured.1.clone());
        }
        let text = std::str::from_utf8(text);
        let text = text.map_err(|_| refusal("the rules are not UTF-8"))?;
        config::rules(text, "shares").map_err(|error| refusal(error.to_string()))
    }

    /// Parses a change of policy. Returns what to tell the forwarder, or None if the policy must be
    /// written down first.
    pub fn parse_policy(&mut self, policy: PolicyId, text: &[u8], keep: Keep) -> Option<Input> {
        match self.options(text, keep) {
            Ok(options) => {
                let written = String::from_utf8_lossy(text).into_owned();
                let change = Change::Policy(Box::new(options));
                self.change(policy, keep, What::Policy, written, change)
            }
            Err(refusal) => Some(refused_policy(policy, refusal)),
        }
    }

    /// Parses a change of share rules. Returns what to tell the forwarder, or None if the rules
    /// must be written down first.
    pub fn parse_shares(&mut self, policy: PolicyId, text: &[u8], keep: Keep) -> Option<Input> {
        match self.rules(text, keep) {
            Ok(rules) => {
                let written = rules.to_string();
                self.change(policy, keep, What::Shares, written, Change::Shares(rules))
            }
            Err(refusal) => Some(refused_shares(policy, refusal)),
        }
    }

    /// What this or another forwarder has written down since the last call, as input for the
    /// forwarder.
    pub fn turn(&mut self) -> Vec<Input> {
        let mut inputs = Vec::new();
        while let Some(news) = self.kept.news() {
            inputs.extend(self.input(news));
        }
        inputs
    }

    /// Makes a change. If the change is to be kept, it takes effect only once it is written down.
    fn change(
        &mut self,
        policy: PolicyId,
        keep: Keep,
        what: What,
        text: String,
        change: Change,
    ) -> Option<Input> {
        let text = match keep {
            Keep::Run => return Some(self.changed(policy, change)),
            Keep::Saved => Some(text),
            Keep::Configured => None,
        };
        self.coming.insert(policy, change);
        self.kept.order(Order { policy, what, text });
        None
    }

    fn changed(&mut self, policy: PolicyId, change: Change) -> Input {
        match change {
            Change::Policy(options) => {
                self.scheduler = (*options).clone();
                let options = Ok(*options);
                Input::PolicyParsed { policy, options }
            }
            Change::Shares(rules) => {
                let rules = Ok(rules);
                Input::SharesParsed { policy, rules }
            }
        }
    }

    fn input(&mut self, news: News) -> Option<Input> {
        match news {
            News::Written { policy, result } => {
                let change = self.coming.remove(&policy);
                let change = change.expect("what was ordered is known until it is answered");
                Some(match (result, change) {
                    (Ok(()), change) => self.changed(policy, change),
                    (Err((errno, what)), Change::Policy(_)) => {
                        refused_policy(policy, (errno, what.into()))
                    }
                    (Err((errno, what)), Change::Shares(_)) => {
                        refused_shares(policy, (errno, what.into()))
                    }
                })
            }
            News::Found { what, text } => self.found(what, text.as_deref()),
            News::Doubled(other) => Some(Input::Doubled(other)),
            News::Forwarders(listed) => Some(Input::Forwarders(listed)),
        }
    }

    /// Takes over what another forwarder has written down or removed.
    fn found(&mut self, what: What, text: Option<&str>) -> Option<Input> {
        let keep = match text {
            Some(_) => Keep::Saved,
            None => Keep::Configured,
        };
        let text = text.unwrap_or_default().as_bytes();
        let input = match what {
            What::Policy => self.options(text, keep).map(Input::PolicyFound),
            What::Shares => self.rules(text, keep).map(Input::SharesFound),
        };
        match input {
            Ok(input) => {
                if let Input::PolicyFound(options) = &input {
                    self.scheduler = options.clone();
                }
                Some(input)
            }
            Err((_, error)) => {
                warn!(
                    file = what.file(),
                    %error,
                    "what is kept for the export cannot be used here"
                );
                None
            }
        }
    }
}

fn refusal(what: impl Into<Box<str>>) -> Refusal {
    (Errno::EINVAL, what.into())
}

/// A policy that was refused. The forwarder logs the reason.
fn refused_policy(policy: PolicyId, refusal: Refusal) -> Input {
    let options = Err(refusal);
    Input::PolicyParsed { policy, options }
}

fn refused_shares(policy: PolicyId, refusal: Refusal) -> Input {
    let rules = Err(refusal);
    Input::SharesParsed { policy, rules }
}
