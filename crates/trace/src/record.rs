//! One request with its times and result, and the header that holds for a whole trace.

use tidegate_sched::{AppId, Direction, FileId};

/// What holds for a whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Wall clock at the trace's time zero, ns since 1970; 0 if unknown.
    pub zero_wall_ns: u64,
    /// Forwarders over which the files were spread; 0 if unknown or none.
    pub forwarders: u16,
    /// Bytes of one stripe; 0 if unknown or none.
    pub stripe: u64,
    /// Where the requests come from.
    pub origin: Origin,
}

/// Where the requests of a trace come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A forwarder recorded them.
    #[default]
    Forwarder,
    /// They were imported from a Darshan DXT log: the accesses of one program, as it made them.
    Darshan,
    /// A simulation.
    Simulation,
}

impl Origin {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Forwarder => "forwarder",
            Origin::Darshan => "darshan",
            Origin::Simulation => "simulation",
        }
    }
}

/// One request: one access of one file, and what became of it. Times are ns since the trace's zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it arrived at the forwarder (an import: when the program began the access).
    pub arrival_ns: u64,
    /// When the client began the operation, by its own clock; may lie before the trace's zero.
    pub issue_ns: Option<i64>,
    /// The application.
    pub app: AppId,
    /// Number of the operation within its client; 0 if unknown.
    pub operation: u64,
    /// The file: its inode number (an import: Darshan's record id).
    pub file: FileId,
    /// The client: a hash of its id, the same on all forwarders (an import: the MPI rank).
    pub client: u32,
    /// The forwarder that served it.
    pub forwarder: Option<u16>,
    /// Read or write.
    pub direction: Direction,
    /// It appended: the offset is where the file ended.
    pub append: bool,
    /// It came in one message with the record before it (list I/O).
    pub listed: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Bytes done; fewer than asked for at the end of a file or after an error.
    pub done: u64,
    /// Why it failed, as Linux numbers it; 0 if it did not.
    pub errno: u16,
    /// From arrival until the back end was called, ns; None if it was not called, or unknown.
    pub wait_ns: Option<u64>,
    /// From then until the back end was done, ns.
    pub service_ns: Option<u64>,
    /// The shuffle that follows it in its collective operation, if the client predicted one.
    /// Requests of one application and operation with shuffles belong together, whichever clients
    /// they are from.
    pub shuffle: Option<Shuffle>,
}

/// The exchange of data between processes that follows a request of a collective operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shuffle {
    /// How long it takes, us.
    pub us: u32,
    /// The longest one of the operation, us.
    pub max_us: u32,
    /// How many aggregators of the operation have a longer one.
    pub rank: u16,
}

impl Shuffle {
    /// The shuffle of a request's hints; None if they have none.
    pub fn told(us: u32, max_us: u32, rank: u16) -> Option<Shuffle> {
        (us.max(max_us) > 0).then_some(Shuffle { us, max_us, rank })
    }
}

impl Record {
    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// From arrival until it was done, ns, if known.
    pub fn latency_ns(&self) -> Option<u64> {
        let (wait, service) = (self.wait_ns.unwrap_or(0), self.service_ns?);
        Some(wait.saturating_add(service))
    }
}
