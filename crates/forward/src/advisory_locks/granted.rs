//! The granted locks of one file, so kept that a request need not look at all of them: one client
//! may have thousands, and the requests of others must not become slow by them.

use super::Owner;
use super::ranges::{Held, excludes};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use tidegate_wire::{Lock, LockKind};

/// The most locks of one run.
const RUN_MAX: usize = 64;

/// Granted locks of one family, which may overlap between owners, and never of one owner.
#[derive(Default)]
pub(super) struct Granted {
    /// The locks of each owner, by their first byte.
    of_owners: BTreeMap<(Owner, u64), Held>,
    /// All locks in order of the first byte, then of the owner. No run is empty.
    runs: Vec<Run>,
}

/// Locks that follow each other, and how far they reach.
struct Run {
    locks: Vec<Held>,
    /// The last byte of all.
    end: u64,
    /// The last byte of those that are exclusive.
    exclusive_end: Option<u64>,
}

type Place = (u64, Owner);

fn place(held: &Held) -> Place {
    (held.start, held.owner)
}

impl Run {
    fn of(locks: Vec<Held>) -> Run {
        let mut run = Run {
            locks,
            end: 0,
            exclusive_end: None,
        };
        run.measure();
        run
    }

    fn measure(&mut self) {
        (self.end, self.exclusive_end) = (0, None);
        for held in &self.locks {
            self.end = self.end.max(held.end);
            if held.kind == LockKind::Exclusive {
                self.exclusive_end = self.exclusive_end.max(Some(held.end));
            }
        }
    }

    /// Whether a lock of the run reaches the first byte of this one, and excludes it by its kind.
    fn reaches(&self, lock: &Lock) -> bool {
        match lock.kind {
            LockKind::Exclusive => self.end >= lock.start,
            LockKind::Shared | LockKind::None => self.exclusive_end >= Some(lock.start),
        }
    }
}

impl Granted {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// All of them, in order of the owner.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.of_owners.values()
    }

    /// Those of one owner, in order.
    pub(super) fn of(&self, owner: Owner) -> impl Iterator<Item = &Held> {
        let all = (owner, 0)..=(owner, u64::MAX);
        self.of_owners.range(all).map(|(_, held)| held)
    }

    /// Whether one client has some.
    pub(super) fn has(&self, client: u64) -> bool {
        self.of_client(client).next().is_some()
    }

    /// The owners of one client that have some.
    pub(super) fn owners_of(&self, client: u64) -> Vec<Owner> {
        let mut owners: Vec<Owner> = self.of_client(client).collect();
        owners.dedup();
        owners
    }

    /// The owner of each lock of one client, in order.
    fn of_client(&self, client: u64) -> impl Iterator<Item = Owner> {
        let owner = |owner| Owner { client, owner };
        let all = (owner(0), 0)..=(owner(u64::MAX), u64::MAX);
        self.of_owners.range(all).map(|(key, _)| key.0)
    }

    /// The locks of others that conflict with this one, in order of the first byte.
    pub(super) fn in_the_way(&self, owner: Owner, lock: Lock) -> impl Iterator<Item = &Held> {
        // Those that begin behind its end are not in its way.
        let near = (self.runs).partition_point(|run| run.locks[0].start <= lock.end);
        let runs = self.runs[..near].iter();
        runs.filter(move |run| run.reaches(&lock))
            .flat_map(|run| &run.locks)
            .filter(move |held| held.owner != owner && excludes(held, &lock))
    }

    /// Replaces what the owner holds of the lock's bytes: other kinds are cut, the same kind is
    /// joined. Returns how many locks of the owner it took out and how many it put in.
    pub(super) fn replace(&mut self, owner: Owner, lock: &Lock) -> (u32, u32) {
        let mut new = Held {
            owner,
            kind: lock.kind,
            pid: lock.pid,
            start: lock.start,
            end: lock.end,
        };
        let mut rest = Vec::new();
        let mut taken = 0;
        for held in self.touched(owner, lock) {
            if held.kind == new.kind {
                new.start = new.start.min(held.start);
                new.end = new.end.max(held.end);
            } else if held.end < lock.start || held.start > lock.end {
                // It only lies beside the bytes.
                continue;
            } else {
                if held.start < lock.start {
                    let end = lock.start - 1;
                    rest.push(Held { end, ..held });
                }
                if held.end > lock.end {
                    let start = lock.end + 1;
                    rest.push(Held { start, ..held });
                }
            }
            self.remove(&held);
            taken += 1;
        }
        if lock.kind != LockKind::None {
            rest.push(new);
        }
        let put = rest.len() as u32;
        for held in rest {
            self.insert(held);
        }
        (taken, put)
    }

    /// The owner's locks that overlap this one or lie beside it.
    fn touched(&self, owner: Owner, lock: &Lock) -> Vec<Held> {
        let before = (owner, 0)..(owner, lock.start);
        let before = self.of_owners.range(before).next_back();
        let before = before.filter(|(_, held)| held.end.saturating_add(1) >= lock.start);
        let behind = (owner, lock.start)..=(owner, lock.end.saturating_add(1));
        let behind = self.of_owners.range(behind);
        before
            .into_iter()
            .chain(behind)
            .map(|(_, held)| *held)
            .collect()
    }

    /// The run in which a lock with this place is, or belongs.
    fn run_of(&self, at: Place) -> usize {
        let behind = (self.runs).partition_point(|run| place(&run.locks[0]) <= at);
        behind.saturating_sub(1)
    }

    fn insert(&mut self, held: Held) {
        self.of_owners.insert((held.owner, held.start), held);
        let number = self.run_of(place(&held));
        let Some(run) = self.runs.get_mut(number) else {
            self.runs.push(Run::of(vec![held]));
            return;
        };
        let at = run.locks.partition_point(|it| place(it) < place(&held));
        run.locks.insert(at, held);
        if run.locks.len() > RUN_MAX {
            let further = run.locks.split_off(RUN_MAX / 2);
            self.runs.insert(number + 1, Run::of(further));
        }
        self.runs[number].measure();
    }

    fn remove(&mut self, held: &Held) {
        self.of_owners.remove(&(held.owner, held.start));
        let number = self.run_of(place(held));
        let run = &mut self.runs[number];
        let at = run.locks.partition_point(|it| place(it) < place(held));
        run.locks.remove(at);
        if run.locks.is_empty() {
            self.runs.remove(number);
            return;
        }
        // Else runs of few locks would be left over where there were many.
        let next = self
            .runs
            .get(number + 1)
            .map_or(RUN_MAX, |it| it.locks.len());
        if self.runs[number].locks.len() + next <= RUN_MAX / 2 {
            let further = self.runs.remove(number + 1).locks;
            self.runs[number].locks.extend(further);
        }
        self.runs[number].measure();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sched::mix64;
    use tidegate_wire::LockFamily;

    fn check(granted: &Granted) {
        let by_place: Vec<Place> = granted
            .runs
            .iter()
            .flat_map(|run| run.locks.iter().map(place))
            .collect();
        assert!(by_place.is_sorted());
        let mut of_owners: Vec<Place> = granted.iter().map(place).collect();
        of_owners.sort_unstable();
        assert_eq!(by_place, of_owners);
        for run in &granted.runs {
            assert!((1..=RUN_MAX).contains(&run.locks.len()));
            let fresh = Run::of(run.locks.clone());
            let reach = |run: &Run| (run.end, run.exclusive_end);
            assert_eq!(reach(run), reach(&fresh));
        }
        let small = |pair: &[Run]| pair[0].locks.len() + pair[1].locks.len() <= RUN_MAX / 4;
        assert!(!granted.runs.windows(2).any(small));
    }

    /// Many owners lock short ranges and long ones, and release them again.
    #[test]
    fn what_is_in_the_way_is_found_among_many() {
        for seed in 0..20u64 {
            let mut state = seed;
            let mut next = |below: u64| {
                state = mix64(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
                state % below
            };
            let (mut granted, mut all) = (Granted::default(), Vec::<Held>::new());
            for step in 0..1500 {
                let owner = Owner {
                    client: next(40),
                    owner: next(3),
                };
                let start = next(10_000);
                let len = [1, 1, 8, 600][next(4) as usize];
                let growing = step < 1000;
                let kind = match next(4) {
                    0 => LockKind::Exclusive,
                    1 | 2 if growing => LockKind::Shared,
                    _ => LockKind::None,
                };
                let lock = Lock {
                    family: LockFamily::Range,
                    kind,
                    owner: owner.owner,
                    pid: 1,
                    start,
                    end: start + len - 1,
                };
                let conflicts = |held: &&Held| held.owner != owner && excludes(held, &lock);
                let mut expected: Vec<Place> = all.iter().filter(conflicts).map(place).collect();
                expected.sort_unstable();
                let found: Vec<Place> = granted.in_the_way(owner, lock).map(place).collect();
                assert_eq!(found, expected, "seed {seed} step {step}");
                if expected.is_empty() {
                    let before = granted.iter().count();
                    let (taken, put) = granted.replace(owner, &lock);
                    all = granted.iter().copied().collect();
                    assert_eq!(before + put as usize, all.len() + taken as usize);
                }
                check(&granted);
            }
            for client in 0..40 {
                for owner in granted.owners_of(client) {
                    for held in granted.of(owner).copied().collect::<Vec<_>>() {
                        granted.remove(&held);
                        check(&granted);
                    }
                }
            }
            assert!(granted.is_empty() && granted.iter().next().is_none());
        }
    }
}
