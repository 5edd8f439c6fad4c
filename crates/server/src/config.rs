//! What a forwarder is told at its start, checked; every refusal says what, where and what to do.

mod etcd;
mod ownership;
mod read;
mod shares;
mod source;
mod storage;
mod units;

pub use etcd::EtcdOptions;
pub use ownership::{Durability, OwnershipOptions};
pub use read::{check_scheduler, scheduler_options, scheduler_options_on};
pub use shares::{rules, rules_file, same_match};
pub use source::{Source, Value};
pub use storage::{Engine, Io, StorageOptions};
pub use tidegate_forward::share_rules as rule;
pub use tidegate_net::{Address, Place};

use std::path::{Path, PathBuf};
use tidegate_device::DeviceOptions;
use tidegate_forward::share_rules::Rules;
use tidegate_wire::{Layout, Pipelining};

/// A forwarder's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory that is exported; nothing above it can be reached.
    pub export: PathBuf,
    /// This forwarder's index in the layout.
    pub forwarder: u16,
    /// How files are spread over the forwarders; the same at all of them.
    pub layout: Layout,
    /// Where to listen.
    pub listen: Vec<Address>,
    /// Where clients are told that it is; empty: where it listens.
    pub advertise: Vec<Address>,
    /// File that holds the shared secret, for TCP.
    pub secret_file: Option<PathBuf>,
    /// Where `serve` writes its process id.
    pub pid_file: Option<PathBuf>,
    /// TCP without a secret was asked for by name.
    pub insecure: bool,
    /// Whether this forwarder stands in for others that died.
    pub fail_over: bool,
    /// How forwarders keep seats apart.
    pub ownership: OwnershipOptions,
    /// Largest payload of one frame.
    pub payload_max: u32,
    /// The most that clients may have under way at once of a transfer.
    pub pipelining: Pipelining,
    /// Bytes of payload in hand for all sessions together.
    pub pool_bytes: u64,
    /// Requests that one session may have unanswered.
    pub credits: u32,
    /// Sessions at once.
    pub sessions_max: u32,
    /// How long a client's opens and locks outlive its last connection.
    pub lease_ms: u32,
    /// How long a seat that changed hands waits for reclaims.
    pub grace_ms: u32,
    /// How long a connection may keep others waiting: amid a frame, without a hello, or by not
    /// reading its replies.
    pub stall_ms: u32,
    /// Payload of clients on this node goes through memory that they offer.
    pub shared_memory: bool,
    /// Storage threads.
    pub threads: u32,
    /// Threads that serve connections.
    pub reactors: u32,
    /// How data reaches the back end.
    pub storage: StorageOptions,
    /// Whether the scheduler's depth was written down, and does not follow from the storage.
    pub depth_written: bool,
    /// Which request goes next.
    pub scheduler: tidegate_sched::Options,
    /// Who is promised what.
    pub shares: Rules,
    /// Width of a window where none is named, if the device asks for another than the policy's.
    pub window_ms: Option<u64>,
    /// The emulated device, if any.
    pub device: Option<DeviceOptions>,
    /// Properties of other machines, for tests and benchmarks.
    pub emulation: Emulation,
    /// Where requests are recorded, if they are.
    pub trace: Option<TraceOptions>,
    /// What is logged.
    pub log: LogLevel,
    /// Faults on purpose, for tests.
    pub faults: Faults,
}

/// Properties of other machines, for tests and benchmarks on this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    /// Every request is delayed on its way by up to this; 0: not at all.
    pub message_jitter_us: u32,
    /// The delays follow from it.
    pub message_jitter_seed: u64,
}

/// Where requests are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// The file, or a pipe that somebody reads.
    pub file: PathBuf,
    /// Records held in memory while the file is slow; what comes when all are in use is dropped
    /// and counted.
    pub buffer_records: u32,
}

/// Faults on purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The process kills itself when it accepts the request of this number, counted from 1.
    pub kill_at_request: Option<u64>,
    /// The process kills itself after the effect, and before the record of the result, of the
    /// n-th operation of this name.
    pub kill_after_effect: Option<(String, u64)>,
    /// The mount of the back end is found dead when the job of this number has taken effect.
    pub dead_mount_at: Option<u64>,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the levels say it")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The names, as the configuration spells them.
    pub const NAMES: &[&str] = &["error", "warn", "info", "debug", "trace"];

    /// The level of that name.
    pub fn from_name(name: &str) -> Option<LogLevel> {
        use LogLevel::*;
        let at = LogLevel::NAMES.iter().position(|known| *known == name)?;
        Some([Error, Warn, Info, Debug, Trace][at])
    }
}

/// Why a configuration was refused: one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ConfigError {
    place: String,
    what: String,
}

impl ConfigError {
    pub(crate) fn new(place: &str, what: impl Into<String>) -> ConfigError {
        ConfigError {
            place: place.to_string(),
            what: what.into(),
        }
    }
}

impl ConfigError {
    /// What is wrong and what to do, without the place.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl Config {
    /// Reads and checks a configuration file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        Config::from_source(Source::read(path)?)
    }

    /// The defaults over one directory and one address, for programs that embed a forwarder.
    pub fn local(export: &Path, listen: Address) -> Config {
        let mut source = Source::empty("defaults");
        source.set(
            "",
            "export",
            Value::Text(export.display().to_string()),
            "export",
        );
        source.set("", "listen", Value::Text(listen.to_string()), "listen");
        source.set("", "insecure", Value::Bool(true), "insecure");
        Config::from_source(source).expect("the defaults are valid")
    }
}

/// Bytes from text: a number, or one with `KiB`, `MiB`, `GiB` (also `K`, `M`, `G`) behind it.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let source = Source::parse(text, "f.toml").map_err(|error| error.to_string())?;
        Config::from_source(source).map_err(|error| error.to_string())
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err("must be refused")
    }

    const GOOD: &str = "export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n";

    #[test]
    fn a_small_file_gets_the_defaults() {
        let config = parse(GOOD).expect("it is valid");
        assert_eq!(
            config.layout,
            Layout {
                seats: 1,
                stripe: 1 << 20
            }
        );
        assert!(config.fail_over && config.device.is_none());
        assert_eq!(config.scheduler.policy, "fifo");
        assert_eq!(config.scheduler.depth, config.threads);
        assert!((1..=8).contains(&config.reactors));
    }

    #[test]
    fn unknown_keys_are_refused_by_name_and_line() {
        let error = refusal(&format!("{GOOD}strip = 4096\n"));
        assert!(error.starts_with("f.toml:3: unknown key \"strip\" in the first section; known:"));
        let error = refusal(&format!("{GOOD}[log]\nlevel = \"info\"\ncolour = 1\n"));
        assert_eq!(
            error,
            "f.toml:5: unknown key \"colour\" in [log]; known: level"
        );
        let error = refusal(&format!("{GOOD}[schedule]\npolicy = \"fifo\"\n"));
        assert!(
            error.starts_with("f.toml:3: unknown section [schedule]; known:"),
            "{error}"
        );
        let error = refusal(&format!(
            "{GOOD}[scheduler]\npolicy = \"fifo\"\nquantums = 3\n"
        ));
        assert!(
            error.starts_with("f.toml:5: unknown key \"quantums\" in [scheduler]"),
            "{error}"
        );
    }

    #[test]
    fn wrong_values_say_what_where_and_what_to_do() {
        let cases = [
            (
                "stripe = 5000\n",
                "f.toml:3: stripe = 5000 must be a power of two of at least 4096",
            ),
            (
                "seats = 0\n",
                "f.toml:3: seats = 0 must be a number from 1 to",
            ),
            (
                "threads = \"many\"\n",
                "f.toml:3: threads = \"many\" must be a number",
            ),
            (
                "forwarder = 4\nseats = 4\n",
                "f.toml:3: forwarder = 4 must be below seats = 4",
            ),
            (
                "pipelining = \"both\"\n",
                "f.toml:3: pipelining = \"both\" must be one of none, serial, parallel",
            ),
            (
                "fail_over = 1\n",
                "f.toml:3: fail_over must be true or false",
            ),
            (
                "[device]\nmodel = \"tape\"\n",
                "f.toml:4: there is no device model \"tape\"",
            ),
            (
                "[scheduler]\npolicy = \"best\"\n",
                "f.toml:4: there is no policy \"best\"",
            ),
            (
                "[device]\nmodel = \"ideal\"\nrpm = 9\n",
                "f.toml:5: unknown key \"rpm\" in [device]",
            ),
            (
                "[device]\nmodel = \"ideal\"\ndepth = 0\n",
                "f.toml:5: depth = 0 is outside of",
            ),
            (
                "[emulation]\nmessage_jitter_us = -1\n",
                "f.toml:4: message_jitter_us = -1 must be a number from 0 to 10000000",
            ),
            (
                "[log]\nlevel = \"loud\"\n",
                "f.toml:4: level = \"loud\" must be one of error",
            ),
        ];
        for (text, expected) in cases {
            let error = refusal(&format!("{GOOD}{text}"));
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = refusal("export = \"/tmp\"\nlisten = [\"http:x\"]\n");
        assert!(
            error.starts_with("f.toml:2: address \"http:x\" must be unix:"),
            "{error}"
        );
        let error = refusal("export = \"/tmp\"\nlisten = [\"tcp:0.0.0.0:7\"]\n");
        assert!(error.contains("secret_file"), "{error}");
        assert!(refusal("export = [").starts_with("f.toml:1: "));
        assert!(refusal("").contains("\"export\" is missing"));
    }

    #[test]
    fn reactors_are_as_many_as_cores_let_seem_right() {
        for wrong in ["0", "65"] {
            let error = refusal(&format!("{GOOD}reactors = {wrong}\n"));
            let expected = format!("f.toml:3: reactors = {wrong} must be a number from 1 to 64");
            assert!(error.starts_with(&expected), "{error}");
        }
        assert_eq!(parse(&format!("{GOOD}reactors = 3\n")).unwrap().reactors, 3);
        let by_cores = [1, 7, 8, 16, 31, 32, 256].map(read::reactors_of);
        assert_eq!(by_cores, [1, 1, 2, 4, 7, 8, 8]);
    }

    #[test]
    fn wrong_values_of_a_policy_say_so_too() {
        let cases = [
            (
                "[scheduler]\npolicy = \"aioli\"\nquantum_bytes = -5\n",
                "f.toml:5: quantum_bytes = -5 must not be negative",
            ),
            (
                "[scheduler]\npolicy = \"aioli\"\nquantum_bytes = \"64 miles\"\n",
                "f.toml:5: quantum_bytes must be a whole number",
            ),
            (
                "[scheduler]\npolicy = \"aioli\"\nprediction = \"recorded\"\n",
                "f.toml:5: prediction = \"recorded\" is for the simulator and the C library",
            ),
            (
                "[scheduler]\ncost_file = \"/dev/null\"\n",
                "f.toml:4: cost_file /dev/null: cannot be read: is not a file",
            ),
        ];
        for (text, expected) in cases {
            let error = refusal(&format!("{GOOD}{text}"));
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn bytes_of_a_policy_may_have_a_unit() {
        let text = format!("{GOOD}[scheduler]\npolicy = \"mlf\"\nquantum_bytes = \"64 KiB\"\n");
        let table = parse(&text).expect("it is valid").scheduler.table;
        let quantum = table.iter().find(|(name, _)| *name == "quantum_bytes");
        assert_eq!(quantum.expect("it is set").1, &65_536.into());
    }

    #[test]
    fn a_trace_needs_a_file() {
        let cases = [
            (
                "[trace]\nbuffer_records = 10\n",
                "f.toml: \"file\" is missing: name the file to record into",
            ),
            (
                "[trace]\nfile = \"\"\n",
                "f.toml:4: file is empty: name the file to record into",
            ),
            (
                "[trace]\nfile = \"/t\"\nbuffer_records = 0\n",
                "f.toml:5: buffer_records = 0 must be a number from 1 to 16777216",
            ),
            (
                "[trace]\nfile = \"/t\"\nsize = 9\n",
                "f.toml:5: unknown key \"size\" in [trace]; known: file, buffer_records",
            ),
        ];
        for (text, expected) in cases {
            let error = refusal(&format!("{GOOD}{text}"));
            assert_eq!(error, expected);
        }
        let config = parse(&format!("{GOOD}[trace]\nfile = \"/t\"\n")).expect("it is valid");
        let expected = TraceOptions {
            file: "/t".into(),
            buffer_records: 65_536,
        };
        assert_eq!(config.trace, Some(expected));
        assert_eq!(parse(GOOD).expect("it is valid").trace, None);
    }

    #[test]
    fn a_cost_model_is_read_from_its_file() {
        let path = std::env::temp_dir().join(format!("tidegate-cost-{}", std::process::id()));
        let mut model = tidegate_sched::CostModel::default();
        model.read_random.base_ns = 77;
        let line = format!("cost_file = \"{}\"\n", path.display());
        let text = format!("{GOOD}[scheduler]\n{line}");
        let error = refusal(&text);
        assert!(error.starts_with("f.toml:4: cost_file /"), "{error}");
        assert!(error.contains("cannot be read: No such file"), "{error}");
        std::fs::write(&path, "# mine\nspeed = 1\n").expect("it is ours");
        let error = refusal(&text);
        assert!(
            error.contains(": line 2: a cost model has no \"speed\";"),
            "{error}"
        );
        std::fs::write(&path, model.to_string()).expect("it is ours");
        let mut options = parse(&text).expect("it is valid").scheduler;
        assert!(options.estimate && options.cost == model);
        // A change of policy keeps model and choice unless it names others.
        options.estimate = false;
        let changed = scheduler_options("policy = \"sjf\"\n", &options).expect("it is valid");
        assert_eq!((changed.cost, changed.estimate), (model, false));
        model.read_random.base_ns = 78;
        std::fs::write(&path, model.to_string()).expect("it is ours");
        let changed = format!("policy = \"sjf\"\n{line}cost_estimate = true\n");
        let changed = scheduler_options(&changed, &options).expect("it is valid");
        assert_eq!((changed.cost, changed.estimate), (model, true));
        std::fs::remove_file(&path).expect("it is ours");
    }

    #[test]
    fn windows_on_solid_state_devices_are_250_ms_wide_unless_said_otherwise() {
        let with = |window_ms: u64| {
            let mut options = tidegate_sched::Options::for_policy("window");
            options.table.set("window_ms", window_ms);
            options.table
        };
        let unset = tidegate_sched::PolicyOptions::default();
        for (device, policy, expected) in [
            ("ssd-sata", "policy = \"window\"\n", with(250)),
            ("ssd-pcie", "policy = \"window\"\n", with(250)),
            (
                "ssd-pcie",
                "policy = \"window\"\nwindow_ms = 700\n",
                with(700),
            ),
            ("ssd-pcie", "policy = \"fifo\"\n", unset.clone()),
            ("hdd-7200", "policy = \"window\"\n", unset),
        ] {
            // At the start, and as a change at run time of a forwarder that began with another.
            let device = format!("{GOOD}[device]\nmodel = \"{device}\"\n");
            let config = parse(&format!("{device}[scheduler]\n{policy}")).expect("it is valid");
            assert_eq!(config.scheduler.table, expected, "{device}{policy}");
            let config = parse(&device).expect("it is valid");
            let now = &config.scheduler;
            let changed = scheduler_options_on(policy, now, config.window_ms).expect("it is valid");
            assert_eq!(changed.table, expected, "{device}{policy}");
        }
    }

    #[test]
    fn sizes_are_numbers_or_text() {
        assert_eq!(parse_bytes("64 KiB"), Some(65536));
        assert_eq!(parse_bytes("1M"), Some(1 << 20));
        assert_eq!(parse_bytes("12"), Some(12));
        assert_eq!(parse_bytes("1.5M"), None);
        assert_eq!(parse_bytes(""), None);
        let config = parse(&format!("{GOOD}stripe = \"64 KiB\"\n")).expect("it is valid");
        assert_eq!(config.layout.stripe, 65536);
    }
}
