//! `tidegate trace`: summarises recorded requests, and makes traces of other tools' logs.

pub mod summarise;

use crate::fail::Fail;
use crate::{errln, outln};
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_trace::darshan::{self, Log, Module};

const EXAMPLES: &str = "\
Record:     tidegate up DIR --trace traces/        (a file for each forwarder)
            tidegate serve --trace FILE ...        (one forwarder)
Summarise:  tidegate trace summarise traces/
Replay:     tidegate sim --trace traces/ --policies fifo,window
Import:     tidegate trace import job.darshan --output job.trace
docs/traces.md explains what is recorded, and the format.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  tidegate trace import job.darshan                          writes job.trace
  tidegate trace import job.darshan --module mpiio --app climate
  darshan-dxt-parser job.darshan > job.txt && tidegate trace import job.txt
A log has single accesses only if the program ran with DXT_ENABLE_IO_TRACE=1.";

/// Summarise recorded requests, or make a trace of a Darshan log.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Trace {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    Summarise(summarise::Summarise),
    Import(Import),
}

impl Trace {
    /// Does it.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        match self.verb {
            Verb::Summarise(summarise) => summarise.perform(),
            Verb::Import(import) => import.perform(),
        }
    }
}

/// Make a trace of a Darshan log with DXT data, or of the text of darshan-dxt-parser
#[derive(clap::Args)]
#[command(after_help = IMPORT_EXAMPLES)]
struct Import {
    /// The log, or the text
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The trace to write, not there yet; FILE's name with .trace, here, if not given
    #[arg(long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// The application's name; the executable's if not given
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// Whose calls to take: posix, or mpiio; posix if the log has them
    #[arg(long, value_name = "MODULE", value_parser = ["posix", "mpiio"])]
    module: Option<String>,
    /// Print what was imported as JSON
    #[arg(long)]
    json: bool,
}

impl Import {
    fn perform(self) -> Result<ExitCode, Fail> {
        let options = darshan::Options {
            module: self.module.as_deref().map(|name| match name {
                "mpiio" => Module::Mpiio,
                _ => Module::Posix,
            }),
            application: self.app.clone(),
        };
        let log = darshan::import(&self.file, &options).map_err(Fail::usage)?;
        let output = match &self.output {
            Some(path) => path.clone(),
            None => {
                let stem = self.file.file_stem().unwrap_or_default();
                PathBuf::from(stem).with_added_extension("trace")
            }
        };
        write(&log, &output)?;
        for warning in &log.warnings {
            errln!("tidegate: {}: {warning}", self.file.display());
        }
        let [read, written] = log.bytes();
        let writes = log.records.iter().filter(|one| one.direction as u8 == 1);
        let (writes, all) = (writes.count(), log.records.len());
        let text = match self.json {
            true => json!({
                "application": log.application,
                "module": log.module.name(),
                "reads": all - writes,
                "writes": writes,
                "bytes_read": read,
                "bytes_written": written,
                "output": output.display().to_string(),
                "warnings": log.warnings,
            })
            .to_string(),
            false => format!(
                "{}: {} reads of {read} bytes and {writes} writes of {written} bytes by {} ({})",
                output.display(),
                all - writes,
                log.application,
                log.module.name()
            ),
        };
        outln!("{text}");
        Ok(ExitCode::SUCCESS)
    }
}

/// A trace, or those of a folder by their names.
pub fn files(trace: &Path) -> Result<Vec<PathBuf>, Fail> {
    // Without what `traces/` and `traces//` have too much, for these names are shown.
    let trace: PathBuf = trace.components().collect();
    let found = trace.metadata().map_err(|error| {
        let trace = trace.display();
        Fail::usage(format!(
            "{trace}: {error}; name a trace, or the folder of `tidegate up --trace`"
        ))
    });
    if !found?.is_dir() {
        return Ok(vec![trace]);
    }
    let wrong = |error: std::io::Error| Fail::usage(format!("{}: {error}", trace.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&trace).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "trace")
        {
            files.push(path);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(Fail::usage(format!(
            "{}: there is no file in it whose name ends with .trace",
            trace.display()
        ))),
        false => Ok(files),
    }
}

/// Writes a trace into a new file, and removes the file if that fails.
fn write(log: &Log, output: &PathBuf) -> Result<(), Fail> {
    let place = output.display();
    let file = File::create_new(output).map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AlreadyExists => "; remove it, or name another with --output",
            _ => "; name another place with --output",
        };
        Fail::usage(format!("{place}: {error}{advice}"))
    })?;
    log.write(file).map_err(|error| {
        // It may be gone already.
        let _ = std::fs::remove_file(output);
        Fail::runtime(format!("{place}: {error}"))
    })
}
