//! Which nodes have written bytes in memory that no fsync has made stable yet.

use crate::wire::Handle;
use std::collections::BTreeMap;

/// Largest number of files with unstable writes. Beyond it the client counts the writes of one as
/// anybody's, and each fsync asks their node too.
const FILES_MAX: usize = 65_536;

/// A node from one boot to the next: its host and boot ids, from the hello.
pub(super) type Identity = (u64, u64);

/// Writes of one file that one node has in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dirt {
    pub(super) identity: Identity,
    /// Number of the last of these writes.
    pub(super) mark: u64,
    /// Seats through which these writes went.
    pub(super) seats: Vec<u16>,
}

#[derive(Default)]
pub(super) struct Unstable {
    files: BTreeMap<Handle, Vec<Dirt>>,
    anybody: Vec<Dirt>,
    marks: u64,
}

impl Unstable {
    /// Records that this node has acknowledged a write through this seat.
    pub(super) fn wrote(&mut self, handle: Handle, identity: Identity, seat: u16) {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&handle) {
            let (_, dirt) = self.files.pop_first().expect("it is full");
            for dirt in dirt {
                note(&mut self.anybody, dirt.identity, dirt.mark, &dirt.seats);
            }
        }
        self.marks += 1;
        let dirt = self.files.entry(handle).or_default();
        note(dirt, identity, self.marks, &[seat]);
    }

    /// The nodes that have unstable writes of the file.
    pub(super) fn of(&self, handle: Handle) -> Vec<Dirt> {
        let mut all = self.files.get(&handle).cloned().unwrap_or_default();
        for dirt in &self.anybody {
            if !all.iter().any(|known| known.identity == dirt.identity) {
                all.push(dirt.clone());
            }
        }
        all
    }

    /// Removes the writes up to the mark: they are stable, or the client has reported their loss.
    pub(super) fn settled(&mut self, handle: Handle, settled: &Dirt, lost: bool) {
        let done = |d: &Dirt| d.identity == settled.identity && d.mark <= settled.mark;
        if let Some(dirt) = self.files.get_mut(&handle) {
            dirt.retain(|dirt| !done(dirt));
            if dirt.is_empty() {
                self.files.remove(&handle);
            }
        }
        // A file's fsync says nothing of the others, but a lost node is lost for all.
        if lost {
            self.anybody.retain(|dirt| !done(dirt));
        }
    }
}

fn note(dirt: &mut Vec<Dirt>, identity: Identity, mark: u64, seats: &[u16]) {
    match dirt.iter_mut().find(|dirt| dirt.identity == identity) {
        Some(known) => {
            known.mark = known.mark.max(mark);
            for seat in seats {
                if !known.seats.contains(seat) {
                    known.seats.push(*seat);
                }
            }
        }
        None => dirt.push(Dirt {
            identity,
            mark,
            seats: seats.to_vec(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Handle {
        Handle { inode, birth: 0 }
    }

    #[test]
    fn a_write_during_the_fsync_stays_unstable() {
        let mut unstable = Unstable::default();
        unstable.wrote(file(1), (7, 1), 0);
        unstable.wrote(file(1), (8, 1), 1);
        let [first, second] = &unstable.of(file(1))[..] else {
            panic!("two nodes have writes")
        };
        unstable.wrote(file(1), (7, 1), 2);
        unstable.settled(file(1), first, false);
        unstable.settled(file(1), second, false);
        let left = unstable.of(file(1));
        assert_eq!(left.len(), 1);
        assert_eq!(
            (left[0].identity, &left[0].seats[..]),
            ((7, 1), &[0, 2][..])
        );
    }

    #[test]
    fn too_many_files_are_remembered_together() {
        let mut unstable = Unstable::default();
        for inode in 0..=FILES_MAX as u64 {
            unstable.wrote(file(inode), (7, 1), 0);
        }
        assert_eq!(unstable.files.len(), FILES_MAX);
        let dirt = unstable.of(file(u64::MAX));
        assert_eq!(dirt[0].identity, (7, 1));
        unstable.settled(file(u64::MAX), &dirt[0], false);
        assert_eq!(unstable.of(file(u64::MAX)).len(), 1);
        unstable.settled(file(u64::MAX), &dirt[0], true);
        assert!(unstable.of(file(u64::MAX)).is_empty());
    }
}
