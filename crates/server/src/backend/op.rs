//! Single operations on the files of a trial's folder, and their answers, both as text. One side of
//! a trial sends operations to the other, which executes them on its own mount.

use std::fmt::Write as _;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Makes file `name`, which must not exist.
    Make,
    /// Opens `name` as `file`; `at` has the `OPEN_` bits.
    Open,
    /// Closes `file`.
    Close,
    /// Writes `len` bytes of value `fill` at offset `at` of `file`.
    Write,
    /// Reads `len` bytes at offset `at` of `file`. Answers how many were read, and the value that
    /// they all have.
    Read,
    /// Drops the data of `file` from this node's cache.
    Forget,
    /// Syncs data and attributes of `file`; with file 0, the names in the folder.
    Sync,
    /// Truncates or extends `name` to `len` bytes.
    Truncate,
    /// Size, link count and inode of `name`. If `at` is 1, bypasses cached attributes.
    Stat,
    /// Does the same for `file`.
    StatOpen,
    /// Gives `name` the second name `to`.
    Link,
    /// Renames `name` to `to`; `at` has the flags of renameat2.
    Rename,
    /// Removes `name`.
    Unlink,
    /// Lists the names that begin with `name`.
    List,
    /// Tries to lock byte `at` of `file`, shared if `len` is 1. Answers number 1 if that succeeded.
    Lock,
    /// Unlocks byte `at` of `file`.
    Unlock,
    /// Answers number 1 if another description has locked byte `at` of `file`.
    Locked,
    /// Tries flock on `file`. Answers number 1 if that succeeded.
    Flock,
    /// Reads the byte at offset `at` of `file` through a shared mapping that stays.
    Mapped,
    /// Renames new files over `to` for `len` ms; `name` is their first name.
    Churn,
    /// Looks `name` up for `len` ms. Answers how often, how often it did not exist, and (as inode)
    /// how often the result was ESTALE.
    Watch,
    /// Appends up to `at` records of `len` bytes of value `fill` to `name`. Answers how many.
    Append,
    /// Ends the conversation; `name` is the result.
    Bye,
}

/// Opens for reading and writing. The bits below add to this.
pub(crate) const OPEN_PLAIN: u64 = 0;
/// Makes the file if it does not exist.
pub(crate) const OPEN_CREATE: u64 = 1;
/// Bypasses the page cache.
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

/// The most bytes that one operation reads or writes.
const LEN_MAX: u64 = 1 << 20;
/// The longest time that one operation may be told to take, in ms.
const MS_MAX: u64 = 10_000;
/// The most records that one operation appends.
const RECORDS_MAX: u64 = 10_000;
/// Counts and sizes in answers are below this, so that a few of them can be added.
const NUMBER_MAX: u64 = 1 << 60;
/// Offsets in files are below this.
const AT_MAX: u64 = 1 << 62;
/// The longest name, in bytes.
const NAME_MAX: usize = 64;

/// One operation. Names are those in the trial's folder. A field that the verb does not use is
/// empty or 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) verb: Verb,
    /// The number of a file that the side has open.
    pub(crate) file: u8,
    pub(crate) name: String,
    pub(crate) to: String,
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) fill: u8,
}

impl Op {
    /// An operation without arguments.
    pub(crate) fn new(verb: Verb) -> Op {
        Op {
            verb,
            file: 0,
            name: String::new(),
            to: String::new(),
            at: 0,
            len: 0,
            fill: 0,
        }
    }

    pub(crate) fn file(self, file: u8) -> Op {
        Op { file, ..self }
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

    /// The operation as one line of text.
    pub(crate) fn text(&self) -> String {
        let word = WORDS.iter().find(|(verb, _)| *verb == self.verb);
        let (_, word) = word.expect("every verb has a word");
        let or = |name: &str| match name {
            "" => "-".to_owned(),
            name => name.to_owned(),
        };
        format!(
            "{word} {} {} {} {} {} {}",
            self.file,
            or(&self.name),
            or(&self.to),
            self.at,
            self.len,
            self.fill
        )
    }

    /// Parses an operation. None for what no honest side sends: a name could lead out of the
    /// folder, a length fill the disk, or a time keep this side for long.
    pub(crate) fn parse(line: &str) -> Option<Op> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let (verb, _) = *WORDS.iter().find(|(_, known)| *known == word)?;
        let file = words.next()?.parse().ok()?;
        let name = parse_name(words.next()?, verb == Verb::Bye)?;
        let to = parse_name(words.next()?, false)?;
        let mut number = |max: u64| {
            let found = words.next()?.parse::<u64>().ok()?;
            (found <= max).then_some(found)
        };
        let (at_max, len_max) = match verb {
            Verb::Churn | Verb::Watch => (AT_MAX, MS_MAX),
            Verb::Append => (RECORDS_MAX, LEN_MAX),
            _ => (AT_MAX, LEN_MAX),
        };
        let (at, len, fill) = (number(at_max)?, number(len_max)?, number(255)?);
        let op = Op {
            verb,
            file,
            name,
            to,
            at,
            len,
            fill: fill as u8,
        };
        (op.text() == line).then_some(op)
    }
}

/// Parses a name. Names of trials begin with `t-`, so that no text of a stranger can reach another
/// file.
fn parse_name(word: &str, free: bool) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match word {
        "-" => Some(String::new()),
        _ if word.len() > NAME_MAX || !word.chars().all(plain) => None,
        _ => (free || word.starts_with("t-")).then(|| word.to_owned()),
    }
}

/// The result of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0, or the error number.
    pub(crate) errno: i32,
    /// A count, a size in bytes, the milliseconds that a write took, or 1 for yes.
    pub(crate) number: u64,
    /// The link count, the value of all bytes read (256 if they differ), or a second count.
    pub(crate) other: u64,
    /// An inode number.
    pub(crate) inode: u64,
    /// The names of a listing, or lines of findings.
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

    /// The answer as one line of text.
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

    /// Parses an answer. None for what no honest side sends.
    pub(crate) fn parse(line: &str) -> Option<Answer> {
        let mut parts = line.split('|');
        let mut words = parts.next()?.split(' ');
        let errno = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse().ok();
        let answer = Answer {
            errno,
            number: number()?,
            other: number()?,
            inode: number()?,
            names: parts.map(str::to_owned).collect(),
        };
        let bounded = answer.number.max(answer.other) < NUMBER_MAX;
        (bounded && answer.text() == line).then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_answers_are_read_as_they_were_said() {
        for (verb, _) in WORDS {
            let op = Op::new(*verb).file(3).name("t-a").at(7).len(9).fill(255);
            assert_eq!(Op::parse(&op.text()), Some(op.clone()), "{}", op.text());
        }
        let answer = Answer {
            errno: libc::ENOENT,
            number: NUMBER_MAX - 1,
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
            "make 0 t-a - 0 0 00",
            "make +0 t-a - 0 0 0",
            "churn 0 t-a t-b 0 10001 0",
            "watch 0 t-a - 0 10001 0",
            "append 0 t-a - 10001 64 0",
            "dance 0 t-a - 0 0 0",
            &long,
        ] {
            assert_eq!(Op::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_hostile_line_is_no_answer() {
        for line in [
            "",
            "0 0 0",
            "0 0 0 0 0",
            "0 +1 0 0",
            "0 01 0 0",
            "0 1152921504606846976 0 0",
            "0 0 1152921504606846976 0",
            "0 0 0 0|a\x1b[2J",
        ] {
            assert_eq!(Answer::parse(line), None, "{line}");
        }
    }
}
