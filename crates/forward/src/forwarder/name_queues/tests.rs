//! Turns of users in directories, by counts.

use super::*;
use std::collections::BTreeSet;
use std::vec::Vec;

const FLOODER: Option<u32> = Some(7);
const OTHER: Option<u32> = Some(8);
const MANY: u32 = 10_000;

fn directory(inode: u64) -> Handle {
    Handle { inode, birth: 1 }
}

/// The queues, and what runs.
#[derive(Default)]
struct Rig {
    queues: NameQueues,
    asked: Vec<(Option<u32>, Directories)>,
    running: VecDeque<Key>,
}

impl Rig {
    fn ask(&mut self, user: Option<u32>, one: u64, other: Option<u64>) -> Key {
        let directories = (directory(one), other.map(directory));
        let key = self.asked.len() as Key;
        self.asked.push((user, directories));
        if self.queues.enter(key, user, directories) {
            self.running.push_back(key);
        }
        key
    }

    /// Ends request number `at` of those that run.
    fn end(&mut self, at: usize) -> Key {
        let key = self.running.remove(at).expect("it runs");
        let (_, directories) = self.asked[key as usize];
        let next = self.queues.leave(key, directories);
        self.running.extend(next.into_iter().flatten());
        key
    }

    /// How many requests end before this one runs, if the oldest always ends first.
    fn before(&mut self, key: Key) -> u32 {
        let mut ended = 0;
        while !self.running.contains(&key) {
            self.end(0);
            ended += 1;
        }
        ended
    }
}

#[test]
fn a_request_behind_thousands_of_another_user_runs_after_one_of_them() {
    let mut rig = Rig::default();
    for _ in 0..MANY {
        rig.ask(FLOODER, 1, None);
    }
    for user in [OTHER, None] {
        let one = rig.ask(user, 1, None);
        assert!(rig.before(one) <= 2, "of {user:?}");
    }
}

#[test]
fn a_rename_between_two_flooded_directories_runs_after_two_requests() {
    let mut rig = Rig::default();
    for turn in 0..MANY {
        match turn % 3 {
            0 => rig.ask(FLOODER, 1, None),
            1 => rig.ask(FLOODER, 2, Some(1)),
            _ => rig.ask(FLOODER, 2, None),
        };
    }
    let rename = rig.ask(OTHER, 1, Some(2));
    assert!(rig.before(rename) <= 3);
    // And one of a single directory after renames that wait for a further one.
    for _ in 0..MANY {
        rig.ask(FLOODER, 1, Some(3));
        rig.ask(FLOODER, 3, None);
    }
    let create = rig.ask(Some(9), 1, None);
    assert!(rig.before(create) <= 4);
}

#[test]
fn requests_of_one_user_run_in_order_of_arrival() {
    let mut rig = Rig::default();
    let asked: Vec<Key> = (0..100)
        .map(|turn| match turn % 4 {
            0 => rig.ask(FLOODER, 1, Some(2)),
            1 => rig.ask(FLOODER, 2, None),
            2 => rig.ask(FLOODER, 2, Some(1)),
            _ => rig.ask(FLOODER, 2, None),
        })
        .collect();
    let ended: Vec<Key> = (0..100).map(|_| rig.end(0)).collect();
    assert_eq!(ended, asked);
    assert!(rig.queues.directories.is_empty());
}

/// Requests of several users in several directories, ended in any order: all run, in each directory
/// one at a time, and those of one user there in order of arrival.
#[test]
fn everything_runs_once_and_alone_in_its_directories() {
    let mut random = 1_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for _ in 0..200 {
        let mut rig = Rig::default();
        let mut ended = BTreeSet::new();
        let mut last = BTreeMap::new();
        let mut to_ask = 200;
        while to_ask > 0 || !rig.running.is_empty() {
            if to_ask > 0 && (rig.running.is_empty() || below(3) > 0) {
                to_ask -= 1;
                let (one, other) = (below(4), below(8));
                let other = Some(other).filter(|other| *other < 4 && *other != one);
                rig.ask(Some(below(3) as u32), one, other);
            } else {
                let key = rig.end(below(rig.running.len() as u64) as usize);
                assert!(ended.insert(key), "{key} ran twice");
                let (user, (one, other)) = rig.asked[key as usize];
                for directory in [Some(one), other].into_iter().flatten() {
                    let before = last.insert((user, directory), key);
                    assert!(before < Some(key), "{key} overtook {before:?}");
                }
            }
            let mut busy = BTreeSet::new();
            for key in &rig.running {
                let (one, other) = rig.asked[*key as usize].1;
                for directory in [Some(one), other].into_iter().flatten() {
                    assert!(busy.insert(directory), "two changes of one directory");
                }
            }
        }
        assert_eq!(ended.len(), 200, "some never ran");
        assert!(rig.queues.directories.is_empty());
    }
}
