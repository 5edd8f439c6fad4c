//! From settings as they were written to a checked configuration.

use super::source::{Entry, Section, unknown};
use super::{
    Address, Config, ConfigError, Emulation, Engine, Faults, Io, LogLevel, Place, Source,
    TraceOptions, Value,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use tidegate_device::{Device, DeviceOptions, OptionsError as DeviceError, PRESETS};
use tidegate_forward::CLIENTS_MAX;
use tidegate_sched::{
    CostModel, Options, OptionsError, PolicyOptions, PolicySpec, Scheduler, policies,
};
use tidegate_wire::{ADDRESS_MAX, ADDRESSES_MAX, Layout, PAYLOAD_LIMIT, Pipelining};

/// Width of a window on solid-state devices where the configuration names none, as in Song et al.
const WINDOW_MS_SSD: u64 = 250;

/// Most threads that serve connections.
const REACTORS_MAX: u64 = 64;

const SECTIONS: &str = "[ownership], [ownership.etcd], [storage], [scheduler], [device], \
                        [emulation], [trace], [log], [[app]], [[group]], [[view]]";

impl Config {
    /// Checks settings.
    pub fn from_source(mut source: Source) -> Result<Config, ConfigError> {
        let shares = super::shares::from_source(&mut source)?;
        let mut log = source.section("log");
        let level = log_level(&mut log)?;
        log.finish()?;
        let (device, window_ms) = device(source.section("device"))?;
        let emulation = emulation(source.section("emulation"))?;
        let trace = trace(source.section("trace"))?;
        let etcd = super::etcd::etcd(source.section("ownership.etcd"))?;
        let ownership = super::ownership::ownership(source.section("ownership"), etcd)?;
        let storage = super::storage::storage(source.section("storage"), device.is_some())?;
        let scheduler = source.section("scheduler");
        let depth_written = scheduler.place("depth").is_some();
        let mut top = source.section("");
        let threads = top.number("threads", 8, (1, 1024))? as u32;
        let by_storage = match (storage.io, storage.engine) {
            (Io::Buffered, _) | (_, Engine::Threads) => threads,
            (Io::Direct, _) => storage.depth,
        };
        let depth = device.as_ref().map_or(by_storage, DeviceOptions::depth);
        let defaults = Options {
            depth,
            ..Options::default()
        };
        let scheduler = options(scheduler, defaults, window_ms)?;
        let config = Config {
            export: export(&mut top)?,
            layout: layout(&mut top)?,
            forwarder: 0,
            listen: Vec::new(),
            advertise: Vec::new(),
            secret_file: top
                .text("secret_file")?
                .map(|(path, _)| PathBuf::from(path)),
            pid_file: top.text("pid_file")?.map(|(path, _)| PathBuf::from(path)),
            insecure: top.bool("insecure", false)?,
            fail_over: top.bool("fail_over", true)?,
            ownership,
            payload_max: top.number("payload_max", 1 << 20, (4096, PAYLOAD_LIMIT.into()))? as u32,
            pipelining: pipelining(&mut top)?,
            pool_bytes: 0,
            credits: top.number("credits", 32, (1, 4096))? as u32,
            sessions_max: top.number("sessions_max", 4096, (1, CLIENTS_MAX as u64))? as u32,
            lease_ms: top.number("lease_ms", 60_000, (100, 86_400_000))? as u32,
            grace_ms: top.number("grace_ms", 20_000, (0, 86_400_000))? as u32,
            shared_memory: top.bool("shared_memory", true)?,
            stall_ms: top.number("stall_ms", 30_000, (100, 86_400_000))? as u32,
            threads,
            reactors: top.number("reactors", default_reactors(), (1, REACTORS_MAX))? as u32,
            storage,
            depth_written,
            scheduler,
            shares,
            window_ms,
            device,
            emulation,
            trace,
            log: level,
            faults: Faults::default(),
        };
        finish(config, top)
    }
}

/// Threads that serve connections where nothing is said: storage, clients and the core's own thread
/// want cores too.
fn default_reactors() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    reactors_of(cores as u64)
}

/// The same for so many cores.
pub(super) fn reactors_of(cores: u64) -> u64 {
    match cores {
        0..8 => 1,
        _ => (cores / 4).min(8),
    }
}

/// Reads the settings that depend on others.
fn finish(mut config: Config, mut top: Section) -> Result<Config, ConfigError> {
    // A payload's memory is a power of two.
    let least = u64::from(config.payload_max).next_power_of_two();
    config.pool_bytes = top.number("pool_bytes", (256 << 20).max(least), (least, 1 << 40))?;
    let index = top.take("forwarder");
    config.forwarder = match index {
        None => 0,
        Some(entry) => forwarder(&entry, config.layout.seats)?,
    };
    let advice = "say where to listen, such as [\"unix:/run/tidegate/0.sock\"]";
    let Some((texts, place)) = top.texts("listen")? else {
        return Err(top.missing("listen", advice));
    };
    for text in texts {
        let address = text
            .parse()
            .map_err(|what: String| ConfigError::new(&place, what))?;
        config.listen.push(address);
    }
    if config.listen.is_empty() {
        return Err(ConfigError::new(
            &place,
            format!("listen is empty: {advice}"),
        ));
    }
    config.advertise = advertise(&mut top)?;
    let remote = config.listen.iter().any(Address::is_remote);
    if remote && config.secret_file.is_none() && !config.insecure {
        let what = "listening on TCP needs secret_file = \"FILE\" (the same at every client), \
                    or insecure = true if everyone who can connect may read and write";
        return Err(ConfigError::new(&place, what));
    }
    finish_top(top)?;
    Ok(config)
}

/// Where clients are told to come.
fn advertise(top: &mut Section) -> Result<Vec<Address>, ConfigError> {
    let Some((texts, place)) = top.texts("advertise")? else {
        return Ok(Vec::new());
    };
    if texts.is_empty() || texts.len() > ADDRESSES_MAX {
        let what = format!(
            "advertise must name 1 to {ADDRESSES_MAX} addresses, or be left out: then clients are \
             told what listen says"
        );
        return Err(ConfigError::new(&place, what));
    }
    let wrong = |what: String| ConfigError::new(&place, what);
    let parse = |text: &String| {
        let unfit = text.contains([' ', ',', ';', '#']) || text.len() > ADDRESS_MAX;
        match text.parse() {
            Ok(Address {
                provider: None,
                place: Place::Tcp(host),
            }) if host.starts_with("0.0.0.0:") || host.starts_with("[::]:") => Err(wrong(format!(
                "advertise: nobody can connect to \"{text}\"; name the node"
            ))),
            _ if unfit => Err(wrong(format!(
                "advertise: \"{text}\" is longer than {ADDRESS_MAX} bytes or holds a space, \
                 comma, semicolon or #"
            ))),
            parsed => parsed.map_err(wrong),
        }
    };
    texts.iter().map(parse).collect()
}

fn finish_top(mut top: Section) -> Result<(), ConfigError> {
    let known = format!("{}, {SECTIONS}", top.known().join(", "));
    match top.rest().into_iter().next() {
        None => Ok(()),
        Some((key, entry)) if entry.value == Value::Other("a section") => {
            let what = format!("unknown section [{key}]; known: {SECTIONS}");
            Err(ConfigError::new(&entry.place, what))
        }
        Some((key, entry)) => Err(unknown("", &key, &entry.place, &known)),
    }
}

/// Reads a `[scheduler]` table that came at run time, as text without the heading. What it leaves
/// out gets its default, but for the depth and the cost model, which stay as they are `now`.
pub fn scheduler_options(text: &str, now: &Options) -> Result<Options, ConfigError> {
    scheduler_options_on(text, now, None)
}

/// The same on a device that has a default width of windows: [`Config::window_ms`].
pub fn scheduler_options_on(
    text: &str,
    now: &Options,
    window_ms: Option<u64>,
) -> Result<Options, ConfigError> {
    let mut parsed = Source::parse(text, "policy")?;
    let mut source = Source::empty("policy");
    for (key, entry) in parsed.section("").rest() {
        source.set("scheduler", &key, entry.value, &entry.place);
    }
    let defaults = Options {
        depth: now.depth,
        cost: now.cost,
        estimate: now.estimate,
        wall_offset_ns: now.wall_offset_ns,
        ..Options::default()
    };
    options(source.section("scheduler"), defaults, window_ms)
}

/// Checks the section `scheduler` of settings.
pub fn check_scheduler(mut source: Source, depth: u32) -> Result<Options, ConfigError> {
    let defaults = Options {
        depth,
        ..Options::default()
    };
    options(source.section("scheduler"), defaults, None)
}

fn export(top: &mut Section) -> Result<PathBuf, ConfigError> {
    match top.text("export")? {
        Some((path, _)) if !path.is_empty() => Ok(path.into()),
        Some((_, place)) => Err(ConfigError::new(
            &place,
            "export is empty: name a directory",
        )),
        None => Err(top.missing("export", "name the directory to export")),
    }
}

fn layout(top: &mut Section) -> Result<Layout, ConfigError> {
    let seats = top.number("seats", 1, (1, 4096))? as u16;
    let entry = top.take("stripe");
    let stripe = match entry {
        None => 1 << 20,
        Some(entry) => {
            let (value, written) = match &entry.value {
                Value::Integer(number) => (u64::try_from(*number).ok(), number.to_string()),
                Value::Text(text) => (super::parse_bytes(text), format!("\"{text}\"")),
                _ => (None, "this".to_string()),
            };
            let good = |bytes: &u64| bytes.is_power_of_two() && (4096..=1 << 40).contains(bytes);
            value.filter(good).ok_or_else(|| {
                let what = format!("stripe = {written} must be a power of two of at least 4096");
                ConfigError::new(&entry.place, what)
            })?
        }
    };
    Ok(Layout { seats, stripe })
}

fn pipelining(top: &mut Section) -> Result<Pipelining, ConfigError> {
    let Some((name, place)) = top.text("pipelining")? else {
        return Ok(Pipelining::default());
    };
    Pipelining::from_name(&name).ok_or_else(|| {
        let names = Pipelining::ALL.map(Pipelining::name).join(", ");
        let what = format!("pipelining = \"{name}\" must be one of {names}");
        ConfigError::new(&place, what)
    })
}

fn forwarder(entry: &Entry, seats: u16) -> Result<u16, ConfigError> {
    match entry.value {
        Value::Integer(index) if (0..i64::from(seats)).contains(&index) => Ok(index as u16),
        Value::Integer(index) => {
            let what = format!("forwarder = {index} must be below seats = {seats}");
            Err(ConfigError::new(&entry.place, what))
        }
        _ => Err(ConfigError::new(
            &entry.place,
            "forwarder must be a whole number",
        )),
    }
}

fn log_level(log: &mut Section) -> Result<LogLevel, ConfigError> {
    let Some((name, place)) = log.text("level")? else {
        return Ok(LogLevel::default());
    };
    LogLevel::from_name(&name).ok_or_else(|| {
        let what = format!(
            "level = \"{name}\" must be one of {}",
            LogLevel::NAMES.join(", ")
        );
        ConfigError::new(&place, what)
    })
}

fn emulation(mut section: Section) -> Result<Emulation, ConfigError> {
    let emulation = Emulation {
        message_jitter_us: section.number("message_jitter_us", 0, (0, 10_000_000))? as u32,
        message_jitter_seed: section.number("message_jitter_seed", 0, (0, i64::MAX as u64))?,
    };
    section.finish()?;
    Ok(emulation)
}

/// Records that a recorder holds in memory: 6 MiB, two seconds of 30 000 requests a second.
const BUFFER_RECORDS: u64 = 1 << 16;

fn trace(mut section: Section) -> Result<Option<TraceOptions>, ConfigError> {
    let advice = "name the file to record into";
    let file = section.text("file")?;
    let written = file.is_some() || !section.is_empty();
    let buffer = section.number("buffer_records", BUFFER_RECORDS, (1, 1 << 24))?;
    if written && file.is_none() {
        // What is unknown is told first: it may be the file, misspelt.
        let missing = section.missing("file", advice);
        section.finish()?;
        return Err(missing);
    }
    section.finish()?;
    match file {
        Some((file, place)) if file.is_empty() => {
            let what = format!("file is empty: {advice}");
            Err(ConfigError::new(&place, what))
        }
        file => Ok(file.map(|(file, _)| TraceOptions {
            file: file.into(),
            buffer_records: buffer as u32,
        })),
    }
}

/// The emulated device, and its width of windows if that is not the policy's own default.
fn device(mut section: Section) -> Result<(Option<DeviceOptions>, Option<u64>), ConfigError> {
    let model = section.text("model")?;
    let Some((model, place)) = model.filter(|(name, _)| name != "none") else {
        section.finish()?;
        return Ok((None, None));
    };
    let mut options = DeviceOptions::preset(&model).map_err(|_| {
        let known = PRESETS.join(", ");
        let what = format!("there is no device model \"{model}\"; known: none, {known}");
        ConfigError::new(&place, what)
    })?;
    for (key, entry) in section.rest() {
        let value = match &entry.value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Text(text) => super::parse_bytes(text),
            _ => None,
        };
        let Some(value) = value else {
            return Err(ConfigError::new(
                &entry.place,
                format!("{key} must be a whole number"),
            ));
        };
        options.set(&key, value).map_err(|error| match error {
            DeviceError::UnknownOption { known, .. } => {
                unknown("device", &key, &entry.place, &format!("model, {known}"))
            }
            error => ConfigError::new(&entry.place, error.to_string()),
        })?;
    }
    match Device::new(&options) {
        Ok(_) => {
            let window_ms = model.starts_with("ssd-").then_some(WINDOW_MS_SSD);
            Ok((Some(options), window_ms))
        }
        Err(error) => Err(ConfigError::new(&place, error.to_string())),
    }
}

/// Bytes of a cost model beyond which it is none.
const COST_BYTES_MAX: u64 = 1 << 16;

/// The cost model in the file that is named, or the one there is.
fn cost(section: &mut Section, default: CostModel) -> Result<CostModel, ConfigError> {
    let Some((path, place)) = section.text("cost_file")? else {
        return Ok(default);
    };
    let refused = |what: &dyn std::fmt::Display| {
        let what =
            format!("cost_file {path}: {what}; `tidegate calibrate DIR --output FILE` writes one");
        ConfigError::new(&place, what)
    };
    let mut text = String::new();
    // Looked at before it is opened: a pipe would be waited for.
    let read = std::fs::metadata(&path).and_then(|found| match found.is_file() {
        true => File::open(&path)?
            .take(COST_BYTES_MAX)
            .read_to_string(&mut text),
        false => Err(io::Error::other("is not a file")),
    });
    match read {
        Err(error) => Err(refused(&format_args!("cannot be read: {error}"))),
        Ok(_) => CostModel::parse(&text).map_err(|error| refused(&error)),
    }
}

/// The scheduler's options; `window_ms` stands where a policy that has windows is given no width.
fn options(
    mut section: Section,
    defaults: Options,
    window_ms: Option<u64>,
) -> Result<Options, ConfigError> {
    let policy = section.text("policy")?;
    let (policy, place) = policy.unwrap_or((defaults.policy.clone(), String::new()));
    let merge = match section.take("merge") {
        None => None,
        Some(Entry {
            value: Value::Bool(merge),
            ..
        }) => Some(merge),
        Some(entry) => {
            return Err(ConfigError::new(
                &entry.place,
                "merge must be true or false",
            ));
        }
    };
    let queued_max = section.number("queued_max", defaults.queued_max.into(), (1, 1 << 26))?;
    let bytes_max = section.number("batch_bytes_max", defaults.batch_bytes_max, (1, 1 << 40))?;
    let requests_max = defaults.batch_requests_max.into();
    let mut options = Options {
        policy,
        queued_max: queued_max as u32,
        depth: section.number("depth", defaults.depth.into(), (1, 1 << 16))? as u32,
        merge,
        cost: cost(&mut section, defaults.cost)?,
        estimate: section.bool("cost_estimate", defaults.estimate)?,
        batch_bytes_max: bytes_max,
        batch_requests_max: section.number("batch_requests_max", requests_max, (1, 1 << 16))?
            as u32,
        ..defaults
    };
    let own = section.rest();
    options.table = policy_options(&own)?;
    let has_windows =
        |policy: &PolicySpec| policy.options.iter().any(|one| one.name == "window_ms");
    if policies::find(&options.policy).is_some_and(has_windows)
        && !own.contains_key("window_ms")
        && let Some(width) = window_ms
    {
        options.table.set("window_ms", width);
    }
    match Scheduler::new(&options) {
        Ok(_) => Ok(options),
        Err(error) => Err(refused(&error, &own, &place, section.known())),
    }
}

/// The policy's own options, which only the policy can judge.
fn policy_options(own: &BTreeMap<String, Entry>) -> Result<PolicyOptions, ConfigError> {
    let mut table = PolicyOptions::default();
    for (key, entry) in own {
        match &entry.value {
            Value::Integer(number) => match u64::try_from(*number) {
                Ok(number) => table.set(key, number),
                Err(_) => {
                    let what = format!("{key} = {number} must not be negative");
                    return Err(ConfigError::new(&entry.place, what));
                }
            },
            Value::Bool(value) => table.set(key, *value),
            // A number of bytes may have a unit, as everywhere in the file.
            Value::Text(text) if key.ends_with("_bytes") => match super::parse_bytes(text) {
                Some(bytes) => table.set(key, bytes),
                None => table.set(key, text.as_str()),
            },
            Value::Text(text) => table.set(key, text.as_str()),
            _ => {
                let what = format!("{key} must be a whole number, true or false, or text");
                return Err(ConfigError::new(&entry.place, what));
            }
        }
    }
    Ok(table)
}

fn refused(
    error: &OptionsError,
    own: &BTreeMap<String, Entry>,
    policy_place: &str,
    known: &[&str],
) -> ConfigError {
    let place_of = |option: &str| own.get(option).map_or(policy_place, |entry| &entry.place);
    match error {
        OptionsError::UnknownOption {
            option,
            known: of_policy,
            ..
        } => {
            let all = [known, of_policy.as_slice()].concat().join(", ");
            unknown("scheduler", option, place_of(option), &all)
        }
        OptionsError::UnknownWord { option, .. }
        | OptionsError::WrongType { option, .. }
        | OptionsError::OutOfRange { option, .. } => {
            ConfigError::new(place_of(option), error.to_string())
        }
        OptionsError::NoPrediction => {
            let what = "prediction = \"recorded\" is for the simulator and the C library, \
                        which are given traces; a forwarder can have \"online\"";
            ConfigError::new(place_of("prediction"), what.to_string())
        }
        _ => ConfigError::new(policy_place, error.to_string()),
    }
}
