//! One program of `tidegate bench cluster`: a process on a compute node. It gets its tasks line by
//! line, and reads or writes files as an unmodified program does.

use crate::bench::workplace::answer_tasks;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tidegate_cli::fail::Fail;
use tidegate_server::storage::SlotBytes;

/// Alignment of memory, offsets and lengths that direct I/O needs, in bytes.
pub const ALIGNMENT: u64 = 4096;

/// Is one of the programs of `bench cluster`: does what standard input says, a line each
#[derive(clap::Args, Clone, Debug)]
pub struct Process {}

/// One line of input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Only answers.
    Hello,
    /// Makes a directory.
    Make(PathBuf),
    /// Removes a directory with all that is in it.
    Remove(PathBuf),
    /// Makes a file with the bytes that follow from `seed`, and syncs it.
    Fill { part: Part, seed: u64 },
    /// Opens a file with O_DIRECT and reads its first request, for `Go`.
    Open(Part),
    /// Reads the open file from its first to its last byte, one request after another, and
    /// compares with what follows from `seed`.
    Read { seed: u64 },
    /// Writes it so, and syncs it.
    Write { seed: u64 },
}

/// A file and how it is accessed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub path: PathBuf,
    pub bytes: u64,
    pub request: u64,
}

/// The result of a task, in one line of output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Time that the task took in this process.
    pub ns: u64,
    /// Bytes that were not those expected.
    pub wrong: u64,
    /// Why it could not be done.
    pub error: Option<String>,
}

/// A file that is open, and memory for one request.
struct Opened {
    file: File,
    part: Part,
    memory: SlotBytes,
}

impl Process {
    /// Works until the input ends.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut opened = None;
        answer_tasks(|task: Task| {
            let begun = Instant::now();
            let done = perform(&mut opened, &task);
            Ok(Done {
                ns: begun.elapsed().as_nanos() as u64,
                wrong: *done.as_ref().unwrap_or(&0),
                error: done.err(),
            })
        })
    }
}

/// Does one task; how many bytes were wrong.
fn perform(opened: &mut Option<Opened>, task: &Task) -> Result<u64, String> {
    let about = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    match task {
        Task::Hello => Ok(0),
        Task::Make(path) => std::fs::create_dir(path)
            .map(|()| 0)
            .map_err(|error| about(path, error)),
        Task::Remove(path) => std::fs::remove_dir_all(path)
            .map(|()| 0)
            .map_err(|error| about(path, error)),
        Task::Fill { part, seed } => {
            let filled = Opened::make(part).and_then(|mut file| file.write(*seed));
            filled.map_err(|error| about(&part.path, error))
        }
        Task::Open(part) => {
            // The file of the turn before is closed first.
            *opened = None;
            let file = Opened::open(part).map_err(|error| about(&part.path, error))?;
            *opened = Some(file);
            Ok(0)
        }
        Task::Read { seed } | Task::Write { seed } => {
            let file = opened.as_mut().ok_or("no file is open")?;
            let moved = match task {
                Task::Read { .. } => file.read(*seed),
                _ => file.write(*seed),
            };
            moved.map_err(|error| about(&file.part.path, error))
        }
    }
}

impl Opened {
    fn make(part: &Part) -> std::io::Result<Opened> {
        let mut options = File::options();
        Opened::with(options.write(true).create_new(true), part)
    }

    fn open(part: &Part) -> std::io::Result<Opened> {
        let mut options = File::options();
        let mut opened = Opened::with(options.read(true).write(true), part)?;
        // What a first access costs is the same for all ways, and no way's fault.
        opened.file.read_exact_at(&mut opened.memory, 0)?;
        Ok(opened)
    }

    fn with(options: &mut std::fs::OpenOptions, part: &Part) -> std::io::Result<Opened> {
        let direct = OFlags::DIRECT.bits() as i32;
        Ok(Opened {
            file: options.custom_flags(direct).open(&part.path)?,
            part: part.clone(),
            memory: SlotBytes::zeroed(part.request as usize),
        })
    }

    fn read(&mut self, seed: u64) -> std::io::Result<u64> {
        let mut wrong = 0;
        for offset in offsets(&self.part) {
            self.file.read_exact_at(&mut self.memory, offset)?;
            wrong += differences(&self.memory, seed, offset);
        }
        Ok(wrong)
    }

    fn write(&mut self, seed: u64) -> std::io::Result<u64> {
        for offset in offsets(&self.part) {
            fill(&mut self.memory, seed, offset);
            self.file.write_all_at(&self.memory, offset)?;
        }
        self.file.sync_all()?;
        Ok(0)
    }
}

/// Where the requests of a file begin.
fn offsets(part: &Part) -> impl Iterator<Item = u64> + use<> {
    let request = part.request;
    (0..part.bytes / request).map(move |number| number * request)
}

/// The eight bytes at a place of a file.
fn word(seed: u64, offset: u64) -> [u8; 8] {
    let number = seed ^ (offset / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number.to_le_bytes()
}

fn fill(memory: &mut [u8], seed: u64, offset: u64) {
    for (at, bytes) in memory.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(seed, offset + 8 * at as u64));
    }
}

/// How many bytes are not what was written there.
fn differences(memory: &[u8], seed: u64, offset: u64) -> u64 {
    let words = memory.chunks_exact(8).enumerate();
    let differ = words.filter_map(|(at, bytes)| {
        let expected = word(seed, offset + 8 * at as u64);
        let pairs = bytes.iter().zip(&expected);
        (bytes != expected).then(|| pairs.filter(|(one, other)| one != other).count() as u64)
    });
    differ.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_told_from_anything_else() {
        let mut memory = vec![0; 8192];
        fill(&mut memory, 7, 16384);
        assert_eq!(differences(&memory, 7, 16384), 0);
        memory[5000] ^= 1;
        assert_eq!(differences(&memory, 7, 16384), 1);
        memory[5000] ^= 1;
        assert!(differences(&memory, 8, 16384) > 1000, "another seed");
        assert!(differences(&memory, 7, 8192) > 1000, "another place");
    }

    #[test]
    fn files_are_made_read_and_removed() {
        // Where direct I/O works; /tmp may be a tmpfs of an old kernel.
        let dir = std::path::absolute(env!("CARGO_MANIFEST_DIR")).unwrap();
        let dir = dir.join(format!("../../target/bench-program-{}", std::process::id()));
        let part = Part {
            path: dir.join("file"),
            bytes: 5 * 65536,
            request: 65536,
        };
        let mut opened = None;
        let mut give = |task: Task| perform(&mut opened, &task);
        assert_eq!(give(Task::Make(dir.clone())), Ok(0));
        let fill = |seed| Task::Fill {
            part: part.clone(),
            seed,
        };
        assert_eq!(give(fill(3)), Ok(0));
        assert!(give(fill(3)).unwrap_err().contains("exists"));
        assert!(give(Task::Read { seed: 3 }).unwrap_err().contains("open"));
        assert_eq!(give(Task::Open(part.clone())), Ok(0));
        assert_eq!(give(Task::Read { seed: 3 }), Ok(0));
        assert_eq!(give(Task::Write { seed: 4 }), Ok(0));
        assert_eq!(give(Task::Read { seed: 4 }), Ok(0));
        assert!(give(Task::Read { seed: 3 }).unwrap() >= part.bytes / 8);
        assert_eq!(give(Task::Remove(dir.clone())), Ok(0));
        assert!(!dir.exists());
    }
}
