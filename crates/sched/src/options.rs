//! What a host asks of a scheduler, at the start or when it changes the policy.

use crate::cost::CostModel;
use crate::options_error::{OptionsError, check_range};
use crate::policy_options::PolicyOptions;
use crate::predicted_runs::Prediction;
use crate::share::Shares;
use alloc::string::{String, ToString};
use alloc::sync::Arc;

/// The most requests a scheduler can be asked to queue: keeps indices within 32 bits and a
/// mistyped configuration from claiming all memory.
const QUEUED_MAX_LIMIT: u64 = 1 << 26;

/// How a scheduler shall work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A name of [`policies::NAMES`](crate::policies::NAMES).
    pub policy: String,
    /// Waiting requests beyond which new ones are rejected.
    pub queued_max: u32,
    /// Batches that may run at once.
    pub depth: u32,
    /// Wall clock (nanoseconds since 1970) minus the host's monotonic clock.
    pub wall_offset_ns: u64,
    /// Whether adjacent requests join into one batch; `None` leaves it to the policy.
    pub merge: Option<bool>,
    /// Bytes in a batch of several requests; a single larger request still runs.
    pub batch_bytes_max: u64,
    /// Requests in a batch.
    pub batch_requests_max: u32,
    /// Bytes of a file that lie with one forwarder before those of the next; 0 if all lie with
    /// this one. Requests with only stripes of other forwarders between them are adjacent.
    pub stripe_bytes: u64,
    /// What accesses cost the device.
    pub cost: CostModel,
    /// Whether the times of batches correct `cost`, within 1/16 to 16 times of it.
    pub estimate: bool,
    /// The prediction from traces of earlier runs, for `prediction = "recorded"`.
    pub prediction: Option<Arc<Prediction>>,
    /// The shares of applications and groups, for the policies that keep them.
    pub shares: Shares,
    /// The chosen policy's own options.
    pub table: PolicyOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: "fifo".to_string(),
            queued_max: 65_536,
            depth: 1,
            wall_offset_ns: 0,
            merge: None,
            batch_bytes_max: 8 << 20,
            batch_requests_max: 256,
            stripe_bytes: 0,
            cost: CostModel::default(),
            estimate: true,
            prediction: None,
            shares: Shares::default(),
            table: PolicyOptions::default(),
        }
    }
}

impl Options {
    /// The defaults with the policy called `name`.
    pub fn for_policy(name: &str) -> Options {
        Options {
            policy: name.to_string(),
            ..Options::default()
        }
    }

    /// Checks what does not depend on the policy.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        let requests_max = self.batch_requests_max.into();
        check_range("queued_max", self.queued_max.into(), 1, QUEUED_MAX_LIMIT)?;
        check_range("depth", self.depth.into(), 1, 1 << 16)?;
        check_range("batch_bytes_max", self.batch_bytes_max, 1, u64::MAX)?;
        check_range("batch_requests_max", requests_max, 1, 1 << 16)?;
        self.shares.check()
    }
}
