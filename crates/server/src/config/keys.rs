//! The table of configuration keys: a row for each gives its name, type, default, range, flag and
//! meaning. All else follows from it: the fields, the reader, the flags of `tidegate serve` and
//! `tidegate up`, and the reference in docs/configuration.md.

use super::Sandbox;
use super::key::{Key, Keys, describe, keys};
use super::row::{Command, must, or};
use super::source::Section;
use super::value::{Job, Name, Nanoseconds};
use super::{
    Address, ConfigError, Durability, Engine, Faults, Io, Keeper, LogFormat, LogLevel, Munge,
};
use std::path::PathBuf;
use tidegate_device::DeviceOptions;
use tidegate_forward::CLIENTS_MAX;
use tidegate_forward::share_rules::{Rules, User};
use tidegate_net::Encryption;
use tidegate_sched::{Options, Rate, WEIGHT_MAX};
use tidegate_wire::{PAYLOAD_LIMIT, Pipelining};

const SERVE: &[Command] = &[Command::Serve];
const UP: &[Command] = &[Command::Up];
const BOTH: &[Command] = &[Command::Serve, Command::Up];

/// The longest time that is counted in milliseconds: a day.
const DAY_MS: u64 = 86_400_000;

keys! {
    /// A forwarder's configuration.
    #[derive(Clone, Debug)]
    pub struct Config in "" {
        /// Directory whose files are served. Nothing above it, and no other file system mounted
        /// below it, can be reached. It must exist. A folder `.tidegate` is made in it
        export: PathBuf = must("name the directory to export").flag("--export DIR", SERVE);

        /// Address to listen on: `unix:/PATH`, `tcp:HOST:PORT` or `fabric:PROVIDER:HOST:PORT`.
        /// As many as wanted; [libfabric](#libfabric). A socket file that nobody listens on is
        /// replaced; one of root's is open to all users, who prove who they are by their
        /// credentials, another one to its user only
        listen: Vec<Address> =
            must("say where to listen, such as [\"unix:/run/tidegate/0.sock\"]")
            .flag("--listen ADDRESS", SERVE);

        /// Others than root and the forwarder's user may write to the directory of a Unix socket of
        /// `listen` although it has no sticky bit, or own it. They can put their own socket there,
        /// and clients would believe it. Where this is false, a forwarder does not start so
        unguarded_sockets: bool = or(false);

        /// Addresses at which clients reach this forwarder, at most 16. They are written to
        /// `.tidegate/forwarder.N` at the start, where the other forwarders read them and tell
        /// clients. Needed where clients know the node by another name or network; `0.0.0.0` and
        /// `[::]` in `listen` become the node's host name
        advertise: Vec<Address> = or(Vec::new()).default_words("what `listen` says");

        /// Index of this forwarder in the layout, from 0. Below `seats`
        forwarder: u16 = or(0).range(0, 4095).flag("--forwarder I", SERVE);

        /// How many forwarders share the export. The first forwarder records it, with `stripe`,
        /// in `.tidegate/layout`; one that was told something else does not start. Each seat
        /// takes 16 MiB for its reply table; clients beyond the first 256 that change something
        /// take 4 KiB more for each four changes that they have unanswered at once, and give it
        /// back when they have ended
        seats: u16 = or(1).range(1, 4096).flag("--seats N", SERVE);

        /// Bytes of a file that one forwarder serves before the next has its turn, such as
        /// 64KiB. A power of two
        stripe: u64 = or(1 << 20).range(4096, 1 << 40).unit("bytes").flag("--stripe BYTES", BOTH);

        /// File with the site's secret, needed for TCP: random, at least 16 bytes without white
        /// space at the end, readable by its owner only, who is root or the user of the process.
        /// Both ends of a connection prove by it who they are
        secret_file: Option<PathBuf> = or(None).flag("--secret-file FILE", SERVE);

        /// File with the secret that was valid before, while a site changes it: clients prove
        /// either. It need not be there. Both files are read again when they change
        old_secret_file: Option<PathBuf> = or(None);

        /// File with the names of derived secrets that were taken back, one a line; `#` begins a
        /// comment. They are void from then on, and so are the tickets that they gave. Only its
        /// owner may read it, as with a secret. It need not be there, and is read again when it
        /// changes
        revoked_file: Option<PathBuf> = or(None);

        /// How what clients of other nodes and this forwarder send each other is protected, at
        /// least: encrypted and authenticated (`on`), only authenticated (`integrity`), or not at
        /// all once both have proved who they are (`off`, for closed networks). If a client asks
        /// for more, it gets it
        encryption: Encryption = or(Encryption::On);

        /// Whether ordinary users of other nodes that have this cluster's munge key get tickets by
        /// it (`on`), at addresses of TCP: then they need neither a secret nor a mount of root's
        /// ([munge](#munge)). Needs `secret_file`, and munged on this node
        munge: Munge = or(Munge::Off).flag("--munge on|off", SERVE);

        /// Socket of this node's munged, if it is not the one that MUNGE's library knows
        munge_socket: Option<PathBuf> = or(None);

        /// TCP without a secret: whoever can connect reads and writes, as any user that he names.
        /// For closed test networks
        insecure: bool = or(false).flag("--insecure", SERVE);

        /// Whether to stand in for forwarders that died. Refused at start where `seats` is above
        /// 1 and byte locks do not work between nodes (Lustre needs the mount option `flock`; NFS
        /// must not have `nolock` or `local_lock`; or etcd keeps the seats, see `keeper`)
        fail_over: bool = or(true).flag("--fail-over true|false", BOTH);

        /// File for the process id, written when the forwarder listens and removed when it ends
        /// in order. The forwarder keeps it locked (fcntl), and refuses one that another process
        /// has locked, or a link. `down` signals the process that has the lock, whatever the text
        /// says
        pid_file: Option<PathBuf> = or(None);

        /// Whether the kernel holds the forwarder to what it needs: the export, the directories of
        /// sockets, secrets, pid file and trace, no programs, no other processes (`on`), as far as
        /// the kernel can; or to what its user may do (`off`). The log says at the start what holds
        /// ([security.md](security.md#sandbox))
        sandbox: Sandbox = or(Sandbox::On).flag("--sandbox on|off", BOTH);

        /// Storage threads: the calls to the back end that run at once
        threads: u32 = or(8).range(1, 1024).flag("--threads N", UP);

        /// Threads that serve connections. By default 1 on machines with up to 7 cores, else a
        /// quarter of the cores, at most 8. The first of them has the scheduler too; what the
        /// others receive it gets in batches. More of them help where sockets carry more payload
        /// than one core copies; with one, a request has one thread less to wake
        /// ([Connections](#connections))
        reactors: u32 = or(default_reactors()).range(1, 64).default_words("by the number of cores")
            .flag("--reactors N", UP);

        /// Largest payload of one message. What is longer is sent in pieces
        payload_max: u32 = or(1 << 20).range(4096, PAYLOAD_LIMIT.into()).unit("bytes");

        /// Whether payload of clients on the same node (Unix sockets) stays in memory that they
        /// offer, where files are read and written in place. It counts for the client, not for
        /// `pool_bytes`
        shared_memory: bool = or(true).flag("--shared-memory true|false", UP);

        /// What may be under way at once of one read or write that is longer than a chunk, at
        /// most. Clients ask for one of them, as told below; a forwarder that allows less grants
        /// less
        pipelining: Pipelining = or(Pipelining::default());

        /// Outstanding payload of all clients together; at least `payload_max`, rounded up to a
        /// power of two. Each payload counts the memory of its slot, a power of two of at least
        /// 4 KiB; slots kept for later are within the bound too. When it is full, further
        /// requests wait in their sockets; those of an application that has much of it wait
        /// before that, as told below. `tidegate bench memory --check` shows that a forwarder
        /// stays within this and 64 MiB
        pool_bytes: u64 = or(256 << 20).range(4096, 1 << 40).unit("bytes");

        /// Requests that one client may have unanswered. A client that exceeds them is cut off
        credits: u32 = or(32).range(1, 4096);

        /// Clients at once; one more is refused with EUSERS. A mount is one client, whatever the
        /// number of its programs; a program with the short-cut is another. Each takes a
        /// descriptor: the forwarder raises its limit of open files to the hard limit, and says
        /// at start if that has no room for so many ([Connections](#connections))
        sessions_max: u32 = or(4096).range(1, CLIENTS_MAX as u64);

        /// Clients of one user at once; one more of his is refused with EUSERS. 0: a quarter of
        /// `sessions_max`. The mounts whose secrets have limits and the same name have as many
        /// together, and a quarter of `sessions_max` at least ([Limits of a
        /// mount](#limits-of-a-mount)); a sixteenth of `sessions_max` is left to such mounts. It is
        /// not for root's clients and those that prove the role site, operator, or mount without
        /// limits, to which a sixteenth is left besides
        sessions_of_user_max: u32 = or(0).range(0, CLIENTS_MAX as u64);

        /// How long open files and locks of a client outlive its last word. An idle client says
        /// something every third of it
        lease_ms: u32 = or(60_000).range(100, DAY_MS).unit("ms");

        /// How long a seat that changed hands waits for its clients to reclaim their locks before
        /// it grants new ones; less when all have
        grace_ms: u32 = or(20_000).range(0, DAY_MS).unit("ms");

        /// How late clients may see what is changed in the directory beside the forwarders, which
        /// lend them names and attributes for so long ([semantics.md](semantics.md#loans)). Changes
        /// by clients are seen at once. 0: nothing is lent. It takes effect with `seats = 1` only,
        /// and is at most half of `lease_ms` and, unless that is 0, of `grace_ms`
        outside_ms: u32 = or(1000).range(0, 10_000).unit("ms").flag("--outside-ms MS", BOTH);

        /// How long a connection may stop amid a message or not read its replies before it is
        /// closed
        stall_ms: u32 = or(30_000).range(100, DAY_MS).unit("ms");

        /// How long a new connection may take until its hello has come, whatever it sends
        /// meanwhile ([Connections](#connections))
        hello_ms: u32 = or(10_000).range(100, DAY_MS).unit("ms");

        /// The least rate at which payload has to come that has begun: a connection is closed
        /// that takes longer for it than `stall_ms` and its length at this rate. 0: only
        /// `stall_ms` between two parts of it counts
        payload_rate_min: u64 = or(256 << 10).range(0, 1 << 40).unit("bytes/s");
    }
    with {
        /// How forwarders keep seats apart.
        ownership: Ownership;
        /// How data reaches the back end.
        storage: StorageOptions;
        /// Which request goes next.
        scheduler: Options;
        /// Whether the scheduler's depth was written down, and does not follow from the storage.
        depth_written: bool;
        /// Who is promised what.
        shares: Rules;
        /// Width of a window where none is named, if the device asks for another than the
        /// policy's.
        window_ms: Option<u64>;
        /// The emulated device, if any.
        device: Option<DeviceOptions>;
        /// Properties of other machines, for tests and benchmarks.
        emulation: Emulation;
        /// Where requests are recorded, if they are.
        trace: Option<TraceOptions>;
        /// What is logged.
        log: LogOptions;
        /// Faults on purpose, for tests.
        faults: Faults;
    }
}

/// Threads that serve connections where nothing is said: storage, clients and the core's own thread
/// want cores too.
fn default_reactors() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    reactors_of(cores as u32)
}

/// The same for so many cores.
pub(super) fn reactors_of(cores: u32) -> u32 {
    match cores {
        0..8 => 1,
        _ => (cores / 4).min(8),
    }
}

keys! {
    /// How forwarders keep seats apart, and what a seat's reply table outlives.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Ownership in "[ownership]" {
        /// All forwarders of this export run on this node and use the same mount of the back end.
        /// Then the node's page cache is the truth, and the kernel's locks are never lost.
        /// `tidegate up` sets it. A forwarder that finds a live one over another mount, of this
        /// node or another, ends and says so. Where it is false, the type of the file system
        /// decides: one that a single node has (ext4, XFS, tmpfs) counts as one node. A lone
        /// forwarder (`seats = 1`) is no exception: another node may start it while the first is
        /// only cut off
        one_node: bool = or(false).flag("--one-node", SERVE);

        /// Others than the forwarders' user may write to the root of the export although it has no
        /// sticky bit. Whoever may can rename `.tidegate`; a forwarder that starts after that makes
        /// another, and may serve what is served already, until the others notice after about two
        /// seconds and end. Where this is false, a forwarder does not start on such a root: set the
        /// sticky bit (`chmod +t`). The group of the root counts where the forwarder runs as root
        unguarded_root: bool = or(false);

        /// What the record of an operation outlives, so that a repetition takes effect once.
        /// `process`: the forwarder's process, by the page cache of its node. `node`: the node
        /// too; before an operation takes effect, what is begun is written to the back end past
        /// the page cache. The default is `node` where forwarders may run on several nodes
        durability: Option<Durability> = or(None).default_words("by back end");

        /// How long a seat stays its holder's after the holder last renewed its lease, where
        /// forwarders may run on several nodes. A holder that cannot renew stops serving after
        /// three quarters of it; a stand-in waits a quarter longer. Less means a shorter pause
        /// after a node died, and more renewals
        ttl_ms: u32 = or(8000).range(500, 600_000).unit("ms");

        /// Who keeps the seats where forwarders may run on several nodes. `files`: byte locks and
        /// files in `.tidegate`, where the back end's locks hold between nodes. `etcd`: the
        /// cluster of `[ownership.etcd]`, where they do not
        /// ([backends.md](backends.md#locks-that-do-not-hold-between-nodes-etcd)); on any file
        /// system then, also on one of this node. The first forwarder records it in
        /// `.tidegate/keeper` (or that locks of one node do, see `one_node`); one that was told
        /// something else does not start
        keeper: Keeper = or(Keeper::Files);

        /// For how many clients a seat's reply table has room on the back end from the start, where
        /// one node has the back end: 64 KiB each. These can go on where the back end is full;
        /// for more, room is taken when they come. `tidegate up` sets 16
        room_for_clients: u16 = or(256).range(1, 256);

        /// How often a forwarder tries the back end with one of the others in turn
        /// ([backends.md](backends.md)), where forwarders may run on several nodes. 0: only when
        /// it starts
        probe_s: u32 = or(60).range(0, 86_400).unit("s");
    }
    with {
        /// The etcd that keeps the seats; None: files of the back end do.
        etcd: Option<EtcdOptions>;
    }
}

keys! {
    /// An etcd cluster, and how a forwarder uses it.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct EtcdOptions in "[ownership.etcd]" {
        /// `http://HOST:PORT` or `https://HOST:PORT` of etcd's servers. The one that answered
        /// last is asked first, the others in turn. A call takes at most a fifth of `ttl_ms`
        endpoints: Vec<String> =
            must("name etcd's servers, such as [\"https://etcd1:2379\"]");

        /// What all keys begin with. The export's number (`.tidegate/export`) follows, so exports
        /// may share it
        prefix: String = or("/tidegate".to_string());

        /// File with the certificates (PEM) of who vouches for etcd's servers; needed with
        /// `https://`
        ca: Option<PathBuf> = or(None);

        /// File with this forwarder's certificate (PEM), where etcd demands one; with `key`
        cert: Option<PathBuf> = or(None);

        /// File with its private key (PEM), readable by its owner only
        key: Option<PathBuf> = or(None);

        /// User of etcd, where it has authentication on; with `password_file`. He needs read and
        /// write below `prefix`
        /// (`etcdctl role grant-permission ROLE --prefix=true readwrite /tidegate/`)
        user: Option<String> = or(None);

        /// File with his password, without white space at the end, readable by its owner only
        password_file: Option<PathBuf> = or(None);
    }
}

keys! {
    /// How data reaches the back end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct StorageOptions in "[storage]" {
        /// How data reaches the back end. `buffered`: through the page cache of the forwarder's
        /// node. `direct`: past it (`O_DIRECT`), wherever file and request allow: for devices
        /// that are faster than a copy, and for nodes whose memory belongs to others
        io: Io = or(Io::Buffered).flag("--io IO", BOTH);

        /// Who makes the calls that move data. `threads`: the storage threads. `uring`: io_uring,
        /// which takes a quarter of the processor time for direct I/O; it is refused with
        /// `io = "buffered"`, where it is slower, and the forwarder does not start where it
        /// cannot be had (kernel, `kernel.io_uring_disabled`, the seccomp profile of a
        /// container). `auto`: io_uring for direct I/O if a trial in the export succeeds at the
        /// start, else threads
        engine: Engine = or(Engine::Auto).flag("--engine ENGINE", BOTH);

        /// Calls that io_uring has at once; more wait in the forwarder
        depth: u32 = or(32).range(1, 4096);
    }
}

keys! {
    /// What the scheduler is told, whatever its policy.
    pub(super) struct SchedulerKeys in "[scheduler]" {
        /// Scheduling policy; `tidegate policy list` lists them. [policies.md](policies.md)
        /// explains each
        policy: String = or(Options::default().policy).flag("--policy NAME", BOTH);

        /// Batches that run at once. The fewer, the more the policy decides
        depth: Option<u32> = or(None).range(1, 1 << 16)
            .default_words(
                "`threads`; with io_uring the `depth` of `[storage]`, with a device that \
                 device's");

        /// Requests that the policy chooses from at most. Further ones wait in order of arrival,
        /// bounded by `credits` of each client
        queued_max: u32 = or(Options::default().queued_max).range(1, 1 << 26);

        /// Whether requests that are adjacent in a file become one call
        merge: Option<bool> = or(None).default_words("the policy's own choice");

        /// Bytes of a batch of several requests; a single larger request still runs
        batch_bytes_max: u64 =
            or(Options::default().batch_bytes_max).range(1, 1 << 40).unit("bytes");

        /// Requests of a batch
        batch_requests_max: u32 = or(Options::default().batch_requests_max).range(1, 1 << 16);

        /// File with what accesses cost, as `tidegate calibrate` writes it;
        /// [cost-model.md](cost-model.md). It must be there when the forwarder starts
        cost_file: Option<PathBuf> = or(None).default_words("a disk's costs");

        /// Whether these costs are corrected by what accesses take
        cost_estimate: Option<bool> = or(None).default_words("true");

        /// Traces of earlier runs, as forwarders record them, for `prediction = "recorded"`;
        /// [prediction.md](prediction.md). They must be there when the forwarder starts
        trace_files: Vec<PathBuf> = or(Vec::new()).default_words("none");
    }
}

keys! {
    /// Which applications a rule matches.
    pub(super) struct AppKeys in "[[app]]" {
        /// Name of the application; `*` stands for any characters, `?` for one
        name: Name = must("name the application; * stands for any characters, ? for one");

        /// Only applications of this user, by name or number
        user: Option<User> = or(None).default_words("any");

        /// Only those of this job of the batch system
        job: Option<Job> = or(None).default_words("any");

        /// Name of the `[[group]]` in which it counts
        group: Option<Name> = or(None);
    }
}

keys! {
    /// Which applications are in a group.
    pub(super) struct GroupKeys in "[[group]]" {
        /// Name of the group
        name: Name = must("name the group");

        /// Applications of this user belong to it, unless their rule names another group
        user: Option<User> = or(None);

        /// So do those of projects of this name; `*` and `?` may stand in it. With `user`, both
        /// must fit
        project: Option<Name> = or(None);
    }
}

keys! {
    /// What an application or a group is promised.
    pub(super) struct ShareKeys in "[[app]]" {
        /// Part of what is left after the reservations
        weight: u32 = or(1).range(1, WEIGHT_MAX.into());

        /// What it gets before others get more than theirs: `"25 MB/s"`, `"1000 op/s"` or
        /// `"20 %"` of device time
        min: Option<Rate> = or(None);

        /// What it never gets more of, in the same units; not below `min`
        max: Option<Rate> = or(None);

        /// How soon its requests should be done: `"100 ms"`, from 1 us to 1 h
        latency: Option<Nanoseconds> = or(None);

        /// For so many percent of them
        percentile: u8 = or(95).range(1, 100);
    }
}

keys! {
    /// A directory whose users count as one application.
    pub(super) struct ViewKeys in "[[view]]" {
        /// Name of the view, and of the application; its share is in the `[[app]]` of that name
        name: Name = must("name the view");

        /// Path from the export's root
        directory: Name = must("name a directory of the export");
    }
}

keys! {
    /// What is logged, and how.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LogOptions in "[log]" {
        /// The least severe messages that are logged. The log goes to standard error
        level: LogLevel = or(LogLevel::Info).flag("--log LEVEL", BOTH);
        /// How a line is written: `text` for people, `json` for programs that collect logs, an
        /// object with `timestamp`, `level`, `message` and what belongs to the message
        format: LogFormat = or(LogFormat::Text).flag("--log-format FORMAT", BOTH);
    }
}

keys! {
    /// Where requests are recorded.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TraceOptions in "[trace]" {
        /// Record each request into this file, or into a pipe that somebody reads. Only its
        /// owner can read it. A trace that is there is gone on with; any other file is refused at
        /// the start. One file a forwarder
        file: PathBuf = must("name the file to record into").default_words("none")
            .flag("--trace FILE", SERVE);

        /// Requests held in memory (96 bytes each; one with a [shuffle](traces.md) counts twice)
        /// while the file is slow. Those that find no room are served all the same, and counted
        /// as dropped
        buffer_records: u32 = or(1 << 16).range(1, 1 << 24);
    }
}

keys! {
    /// Which device is emulated; the numbers that its model has are keys too.
    pub(super) struct DeviceKeys in "[device]" {
        /// Emulated device: `none`, `hdd-7200` (SATA disk of about 2006), `hdd-ncq` (of about 2015,
        /// with a queue and a write cache of its own), `ssd-sata`, `ssd-pcie` (of 2010) or `ideal`
        /// (each call takes the same time)
        model: String = or("none".to_string()).flag("--device MODEL", BOTH);
    }
}

keys! {
    /// Properties of other machines, for tests and benchmarks on this one.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Emulation in "[emulation]" {
        /// Every request reaches the scheduler a random time later, up to this: messages overtake
        /// each other as on a real network
        message_jitter_us: u32 = or(0).range(0, 10_000_000).unit("µs");

        /// The delays follow from it
        message_jitter_seed: u64 = or(0);
    }
}

/// All sections but the first one.
pub(super) const SECTIONS: &[&str] = &[
    Ownership::SECTION,
    EtcdOptions::SECTION,
    StorageOptions::SECTION,
    SchedulerKeys::SECTION,
    DeviceKeys::SECTION,
    Emulation::SECTION,
    TraceOptions::SECTION,
    LogOptions::SECTION,
    AppKeys::SECTION,
    GroupKeys::SECTION,
    ViewKeys::SECTION,
];

/// All keys, but for the options of policies and the numbers of device models.
pub fn all() -> Vec<Key> {
    let group_shares = ShareKeys::keys().into_iter().map(|key| Key {
        section: GroupKeys::SECTION,
        ..key
    });
    [
        Config::keys(),
        Ownership::keys(),
        EtcdOptions::keys(),
        StorageOptions::keys(),
        SchedulerKeys::keys(),
        AppKeys::keys(),
        ShareKeys::keys(),
        GroupKeys::keys(),
        group_shares.collect(),
        ViewKeys::keys(),
        LogOptions::keys(),
        TraceOptions::keys(),
        DeviceKeys::keys(),
        Emulation::keys(),
    ]
    .concat()
}
