//! The text that darshan-dxt-parser prints of a log.
//!
//! ```text
//! # exe: /apps/ior -a POSIX
//! # start_time: 1490000867
//! # DXT, file_id: 6457615126966323105, file_name: /scratch/out
//! # DXT, rank: 0, hostname: node1
//! # DXT, write_count: 1, read_count: 0
//! # Module    Rank  Wt/Rd  Segment          Offset          Length    Start(s)      End(s)
//!  X_POSIX       0  write        0               0          262144      0.0029      0.0032
//! ```
//!
//! What follows the eighth column (targets, thread) is left out.

use super::accesses::{self, Access, checked};
use super::{Log, Module, Options, Refusal, Wrong};
use crate::record::Record;
use std::io::BufRead;
use tidegate_sched::Direction;

const SECTION: &str = "text";

/// What is known by the line that is read.
#[derive(Default)]
struct State {
    line: u64,
    /// It was seen to be the parser's text.
    known: bool,
    command: String,
    start: i64,
    modules: Vec<String>,
    /// The file's id, what is told of its accesses, and how many came.
    file: Option<u64>,
    told: Option<u64>,
    came: u64,
    partial: bool,
    posix: Vec<Record>,
    mpiio: Vec<Record>,
}

/// Reads the text.
pub(super) fn read(from: &mut impl BufRead, options: &Options) -> Result<Log, Refusal> {
    let mut state = State::default();
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if from.read_until(b'\n', &mut bytes).map_err(Refusal::Io)? == 0 {
            break;
        }
        state.line += 1;
        let line = String::from_utf8_lossy(&bytes);
        state.take(line.trim_end())?;
    }
    state.file_ended()?;
    if !state.known {
        let why = "no line says the version of a Darshan log, or a file of DXT";
        return Err(Refusal::NoLog(why.to_string()));
    }
    let mut present = Vec::new();
    present.extend((!state.posix.is_empty()).then_some(Module::Posix));
    present.extend((!state.mpiio.is_empty()).then_some(Module::Mpiio));
    let Some(module) = accesses::choose(options.module, &present) else {
        return Err(Refusal::NoAccesses {
            wanted: accesses::wanted(options.module),
            command: state.command,
            modules: state.modules,
        });
    };
    let records = match module {
        Module::Posix => state.posix,
        Module::Mpiio => state.mpiio,
    };
    let mut warnings = Vec::new();
    if state.partial {
        warnings.push(
            "the text says that Darshan ran out of memory: only some of the accesses are there"
                .to_string(),
        );
    }
    let zero = accesses::wall_ns(state.start, 0);
    Ok(accesses::log(
        records,
        module,
        state.command,
        zero,
        warnings,
    ))
}

impl State {
    fn wrong(&self, why: impl ToString) -> Wrong {
        Wrong::new(SECTION, format!("line {}", self.line), why)
    }

    fn take(&mut self, line: &str) -> Result<(), Wrong> {
        let line = line.trim_start();
        if let Some(comment) = line.strip_prefix('#') {
            return self.comment(comment.trim_start());
        }
        let mut words = line.split_whitespace();
        match words.next() {
            None => Ok(()),
            Some("X_POSIX") => {
                let record = self.access(words)?;
                self.posix.push(record);
                Ok(())
            }
            Some("X_MPIIO") => {
                let record = self.access(words)?;
                self.mpiio.push(record);
                Ok(())
            }
            Some(word) => {
                let word: String = word.chars().take(40).collect();
                Err(self.wrong(format!(
                    "\"{word}\" is neither a comment nor an access (X_POSIX or X_MPIIO)"
                )))
            }
        }
    }

    fn comment(&mut self, text: &str) -> Result<(), Wrong> {
        if let Some(rest) = text.strip_prefix("DXT, file_id:") {
            self.file_ended()?;
            let id = rest.split(',').next().unwrap_or_default().trim();
            let id = id
                .parse()
                .map_err(|_| self.wrong("a file_id that is no number"))?;
            self.file = Some(id);
            self.known = true;
        } else if let Some(rest) = text.strip_prefix("DXT, write_count:") {
            let (writes, reads) = rest.split_once(", read_count:").unwrap_or((rest, ""));
            let counts = (writes.trim().parse::<u64>(), reads.trim().parse::<u64>());
            let (Ok(writes), Ok(reads)) = counts else {
                return Err(self.wrong("write_count and read_count must be numbers"));
            };
            self.told = Some(writes.saturating_add(reads));
        } else if text.starts_with("darshan log version:") {
            self.known = true;
        } else if let Some(rest) = text.strip_prefix("exe:") {
            self.command = rest.trim().to_string();
        } else if let Some(rest) = text.strip_prefix("start_time:") {
            self.start = rest.trim().parse().unwrap_or(0);
        } else if let Some((name, _)) = text.split_once(" module: ") {
            self.modules.push(name.to_string());
        } else if text.starts_with("*WARNING*") || text.starts_with("*ERROR*") {
            self.partial = true;
        }
        Ok(())
    }

    /// The words behind the module's name: rank, direction, number, offset, length, start, end.
    fn access<'a>(&mut self, words: impl Iterator<Item = &'a str>) -> Result<Record, Wrong> {
        let Some(file) = self.file else {
            return Err(self.wrong("an access before the first line with a file_id"));
        };
        let mut words = words.take(7);
        let mut word = |what: &'static str| {
            let missing = || format!("the access ends before its {what}");
            words.next().ok_or_else(missing).map(|word| (word, what))
        };
        let mut parse = || -> Result<Access, String> {
            let rank = number(word("rank")?)?;
            let direction = match word("direction")?.0 {
                "write" => Direction::Write,
                "read" => Direction::Read,
                other => return Err(format!("the direction \"{other}\"")),
            };
            word("number")?;
            Ok(Access {
                file,
                rank,
                direction,
                offset: number(word("offset")?)?,
                len: number(word("length")?)?,
                begin: number(word("start")?)?,
                end: number(word("end")?)?,
            })
        };
        let access = parse().map_err(|why| self.wrong(why))?;
        self.came += 1;
        let line = self.line;
        checked(&access, SECTION, || format!("line {line}"))
    }

    /// All accesses of a file have come, or are missing.
    fn file_ended(&mut self) -> Result<(), Wrong> {
        let (told, came) = (self.told.take(), std::mem::take(&mut self.came));
        match told {
            Some(told) if told != came => Err(self.wrong(format!(
                "the file before has {came} accesses, and {told} are told; is the text cut short?"
            ))),
            _ => Ok(()),
        }
    }
}

fn number<T: std::str::FromStr>((word, what): (&str, &str)) -> Result<T, String> {
    let short: String = word.chars().take(40).collect();
    word.parse()
        .map_err(|_| format!("the {what} \"{short}\" is no number"))
}
