//! From a scenario's tables to a run: machine, load, policy.

use super::load::{Group, Load, groups};
use super::policies::{Policy, Training};
use super::servers::servers;
use super::shares::shares;
use super::source::{ScenarioError, Source, tables};
use crate::cost;
use crate::rng::Rng;
use crate::units::{Bytes, Duration};
use crate::workload::Place;
use crate::world::{
    Application, Fault, FaultKind, ForwarderOptions, NetworkOptions, Process, RECORDS_MAX,
    ServersOptions, Setup,
};
use serde::Deserialize;
use tidegate_device::DeviceOptions;
use tidegate_sched::{CostModel, Latency, Options, Shares};
use tidegate_wire::Layout;

/// `[network]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    preset: String,
    latency: Option<Duration>,
    jitter: Option<Duration>,
    bandwidth_mb_s: Option<u64>,
    overtaking: Option<bool>,
}

/// `[forwarders]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forwarders {
    count: u16,
    #[serde(default = "stripe")]
    stripe: Bytes,
    #[serde(default = "payload_max")]
    payload_max: Bytes,
    #[serde(default = "pool")]
    pool: Bytes,
    #[serde(default = "credits")]
    credits: u32,
    #[serde(default = "yes")]
    merge_blocks: bool,
    #[serde(default = "request_time")]
    request_time: Duration,
    copy_mb_s: Option<u64>,
    #[serde(default)]
    contention_percent: u64,
    #[serde(default = "memory_mb_s")]
    memory_mb_s: u64,
    /// Sessions are opened before the programs start.
    #[serde(default = "yes")]
    open_sessions: bool,
    bandwidth_mb_s: Option<u64>,
    depth: Option<u32>,
}

fn stripe() -> Bytes {
    Bytes(1 << 20)
}
fn payload_max() -> Bytes {
    Bytes(1 << 20)
}
fn pool() -> Bytes {
    Bytes(256 << 20)
}
fn credits() -> u32 {
    64
}
fn yes() -> bool {
    true
}
fn request_time() -> Duration {
    Duration(20_000)
}
fn memory_mb_s() -> u64 {
    3000
}

/// `[[fault]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultEntry {
    at: Duration,
    forwarder: u16,
    kind: String,
    percent: Option<u64>,
}

/// What a run needs besides policy and seed, checked.
#[derive(Clone, Debug)]
pub struct Machine {
    network: NetworkOptions,
    forwarders: ForwarderOptions,
    servers: Option<ServersOptions>,
    cost: CostModel,
    open_sessions: bool,
    clock_skew_ns: u64,
    limit_ns: u64,
    faults: Vec<Fault>,
    groups: Vec<(Group, Load)>,
    shares: Shares,
    turns_disks: bool,
}

/// Most calls that a forwarder lets run at once, as of a device.
const DEPTH_MAX: u32 = 4096;

/// Slowest that a device can be made, in percent of its time: ten thousand times.
const PERCENT_MAX: u64 = 1_000_000;

/// Reads `T` from a table at `key`, which must be there unless `T` has a default for an empty one.
pub(super) fn section<T: for<'de> Deserialize<'de>>(
    source: &Source,
    table: &mut toml::Table,
    key: &str,
) -> Result<T, ScenarioError> {
    let value = table.remove(key);
    source.shape(key, value.unwrap_or_else(|| toml::Table::new().into()))
}

impl Machine {
    /// Takes the machine's keys out of a scenario's table.
    pub(super) fn read(source: &Source, table: &mut toml::Table) -> Result<Machine, ScenarioError> {
        let network: Network = section(source, table, "network")?;
        let network = network_options(source, &network)?;
        let (device, turns_disks) = device(source, table)?;
        let cost = costs(source, table, &device)?;
        let forwarders: Forwarders = section(source, table, "forwarders")?;
        let servers = servers(source, table, &network, &device)?;
        check_forwarders(source, &forwarders, servers.is_some())?;
        let payload_max = u32::try_from(forwarders.payload_max.0)
            .map_err(|_| source.wrong("forwarders.payload_max", "is too large"))?;
        let time = |table: &mut toml::Table, key: &str, default: u64| match table.remove(key) {
            None => Ok(default),
            Some(value) => value
                .try_into()
                .map(|time: Duration| time.0)
                .map_err(|e: toml::de::Error| source.wrong(key, e.message())),
        };
        let clock_skew_ns = time(table, "clock_skew", 0)?;
        let limit_ns = time(table, "time_limit", 24 * 3600 * 1_000_000_000)?;
        let groups = groups(source, table)?;
        let shares = shares(source, table, &groups, forwarders.count)?;
        let machine = Machine {
            network,
            servers,
            cost,
            open_sessions: forwarders.open_sessions,
            clock_skew_ns,
            limit_ns,
            turns_disks,
            faults: faults(source, table, forwarders.count)?,
            groups,
            shares,
            forwarders: ForwarderOptions {
                count: forwarders.count,
                stripe: forwarders.stripe.0,
                payload_max,
                pool_bytes: forwarders.pool.0,
                credits: forwarders.credits,
                merge_blocks: forwarders.merge_blocks,
                request_ns: forwarders.request_time.0,
                copy_mb_s: forwarders.copy_mb_s,
                contention_percent: forwarders.contention_percent,
                memory_mb_s: forwarders.memory_mb_s,
                mb_s: forwarders.bandwidth_mb_s,
                depth: forwarders.depth,
                device,
                scheduler: Options::default(),
            },
        };
        let policy = Policy {
            label: String::new(),
            options: Options::default(),
            training: Training::default(),
            depth: None,
            baseline: None,
            direct: false,
        };
        let checked = machine.setup(&policy, 1, None).check();
        checked.map_err(|error| source.wrong("forwarders", error.0))?;
        Ok(machine)
    }

    /// What a reader of results should know of the load.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().flat_map(|(_, load)| load.warnings())
    }

    /// A run of this machine. `alone`: only the application of this number.
    pub fn setup(&self, policy: &Policy, seed: u64, alone: Option<u32>) -> Setup {
        let mut rng = Rng::new(seed).split();
        let (applications, nodes) = self.load(&mut rng, alone);
        let rehearsals = (0..policy.training.rehearsals).map(|_| self.load(&mut rng, alone).0);
        let mut device = self.forwarders.device.clone();
        if let Some(depth) = policy.depth.filter(|_| self.servers.is_none()) {
            let set = device.set("depth", depth.into());
            set.expect("it was checked when the policy was read");
        }
        Setup {
            seed,
            nodes,
            clock_skew_ns: self.clock_skew_ns,
            network: self.network,
            forwarders: ForwarderOptions {
                device,
                depth: policy
                    .depth
                    .filter(|_| self.has_servers())
                    .or(self.forwarders.depth),
                scheduler: Options {
                    cost: self.cost,
                    shares: self.shares.clone(),
                    ..policy.options.clone()
                },
                ..self.forwarders.clone()
            },
            servers: self.servers.clone(),
            direct: policy.direct,
            turns_disks: self.turns_disks,
            open_sessions: self.open_sessions,
            note_served: true,
            promises: false,
            timeline_ns: None,
            keep_accesses: false,
            record: false,
            records_max: RECORDS_MAX,
            predictions: Vec::new(),
            rehearsals: rehearsals.collect(),
            applications,
            faults: self.faults.clone(),
            limit_ns: self.limit_ns,
        }
    }

    /// How many forwarders it has.
    pub fn forwarders(&self) -> u16 {
        self.forwarders.count
    }

    /// Whether there are servers behind the forwarders.
    pub(super) fn has_servers(&self) -> bool {
        self.servers.is_some()
    }

    /// What accesses cost the device.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// The applications, and how many nodes they run on.
    fn load(&self, rng: &mut Rng, alone: Option<u32>) -> (Vec<Application>, u32) {
        let (mut applications, mut nodes) = (Vec::new(), 0);
        for (index, (group, load)) in self.groups.iter().enumerate() {
            for copy in 0..group.copies {
                let start = group.start.0 + upto(rng, group.start_spread.0);
                let name = group.copy_name(index, copy);
                let place = Place {
                    per_node: group.processes_per_node,
                    memory_mb_s: self.forwarders.memory_mb_s,
                    network: self.network,
                    layout: Layout {
                        seats: self.forwarders.count,
                        stripe: self.forwarders.stripe,
                    },
                    copy,
                };
                for (name, programs) in load.programs(group, &name, start, place, rng) {
                    let count = programs.len() as u32;
                    let mut processes = Vec::with_capacity(programs.len());
                    for (rank, program) in programs.into_iter().enumerate() {
                        processes.push(Process {
                            node: nodes + rank as u32 / group.processes_per_node,
                            starts_ns: start + upto(rng, group.process_spread.0),
                            program,
                        });
                    }
                    nodes += count.div_ceil(group.processes_per_node);
                    applications.push(Application {
                        name,
                        processes,
                        background: !group.measured,
                        within: group.within.map(|within| Latency {
                            ns: within.0,
                            percentile: 95,
                        }),
                    });
                }
            }
        }
        if let Some(alone) = alone {
            applications = applications
                .into_iter()
                .skip(alone as usize)
                .take(1)
                .collect();
        }
        (applications, nodes)
    }
}

/// `[cost]`: the cost model of a file, instead of the one that is measured on the device's model,
/// and numbers that replace its own.
fn costs(
    source: &Source,
    table: &mut toml::Table,
    device: &DeviceOptions,
) -> Result<CostModel, ScenarioError> {
    let mut written: toml::Table = section(source, table, "cost")?;
    let base = match written.remove("file") {
        Some(file) => cost_file(source, &file)?,
        None => cost::measured(device).map_err(|e| source.wrong("device", e.to_string()))?,
    };
    let mut model = base.to_string();
    for (name, value) in &written {
        let key = format!("cost.{name}");
        let Some(number) = value.as_integer().filter(|number| *number >= 0) else {
            return Err(source.wrong(&key, "takes a whole number"));
        };
        let others = model
            .lines()
            .filter(|line| !line.starts_with(&format!("{name} = ")));
        let others: Vec<&str> = others.collect();
        model = format!("{}\n{name} = {number}\n", others.join("\n"));
        CostModel::parse(&model).map_err(|e| source.wrong(&key, e.to_string()))?;
    }
    CostModel::parse(&model).map_err(|e| source.wrong("cost", e.to_string()))
}

/// The cost model in a file, whose name begins where the scenario's file is.
fn cost_file(source: &Source, file: &toml::Value) -> Result<CostModel, ScenarioError> {
    let Some(file) = file.as_str() else {
        return Err(source.wrong("cost.file", "takes the name of a file in quotes"));
    };
    let path = source.folder().join(file);
    cost::read(&path).map_err(|reason| {
        let advice = "`tidegate calibrate DIR --output FILE` writes one";
        let reason = format!("{}: {reason}; {advice}", path.display());
        source.wrong("cost.file", reason)
    })
}

fn check_forwarders(
    source: &Source,
    written: &Forwarders,
    has_servers: bool,
) -> Result<(), ScenarioError> {
    let reason = match (written.depth, written.bandwidth_mb_s) {
        (Some(_), _) if !has_servers => {
            "depth: is that of the device, where there are no [servers]"
        }
        (Some(depth), _) if !(1..=DEPTH_MAX).contains(&depth) => "depth: 1 to 4096 are possible",
        (_, Some(0)) => "bandwidth_mb_s: must be positive",
        _ => return Ok(()),
    };
    let (key, reason) = reason.split_once(": ").unwrap_or(("", reason));
    Err(source.wrong(&format!("forwarders.{key}"), reason))
}

fn upto(rng: &mut Rng, spread: u64) -> u64 {
    match spread {
        0 => 0,
        spread => rng.below(spread + 1),
    }
}

fn network_options(source: &Source, written: &Network) -> Result<NetworkOptions, ScenarioError> {
    let preset = NetworkOptions::preset(&written.preset).ok_or_else(|| {
        let known = NetworkOptions::PRESETS.join(", ");
        let reason = format!("there is no {:?}; there are {known}", written.preset);
        source.wrong("network.preset", reason)
    })?;
    let mb_s = written.bandwidth_mb_s.unwrap_or(preset.mb_s);
    if mb_s == 0 {
        return Err(source.wrong("network.bandwidth_mb_s", "must be positive"));
    }
    Ok(NetworkOptions {
        latency_ns: written.latency.map_or(preset.latency_ns, |time| time.0),
        jitter_ns: written.jitter.map_or(preset.jitter_ns, |time| time.0),
        mb_s,
        overtaking: written.overtaking.unwrap_or(preset.overtaking),
    })
}

/// `[device]`: a model and numbers that override it. Returns true if the start angle of disks is
/// random.
fn device(
    source: &Source,
    table: &mut toml::Table,
) -> Result<(DeviceOptions, bool), ScenarioError> {
    let mut written: toml::Table = section(source, table, "device")?;
    let Some(model) = written.remove("model") else {
        return Err(source.wrong("device", "its model is missing"));
    };
    let model = model.as_str().unwrap_or_default();
    let mut options =
        DeviceOptions::preset(model).map_err(|e| source.wrong("device.model", e.to_string()))?;
    let turns = !written.contains_key("rotation_seed");
    for (name, value) in written {
        let key = format!("device.{name}");
        let number = match &value {
            toml::Value::Boolean(value) => Some(u64::from(*value)),
            toml::Value::Integer(value) => u64::try_from(*value).ok(),
            toml::Value::String(text) => text.parse().ok().map(|bytes: Bytes| bytes.0),
            _ => None,
        };
        let number = number.ok_or_else(|| source.wrong(&key, "takes a whole number"))?;
        options
            .set(&name, number)
            .map_err(|e| source.wrong(&key, e.to_string()))?;
    }
    tidegate_device::Device::new(&options).map_err(|e| source.wrong("device", e.to_string()))?;
    Ok((options, turns))
}

fn faults(
    source: &Source,
    table: &mut toml::Table,
    forwarders: u16,
) -> Result<Vec<Fault>, ScenarioError> {
    let mut faults = Vec::new();
    for (number, entry) in tables(source, table, "fault")?.into_iter().enumerate() {
        let place = format!("fault[{number}]");
        let entry: FaultEntry = source.shape(&place, entry)?;
        if entry.forwarder >= forwarders {
            let reason = format!("there are {forwarders}, counted from 0");
            return Err(source.wrong(&format!("{place}.forwarder"), reason));
        }
        let kind = match (entry.kind.as_str(), entry.percent) {
            ("slow", Some(percent)) if (1..=PERCENT_MAX).contains(&percent) => {
                FaultKind::Slow { percent }
            }
            ("slow", Some(_)) => {
                let reason = format!("1 to {PERCENT_MAX} are possible; 100: as it should be");
                return Err(source.wrong(&format!("{place}.percent"), reason));
            }
            ("slow", None) => return Err(source.wrong(&place, "slow needs a percent")),
            ("dead", None) => FaultKind::Dead,
            ("back", None) => FaultKind::Back,
            _ => {
                let reason = "is slow (with percent), dead or back";
                return Err(source.wrong(&format!("{place}.kind"), reason));
            }
        };
        faults.push(Fault {
            at_ns: entry.at.0,
            forwarder: entry.forwarder,
            kind,
        });
    }
    Ok(faults)
}
