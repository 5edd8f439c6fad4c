//! The memory in which the programs of a run count the files that they open, and what is said of it
//! when the run ends.

use super::slurm;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Pid;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_client::fuse_mounts;
use tidegate_client::opened::{BYTES, MAGIC, Opened, Program, VARIABLE, Word, device};

/// See the head of the file. It has no name, and only this user's processes can open it.
pub struct Counts {
    memory: File,
    export: Option<PathBuf>,
    first: (String, Program),
}

impl Counts {
    /// Makes the memory; None if the kernel does not give it: then nothing is counted. `first` is
    /// what the run itself starts.
    pub fn make(point: &Path, export: Option<&Path>, first: (&str, Program)) -> Option<Counts> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = File::from(rustix::fs::memfd_create("tidegate-counts", flags).ok()?);
        memory.set_len(BYTES as u64).ok()?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).ok()?;
        let point = std::fs::canonicalize(point.parent()?)
            .ok()?
            .join(point.file_name()?);
        let mounts = fuse_mounts().into_iter();
        // The latest hides those before it.
        let mount = mounts
            .filter(|mount| point.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.components().count())?;
        let export_device = export.and_then(|export| std::fs::metadata(export).ok());
        let export_device = export_device.map_or(0, |found| {
            let found = found.dev();
            device(rustix::fs::major(found), rustix::fs::minor(found))
        });
        for (word, value) in [
            (Word::Magic, MAGIC),
            (Word::Mount, device(0, u32::try_from(mount.device).ok()?)),
            (Word::Export, export_device),
        ] {
            #[expect(clippy::host_endian_bytes, reason = "memory of this node")]
            let bytes = value.to_ne_bytes();
            memory.write_all_at(&bytes, word as u64 * 8).ok()?;
        }
        Some(Counts {
            memory,
            export: export.map(Path::to_path_buf),
            first: (first.0.to_string(), first.1),
        })
    }

    /// The memory's descriptor.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Tells the program where the memory is: in the process that has this descriptor open until
    /// the end of the run.
    pub fn tell(&self, command: &mut Command, process: Pid) {
        let (process, number) = (process.as_raw_nonzero(), self.memory.as_raw_fd());
        command.env(VARIABLE, format!("/proc/{process}/fd/{number}"));
    }

    /// The line to say at the end, if there is one: always if files were written past the
    /// forwarders though nobody has asked for that, or brought into the directory so, or none was
    /// opened through them and files were written or a program could not be led; else if it
    /// `is_asked` for.
    pub fn line(&self, is_asked: bool) -> Option<String> {
        let mut memory = vec![0; BYTES];
        self.memory.read_exact_at(&mut memory, 0).ok()?;
        let mut opened = Opened::decode(&memory)?;
        // They work on no files of the run, and what they start is not of it.
        let is_slurms =
            |(name, kind): &(String, Program)| *kind == Program::Bare && slurm::is_command(name);
        opened.unseen.retain(|one| !is_slurms(one));
        let (first, kind) = &self.first;
        if *kind != Program::Loads {
            let name = Path::new(first).file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            opened.unseen.insert(0, (name, *kind));
        }
        let is_none = opened.through == 0 && (opened.written > 0 || opened.has_left());
        let is_unasked = opened.alias > 0 || opened.unreached > 0;
        let is_bad = is_none || opened.brought > 0 || (opened.written > 0 && is_unasked);
        (is_asked || is_bad).then(|| text(&opened, self.export.as_deref()))
    }
}

fn text(opened: &Opened, export: Option<&Path>) -> String {
    let past = export.map_or(0, |_| opened.past());
    let all = opened.through.saturating_add(past);
    let mut text = format!(
        "{all} {} opened: {} through the forwarders",
        if all == 1 { "file" } else { "files" },
        opened.through
    );
    if opened.through > 0 {
        text += &format!(" ({} by the short-cut)", opened.taken);
    }
    match export {
        Some(_) => text += &format!(", {past} past them"),
        None => text += "; how many past them is not known, for the exported directory is not",
    }
    let export = export.map_or_else(String::new, |export| export.display().to_string());
    let why = [
        (opened.asked, format!("in {export}, not redirected")),
        (opened.alias, format!("in {export} by another name")),
        (
            opened.unreached,
            format!("in {export}, the mount out of reach"),
        ),
    ];
    let why: Vec<String> = why
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{count} {why}"))
        .collect();
    if !why.is_empty() {
        text += &format!(" ({}; {} for writing)", why.join(", "), opened.written);
    }
    if opened.renamed > 0 {
        text += &format!("; {} renamed past them", opened.renamed);
        if opened.brought > 0 {
            text += &format!(", {} into {export}", opened.brought);
        }
    }
    match unseen(opened) {
        None => text,
        // No file went past that is known: what is not known is the news.
        Some(unseen) if all == 0 => format!("{unseen}; of the others {text}"),
        Some(unseen) => format!("{text}; {unseen}"),
    }
}

fn unseen(opened: &Opened) -> Option<String> {
    let names = opened.unseen.iter();
    let mut names: Vec<String> = names
        .map(|(name, kind)| format!("{name}, {}", kind.text()))
        .collect();
    if names.is_empty() {
        return None;
    }
    if opened.unnamed > 0 {
        names.push(format!("{} more", opened.unnamed));
    }
    Some(format!("not counted: {}", names.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_client::opened::NAMES_AT;

    #[test]
    fn commands_of_slurm_are_no_programs_that_went_past() {
        let counts = |name: &str| {
            let memory = rustix::fs::memfd_create("tidegate-counts", MemfdFlags::CLOEXEC);
            let memory = File::from(memory.expect("memory"));
            memory.set_len(BYTES as u64).expect("memory");
            #[expect(clippy::host_endian_bytes, reason = "memory of this node")]
            memory
                .write_all_at(&MAGIC.to_ne_bytes(), Word::Magic as u64 * 8)
                .expect("memory");
            memory
                .write_all_at(name.as_bytes(), NAMES_AT as u64)
                .expect("memory");
            let first = ("sh".to_owned(), Program::Loads);
            Counts {
                memory,
                export: Some("/data".into()),
                first,
            }
        };
        let said = counts("edate").line(false).expect("it is told");
        assert!(said.starts_with("not counted: date"), "{said}");
        assert_eq!(counts("esbatch").line(false), None);
        assert_eq!(counts("esrun").line(false), None);
    }

    #[test]
    fn the_line_says_what_was_opened_where_and_why() {
        let at = Some(Path::new("/data"));
        let none = text(&Opened::default(), at);
        assert_eq!(
            none,
            "0 files opened: 0 through the forwarders, 0 past them"
        );
        let blind = text(&Opened::default(), None);
        assert!(
            blind.ends_with("how many past them is not known, for the exported directory is not")
        );
        let unknown = Opened {
            unseen: vec![("date".to_string(), Program::Bare)],
            ..Opened::default()
        };
        assert_eq!(
            text(&unknown, at),
            "not counted: date, without the environment of the run; of the others 0 files opened: \
             0 through the forwarders, 0 past them"
        );
        let opened = Opened {
            through: 9,
            taken: 4,
            asked: 1,
            alias: 2,
            unreached: 1,
            written: 2,
            renamed: 5,
            brought: 3,
            unseen: vec![("hugo".to_string(), Program::Static)],
            unnamed: 3,
        };
        assert_eq!(
            text(&opened, Some(Path::new("/data"))),
            "13 files opened: 9 through the forwarders (4 by the short-cut), 4 past them (1 in \
             /data, not redirected, 2 in /data by another name, 1 in /data, the mount out \
             of reach; 2 for writing); 5 renamed past them, 3 into /data; not counted: hugo, \
             statically linked; 3 more"
        );
    }
}
