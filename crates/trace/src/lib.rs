//! Traces: files of the requests that forwarders answered. This crate has the format, a recorder
//! that never blocks the forwarder, a reader, a summary, and an importer of Darshan's logs.
//!
//! ```
//! use tidegate_trace::{Header, Reader, Record, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), &Header::default()).expect("memory takes it");
//! let app = writer.application("climate").expect("memory takes it");
//! let record = Record { app, arrival_ns: 1_000, len: 4096, ..Record::default() };
//! writer.record(&record).expect("memory takes it");
//! let bytes = writer.finish().expect("memory takes it");
//!
//! let mut reader = Reader::new(&bytes[..], "memory").expect("it is a trace");
//! let records: Vec<_> = reader.by_ref().collect::<Result<_, _>>().expect("it is whole");
//! assert_eq!(records, [record]);
//! assert_eq!(reader.names()[&app.0], "climate");
//! ```
#![forbid(unsafe_code)]

pub mod darshan;
pub mod format;
mod merged;
mod reader;
mod record;
mod recorder;
mod ring;
mod spread;
mod summary;
mod writer;

pub use merged::Merged;
pub use reader::{Ending, ReadError, Reader};
pub use record::{Header, Origin, Record, Shuffle};
pub use recorder::{Counts, Event, Recorder};
pub use spread::Spread;
pub use summary::{Part, Summary, summarise};
/// The scheduler's words that records use.
pub use tidegate_sched::{AppId, Direction, FileId};
pub use writer::Writer;
