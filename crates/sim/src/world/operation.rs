//! An access of a process, or an operation of a whole application, that has ended.

/// An access, or an operation of a whole application, that has ended. Times are ns after the start
/// of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Number of the application.
    pub app: u32,
    /// Number of the process over all applications; the first one's for an operation of many.
    pub process: u32,
    /// When it was asked for.
    pub issued_ns: u64,
    /// When its answer was there.
    pub completed_ns: u64,
    /// Bytes.
    pub bytes: u64,
}
