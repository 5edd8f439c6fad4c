//! Later windows for what needs much: large operations give way to small ones that came after them,
//! for a time that is bounded by their own size.
//!
//! The policies `smallest-bottleneck` and `least-attained` share this block. Song's windows alone
//! (see `epochs`) serve all of an earlier window first. So a small operation that comes a second
//! after a checkpoint waits for the whole checkpoint. Here bytes that are ahead of a request move
//! its window: by [`LATER_MS_PER_MIB`] for each MiB, at most [`LATER_MS_MAX`]. At 10 ms for a MiB,
//! and a device of 100 MB/s, an operation is overtaken by what comes while it could have run alone,
//! and in two windows more. In one window the fewest bytes go first; equal ones rotate by
//! application, as in `window`.

use crate::epochs::Epochs;
use crate::options::Options;
use crate::policy::Bound;
use crate::policy_options::OptionSpec;
use crate::types::{Request, Time};

/// The default is the time of a MiB at a device of 100 MB/s.
pub(crate) const LATER_MS_PER_MIB: OptionSpec = OptionSpec::integer(
    "later_ms_per_mib",
    10,
    [0, 60_000],
    "for each MiB its window is later by so many milliseconds; 0: windows are those of the start. \
     Must be the same on all forwarders",
);

pub(crate) const LATER_MS_MAX: OptionSpec = OptionSpec::integer(
    "later_ms_max",
    30_000,
    [0, 3_600_000],
    "its window is later by at most so many milliseconds: what comes this long, two windows and 5 \
     ms after a request cannot run before it. Must be the same on all forwarders",
);

/// Windows that are later for what needs more.
pub(crate) struct Later {
    epochs: Epochs,
    ms_per_mib: u64,
    most_ns: u64,
}

impl Later {
    /// Windows by [`LATER_MS_PER_MIB`], [`LATER_MS_MAX`] and the options of [`Epochs`].
    pub(crate) fn new(options: &Options) -> Later {
        Later {
            ms_per_mib: options.table.integer(&LATER_MS_PER_MIB),
            most_ns: options.table.integer(&LATER_MS_MAX) * 1_000_000,
            epochs: Epochs::new(options),
        }
    }

    /// The window of a request that arrived then with so many bytes ahead.
    #[inline]
    pub(crate) fn window(&mut self, request: &Request, arrived: Time, bytes: u64) -> u64 {
        let later_ns = (u128::from(bytes) * u128::from(self.ms_per_mib) * 1_000_000) >> 20;
        let later_ns = later_ns.min(u128::from(self.most_ns)) as u64;
        self.epochs.later(request, arrived, later_ns)
    }

    /// The windows of starts.
    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// What comes so many windows later does not run before.
    pub(crate) fn bound(&self) -> Bound {
        self.epochs
            .bound(self.most_ns.div_ceil(self.epochs.width_ns()))
    }
}
