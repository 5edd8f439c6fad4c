//! A distributed back end that several nodes share: its locks, the files of the leases, and which
//! node can reach it. A node that is cut off keeps its locks until the back end's time limit. Then
//! the back end drops them and refuses what the node still has under way: that is the fence.

use super::plan::{Cluster, Mutant};
use std::collections::BTreeMap;
use tidegate_forward::lease::LeaseRecord;
use tidegate_forward::model::{BackEnd, Copies, Disk, Mount, TableFile, Way};
use tidegate_wire::Handle;

/// One run of a forwarder's process: the forwarder's index, and how many runs were before.
pub type Life = (usize, u32);

/// A generation's file: the lease's record, and the reply table behind it.
#[derive(Clone)]
pub struct LeaseFile {
    /// The lease's record.
    pub record: LeaseRecord,
    /// The process that made it.
    pub life: Life,
    /// The boot of that process's node.
    pub boot: u64,
    /// Whether the table has been written whole.
    pub complete: bool,
    /// The reply table.
    pub table: TableFile,
}

#[derive(Default)]
struct Seat {
    lock: Option<Life>,
    wanted: bool,
    files: BTreeMap<u64, LeaseFile>,
    /// The highest generation that was ever made.
    made: u64,
    /// Who may answer, with which generation, and until when, in true time.
    able: Option<(Life, u64, u64)>,
    /// The highest generation that an answer named, and whose it was.
    answered: Option<(u64, Life)>,
}

/// A node: where one forwarder runs.
struct Node {
    /// Number of the cut that keeps it from the back end.
    cut: Option<u64>,
    /// The back end has given it up.
    dropped: bool,
    cuts: u64,
    boot: u64,
    mount: Mount,
    /// When the back end lost a lock of it last.
    lock_lost_at: Option<u64>,
    /// Tables as they were when the node first read them, for a mutant.
    read: BTreeMap<(u16, u64), TableFile>,
}

/// The back end as the forwarders' hosts see it.
pub struct Shared {
    /// How it behaves.
    pub options: Cluster,
    seats: Vec<Seat>,
    nodes: Vec<Node>,
    mounts: u64,
    /// Violations of what must always hold.
    pub faults: Vec<String>,
}

impl Cluster {
    /// On a back end whose clients write each copy of a file themselves, keeps the copies apart: a
    /// client that dies may have written only one of them.
    pub fn keep_copies(&self, disk: &Disk) {
        if self.back_end == BackEnd::Gluster {
            disk.keep_copies(Copies::Either);
            disk.refuse_one_in(7);
        }
        if self.mutant == Some(Mutant::CopiesTrusted) {
            disk.trust_copies();
        }
    }
}

impl Shared {
    /// A back end without any lease.
    pub fn new(options: Cluster, seats: usize) -> Shared {
        let mut shared = Shared {
            seats: (0..seats).map(|_| Seat::default()).collect(),
            nodes: Vec::new(),
            mounts: 0,
            faults: Vec::new(),
            options,
        };
        for _ in 0..seats {
            let mount = shared.new_mount();
            shared.nodes.push(Node {
                cut: None,
                dropped: false,
                cuts: 0,
                boot: 1,
                mount,
                lock_lost_at: None,
                read: BTreeMap::new(),
            });
        }
        shared
    }

    /// Whether the test has taken this guarantee away.
    pub fn lacks(&self, mutant: Mutant) -> bool {
        self.options.mutant == Some(mutant)
    }

    fn new_mount(&mut self) -> Mount {
        self.mounts += 1;
        let way = |mutant| match self.lacks(mutant) {
            true => Way::Cached,
            false => Way::Fresh,
        };
        let (attributes, bytes) = (way(Mutant::CachedSize), way(Mutant::CachedData));
        Mount::new(self.mounts, self.options.back_end, attributes, bytes)
    }

    /// The mount of a forwarder's node.
    pub fn mount(&self, forwarder: usize) -> &Mount {
        &self.nodes[forwarder].mount
    }

    /// Number of the node's boot; a new mount counts as one.
    pub fn boot(&self, forwarder: usize) -> u64 {
        self.nodes[forwarder].boot
    }

    /// Whether calls of the node reach the back end.
    pub fn reaches(&self, forwarder: usize) -> bool {
        self.nodes[forwarder].cut.is_none()
    }

    /// Cuts a node off; returns the cut's number. None if it is cut off already, or has just lost a
    /// lock: two faults at once leave late writes without a fence.
    pub fn cut(&mut self, forwarder: usize, now: u64) -> Option<u64> {
        let ttl_ns = self.options.ttl_ns;
        let node = &mut self.nodes[forwarder];
        let just = node.lock_lost_at.is_some_and(|at| now < at + 3 * ttl_ns);
        if node.cut.is_some() || just {
            return None;
        }
        node.cuts += 1;
        node.cut = Some(node.cuts);
        node.cut
    }

    /// Cuts a dead node off until it is back. If the back end had given it up before, it still has.
    pub fn cut_for_good(&mut self, forwarder: usize) -> u64 {
        let node = &mut self.nodes[forwarder];
        node.cuts += 1;
        node.cut = Some(node.cuts);
        node.cuts
    }

    /// Whether this cut of the node still lasts.
    pub fn is_in(&self, forwarder: usize, cut: u64) -> bool {
        self.nodes[forwarder].cut == Some(cut)
    }

    /// Gives the node up, because the back end's time limit is over: drops its locks, and refuses
    /// what it has under way. Returns the files that have lost writes, because the node kept them
    /// in its cache.
    pub fn drop_node(&mut self, forwarder: usize, disk: &Disk) -> Vec<Handle> {
        self.nodes[forwarder].dropped = true;
        self.unlock_lives(|life| life.0 == forwarder);
        disk.lose(&self.nodes[forwarder].mount)
    }

    /// Lets the node reach the back end again; returns whether the back end had given it up.
    pub fn heal(&mut self, forwarder: usize, alive: Option<Life>) -> bool {
        self.nodes[forwarder].cut = None;
        let dropped = std::mem::take(&mut self.nodes[forwarder].dropped);
        self.unlock_lives(|life| life.0 == forwarder && Some(life) != alive);
        dropped
    }

    /// Whether the back end refuses what the node had under way.
    pub fn has_given_up(&self, forwarder: usize) -> bool {
        self.nodes[forwarder].dropped
    }

    /// Mounts the back end anew on the node, as after a boot.
    pub fn mount_anew(&mut self, forwarder: usize) {
        let mount = self.new_mount();
        let node = &mut self.nodes[forwarder];
        node.boot += 1;
        node.mount = mount;
        node.read.clear();
    }

    /// Handles the death of a process whose node lives: the back end drops its locks when it learns
    /// of it.
    pub fn died(&mut self, life: Life) {
        if self.reaches(life.0) {
            self.unlock_lives(|of| of == life);
        }
        self.silent(life);
    }

    /// Removes what a process has announced, because it is silent from now on.
    pub fn silent(&mut self, life: Life) {
        for seat in &mut self.seats {
            seat.able.take_if(|(of, ..)| *of == life);
        }
        self.seats[life.0].wanted = false;
    }

    fn unlock_lives(&mut self, which: impl Fn(Life) -> bool) {
        for seat in &mut self.seats {
            seat.lock.take_if(|life| which(*life));
        }
    }

    /// Makes a lock vanish although no node was cut off.
    pub fn lose_lock(&mut self, number: u64, now: u64) {
        let held: Vec<usize> = (0..self.seats.len())
            .filter(|seat| self.seats[*seat].lock.is_some())
            .collect();
        if held.is_empty() {
            return;
        }
        let seat = held[(number % held.len() as u64) as usize];
        let forwarder = self.seats[seat].lock.expect("looked for above").0;
        if self.reaches(forwarder) {
            self.seats[seat].lock = None;
            self.nodes[forwarder].lock_lost_at = Some(now);
        }
    }

    /// Takes a seat's lock, if nobody has it.
    pub fn lock(&mut self, seat: u16, life: Life) -> bool {
        let seat = &mut self.seats[usize::from(seat)];
        if seat.lock.is_some() {
            return false;
        }
        seat.lock = Some(life);
        true
    }

    /// Releases a lock, if the process holds it.
    pub fn unlock(&mut self, seat: u16, life: Life) {
        let seat = &mut self.seats[usize::from(seat)];
        seat.lock.take_if(|of| *of == life);
    }

    /// Whether some process holds the lock; the one that asks cannot tell which.
    pub fn is_locked(&self, seat: u16) -> bool {
        self.seats[usize::from(seat)].lock.is_some()
    }

    /// Notes whether the owner waits for its seat.
    pub fn want(&mut self, seat: u16, wanted: bool) {
        self.seats[usize::from(seat)].wanted = wanted;
    }

    /// Whether the owner waits for its seat.
    pub fn is_wanted(&self, seat: u16) -> bool {
        self.seats[usize::from(seat)].wanted
    }

    /// The newest generation's file, as a process on this node reads it.
    pub fn newest(&mut self, seat: u16, forwarder: usize) -> Option<LeaseFile> {
        self.cache_table(seat, forwarder);
        let files = &self.seats[usize::from(seat)].files;
        files.values().next_back().cloned()
    }

    /// Reads who holds the seats on a node, as the status does. The page of a record also brings
    /// the table into the node's cache, which only a mutant reads.
    pub fn ask_holders(&mut self, forwarder: usize) {
        for seat in 0..self.seats.len() as u16 {
            self.cache_table(seat, forwarder);
        }
    }

    fn cache_table(&mut self, seat: u16, forwarder: usize) {
        if self.lacks(Mutant::CachedTable)
            && let Some(complete) = self.complete(seat)
        {
            let (generation, table) = (complete.record.generation, complete.table.clone());
            let read = &mut self.nodes[forwarder].read;
            read.entry((seat, generation))
                .or_insert_with(|| table.copy());
        }
    }

    fn complete(&self, seat: u16) -> Option<&LeaseFile> {
        let files = &self.seats[usize::from(seat)].files;
        files.values().rev().find(|file| file.complete)
    }

    /// The table of the newest generation whose table is complete.
    pub fn last_table(&self, seat: u16, forwarder: usize) -> Option<TableFile> {
        let last = self.complete(seat)?;
        let read = &self.nodes[forwarder].read;
        let cached = read.get(&(seat, last.record.generation));
        Some(cached.unwrap_or(&last.table).clone())
    }

    /// Makes the next generation's file, unless another process was faster.
    pub fn make(&mut self, seat: u16, mut file: LeaseFile) -> u64 {
        let same = self.lacks(Mutant::NoGeneration);
        let number = seat;
        let seat = &mut self.seats[usize::from(seat)];
        let last = seat.files.keys().next_back().copied();
        let next = match last {
            Some(last) if same => last,
            last => last.map_or(1, |last| last + 1),
        };
        if next <= seat.made {
            let fault = format!("generation {next} of seat {number} is given twice");
            self.faults.push(fault);
        }
        seat.made = next;
        file.record.generation = next;
        if let Some(before) = seat.files.get(&next) {
            file.table = before.table.clone();
        }
        seat.files.insert(next, file);
        next
    }

    /// A generation's file, if it is still there.
    pub fn file(&mut self, seat: u16, generation: u64) -> Option<&mut LeaseFile> {
        self.seats[usize::from(seat)].files.get_mut(&generation)
    }

    /// Removes the files of generations before this one.
    pub fn remove_before(&mut self, seat: u16, generation: u64) {
        let files = &mut self.seats[usize::from(seat)].files;
        *files = files.split_off(&generation);
    }

    /// Whether this generation is the newest.
    pub fn is_newest(&self, seat: u16, generation: u64) -> bool {
        let files = &self.seats[usize::from(seat)].files;
        files.keys().next_back() == Some(&generation)
    }

    /// Notes that a process may answer for a seat from `now` to `until`.
    pub fn may_answer(&mut self, seat: u16, life: Life, generation: u64, now: u64, until: u64) {
        let able = &mut self.seats[usize::from(seat)].able;
        if let Some((other, older, its_until)) = *able
            && other != life
            && its_until > now
            && until > now
        {
            self.faults.push(format!(
                "seat {seat} has two holders: {other:?} with generation {older} until {its_until}, \
                 {life:?} with generation {generation} from {now}"
            ));
        }
        *able = Some((life, generation, until));
    }

    /// Notes that a process may no longer answer for a seat.
    pub fn answers_no_more(&mut self, seat: u16, life: Life) {
        let able = &mut self.seats[usize::from(seat)].able;
        able.take_if(|(of, ..)| *of == life);
    }

    /// Checks that a process which has answered for a seat was allowed to.
    pub fn answered(&mut self, seat: u16, life: Life, generation: u64, now: u64) {
        let seated = &mut self.seats[usize::from(seat)];
        let wrong = match seated.answered {
            Some((newest, of)) => newest > generation || newest == generation && of != life,
            None => false,
        };
        if wrong {
            self.faults.push(format!(
                "{life:?} answers at {now} for seat {seat} with generation {generation}, \
                 after {:?}",
                seated.answered
            ));
        }
        let other = seated
            .able
            .filter(|(of, _, until)| *of != life && *until > now);
        if let Some(other) = other {
            let fault = format!("{life:?} answers for seat {seat} at {now}, and so may {other:?}");
            self.faults.push(fault);
        }
        seated.answered = Some((generation, life));
    }

    /// Whether nodes keep written bytes in their cache, and may lose them.
    pub fn evicts(&self) -> bool {
        self.options.back_end == BackEnd::Ceph
    }
}
