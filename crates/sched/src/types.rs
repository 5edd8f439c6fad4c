//! The words that a host and the scheduler exchange: times, ids, requests, inputs and outputs.

use core::fmt;
use core::ops::Add;

/// A point of the host's monotonic clock, in nanoseconds. Its zero is the host's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time `ns` nanoseconds later, or the last representable one.
    pub const fn saturating_add(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to this time; 0 when `earlier` is later.
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Time {
    type Output = Time;

    /// Saturates, because a deadline beyond the end of time is simply never reached.
    fn add(self, ns: u64) -> Time {
        self.saturating_add(ns)
    }
}

/// Names one request between host and scheduler. The host chooses it; it is unique among the
/// requests that the host has handed in and not yet reported finished or cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names one file; two requests can conflict only when they carry the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Names one application: the hash of its name, or [`AppId::of_user`] where forwarders tell users
/// apart. The same on every client and forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u64);

impl AppId {
    /// The id of the application called `name`: FNV-1a over its bytes, then [`mix64`], because
    /// FNV alone leaves the high bits of short names alike.
    pub const fn from_name(name: &str) -> AppId {
        let bytes = name.as_bytes();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            i += 1;
        }
        AppId(mix64(hash))
    }

    /// The id under which the application with this id counts as an application of a user. Ids of
    /// different users differ, whatever ids they start from. Ids of one user are as good as 32 bits
    /// of hash.
    pub const fn of_user(self, uid: u32) -> AppId {
        let low = (self.0 ^ (self.0 >> 32)) as u32;
        let low = if low == 0 { 1 } else { low };
        AppId(mix64(OF_USERS ^ ((uid as u64) << 32 | low as u64)))
    }

    /// The id under which everything counts that a user does without naming an application.
    pub const fn unnamed_of(uid: u32) -> AppId {
        AppId(mix64(OF_USERS ^ ((uid as u64) << 32)))
    }

    /// The user of whom this is an application called `name`, if it is one: the inverse of
    /// [`AppId::of_user`].
    pub const fn user_of(self, name: &str) -> Option<u32> {
        let uid = ((unmix64(self.0) ^ OF_USERS) >> 32) as u32;
        match AppId::from_name(name).of_user(uid).0 == self.0 {
            true => Some(uid),
            false => None,
        }
    }
}

/// A fixed bijection of 64-bit numbers in which every input bit changes about half of the output
/// bits (the finaliser of MurmurHash3). Part of the interface: forwarders must agree on it.
pub const fn mix64(value: u64) -> u64 {
    let mut x = value;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Keeps ids of users apart from 0, the id of what has none.
const OF_USERS: u64 = 0x7469_6465_6761_7465;

/// The inverse of [`mix64`].
const fn unmix64(value: u64) -> u64 {
    let mut x = value;
    x = (x ^ (x >> 33)).wrapping_mul(0x9cb4_b2f8_1293_37db);
    x = (x ^ (x >> 33)).wrapping_mul(0x4f74_430c_22a5_4005);
    x ^ (x >> 33)
}

/// Whether a request reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Bytes go from the file to the client.
    #[default]
    Read,
    /// Bytes go to the file, or the file as a whole changes.
    Write,
}

/// One access of one file, with the hints its client sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The host's name for this request.
    pub id: RequestId,
    /// The application that asked.
    pub app: AppId,
    /// The file it concerns.
    pub file: FileId,
    /// Read or write.
    pub direction: Direction,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. An operation on the whole file is a write from 0 with `u64::MAX`; a range
    /// that would pass `u64::MAX` ends there.
    pub len: u64,
    /// The client's wall clock at the start of the operation, in nanoseconds since 1970.
    pub stamp_ns: u64,
    /// The highest epoch the client has seen in a reply.
    pub epoch_seen: u64,
    /// The number of the operation within its client.
    pub operation: u64,
    /// All bytes of the operation, over all forwarders.
    pub operation_bytes: u64,
    /// The most bytes of the operation on one forwarder.
    pub operation_bytes_max: u64,
    /// When the request should be done, if the client said so.
    pub deadline: Option<Time>,
    /// Work that follows the request before its operation is done, in microseconds.
    pub shuffle_us: u32,
    /// The longest shuffle of the operation's requests, over all forwarders, in microseconds; a
    /// smaller one than `shuffle_us` counts as that.
    pub shuffle_max_us: u32,
    /// How many aggregators of the operation have a longer shuffle.
    pub shuffle_rank: u16,
    /// The data server, or other queue of the host, that the request goes to; for policies that
    /// serve queues.
    pub queue: u32,
    /// Device time that other forwarders charged this application since its last request here.
    pub charged_elsewhere_ns: u64,
    /// Device time that this forwarder charged it in the same time, as far as the client knows.
    /// With it service elsewhere is a ratio. A client's first request here reports neither.
    pub charged_here_ns: u64,
    /// Bytes and requests that other forwarders served this application since then.
    pub bytes_elsewhere: u64,
    /// See `bytes_elsewhere`.
    pub operations_elsewhere: u32,
    /// Time since the client's last request here, in milliseconds.
    pub away_ms: u16,
    /// Whether the request may share a batch with others. Whole-file operations may not.
    pub mergeable: bool,
}

impl Request {
    /// A mergeable request without hints; set the other fields as needed.
    pub fn new(
        id: RequestId,
        app: AppId,
        file: FileId,
        direction: Direction,
        offset: u64,
        len: u64,
    ) -> Request {
        Request {
            id,
            app,
            file,
            direction,
            offset,
            len,
            mergeable: true,
            ..Request::default()
        }
    }

    /// One past the last byte.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Whether the two must not run at the same time: same file, common bytes, one writes.
    pub fn conflicts_with(&self, other: &Request) -> bool {
        self.file == other.file
            && (self.direction == Direction::Write || other.direction == Direction::Write)
            && self.offset.max(other.offset) < self.end().min(other.end())
    }
}

/// What happened outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A client asked for this access.
    Arrived(Request),
    /// The back end finished this request, whether or not it succeeded.
    Finished(RequestId),
    /// Nobody waits for this request any more. If it is still queued it will never be dispatched
    /// and its id is free at once; if it runs, nothing changes and `Finished` must still follow.
    Cancelled(RequestId),
    /// Another forwarder reports what it served an application.
    PeerService(ServiceReport),
}

/// What one forwarder served an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceReport {
    /// The application.
    pub app: AppId,
    /// Device time, nanoseconds.
    pub device_ns: u64,
    /// Bytes.
    pub bytes: u64,
    /// Requests.
    pub operations: u64,
}

/// What the host should do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Perform the batch that was put in `into`, as one call to the back end, and report every
    /// request in it as [`Input::Finished`].
    Dispatch,
    /// Send this report to the other forwarders, whose hosts hand it in as [`Input::PeerService`];
    /// then ask again. Only from a policy that is configured to report (`report_ms`).
    Broadcast(ServiceReport),
    /// Nothing to do before this time, which is later than `now`, unless an input arrives first.
    WaitUntil(Time),
    /// Nothing to do until an input arrives.
    Idle,
}

/// Why an input was refused. The scheduler is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejected {
    /// `queued_max` requests wait already; the host pushes back on its clients.
    QueueFull,
    /// A request with this id has not finished yet.
    IdInUse(RequestId),
    /// No request with this id is queued or running.
    UnknownId(RequestId),
    /// Reported finished, but it was never dispatched.
    NotRunning(RequestId),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejected::QueueFull => write!(f, "the queue is full"),
            Rejected::IdInUse(id) => write!(f, "request id {} is already in use", id.0),
            Rejected::UnknownId(id) => write!(f, "there is no request with id {}", id.0),
            Rejected::NotRunning(id) => write!(f, "request {} finished but never ran", id.0),
        }
    }
}

impl core::error::Error for Rejected {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_ids_never_change() {
        // Clients and forwarders of different versions must agree, so the values are pinned.
        assert_eq!(AppId::from_name(""), AppId(mix64(0xcbf2_9ce4_8422_2325)));
        assert_eq!(AppId::from_name("a"), AppId(mix64(0xaf63_dc4c_8601_ec8c)));
        assert_ne!(AppId::from_name("job.1"), AppId::from_name("job.2"));
    }

    #[test]
    fn an_application_of_a_user_has_his_id_in_its_own() {
        for (name, uid) in [("", 0), ("a", 7), ("job.1", 1000), ("job.1", u32::MAX)] {
            let id = AppId::from_name(name).of_user(uid);
            assert_eq!((unmix64(id.0) ^ OF_USERS) >> 32, u64::from(uid));
            assert_eq!(id.user_of(name), Some(uid));
            assert_eq!(id.user_of("another"), None);
            assert_ne!(id, AppId::unnamed_of(uid));
        }
        assert_ne!(AppId(0).of_user(7), AppId::unnamed_of(7));
        assert_eq!(AppId::from_name("a").user_of("a"), None);
    }

    #[test]
    fn whole_file_writes_conflict_with_everything_in_the_file() {
        let app = AppId(0);
        let whole = Request::new(RequestId(1), app, FileId(1), Direction::Write, 0, u64::MAX);
        let last = Request::new(
            RequestId(2),
            app,
            FileId(1),
            Direction::Read,
            u64::MAX - 2,
            9,
        );
        assert!(whole.conflicts_with(&last));
        assert!(!whole.conflicts_with(&Request {
            file: FileId(2),
            ..last
        }));
        assert!(!whole.conflicts_with(&Request { len: 0, ..last }));
        assert!(!last.conflicts_with(&last));
    }
}
