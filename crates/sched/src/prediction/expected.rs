//! What a predictor says of a run that waits for more.

/// What a predictor expects of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Bytes that it will have.
    pub(crate) len: u64,
    /// Nanoseconds from now until then.
    pub(crate) wait_ns: u64,
}
