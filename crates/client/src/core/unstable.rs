//! Which nodes have written bytes in memory that no fsync has made stable yet, by file.
//!
//! A program may write many files and sync none, so what is kept of a file is small: one node and
//! the first 32 seats take 24 bytes. Other seats, several nodes, and a node that has no number take
//! some 100 bytes more.

use crate::wire::Handle;
use std::collections::BTreeMap;

/// Largest number of files with unstable writes. Beyond it the client counts the writes of one as
/// anybody's, and each fsync asks their node too.
const FILES_MAX: usize = 65_536;

/// Largest number of nodes that have a number: those whose writes were not synced since a moment at
/// which all were. The writes of others take more bytes.
const NODES_MAX: usize = 256;

/// How many seats a set of bits has.
const SEATS: u16 = u32::BITS as u16;

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

/// The unstable writes of all files.
#[derive(Default)]
pub(super) struct Unstable {
    files: BTreeMap<Handle, Dirty>,
    /// The nodes that `files` name by their numbers.
    nodes: Vec<Identity>,
    anybody: Vec<Dirt>,
    marks: u64,
}

/// The unstable writes of one file.
enum Dirty {
    /// Those of one node, through seats whose numbers are small.
    One { mark: u64, seats: u32, node: u16 },
    /// All others.
    Many(Vec<Dirt>),
}

impl Unstable {
    /// Records that this node has acknowledged a write through this seat.
    pub(super) fn wrote(&mut self, handle: Handle, identity: Identity, seat: u16) {
        self.marks += 1;
        match self.files.get_mut(&handle) {
            Some(Dirty::One { mark, seats, node })
                if seat < SEATS && self.nodes[usize::from(*node)] == identity =>
            {
                (*mark, *seats) = (self.marks, *seats | 1 << seat);
                return;
            }
            Some(Dirty::Many(all)) => return note(all, identity, self.marks, &[seat]),
            Some(Dirty::One { .. }) | None => {}
        }
        let mut all = self.listed(handle);
        if all.is_empty() && self.files.len() >= FILES_MAX {
            self.merge_one();
        }
        note(&mut all, identity, self.marks, &[seat]);
        self.keep(handle, all);
    }

    /// The nodes that have unstable writes of the file. Earlier ones of its own may be counted as
    /// anybody's, through other seats of the same node.
    pub(super) fn of(&self, handle: Handle) -> Vec<Dirt> {
        let mut all = self.listed(handle);
        for dirt in &self.anybody {
            note(&mut all, dirt.identity, dirt.mark, &dirt.seats);
        }
        all
    }

    /// Removes the writes up to the mark through these seats: they are stable, or the client has
    /// reported their loss.
    pub(super) fn settled(&mut self, handle: Handle, settled: &Dirt, lost: bool) {
        let done = |d: &Dirt| d.identity == settled.identity && d.mark <= settled.mark;
        let mut all = self.listed(handle);
        all.retain_mut(|dirt| {
            if done(dirt) {
                dirt.seats.retain(|seat| !settled.seats.contains(seat));
            }
            !(dirt.seats.is_empty() || lost && done(dirt))
        });
        self.keep(handle, all);
        // A file's fsync says nothing of the others, but a lost node is lost for all.
        if lost {
            self.anybody.retain(|dirt| !done(dirt));
        }
    }

    /// Counts the writes of one file as anybody's.
    fn merge_one(&mut self) {
        if let Some((handle, _)) = self.files.first_key_value() {
            let handle = *handle;
            for dirt in self.listed(handle) {
                note(&mut self.anybody, dirt.identity, dirt.mark, &dirt.seats);
            }
            self.files.remove(&handle);
        }
    }

    fn listed(&self, handle: Handle) -> Vec<Dirt> {
        match self.files.get(&handle) {
            None => Vec::new(),
            Some(Dirty::Many(all)) => all.clone(),
            Some(Dirty::One { mark, seats, node }) => vec![Dirt {
                identity: self.nodes[usize::from(*node)],
                mark: *mark,
                seats: (0..SEATS).filter(|seat| seats >> seat & 1 == 1).collect(),
            }],
        }
    }

    fn keep(&mut self, handle: Handle, all: Vec<Dirt>) {
        if all.is_empty() {
            self.files.remove(&handle);
            if self.files.is_empty() {
                self.nodes.clear();
            }
            return;
        }
        let dirty = match self.as_one(&all) {
            Some(one) => one,
            None => Dirty::Many(all),
        };
        self.files.insert(handle, dirty);
    }

    fn as_one(&mut self, all: &[Dirt]) -> Option<Dirty> {
        let [dirt] = all else { return None };
        let small = dirt.seats.iter().all(|seat| *seat < SEATS);
        let node = self.number_of(dirt.identity).filter(|_| small)?;
        let bits = dirt.seats.iter().map(|seat| 1 << seat);
        Some(Dirty::One {
            mark: dirt.mark,
            seats: bits.fold(0, |all, bit: u32| all | bit),
            node,
        })
    }

    /// The number of a node; None if there are too many.
    fn number_of(&mut self, identity: Identity) -> Option<u16> {
        let known = self.nodes.iter().rposition(|known| *known == identity);
        if known.is_none() && self.nodes.len() < NODES_MAX {
            self.nodes.push(identity);
        }
        let at = known.unwrap_or(self.nodes.len() - 1);
        u16::try_from(at)
            .ok()
            .filter(|_| self.nodes[at] == identity)
    }
}

fn note(all: &mut Vec<Dirt>, identity: Identity, mark: u64, seats: &[u16]) {
    match all.iter_mut().find(|dirt| dirt.identity == identity) {
        Some(known) => {
            known.mark = known.mark.max(mark);
            for seat in seats {
                if !known.seats.contains(seat) {
                    known.seats.push(*seat);
                }
            }
        }
        None => all.push(Dirt {
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

    /// Its earlier writes are counted as anybody's, and may have gone through other seats.
    #[test]
    fn a_file_that_is_written_again_is_synced_wherever_it_was_written() {
        let mut unstable = Unstable::default();
        unstable.wrote(file(0), (7, 1), 3);
        for inode in 1..=FILES_MAX as u64 {
            unstable.wrote(file(inode), (7, 1), 0);
        }
        unstable.wrote(file(0), (7, 1), 5);
        let [dirt] = &unstable.of(file(0))[..] else {
            panic!("one node has writes")
        };
        let mut seats = dirt.seats.clone();
        seats.sort_unstable();
        assert_eq!(seats, [0, 3, 5]);
        // A write that comes during the fsync is not settled by it.
        let asked = dirt.clone();
        unstable.wrote(file(0), (7, 1), 5);
        unstable.settled(file(0), &asked, false);
        assert!(unstable.files.contains_key(&file(0)));
        let asked = unstable.of(file(0)).remove(0);
        unstable.settled(file(0), &asked, false);
        assert!(!unstable.files.contains_key(&file(0)));
    }

    /// Also where seats have large numbers, or several nodes have written.
    #[test]
    fn a_file_is_remembered_alike_however_it_is_kept() {
        let mut unstable = Unstable::default();
        for seat in [3, 31, 3, 0] {
            unstable.wrote(file(1), (7, 1), seat);
        }
        assert!(matches!(unstable.files[&file(1)], Dirty::One { .. }));
        let seats = |unstable: &Unstable| unstable.of(file(1))[0].seats.clone();
        assert_eq!(seats(&unstable), [0, 3, 31]);
        unstable.wrote(file(1), (7, 1), 32);
        assert_eq!(seats(&unstable), [0, 3, 31, 32]);
        let before = unstable.of(file(1));
        unstable.wrote(file(1), (9, 2), 1);
        let whole = Dirt {
            mark: 9,
            ..before[0].clone()
        };
        unstable.settled(file(1), &whole, false);
        assert!(matches!(unstable.files[&file(1)], Dirty::One { .. }));
        let left = unstable.of(file(1));
        assert_eq!((left[0].identity, left[0].seats.len()), ((9, 2), 1));
        unstable.settled(file(1), &left[0], false);
        assert!(unstable.files.is_empty());
    }

    #[test]
    fn a_file_that_is_not_synced_takes_few_bytes() {
        assert!(size_of::<(Handle, Dirty)>() <= 40);
        let mut unstable = Unstable::default();
        for inode in 0..1000 {
            unstable.wrote(file(inode), (inode % 3, 1), (inode % 4) as u16);
        }
        let more = |dirty: &&Dirty| matches!(dirty, Dirty::Many(_));
        assert_eq!(unstable.files.values().filter(more).count(), 0);
        assert_eq!(unstable.nodes.len(), 3);
        for boot in 0..1000 {
            unstable.wrote(file(2000 + boot), (7, boot), 0);
        }
        assert_eq!(unstable.nodes.len(), NODES_MAX);
        assert_eq!(unstable.of(file(2999))[0].identity, (7, 999));
        // Where all is stable, later boots of nodes have numbers again.
        for inode in 0..3000 {
            for dirt in unstable.of(file(inode)) {
                unstable.settled(file(inode), &dirt, false);
            }
        }
        unstable.wrote(file(1), (7, 1000), 0);
        assert!(matches!(unstable.files[&file(1)], Dirty::One { .. }));
        assert_eq!(unstable.nodes, [(7, 1000)]);
    }
}
