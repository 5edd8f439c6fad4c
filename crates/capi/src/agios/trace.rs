//! Trace files of AGIOS: a line for each request that arrives, with the nanoseconds since the
//! start, the file, R or W, offset and length, between tabs.

use super::config::Config;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::time::Instant;

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
        let (prefix, sufix) = (&config.trace_file_prefix, &config.trace_file_sufix);
        for number in 1..=1_000_000 {
            let path = format!("{prefix}.{number}.{sufix}");
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
        Err(format!("{prefix}: a million trace files are there already"))
    }

    pub(super) fn arrived(&mut self, name: &str, write: bool, offset: i64, len: i64) {
        let ns = self.start.elapsed().as_nanos();
        let kind = if write { 'W' } else { 'R' };
        let written = writeln!(self.file, "{ns}\t{name}\t{kind}\t{offset}\t{len}");
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
