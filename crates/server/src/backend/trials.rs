//! Tries what two mounts of one folder see of each other's changes. Each trial runs in both
//! directions.
//!
//! In each trial one side, the writer, changes something. The other side, the observer, has looked
//! at it just before and may have cached it. The observer then looks again.

mod writes;

use super::op::{Answer, OPEN_CREATE, OPEN_DIRECT, OPEN_PLAIN, Op, Verb};
use super::property::{Findings, Found, passing};
use super::side::{BLOCK, Gone, Side};
use std::cell::Cell;

/// How long renames are watched, in ms.
const WATCH_MS: u64 = 300;
const PAGE: u64 = BLOCK as u64;

/// Runs the series of trials; `prefix` belongs to this series alone. The short series tries what
/// forwarders need.
pub(crate) fn series(
    here: &mut dyn Side,
    there: &mut dyn Side,
    prefix: &str,
    short: bool,
) -> Result<Findings, Gone> {
    let mut findings = Findings::new();
    let trouble = Cell::new(None);
    let (here, there) = (&mut Watched(here, &trouble), &mut Watched(there, &trouble));
    for observer_here in [true, false] {
        findings.observed(Some(observer_here));
        let mut trial = Trial {
            prefix: format!("t-{prefix}-{}", if observer_here { "a" } else { "b" }),
            findings: &mut findings,
            trouble: &trouble,
        };
        let (writer, observer): (&mut dyn Side, &mut dyn Side) = match observer_here {
            true => (&mut *there, &mut *here),
            false => (&mut *here, &mut *there),
        };
        trial.sizes(writer, observer)?;
        trial.data(writer, observer)?;
        trial.ends(writer, observer)?;
        trial.names(writer, observer)?;
        trial.links(writer, observer)?;
        // Where a lock does not hold, no side can say whose mount is to blame.
        trial.findings.observed(None);
        trial.locks(writer, observer)?;
        trial.findings.observed(Some(observer_here));
        if !short {
            trial.more_data(writer, observer)?;
            trial.flock(writer, observer)?;
            trial.rename_atomic(writer, observer)?;
            trial.appends(writer, observer)?;
            trial.turns(writer, observer)?;
        }
    }
    findings.observed(None);
    Ok(findings)
}

struct Trial<'a> {
    prefix: String,
    findings: &'a mut Findings,
    trouble: &'a Cell<Option<i32>>,
}

/// A side whose answers are checked. If an operation fails for a reason that will pass, the
/// property that it tried is unknown.
struct Watched<'a, 'b>(&'a mut dyn Side, &'b Cell<Option<i32>>);

impl Watched<'_, '_> {
    fn look(&self, answer: Answer) -> Answer {
        if passing(answer.errno) {
            self.1.set(Some(answer.errno));
        }
        answer
    }
}

impl Side for Watched<'_, '_> {
    fn run(&mut self, op: &Op) -> Result<Answer, Gone> {
        let answer = self.0.run(op)?;
        Ok(self.look(answer))
    }

    fn begin(&mut self, op: &Op) -> Result<(), Gone> {
        self.0.begin(op)
    }

    fn finish(&mut self) -> Result<Answer, Gone> {
        let answer = self.0.finish()?;
        Ok(self.look(answer))
    }
}

type Done = Result<(), Gone>;

fn op(verb: Verb) -> Op {
    Op::new(verb)
}

fn stat(name: &str) -> Op {
    op(Verb::Stat).name(name).at(1)
}

fn open(file: u8, name: &str, how: u64) -> Op {
    op(Verb::Open).file(file).name(name).at(how)
}

fn write(file: u8, at: u64, len: u64, fill: u8) -> Op {
    op(Verb::Write).file(file).at(at).len(len).fill(fill)
}

fn read(file: u8, at: u64, len: u64) -> Op {
    op(Verb::Read).file(file).at(at).len(len)
}

/// The error of a failed answer, as text.
fn why(answer: &Answer) -> String {
    std::io::Error::from_raw_os_error(answer.errno).to_string()
}

fn bytes(answer: &Answer) -> String {
    match answer {
        answer if !answer.ok() => why(answer),
        Answer { number: 0, .. } => "nothing".to_owned(),
        Answer { other: 256, .. } => format!("{} bytes, old and new", answer.number),
        answer => format!("{} bytes {}", answer.number, answer.other),
    }
}

impl Trial<'_> {
    fn name(&self, word: &str) -> String {
        format!("{}-{word}", self.prefix)
    }

    /// Records the result of a trial, unless the back end had a passing failure.
    fn tell(&mut self, property: &str, good: bool, seen: impl FnOnce() -> String) {
        match self.trouble.get() {
            Some(errno) if !good => {
                let why = std::io::Error::from_raw_os_error(errno).to_string();
                self.findings.note(property, Found::Unknown, why);
            }
            _ => self.findings.tell(property, good, seen),
        }
    }

    /// Executes what a trial needs first. False, and recorded, if that fails.
    fn set_up(&mut self, property: &str, side: &mut dyn Side, ops: &[Op]) -> Result<bool, Gone> {
        for op in ops {
            let answer = side.run(op)?;
            if !answer.ok() {
                let what = format!("{:?}: {}", op.verb, why(&answer)).to_lowercase();
                self.tell(property, false, || what);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a file that both sides have open as file 1, with `len` bytes of value 1 on the back
    /// end.
    fn both_open(
        &mut self,
        property: &str,
        name: &str,
        len: u64,
        (writer, observer): (&mut dyn Side, &mut dyn Side),
    ) -> Result<bool, Gone> {
        let make = [
            open(1, name, OPEN_CREATE),
            write(1, 0, len, 1),
            op(Verb::Sync).file(1),
        ];
        Ok(self.set_up(property, writer, &make)?
            && self.set_up(property, observer, &[open(1, name, OPEN_PLAIN)])?)
    }

    fn close(&mut self, sides: (&mut dyn Side, &mut dyn Side), name: &str) -> Done {
        for file in 1..=3 {
            sides.0.run(&op(Verb::Close).file(file))?;
            sides.1.run(&op(Verb::Close).file(file))?;
        }
        sides.0.run(&op(Verb::Unlink).name(name))?;
        Ok(())
    }

    /// Extends and truncates a file whose size the observer has just seen.
    fn sizes(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let name = self.name("size");
        if !self.both_open("sizes", &name, 1000, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        let steps = [
            (write(1, 1000, 5000, 2), 6000, "grew to"),
            (op(Verb::Truncate).name(&name).len(100), 100, "was cut to"),
            (write(1, 0, 9000, 3), 9000, "grew to"),
        ];
        for (step, size, became) in steps {
            for at in [0, 1] {
                observer.run(&op(Verb::StatOpen).file(1).at(at))?;
                observer.run(&stat(&name).at(at))?;
            }
            if !self.set_up("sizes", writer, &[step])? {
                return Ok(());
            }
            for (property, fresh) in [("remembered sizes", 0), ("sizes", 1)] {
                let by_open = observer.run(&op(Verb::StatOpen).file(1).at(fresh))?;
                let by_name = observer.run(&stat(&name).at(fresh))?;
                for found in [by_open, by_name] {
                    let good = found.ok() && found.number == size;
                    self.tell(property, good, || match found.ok() {
                        true => format!("{} bytes where a file {became} {size}", found.number),
                        false => why(&found),
                    });
                }
            }
        }
        self.close((writer, observer), &name)
    }

    /// Overwrites bytes that the observer has just read.
    fn data(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let (name, len) = (self.name("data"), 2 * PAGE);
        let property = "data, dropped first";
        if !self.both_open(property, &name, len, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        let direct = observer.run(&open(2, &name, OPEN_DIRECT))?.ok();
        if !direct {
            let what = "no O_DIRECT".to_owned();
            self.findings.note("data, direct", Found::Unknown, what);
        }
        for fill in [2, 3] {
            for file in [1, 2] {
                observer.run(&read(file, 0, len))?;
            }
            let over = [write(1, 0, len, fill), op(Verb::Sync).file(1)];
            if !self.set_up(property, writer, &over)? {
                return Ok(());
            }
            if direct {
                let found = observer.run(&read(2, 0, len))?;
                self.same("data, direct", &found, len, fill);
            }
            observer.run(&op(Verb::Forget).file(1))?;
            let found = observer.run(&read(1, 0, len))?;
            self.same(property, &found, len, fill);
        }
        self.close((writer, observer), &name)
    }

    fn same(&mut self, property: &str, found: &Answer, len: u64, fill: u8) {
        let good = found.ok() && (found.number, found.other) == (len, u64::from(fill));
        let seen = || format!("{} where the other wrote {len} bytes {fill}", bytes(found));
        self.tell(property, good, seen);
    }

    /// Reads beyond what was the end of the file a moment ago.
    fn ends(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let name = self.name("end");
        let property = "ends of files";
        if !self.both_open(property, &name, PAGE, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        let direct = observer.run(&open(2, &name, OPEN_DIRECT))?.ok();
        let file = if direct { 2 } else { 1 };
        observer.run(&read(file, 0, 2 * PAGE))?;
        let more = [write(1, PAGE, PAGE, 2), op(Verb::Sync).file(1)];
        if self.set_up(property, writer, &more)? {
            if !direct {
                observer.run(&op(Verb::Forget).file(1))?;
            }
            observer.run(&op(Verb::StatOpen).file(file).at(1))?;
            let found = observer.run(&read(file, PAGE, PAGE))?;
            self.same(property, &found, PAGE, 2);
        }
        self.close((writer, observer), &name)
    }

    /// Makes, removes and renames files that the observer has just looked up.
    fn names(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let (name, other) = (self.name("name"), self.name("other"));
        let there = |answer: &Answer| if answer.ok() { "there" } else { "not there" };
        for _ in 0..2 {
            observer.run(&stat(&name))?;
            observer.run(&op(Verb::List).name(&name))?;
            if !self.set_up("new names", writer, &[op(Verb::Make).name(&name)])? {
                return Ok(());
            }
            let listed = observer.run(&op(Verb::List).name(&name))?;
            let found = observer.run(&stat(&name))?;
            let again = observer.run(&op(Verb::Make).name(&name))?;
            self.tell("new names", found.ok(), || {
                "a name that the other has made is not there".to_owned()
            });
            self.findings
                .tell("exclusive creation", again.errno == libc::EEXIST, || {
                    "two sides made one name with O_EXCL".to_owned()
                });
            self.findings
                .tell("listings", listed.names.contains(&name), || {
                    "a name that the other has made is not listed".to_owned()
                });
            let rename = op(Verb::Rename).name(&name).to(&other);
            observer.run(&stat(&other))?;
            if !self.set_up("renamed names", writer, &[rename])? {
                return Ok(());
            }
            let (old, new) = (observer.run(&stat(&name))?, observer.run(&stat(&other))?);
            self.findings
                .tell("renamed names", new.ok() && !old.ok(), || {
                    format!(
                        "after a rename the old name is {}, the new {}",
                        there(&old),
                        there(&new)
                    )
                });
            if !self.set_up("removed names", writer, &[op(Verb::Unlink).name(&other)])? {
                return Ok(());
            }
            let listed = observer.run(&op(Verb::List).name(&other))?;
            let found = observer.run(&stat(&other))?;
            self.findings
                .tell("removed names", found.errno == libc::ENOENT, || {
                    "a name that the other has removed is still there".to_owned()
                });
            self.findings
                .tell("listings", listed.ok() && listed.names.is_empty(), || {
                    "a name that the other has removed is still listed".to_owned()
                });
        }
        self.rename_over(writer, observer, &name, &other)
    }

    /// Renames a file over one that the observer knows; the name must then lead to the new file.
    fn rename_over(&mut self, w: &mut dyn Side, o: &mut dyn Side, from: &str, to: &str) -> Done {
        let make = [op(Verb::Make).name(from), op(Verb::Make).name(to)];
        if !self.set_up("renamed names", w, &make)? {
            return Ok(());
        }
        o.run(&stat(to))?;
        let new = w.run(&stat(from))?;
        let rename = op(Verb::Rename).name(from).to(to);
        if self.set_up("renamed names", w, &[rename])? {
            let found = o.run(&stat(to))?;
            self.tell(
                "renamed names",
                found.ok() && found.inode == new.inode,
                || "after a rename over a file its name still means the old one".to_owned(),
            );
        }
        w.run(&op(Verb::Unlink).name(to))?;
        Ok(())
    }

    fn links(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let (name, second) = (self.name("link"), self.name("second"));
        let property = "link counts";
        if !self.both_open(property, &name, 1, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        observer.run(&op(Verb::StatOpen).file(1).at(1))?;
        let steps = [
            (op(Verb::Link).name(&name).to(&second), 2),
            (op(Verb::Unlink).name(&second), 1),
        ];
        for (step, links) in steps {
            // CephFS makes others wait up to 5 s for a link count that is not in its journal yet.
            // fsync of the folder writes the count to the journal.
            if !self.set_up(property, writer, &[step, op(Verb::Sync).file(0)])? {
                break;
            }
            let found = observer.run(&op(Verb::StatOpen).file(1).at(1))?;
            self.tell(
                property,
                found.ok() && found.other == links,
                || match found.ok() {
                    true => format!("{} for {links}", found.other),
                    false => why(&found),
                },
            );
        }
        self.close((writer, observer), &name)
    }

    /// Byte locks of open descriptions, by which forwarders hold seats and register open files.
    fn locks(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let name = self.name("lock");
        let property = "locks between nodes";
        if !self.both_open(property, &name, 1, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        let lock = |at: u64| op(Verb::Lock).file(1).at(at);
        // The side that asks, the question, and 1 where the answer must be yes.
        let steps = [
            (true, lock(5), 1, "a lock cannot be had"),
            (false, lock(5), 0, "both sides got the same lock"),
            (
                false,
                op(Verb::Locked).file(1).at(5),
                1,
                "the other's lock is not seen",
            ),
            (false, lock(6), 1, "a byte is locked that nobody has locked"),
            (
                true,
                op(Verb::Unlock).file(1).at(5),
                0,
                "a lock cannot be given back",
            ),
            (
                false,
                lock(5),
                1,
                "a lock that was given back cannot be had",
            ),
            (true, lock(5), 0, "both sides got the same lock"),
            (
                false,
                op(Verb::Unlock).file(1).at(5),
                0,
                "a lock cannot be given back",
            ),
            (true, lock(7).len(1), 1, "a shared lock cannot be had"),
            (false, lock(7).len(1), 1, "two sides cannot share a lock"),
            (
                false,
                lock(7),
                0,
                "a shared lock and an exclusive one of two sides",
            ),
        ];
        for (by_writer, step, number, seen) in steps {
            let answer = match by_writer {
                true => writer.run(&step)?,
                false => observer.run(&step)?,
            };
            let good = answer.ok() && answer.number == number;
            let seen = || {
                if answer.ok() {
                    seen.to_owned()
                } else {
                    why(&answer)
                }
            };
            self.tell(property, good, seen);
        }
        self.release(&mut *writer, &mut *observer)?;
        self.close((writer, observer), &name)
    }

    /// Checks that the observer's lock on byte 6 ends when the observer closes its description.
    fn release(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let lock = op(Verb::Lock).file(1).at(6);
        observer.run(&op(Verb::Close).file(1))?;
        let mut answer = writer.run(&lock)?;
        // FUSE reports a last close after it has happened, so a short delay is accepted.
        for _ in 0..20 {
            if !answer.ok() || answer.number == 1 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
            answer = writer.run(&lock)?;
        }
        let good = answer.ok() && answer.number == 1;
        let seen = || "a lock stays after its file was closed".to_owned();
        self.tell("release of locks", good, seen);
        Ok(())
    }

    /// Properties that Tidegate does not need and that other programs may.
    fn more_data(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let (name, len) = (self.name("more"), 2 * PAGE);
        let property = "data of open files";
        if !self.both_open(property, &name, len, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        let mapped = op(Verb::Mapped).file(1).at(10);
        let sync = op(Verb::Sync).file(1);
        observer.run(&read(1, 0, len))?;
        let first = observer.run(&mapped)?;
        let found = match self.set_up("data before sync", writer, &[write(1, 0, len, 2)])? {
            true => observer.run(&read(1, 0, len))?,
            false => return Ok(()),
        };
        self.same("data before sync", &found, len, 2);
        writer.run(&write(1, 0, len, 3))?;
        writer.run(&sync)?;
        let found = observer.run(&read(1, 0, len))?;
        self.same("data of open files", &found, len, 3);
        let again = observer.run(&mapped)?;
        match first.ok() {
            true => self
                .findings
                .tell("data of mappings", again.number == 3, || {
                    format!("byte {} where the other wrote 3", again.number)
                }),
            false => self
                .findings
                .note("data of mappings", Found::Unknown, why(&first)),
        }
        observer.run(&op(Verb::Close).file(1))?;
        writer.run(&write(1, 0, len, 4))?;
        writer.run(&sync)?;
        if self.set_up("data, opened anew", observer, &[open(1, &name, OPEN_PLAIN)])? {
            let found = observer.run(&read(1, 0, len))?;
            self.same("data, opened anew", &found, len, 4);
        }
        self.close((writer, observer), &name)
    }

    fn flock(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let name = self.name("flock");
        let property = "flock between nodes";
        if !self.both_open(property, &name, 1, (&mut *writer, &mut *observer))? {
            return Ok(());
        }
        let flock = op(Verb::Flock).file(1);
        let (first, second) = (writer.run(&flock)?, observer.run(&flock)?);
        let good = first.ok() && second.ok() && (first.number, second.number) == (1, 0);
        self.findings
            .tell(property, good, || match first.ok() && second.ok() {
                true => format!("had by {} of two sides", first.number + second.number),
                false => why(if first.ok() { &second } else { &first }),
            });
        self.close((writer, observer), &name)
    }

    /// Checks that a name exists at any time while the other side renames files over it.
    fn rename_atomic(&mut self, writer: &mut dyn Side, observer: &mut dyn Side) -> Done {
        let (name, fresh) = (self.name("over"), self.name("fresh"));
        if !self.set_up("atomic rename", writer, &[op(Verb::Make).name(&name)])? {
            return Ok(());
        }
        let churn = op(Verb::Churn).name(&fresh).to(&name).len(WATCH_MS);
        let watch = op(Verb::Watch).name(&name).len(WATCH_MS);
        writer.begin(&churn)?;
        let watched = observer.run(&watch);
        let renamed = writer.finish()?;
        let watched = watched?;
        match (renamed.ok(), watched.ok()) {
            (false, _) => self
                .findings
                .note("atomic rename", Found::No, why(&renamed)),
            (_, false) => self
                .findings
                .note("atomic rename", Found::No, why(&watched)),
            _ => {
                let (renames, looks, missing) = (renamed.number, watched.number, watched.other);
                if missing == 0 && watched.inode > 0 {
                    let seen = format!("{} of {looks} looks were ESTALE", watched.inode);
                    self.findings.note("atomic rename", Found::Yes, seen);
                }
                self.tell("atomic rename", missing == 0, || {
                    format!("missing in {missing} of {looks} looks during {renames} renames")
                });
            }
        }
        for name in [&name, &fresh] {
            writer.run(&op(Verb::Unlink).name(name))?;
        }
        Ok(())
    }
}
