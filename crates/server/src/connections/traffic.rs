//! Counts of the system calls and copies of the threads that serve connections. `tidegate stat`
//! shows them, and a test compares them with the table in docs/data-path.md.

/// Counts since the start. One thread alone changes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls of `epoll_wait`.
    pub waits: u64,
    /// Those of them that ended because a thread of this process woke the caller, such as a storage
    /// thread.
    pub wakes: u64,
    /// Receive calls that returned bytes, or the end of the stream.
    pub receives: u64,
    /// Receive calls that found the socket empty.
    pub receives_empty: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Send calls that sent bytes.
    pub sends: u64,
    /// Send calls that found no room in the socket.
    pub sends_blocked: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Those of the sent bytes that went out as pages of a file, without a copy by this process.
    pub spliced_bytes: u64,
    /// Bytes of payload that were copied from one buffer of this process to another.
    pub copied_bytes: u64,
}

impl Traffic {
    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Traffic) {
        self.waits += other.waits;
        self.wakes += other.wakes;
        self.receives += other.receives;
        self.receives_empty += other.receives_empty;
        self.received_bytes += other.received_bytes;
        self.sends += other.sends;
        self.sends_blocked += other.sends_blocked;
        self.sent_bytes += other.sent_bytes;
        self.spliced_bytes += other.spliced_bytes;
        self.copied_bytes += other.copied_bytes;
    }
}
