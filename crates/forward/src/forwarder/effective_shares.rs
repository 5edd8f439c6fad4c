//! The effective policy and shares, and their changes at run time.
//!
//! While there are rules of shares, the effective policy must be one that keeps shares. If the
//! operator asked for another policy, the forwarder remembers it, and uses it again when the last
//! rule is gone.

use super::Forwarder;
use super::applications::Application;
use super::receive::Key;
use crate::back_end_files::Errno;
use crate::host::{Config, Output, PolicyId};
use crate::share_rules::{Identity, Rules};
use alloc::boxed::Box;
use alloc::format;
use tidegate_sched::{AppId, Options, Shares, policies};
use tidegate_wire::{EXTENTS_MAX, Op, Outcome, Status};

/// The policy that is used where there are shares and the policy asked for does not keep them.
const SHARING: &str = "two-level";

/// The policy and rules that operators asked for.
pub(super) struct EffectiveShares {
    /// The scheduler's options as an operator or the configuration asked for them.
    plain: Options,
    pub(super) rules: Rules,
    /// When an operator set the rules, ns since 1970, by the operator's clock; 0 for the rules of
    /// the start.
    pub(super) set_at: u64,
    shares: Shares,
    /// The scheduler does not know yet what became of some applications' shares.
    changed: bool,
    /// The change of rules that the host is reading or storing, and the time that it is set at.
    coming: Option<(PolicyId, u64)>,
}

impl EffectiveShares {
    pub(super) fn new(config: &Config) -> EffectiveShares {
        let forwarders = u32::from(config.layout.seats);
        EffectiveShares {
            plain: Options {
                stripe_bytes: config.layout.stripe,
                ..config.scheduler.clone()
            },
            // Without rules those hold that the host gave by the applications' ids.
            shares: match config.shares.is_empty() {
                true => Shares {
                    forwarders,
                    ..config.scheduler.shares.clone()
                },
                false => config.shares.shares(forwarders),
            },
            rules: config.shares.clone(),
            set_at: 0,
            changed: false,
            coming: None,
        }
    }

    /// The policy that was asked for.
    pub(super) fn plain_policy(&self) -> &str {
        &self.plain.policy
    }

    /// Rule and group that an application's share follows from.
    pub(super) fn origin(&self, of: &Application) -> (Option<&str>, Option<&str>) {
        let of = identity(of);
        let rule = self.rules.rule_of(&of).map(|rule| rule.name.as_str());
        let share = self.rules.share_of(&of);
        let group = share.and_then(|share| self.rules.groups.get(share.group? as usize));
        (rule, group.map(|group| group.name.as_str()))
    }

    /// The options that the scheduler gets.
    pub(super) fn options(&self) -> Options {
        effective_options(&self.plain, &self.rules, &self.shares)
    }
}

fn effective_options(plain: &Options, rules: &Rules, shares: &Shares) -> Options {
    let mut options = plain.clone();
    let keeps_shares = policies::find(&options.policy).is_some_and(|policy| policy.keeps_shares);
    if !rules.is_empty() && !keeps_shares {
        options.policy = SHARING.into();
        // What is the other policy's own means nothing to this one.
        options.table = Default::default();
    }
    options.shares = shares.clone();
    // The scheduler's queue must take the largest request, or that would never be served.
    options.queued_max = options.queued_max.max(EXTENTS_MAX as u32);
    options
}

impl Forwarder {
    pub(super) fn set_policy(&mut self, key: Key) {
        let Some(policy) = self.asks(key) else {
            return;
        };
        let Some(Op::SetPolicy { text, keep }) = self.requests[key].op.take() else {
            unreachable!("routed by its operation");
        };
        self.outputs
            .push_back(Output::ParsePolicy { policy, text, keep });
    }

    pub(super) fn set_shares(&mut self, key: Key) {
        let Some(policy) = self.asks(key) else {
            return;
        };
        let Some(Op::SetShares {
            text,
            keep,
            after,
            at,
        }) = self.requests[key].op.take()
        else {
            unreachable!("routed by its operation");
        };
        // One after another: what is in force and what is written down are then the same, and a
        // change that was made from older rules cannot undo one that it does not know.
        let refused = match self.shares.coming {
            Some(_) => Some((Errno::EBUSY, "another one is being written down")),
            None if self.shares.set_at > after => Some((Errno::ESTALE, "others were set since")),
            None => None,
        };
        if let Some((errno, reason)) = refused {
            self.policies.remove(&policy);
            self.log(format!("a change of shares was refused: {reason}"));
            return self.answer(key, Err(Status::Errno(errno.0)));
        }
        self.shares.coming = Some((policy, at));
        self.outputs
            .push_back(Output::ParseShares { policy, text, keep });
    }

    /// What everybody is promised now.
    #[cfg(test)]
    pub(crate) fn shares(&self) -> &Shares {
        &self.scheduler.options().shares
    }

    /// The number under which the host shall read a request's text; None if the client may not
    /// change the forwarder.
    fn asks(&mut self, key: Key) -> Option<PolicyId> {
        if !self.administers(key) {
            self.answer(key, Err(Status::Errno(Errno::EPERM.0)));
            return None;
        }
        self.policy_serial += 1;
        let policy = PolicyId(self.policy_serial);
        self.policies.insert(policy, key);
        Some(policy)
    }

    pub(super) fn policy_parsed(
        &mut self,
        policy: PolicyId,
        options: Result<Options, (Errno, Box<str>)>,
    ) {
        let Some(key) = self.policies.remove(&policy) else {
            return;
        };
        let set = options.and_then(|plain| {
            let set = self.set_plain(plain);
            set.map_err(|reason| (Errno::EINVAL, reason))
        });
        match set {
            Ok(()) => {
                self.log(format!("the policy is now {}", self.effective_policy()));
                self.answer(key, Ok(Outcome::Done));
            }
            Err((errno, reason)) => {
                self.log(format!("a change of policy was refused: {reason}"));
                self.answer(key, Err(Status::Errno(errno.0)));
            }
        }
        self.unpark();
    }

    pub(super) fn shares_parsed(
        &mut self,
        policy: PolicyId,
        rules: Result<Rules, (Errno, Box<str>)>,
    ) {
        let Some(key) = self.policies.remove(&policy) else {
            return;
        };
        let coming = self.shares.coming.take_if(|(coming, _)| *coming == policy);
        let at = coming.map_or(0, |(_, at)| at);
        let set = rules.and_then(|rules| {
            let set = self.set_rules(rules, at);
            set.map_err(|reason| (Errno::EINVAL, reason))
        });
        match set {
            Ok(()) => {
                let count = self.shares.rules.len();
                let policy = self.effective_policy();
                self.log(format!("{count} rules of shares now, policy {policy}"));
                self.answer(key, Ok(Outcome::Done));
            }
            Err((errno, reason)) => {
                self.log(format!("a change of shares was refused: {reason}"));
                self.answer(key, Err(Status::Errno(errno.0)));
            }
        }
        self.unpark();
    }

    /// Takes over a policy that another forwarder has stored in the export.
    pub(super) fn policy_found(&mut self, plain: Options) {
        match self.set_plain(plain) {
            Ok(()) => self.log(format!(
                "the policy is now {}, as is kept for the export",
                self.effective_policy()
            )),
            Err(reason) => self.log(format!("the policy kept for the export: {reason}")),
        }
        self.unpark();
    }

    /// Takes over rules that another forwarder has stored in the export. It is unknown when they
    /// were set, so they count as no newer than the rules before.
    pub(super) fn shares_found(&mut self, rules: Rules) {
        match self.set_rules(rules, self.shares.set_at) {
            Ok(()) => self.log(format!(
                "{} rules of shares now, policy {}, as is kept for the export",
                self.shares.rules.len(),
                self.effective_policy()
            )),
            Err(reason) => self.log(format!("the rules kept for the export: {reason}")),
        }
        self.unpark();
    }

    /// Makes a policy effective; on an error everything stays as it was.
    fn set_plain(&mut self, plain: Options) -> Result<(), Box<str>> {
        let plain = Options {
            stripe_bytes: self.config.layout.stripe,
            ..plain
        };
        let options = effective_options(&plain, &self.shares.rules, &self.shares.shares);
        self.schedule_by(&options)?;
        self.shares.plain = plain;
        Ok(())
    }

    /// Makes rules effective; on an error everything stays as it was.
    fn set_rules(&mut self, rules: Rules, at: u64) -> Result<(), Box<str>> {
        let mut shares = rules.shares(self.shares.shares.forwarders);
        for (app, application) in self.applications.iter() {
            if let Some(share) = rules.share_of(&identity(application)) {
                shares.apps.insert(AppId(app), share);
            }
        }
        let options = effective_options(&self.shares.plain, &rules, &shares);
        if options.policy == self.scheduler.policy() {
            let set = self.scheduler.set_shares(self.now, &shares);
            set.map_err(|error| Box::from(format!("{error}")))?;
        } else {
            self.schedule_by(&options)?;
        }
        self.shares.set_at = at;
        self.shares.rules = rules;
        self.shares.shares = shares;
        self.shares.changed = false;
        Ok(())
    }

    fn schedule_by(&mut self, options: &Options) -> Result<(), Box<str>> {
        let set = self.scheduler.set_policy(self.now, options);
        set.map_err(|error| Box::from(format!("{error}")))?;
        self.queued_max = options.queued_max;
        Ok(())
    }

    /// Sets the share of an application that has become known or unknown.
    pub(super) fn share_of(&mut self, app: u64) {
        if self.shares.rules.is_empty() {
            return;
        }
        let known = self.applications.get(app).map(identity);
        let share = known.and_then(|known| self.shares.rules.share_of(&known));
        let before = self.shares.shares.apps.get(&AppId(app)).copied();
        if share == before {
            return;
        }
        match share {
            Some(share) => self.shares.shares.apps.insert(AppId(app), share),
            None => self.shares.shares.apps.remove(&AppId(app)),
        };
        self.shares.changed = true;
    }

    /// Tells the scheduler the shares that changed since it was told last: once for all that were
    /// named meanwhile, because it takes all shares anew.
    pub(super) fn tell_shares(&mut self) {
        if core::mem::take(&mut self.shares.changed) {
            let set = self.scheduler.set_shares(self.now, &self.shares.shares);
            set.expect("each rule was checked when it came");
        }
    }

    /// The effective policy in words, with the policy that was asked for if that is another one.
    pub fn effective_policy(&self) -> Box<str> {
        let (plain, policy) = (self.shares.plain_policy(), self.scheduler.policy());
        match plain == policy {
            true => plain.into(),
            false => format!("{policy}, in the place of {plain} while there are rules").into(),
        }
    }
}

fn identity(application: &Application) -> Identity<'_> {
    Identity {
        name: &application.name,
        uid: application.uid,
        job: &application.job,
        project: &application.project,
    }
}
