//! Shares: what applications, and groups of applications, are promised of the whole system.
//!
//! The host passes [`Shares`] in [`Options`](crate::Options) at the start, or to
//! [`Scheduler::set_shares`](crate::Scheduler::set_shares) at run time. The policies `auto`, `dsfq`
//! and `two-level` keep all of a share, `edf` keeps latency targets. Rates count the service of all
//! forwarders together: clients report to each forwarder what the others served.

mod rate;

pub(crate) use rate::Service;
pub use rate::{RATE_MAX, Rate, RateError};

use crate::options_error::{OptionsError, check_range};
use crate::types::AppId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use rate::DEVICE_WHOLE;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1 << 16;

/// The longest latency target.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// How soon requests should be done, from arrival to completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Latency {
    /// Nanoseconds.
    pub ns: u64,
    /// The percentage of requests that should be so fast, 1 to 100.
    pub percentile: u8,
}

/// What one application, or one group, is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The proportion in which it divides with others what reservations leave; 1 to
    /// [`WEIGHT_MAX`].
    pub weight: u32,
    /// The reservation: the rate that it gets before others get more than theirs.
    pub min: Option<Rate>,
    /// The limit: the rate that it never exceeds.
    pub max: Option<Rate>,
    /// The latency target of requests within the reservation.
    pub latency: Option<Latency>,
}

impl Default for Share {
    fn default() -> Share {
        Share {
            weight: 1,
            min: None,
            max: None,
            latency: None,
        }
    }
}

/// An application's own share, and the group that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppShare {
    /// Its share of its group, or of the system if it has no group.
    pub share: Share,
    /// The group, as an index of [`Shares::groups`].
    pub group: Option<u32>,
}

/// The shares of all applications and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The number of forwarders, for rates in device time. At least 1.
    pub forwarders: u32,
    /// The shares of groups, such as users or projects. The applications of a group divide its
    /// share.
    pub groups: Vec<Share>,
    /// Applications with a share of their own, or in a group.
    pub apps: BTreeMap<AppId, AppShare>,
    /// The share of each application that is not listed.
    pub others: AppShare,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            forwarders: 1,
            groups: Vec::new(),
            apps: BTreeMap::new(),
            others: AppShare::default(),
        }
    }
}

impl Shares {
    /// The share of an application.
    pub fn of(&self, app: AppId) -> AppShare {
        self.apps.get(&app).copied().unwrap_or(self.others)
    }

    /// Whether nobody is promised anything.
    pub(crate) fn promise_nothing(&self) -> bool {
        self.groups.is_empty() && self.apps.is_empty() && self.others_are_crowd()
    }

    /// Whether somebody has a latency target.
    pub(crate) fn have_targets(&self) -> bool {
        self.all().any(|share| share.latency.is_some())
    }

    /// Whether the applications that are not listed are promised nothing but what all of them get.
    pub(crate) fn others_are_crowd(&self) -> bool {
        let Share {
            min, max, latency, ..
        } = self.others.share;
        let none = (min, max) == (None, None) && latency.is_none();
        none && self.others.group.is_none()
    }

    /// These shares, with all applications that are not listed in a group of their own behind the
    /// others, if they are promised nothing.
    pub(crate) fn with_crowd(&self) -> Shares {
        let mut shares = self.clone();
        shares.groups.push(Share {
            weight: self.others.share.weight,
            ..Share::default()
        });
        if self.others_are_crowd() {
            shares.others.group = Some(self.groups.len() as u32);
        }
        shares
    }

    /// All listed shares, groups first, and the default.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Share> {
        let apps = self.apps.values().map(|app| &app.share);
        let others = core::iter::once(&self.others.share);
        self.groups.iter().chain(apps).chain(others)
    }

    /// Refuses values that are out of range or contradict each other. Whether the system can keep
    /// all shares at once is not checked.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        check_range("forwarders", self.forwarders.into(), 1, 1 << 16)?;
        for app in self.apps.values().chain([&self.others]) {
            if let Some(group) = app.group {
                let groups = self.groups.len() as u64;
                check_range("group", group.into(), 0, groups.saturating_sub(1))?;
                if groups == 0 {
                    return Err(OptionsError::OutOfRange {
                        option: "group",
                        value: group.into(),
                        min: 0,
                        max: 0,
                    });
                }
            }
        }
        self.all().try_for_each(Share::check)
    }
}

impl Share {
    fn check(&self) -> Result<(), OptionsError> {
        check_range("weight", self.weight.into(), 1, WEIGHT_MAX.into())?;
        for (name, rate) in [("min", self.min), ("max", self.max)] {
            match rate {
                Some(Rate::Bytes(rate) | Rate::Operations(rate)) => {
                    check_range(name, rate, 1, RATE_MAX)?
                }
                Some(Rate::Device(part)) => check_range(name, part, 1, DEVICE_WHOLE)?,
                None => {}
            }
        }
        let least = match (self.min, self.max) {
            (Some(Rate::Bytes(min)), Some(Rate::Bytes(max)))
            | (Some(Rate::Operations(min)), Some(Rate::Operations(max)))
            | (Some(Rate::Device(min)), Some(Rate::Device(max))) => Some((min, max)),
            _ => None,
        };
        if let Some((min, max)) = least {
            check_range("max", max, min, RATE_MAX)?;
        }
        if let Some(latency) = self.latency {
            check_range("latency", latency.ns, 1000, LATENCY_NS_MAX)?;
            check_range("percentile", latency.percentile.into(), 1, 100)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Shares)) -> std::string::String {
        let mut shares = Shares::default();
        shares.groups.push(Share::default());
        shares.apps.insert(AppId(1), AppShare::default());
        assert_eq!(shares.check(), Ok(()));
        change(&mut shares);
        std::format!("{}", shares.check().expect_err("it makes no sense"))
    }

    fn app(shares: &mut Shares) -> &mut AppShare {
        shares.apps.get_mut(&AppId(1)).unwrap()
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        assert_eq!(
            refused(|it| app(it).share.weight = 0),
            "weight = 0 is outside of 1 to 65536"
        );
        assert_eq!(
            refused(|it| app(it).share.min = Some(Rate::Device(1001))),
            "min = 1001 is outside of 1 to 1000"
        );
        assert_eq!(
            refused(|it| it.groups[0].max = Some(Rate::Bytes(0))),
            "max = 0 is outside of 1 to 1125899906842624"
        );
        let crossed = Share {
            min: Some(Rate::Bytes(9)),
            max: Some(Rate::Bytes(8)),
            ..Share::default()
        };
        assert_eq!(
            refused(|it| it.others.share = crossed),
            "max = 8 is outside of 9 to 1125899906842624"
        );
        assert_eq!(
            refused(|it| app(it).group = Some(1)),
            "group = 1 is outside of 0 to 0"
        );
        assert_eq!(
            refused(|it| it.forwarders = 0),
            "forwarders = 0 is outside of 1 to 65536"
        );
        let soon = Latency {
            ns: 5,
            percentile: 95,
        };
        assert!(refused(|it| app(it).share.latency = Some(soon)).starts_with("latency = 5 is"));
    }
}
