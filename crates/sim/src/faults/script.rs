//! One simulated program. It does random operations in a folder of its own and compares each answer
//! with a model that is too simple to be wrong. It also takes steps in shared files, whose sum the
//! test checks.

use super::sharing::{Seen, Sight};
use crate::rng::Rng;
use bytes::Bytes;
use std::collections::BTreeMap;
use tidegate_wire::{Handle, Op, Outcome};

/// The next operation of a program.
pub struct Ask {
    /// The operation.
    pub op: Op,
    /// Its payload.
    pub payload: Bytes,
}

/// An answer: outcome and bytes read, or errno.
pub type Answered = Result<(Outcome, Vec<u8>), i32>;

/// Folder of the files that all programs share.
pub const SHARED: &str = "shared";
/// File in it that receives one record of [`RECORD`] bytes from each append.
pub const JOURNAL: &str = "journal";
/// File in it that holds one counter of 8 bytes, incremented under a lock.
pub const COUNTER: &str = "counter";

/// Bytes of a journal record.
pub const RECORD: usize = 16;
/// Contested names.
const PRIZES: u64 = 40;
/// Names that programs which share move files to.
const FLAGS: u64 = 3;

#[derive(Clone, Debug)]
pub(super) enum Step {
    FindShared {
        name: &'static str,
    },
    MakeFolder,
    Create {
        name: String,
        exclusive: bool,
    },
    Write {
        file: usize,
        offset: u64,
        bytes: Bytes,
    },
    Read {
        file: usize,
        offset: u64,
        len: u64,
    },
    Append {
        file: usize,
        bytes: Bytes,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Getattr {
        file: usize,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        file: usize,
        name: String,
    },
    Unlink {
        name: String,
    },
    Mkdir {
        name: String,
    },
    Rmdir {
        name: String,
    },
    Symlink {
        name: String,
        target: Bytes,
    },
    Lookup {
        name: String,
    },
    List,
    SetXattr {
        file: usize,
        value: Bytes,
    },
    GetXattr {
        file: usize,
    },
    RemoveXattr {
        file: usize,
    },
    Fsync {
        file: usize,
    },
    Open {
        file: usize,
        open: u64,
    },
    Close {
        file: usize,
        open: u64,
    },
    Journal {
        record: [u8; RECORD],
    },
    Prize {
        number: u64,
    },
    CounterLock,
    CounterRead,
    CounterWrite {
        value: u64,
    },
    CounterUnlock,
    JournalSync,
    CounterSync {
        value: u64,
    },
    FlagMake {
        flag: u64,
        name: String,
    },
    FlagMove {
        flag: u64,
        name: String,
        file: Handle,
    },
    FlagFind {
        flag: u64,
    },
    JournalSize,
    JournalOpen {
        open: u64,
        record: [u8; RECORD],
    },
    JournalClose {
        open: u64,
    },
}

/// A file of the program's own.
#[derive(Debug)]
pub struct Own {
    /// The handle that the forwarders gave.
    pub handle: Handle,
    /// What it must hold.
    pub bytes: Vec<u8>,
    /// Number of names it must have.
    pub nlink: u32,
    pub(super) xattr: Option<Bytes>,
    /// Number of its open, if it is open.
    pub(super) open: Option<u64>,
    /// Ranges written since its last fsync.
    pub(super) unsynced: Vec<(u64, u64)>,
    /// Ranges written before an fsync that failed. These bytes may be lost without another error.
    pub(super) told: Vec<(u64, u64)>,
    /// Whether a node has lost bytes that were not synced, which the next fsync must report.
    pub(super) lost: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    File(usize),
    Folder,
    Link,
}

/// One program.
pub struct Script {
    pub(super) id: u64,
    rng: Rng,
    pub(super) root: Handle,
    /// Handles of what all share, in the order of [`SHARED`], [`JOURNAL`], [`COUNTER`].
    pub(super) shared: Vec<Handle>,
    pub(super) folder: Option<Handle>,
    pub(super) names: BTreeMap<String, Node>,
    pub(super) files: Vec<Own>,
    steps_left: u32,
    pub(super) step: Option<Step>,
    made: u64,
    bytes_max: u64,
    /// Records that forwarders have acknowledged, with their offsets.
    pub journal: Vec<([u8; RECORD], u64)>,
    /// Contested names that this program has made, as its answers say.
    pub prizes: Vec<u64>,
    /// Increments of the counter.
    pub increments: u64,
    /// Whether nodes may lose what was not synced.
    pub(super) lossy: bool,
    /// Whether a loss has undone a change of the file that is being changed.
    pub(super) lost_meanwhile: bool,
    /// Whether it has the counter's lock.
    pub(super) has_lock: bool,
    /// Records that forwarders have acknowledged and that are not synced yet.
    pub(super) unsynced_records: Vec<([u8; RECORD], u64)>,
    /// Records that may be lost, as an fsync has reported.
    pub doubtful: Vec<([u8; RECORD], u64)>,
    /// The file whose contents a loss has left unknown.
    pub(super) unknown: Option<Handle>,
    /// The value that the counter is to hold where its write may be lost.
    pub(super) counter_wanted: Option<u64>,
    /// Whether most steps change or look at what other programs change too.
    shares: bool,
    /// The time, which its client sets before each call and answer, ns.
    pub now: u64,
    pub(super) asked_at: u64,
    /// Its open of the journal, which it closes after its append.
    pub(super) journal_open: Option<u64>,
    /// What its answers say of what all programs change.
    pub seen: Vec<Seen>,
}

impl Script {
    /// A program of `steps` operations.
    pub fn new(id: u64, rng: Rng, root: Handle, steps: u32, stripe: u64, lossy: bool) -> Script {
        Script {
            id,
            rng,
            root,
            shared: Vec::new(),
            folder: None,
            names: BTreeMap::new(),
            files: Vec::new(),
            steps_left: steps,
            step: None,
            made: 0,
            bytes_max: stripe * 6,
            journal: Vec::new(),
            prizes: Vec::new(),
            increments: 0,
            lossy,
            lost_meanwhile: false,
            has_lock: false,
            unsynced_records: Vec::new(),
            doubtful: Vec::new(),
            unknown: None,
            counter_wanted: None,
            shares: false,
            now: 0,
            asked_at: 0,
            journal_open: None,
            seen: Vec::new(),
        }
    }

    /// Lets most steps concern what other programs change too.
    pub fn sharing(self, shares: bool) -> Script {
        Script { shares, ..self }
    }

    /// How long it waits before its next step, ns.
    pub fn thinks(&mut self) -> u64 {
        match self.shares && self.rng.one_in(3) {
            true => self.rng.below(60_000_000),
            false => 0,
        }
    }

    pub(super) fn saw(&mut self, what: Sight) {
        let (begin, end) = (self.asked_at, self.now);
        self.seen.push(Seen { begin, end, what });
    }

    /// Name of the program's folder.
    pub fn folder_name(&self) -> String {
        format!("program-{}", self.id)
    }

    /// Names in its folder that must exist at the end.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    /// The file of a name, if the name is a file's.
    pub fn file_of(&self, name: &str) -> Option<&Own> {
        match self.names.get(name)? {
            Node::File(file) => Some(&self.files[*file]),
            _ => None,
        }
    }

    /// The operation it waits for, for the report of a stuck run.
    pub fn waits_for(&self) -> Option<String> {
        self.step.as_ref().map(|step| {
            let mut text = format!("{step:?}");
            text.truncate(200);
            text
        })
    }

    /// The next operation; None when done. Call after the last one was answered.
    pub fn next(&mut self) -> Option<Ask> {
        let step = match self.step.take() {
            Some(step) => step,
            None if self.shared.len() < 3 => Step::FindShared {
                name: [SHARED, JOURNAL, COUNTER][self.shared.len()],
            },
            None if self.folder.is_none() => Step::MakeFolder,
            None if self.steps_left == 0 => return None,
            None => {
                self.steps_left -= 1;
                self.draw()
            }
        };
        let ask = self.ask(&step);
        self.asked_at = self.now;
        self.step = Some(step);
        Some(ask)
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(12))
    }

    fn data(&mut self, len: u64) -> Bytes {
        let tag = self.rng.draw();
        (0..len)
            .map(|i| (tag >> (8 * (i % 8))) as u8 ^ (i / 8) as u8)
            .collect::<Vec<_>>()
            .into()
    }

    /// A step that concerns what all programs change.
    fn draw_shared(&mut self) -> Step {
        let flag = self.rng.below(FLAGS);
        match self.rng.below(20) {
            0..11 => Step::FlagFind { flag },
            11..15 => Step::JournalSize,
            15 => self.draw_journal(),
            16 => {
                let open = self.id << 32 | self.made;
                match self.draw_journal() {
                    Step::Journal { record } => Step::JournalOpen { open, record },
                    other => other,
                }
            }
            _ => {
                self.made += 1;
                let name = format!("flag-of-{}-{}", self.id, self.made);
                Step::FlagMake { flag, name }
            }
        }
    }

    fn draw(&mut self) -> Step {
        if self.shares && !self.rng.one_in(4) {
            return self.draw_shared();
        }
        let name = self.name();
        match self.rng.below(100) {
            0..8 => {
                return Step::Create {
                    name,
                    exclusive: self.rng.one_in(2),
                };
            }
            8..12 => return Step::Mkdir { name },
            12..15 => return Step::Rmdir { name },
            15..21 => return Step::Unlink { name },
            21..28 => {
                return Step::Rename {
                    from: name,
                    to: self.name(),
                };
            }
            28..31 => {
                let len = self.rng.between(1, 100);
                return Step::Symlink {
                    name,
                    target: self.data(len).iter().map(|b| b | 1).collect(),
                };
            }
            31..35 => return Step::Lookup { name },
            35..38 => return Step::List,
            38..44 => return self.draw_journal(),
            44..48 => {
                return Step::Prize {
                    number: self.rng.below(PRIZES),
                };
            }
            48..52 => return Step::CounterLock,
            _ => {}
        }
        if self.files.is_empty() {
            return Step::Create {
                name,
                exclusive: false,
            };
        }
        let file = self.rng.below(self.files.len() as u64) as usize;
        self.draw_on_file(file)
    }

    fn draw_journal(&mut self) -> Step {
        self.made += 1;
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&self.id.to_le_bytes());
        record[8..].copy_from_slice(&self.made.to_le_bytes());
        Step::Journal { record }
    }

    fn draw_on_file(&mut self, file: usize) -> Step {
        let offset = self.rng.below(self.bytes_max);
        let len = match self.rng.below(3) {
            0 => self.rng.between(1, 64),
            1 => self.rng.between(1, self.bytes_max / 6),
            _ => self.rng.between(1, self.bytes_max / 2),
        };
        match self.rng.below(50) {
            0..16 => Step::Write {
                file,
                offset,
                bytes: self.data(len),
            },
            16..28 => Step::Read { file, offset, len },
            28..32 => Step::Append {
                file,
                bytes: self.data(len.min(3000)),
            },
            32..35 => Step::Truncate { file, size: offset },
            35..38 => Step::Getattr { file },
            38..40 if self.files[file].nlink > 0 => Step::Link {
                file,
                name: self.name(),
            },
            40..42 => Step::SetXattr {
                file,
                value: self.data(len.min(100)),
            },
            42..44 => Step::GetXattr { file },
            44 => Step::RemoveXattr { file },
            45 | 46 => match self.files[file].open {
                Some(open) => Step::Close { file, open },
                None => {
                    self.made += 1;
                    Step::Open {
                        file,
                        open: self.id << 32 | self.made,
                    }
                }
            },
            _ => Step::Fsync { file },
        }
    }
}
