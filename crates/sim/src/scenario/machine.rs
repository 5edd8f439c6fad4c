//! From a scenario's tables to a run: machine, load, policy.

use super::source::{ScenarioError, Source};
use crate::replay::Replay;
use crate::rng::Rng;
use crate::units::{Bytes, Duration};
use crate::workload::Workload;
use crate::world::{
    Application, Fault, FaultKind, ForwarderOptions, NetworkOptions, Process, Program, Setup,
};
use serde::Deserialize;
use tidegate_device::DeviceOptions;
use tidegate_sched::{AppId, Options, Scheduler};

/// Files of one copy of an application.
const FILES_MAX: u64 = 1 << 20;

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

/// The keys of `[[application]]` that are not the workload's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: Option<String>,
    workload: String,
    #[serde(default = "one")]
    copies: u32,
    #[serde(default = "one")]
    processes: u32,
    #[serde(default = "processes_per_node")]
    processes_per_node: u32,
    #[serde(default)]
    start: Duration,
    /// Each copy starts later by up to this.
    #[serde(default)]
    start_spread: Duration,
    /// Each process of a copy starts later by up to this.
    #[serde(default)]
    process_spread: Duration,
}

fn one() -> u32 {
    1
}
fn processes_per_node() -> u32 {
    8
}

const GROUP_KEYS: &[&str] = &[
    "name",
    "workload",
    "copies",
    "processes",
    "processes_per_node",
    "start",
    "start_spread",
    "process_spread",
];

/// What a run needs besides policy and seed, checked.
#[derive(Clone, Debug)]
pub struct Machine {
    network: NetworkOptions,
    forwarders: ForwarderOptions,
    open_sessions: bool,
    clock_skew_ns: u64,
    limit_ns: u64,
    faults: Vec<Fault>,
    groups: Vec<(Group, Load)>,
    turns_disks: bool,
}

/// What the processes of an application do.
#[derive(Clone, Debug)]
enum Load {
    Made(Workload),
    Replayed(Replay),
}

/// A policy of a scenario.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What reports call it.
    pub label: String,
    /// The scheduler's options.
    pub options: Options,
}

/// Reads `T` from a table at `key`, which must be there unless `T` has a default for an empty one.
fn section<T: for<'de> Deserialize<'de>>(
    source: &Source,
    table: &mut toml::Table,
    key: &str,
) -> Result<T, ScenarioError> {
    let value = table.remove(key);
    let value = value.unwrap_or_else(|| toml::Value::Table(toml::Table::new()));
    value
        .try_into()
        .map_err(|e: toml::de::Error| source.wrong_shape(key, &e.to_string()))
}

impl Machine {
    /// Takes the machine's keys out of a scenario's table.
    pub(super) fn read(source: &Source, table: &mut toml::Table) -> Result<Machine, ScenarioError> {
        let network: Network = section(source, table, "network")?;
        let network = network_options(source, &network)?;
        let (device, turns_disks) = device(source, table)?;
        let forwarders: Forwarders = section(source, table, "forwarders")?;
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
        let machine = Machine {
            network,
            open_sessions: forwarders.open_sessions,
            clock_skew_ns,
            limit_ns,
            turns_disks,
            faults: faults(source, table, forwarders.count)?,
            groups: groups(source, table)?,
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
                device,
                scheduler: Options::default(),
            },
        };
        let policy = Policy {
            label: String::new(),
            options: Options::default(),
        };
        let checked = machine.setup(&policy, 1, None).check();
        checked.map_err(|error| source.wrong("forwarders", error.0))?;
        Ok(machine)
    }

    /// A run of this machine. `alone`: only the application of this number.
    pub fn setup(&self, policy: &Policy, seed: u64, alone: Option<u32>) -> Setup {
        let mut rng = Rng::new(seed).split();
        let (mut applications, mut nodes) = (Vec::new(), 0);
        for (index, (group, load)) in self.groups.iter().enumerate() {
            for copy in 0..group.copies {
                let start = group.start.0 + upto(&mut rng, group.start_spread.0);
                let name = group.copy_name(index, copy);
                for (name, programs) in load.programs(group, &name, start, &mut rng) {
                    let count = programs.len() as u32;
                    let mut processes = Vec::with_capacity(programs.len());
                    for (rank, program) in programs.into_iter().enumerate() {
                        processes.push(Process {
                            node: nodes + rank as u32 / group.processes_per_node,
                            starts_ns: start + upto(&mut rng, group.process_spread.0),
                            program,
                        });
                    }
                    nodes += count.div_ceil(group.processes_per_node);
                    applications.push(Application { name, processes });
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
        Setup {
            seed,
            nodes,
            clock_skew_ns: self.clock_skew_ns,
            network: self.network,
            forwarders: ForwarderOptions {
                scheduler: policy.options.clone(),
                ..self.forwarders.clone()
            },
            turns_disks: self.turns_disks,
            open_sessions: self.open_sessions,
            note_served: true,
            record: false,
            applications,
            faults: self.faults.clone(),
            limit_ns: self.limit_ns,
        }
    }
}

/// An application and the programs of its processes.
type Programs = (String, Vec<Box<dyn Program>>);

impl Load {
    /// The applications of one copy: a trace can hold several.
    fn programs(&self, group: &Group, name: &str, start_ns: u64, rng: &mut Rng) -> Vec<Programs> {
        match self {
            Load::Made(workload) => {
                // No two applications share a file.
                let file_base = (1 + AppId::from_name(name).0 % (1 << 40)) * FILES_MAX;
                let programs = workload.programs(group.processes, file_base, rng);
                vec![(name.to_string(), programs)]
            }
            Load::Replayed(replay) => {
                let apps = replay.names().enumerate();
                let named = |(app, recorded): (usize, &str)| {
                    let name = match &group.name {
                        None if group.copies == 1 => recorded.to_string(),
                        _ => format!("{name}/{recorded}"),
                    };
                    (name, replay.programs(app, start_ns))
                };
                apps.map(named).collect()
            }
        }
    }
}

impl Group {
    fn copy_name(&self, number: usize, copy: u32) -> String {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => format!("{}-{number}", self.workload),
        };
        match self.copies {
            1 => name,
            _ => format!("{name}.{copy}"),
        }
    }
}

fn upto(rng: &mut Rng, spread: u64) -> u64 {
    match spread {
        0 => 0,
        spread => rng.below(spread + 1),
    }
}

fn network_options(source: &Source, written: &Network) -> Result<NetworkOptions, ScenarioError> {
    let preset = NetworkOptions::preset(&written.preset).ok_or_else(|| {
        source.wrong(
            "network.preset",
            format!(
                "there is no {:?}; there are {}",
                written.preset,
                NetworkOptions::PRESETS.join(", ")
            ),
        )
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

/// `[device]`: a model and numbers that override it. True if the start angle of disks is left to
/// chance.
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
        let entry: FaultEntry = toml::Value::Table(entry)
            .try_into()
            .map_err(|e: toml::de::Error| source.wrong_shape(&place, &e.to_string()))?;
        if entry.forwarder >= forwarders {
            let reason = format!("there are {forwarders}, counted from 0");
            return Err(source.wrong(&format!("{place}.forwarder"), reason));
        }
        let kind = match (entry.kind.as_str(), entry.percent) {
            ("slow", Some(percent)) if percent > 0 => FaultKind::Slow { percent },
            ("slow", _) => return Err(source.wrong(&place, "slow needs a positive percent")),
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

fn groups(source: &Source, table: &mut toml::Table) -> Result<Vec<(Group, Load)>, ScenarioError> {
    let mut groups = Vec::new();
    for (number, mut entry) in tables(source, table, "application")?
        .into_iter()
        .enumerate()
    {
        let place = format!("application[{number}]");
        let mut own = toml::Table::new();
        for key in GROUP_KEYS {
            if let Some(value) = entry.remove(*key) {
                own.insert((*key).to_string(), value);
            }
        }
        let group: Group = toml::Value::Table(own)
            .try_into()
            .map_err(|e: toml::de::Error| source.wrong_shape(&place, &e.to_string()))?;
        for (key, count) in [
            ("copies", group.copies),
            ("processes", group.processes),
            ("processes_per_node", group.processes_per_node),
        ] {
            if count == 0 {
                return Err(source.wrong(&format!("{place}.{key}"), "must be positive"));
            }
        }
        let at_key =
            |(key, reason): (String, String)| source.wrong(&format!("{place}.{key}"), reason);
        if group.workload != "trace" && !Workload::NAMES.contains(&&*group.workload) {
            let known = Workload::NAMES.join(", ");
            let reason = format!("there is no {:?}; there are {known}, trace", group.workload);
            return Err(source.wrong(&format!("{place}.workload"), reason));
        }
        let load = if group.workload == "trace" {
            let options = toml::Value::Table(entry)
                .try_into()
                .map_err(|e: toml::de::Error| source.wrong_shape(&place, &e.to_string()))?;
            Load::Replayed(Replay::read(options, &source.folder()).map_err(at_key)?)
        } else {
            let workload = Workload::read(&group.workload, entry)
                .map_err(|message| source.wrong_shape(&place, &message))?;
            workload.check(group.processes).map_err(at_key)?;
            Load::Made(workload)
        };
        groups.push((group, load));
    }
    if groups.is_empty() {
        return Err(source.wrong("", "no [[application]]: there is nothing to run"));
    }
    Ok(groups)
}

/// Takes an array of tables out of a table; none if it is not there.
pub(super) fn tables(
    source: &Source,
    table: &mut toml::Table,
    key: &str,
) -> Result<Vec<toml::Table>, ScenarioError> {
    let items = match table.remove(key) {
        None => return Ok(Vec::new()),
        Some(toml::Value::Array(items)) => items,
        Some(_) => return Err(source.wrong(key, format!("write it as [[{key}]]"))),
    };
    let tables = items.into_iter().map(|item| match item {
        toml::Value::Table(table) => Ok(table),
        _ => Err(source.wrong(key, format!("write it as [[{key}]]"))),
    });
    tables.collect()
}

/// The policies: names in `policies`, or tables `[[policy]]` with options and a label.
pub(super) fn policies(
    source: &Source,
    table: &mut toml::Table,
) -> Result<Vec<Policy>, ScenarioError> {
    let mut policies = Vec::new();
    if let Some(names) = table.remove("policies") {
        let names: Vec<String> = names
            .try_into()
            .map_err(|e: toml::de::Error| source.wrong("policies", e.message()))?;
        for name in names {
            let options = Options::for_policy(&name);
            policies.push(policy(source, "policies", name, options)?);
        }
    }
    for (number, entry) in tables(source, table, "policy")?.into_iter().enumerate() {
        let place = format!("policy[{number}]");
        policies.push(read_policy(source, &place, entry)?);
    }
    if policies.is_empty() {
        return Err(source.wrong("", "no policies: write policies = [\"fifo\", \"window\"]"));
    }
    Ok(policies)
}

fn read_policy(
    source: &Source,
    place: &str,
    mut entry: toml::Table,
) -> Result<Policy, ScenarioError> {
    let text = |entry: &mut toml::Table, key: &str| match entry.remove(key) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(source.wrong(&format!("{place}.{key}"), "takes text")),
    };
    let Some(name) = text(&mut entry, "policy")? else {
        return Err(source.wrong(place, "its policy is missing"));
    };
    let label = text(&mut entry, "label")?.unwrap_or_else(|| name.clone());
    let mut options = Options::for_policy(&name);
    for (key, value) in entry {
        let wrong = |reason: &str| source.wrong(&format!("{place}.{key}"), reason);
        let number = value
            .as_integer()
            .and_then(|value| u64::try_from(value).ok());
        match (key.as_str(), &value, number) {
            ("merge", toml::Value::Boolean(merge), _) => options.merge = Some(*merge),
            ("batch_bytes_max", _, Some(bytes)) => options.batch_bytes_max = bytes,
            ("batch_requests_max", _, Some(count)) => {
                options.batch_requests_max =
                    u32::try_from(count).map_err(|_| wrong("is too large"))?;
            }
            ("queued_max", _, Some(count)) => {
                options.queued_max = u32::try_from(count).map_err(|_| wrong("is too large"))?;
            }
            ("merge" | "batch_bytes_max" | "batch_requests_max" | "queued_max", ..) => {
                return Err(wrong("has a value of the wrong type"));
            }
            (_, _, Some(number)) => options.table.set(&key, number),
            (_, toml::Value::Boolean(value), _) => options.table.set(&key, *value),
            (_, toml::Value::String(word), _) => options.table.set(&key, word.as_str()),
            _ => return Err(wrong("takes a whole number, true or false, or a word")),
        }
    }
    policy(source, place, label, options)
}

fn policy(
    source: &Source,
    place: &str,
    label: String,
    options: Options,
) -> Result<Policy, ScenarioError> {
    Scheduler::new(&options).map_err(|e| source.wrong(place, e.to_string()))?;
    Ok(Policy { label, options })
}
