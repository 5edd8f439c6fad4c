//! Imports the accesses that Darshan's extended tracing (DXT) recorded of a program.
//!
//! The importer reads binary logs of Darshan 3.0 to 3.5 and the text that darshan-dxt-parser prints
//! of them. It makes each access one request: the rank becomes the client, the record id the file,
//! the start the arrival, and the duration the service time. It takes nothing from counters, which
//! every log has. It refuses a log without DXT, and the error says how to record one.

mod accesses;
mod binary;
mod cursor;
mod inflate;
mod text;

use crate::record::{Header, Record};
use crate::writer::Writer;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

/// Longest name of an application that is taken from a log.
const NAME_MAX: usize = crate::format::NAME_MAX;

/// The interface whose calls Darshan traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Module {
    /// Calls to the operating system: what reached the file system.
    Posix,
    /// Calls to MPI-IO: what the program asked for.
    Mpiio,
}

impl Module {
    /// As Darshan calls it.
    pub fn name(self) -> &'static str {
        match self {
            Module::Posix => "DXT_POSIX",
            Module::Mpiio => "DXT_MPIIO",
        }
    }
}

/// What to take of a log.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whose calls; None: those to the operating system, or to MPI-IO if the log has no others.
    pub module: Option<Module>,
    /// The application's name; None: that of its executable.
    pub application: Option<String>,
}

/// The accesses of one program.
#[derive(Clone, Debug)]
pub struct Log {
    /// The application's name.
    pub application: String,
    /// The command line, as far as the log tells it.
    pub command: String,
    /// Whose calls these are.
    pub module: Module,
    /// The trace's header; its zero is the start of the program.
    pub header: Header,
    /// The accesses, by start; ties are broken by rank, file, offset and direction.
    pub records: Vec<Record>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Why a log was not imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error("{name}: {error}")]
    Io {
        /// The file.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// It is neither a log of Darshan nor the text of one.
    #[error("{name}: neither a Darshan log nor the text of darshan-dxt-parser: {why}")]
    NoLog {
        /// The file.
        name: String,
        /// Why not.
        why: String,
    },
    /// It has none of the accesses that are asked for.
    #[error(
        "{name}: there is no {wanted} data in this log of {command}, only that of {modules}; \
         {advice}"
    )]
    NoAccesses {
        /// The file.
        name: String,
        /// What is asked for.
        wanted: &'static str,
        /// The command line in quotes, or "a program".
        command: String,
        /// What the log has.
        modules: String,
        /// What to do.
        advice: &'static str,
    },
    /// It is damaged, cut short, or of a kind that is not known.
    #[error("{name}: {section}, {place}: {why}")]
    Malformed {
        /// The file.
        name: String,
        /// The part of it.
        section: String,
        /// The byte of the file, or of the part's uncompressed data, or the line.
        place: String,
        /// What is wrong.
        why: String,
    },
}

/// What is wrong and where, before the file's name is added.
#[derive(Debug)]
struct Wrong {
    section: String,
    place: String,
    why: String,
}

impl Wrong {
    fn new(section: &str, place: impl ToString, why: impl ToString) -> Wrong {
        Wrong {
            section: section.to_string(),
            place: place.to_string(),
            why: why.to_string(),
        }
    }
}

/// Why a parser gave up.
#[derive(Debug)]
enum Refusal {
    Io(io::Error),
    NoLog(String),
    NoAccesses {
        wanted: &'static str,
        command: String,
        modules: Vec<String>,
    },
    Wrong(Wrong),
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Refusal {
        Refusal::Wrong(wrong)
    }
}

impl Refusal {
    fn named(self, name: &str) -> ImportError {
        let name = name.to_string();
        match self {
            Refusal::Io(error) => ImportError::Io { name, error },
            Refusal::NoLog(why) => ImportError::NoLog { name, why },
            Refusal::NoAccesses {
                wanted,
                command,
                modules,
            } => ImportError::NoAccesses {
                name,
                wanted,
                command: match first_word(&command) {
                    "" => "a program".to_string(),
                    word => format!("\"{word}\""),
                },
                advice: match modules.iter().any(|module| module.starts_with("DXT_")) {
                    true => "import that of the other DXT module",
                    false => {
                        "set DXT_ENABLE_IO_TRACE=1 for the program to have Darshan record each \
                         access"
                    }
                },
                modules: match modules.is_empty() {
                    true => "the job's description".to_string(),
                    false => modules.join(", "),
                },
            },
            Refusal::Wrong(Wrong {
                section,
                place,
                why,
            }) => ImportError::Malformed {
                name,
                section,
                place,
                why,
            },
        }
    }
}

/// Imports a file, binary or text. Memory: the file (if binary), and about 100 bytes an access.
pub fn import(path: &Path, options: &Options) -> Result<Log, ImportError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Refusal::Io(error).named(&name))?;
    let fallback = path.file_stem().unwrap_or_default().to_string_lossy();
    import_from(BufReader::new(file), &name, &fallback, options)
}

/// Imports from a reader; `name` stands in messages, `fallback` for the application whose log does
/// not name it.
pub fn import_from(
    mut from: impl io::BufRead,
    name: &str,
    fallback: &str,
    options: &Options,
) -> Result<Log, ImportError> {
    let mut imported = || {
        let begin = from.fill_buf().map_err(Refusal::Io)?;
        if begin.is_empty() {
            return Err(Refusal::NoLog("the file is empty".to_string()));
        }
        if begin.starts_with(b"#") || begin.starts_with(b"\n") || begin.starts_with(b" ") {
            return text::read(&mut from, options);
        }
        if begin.len() >= 16 {
            // Before a file of any size is read that is something else.
            binary::is_big_endian(begin)?;
        }
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).map_err(Refusal::Io)?;
        binary::read(&bytes, options)
    };
    let mut log = imported().map_err(|refusal: Refusal| refusal.named(name))?;
    let word = first_word(&log.command);
    let program = word.rsplit('/').next().unwrap_or_default();
    let application = match &options.application {
        Some(name) => name,
        None if !program.is_empty() => program,
        None => fallback,
    };
    log.application = application.chars().take(NAME_MAX).collect();
    let app = tidegate_sched::AppId::from_name(&log.application);
    log.records.iter_mut().for_each(|record| record.app = app);
    Ok(log)
}

impl Log {
    /// Writes the accesses as a trace.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let mut writer = Writer::new(to, &self.header)?;
        writer.application(&self.application)?;
        for record in &self.records {
            writer.record(record)?;
        }
        writer.finish()?.flush()
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> [u64; 2] {
        let mut bytes = [0u64; 2];
        for record in &self.records {
            let sum = &mut bytes[record.direction as usize];
            *sum = sum.saturating_add(record.done);
        }
        bytes
    }
}

fn first_word(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}
