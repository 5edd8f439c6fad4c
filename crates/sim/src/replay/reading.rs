//! Reads traces into memory as accesses, within bounds, and says what is missing in them.

use super::{Replay, ReplayOptions, Timed};
use crate::units::TIME_MAX_NS;
use crate::world::{Access, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_trace::{Direction, Merged, Record, Shuffle};
use tidegate_wire::Extent;

/// Most accesses of a replay, each piece of a large one by itself: 1.2 GB of memory.
const ACCESSES_MAX: u64 = 1 << 24;
/// Where a file ends at the latest.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// What was read so far.
struct Reading<'a> {
    options: &'a ReplayOptions,
    /// By application and client.
    apps: BTreeMap<u64, BTreeMap<u32, Client>>,
    /// When the first access was made.
    zero_ns: Option<i64>,
    accesses: u64,
    /// Requests that had failed.
    failed: u64,
    /// Each application's collective operations by number and stamp, numbered as they come.
    operations: BTreeMap<u64, BTreeMap<(u64, i64), u64>>,
}

#[derive(Default)]
struct Client {
    accesses: Vec<Timed>,
    /// The last record was left out, so nothing can belong to it.
    broken: bool,
}

/// Reads the traces of `options`, whose other values were checked. The error names file and record.
pub(super) fn read(options: &ReplayOptions) -> Result<Replay, String> {
    let mut traces = Merged::open(&options.files).map_err(|error| error.to_string())?;
    let mut reading = Reading {
        options,
        apps: BTreeMap::new(),
        zero_ns: None,
        accesses: 0,
        failed: 0,
        operations: BTreeMap::new(),
    };
    while let Some(record) = traces.next() {
        let record = record.map_err(|error| error.to_string())?;
        reading.add(&record).map_err(|reason| {
            let (trace, number) = traces.place();
            let file = options.files[trace].display();
            format!("{file}: record {number}: {reason}")
        })?;
    }
    let mut warnings = traces.warnings();
    warnings.extend(reading.left_out());
    let failed = reading.failed;
    let names = traces.names();
    let named = |(app, clients): (u64, BTreeMap<u32, Client>)| {
        let name = names.get(&app).cloned();
        let name = name.unwrap_or_else(|| format!("app-{app:016x}"));
        let clients = clients.into_values().filter_map(Client::in_order);
        (name, clients.collect::<Vec<_>>())
    };
    let apps = reading.apps.into_iter().map(named);
    let apps: Vec<_> = apps.filter(|(_, clients)| !clients.is_empty()).collect();
    match (apps.is_empty(), failed) {
        (true, 0) => Err("there is no request in these traces".to_string()),
        (true, _) => Err(format!("all {failed} requests in these traces had failed")),
        (false, _) => Ok(Replay {
            options: options.clone(),
            apps,
            warnings,
        }),
    }
}

impl Reading<'_> {
    fn add(&mut self, record: &Record) -> Result<(), String> {
        let clients = self.apps.entry(record.app.0).or_default();
        let client = clients.entry(record.client).or_default();
        if record.errno != 0 {
            self.failed += 1;
            client.broken = true;
            return Ok(());
        }
        let whole = !std::mem::replace(&mut client.broken, false);
        let end = record.offset.checked_add(record.len);
        if end.is_none_or(|end| end > OFFSET_MAX) {
            return Err(format!(
                "{} bytes at offset {} end behind the last byte that a file can have",
                record.len, record.offset
            ));
        }
        let at = made_at(record);
        let zero = *self.zero_ns.get_or_insert(at);
        let since = u64::try_from(at.saturating_sub(zero)).unwrap_or(0);
        let at_ns = since as f64 / self.options.speed;
        if at_ns > TIME_MAX_NS as f64 {
            return Err(format!(
                "it begins more than a year after the first one, at {} times the recorded speed",
                self.options.speed
            ));
        }
        let request_max = self.options.request_max.0;
        let pieces = record.len.div_ceil(request_max);
        self.accesses = self.accesses.saturating_add(pieces);
        if self.accesses > ACCESSES_MAX {
            return Err(format!(
                "{} bytes: with it, these are more than {ACCESSES_MAX} accesses of at most \
                 {request_max} bytes (request_max)",
                record.len
            ));
        }
        let shuffle = record.shuffle.filter(|_| pieces > 0);
        let part = shuffle.map(|shuffle| {
            let operations = self.operations.entry(record.app.0).or_default();
            let count = operations.len() as u64;
            let operation = operations.entry((record.operation, at)).or_insert(count);
            part(*operation, &shuffle)
        });
        client.add((at_ns as u64, part), record, request_max, whole);
        Ok(())
    }

    /// What a reader should know of the requests that are not replayed.
    fn left_out(&self) -> Option<String> {
        let files = self.options.files.iter().map(|file| file.display());
        let files: Vec<_> = files.map(|file| file.to_string()).collect();
        (self.failed > 0).then(|| {
            format!(
                "{}: requests that had failed are not replayed: {}",
                files.join(", "),
                self.failed
            )
        })
    }
}

/// When an access was made: by the client's clock if that is known, as forwarders saw it else.
fn made_at(record: &Record) -> i64 {
    let arrival = i64::try_from(record.arrival_ns).unwrap_or(i64::MAX);
    record.issue_ns.unwrap_or(arrival)
}

impl Client {
    /// `whole`: the record before it, whose message it can share, is in the last access.
    fn add(
        &mut self,
        (at_ns, part): (u64, Option<Part>),
        record: &Record,
        request_max: u64,
        whole: bool,
    ) {
        if let Some(last) = self.accesses.last_mut()
            && whole
            && record.listed
            && joins(&last.access, record)
            && last.access.extents.bytes().saturating_add(record.len) <= request_max
        {
            last.access
                .extents
                .rest
                .push(extent(record.offset, record.len));
            return;
        }
        let (mut offset, mut left) = (record.offset, record.len);
        while left > 0 {
            let len = left.min(request_max);
            self.accesses.push(Timed {
                at_ns,
                access: Access {
                    file: record.file.0,
                    direction: record.direction,
                    extents: extent(offset, len).into(),
                    part,
                },
            });
            (offset, left) = (offset + len, left - len);
        }
    }

    /// The accesses by their times; None if there is none.
    fn in_order(mut self) -> Option<Arc<[Timed]>> {
        // Requests of one operation can come in another order than they were made.
        self.accesses.sort_by_key(|it| it.at_ns);
        // A shuffle is told with each request of a process for an operation, and comes once.
        let mut ended = BTreeSet::new();
        for timed in self.accesses.iter_mut().rev() {
            if let Some(part) = &mut timed.access.part {
                part.with_shuffle = ended.insert(part.operation);
            }
        }
        (!self.accesses.is_empty()).then(|| Arc::from(self.accesses))
    }
}

pub(super) fn extent(offset: u64, len: u64) -> Extent {
    Extent { offset, len }
}

fn part(operation: u64, shuffle: &Shuffle) -> Part {
    Part {
        operation,
        shuffle_ns: u64::from(shuffle.us) * 1000,
        shuffle_max_ns: u64::from(shuffle.max_us) * 1000,
        rank: shuffle.rank,
        with_shuffle: true,
    }
}

/// A further extent of one request (list I/O).
fn joins(access: &Access, record: &Record) -> bool {
    let last = access.extents.iter().last();
    let end = last.map_or(0, |extent| extent.offset.saturating_add(extent.len));
    let alike: (u64, Direction) = (access.file, access.direction);
    alike == (record.file.0, record.direction) && record.offset >= end && record.len > 0
}
