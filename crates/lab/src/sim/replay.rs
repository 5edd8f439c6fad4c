//! `tidegate sim --trace`: makes a scenario from traces.

use std::path::{Path, PathBuf};
use tidegate_cli::fail::Fail;
use tidegate_sched::policies;
use tidegate_trace::{Header, Merged};
use toml::{Table, Value};

const FORWARDERS: u16 = 4;

/// Traces and the machine that they are replayed on.
#[derive(clap::Args)]
pub struct Replay {
    /// Replay a trace, or those of a folder as one; may be repeated, for loads side by side
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Policies to compare, such as fifo,window; otherwise those of the scenario, and all for
    /// traces
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,
    /// With --trace: forwarders; as many as recorded otherwise, or 4
    #[arg(long, value_name = "N", requires = "traces")]
    forwarders: Option<u16>,
    /// With --trace: model of the devices: hdd-7200, hdd-ncq, ssd-sata, ssd-pcie or ideal
    #[arg(
        long,
        value_name = "MODEL",
        default_value = "hdd-7200",
        requires = "traces"
    )]
    device: String,
    /// With --trace: what accesses cost, as `tidegate calibrate` writes it, for policies that ask;
    /// instead of what is measured on the model of the device
    #[arg(long, value_name = "FILE", requires = "traces")]
    cost_file: Option<PathBuf>,
    /// With --trace: network: gigabit-ethernet, infiniband-4x, myrinet-10g, ethernet-100g or ideal
    #[arg(
        long,
        value_name = "PRESET",
        default_value = "ethernet-100g",
        requires = "traces"
    )]
    network: String,
    /// With --trace: accesses come at their recorded times, or as answers come
    #[arg(
        long,
        value_name = "PACE",
        default_value = "recorded",
        requires = "traces",
        value_parser = ["recorded", "closed"]
    )]
    pace: String,
    /// With --trace: recorded times pass so much faster
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "traces")]
    speed: f64,
}

impl Replay {
    /// Whether there is something to replay.
    pub fn is_wanted(&self) -> bool {
        !self.traces.is_empty()
    }

    /// The scenario's text: what `--show` prints, and a scenario of one's own can begin with.
    pub fn scenario(&self) -> Result<String, Fail> {
        let mut headers = Vec::new();
        let mut applications = Vec::new();
        for trace in &self.traces {
            let files = tidegate_cli::trace::files(trace)?;
            let traces = Merged::open(&files).map_err(Fail::usage)?;
            headers.extend(traces.headers().cloned());
            applications.push(Value::Table(self.application(trace, &files)));
        }
        let table = |pairs: Vec<(&str, Value)>| -> Value {
            let pairs = pairs.into_iter();
            Value::Table(pairs.map(|(key, value)| (key.to_string(), value)).collect())
        };
        let mut forwarders = vec![("count", Value::from(i64::from(self.count(&headers))))];
        if let Some(stripe) = alike(&headers, |header| header.stripe) {
            forwarders.push(("stripe", Value::Integer(stripe as i64)));
        }
        let policies: Vec<Value> = match self.policies.is_empty() {
            true => policies::NAMES
                .iter()
                .map(|name| Value::from(*name))
                .collect(),
            false => self.policies.iter().cloned().map(Value::from).collect(),
        };
        let also = [
            "completion_p50",
            "completion_p99",
            "completion_max",
            "application_completion_mean",
            "makespan",
            "bandwidth",
            "utilisation",
            "jain",
            "wait_mean",
            "lag_max",
        ];
        let mut scenario = vec![
            ("title", Value::from(self.title())),
            ("protocol", Value::from(self.protocol())),
            ("policies", Value::from(policies)),
            (
                "network",
                table(vec![("preset", Value::from(self.network.as_str()))]),
            ),
            ("forwarders", table(forwarders)),
            (
                "device",
                table(vec![("model", Value::from(self.device.as_str()))]),
            ),
            ("application", Value::from(applications)),
            (
                "figure",
                table(vec![
                    ("metric", Value::from("completion_mean")),
                    ("also", Value::from(also.to_vec())),
                    ("requests", Value::from(true)),
                ]),
            ),
        ];
        if let Some(file) = &self.cost_file {
            let file = Value::from(file.display().to_string());
            scenario.push(("cost", table(vec![("file", file)])));
        }
        toml::to_string(&table(scenario)).map_err(Fail::runtime)
    }

    fn application(&self, trace: &Path, files: &[PathBuf]) -> Table {
        let names = files
            .iter()
            .map(|file| Value::from(file.display().to_string()));
        let mut table = Table::new();
        table.insert("workload".into(), "trace".into());
        if self.traces.len() > 1 {
            // Two traces can hold applications of the same name.
            let name = trace.file_stem().unwrap_or_default().to_string_lossy();
            table.insert("name".into(), name.into_owned().into());
        }
        table.insert("files".into(), Value::Array(names.collect()));
        table.insert("pace".into(), self.pace.clone().into());
        table.insert("speed".into(), self.speed.into());
        // What the trace calls a client was a node.
        table.insert("processes_per_node".into(), 1.into());
        table
    }

    fn count(&self, headers: &[Header]) -> u16 {
        let recorded = alike(headers, |header| u64::from(header.forwarders));
        let recorded = recorded.and_then(|count| u16::try_from(count).ok());
        self.forwarders.or(recorded).unwrap_or(FORWARDERS)
    }

    fn title(&self) -> String {
        let names = self.traces.iter().map(|trace| trace.display().to_string());
        format!("Replay of {}", names.collect::<Vec<_>>().join(", "))
    }

    fn protocol(&self) -> String {
        match self.pace.as_str() {
            "closed" => {
                "closed loop: each client's next access when the last one is answered".into()
            }
            _ if self.speed == 1.0 => "open loop: accesses at the recorded times".into(),
            _ => format!(
                "open loop: accesses at the recorded times, {} times as fast",
                self.speed
            ),
        }
    }
}

/// What all headers that know it agree on.
fn alike(headers: &[Header], what: impl Fn(&Header) -> u64) -> Option<u64> {
    let mut known = headers.iter().map(what).filter(|value| *value > 0);
    let first = known.next()?;
    known.all(|other| other == first).then_some(first)
}
