//! The files that the programs of one `tidegate run` open, counted in memory that these programs
//! share; and which programs cannot load the short-cut, and so are not counted.

use crate::wire::is_plain;

/// Names the memory to the programs, as a path.
pub const VARIABLE: &str = "TIDEGATE_COUNTS";

/// Bytes of the memory.
pub const BYTES: usize = 4096;

/// Its first word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tidecnt1");

/// Words of 8 bytes in the memory, in the node's own order of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// [`MAGIC`].
    Magic = 0,
    /// Device of the mount, as [`device`] writes it.
    Mount = 1,
    /// Device of the exported directory.
    Export = 2,
    /// Files that were opened on the mount.
    Through = 3,
    /// Those of them that the short-cut took.
    Taken = 4,
    /// Files that were opened below the exported directory, because redirection is off.
    Asked = 5,
    /// The same, because they were opened by another name of the directory.
    Alias = 6,
    /// Files past the mount that were opened for writing.
    Written = 7,
    /// Programs that cannot load the short-cut.
    Unseen = 8,
    /// Files that `rename` or `link` gave a name in the exported directory, or one outside of it,
    /// past the mount.
    Renamed = 9,
    /// Those of them whose new name is in the directory.
    Brought = 10,
    /// Files opened past the mount by a process that could not reach it.
    Unreached = 11,
}

/// Where the programs' names begin. Each has [`NAME_LEN`] bytes: a letter for why, then the name.
pub const NAMES_AT: usize = 256;
/// Bytes of a name; NUL fills it up.
pub const NAME_LEN: usize = 32;
/// Names that are kept.
pub const NAMES_MAX: usize = 16;

/// A device as one number.
pub fn device(major: u32, minor: u32) -> u64 {
    u64::from(major) << 32 | u64::from(minor)
}

/// Whether a program can load the short-cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// It can, or is a script, or is no program.
    Loads,
    /// It is linked statically.
    Static,
    /// It gets other rights than those of the user who starts it.
    Privileged,
    /// It is of another C library, or of 32 bits.
    Foreign,
    /// It is started without the variables that `tidegate run` has set.
    Bare,
    /// It is started as a user who cannot reach the mount.
    Stranger,
}

impl Program {
    /// Every way of not loading it, with a letter and words.
    const ALL: [(Program, u8, &str); 5] = [
        (Program::Static, b's', "statically linked"),
        (
            Program::Privileged,
            b'u',
            "set-user-ID or with capabilities",
        ),
        (Program::Foreign, b'f', "of another C library"),
        (Program::Bare, b'e', "without the environment of the run"),
        (
            Program::Stranger,
            b'o',
            "of a user who cannot reach the mount",
        ),
    ];

    /// What the first bytes of a file say, which should reach as far as its program headers.
    pub fn of_head(head: &[u8]) -> Program {
        if head.get(..4) != Some(b"\x7fELF") {
            return Program::Loads;
        }
        if head.get(4) != Some(&2) {
            return Program::Foreign;
        }
        match interpreter(head) {
            Some(None) => Program::Static,
            Some(Some(path)) if path.windows(4).any(|part| part == b"musl") => Program::Foreign,
            _ => Program::Loads,
        }
    }

    /// A letter; None for a program that loads it.
    pub fn letter(self) -> Option<u8> {
        let found = Program::ALL.iter().find(|(one, ..)| *one == self);
        found.map(|(_, letter, _)| *letter)
    }

    /// In words.
    pub fn text(self) -> &'static str {
        let found = Program::ALL.iter().find(|(one, ..)| *one == self);
        found.map_or("dynamically linked", |(.., text)| text)
    }

    fn of_letter(letter: u8) -> Option<Program> {
        let found = Program::ALL.iter().find(|(_, one, _)| *one == letter);
        found.map(|(one, ..)| *one)
    }
}

/// Number of the program header that names the loader.
const PT_INTERP: u32 = 3;

/// The path of the loader of an ELF file of 64 bits: `Some(None)` if it has none, None if `head`
/// does not reach far enough.
fn interpreter(head: &[u8]) -> Option<Option<&[u8]>> {
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = head.get(at..at.checked_add(len)?)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    let (at, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for i in 0..count {
        let header = at.checked_add(i.checked_mul(size)?)?;
        if number(header, 4)? != PT_INTERP as usize {
            continue;
        }
        let (from, len) = (
            number(header.checked_add(8)?, 8)?,
            number(header.checked_add(32)?, 8)?,
        );
        // Beyond the head, it is not looked at.
        return Some(Some(head.get(from..from.checked_add(len)?).unwrap_or(b"")));
    }
    Some(None)
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Files that were opened on the mount.
    pub through: u64,
    /// Those of them that the short-cut took.
    pub taken: u64,
    /// Files that were opened past the mount because redirection is off.
    pub asked: u64,
    /// Files that were opened past the mount by another name of the directory.
    pub alias: u64,
    /// Files opened past the mount by a process that could not reach it.
    pub unreached: u64,
    /// How many of those past the mount were opened for writing.
    pub written: u64,
    /// Files that got a name in the directory, or one outside of it, past the mount.
    pub renamed: u64,
    /// How many of them got one in the directory.
    pub brought: u64,
    /// Programs that could not be counted, by name: [`NAMES_MAX`] at most.
    pub unseen: Vec<(String, Program)>,
    /// How many more there were.
    pub unnamed: u64,
}

impl Opened {
    /// Reads the memory; None if it is not such memory.
    pub fn decode(memory: &[u8]) -> Option<Opened> {
        let word = |word: Word| -> Option<u64> {
            let at = word as usize * 8;
            let bytes = memory.get(at..at + 8)?;
            #[expect(clippy::host_endian_bytes, reason = "memory of this node")]
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        if word(Word::Magic)? != MAGIC {
            return None;
        }
        let all = word(Word::Unseen)?;
        let names = memory.get(NAMES_AT..NAMES_AT + NAME_LEN * NAMES_MAX)?;
        let names = names.chunks(NAME_LEN);
        let mut unseen: Vec<(String, Program)> = names.filter_map(named).collect();
        let unnamed = all.saturating_sub(unseen.len() as u64);
        unseen.sort_by(|one, other| one.0.cmp(&other.0));
        unseen.dedup();
        Some(Opened {
            through: word(Word::Through)?,
            taken: word(Word::Taken)?,
            asked: word(Word::Asked)?,
            alias: word(Word::Alias)?,
            unreached: word(Word::Unreached)?,
            written: word(Word::Written)?,
            renamed: word(Word::Renamed)?,
            brought: word(Word::Brought)?,
            unseen,
            unnamed,
        })
    }

    /// Whether a program goes past the mount by names of the directory that would lead to it
    /// otherwise.
    pub fn has_left(&self) -> bool {
        let leaves = |kind| matches!(kind, Program::Bare | Program::Stranger);
        self.unseen.iter().any(|(_, kind)| leaves(*kind))
    }

    /// Files that were opened past the mount.
    pub fn past(&self) -> u64 {
        let unasked = self.alias.saturating_add(self.unreached);
        self.asked.saturating_add(unasked)
    }
}

fn named(bytes: &[u8]) -> Option<(String, Program)> {
    let (letter, name) = bytes.split_first()?;
    let name = name.split(|byte| *byte == 0).next()?;
    let name: String = String::from_utf8_lossy(name)
        .chars()
        .map(|c| if is_plain(c) { c } else { '?' })
        .collect();
    Some((name, Program::of_letter(*letter)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &mut [u8], word: Word, value: u64) {
        let at = word as usize * 8;
        #[expect(clippy::host_endian_bytes, reason = "memory of this node")]
        memory[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    #[test]
    fn what_programs_count_is_read() {
        let mut memory = vec![0; BYTES];
        assert_eq!(Opened::decode(&memory), None);
        assert_eq!(Opened::decode(&[]), None);
        put(&mut memory, Word::Magic, MAGIC);
        assert_eq!(Opened::decode(&memory), Some(Opened::default()));
        put(&mut memory, Word::Through, 3);
        put(&mut memory, Word::Alias, 2);
        put(&mut memory, Word::Asked, u64::MAX);
        put(&mut memory, Word::Renamed, 2);
        put(&mut memory, Word::Brought, 1);
        put(&mut memory, Word::Unseen, 3);
        // Who begins a line or turns the order of writing is shown as one who has tried.
        let name = "sbu\u{202e}y\n".as_bytes();
        memory[NAMES_AT..NAMES_AT + name.len()].copy_from_slice(name);
        memory[NAMES_AT + NAME_LEN..NAMES_AT + NAME_LEN + 5].copy_from_slice(b"usudo");
        let found = Opened::decode(&memory).expect("it is such memory");
        assert_eq!((found.through, found.past()), (3, u64::MAX));
        assert_eq!((found.renamed, found.brought), (2, 1));
        assert!(!found.has_left());
        memory[NAMES_AT] = b'e';
        assert!(Opened::decode(&memory).is_some_and(|found| found.has_left()));
        let wanted = [
            ("bu?y?".to_string(), Program::Static),
            ("sudo".to_string(), Program::Privileged),
        ];
        assert_eq!(
            (found.unseen.as_slice(), found.unnamed),
            (wanted.as_slice(), 1)
        );
    }

    /// An ELF file of 64 bits with one program header of this kind.
    fn elf(kind: u8, loader: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 120];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        (head[32], head[54], head[56]) = (64, 56, 1);
        (head[64], head[72], head[96]) = (kind, 120, loader.len() as u8);
        head.extend(loader);
        head
    }

    #[test]
    fn programs_without_the_usual_loader_are_known() {
        assert_eq!(Program::of_head(b"#!/bin/sh\n"), Program::Loads);
        assert_eq!(Program::of_head(b""), Program::Loads);
        let usual = elf(3, b"/lib64/ld-linux-x86-64.so.2\0");
        assert_eq!(Program::of_head(&usual), Program::Loads);
        assert_eq!(Program::of_head(&elf(1, b"")), Program::Static);
        let other = elf(3, b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(Program::of_head(&other), Program::Foreign);
        let mut short = usual.clone();
        short.truncate(70);
        assert_eq!(Program::of_head(&short), Program::Loads);
        let mut old = usual;
        old[4] = 1;
        assert_eq!(Program::of_head(&old), Program::Foreign);
        for len in 0..120 {
            Program::of_head(&elf(3, b"x")[..len]);
        }
    }
}
