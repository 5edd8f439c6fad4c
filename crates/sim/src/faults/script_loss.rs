//! Checks where nodes can lose what was written and not synced: the next fsync must report the
//! loss, and nothing that was synced may be lost.

use super::script::{Answered, Own, Script, Step};
use super::script_answers::ENOSPC;
use super::script_answers::difference;
use tidegate_wire::{Handle, Outcome};

const EIO: i32 = 5;

impl Script {
    /// Whether nodes may lose what was not synced.
    pub fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// Whether it has the lock of the counter: its id.
    pub fn holds_lock(&self) -> Option<u64> {
        self.has_lock.then_some(self.id)
    }

    /// A node has lost writes of a file, which holds these bytes now.
    pub fn lost(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), String> {
        let Some(file) = self.file_with(handle) else {
            return Ok(());
        };
        let step = self.step.take();
        let changing = step.as_ref().filter(|step| step.changes() == Some(file));
        let looks = step.as_ref().and_then(Step::looks_at) == Some(file);
        self.lost_meanwhile |= changing.is_some() || looks;
        let range = changing.map(|step| self.note_unsynced(step));
        self.step = step;
        self.compare_synced(file, bytes)?;
        let own = &mut self.files[file];
        // What is being changed just now may be old or new.
        let changed = range.unwrap_or_default();
        let old = |at: &usize| !lies_in(&[changed], *at) && !own.was_told(*at);
        let differs = |at: usize| own.bytes.get(at) != bytes.get(at);
        let mut all = 0..own.bytes.len().max(bytes.len());
        own.lost |= all.any(|at| old(&at) && differs(at));
        if range.is_none() {
            own.bytes = bytes.to_vec();
        }
        Ok(())
    }

    fn file_with(&self, handle: Handle) -> Option<usize> {
        self.files.iter().position(|own| own.handle == handle)
    }

    /// Notes where a step changes a file.
    pub(super) fn note_unsynced(&mut self, step: &Step) -> (u64, u64) {
        let (file, from, to) = match step {
            Step::Write {
                file,
                offset,
                bytes,
            } => (*file, *offset, *offset + bytes.len() as u64),
            Step::Append { file, bytes } => {
                let size = self.files[*file].bytes.len() as u64;
                (*file, size, size + bytes.len() as u64)
            }
            _ => return (0, 0),
        };
        let own = &mut self.files[file];
        // A hole before the write came with it.
        let range = (from.min(own.bytes.len() as u64), to);
        own.unsynced.push(range);
        range
    }

    /// Checks that everything synced is there after a loss.
    fn compare_synced(&self, file: usize, bytes: &[u8]) -> Result<(), String> {
        let own = &self.files[file];
        let unsynced = |at: usize| lies_in(&own.unsynced, at) || own.was_told(at);
        let len = own.bytes.len().max(bytes.len());
        let differs = |at: &usize| own.bytes.get(*at) != bytes.get(*at) && !unsynced(*at);
        match (0..len).find(differs) {
            None => Ok(()),
            Some(at) => Err(format!(
                "program {}: byte {at} of a file was synced and is lost: {}",
                self.id,
                difference(&own.bytes, bytes)
            )),
        }
    }

    /// Handles a change during which a node lost writes: the answer says that it is done, but it
    /// may be lost by now.
    pub(super) fn answered_after_loss(
        &mut self,
        step: &Step,
        answer: &Answered,
    ) -> Result<(), String> {
        let (file, bytes) = match step {
            Step::Write { file, bytes, .. } | Step::Append { file, bytes } => (*file, bytes),
            // It may have seen some of the file before the loss and some after it.
            _ if answer.is_ok() => return Ok(()),
            _ => return Err(format!("{answer:?}")),
        };
        let whole = bytes.len() as u64;
        let offset = match (step, answer) {
            (Step::Write { offset, .. }, Ok((Outcome::Written { len }, _))) if *len == whole => {
                *offset
            }
            (Step::Append { .. }, Ok((Outcome::Appended { offset, len }, _))) if *len == whole => {
                *offset
            }
            (Step::Append { .. }, Err(ENOSPC)) => {
                self.unknown = Some(self.files[file].handle);
                return Ok(());
            }
            (_, other) => return Err(format!("{other:?} instead of all bytes")),
        };
        let own = &mut self.files[file];
        own.unsynced.push((offset, offset + whole));
        let (from, to) = (offset as usize, (offset + whole) as usize);
        if own.bytes.len() < to {
            own.bytes.resize(to, 0);
        }
        own.bytes[from..to].copy_from_slice(bytes);
        self.unknown = Some(own.handle);
        Ok(())
    }

    /// The file whose contents the model does not know after a loss.
    pub fn unknown(&mut self) -> Option<Handle> {
        self.unknown.take()
    }

    /// Takes in what a file holds after a change during which a node lost writes.
    pub fn found(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), String> {
        let Some(file) = self.file_with(handle) else {
            return Ok(());
        };
        self.compare_synced(file, bytes)?;
        let own = &mut self.files[file];
        let mut all = 0..own.bytes.len().max(bytes.len());
        own.lost |= all.any(|at| own.bytes.get(at) != bytes.get(at) && !own.was_told(at));
        own.bytes = bytes.to_vec();
        Ok(())
    }

    /// Checks that an fsync of an own file reports what was lost.
    pub(super) fn synced(&mut self, file: usize, answer: &Answered) -> Result<(), String> {
        let own = &mut self.files[file];
        match answer {
            Ok(_) if own.lost => Err("stable, although a node has lost writes".into()),
            Ok(_) => {
                for range in std::mem::take(&mut own.unsynced) {
                    without(&mut own.told, range);
                }
                Ok(())
            }
            Err(EIO) => {
                own.lost = false;
                own.told.append(&mut own.unsynced);
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    }

    pub(super) fn journal_synced(&mut self, answer: &Answered) -> Result<(), String> {
        match answer {
            Ok(_) => {
                self.journal.append(&mut self.unsynced_records);
                Ok(())
            }
            Err(EIO) => {
                self.doubt_records();
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    }

    /// Marks records as doubtful, because an fsync of the journal has reported a loss to a program
    /// of this client: the client reports each loss once.
    pub fn doubt_records(&mut self) {
        self.doubtful.append(&mut self.unsynced_records);
    }

    /// Counts an increment of the counter that is stable.
    pub(super) fn counted(&mut self) -> Result<(), String> {
        self.increments += 1;
        self.has_lock = false;
        self.step = Some(Step::CounterUnlock);
        Ok(())
    }

    /// Whether the answer reports a loss in the journal.
    pub fn tells_loss(&self, answer: &Answered) -> bool {
        matches!((&self.step, answer), (Some(Step::JournalSync), Err(EIO)))
    }
}

impl Own {
    /// Whether an fsync has reported that the byte there may be lost, and the program has not
    /// written it again.
    fn was_told(&self, at: usize) -> bool {
        lies_in(&self.told, at) && !lies_in(&self.unsynced, at)
    }
}

fn lies_in(ranges: &[(u64, u64)], at: usize) -> bool {
    let at = at as u64;
    ranges.iter().any(|(from, to)| (*from..*to).contains(&at))
}

/// Takes a range out of others.
fn without(ranges: &mut Vec<(u64, u64)>, (from, to): (u64, u64)) {
    let parts = |(first, end): (u64, u64)| [(first, end.min(from)), (first.max(to), end)];
    let left = ranges.drain(..).flat_map(parts);
    *ranges = left.filter(|(first, end)| first < end).collect();
}

impl Step {
    /// The file whose bytes or size the step reads.
    pub(super) fn looks_at(&self) -> Option<usize> {
        match self {
            Step::Read { file, .. } | Step::Getattr { file } => Some(*file),
            _ => None,
        }
    }

    /// The file to which the step writes bytes.
    pub(super) fn changes(&self) -> Option<usize> {
        match self {
            Step::Write { file, .. } | Step::Append { file, .. } => Some(*file),
            _ => None,
        }
    }
}
