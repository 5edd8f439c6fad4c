//! A predictor's answer.

/// How a run will grow, if it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The bytes that it will have.
    pub(crate) len: u64,
    /// Nanoseconds from now until then.
    pub(crate) wait_ns: u64,
}
