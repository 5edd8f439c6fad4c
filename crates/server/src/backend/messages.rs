//! Messages between the sides of trials. They are small files that are read and written past every
//! cache.
//!
//! Only side N writes `box.N`, which contains its last message. The others call side N by `bell.N`.
//! The files are larger than what file systems treat as small: GlusterFS sends the data of a small
//! file along with its attributes, and caches both for a while. The files keep their size, because
//! a size may be cached too.

use super::side::{Aligned, BLOCK};
use rustix::fs::{Advice, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tidegate_sched::AppId;
use tracing::warn;

/// The first word of a message, and the version of the protocol.
const HEAD: &str = "tidegate-probe 1";
const FILE_BYTES: u64 = 128 * 1024;
/// The longest body of a message, in bytes: a message fills at most one block.
const BODY_BYTES_MAX: usize = BLOCK - 512;

/// The state of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The side is running.
    Here,
    /// The side has left.
    Gone,
}

/// The last message of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The side that has written it.
    pub(crate) from: u16,
    /// A number that differs for each process with this side's number.
    pub(crate) life: u64,
    /// The number of the mount on which the side works.
    pub(crate) mount: u64,
    /// The name of its node, for messages to people.
    pub(crate) host: String,
    pub(crate) state: State,
    /// Increases with every message.
    pub(crate) beat: u64,
    /// The conversation to which the message belongs; 0 for none.
    pub(crate) talk: u64,
    /// The side to which the message goes.
    pub(crate) to: u16,
    /// The number of the message in the conversation.
    pub(crate) number: u64,
    /// The text.
    pub(crate) body: String,
}

impl Message {
    pub(super) fn text(&self) -> String {
        let state = match self.state {
            State::Here => "here",
            State::Gone => "gone",
        };
        let plain = |text: &str, or: char| -> String {
            let wrong = |c: char| c.is_control() || (or == '_' && c.is_whitespace());
            text.chars()
                .map(|c| if wrong(c) { or } else { c })
                .collect()
        };
        let mut body = plain(&self.body, '?');
        if body.len() > BODY_BYTES_MAX {
            let mut end = BODY_BYTES_MAX;
            while !body.is_char_boundary(end) {
                end -= 1;
            }
            body.truncate(end);
        }
        let host: String = plain(&self.host, '_').chars().take(64).collect();
        let text = format!(
            "{HEAD} {} {:016x} {:016x} {} {state} {} {:016x} {} {}\n{body}\n",
            self.from, self.life, self.mount, host, self.beat, self.talk, self.to, self.number,
        );
        let end = format!("end {:016x}\n", AppId::from_name(&text).0);
        text + &end
    }

    /// Parses a message. None if it is not complete, of another version, or otherwise not as a side
    /// writes it: it may be shown to people, and must not move their cursor.
    pub(super) fn parse(text: &str) -> Option<Message> {
        let message = Message::parse_loosely(text)?;
        (message.text() == text).then_some(message)
    }

    fn parse_loosely(text: &str) -> Option<Message> {
        let (text, end) = text.strip_suffix('\n')?.rsplit_once("end ")?;
        if u64::from_str_radix(end, 16).ok()? != AppId::from_name(text).0 {
            return None;
        }
        let (first, body) = text.strip_suffix('\n')?.split_once('\n')?;
        let mut words = first.strip_prefix(HEAD)?.strip_prefix(' ')?.split(' ');
        let mut next = || words.next();
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        Some(Message {
            from: next()?.parse().ok()?,
            life: hex(next()?)?,
            mount: hex(next()?)?,
            host: next()?.to_owned(),
            state: match next()? {
                "here" => State::Here,
                "gone" => State::Gone,
                _ => return None,
            },
            beat: next()?.parse().ok()?,
            talk: hex(next()?)?,
            to: next()?.parse().ok()?,
            number: next()?.parse().ok()?,
            body: body.to_owned(),
        })
    }
}

/// The messages of a folder.
pub(crate) struct Messages {
    folder: Arc<OwnedFd>,
    open: BTreeMap<String, (File, bool)>,
    /// Files that were logged as damaged.
    told: BTreeSet<String>,
}

impl Messages {
    pub(crate) fn new(folder: Arc<OwnedFd>) -> Messages {
        Messages {
            folder,
            open: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// The last message of a side; None if the side has not written a valid one.
    pub(crate) fn read(&mut self, side: u16) -> io::Result<Option<Message>> {
        let message = self.read_file(&format!("box.{side}"))?;
        Ok(message.filter(|message| message.from == side))
    }

    /// The message of the side that called this side last.
    pub(crate) fn notified(&mut self, side: u16) -> io::Result<Option<Message>> {
        let message = self.read_file(&format!("bell.{side}"))?;
        Ok(message.filter(|message| message.to == side && message.from != side))
    }

    /// Writes the message to its sender's file.
    pub(crate) fn write(&mut self, message: &Message) -> io::Result<()> {
        self.write_file(&format!("box.{}", message.from), message)
    }

    /// Calls the side to which the message goes.
    pub(crate) fn notify(&mut self, message: &Message) -> io::Result<()> {
        self.write_file(&format!("bell.{}", message.to), message)
    }

    /// Closes all files, so that the next use opens them again.
    pub(crate) fn close(&mut self) {
        self.open.clear();
    }

    fn write_file(&mut self, name: &str, message: &Message) -> io::Result<()> {
        let mut memory = Aligned::new(BLOCK);
        let text = message.text();
        memory.bytes()[..text.len()].copy_from_slice(text.as_bytes());
        let (file, _) = self.file(name)?;
        file.write_all_at(memory.bytes(), 0)?;
        // A write-behind layer may delay even direct writes.
        file.sync_data()
    }

    fn read_file(&mut self, name: &str) -> io::Result<Option<Message>> {
        let mut memory = Aligned::new(BLOCK);
        // A message may be read while it is written: one torn read is no fault.
        for _ in 0..3 {
            let (file, direct) = self.file(name)?;
            if !*direct {
                rustix::fs::fadvise(&*file, 0, None, Advice::DontNeed)?;
            }
            let len = file.read_at(memory.bytes(), 0)?;
            let bytes = &memory.bytes()[..len];
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
            if end == 0 {
                return Ok(None);
            }
            let text = std::str::from_utf8(&bytes[..end]).ok();
            if let Some(message) = text.and_then(Message::parse) {
                return Ok(Some(message));
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        if self.told.insert(name.to_owned()) {
            warn!(
                file = name,
                "ignored: not a message of a forwarder of this version"
            );
        }
        Ok(None)
    }

    fn file(&mut self, name: &str) -> io::Result<&mut (File, bool)> {
        use std::collections::btree_map::Entry;
        match self.open.entry(name.to_owned()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(open(&self.folder, name)?)),
        }
    }
}

/// Opens or makes a file, past the page cache if the file system supports that. Returns whether it
/// does.
fn open(folder: &OwnedFd, name: &str) -> io::Result<(File, bool)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    let opened = rustix::fs::openat(folder.as_fd(), name, flags | OFlags::DIRECT, mode);
    let (fd, direct) = match opened {
        Ok(fd) => (fd, true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => (
            rustix::fs::openat(folder.as_fd(), name, flags, mode)?,
            false,
        ),
        Err(error) => return Err(error.into()),
    };
    let found = rustix::fs::fstat(&fd)?;
    let regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !regular || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{name} in the folder of trials is not a file of this user; remove it"),
        ));
    }
    let file = File::from(fd);
    if (found.st_size as u64) < FILE_BYTES {
        file.set_len(FILE_BYTES)?;
    }
    Ok((file, direct))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;

    pub(crate) fn message() -> Message {
        Message {
            from: 3,
            life: u64::MAX,
            mount: 2,
            host: "io 1".to_owned(),
            state: State::Here,
            beat: 9,
            talk: 77,
            to: 4,
            number: 5,
            body: "make 0 t-a - 0 0 0".to_owned(),
        }
    }

    pub(crate) fn folder(scratch: &Scratch) -> Arc<OwnedFd> {
        Arc::new(File::open(scratch.path()).expect("it is there").into())
    }

    #[test]
    fn a_message_is_read_as_it_was_written_or_not_at_all() {
        let text = message().text();
        let read = Message::parse(&text).expect("it is whole");
        assert_eq!(read.host, "io_1");
        assert_eq!(
            Message {
                host: "io 1".into(),
                ..read
            },
            message()
        );
        for len in 0..text.len() {
            assert_eq!(Message::parse(&text[..len]), None, "{len}");
        }
        assert_eq!(Message::parse(&text.replacen("make", "take", 1)), None);
        for (from, to) in [("io_1", "io\x1b[2J"), ("make", "make\x07"), (" 9 ", " +9 ")] {
            let (text, _) = text.rsplit_once("end ").expect("it has an end");
            let text = text.replacen(from, to, 1);
            let text = format!("{text}end {:016x}\n", AppId::from_name(&text).0);
            assert_eq!(Message::parse(&text), None, "{text:?}");
        }
        let long = Message {
            body: "ü".repeat(BLOCK),
            ..message()
        };
        assert!(long.text().len() <= BLOCK);
        assert!(Message::parse(&long.text()).is_some());
    }

    #[test]
    fn files_have_the_last_message_and_ignore_rubbish() {
        let scratch = Scratch::new("messages");
        let (mut ours, mut theirs) = (
            Messages::new(folder(&scratch)),
            Messages::new(folder(&scratch)),
        );
        assert_eq!(theirs.read(3).expect("read"), None);
        for number in 0..3 {
            let message = Message {
                number,
                ..message()
            };
            ours.write(&message).expect("write");
            ours.notify(&message).expect("notify");
            let read = theirs.read(3).expect("read").expect("a message");
            let notice = theirs.notified(4).expect("read").expect("a message");
            assert_eq!((read.number, notice.number), (number, number));
        }
        // A message in the file of another side is nobody's.
        std::fs::copy(scratch.path().join("box.3"), scratch.path().join("box.5")).expect("copy");
        assert_eq!(theirs.read(5).expect("read"), None);
        std::fs::write(scratch.path().join("box.6"), b"tidegate-probe 1 6 nonsense")
            .expect("write");
        assert_eq!(theirs.read(6).expect("read"), None);
        std::os::unix::fs::symlink("/etc/passwd", scratch.path().join("box.7")).expect("link");
        assert!(theirs.read(7).is_err());
    }
}
