//! Accesses as a log tells them, checked, and made into records.

use super::{Log, Module, Wrong};
use crate::record::{Header, Origin, Record};
use std::collections::BTreeMap;
use tidegate_sched::{AppId, Direction, FileId};

/// One access as a log tells it.
pub(super) struct Access {
    pub(super) file: u64,
    pub(super) rank: i64,
    pub(super) direction: Direction,
    pub(super) offset: i64,
    pub(super) len: i64,
    /// Seconds since the program's start.
    pub(super) begin: f64,
    pub(super) end: f64,
}

impl Access {
    /// As a record; the words for what is wrong with it if it cannot be one.
    pub(super) fn record(&self) -> Result<Record, String> {
        let unsigned = |value: i64, what: &str| {
            u64::try_from(value).map_err(|_| format!("{what} is {value}, below 0"))
        };
        let arrival_ns = nanoseconds(self.begin, "the start")?;
        let end_ns = nanoseconds(self.end, "the end")?;
        let len = unsigned(self.len, "the length")?;
        let rank = u32::try_from(self.rank);
        Ok(Record {
            arrival_ns,
            issue_ns: i64::try_from(arrival_ns).ok(),
            file: FileId(self.file),
            client: rank.map_err(|_| format!("the rank is {}", self.rank))?,
            direction: self.direction,
            offset: unsigned(self.offset, "the offset")?,
            len,
            done: len,
            // Clocks that were corrected meanwhile make an end before the start.
            service_ns: Some(end_ns.saturating_sub(arrival_ns)),
            ..Record::default()
        })
    }
}

/// From seconds; slightly negative times are those of accesses while Darshan started.
fn nanoseconds(seconds: f64, what: &str) -> Result<u64, String> {
    let ns = (seconds * 1e9).round();
    match ns.is_finite() && ns < i64::MAX as f64 {
        true => Ok(ns.max(0.0) as u64),
        false => Err(format!("{what} is {seconds} s")),
    }
}

/// The log of these records: sorted, and numbered as operations of their ranks.
pub(super) fn log(
    mut records: Vec<Record>,
    module: Module,
    command: String,
    zero_wall_ns: u64,
    warnings: Vec<String>,
) -> Log {
    records.sort_by_key(|record| {
        let direction = record.direction as u8;
        let place = (record.file.0, record.offset, direction);
        (record.arrival_ns, record.client, place)
    });
    let mut operations: BTreeMap<u32, u64> = BTreeMap::new();
    for record in &mut records {
        let operation = operations.entry(record.client).or_default();
        *operation += 1;
        record.operation = *operation;
        record.app = AppId(0);
    }
    Log {
        application: String::new(),
        command,
        module,
        header: Header {
            zero_wall_ns,
            origin: Origin::Darshan,
            ..Header::default()
        },
        records,
        warnings,
    }
}

/// The wall clock of a program's start, ns since 1970; 0 if the log tells nonsense.
pub(super) fn wall_ns(seconds: i64, ns: i64) -> u64 {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let ns = u64::try_from(ns).unwrap_or(0);
    seconds
        .checked_mul(1_000_000_000)
        .and_then(|sum| sum.checked_add(ns))
        .unwrap_or(0)
}

/// Which module to take of those that are there, and have something.
pub(super) fn choose(wanted: Option<Module>, present: &[Module]) -> Option<Module> {
    match wanted {
        Some(module) => present.contains(&module).then_some(module),
        None => present.iter().min().copied(),
    }
}

/// What is wanted, in words.
pub(super) fn wanted(module: Option<Module>) -> &'static str {
    module.map_or("DXT", Module::name)
}

/// A wrong access, with its place.
pub(super) fn checked(
    access: &Access,
    section: &str,
    place: impl FnOnce() -> String,
) -> Result<Record, Wrong> {
    let record = access.record();
    record.map_err(|why| Wrong::new(section, place(), why))
}
