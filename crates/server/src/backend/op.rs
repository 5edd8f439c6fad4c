//! Single operations on the files of a trial's folder, and their answers, as text: so one side of
//! a trial can ask the other to do them on its own mount.

use std::fmt::Write as _;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Makes file `name`, which must not be there.
    Make,
    /// Opens `name` as `slot`; `at` has the `OPEN_` bits.
    Open,
    /// Closes `slot`.
    Close,
    /// Writes `len` bytes `fill` at `at` of `slot`.
    Write,
    /// Reads `len` bytes at `at` of `slot`: how many came, and the byte that they all are.
    Read,
    /// Drops what this node remembers of the data of `slot`.
    Forget,
    /// Waits until data and attributes of `slot`, with 0 the folder's names, are on the back end.
    Sync,
    /// Makes `name` `len` bytes long.
    Truncate,
    /// Size, links and inode of `name`; `at` is 1 to ask past what is remembered.
    Stat,
    /// The same of `slot`.
    StatOpen,
    /// Gives `name` the second name `to`.
    Link,
    /// Renames `name` to `to`; `at` has the flags of renameat2.
    Rename,
    /// Removes `name`.
    Unlink,
    /// The names that begin with `name`.
    List,
    /// Tries to lock byte `at` of `slot`, shared if `len` is 1: number 1 if it was had.
    Lock,
    /// Lets go of byte `at` of `slot`.
    Unlock,
    /// Whether another description has byte `at` of `slot` locked: number 1.
    Locked,
    /// Tries flock on `slot`: number 1 if it was had.
    Flock,
    /// The byte at `at` of `slot`, by a shared mapping that is kept.
    Mapped,
    /// Renames fresh files over `to` for `len` ms; `name` is what they are called before.
    Churn,
    /// Looks for `name` for `len` ms: how often, how often it was not there, and (as inode) how
    /// often it was ESTALE.
    Watch,
    /// Appends up to `at` records of `len` bytes `fill` to `name`: how many.
    Append,
    /// The other side needs this one no longer; `name` says what came of it.
    Bye,
}

/// Opens for reading and writing; the bits below add to it.
pub(crate) const OPEN_PLAIN: u64 = 0;
/// Makes the file if it is not there.
pub(crate) const OPEN_CREATE: u64 = 1;
/// Past the page cache.
pub(crate) const OPEN_DIRECT: u64 = 2;

const WORDS: &[(Verb, &str)] = &[
    (Verb::Make, "make"),
    (Verb::Open, "open"),
    (Verb::Close, "close"),
    (Verb::Write, "write"),
    (Verb::Read, "read"),
    (Verb::Forget, "forget"),
    (Verb::Sync, "sync"),
    (Verb::Truncate, "truncate"),
    (Verb::Stat, "stat"),
    (Verb::StatOpen, "stat-open"),
    (Verb::Link, "link"),
    (Verb::Rename, "rename"),
    (Verb::Unlink, "unlink"),
    (Verb::List, "list"),
    (Verb::Lock, "lock"),
    (Verb::Unlock, "unlock"),
    (Verb::Locked, "locked"),
    (Verb::Flock, "flock"),
    (Verb::Mapped, "mapped"),
    (Verb::Churn, "churn"),
    (Verb::Watch, "watch"),
    (Verb::Append, "append"),
    (Verb::Bye, "bye"),
];

/// The most bytes that one operation reads or writes, and the longest time, ms, that one takes.
const LEN_MAX: u64 = 1 << 20;
/// Files lie below this.
const AT_MAX: u64 = 1 << 62;
/// Longest name.
const NAME_MAX: usize = 64;

/// One operation. Names are those of the trial's folder; a word of no use is empty or 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) verb: Verb,
    pub(crate) slot: u8,
    pub(crate) name: String,
    pub(crate) to: String,
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) fill: u8,
}

impl Op {
    /// Nothing but its verb.
    pub(crate) fn new(verb: Verb) -> Op {
        Op {
            verb,
            slot: 0,
            name: String::new(),
            to: String::new(),
            at: 0,
            len: 0,
            fill: 0,
        }
    }

    pub(crate) fn slot(self, slot: u8) -> Op {
        Op { slot, ..self }
    }

    pub(crate) fn name(self, name: &str) -> Op {
        let name = name.to_owned();
        Op { name, ..self }
    }

    pub(crate) fn to(self, to: &str) -> Op {
        let to = to.to_owned();
        Op { to, ..self }
    }

    pub(crate) fn at(self, at: u64) -> Op {
        Op { at, ..self }
    }

    pub(crate) fn len(self, len: u64) -> Op {
        Op { len, ..self }
    }

    pub(crate) fn fill(self, fill: u8) -> Op {
        Op { fill, ..self }
    }

    /// One line.
    pub(crate) fn text(&self) -> String {
        let word = WORDS.iter().find(|(verb, _)| *verb == self.verb);
        let (_, word) = word.expect("every verb has a word");
        let or = |name: &str| match name {
            "" => "-".to_owned(),
            name => name.to_owned(),
        };
        format!(
            "{word} {} {} {} {} {} {}",
            self.slot,
            or(&self.name),
            or(&self.to),
            self.at,
            self.len,
            self.fill
        )
    }

    /// None for what no honest side says: a name could lead out of the folder, a length could
    /// fill the disk.
    pub(crate) fn parse(line: &str) -> Option<Op> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let (verb, _) = *WORDS.iter().find(|(_, known)| *known == word)?;
        let slot = words.next()?.parse().ok()?;
        let name = parse_name(words.next()?, verb == Verb::Bye)?;
        let to = parse_name(words.next()?, false)?;
        let mut number = |max: u64| {
            let found = words.next()?.parse::<u64>().ok()?;
            (found <= max).then_some(found)
        };
        let (at, len, fill) = (number(AT_MAX)?, number(LEN_MAX)?, number(255)?);
        words.next().is_none().then_some(Op {
            verb,
            slot,
            name,
            to,
            at,
            len,
            fill: fill as u8,
        })
    }
}

/// Names of trials begin with `t-`, so that no word of a stranger reaches another file.
fn parse_name(word: &str, free: bool) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match word {
        "-" => Some(String::new()),
        _ if word.len() > NAME_MAX || !word.chars().all(plain) => None,
        _ => (free || word.starts_with("t-")).then(|| word.to_owned()),
    }
}

/// What came of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0, or why it failed.
    pub(crate) errno: i32,
    /// A count, a size, the milliseconds that a write took, or 1 for yes.
    pub(crate) number: u64,
    /// Links, a byte (256: not all the same), or a second count.
    pub(crate) other: u64,
    /// An inode number.
    pub(crate) inode: u64,
    /// Names, or lines of findings.
    pub(crate) names: Vec<String>,
}

impl Answer {
    pub(crate) fn failed(error: &std::io::Error) -> Answer {
        Answer {
            errno: error.raw_os_error().unwrap_or(libc::EIO),
            ..Answer::default()
        }
    }

    pub(crate) fn number(number: u64) -> Answer {
        Answer {
            number,
            ..Answer::default()
        }
    }

    pub(crate) fn ok(&self) -> bool {
        self.errno == 0
    }

    /// One line.
    pub(crate) fn text(&self) -> String {
        let Answer {
            errno,
            number,
            other,
            inode,
            ..
        } = self;
        let mut text = format!("{errno} {number} {other} {inode}");
        for name in &self.names {
            let name: String = name
                .chars()
                .map(|c| if c == '|' || c.is_control() { '?' } else { c })
                .collect();
            write!(text, "|{name}").expect("a string takes all");
        }
        text
    }

    pub(crate) fn parse(line: &str) -> Option<Answer> {
        let mut parts = line.split('|');
        let mut words = parts.next()?.split(' ');
        let errno = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse().ok();
        Some(Answer {
            errno,
            number: number()?,
            other: number()?,
            inode: number()?,
            names: parts.map(str::to_owned).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_answers_are_read_as_they_were_said() {
        for (verb, _) in WORDS {
            let op = Op::new(*verb).slot(3).name("t-a").at(7).len(9).fill(255);
            assert_eq!(Op::parse(&op.text()), Some(op.clone()), "{}", op.text());
        }
        let answer = Answer {
            errno: libc::ENOENT,
            number: u64::MAX,
            other: 256,
            inode: 4,
            names: vec!["a b".into(), "c".into()],
        };
        assert_eq!(Answer::parse(&answer.text()), Some(answer));
        assert_eq!(
            Answer::parse(&Answer::default().text()),
            Some(Answer::default())
        );
    }

    #[test]
    fn a_hostile_line_is_no_operation() {
        let long = format!("make 0 t-{} - 0 0 0", "a".repeat(NAME_MAX));
        for line in [
            "",
            "make",
            "make 0 ../x - 0 0 0",
            "make 0 seat - 0 0 0",
            "make 0 t-/x - 0 0 0",
            "rename 0 t-x ../../etc 0 0 0",
            "write 0 - - 0 999999999999 0",
            "write 0 - - 9999999999999999999 1 0",
            "write 256 - - 0 1 0",
            "make 0 t-a - 0 0 0 0",
            "dance 0 t-a - 0 0 0",
            &long,
        ] {
            assert_eq!(Op::parse(line), None, "{line}");
        }
    }
}
