//! The setup of a run, and its checks.

use super::port::{NetworkOptions, Port};
use super::program::Program;
use super::servers::ServersOptions;
use crate::units::TIME_MAX_NS;
use std::sync::Arc;
use tidegate_device::{Device, DeviceOptions};
use tidegate_forward::{Config, SEGMENT_CLIENTS};
use tidegate_sched::{Latency, Options, Prediction, Scheduler};
use tidegate_wire::{Attr, Handle, Layout, PAYLOAD_LIMIT, Pipelining};

/// The longest time of a setup: a start is a sum of three.
const TIMES_MAX_NS: u64 = 3 * TIME_MAX_NS;

/// Why a setup cannot be run, or why a run did not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub String);

/// The configuration of the forwarders.
#[derive(Clone, Debug)]
pub struct ForwarderOptions {
    /// How many.
    pub count: u16,
    /// Bytes of a stripe, a power of two of at least 4096.
    pub stripe: u64,
    /// Largest payload of one message.
    pub payload_max: u32,
    /// Bytes of payload that a forwarder may have outstanding for all clients.
    pub pool_bytes: u64,
    /// Requests that a client may have unanswered at one forwarder.
    pub credits: u32,
    /// Whether the blocks of one call that belong to one forwarder are sent in one request.
    pub merge_blocks: bool,
    /// Time of the process that each request takes, ns.
    pub request_ns: u64,
    /// Megabytes per second at which the process copies payload; none: it copies nothing.
    pub copy_mb_s: Option<u64>,
    /// Percent by which each request that waits for the process, up to the device's depth,
    /// lengthens the process's work.
    pub contention_percent: u64,
    /// Megabytes per second between two processes of one node.
    pub memory_mb_s: u64,
    /// Megabytes per second through a forwarder's port, each way; None: the network's.
    pub mb_s: Option<u64>,
    /// The device behind each forwarder, or behind each server where there are servers.
    pub device: DeviceOptions,
    /// Calls that run at once at most; None: the device's depth.
    pub depth: Option<u32>,
    /// Policy and its options; the depth is that above.
    pub scheduler: Options,
}

impl ForwarderOptions {
    /// Time of the process that a request of `bytes` takes when nothing else waits, ns.
    pub(super) fn process_ns(&self, bytes: u64) -> u64 {
        let copy = |rate: u64| bytes.saturating_mul(1000) / rate;
        self.request_ns
            .saturating_add(self.copy_mb_s.map_or(0, copy))
    }

    pub(super) fn memory_ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1000) / self.memory_mb_s
    }
}

/// A process of an application.
pub struct Process {
    /// Number of the node that it runs on.
    pub node: u32,
    /// When it starts, ns after the run.
    pub starts_ns: u64,
    /// What it does.
    pub program: Box<dyn Program>,
}

/// An application: processes that belong together.
pub struct Application {
    /// Its name; requests carry its hash.
    pub name: String,
    /// Its processes, by rank.
    pub processes: Vec<Process>,
    /// Not measured. The run ends, and it with it, when all others have ended.
    pub background: bool,
    /// The latency that [`Setup::promises`] asks for, instead of the target of its share.
    pub within: Option<Latency>,
}

/// A fault of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Its device takes this percentage of the usual time from now on; 100: the usual time.
    Slow {
        /// Percent, positive.
        percent: u64,
    },
    /// The process dies.
    Dead,
    /// A new process starts, if there is none.
    Back,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When, ns after the start of the programs.
    pub at_ns: u64,
    /// Which forwarder.
    pub forwarder: u16,
    /// What.
    pub kind: FaultKind,
}

/// One run.
pub struct Setup {
    /// The seed from which all chance follows.
    pub seed: u64,
    /// Compute nodes.
    pub nodes: u32,
    /// Clocks of nodes are off by up to this, either way, ns.
    pub clock_skew_ns: u64,
    /// How nodes and forwarders are connected.
    pub network: NetworkOptions,
    /// The forwarders.
    pub forwarders: ForwarderOptions,
    /// The servers behind the forwarders; None: each forwarder has a device of its own.
    pub servers: Option<ServersOptions>,
    /// Programs reach the servers by themselves, and forwarders do nothing.
    pub direct: bool,
    /// Whether each disk starts at a random angle.
    pub turns_disks: bool,
    /// Every node opens a session with every forwarder before the programs start; otherwise at
    /// the first use.
    pub open_sessions: bool,
    /// Measure when each forwarder has served its part of each access ([`super::Spreads`]).
    pub note_served: bool,
    /// Follow what applications are promised, and depths ([`super::Outcome::promises`]).
    pub promises: bool,
    /// Make a timeline with slices of this length, ns ([`super::Outcome::timeline`]).
    pub timeline_ns: Option<u64>,
    /// Keep each access by itself ([`super::Outcome::accesses`]): memory for every one.
    pub keep_accesses: bool,
    /// Record every request as a trace does ([`super::Outcome::records`]).
    pub record: bool,
    /// A run that records requests ends with an error if there are more than this.
    pub records_max: usize,
    /// By forwarder: the predictions of its policy. Empty: those of `forwarders.scheduler`.
    pub predictions: Vec<Arc<Prediction>>,
    /// Loads that run before, one after the other, each until its end. Not measured.
    pub rehearsals: Vec<Vec<Application>>,
    /// The load.
    pub applications: Vec<Application>,
    /// Faults.
    pub faults: Vec<Fault>,
    /// Virtual time after which the run is given up, ns.
    pub limit_ns: u64,
}

impl Setup {
    /// Whether the world can be built; the message says what is wrong.
    pub fn check(&self) -> Result<(), SetupError> {
        let wrong = |text: String| Err(SetupError(text));
        let forwarders = &self.forwarders;
        if forwarders.count == 0 || forwarders.credits == 0 || forwarders.memory_mb_s == 0 {
            return wrong("forwarders, credits and memory bandwidth must be positive".into());
        }
        if forwarders.copy_mb_s == Some(0) {
            return wrong("copy_mb_s must be positive; without it nothing is copied".into());
        }
        if !forwarders.stripe.is_power_of_two() || forwarders.stripe < 4096 {
            return wrong(format!(
                "a stripe of {} bytes: it must be a power of two of at least 4096",
                forwarders.stripe
            ));
        }
        if !(4096..=PAYLOAD_LIMIT).contains(&forwarders.payload_max) {
            return wrong(format!(
                "a payload of {} bytes: 4096 to {PAYLOAD_LIMIT} are possible",
                forwarders.payload_max
            ));
        }
        if forwarders.pool_bytes < u64::from(forwarders.payload_max) {
            return wrong("the pool has no room for one message's payload".into());
        }
        if self.nodes == 0 || self.nodes as usize > SEGMENT_CLIENTS {
            return wrong(format!(
                "{} nodes: 1 to {SEGMENT_CLIENTS} are possible",
                self.nodes
            ));
        }
        if self.network.mb_s == 0 {
            return wrong("the network's bandwidth must be positive".into());
        }
        if forwarders.mb_s == Some(0) || forwarders.depth == Some(0) {
            return wrong("a forwarder's bandwidth and depth must be positive".into());
        }
        self.check_servers()?;
        if let Err(error) = Device::new(&forwarders.device) {
            return wrong(format!("device: {error}"));
        }
        if let Err(error) = Scheduler::new(&forwarders.scheduler) {
            return wrong(format!("scheduler: {error}"));
        }
        for application in self.rehearsals.iter().flatten().chain(&self.applications) {
            let strays = |process: &Process| process.node >= self.nodes;
            if application.processes.iter().any(strays) {
                return wrong(format!(
                    "a process of {} is on a node that does not exist",
                    application.name
                ));
            }
        }
        if self.times().any(|ns| ns > TIMES_MAX_NS) {
            return wrong(format!("a time of more than {TIMES_MAX_NS} ns"));
        }
        for fault in &self.faults {
            if fault.forwarder >= forwarders.count || fault.kind == (FaultKind::Slow { percent: 0 })
            {
                return wrong("a fault of a forwarder that does not exist, or of 0 percent".into());
            }
        }
        Ok(())
    }

    fn check_servers(&self) -> Result<(), SetupError> {
        let wrong = |text: &str| Err(SetupError(text.into()));
        let Some(servers) = &self.servers else {
            return match self.direct {
                true => wrong("there are no servers that programs could reach directly"),
                false => Ok(()),
            };
        };
        if [
            servers.count.into(),
            servers.mb_s,
            servers.buffer,
            servers.buffers.into(),
        ]
        .contains(&0)
        {
            return wrong("servers, their bandwidth, buffer and buffers must be positive");
        }
        if servers.server.threads == 0 || servers.server.dirty_bytes > servers.server.cache_bytes {
            return wrong("servers need threads, and a cache for what is not written back");
        }
        if !servers.stripe.is_power_of_two() || servers.stripe < 4096 {
            return wrong("the servers' stripe must be a power of two of at least 4096");
        }
        let is_slow = |fault: &Fault| matches!(fault.kind, FaultKind::Slow { .. });
        match self.faults.iter().any(is_slow) {
            true => wrong("a forwarder has no device that could be slow: there are servers"),
            false => Ok(()),
        }
    }

    /// The device of the forwarder or server of this number.
    pub(super) fn device(&self, number: u64) -> DeviceOptions {
        let mut device = self.forwarders.device.clone();
        if self.turns_disks {
            // Devices without platters have no such option.
            let turn = self.seed.wrapping_mul(0x1_0001).wrapping_add(number);
            let _ = device.set("rotation_seed", turn);
        }
        device
    }

    /// The ports: of nodes, forwarders and servers.
    pub(super) fn ports(&self) -> Vec<Port> {
        let count = usize::from(self.forwarders.count);
        let mb_s = self.forwarders.mb_s.unwrap_or(self.network.mb_s);
        let mut ports = vec![Port::new(self.network.mb_s, None); self.nodes as usize];
        ports.resize(ports.len() + count, Port::new(mb_s, None));
        if let Some(servers) = &self.servers {
            let port = Port::new(servers.mb_s, Some(servers.latency_ns));
            ports.resize(ports.len() + usize::from(servers.count), port);
        }
        ports
    }

    /// Every time that is added to others.
    fn times(&self) -> impl Iterator<Item = u64> {
        let loads = self.rehearsals.iter().flatten().chain(&self.applications);
        let processes = loads.flat_map(|it| &it.processes);
        let network = [self.network.latency_ns, self.network.jitter_ns];
        let own = [
            self.clock_skew_ns,
            self.limit_ns,
            self.forwarders.request_ns,
        ];
        let faults = self.faults.iter().map(|fault| fault.at_ns);
        let starts = processes.map(|process| process.starts_ns);
        let servers = self.servers.iter();
        let servers = servers.flat_map(|it| [it.latency_ns, it.request_ns]);
        let network = network.into_iter().chain(servers);
        network.chain(own).chain(faults).chain(starts)
    }

    /// The forwarders' configuration; `wall_ns` is the wall clock at virtual time 0.
    pub(super) fn config(&self, wall_ns: u64) -> Config {
        let forwarders = &self.forwarders;
        let device = || Device::new(&forwarders.device).map_or(1, |device| device.depth());
        let depth = forwarders.depth.unwrap_or_else(device);
        let root = Attr {
            handle: Handle { inode: 1, birth: 1 },
            size: 0,
            blocks: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            mode: 0o40755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_size: 4096,
        };
        Config {
            forwarder: 0,
            layout: Layout {
                seats: forwarders.count,
                stripe: forwarders.stripe,
            },
            fail_over: true,
            payload_max: forwarders.payload_max,
            pipelining: Pipelining::Parallel,
            pool_bytes_max: forwarders.pool_bytes,
            credits: forwarders.credits,
            sessions_max: SEGMENT_CLIENTS as u32,
            sessions_of_user_max: 0,
            connections: 1,
            joined_max: 0,
            lease_ns: 30_000_000_000,
            loan_ns: 0,
            grace_ns: 20_000_000_000,
            uid: 0,
            acts_for_callers: true,
            host: 1,
            boot: 1,
            export: Default::default(),
            process: 0,
            root,
            shares: Default::default(),
            record: self.record,
            scheduler: Options {
                depth,
                wall_offset_ns: wall_ns,
                ..forwarders.scheduler.clone()
            },
        }
    }
}
