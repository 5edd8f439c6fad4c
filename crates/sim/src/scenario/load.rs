//! `[[application]]`: how many programs there are, where they run, and what they do.

use super::source::{ScenarioError, Source, tables};
use crate::replay::Replay;
use crate::rng::Rng;
use crate::units::Duration;
use crate::workload::{Place, Synced, Workload};
use crate::world::Program;
use serde::Deserialize;
use tidegate_forward::SEGMENT_CLIENTS;
use tidegate_sched::AppId;

/// Files of one copy of an application.
const FILES_MAX: u64 = 1 << 20;
/// Processes of all applications of a run: some hundred bytes of memory each.
const PROCESSES_MAX: u64 = 1 << 20;

/// The keys of `[[application]]` that are not the workload's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    name: Option<String>,
    workload: String,
    #[serde(default = "one")]
    pub(super) copies: u32,
    #[serde(default = "one")]
    processes: u32,
    #[serde(default = "processes_per_node")]
    pub(super) processes_per_node: u32,
    #[serde(default)]
    pub(super) start: Duration,
    /// Longest random delay of a copy's start.
    #[serde(default)]
    pub(super) start_spread: Duration,
    /// Longest random delay of a process's start, after its copy's.
    #[serde(default)]
    pub(super) process_spread: Duration,
    /// What each copy is promised.
    pub(super) share: Option<toml::Value>,
    /// Whether it counts in metrics of operations and applications, and the run waits for its end.
    #[serde(default = "yes")]
    pub(super) measured: bool,
    /// The latency target in windows, instead of that of its share.
    pub(super) within: Option<Duration>,
    /// Whether each process calls fsync on the files that it wrote before it ends.
    #[serde(default)]
    fsync: bool,
}

fn yes() -> bool {
    true
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
    "share",
    "measured",
    "within",
    "fsync",
];

/// What the processes of an application do.
#[derive(Clone, Debug)]
pub(super) enum Load {
    Made(Box<Workload>),
    Replayed(Replay),
}

impl Load {
    /// What a reader should know of the traces behind it.
    pub(super) fn warnings(&self) -> &[String] {
        match self {
            Load::Made(_) => &[],
            Load::Replayed(replay) => replay.warnings(),
        }
    }
}

/// An application and the programs of its processes.
pub(super) type Programs = (String, Vec<Box<dyn Program>>);

impl Load {
    /// Names of the applications of one copy: a trace can hold several.
    pub(super) fn names(&self, group: &Group, name: &str) -> Vec<String> {
        let named = |recorded: &str| match &group.name {
            None if group.copies == 1 => recorded.to_string(),
            _ => format!("{name}/{recorded}"),
        };
        match self {
            Load::Made(_) => vec![name.to_string()],
            Load::Replayed(replay) => replay.names().map(named).collect(),
        }
    }

    /// The applications of one copy.
    pub(super) fn programs(
        &self,
        group: &Group,
        name: &str,
        start_ns: u64,
        place: Place,
        rng: &mut Rng,
    ) -> Vec<Programs> {
        let made = match self {
            Load::Made(workload) => {
                // No two applications share a file.
                let file_base = (1 + AppId::from_name(name).0 % (1 << 40)) * FILES_MAX;
                let programs = workload.programs(group.processes, file_base, place, rng);
                vec![(name.to_string(), programs)]
            }
            Load::Replayed(replay) => {
                let names = self.names(group, name).into_iter().enumerate();
                let named = |(app, name)| (name, replay.programs(app, start_ns));
                names.map(named).collect()
            }
        };
        if !group.fsync {
            return made;
        }
        let synced = |program| -> Box<dyn Program> { Box::new(Synced::new(program)) };
        let made = made.into_iter();
        made.map(|(name, programs)| (name, programs.into_iter().map(synced).collect()))
            .collect()
    }
}

/// The size of all applications together.
#[derive(Default)]
struct Size {
    processes: u64,
    nodes: u64,
}

impl Size {
    /// Counts the copies of a group whose programs have this number of processes. The error names
    /// the key and the reason; nothing was built yet.
    fn add(
        &mut self,
        group: &Group,
        programs: impl Iterator<Item = u32>,
    ) -> Result<(), (String, String)> {
        let (mut processes, mut nodes) = (0u64, 0u64);
        for count in programs {
            processes += u64::from(count);
            nodes += u64::from(count.div_ceil(group.processes_per_node));
        }
        let copies = u64::from(group.copies);
        self.processes = self
            .processes
            .saturating_add(processes.saturating_mul(copies));
        self.nodes = self.nodes.saturating_add(nodes.saturating_mul(copies));
        let key = match copies > processes {
            true => "copies",
            false => "processes",
        };
        let most = [
            ("processes", self.processes, PROCESSES_MAX),
            ("nodes", self.nodes, SEGMENT_CLIENTS as u64),
        ];
        for (what, count, most) in most {
            if count > most {
                let reason =
                    format!("that makes {count} {what} of all applications; at most {most}");
                return Err((key.to_string(), reason));
            }
        }
        Ok(())
    }
}

impl Group {
    pub(super) fn copy_name(&self, number: usize, copy: u32) -> String {
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

/// Takes the applications out of a scenario's table.
pub(super) fn groups(
    source: &Source,
    table: &mut toml::Table,
) -> Result<Vec<(Group, Load)>, ScenarioError> {
    let mut groups = Vec::new();
    let mut size = Size::default();
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
        let group: Group = source.shape(&place, own)?;
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
        if group.workload != "trace" {
            size.add(&group, [group.processes].into_iter())
                .map_err(at_key)?;
        }
        if group.workload != "trace" && !Workload::NAMES.contains(&&*group.workload) {
            let known = Workload::NAMES.join(", ");
            let reason = format!("there is no {:?}; there are {known}, trace", group.workload);
            return Err(source.wrong(&format!("{place}.workload"), reason));
        }
        let load = if group.workload == "trace" {
            let options = source.shape(&place, entry)?;
            let replay = Replay::read(options, &source.folder()).map_err(at_key)?;
            size.add(&group, replay.clients()).map_err(at_key)?;
            Load::Replayed(replay)
        } else {
            let workload = Workload::read(&group.workload, entry)
                .map_err(|message| source.wrong_shape(&place, &message))?;
            workload.check(group.processes).map_err(at_key)?;
            Load::Made(Box::new(workload))
        };
        groups.push((group, load));
    }
    if groups.is_empty() {
        return Err(source.wrong("", "no [[application]]: there is nothing to run"));
    }
    if groups.iter().all(|(group, _)| !group.measured) {
        return Err(source.wrong("application", "none is measured: the run would end at once"));
    }
    Ok(groups)
}
