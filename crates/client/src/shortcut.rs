//! Device control calls between a program and a mount. With them the mount tells the program about
//! one of its files, so that the program can send reads and writes straight to the forwarders.
//!
//! The kernel passes the call on to the process that serves the mount; other file systems answer
//! ENOTTY.

use crate::collective::HINT_LEN;
use crate::fuse_mounts::fuse_mounts;
use crate::wire::Handle;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Bytes of the answer.
pub const ANSWER_LEN: usize = 4096;

/// Number of the call that returns an [`Answer`] in `ANSWER_LEN` bytes (`_IOR(0xf7, 1, ...)`).
pub const COMMAND: u32 = 2 << 30 | (ANSWER_LEN as u32) << 16 | 0xf7 << 8 | 1;

/// Announces requests that the program is going to make (`_IOWR(0xf7, 2, ...)`): a
/// [`Hint`](crate::collective::Hint).
pub const HINT: u32 = 3 << 30 | (HINT_LEN as u32) << 16 | 0xf7 << 8 | 2;

/// Announces that an operation has ended (`_IOWR(0xf7, 3, ...)`): a hint, of which only the
/// operation matters.
pub const HINT_END: u32 = 3 << 30 | (HINT_LEN as u32) << 16 | 0xf7 << 8 | 3;

/// Bytes of an application's name, which a NUL ends.
pub const NAME_LEN: usize = 256;

/// Names the application of the caller (`_IOW(0xf7, 4, ...)`), for the file of the call and for
/// every file that the caller opens from now on.
pub const APPLICATION: u32 = 1 << 30 | (NAME_LEN as u32) << 16 | 0xf7 << 8 | 4;

/// Bytes of the answer with a ticket.
pub const TICKET_LEN: usize = 4096;

/// Asks for a ticket of the calling user (`_IOR(0xf7, 5, ...)`), by which a program of the user's
/// reaches forwarders of other nodes for a while.
pub const TICKET: u32 = 2 << 30 | (TICKET_LEN as u32) << 16 | 0xf7 << 8 | 5;

/// First bytes of an answer, which also say how the others are to be read.
const MAGIC: [u8; 8] = *b"tidegat2";
/// Numbers between them and the texts.
const NUMBERS: usize = 8;
/// Bytes before the texts.
const HEAD: usize = 8 + 8 * NUMBERS;

/// Which file it is, and how a program reaches its forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The file.
    pub handle: Handle,
    /// Id of the application for which everything done through this open counts.
    pub app: u64,
    /// How far the forwarders' clocks are ahead of this node's, ns.
    pub clock_ahead_ns: i64,
    /// Bytes of a stripe; 0: not known.
    pub stripe_bytes: u64,
    /// Number of forwarders; 0: not known.
    pub forwarder_count: u64,
    /// A line for [`Options::from_text`](crate::Options::from_text).
    pub forwarders: String,
    /// The application's name, if a program has given it; empty if its environment names it.
    pub name: String,
    /// Where the file is below the root of the export; empty if that is not known, or long.
    pub path: Vec<u8>,
}

impl Answer {
    /// Encodes the answer; None if it would be too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let numbers: [u64; NUMBERS] = [
            self.handle.inode,
            self.handle.birth,
            self.app,
            self.clock_ahead_ns as u64,
            self.stripe_bytes,
            self.forwarder_count,
            self.forwarders.len() as u64,
            self.name.len() as u64,
        ];
        let mut bytes = MAGIC.to_vec();
        for number in numbers {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.forwarders.as_bytes());
        bytes.extend(self.name.as_bytes());
        if bytes.len() + self.path.len() < ANSWER_LEN {
            bytes.extend(&self.path);
        }
        bytes.push(0);
        (bytes.len() <= ANSWER_LEN).then_some(bytes)
    }

    /// Decodes what [`encode`](Answer::encode) wrote; ignores the bytes after it.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let (head, text) = bytes.split_at_checked(HEAD)?;
        let (magic, numbers) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return None;
        }
        let number = |i: usize| -> Option<u64> {
            let bytes = numbers.get(8 * i..8 * i + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let (forwarders, rest) = text.split_at_checked(usize::try_from(number(6)?).ok()?)?;
        let (name, rest) = rest.split_at_checked(usize::try_from(number(7)?).ok()?)?;
        let path_len = rest.iter().position(|byte| *byte == 0)?;
        Some(Answer {
            handle: Handle {
                inode: number(0)?,
                birth: number(1)?,
            },
            app: number(2)?,
            clock_ahead_ns: number(3)? as i64,
            stripe_bytes: number(4)?,
            forwarder_count: number(5)?,
            forwarders: String::from_utf8(forwarders.to_vec()).ok()?,
            name: String::from_utf8(name.to_vec()).ok()?,
            path: rest[..path_len].to_vec(),
        })
    }
}

/// A line for [`Options::from_text`](crate::Options::from_text), by which this process reaches the
/// forwarders of the mount at this directory, which root or this user must serve.
pub fn reached(mount: &Path) -> io::Result<String> {
    let bytes = asked::<ANSWER_LEN>(mount, COMMAND, None)?;
    let answer = Answer::decode(&*bytes);
    let answer = answer.ok_or_else(|| io::Error::other("it does not tell of its forwarders"))?;
    Ok(answer.forwarders)
}

/// The answer of the mount at a directory to a call that returns `LEN` bytes. `place` moves the
/// descriptor that this needs for a moment.
pub(crate) fn asked<const LEN: usize>(
    mount: &Path,
    command: u32,
    place: Option<fn(OwnedFd) -> OwnedFd>,
) -> io::Result<Box<[u8; LEN]>> {
    assert_eq!(
        command >> 16 & 0x3fff,
        LEN as u32,
        "the bytes that the call says"
    );
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(mount, flags, Mode::empty())?;
    let directory = match place {
        Some(place) => place(directory),
        None => directory,
    };
    let device = rustix::fs::fstat(&directory)?.st_dev;
    let device = (rustix::fs::major(device) == 0).then(|| rustix::fs::minor(device).into());
    let mounts = fuse_mounts();
    let mut here = mounts.iter().filter(|it| Some(it.device) == device);
    if !here.any(|it| it.is_trusted()) {
        return Err(io::Error::other(
            "no mount of root or of this user is there",
        ));
    }
    let mut bytes = Box::new([0u8; LEN]);
    // SAFETY: the command says how much is written, for which there is room.
    let done = unsafe { libc::ioctl(directory.as_raw_fd(), command as _, bytes.as_mut_ptr()) };
    match done {
        0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_written_and_nothing_else_is() {
        let answer = Answer {
            handle: Handle { inode: 7, birth: 9 },
            app: u64::MAX,
            clock_ahead_ns: -3,
            stripe_bytes: 1 << 20,
            forwarder_count: 4,
            name: "climate".to_string(),
            path: b"run/out".to_vec(),
            forwarders: "unix:/run/a.sock".to_string(),
        };
        let mut bytes = answer.encode().expect("it is short");
        let len = bytes.len();
        bytes.resize(ANSWER_LEN, 0);
        assert_eq!(Answer::decode(&bytes), Some(answer.clone()));
        assert_eq!(Answer::decode(&bytes[..len - 1]), None);
        assert_eq!(Answer::decode(&[0; ANSWER_LEN]), None);
        bytes[56..64].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Answer::decode(&bytes), None);
        let long = Answer {
            path: vec![b'x'; ANSWER_LEN],
            ..answer.clone()
        };
        let mut bytes = long.encode().expect("the path is left out");
        bytes.resize(ANSWER_LEN, 0);
        assert!(Answer::decode(&bytes).is_some_and(|it| it.path.is_empty()));
        let forwarders = "x".repeat(ANSWER_LEN);
        assert_eq!(
            Answer {
                forwarders,
                ..answer
            }
            .encode(),
            None
        );
    }
}
