//! Merges several traces into one sequence in order of arrival, for summaries and replay.

use crate::reader::{Ending, ReadError, Reader};
use crate::record::{Header, Record};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Records of one trace that the merge keeps in memory to sort them. A trace is in order of
/// completion, so a request that more than this many later ones overtook comes out late.
const HELD_MAX: usize = 1 << 14;

/// The records of some traces in order of arrival. All times count from one zero: the earliest of
/// the traces' if all tell their wall clocks, else each trace's own.
///
/// Ties are broken by file, offset, client and so on, then by the order of the traces: the same
/// traces give the same order.
pub struct Merged<R: Read> {
    traces: Vec<One<R>>,
    zero_wall_ns: u64,
    /// Trace and number of the last record.
    last: (usize, u64),
}

struct One<R: Read> {
    reader: Reader<R>,
    shift_ns: u64,
    held: BinaryHeap<Reverse<Held>>,
    /// How many records were read.
    taken: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    arrival_ns: u64,
    client: u32,
    operation: u64,
    file: u64,
    offset: u64,
    number: u64,
}

struct Held {
    key: Key,
    record: Record,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.key == other.key
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl Merged<BufReader<File>> {
    /// Opens trace files.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self, ReadError> {
        let readers = paths.iter().map(|path| Reader::open(path.as_ref()));
        Ok(Merged::new(readers.collect::<Result<_, _>>()?))
    }
}

impl<R: Read> Merged<R> {
    /// Merges traces of which nothing was read yet.
    pub fn new(readers: Vec<Reader<R>>) -> Merged<R> {
        let zeros = || readers.iter().map(|reader| reader.header().zero_wall_ns);
        let known = zeros().all(|zero| zero != 0);
        let zero_wall_ns = zeros().min().filter(|_| known).unwrap_or(0);
        let one = |reader: Reader<R>| One {
            shift_ns: match known {
                true => reader.header().zero_wall_ns - zero_wall_ns,
                false => 0,
            },
            reader,
            held: BinaryHeap::new(),
            taken: 0,
        };
        Merged {
            zero_wall_ns,
            last: (0, 0),
            traces: readers.into_iter().map(one).collect(),
        }
    }

    /// The wall clock at the common zero, ns since 1970; 0 if unknown.
    pub fn zero_wall_ns(&self) -> u64 {
        self.zero_wall_ns
    }

    /// The traces' headers, in the order in which they were named.
    pub fn headers(&self) -> impl Iterator<Item = &Header> {
        self.traces.iter().map(|one| one.reader.header())
    }

    /// Names of applications, by id, as far as the traces were read.
    pub fn names(&self) -> BTreeMap<u64, String> {
        let names = self.traces.iter().map(|one| one.reader.names());
        names.flat_map(|names| names.clone()).collect()
    }

    /// Where the record that came out last stands: in which trace, in the order in which they were
    /// named, and as which of its records, counted from 1.
    pub fn place(&self) -> (usize, u64) {
        self.last
    }

    /// Requests that are not in the traces, as far as they were read.
    pub fn dropped(&self) -> u64 {
        self.traces.iter().map(|one| one.reader.dropped()).sum()
    }

    /// Recordings in the traces, as far as they were read.
    pub fn recordings(&self) -> u64 {
        self.traces.iter().map(|one| one.reader.recordings()).sum()
    }

    /// Warnings about the traces, once the iterator has ended: how they end if not in
    /// order, and requests that are missing.
    pub fn warnings(&self) -> Vec<String> {
        let ending = |one: &One<R>| {
            let text = one.reader.ending().warning()?;
            Some(format!("{}: {text}", one.reader.name()))
        };
        let mut warnings: Vec<String> = self.traces.iter().filter_map(ending).collect();
        if self.dropped() > 0 {
            warnings.push(format!(
                "{} requests are missing: the recorder had no room for them; see buffer_records",
                self.dropped()
            ));
        }
        warnings
    }

    /// How each trace ends, in the order in which they were named, once the iterator has.
    pub fn endings(&self) -> impl Iterator<Item = &Ending> {
        self.traces.iter().map(|one| one.reader.ending())
    }
}

impl<R: Read> One<R> {
    /// Reads records until the buffer is full.
    fn fill(&mut self) -> Result<(), ReadError> {
        while self.held.len() < HELD_MAX {
            let Some(record) = self.reader.next() else {
                break;
            };
            let mut record = record?;
            record.arrival_ns = record.arrival_ns.saturating_add(self.shift_ns);
            let issue = |ns: i64| ns.saturating_add_unsigned(self.shift_ns);
            record.issue_ns = record.issue_ns.map(issue);
            self.taken += 1;
            let key = Key {
                arrival_ns: record.arrival_ns,
                client: record.client,
                operation: record.operation,
                file: record.file.0,
                offset: record.offset,
                number: self.taken,
            };
            self.held.push(Reverse(Held { key, record }));
        }
        Ok(())
    }
}

impl<R: Read> Iterator for Merged<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut first: Option<usize> = None;
        for index in 0..self.traces.len() {
            if let Err(error) = self.traces[index].fill() {
                return Some(Err(error));
            }
            let key = |index: usize| self.traces[index].held.peek().map(|held| &held.0.key);
            if let Some(its) = key(index)
                && first.and_then(key).is_none_or(|least| its < least)
            {
                first = Some(index);
            }
        }
        let trace = first?;
        let held = self.traces[trace].held.pop()?.0;
        self.last = (trace, held.key.number);
        Some(Ok(held.record))
    }
}
