//! For tests: a back end that lies. It returns stale data as if it had cached it, or keeps locks to
//! itself. The trial of the property that a lie breaks must find the lie.

use super::messages::tests::folder;
use super::op::{Answer, OPEN_DIRECT, Op, Verb};
use super::property::{Findings, Found, PROPERTIES};
use super::side::{Gone, Local, Side};
use super::trials::series;
use crate::backend::Reach;
use crate::storage::scratch::Scratch;
use std::collections::BTreeMap;

/// What a mount does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    /// Attributes stay as they were first seen, however they are asked for.
    Sizes,
    /// The same, but only for calls that accept cached attributes.
    RememberedSizes,
    /// Link counts stay as they were first seen.
    Links,
    /// Data that was read does not change, even for direct reads.
    Data,
    /// The same for reads through the page cache, whatever was dropped from it.
    CachedData,
    /// The end of a file stays where it was first seen.
    Ends,
    /// A name that did not exist never exists.
    NoNames,
    /// A name that existed always exists.
    OldNames,
    /// A listing stays as it was first seen.
    Listings,
    /// A name can be created although it exists.
    Creation,
    /// Every lock is granted.
    Locks,
    /// No lock is ever released.
    Release,
    /// Locks are not supported.
    NoLocks,
    /// A rename removes the old name first.
    Rename,
    /// A write waits a second if the other side wrote before it.
    Turns,
}

/// A mount with a lie.
pub(super) struct Liar {
    local: Local,
    lie: Lie,
    known: BTreeMap<String, Answer>,
    direct: [bool; 16],
    /// How many writes came in a row.
    writes: u64,
}

impl Liar {
    pub(super) fn new(local: Local, lie: Lie) -> Liar {
        Liar {
            local,
            lie,
            known: BTreeMap::new(),
            direct: [false; 16],
            writes: 0,
        }
    }

    /// The first answer to this operation.
    fn first(&mut self, op: &Op, key: String) -> Result<Answer, Gone> {
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let answer = self.local.run(op)?;
        self.known.insert(key, answer.clone());
        Ok(answer)
    }

    /// The answer, with one of its parts as it was first seen.
    fn but(&mut self, op: &Op, part: fn(&mut Answer) -> &mut u64) -> Result<Answer, Gone> {
        let mut answer = self.local.run(op)?;
        let key = format!("{:?} {} {}", op.verb, op.file, op.name);
        if answer.ok() {
            let mut first = self.known.entry(key).or_insert(answer.clone()).clone();
            *part(&mut answer) = *part(&mut first);
        }
        Ok(answer)
    }
}

impl Side for Liar {
    fn run(&mut self, op: &Op) -> Result<Answer, Gone> {
        let file = usize::from(op.file);
        if op.verb == Verb::Open {
            self.direct[file] = op.at & OPEN_DIRECT != 0;
            self.known
                .retain(|key, _| !key.contains(&format!(" {file} ")));
        }
        if op.verb != Verb::Write {
            self.writes = 0;
        }
        let looks = matches!(op.verb, Verb::Stat | Verb::StatOpen);
        match (self.lie, op.verb) {
            (Lie::Sizes, _) if looks => self.but(op, |answer| &mut answer.number),
            (Lie::RememberedSizes, _) if looks && op.at == 0 => {
                self.but(op, |answer| &mut answer.number)
            }
            (Lie::Links, Verb::StatOpen) => self.but(op, |answer| &mut answer.other),
            (Lie::Data, Verb::Read) => self.first(op, format!("read {file} {}", op.at)),
            (Lie::CachedData, Verb::Read) if !self.direct[file] => {
                self.first(op, format!("read {file} {}", op.at))
            }
            (Lie::Ends, Verb::Read) if op.at > 0 => Ok(Answer::default()),
            (Lie::NoNames, Verb::Stat) => {
                let answer = self.first(op, op.name.clone())?;
                match answer.ok() {
                    true => self.local.run(op),
                    false => Ok(answer),
                }
            }
            (Lie::OldNames, Verb::Stat) => {
                let answer = self.local.run(op)?;
                let old = self.known.get(&op.name).cloned();
                if answer.ok() {
                    self.known.insert(op.name.clone(), answer.clone());
                }
                Ok(old.unwrap_or(answer))
            }
            (Lie::Listings, Verb::List) => self.first(op, format!("list {}", op.name)),
            (Lie::Creation, Verb::Make) => self.local.run(op).map(|_| Answer::default()),
            (Lie::Locks, Verb::Lock) => self.local.run(op).map(|_| Answer::number(1)),
            (Lie::Release, Verb::Lock) if op.at == 6 => {
                let answer = self.first(op, "lock 6".to_owned())?;
                Ok(Answer::number(answer.number & u64::from(op.len == 9)))
            }
            (Lie::Turns, Verb::Write) => {
                self.local.run(op)?;
                self.writes += 1;
                Ok(Answer::number(1000 * (self.writes % 2)))
            }
            (Lie::NoLocks, Verb::Lock | Verb::Unlock | Verb::Locked) => Ok(Answer {
                errno: libc::ENOLCK,
                ..Answer::default()
            }),
            _ => self.local.run(op),
        }
    }

    fn begin(&mut self, op: &Op) -> Result<(), Gone> {
        if (self.lie, op.verb) == (Lie::Rename, Verb::Churn) {
            // Nobody ever has the new name: looks find nothing for as long as it is renamed.
            self.local.run(&Op::new(Verb::Unlink).name(&op.to))?;
            let aside = format!("{}-aside", op.to);
            let watch = Op::new(Verb::Churn).name(&op.name).to(&aside).len(op.len);
            return self.local.begin(&watch);
        }
        self.local.begin(op)
    }

    fn finish(&mut self) -> Result<Answer, Gone> {
        self.local.finish()
    }
}

fn with_lie(lie: Option<Lie>, short: bool) -> Findings {
    let scratch = Scratch::new("lies");
    let folder = folder(&scratch);
    let mut here = Local::new(folder.clone());
    let there = Local::new(folder);
    let findings = match lie {
        Some(lie) => series(&mut here, &mut Liar::new(there, lie), "1", short),
        None => series(&mut here, &mut { there }, "1", short),
    };
    drop(here);
    let left = std::fs::read_dir(scratch.path())
        .expect("it is there")
        .count();
    assert_eq!(left, 0, "all names are removed");
    findings.expect("no side is gone")
}

#[test]
fn one_page_cache_tells_the_truth() {
    for short in [true, false] {
        let findings = with_lie(None, short);
        for one in findings.iter() {
            assert_eq!(one.found, Found::Yes, "{one:?}");
        }
        let tried = findings.iter().count();
        let pairs = PROPERTIES
            .iter()
            .skip_while(|one| one.name != "sizes")
            .count();
        // All but the lock of a dead node.
        assert_eq!(tried, pairs - if short { 9 } else { 1 });
    }
}

#[test]
fn each_lie_is_named() {
    let cases: &[(Lie, &[&str])] = &[
        (Lie::Sizes, &["sizes", "remembered sizes"]),
        (Lie::RememberedSizes, &["remembered sizes"]),
        (Lie::Links, &["link counts"]),
        (Lie::Data, &["data, direct", "data, dropped first"]),
        (Lie::CachedData, &["data, dropped first"]),
        (Lie::Ends, &["ends of files"]),
        (Lie::NoNames, &["new names", "renamed names"]),
        (Lie::OldNames, &["removed names", "renamed names"]),
        (Lie::Listings, &["listings"]),
        (Lie::Creation, &["exclusive creation"]),
        (Lie::Locks, &["locks between nodes"]),
        (Lie::Release, &["locks between nodes", "release of locks"]),
        (Lie::NoLocks, &["locks between nodes", "release of locks"]),
    ];
    for (lie, names) in cases {
        let findings = with_lie(Some(*lie), true);
        let wrong: Vec<_> = findings
            .iter()
            .filter(|one| one.found == Found::No)
            .map(|one| one.property.name)
            .collect();
        for name in *names {
            assert!(wrong.contains(name), "{lie:?}: {wrong:?}");
        }
        let missing = findings.missing(true, Reach::Cached);
        let fits = *lie == Lie::RememberedSizes;
        assert_eq!(missing.is_none(), fits, "{lie:?}: {missing:?}");
        if let Some(one) = missing {
            assert!(names.contains(&one.property.name), "{lie:?}: {one:?}");
            assert!(!one.seen.is_empty(), "{one:?}");
        }
    }
}

#[test]
fn a_rename_that_is_not_atomic_is_named() {
    let findings = with_lie(Some(Lie::Rename), false);
    let missing = findings
        .missing(true, Reach::Cached)
        .expect("it is not fit");
    assert_eq!(missing.property.name, "atomic rename");
}

#[test]
fn writes_that_wait_for_the_other_side_are_told_and_nobody_is_refused() {
    let findings = with_lie(Some(Lie::Turns), false);
    let turns = findings.of("writes by turns").expect("it is tried");
    assert_eq!(turns.found, Found::No);
    assert!(findings.missing(true, Reach::Cached).is_none());
}

#[test]
fn who_saw_it_is_told() {
    // The other side's mount remembers, so it is the other side that saw old data.
    let findings = with_lie(Some(Lie::Data), true);
    let missing = findings
        .missing(true, Reach::Cached)
        .expect("it is not fit");
    assert_eq!(missing.here, Some(false));
}
