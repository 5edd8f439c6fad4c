//! The two-level scheduler of the position paper of vPFS: shares above, as in `dsfq`, and deadlines
//! below, as in `edf`.
//!
//! The rules are at the head of `dsfq`, the control of the depth is in `depth`.

use super::dsfq::{Below, CREDIT_MS, Dsfq, LOCAL_MIN_PERCENT, REPORT_MS, SYNC};
use super::edf::{self, FEEDBACK, LATENCY_MS};
use crate::policy::PolicySpec;
use alloc::boxed::Box;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "two-level",
    options: &[
        CREDIT_MS,
        FEEDBACK,
        LATENCY_MS,
        LOCAL_MIN_PERCENT,
        REPORT_MS,
        SYNC,
    ],
    merges: false,
    keeps_shares: true,
    make: |options| {
        let default = edf::default_latency(options);
        let feedback = edf::feedback(options, default);
        Ok(Box::new(Dsfq::new(
            options,
            Some(Below { default, feedback }),
        )))
    },
};
