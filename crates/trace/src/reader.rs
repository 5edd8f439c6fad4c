//! Reads a trace block by block, up to the first damaged block.

use crate::format::{BLOCK_LEN, Block, BlockError, Bytes, MAGIC};
use crate::record::{Header, Record, Shuffle};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// Applications whose names the reader keeps. It shows further ones as numbers.
const NAMES_MAX: usize = 1 << 20;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{name}: {error}")]
    Io {
        /// The file.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// It does not begin as a trace does.
    #[error("{name}: {why}")]
    NoTrace {
        /// The file.
        name: String,
        /// Why not.
        why: String,
    },
}

/// How a trace ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There may be more.
    Unread,
    /// In order.
    Closed,
    /// Its recorder was killed, or still records: what was buffered then is missing.
    Open,
    /// Amid a block: what follows these bytes is missing.
    Cut {
        /// Length of the file in bytes.
        at: u64,
    },
    /// What follows this byte is no trace.
    Damaged {
        /// Offset of the first bad block in bytes.
        at: u64,
        /// What is wrong there.
        why: BlockError,
    },
}

impl Ending {
    /// A warning about it; None if the trace ended in order.
    pub fn warning(&self) -> Option<String> {
        match self {
            Ending::Closed | Ending::Unread => None,
            Ending::Open => {
                Some("the trace has no end: its recorder was killed, or still records".to_string())
            }
            Ending::Cut { at } => Some(format!(
                "the trace is cut short amid a record, at byte {at}; all before it was read"
            )),
            Ending::Damaged { at, why } => Some(format!(
                "the trace is damaged at byte {at}: {why}; all before it was read"
            )),
        }
    }
}

/// An iterator over a trace's requests, in the order in which they were recorded, that is by
/// completion. The times of every recording in it count from the zero of the first.
pub struct Reader<R: Read> {
    from: R,
    name: String,
    at: u64,
    header: Header,
    recordings: u64,
    /// What to add to the times of the current recording, ns.
    shift_ns: i64,
    names: BTreeMap<u64, String>,
    /// Requests dropped in recordings before the current one, and in the current one.
    dropped: (u64, u64),
    ended_ns: u64,
    ending: Ending,
    /// The last block ended a recording.
    closed: bool,
    /// The shuffle of the next request.
    shuffle: Option<Shuffle>,
}

impl Reader<BufReader<File>> {
    /// Opens a trace file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Reader::new(BufReader::with_capacity(1 << 16, file), &name),
            Err(error) => Err(ReadError::Io { name, error }),
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header; `name` stands in messages.
    pub fn new(mut from: R, name: &str) -> Result<Reader<R>, ReadError> {
        let name = name.to_string();
        let mut bytes = [0; BLOCK_LEN];
        let len = match fill(&mut from, &mut bytes) {
            Ok(len) => len,
            Err(error) => return Err(ReadError::Io { name, error }),
        };
        let why = match Block::decode(&bytes) {
            Ok(Block::Header(header)) => {
                return Ok(Reader {
                    from,
                    name,
                    at: BLOCK_LEN as u64,
                    header,
                    recordings: 1,
                    shift_ns: 0,
                    names: BTreeMap::new(),
                    dropped: (0, 0),
                    ended_ns: 0,
                    ending: Ending::Unread,
                    closed: false,
                    shuffle: None,
                });
            }
            _ if len == 0 => "the file is empty".to_string(),
            _ if len < BLOCK_LEN && MAGIC.starts_with(&bytes[..len.min(8)]) => {
                format!("only {len} bytes of a trace's header of {BLOCK_LEN} are there")
            }
            Err(error) if bytes[..8] == MAGIC => format!("the trace's header: {error}"),
            _ => "not a trace; `tidegate trace import` makes one of a Darshan log".to_string(),
        };
        Err(ReadError::NoTrace { name, why })
    }

    /// What holds for the trace; that of its first recording if there are several.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Names of applications, by id, as far as they were read.
    pub fn names(&self) -> &BTreeMap<u64, String> {
        &self.names
    }

    /// Recordings begun so far: a forwarder that is started again goes on in its file.
    pub fn recordings(&self) -> u64 {
        self.recordings
    }

    /// Requests that are not in the trace, as far as it was read.
    pub fn dropped(&self) -> u64 {
        self.dropped.0.saturating_add(self.dropped.1)
    }

    /// When the last recording that ended in order did so, ns since the zero.
    pub fn ended_ns(&self) -> u64 {
        self.ended_ns
    }

    /// What messages call it: the file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the trace ends, once the iterator has.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// The next block; None at the end, however that came.
    fn next_block(&mut self) -> Result<Option<Block>, ReadError> {
        let mut bytes = [0; BLOCK_LEN];
        let len = fill(&mut self.from, &mut bytes).map_err(|error| {
            self.ending = Ending::Cut { at: self.at };
            ReadError::Io {
                name: self.name.clone(),
                error,
            }
        })?;
        if len < BLOCK_LEN {
            self.ending = match (len, self.closed) {
                (0, true) => Ending::Closed,
                (0, false) => Ending::Open,
                _ => Ending::Cut {
                    at: self.at + len as u64,
                },
            };
            return Ok(None);
        }
        match Block::decode(&bytes) {
            Ok(block) => {
                self.at += BLOCK_LEN as u64;
                Ok(Some(block))
            }
            Err(why) => {
                self.ending = Ending::Damaged { at: self.at, why };
                Ok(None)
            }
        }
    }

    /// A further recording in the same file: its times count from the zero of the first one.
    fn begin(&mut self, header: &Header) {
        self.recordings += 1;
        self.dropped = (self.dropped(), 0);
        let known = self.header.zero_wall_ns != 0 && header.zero_wall_ns != 0;
        // Wall clocks of this century fit, and wrong ones shift times wrongly, no more.
        let shift = header.zero_wall_ns.wrapping_sub(self.header.zero_wall_ns) as i64;
        self.shift_ns = if known { shift } else { 0 };
    }

    fn take(&mut self, block: Block) -> Option<Record> {
        self.closed = matches!(block, Block::End { .. });
        // A loss or a name may come between a shuffle and its request.
        if matches!(block, Block::Header(_) | Block::End { .. }) {
            self.shuffle = None;
        }
        match block {
            Block::Shuffle(shuffle) => self.shuffle = Some(shuffle),
            Block::Request(mut record) => {
                record.shuffle = self.shuffle.take();
                record.arrival_ns = record.arrival_ns.saturating_add_signed(self.shift_ns);
                let issue = |ns: i64| ns.saturating_add(self.shift_ns);
                record.issue_ns = record.issue_ns.map(issue);
                return Some(record);
            }
            Block::Header(header) => self.begin(&header),
            Block::Name(app, name) => {
                if self.names.len() < NAMES_MAX || self.names.contains_key(&app.0) {
                    self.names.insert(app.0, name);
                }
            }
            Block::Loss(dropped) => self.dropped.1 = dropped,
            Block::End { dropped, at_ns, .. } => {
                self.dropped.1 = dropped;
                self.ended_ns = at_ns.saturating_add_signed(self.shift_ns);
            }
        }
        None
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ending == Ending::Unread {
            match self.next_block() {
                Ok(Some(block)) => {
                    if let Some(record) = self.take(block) {
                        return Some(Ok(record));
                    }
                }
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

/// Reads until the block is full or the end is reached; says how much there was.
fn fill(from: &mut impl Read, bytes: &mut Bytes) -> io::Result<usize> {
    let mut len = 0;
    while len < BLOCK_LEN {
        match from.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
