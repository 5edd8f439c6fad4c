//! A forwarder's configuration: the table of keys, where values come from, and the checks that one
//! row of the table cannot express. Every refusal says what is wrong, where, and what to do.

mod foretold;
mod key;
mod keys;
mod row;
mod scheduler;
mod shares;
mod source;
mod value;
mod words;

pub use key::Key;
pub use keys::{
    Config, Emulation, EtcdOptions, LogOptions, Ownership, StorageOptions, TraceOptions,
    all as keys,
};
pub use row::{Command, Kind};
pub use scheduler::{check_scheduler, scheduler_options};
pub use shares::{rules, rules_file, same_match};
pub use source::Source;
pub use tidegate_forward::share_rules as rule;
pub use tidegate_net::{Address, Encryption, Place};
pub use value::Value;
pub use words::{Durability, Engine, Io, Keeper, LogFormat, LogLevel, Munge, Sandbox};

use key::Keys;
use keys::{DeviceKeys, SECTIONS, SchedulerKeys};
use source::Section;
use std::path::Path;
use tidegate_device::{Device, DeviceOptions, OptionsError, PRESETS};
use tidegate_sched::Options;
use tidegate_wire::{ADDRESS_MAX, ADDRESSES_MAX, Layout};

/// Width of a window on solid-state devices where the configuration names none, as in Song et al.
const WINDOW_MS_SSD: u64 = 250;

/// The shortest time to live of leases in etcd, which counts whole seconds and has a minimum.
const ETCD_TTL_MS_MIN: u32 = 2000;

/// Faults on purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The process kills itself when it accepts the request of this number, counted from 1.
    pub kill_at_request: Option<u64>,
    /// The process kills itself after the effect, and before the record of the result, of the
    /// n-th operation of this name.
    pub kill_after_effect: Option<(String, u64)>,
    /// The n-th call of this operation, `write` or `fsync`, fails with this errno.
    pub fail_call: Option<(String, u64, u16)>,
    /// The mount of the back end is found dead when the job of this number has taken effect.
    pub dead_mount_at: Option<u64>,
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
        let mut set = |key: &str, value: Value| source.set("", key, value, key);
        set("export", export.display().to_string().into());
        set("listen", listen.to_string().into());
        set("insecure", true.into());
        Config::from_source(source).expect("the defaults are valid")
    }

    /// Checks settings.
    pub fn from_source(mut source: Source) -> Result<Config, ConfigError> {
        source.only(SECTIONS)?;
        let mut first = source.section("");
        first.only(&[Config::NAMES, SECTIONS].concat())?;
        let mut config = <Config as Keys>::read(&mut first)?;
        config.check(&first)?;
        config.shares = shares::from_source(&mut source)?;
        config.log = LogOptions::take(&mut source)?.0;
        (config.device, config.window_ms) = device(source.section(DeviceKeys::SECTION))?;
        config.emulation = Emulation::take(&mut source)?.0;
        config.trace = written::<TraceOptions>(&mut source)?.map(|(trace, _)| trace);
        config.ownership = ownership(&mut source)?;
        config.storage = storage(&mut source, config.device.is_some())?;
        let by_storage = match (config.storage.io, config.storage.engine) {
            (Io::Buffered, _) | (_, Engine::Threads) => config.threads,
            (Io::Direct, _) => config.storage.depth,
        };
        let defaults = Options {
            depth: config
                .device
                .as_ref()
                .map_or(by_storage, DeviceOptions::depth),
            ..Options::default()
        };
        let section = source.section(SchedulerKeys::SECTION);
        config.depth_written = section.holds("depth");
        let forwarder = Some(config.forwarder);
        config.scheduler = scheduler::read(section, defaults, config.window_ms, forwarder)?;
        Ok(config)
    }

    /// How long clients are lent names and attributes, ms: a lease outlasts what its client was
    /// lent, and what is told again in a time of grace need not wait longer than that.
    pub fn loan_ms(&self) -> u32 {
        let grace = (self.grace_ms > 0).then_some(self.grace_ms / 2);
        let loan = self.outside_ms.min(self.lease_ms / 2);
        loan.min(grace.unwrap_or(u32::MAX))
    }

    /// How files are spread over the forwarders; the same at all of them.
    pub fn layout(&self) -> Layout {
        Layout {
            seats: self.seats,
            stripe: self.stripe,
        }
    }

    /// Checks what involves several keys of the first section, and forms of addresses.
    fn check(&self, first: &Section) -> Result<(), ConfigError> {
        if !self.stripe.is_power_of_two() {
            let what = format!(
                "stripe = {} must be a power of two of at least 4096",
                self.stripe
            );
            return Err(first.wrong("stripe", what));
        }
        if self.forwarder >= self.seats {
            let (forwarder, seats) = (self.forwarder, self.seats);
            let what = format!("forwarder = {forwarder} must be below seats = {seats}");
            return Err(first.wrong("forwarder", what));
        }
        // A payload's memory is a power of two.
        let least = u64::from(self.payload_max).next_power_of_two();
        if self.pool_bytes < least {
            let what = format!(
                "pool_bytes = {} must be at least {least}: one payload must fit (payload_max)",
                self.pool_bytes
            );
            return Err(first.wrong("pool_bytes", what));
        }
        let remote = self.listen.iter().any(Address::is_remote);
        if remote && self.secret_file.is_none() && !self.insecure {
            let what = "listening on TCP needs secret_file = \"FILE\" (the same at every client), \
                        or insecure = true if everyone who can connect may read and write";
            return Err(first.wrong("listen", what));
        }
        if self.munge == Munge::On && self.secret_file.is_none() {
            let what = "munge = \"on\" needs secret_file = \"FILE\", of which this forwarder makes \
                        the tickets that it gives for credentials";
            return Err(first.wrong("munge", what));
        }
        let advertised = self.check_advertised();
        advertised.map_err(|what| first.wrong("advertise", what))
    }

    /// Checks that clients can be told the addresses, and can come there.
    fn check_advertised(&self) -> Result<(), String> {
        if self.advertise.len() > ADDRESSES_MAX {
            return Err(format!(
                "advertise must name 1 to {ADDRESSES_MAX} addresses, or be left out: then clients \
                 are told what listen says"
            ));
        }
        for address in &self.advertise {
            let text = address.to_string();
            if text.starts_with("tcp:0.0.0.0:") || text.starts_with("tcp:[::]:") {
                return Err(format!(
                    "advertise: nobody can connect to \"{text}\"; name the node"
                ));
            }
            if text.contains([' ', ',', ';', '#']) || text.len() > ADDRESS_MAX {
                return Err(format!(
                    "advertise: \"{text}\" is longer than {ADDRESS_MAX} bytes or holds a space, \
                     comma, semicolon or #"
                ));
            }
        }
        Ok(())
    }
}

/// Reads a section if it is written.
fn written<T: Keys>(source: &mut Source) -> Result<Option<(T, Section)>, ConfigError> {
    match source.is_written(T::SECTION) {
        true => T::take(source).map(Some),
        false => Ok(None),
    }
}

fn ownership(source: &mut Source) -> Result<Ownership, ConfigError> {
    let (mut ownership, section) = Ownership::take(source)?;
    let etcd = written::<EtcdOptions>(source)?;
    let etcd = etcd.map(|(options, section)| Ok((checked_etcd(options, &section)?, section)));
    ownership.etcd = match (ownership.keeper, etcd.transpose()?) {
        (Keeper::Files, None) => None,
        (Keeper::Etcd, Some((etcd, _))) => Some(etcd),
        (Keeper::Files, Some((_, etcd))) => {
            let what = "[ownership.etcd] is there and not used: set keeper = \"etcd\" in \
                        [ownership], or remove it";
            return Err(etcd.wrong("endpoints", what));
        }
        (Keeper::Etcd, None) => {
            let what = "keeper = \"etcd\" needs a section [ownership.etcd] with endpoints, such \
                        as [\"http://etcd1:2379\"]";
            return Err(section.wrong("keeper", what));
        }
    };
    if ownership.etcd.is_some() && ownership.ttl_ms < ETCD_TTL_MS_MIN {
        let what = format!(
            "ttl_ms = {} must be at least {ETCD_TTL_MS_MIN} with keeper = \"etcd\", which counts \
             whole seconds",
            ownership.ttl_ms
        );
        return Err(section.wrong("ttl_ms", what));
    }
    Ok(ownership)
}

fn checked_etcd(mut etcd: EtcdOptions, section: &Section) -> Result<EtcdOptions, ConfigError> {
    let wrong = |what: &str| Err(section.wrong("endpoints", what));
    for endpoint in &mut etcd.endpoints {
        endpoint.truncate(endpoint.trim_end_matches('/').len());
        if !is_endpoint(endpoint) {
            return wrong(&format!(
                "endpoint \"{endpoint}\" must be http://HOST:PORT or https://HOST:PORT"
            ));
        }
    }
    let secure = etcd.endpoints.iter().any(|one| one.starts_with("https://"));
    if secure != etcd.ca.is_some() {
        return wrong(
            "https:// in endpoints and ca go together: ca names the file with the certificate \
             (PEM) that vouches for etcd's servers",
        );
    }
    if etcd.cert.is_some() != etcd.key.is_some() || (etcd.cert.is_some() && !secure) {
        return wrong("cert and key go together, with https:// in endpoints");
    }
    if etcd.user.is_some() != etcd.password_file.is_some() {
        return wrong("user and password_file go together");
    }
    etcd.prefix
        .truncate(etcd.prefix.trim_end_matches('/').len());
    match etcd.prefix.is_empty() {
        true => {
            let what = "prefix is empty: name what all keys begin with, such as \"/tidegate\"";
            Err(section.wrong("prefix", what))
        }
        false => Ok(etcd),
    }
}

/// Scheme, host and port, and nothing else.
fn is_endpoint(endpoint: &str) -> bool {
    let rest = endpoint.strip_prefix("http://");
    let rest = rest.or_else(|| endpoint.strip_prefix("https://"));
    rest.and_then(|rest| rest.rsplit_once(':'))
        .is_some_and(|(host, port)| {
            let plain = !host.contains(['/', '@', ' ', '?', '#']);
            !host.is_empty() && plain && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
}

/// `device` says that the forwarder has an emulated device.
fn storage(source: &mut Source, device: bool) -> Result<StorageOptions, ConfigError> {
    let (storage, section) = StorageOptions::take(source)?;
    match (storage.engine, storage.io) {
        (Engine::Uring, Io::Buffered) => Err(section.wrong(
            "engine",
            "engine = \"uring\" is for io = \"direct\": calls through the page cache are slower \
             by io_uring; leave engine out, or set io = \"direct\"",
        )),
        (Engine::Uring, Io::Direct) if device => Err(section.wrong(
            "engine",
            "engine = \"uring\" does not go with [device], which works with threads; leave one out",
        )),
        _ => Ok(storage),
    }
}

/// The emulated device, and its width of windows if that is not the policy's own default.
fn device(mut section: Section) -> Result<(Option<DeviceOptions>, Option<u64>), ConfigError> {
    let DeviceKeys { model } = DeviceKeys::read(&mut section)?;
    if model == "none" {
        section.only(DeviceKeys::NAMES)?;
        return Ok((None, None));
    }
    let mut options = DeviceOptions::preset(&model).map_err(|_| {
        let known = PRESETS.join(", ");
        let what = format!("there is no device model \"{model}\"; known: none, {known}");
        section.wrong("model", what)
    })?;
    for (key, (value, place)) in section.rest() {
        let number = match &value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => parse_bytes(text),
            _ => None,
        };
        let number = number
            .ok_or_else(|| ConfigError::new(&place, format!("{key} must be a whole number")))?;
        options.set(&key, number).map_err(|error| match error {
            OptionsError::UnknownOption { known, .. } => {
                let known: Vec<&str> = known.split(", ").collect();
                section.unknown(&key, &place, &[DeviceKeys::NAMES, &known].concat())
            }
            error => ConfigError::new(&place, error.to_string()),
        })?;
    }
    Device::new(&options).map_err(|error| section.wrong("model", error.to_string()))?;
    let window_ms = model.starts_with("ssd-").then_some(WINDOW_MS_SSD);
    Ok((Some(options), window_ms))
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
mod tests;
