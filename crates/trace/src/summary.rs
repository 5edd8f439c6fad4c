//! Sums up traces: how much each application read and wrote, in what pattern, and how long its
//! requests waited.

use crate::merged::Merged;
use crate::reader::ReadError;
use crate::record::Record;
use crate::spread::Spread;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use tidegate_sched::Direction;

/// Requests of a client and file that are remembered for who continues them: those of one
/// operation go to several forwarders, and arrive in any order.
const NEIGHBOURS_MAX: usize = 8;
/// Operations of a client that are remembered, to be counted once.
const OPERATIONS_MAX: usize = 1024;

/// A summary of traces.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Each application, by its id.
    pub applications: BTreeMap<u64, Part>,
    /// All of them together.
    pub total: Part,
    /// Requests that were not recorded.
    pub dropped: u64,
    /// Recordings in the traces.
    pub recordings: u64,
    /// Wall clock at the traces' zero, ns since 1970; 0 if unknown.
    pub zero_wall_ns: u64,
}

/// What one application did, or all together.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its name, if the traces tell it.
    pub name: Option<String>,
    /// Requests.
    pub requests: u64,
    /// Operations they belonged to.
    pub operations: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Requests read and written.
    pub by_direction: [u64; 2],
    /// Bytes read and written.
    pub bytes: [u64; 2],
    /// First arrival, ns since the zero.
    pub first_ns: u64,
    /// Last completion (arrival where that is unknown), ns since the zero.
    pub last_ns: u64,
    /// Bytes asked for by one request.
    pub size: Spread,
    /// Requests that are adjacent to one of the last eight of the same client, file and direction.
    pub sequential: u64,
    /// From arrival to the back end, ns, of the requests of which it is known.
    pub wait: Spread,
    /// In the back end, ns.
    pub service: Spread,
    /// Both together, ns.
    pub latency: Spread,
    /// Files read or written.
    pub files: BTreeSet<u64>,
    /// Clients (ranks).
    pub clients: BTreeSet<u32>,
    /// Forwarders.
    pub forwarders: BTreeSet<u16>,
}

impl Part {
    /// From the first arrival to the last completion, ns.
    pub fn span_ns(&self) -> u64 {
        self.last_ns - self.first_ns
    }

    fn add(&mut self, record: &Record, sequential: bool, new_operation: bool) {
        let done_ns = record.latency_ns().unwrap_or(record.wait_ns.unwrap_or(0));
        let done_ns = record.arrival_ns.saturating_add(done_ns);
        if self.requests == 0 {
            self.first_ns = record.arrival_ns;
        }
        self.first_ns = self.first_ns.min(record.arrival_ns);
        self.last_ns = self.last_ns.max(done_ns);
        self.requests += 1;
        self.operations += u64::from(new_operation);
        self.errors += u64::from(record.errno != 0);
        self.by_direction[record.direction as usize] += 1;
        let bytes = &mut self.bytes[record.direction as usize];
        *bytes = bytes.saturating_add(record.done);
        self.size.add(record.len);
        self.sequential += u64::from(sequential);
        record.wait_ns.into_iter().for_each(|ns| self.wait.add(ns));
        let service = record.service_ns.into_iter();
        service.for_each(|ns| self.service.add(ns));
        let latency = record.latency_ns().into_iter();
        latency.for_each(|ns| self.latency.add(ns));
        self.files.insert(record.file.0);
        self.clients.insert(record.client);
        self.forwarders.extend(record.forwarder);
    }
}

/// Reads traces to their ends. Memory grows with the files and clients in them, not with the
/// requests. The traces stay with the caller, to be asked how they end.
pub fn summarise<R: Read>(traces: &mut Merged<R>) -> Result<Summary, ReadError> {
    let mut summary = Summary::default();
    let mut streams: BTreeMap<(u64, u32, u64, Direction), Stream> = BTreeMap::new();
    let mut operations: BTreeMap<(u64, u32), Operations> = BTreeMap::new();
    for record in traces.by_ref() {
        let record = record?;
        let app = record.app.0;
        let stream = (app, record.client, record.file.0, record.direction);
        let sequential = streams.entry(stream).or_default().take(&record);
        let known = operations.entry((app, record.client)).or_default();
        let new_operation = record.operation == 0 || known.is_new(record.operation);
        let part = summary.applications.entry(app).or_default();
        part.add(&record, sequential, new_operation);
        summary.total.add(&record, sequential, new_operation);
    }
    let mut names = traces.names();
    for (app, part) in &mut summary.applications {
        part.name = names.remove(app);
    }
    summary.dropped = traces.dropped();
    summary.recordings = traces.recordings();
    summary.zero_wall_ns = traces.zero_wall_ns();
    Ok(summary)
}

/// The last requests of one client to one file in one direction.
#[derive(Default)]
struct Stream {
    last: VecDeque<(u64, u64)>,
}

impl Stream {
    /// Whether the request is adjacent to one of the last, on either side.
    fn take(&mut self, record: &Record) -> bool {
        let (begin, end) = (record.offset, record.end());
        let adjacent = |(its_begin, its_end): &(u64, u64)| *its_end == begin || *its_begin == end;
        let sequential = self.last.iter().any(adjacent);
        if self.last.len() == NEIGHBOURS_MAX {
            self.last.pop_front();
        }
        self.last.push_back((begin, end));
        sequential
    }
}

/// The last operations of a client. Numbers grow, so what is below all that are remembered was
/// counted before.
#[derive(Default)]
struct Operations {
    last: BTreeSet<u64>,
    full: bool,
}

impl Operations {
    fn is_new(&mut self, operation: u64) -> bool {
        let forgotten = self.full && self.last.first().is_some_and(|least| operation < *least);
        if forgotten || !self.last.insert(operation) {
            return false;
        }
        if self.last.len() > OPERATIONS_MAX {
            self.last.pop_first();
            self.full = true;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppId, FileId, Header, Reader, Writer};

    fn summary_of(records: &[Record]) -> Summary {
        let mut writer = Writer::new(Vec::new(), &Header::default()).expect("memory");
        writer.application("climate").expect("memory");
        for record in records {
            writer.record(record).expect("memory");
        }
        let bytes = writer.finish().expect("memory");
        let mut merged = Merged::new(vec![Reader::new(&bytes[..], "t").expect("a trace")]);
        summarise(&mut merged).expect("memory")
    }

    fn request(number: u64) -> Record {
        Record {
            app: AppId::from_name("climate"),
            arrival_ns: 1_000 + number * 100,
            operation: 1 + number / 4,
            file: FileId(7),
            forwarder: Some((number % 4) as u16),
            offset: number * 4096,
            len: 4096,
            done: 4096,
            wait_ns: Some(10),
            service_ns: Some(30),
            ..Record::default()
        }
    }

    #[test]
    fn an_operation_over_four_forwarders_is_one_and_its_parts_are_sequential() {
        // The parts of an operation arrive in the opposite order.
        let records: Vec<_> = (0..4000)
            .map(|number| Record {
                offset: (number ^ 3) * 4096,
                ..request(number)
            })
            .collect();
        let summary = summary_of(&records);
        let part = &summary.applications[&AppId::from_name("climate").0];
        assert_eq!(part.name.as_deref(), Some("climate"));
        assert_eq!((part.requests, part.operations), (4000, 1000));
        assert_eq!(part.bytes, [4000 * 4096, 0]);
        // All but the last part of each operation, which comes before its neighbours.
        assert_eq!(part.sequential, 4000 - 1000);
        assert_eq!((part.files.len(), part.forwarders.len()), (1, 4));
        assert_eq!(
            (part.first_ns, part.last_ns),
            (1_000, 1_000 + 3999 * 100 + 40)
        );
        assert_eq!((part.wait.mean(), part.latency.percentile(99)), (10, 40));
        assert_eq!(summary.total.requests, 4000);
    }

    #[test]
    fn random_requests_are_not_sequential_and_what_is_unknown_is_left_out() {
        let records: Vec<_> = (0..100)
            .map(|number| Record {
                app: AppId(1 + number % 2),
                offset: number * 1_000_003,
                operation: 0,
                direction: Direction::Write,
                wait_ns: None,
                service_ns: None,
                errno: if number == 0 { 5 } else { 0 },
                ..request(number)
            })
            .collect();
        let summary = summary_of(&records);
        let total = &summary.total;
        assert_eq!(
            (total.sequential, total.operations, total.errors),
            (0, 100, 1)
        );
        assert_eq!(total.by_direction, [0, 100]);
        assert_eq!((total.wait.count(), total.latency.count()), (0, 0));
        assert_eq!(summary.applications.len(), 2);
        assert_eq!(summary.applications[&1].name, None);
    }

    #[test]
    fn an_empty_trace_has_an_empty_summary() {
        let summary = summary_of(&[]);
        assert_eq!((summary.total.requests, summary.total.span_ns()), (0, 0));
    }
}
