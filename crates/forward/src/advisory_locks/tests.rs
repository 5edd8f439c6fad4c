//! Lock tables against a model that keeps one lock for each byte, and the cases that have names.

use super::*;
use tidegate_sched::mix64;

const FILE: Handle = Handle { inode: 1, birth: 1 };
const OTHER: Handle = Handle { inode: 2, birth: 1 };

fn owner(client: u64) -> Owner {
    Owner { client, owner: 0 }
}

fn lock(family: LockFamily, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock {
        family,
        kind,
        owner: 0,
        pid: 0,
        start,
        end,
    }
}

fn range(kind: LockKind, start: u64, end: u64) -> Lock {
    lock(LockFamily::Range, kind, start, end)
}

use LockKind::{Exclusive, None as Release, Shared};

#[test]
fn ranges_agree_with_a_model_of_single_bytes() {
    const BYTES: usize = 24;
    for seed in 0..200u64 {
        let mut locks: Locks<u32> = Locks::new();
        let mut bytes = [[Release; BYTES]; 3];
        let mut state = seed;
        let mut next = |below: u64| {
            state = mix64(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            state % below
        };
        for step in 0..200 {
            let who = next(3) as usize;
            let (a, b) = (next(BYTES as u64), next(BYTES as u64));
            let (start, end) = (a.min(b), a.max(b));
            let kind = [Shared, Exclusive, Release][next(3) as usize];
            let free = |other: usize| {
                let taken = &bytes[other][start as usize..=end as usize];
                taken.iter().all(|held| match (held, kind) {
                    (Release, _) | (_, Release) => true,
                    (held, kind) => *held == Shared && kind == Shared,
                })
            };
            let expected = (0..3).all(|other| other == who || free(other));
            let wanted = range(kind, start, end);
            let found = locks.test(FILE, owner(who as u64), wanted).is_none();
            assert!(
                kind == Release || found == expected,
                "seed {seed} step {step}"
            );
            let asked = locks.set(FILE, owner(who as u64), wanted, None);
            let granted = asked == Asked::Granted;
            assert_eq!(granted, expected, "seed {seed} step {step}");
            if granted {
                bytes[who][start as usize..=end as usize].fill(kind);
            }
            check_shape(&locks, &bytes, (seed, step));
        }
    }
}

/// The list holds maximal runs, sorted, and the counts are theirs.
fn check_shape(locks: &Locks<u32>, bytes: &[[LockKind; 24]; 3], at: (u64, u64)) {
    let file = locks.files.get(&FILE);
    for (who, bytes) in bytes.iter().enumerate() {
        let mut runs = Vec::new();
        for (index, kind) in bytes.iter().enumerate() {
            let index = index as u64;
            match runs.last_mut() {
                Some((last, _, end)) if last == kind && *end + 1 == index => *end = index,
                _ => runs.push((*kind, index, index)),
            }
        }
        runs.retain(|(kind, ..)| *kind != Release);
        let own = file
            .into_iter()
            .flat_map(|file| file.range.of(owner(who as u64)));
        let own: Vec<_> = own.map(|held| (held.kind, held.start, held.end)).collect();
        assert_eq!(own, runs, "seed and step {at:?}");
        assert_eq!(locks.count(who as u64) as usize, runs.len());
    }
}

#[test]
fn a_range_to_the_end_of_the_file_can_be_split_and_joined() {
    let mut locks: Locks<u32> = Locks::new();
    let one = owner(1);
    assert_eq!(
        locks.set(FILE, one, range(Exclusive, 10, u64::MAX), None),
        Asked::Granted
    );
    assert_eq!(
        locks.set(FILE, one, range(Release, 20, 29), None),
        Asked::Granted
    );
    assert_eq!(
        locks.set(FILE, owner(2), range(Shared, 20, 29), None),
        Asked::Granted
    );
    assert_eq!(
        locks.set(FILE, owner(2), range(Shared, 30, 30), None),
        Asked::Conflict
    );
    assert_eq!(
        locks.set(FILE, one, range(Release, 0, u64::MAX), None),
        Asked::Granted
    );
    let changes = locks.take_changes();
    let told: Vec<_> = changes
        .iter()
        .map(|change| (change.client, change.holds))
        .collect();
    assert_eq!(told, [(1, true), (2, true), (1, false)]);
}

#[test]
fn waiters_have_their_turn_in_order_and_readers_do_not_starve_a_writer() {
    let mut locks = Locks::new();
    locks.set(FILE, owner(1), range(Shared, 0, 9), None);
    assert_eq!(
        locks.set(FILE, owner(2), range(Exclusive, 0, 9), Some(2)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(FILE, owner(3), range(Shared, 5, 5), Some(3)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(FILE, owner(4), range(Shared, 20, 29), Some(4)),
        Asked::Granted
    );
    // One that does not wait is told what is held, as on Linux.
    assert_eq!(
        locks.set(FILE, owner(5), range(Shared, 0, 0), None),
        Asked::Granted
    );
    // Who holds a lock passes: the writer waits for it, and would for ever.
    assert_eq!(
        locks.set(FILE, owner(1), range(Shared, 0, 15), Some(1)),
        Asked::Granted
    );
    locks.drop_owner(FILE, LockFamily::Range, owner(1));
    assert_eq!(locks.wake(FILE), []);
    locks.drop_owner(FILE, LockFamily::Range, owner(5));
    assert_eq!(locks.wake(FILE), [2]);
    locks.drop_owner(FILE, LockFamily::Range, owner(2));
    assert_eq!(locks.wake(FILE), [3]);
}

#[test]
fn a_cycle_over_several_files_is_found_and_a_chain_is_none() {
    let mut locks = Locks::new();
    for (client, file) in [(1, FILE), (2, OTHER)] {
        locks.set(file, owner(client), range(Exclusive, 0, 0), None);
    }
    assert_eq!(
        locks.set(FILE, owner(3), range(Exclusive, 0, 0), Some(3)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(FILE, owner(2), range(Exclusive, 0, 0), Some(2)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(OTHER, owner(4), range(Shared, 0, 0), Some(4)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(OTHER, owner(1), range(Shared, 0, 0), Some(1)),
        Asked::Deadlock
    );
    // Taking the wait back opens the circle.
    assert!(locks.cancel(2) && !locks.cancel(2));
    assert_eq!(
        locks.set(OTHER, owner(1), range(Shared, 0, 0), Some(1)),
        Asked::Waits
    );
}

#[test]
fn two_upgrades_of_a_range_are_a_deadlock_and_of_a_whole_file_are_not() {
    let mut locks = Locks::new();
    for client in [1, 2] {
        locks.set(FILE, owner(client), range(Shared, 0, 9), None);
    }
    assert_eq!(
        locks.set(FILE, owner(1), range(Exclusive, 0, 9), Some(1)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(FILE, owner(2), range(Exclusive, 0, 9), Some(2)),
        Asked::Deadlock
    );

    let mut locks = Locks::new();
    let whole = |kind| lock(LockFamily::Whole, kind, 5, 6);
    for client in [1, 2] {
        assert_eq!(
            locks.set(OTHER, owner(client), whole(Shared), None),
            Asked::Granted
        );
    }
    assert_eq!(
        locks.set(OTHER, owner(1), whole(Exclusive), Some(3)),
        Asked::Waits
    );
    assert_eq!(
        locks.set(OTHER, owner(2), whole(Exclusive), Some(4)),
        Asked::Waits
    );
    assert_eq!(locks.wake(OTHER), [3], "each gave its shared lock up");
    locks.drop_owner(OTHER, LockFamily::Whole, owner(1));
    assert_eq!(locks.wake(OTHER), [4]);
}

#[test]
fn the_two_families_do_not_see_each_other() {
    let mut locks: Locks<u32> = Locks::new();
    let whole = lock(LockFamily::Whole, Exclusive, 0, 0);
    assert_eq!(locks.set(FILE, owner(1), whole, None), Asked::Granted);
    assert_eq!(
        locks.set(FILE, owner(2), range(Exclusive, 0, 9), None),
        Asked::Granted
    );
}

#[test]
fn nothing_is_kept_of_files_without_locks() {
    let mut locks = Locks::new();
    locks.set(FILE, owner(1), range(Exclusive, 0, 9), None);
    locks.set(OTHER, owner(1), range(Exclusive, 0, 9), None);
    locks.set(OTHER, owner(2), range(Exclusive, 0, 9), Some(2));
    locks.set(
        FILE,
        owner(3),
        lock(LockFamily::Whole, Shared, 0, 0),
        Some(3),
    );
    assert_eq!(locks.drop_client(1), [FILE, OTHER]);
    assert_eq!(locks.wake(OTHER), [2]);
    assert_eq!(locks.take_waiting(|_| true), []);
    locks.drop_files(|_| true);
    assert!(locks.files.is_empty() && locks.counts.is_empty());
    assert!(locks.owners.is_empty() && locks.waits.is_empty());
}

#[test]
fn a_client_has_a_bounded_number_of_locks() {
    let mut locks: Locks<u32> = Locks::new();
    locks.counts.insert(1, LOCKS_MAX);
    assert_eq!(
        locks.set(FILE, owner(1), range(Shared, 0, 0), None),
        Asked::Full
    );
    assert_eq!(
        locks.set(FILE, owner(2), range(Shared, 0, 0), None),
        Asked::Granted
    );
}
