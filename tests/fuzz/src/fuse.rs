//! Messages of a kernel to a mount whose forwarders answer anything: each request gets one answer,
//! which is as long as it says and no longer than was asked for.

use crate::{Draw, client};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tidegate_client::wire::{Attr, Handle, LockFamily, Op};
use tidegate_client::{Answer, Bytes, Context, Errno};
use tidegate_mount::fuse::Messages;
use tidegate_mount::{Forwarders, Held, file_system};

/// Messages of a run.
const MESSAGES_MAX: usize = 60;
/// Bytes of the longest message.
const MESSAGE_MAX: usize = 1 << 14;
/// Bytes before each request and before each answer.
const REQUEST_HEAD: usize = 40;
const ANSWER_HEAD: usize = 16;

const FORGET: u32 = 2;
const READ: u32 = 15;
const READDIR: u32 = 28;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const READDIRPLUS: u32 = 44;
/// The last operation that there is.
const LAST: usize = 54;

/// The device's two ends: of the mount, and of the kernel.
static DEVICE: LazyLock<Mutex<(Messages, UnixDatagram)>> = LazyLock::new(|| {
    let (mount, kernel) = UnixDatagram::pair().expect("there are descriptors");
    kernel.set_nonblocking(true).expect("it is a socket");
    Mutex::new((Messages::over(mount.into(), MESSAGE_MAX), kernel))
});

/// Forwarders whose answers these bytes choose.
struct Anything {
    bytes: Mutex<Vec<u8>>,
    handles: Vec<Handle>,
}

impl Anything {
    /// The bytes of one answer.
    fn take(&self) -> Vec<u8> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let len = bytes.len().min(48);
        let left = bytes.split_off(len);
        std::mem::replace(&mut *bytes, left)
    }
}

/// A file that is open there.
struct Open;

impl Held for Open {
    fn number(&self) -> u64 {
        1
    }

    fn attr(&self) -> Attr {
        Attr::default()
    }
}

impl Forwarders for Anything {
    fn root(&self) -> Attr {
        Attr {
            handle: self.handles[0],
            mode: 0o040_755,
            ..Attr::default()
        }
    }

    fn payload_max(&self) -> u32 {
        4096
    }

    fn call(&self, _: &Context, op: Op, payload: Bytes) -> Result<Answer, Errno> {
        if let Op::Write { extents, .. } = &op {
            assert_eq!(extents.bytes(), payload.len() as u64);
        }
        client::answer(&mut Draw::new(&self.take()), &op, &self.handles)
    }

    fn open(&self, _: &Context, _: Handle, _: bool, _: bool) -> Result<Box<dyn Held>, Errno> {
        match Draw::new(&self.take()).one_in(8) {
            true => Err(Errno::IO),
            false => Ok(Box::new(Open)),
        }
    }

    fn drop_locks(&self, _: Handle, _: LockFamily, _: u64) {}

    fn forget(&self, _: Handle) {}
}

pub(super) fn run(data: &[u8]) {
    let (asked, answered) = data.split_at(data.len() / 2);
    let handle = |inode| Handle { inode, birth: 1 };
    let forwarders = Arc::new(Anything {
        bytes: Mutex::new(answered.to_vec()),
        handles: (1..5).map(handle).collect(),
    });
    let files = file_system(forwarders, "fuzz");
    let device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let (messages, kernel) = &*device;
    let mut draw = Draw::new(asked);
    for unique in 1..=MESSAGES_MAX as u64 {
        if draw.is_over() {
            break;
        }
        let message = message(&mut draw, unique);
        messages.serve(&message, &*files);
        check(kernel, &message, unique);
    }
}

/// A message: its fields are small numbers mostly, and names.
fn message(draw: &mut Draw<'_>, unique: u64) -> Vec<u8> {
    let opcode = 1 + draw.below(LAST) as u32;
    let node = u64::from(draw.u8() % 5);
    let mut body = Vec::new();
    let shape = draw.u8();
    for _ in 0..shape % 8 {
        let word = match draw.u8() {
            small @ 0..200 => u64::from(small % 8),
            200..220 => u64::from(draw.u16()),
            _ => draw.size(),
        };
        body.extend_from_slice(&word.to_le_bytes());
    }
    if shape & 8 != 0 {
        body.extend_from_slice(draw.bytes(4));
    }
    for _ in 0..shape >> 4 & 3 {
        body.extend_from_slice(draw.of(&[&b"a"[..], b"bc", b".", b"..", b"d/e", b"", b"user.f"]));
        body.push(0);
    }
    if shape & 64 != 0 {
        body.extend_from_slice(draw.some_bytes());
    }
    let mut len = (REQUEST_HEAD + body.len()) as u32;
    if draw.one_in(32) {
        len ^= u32::from(draw.u8());
    }
    let mut message = Vec::new();
    message.extend_from_slice(&len.to_le_bytes());
    message.extend_from_slice(&opcode.to_le_bytes());
    message.extend_from_slice(&unique.to_le_bytes());
    message.extend_from_slice(&node.to_le_bytes());
    // User, group, thread, extensions: no thread is looked at.
    message.extend_from_slice(&[0; 12]);
    let extensions = if draw.one_in(32) { draw.u16() } else { 0 };
    message.extend_from_slice(&u32::from(extensions).to_le_bytes());
    message.extend_from_slice(&body);
    if draw.one_in(32) {
        message.truncate(usize::from(draw.u8()));
    }
    message
}

/// Looks at what the kernel gets.
fn check(kernel: &UnixDatagram, message: &[u8], unique: u64) {
    let word = |at: usize| {
        let bytes = message.get(at..at + 4);
        bytes.map(|it| u32::from_le_bytes(it.try_into().expect("four bytes")))
    };
    let opcode = word(4).filter(|_| message.len() >= REQUEST_HEAD);
    let mut answers = 0;
    let mut buffer = vec![0; 1 << 18];
    while let Ok(len) = kernel.recv(&mut buffer) {
        answers += 1;
        assert!(len >= ANSWER_HEAD);
        let said = u32::from_le_bytes(buffer[..4].try_into().expect("four bytes"));
        assert_eq!(said as usize, len, "the length of an answer");
        assert_eq!(buffer[8..16], unique.to_le_bytes(), "an answer to another");
        let most = match opcode {
            Some(READ | READDIR | READDIRPLUS) => word(REQUEST_HEAD + 16),
            _ => None,
        };
        let content = len - ANSWER_HEAD;
        assert!(most.is_none_or(|most| content <= most as usize), "too long");
    }
    let fits = match opcode {
        None => answers == 0,
        Some(FORGET | BATCH_FORGET | INTERRUPT) => answers <= 1,
        Some(_) => answers == 1,
    };
    assert!(fits, "{answers} answers to operation {opcode:?}");
}
