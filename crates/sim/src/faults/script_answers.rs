//! Compares each answer to a program with its model.

use super::script::{Answered, Node, Own, RECORD, Script, Step};
use super::sharing::Sight;
use tidegate_wire::{Attr, Entry, Outcome};

const ENOENT: i32 = 2;
const EIO: i32 = 5;
pub(super) const ENOSPC: i32 = 28;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const ENODATA: i32 = 61;

impl Script {
    /// Compares the answer with what the model demands, and takes the step in the model.
    pub fn answered(&mut self, answer: Answered) -> Result<(), String> {
        let step = self.step.take().expect("an answer follows a question");
        let outcome = match &step {
            Step::FindShared { .. } => match &answer {
                Ok((Outcome::Attr(attr), _)) => {
                    self.shared.push(attr.handle);
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            },
            Step::MakeFolder => match &answer {
                Ok((Outcome::Attr(attr), _)) => {
                    self.folder = Some(attr.handle);
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            },
            Step::Write { .. }
            | Step::Read { .. }
            | Step::Append { .. }
            | Step::Truncate { .. }
            | Step::Getattr { .. }
            | Step::SetXattr { .. }
            | Step::GetXattr { .. }
            | Step::RemoveXattr { .. }
            | Step::Fsync { .. }
            | Step::Open { .. }
            | Step::Close { .. } => self.answered_file(&step, &answer),
            Step::Journal { .. }
            | Step::JournalSync
            | Step::CounterSync { .. }
            | Step::Prize { .. }
            | Step::CounterLock
            | Step::CounterRead
            | Step::CounterWrite { .. }
            | Step::CounterUnlock => self.answered_shared(&step, &answer),
            Step::FlagMake { .. }
            | Step::FlagMove { .. }
            | Step::FlagFind { .. }
            | Step::JournalSize
            | Step::JournalOpen { .. }
            | Step::JournalClose { .. } => self.answered_sharing(&step, &answer),
            _ => self.answered_name(&step, &answer),
        };
        outcome.map_err(|text| {
            let mut step = format!("{step:?}");
            step.truncate(120);
            format!("program {}: {step}: {text}", self.id)
        })
    }

    fn answered_file(&mut self, step: &Step, answer: &Answered) -> Result<(), String> {
        if self.lossy {
            if std::mem::take(&mut self.lost_meanwhile) {
                return self.answered_after_loss(step, answer);
            }
            self.note_unsynced(step);
        }
        match step {
            Step::Write {
                file,
                offset,
                bytes,
            } => {
                let model = &mut self.files[*file].bytes;
                let end = *offset as usize + bytes.len();
                if model.len() < end {
                    model.resize(end, 0);
                }
                model[*offset as usize..end].copy_from_slice(bytes);
                let want = Outcome::Written {
                    len: bytes.len() as u64,
                };
                expect(answer, |o| *o == want, "all bytes written")
            }
            Step::Read { file, offset, len } => {
                let model = &self.files[*file].bytes;
                let start = (*offset as usize).min(model.len());
                let want = &model[start..(start + *len as usize).min(model.len())];
                match answer {
                    Ok((_, got)) if got == want => Ok(()),
                    Ok((_, got)) => Err(difference(want, got)),
                    Err(errno) => Err(format!("errno {errno}")),
                }
            }
            Step::Append { file, bytes } => self.appended(*file, bytes, answer),
            Step::Truncate { file, size } => {
                self.files[*file].bytes.resize(*size as usize, 0);
                expect_attr(answer, |a| a.size == *size, "the new size")
            }
            Step::Getattr { file } => {
                let own = &self.files[*file];
                let want = (own.bytes.len() as u64, own.nlink, own.handle);
                expect_attr(
                    answer,
                    |a| (a.size, a.nlink, a.handle) == want,
                    &format!("{want:?}"),
                )
            }
            Step::Open { file, open } => {
                self.files[*file].open = Some(*open);
                expect(answer, |_| true, "opened")
            }
            Step::Close { file, .. } => {
                self.files[*file].open = None;
                if self.files[*file].nlink == 0 {
                    self.forget(*file);
                }
                expect(answer, |_| true, "closed")
            }
            Step::Fsync { file } if self.lossy => self.synced(*file, answer),
            Step::Fsync { .. } => expect(answer, |_| true, "stable"),
            xattr => self.answered_xattr(xattr, answer),
        }
    }

    fn appended(&mut self, file: usize, bytes: &[u8], answer: &Answered) -> Result<(), String> {
        if self.lossy && *answer == Err(ENOSPC) {
            // There is nothing of it.
            return Ok(());
        }
        let model = &mut self.files[file].bytes;
        let (offset, len) = (model.len() as u64, bytes.len() as u64);
        let want = Outcome::Appended { offset, len };
        model.extend_from_slice(bytes);
        expect(answer, |o| *o == want, "appended at the end")
    }

    fn answered_xattr(&mut self, step: &Step, answer: &Answered) -> Result<(), String> {
        match step {
            Step::SetXattr { file, value } => {
                self.files[*file].xattr = Some(value.clone());
                expect(answer, |_| true, "set")
            }
            Step::GetXattr { file } => match (&self.files[*file].xattr, answer) {
                (Some(want), Ok((Outcome::Text(got), _))) if want[..] == got[..] => Ok(()),
                (None, Err(ENODATA)) => Ok(()),
                (want, got) => Err(format!("{got:?} instead of {want:?}")),
            },
            Step::RemoveXattr { file } => match (self.files[*file].xattr.take(), answer) {
                (Some(_), Ok(_)) | (None, Err(ENODATA)) => Ok(()),
                (had, got) => Err(format!("{got:?} although it had {had:?}")),
            },
            other => unreachable!("{other:?} concerns no attribute"),
        }
    }

    fn answered_shared(&mut self, step: &Step, answer: &Answered) -> Result<(), String> {
        match step {
            Step::Journal { record } => match answer {
                Ok((Outcome::Appended { offset, len }, _)) if *len == RECORD as u64 => {
                    if self.lossy {
                        self.unsynced_records.push((*record, *offset));
                        self.step = Some(Step::JournalSync);
                    } else {
                        self.journal.push((*record, *offset));
                        self.saw(Sight::Grown(offset + len));
                        let open = self.journal_open.take();
                        self.step = open.map(|open| Step::JournalClose { open });
                    }
                    Ok(())
                }
                Err(ENOSPC) if self.lossy => Ok(()),
                other => Err(format!("{other:?}")),
            },
            Step::JournalSync => self.journal_synced(answer),
            Step::CounterSync { value } => match answer {
                Ok(_) => self.counted(),
                // The increment may be lost, and must then be made again.
                Err(EIO) => {
                    self.step = Some(Step::CounterRead);
                    self.counter_wanted = Some(*value);
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            },
            Step::Prize { number } => match answer {
                Ok(_) => {
                    self.prizes.push(*number);
                    Ok(())
                }
                Err(EEXIST) => Ok(()),
                Err(errno) => Err(format!("errno {errno}")),
            },
            Step::CounterLock => {
                self.step = Some(Step::CounterRead);
                self.has_lock = answer.is_ok();
                expect(answer, |_| true, "locked")
            }
            Step::CounterRead => match answer {
                Ok((_, got)) if got.len() == 8 => {
                    let value = u64::from_le_bytes(got[..].try_into().expect("8 bytes"));
                    let wanted = self.counter_wanted.take().unwrap_or(value + 1);
                    if value != wanted && value + 1 != wanted {
                        return Err(format!("it holds {value}, and was to hold {wanted}"));
                    }
                    self.step = Some(Step::CounterWrite { value: wanted });
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            },
            Step::CounterWrite { value } => {
                if self.lossy {
                    self.step = Some(Step::CounterSync { value: *value });
                } else {
                    self.counted()?;
                }
                expect(answer, |_| true, "written")
            }
            _ => expect(answer, |_| true, "unlocked"),
        }
    }

    /// What programs that share see is compared at the end.
    fn answered_sharing(&mut self, step: &Step, answer: &Answered) -> Result<(), String> {
        let found = match answer {
            Ok((Outcome::Attr(attr), _)) => Some(*attr),
            _ => None,
        };
        match (step, found, answer) {
            (Step::FlagMake { flag, name }, Some(made), _) => {
                let (flag, name, file) = (*flag, name.clone(), made.handle);
                self.step = Some(Step::FlagMove { flag, name, file });
            }
            (Step::FlagMove { flag, file, .. }, _, Ok(_)) => self.saw(Sight::Moved(*flag, *file)),
            (Step::FlagFind { flag }, Some(found), _) => {
                self.saw(Sight::Found(*flag, Some(found.handle)));
            }
            (Step::FlagFind { flag }, _, Err(ENOENT)) => self.saw(Sight::Found(*flag, None)),
            (Step::JournalOpen { open, record }, Some(_), _) => {
                self.journal_open = Some(*open);
                let record = *record;
                self.step = Some(Step::Journal { record });
            }
            (Step::JournalClose { .. }, _, Ok(_)) => {}
            (Step::JournalSize, Some(found), _) => self.saw(Sight::Size(found.size)),
            (_, _, other) => return Err(format!("{other:?}")),
        }
        Ok(())
    }

    fn answered_name(&mut self, step: &Step, answer: &Answered) -> Result<(), String> {
        match step {
            Step::Create { name, exclusive } => self.created(name, *exclusive, answer),
            Step::Mkdir { name } => self.made(name, Node::Folder, answer),
            Step::Symlink { name, .. } => self.made(name, Node::Link, answer),
            Step::Link { file, name } => {
                let made = self.made(name, Node::File(*file), answer);
                if answer.is_ok() {
                    self.files[*file].nlink += 1;
                }
                made
            }
            Step::Unlink { name } => match (self.names.get(name).cloned(), answer) {
                (None, Err(ENOENT)) | (Some(Node::Folder), Err(EISDIR)) => Ok(()),
                (Some(node @ (Node::File(_) | Node::Link)), Ok(_)) => {
                    self.names.remove(name);
                    self.lost_name(&node);
                    Ok(())
                }
                (had, got) => Err(format!("{got:?}, the name is {had:?}")),
            },
            Step::Rmdir { name } => match (self.names.get(name), answer) {
                (None, Err(ENOENT)) | (Some(Node::File(_) | Node::Link), Err(ENOTDIR)) => Ok(()),
                (Some(Node::Folder), Ok(_)) => {
                    self.names.remove(name);
                    Ok(())
                }
                (had, got) => Err(format!("{got:?}, the name is {had:?}")),
            },
            Step::Rename { from, to } => self.renamed(from, to, answer),
            Step::Lookup { name } => match (self.names.get(name), answer) {
                (None, Err(ENOENT)) | (Some(_), Ok(_)) => Ok(()),
                (had, got) => Err(format!("{got:?}, the name is {had:?}")),
            },
            _ => match answer {
                Ok((Outcome::Entries(listing), _)) => {
                    let name = |e: &Entry| String::from_utf8_lossy(&e.name).into_owned();
                    let mut got: Vec<_> = listing.entries.iter().map(name).collect();
                    got.sort();
                    let want: Vec<_> = self.names.keys().cloned().collect();
                    let same = got == want;
                    if same {
                        Ok(())
                    } else {
                        Err(format!("{got:?} instead of {want:?}"))
                    }
                }
                other => Err(format!("{other:?}")),
            },
        }
    }

    fn created(&mut self, name: &str, exclusive: bool, answer: &Answered) -> Result<(), String> {
        match (self.names.get(name), answer) {
            (None, Ok((Outcome::Attr(attr), _))) => {
                self.names.insert(name.into(), Node::File(self.files.len()));
                let handle = attr.handle;
                self.files.push(Own {
                    handle,
                    bytes: Vec::new(),
                    nlink: 1,
                    xattr: None,
                    open: None,
                    unsynced: Vec::new(),
                    told: Vec::new(),
                    lost: false,
                });
                Ok(())
            }
            (Some(_), Err(EEXIST)) if exclusive => Ok(()),
            (Some(Node::File(file)), Ok((Outcome::Attr(attr), _))) if !exclusive => {
                let want = self.files[*file].handle;
                if attr.handle == want {
                    Ok(())
                } else {
                    Err("another file".into())
                }
            }
            // What an open of a folder or a symbolic link with O_CREAT yields, the mount decides.
            (Some(Node::Folder | Node::Link), _) if !exclusive => Ok(()),
            (had, got) => Err(format!("{got:?}, the name is {had:?}")),
        }
    }

    fn made(&mut self, name: &str, node: Node, answer: &Answered) -> Result<(), String> {
        match (self.names.get(name), answer) {
            (None, Ok(_)) => {
                self.names.insert(name.into(), node);
                Ok(())
            }
            (Some(_), Err(EEXIST)) => Ok(()),
            (had, got) => Err(format!("{got:?}, the name is {had:?}")),
        }
    }

    fn renamed(&mut self, from: &str, to: &str, answer: &Answered) -> Result<(), String> {
        let source = self.names.get(from).cloned();
        let target = self.names.get(to).cloned();
        let want = match (&source, &target) {
            (None, _) => Err(ENOENT),
            (Some(_), None) => Ok(()),
            (Some(a), Some(b)) if a == b && from == to => Ok(()),
            (Some(Node::File(a)), Some(Node::File(b))) if a == b => Ok(()),
            (Some(Node::Folder), Some(Node::Folder)) => Ok(()),
            (Some(Node::Folder), Some(_)) => Err(ENOTDIR),
            (Some(_), Some(Node::Folder)) => Err(EISDIR),
            (Some(_), Some(_)) => Ok(()),
        };
        match (want, answer) {
            (Err(want), Err(got)) if want == *got => return Ok(()),
            (Ok(()), Ok(_)) => {}
            (want, got) => return Err(format!("{got:?} instead of {want:?}")),
        }
        let same_file =
            matches!((&source, &target), (Some(Node::File(a)), Some(Node::File(b))) if a == b);
        if from == to || same_file {
            return Ok(());
        }
        if let Some(target) = target {
            self.lost_name(&target);
        }
        let node = self.names.remove(from).expect("the source exists");
        self.names.insert(to.into(), node);
        Ok(())
    }

    /// Removes a name of the node. The program no longer uses a file without a name and without an
    /// open.
    fn lost_name(&mut self, node: &Node) {
        let Node::File(file) = node else { return };
        self.files[*file].nlink -= 1;
        if self.files[*file].nlink == 0 && self.files[*file].open.is_none() {
            self.forget(*file);
        }
    }

    fn forget(&mut self, file: usize) {
        let last = self.files.len() - 1;
        self.files.swap_remove(file);
        for other in self.names.values_mut() {
            if *other == Node::File(last) {
                *other = Node::File(file);
            }
        }
    }
}

fn expect(answer: &Answered, right: impl Fn(&Outcome) -> bool, want: &str) -> Result<(), String> {
    match answer {
        Ok((outcome, _)) if right(outcome) => Ok(()),
        other => Err(format!("{other:?} instead of {want}")),
    }
}

fn expect_attr(answer: &Answered, right: impl Fn(&Attr) -> bool, want: &str) -> Result<(), String> {
    expect(
        answer,
        |o| matches!(o, Outcome::Attr(attr) if right(attr)),
        want,
    )
}

pub(super) fn difference(want: &[u8], got: &[u8]) -> String {
    let first = want.iter().zip(got).position(|(a, b)| a != b);
    format!(
        "{} bytes instead of {}, first difference at {first:?}",
        got.len(),
        want.len()
    )
}
