//! Writes a trace from beginning to end.

use crate::format::Block;
use crate::record::{Header, Record};
use std::io::{self, BufWriter, Write};
use tidegate_sched::AppId;

/// Writes a trace to `W`, through a buffer.
pub struct Writer<W: Write> {
    to: BufWriter<W>,
    recorded: u64,
    dropped: u64,
    last_ns: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    pub fn new(to: W, header: &Header) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            to: BufWriter::with_capacity(1 << 16, to),
            recorded: 0,
            dropped: 0,
            last_ns: 0,
        };
        writer.put(&Block::Header(header.clone()))?;
        Ok(writer)
    }

    /// Tells an application's name, and returns its id. Of names over 80 bytes only the beginning
    /// is kept, the id is that of the whole name.
    pub fn application(&mut self, name: &str) -> io::Result<AppId> {
        let app = AppId::from_name(name);
        self.put(&Block::Name(app, name.to_string()))?;
        Ok(app)
    }

    /// Adds a request. The order is free; readers sort by arrival where they need to.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        self.recorded += 1;
        let done = record.latency_ns().unwrap_or(0);
        self.last_ns = self.last_ns.max(record.arrival_ns.saturating_add(done));
        if let Some(shuffle) = record.shuffle {
            self.put(&Block::Shuffle(shuffle))?;
        }
        self.put(&Block::Request(*record))
    }

    /// Says that requests are missing here.
    pub fn dropped(&mut self, count: u64) -> io::Result<()> {
        self.dropped += count;
        self.put(&Block::Loss(self.dropped))
    }

    /// Ends the trace.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(&Block::End {
            recorded: self.recorded,
            dropped: self.dropped,
            at_ns: self.last_ns,
        })?;
        self.to.into_inner().map_err(|error| error.into_error())
    }

    fn put(&mut self, block: &Block) -> io::Result<()> {
        self.to.write_all(&block.encode())
    }
}
