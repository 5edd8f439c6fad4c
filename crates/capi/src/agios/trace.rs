//! Trace files of AGIOS: a line for each request that arrives, with the nanoseconds since the
//! start, the file, R or W, offset and length, between tabs.

use super::config::Config;
use super::table::file_number;
use crate::history;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::time::Instant;
use tidegate_sched::Observed;

/// The traces that a prediction is made of; the paper averages six.
const TRACES_MAX: u32 = 64;

/// The path of a trace file.
fn path_of(config: &Config, number: u32) -> String {
    let (prefix, sufix) = (&config.trace_file_prefix, &config.trace_file_sufix);
    format!("{prefix}.{number}.{sufix}")
}

/// The traces that are there, from the first to where one is missing.
pub(super) fn earlier(config: &Config) -> Result<Vec<Vec<Observed>>, String> {
    let paths = (1..=TRACES_MAX).map(|number| path_of(config, number));
    let there = paths.take_while(|path| Path::new(path).exists());
    there
        .map(|path| history::read(&path, file_number))
        .collect()
}

/// A trace file that is being written.
pub(super) struct Trace {
    path: String,
    file: BufWriter<File>,
    start: Instant,
    failed: bool,
}

impl Trace {
    /// Makes the first of the files prefix.1.sufix, prefix.2.sufix and so on that is not there.
    pub(super) fn create(config: &Config) -> Result<Trace, String> {
        for number in 1..=1_000_000 {
            let path = path_of(config, number);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let bytes = config.max_trace_buffer_size as usize * 1024;
                    return Ok(Trace {
                        path,
                        file: BufWriter::with_capacity(bytes, file),
                        start: Instant::now(),
                        failed: false,
                    });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{path}: {error}: the trace file")),
            }
        }
        let prefix = &config.trace_file_prefix;
        Err(format!("{prefix}: a million trace files are there already"))
    }

    pub(super) fn arrived(&mut self, name: &[u8], write: bool, offset: i64, len: i64) {
        let ns = self.start.elapsed().as_nanos();
        let kind = if write { 'W' } else { 'R' };
        let written = match name.contains(&b'\n') {
            true => Err(std::io::Error::other(
                "a file's name has a line break in it",
            )),
            // The name's bytes as they are: it is known again by them.
            false => write!(self.file, "{ns}\t")
                .and_then(|()| self.file.write_all(name))
                .and_then(|()| writeln!(self.file, "\t{kind}\t{offset}\t{len}")),
        };
        self.check(written);
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self) {
        let written = self.file.flush();
        self.check(written);
    }

    /// A trace that cannot be written is told of once, and stops nothing.
    fn check(&mut self, written: std::io::Result<()>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            eprintln!("agios: {}: {error}: the trace is not complete", self.path);
        }
    }
}
