//! The open device of one mount: reads messages, writes replies.

use super::abi;
use super::interrupts::Interrupts;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::IoSlice;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_client::RawBytes;
use zerocopy::IntoBytes;

/// A reply of at most this many pieces is written without copying them together.
const PIECES_MAX: usize = 16;

pub(super) struct Connection {
    device: OwnedFd,
    pub(super) interrupts: Arc<Interrupts>,
    /// Whether the mount is gone.
    gone: AtomicBool,
}

impl Connection {
    pub(super) fn new(device: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            device,
            interrupts: Interrupts::new(),
            gone: AtomicBool::new(false),
        })
    }

    /// Waits for a message and returns its length, or `None` when the mount is gone.
    pub(super) fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match rustix::io::read(&self.device, &mut *into) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => {
                    self.gone.store(true, Ordering::Release);
                    return Ok(None);
                }
                Ok(len) => return Ok(Some(len)),
                // NOENT: the request was withdrawn between being queued and being read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Whether the mount is gone. The kernel then says of each node that it does not know it.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Answers with `pieces`. False when the kernel does not want the answer any more.
    pub(super) fn reply(&self, unique: u64, pieces: &[RawBytes<'_>]) -> bool {
        let len =
            size_of::<abi::OutHeader>() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let header = abi::OutHeader {
            len: u32::try_from(len).expect("replies are shorter than the longest request"),
            error: 0,
            unique,
        };
        let written = if pieces.len() < PIECES_MAX {
            let mut vectors = [RawBytes::default(); PIECES_MAX];
            vectors[0] = header.as_bytes().into();
            vectors[1..=pieces.len()].copy_from_slice(pieces);
            // SAFETY: they go to the kernel.
            let vectors = unsafe { RawBytes::io_slices(&vectors[..=pieces.len()]) };
            rustix::io::writev(&self.device, vectors)
        } else {
            let mut all = header.as_bytes().to_vec();
            for piece in pieces {
                let at = all.len();
                all.resize(at + piece.len(), 0);
                piece.copy_to(&mut all[at..]);
            }
            rustix::io::write(&self.device, &all)
        };
        match written {
            Ok(_) => true,
            // The caller was killed before the request was read, or the mount is gone.
            Err(Errno::NOENT | Errno::NODEV) => false,
            Err(errno) => {
                tracing::error!(unique, len, %errno, "the kernel refused a reply");
                // It must not wait for another one for ever; if it has dropped the request with
                // the refused reply, this one is ignored.
                self.reply_error(unique, Errno::IO);
                false
            }
        }
    }

    /// Tells the kernel something that it has not asked for: `what` is a number of
    /// [`abi::notice`].
    pub(super) fn notify(&self, what: i32, body: &[u8]) -> Result<(), Errno> {
        let len = size_of::<abi::OutHeader>() + body.len();
        let header = abi::OutHeader {
            len: u32::try_from(len).expect("notices are short"),
            error: what,
            unique: 0,
        };
        let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.device, &pieces)).map(drop)
    }

    /// Answers with an error. False when the kernel does not want the answer any more.
    pub(super) fn reply_error(&self, unique: u64, errno: Errno) -> bool {
        let error = match errno.raw_os_error() {
            known @ 1..=511 => known,
            // The kernel would refuse it.
            _ => Errno::IO.raw_os_error(),
        };
        let len = size_of::<abi::OutHeader>() as u32;
        let header = abi::OutHeader {
            len,
            error: -error,
            unique,
        };
        match rustix::io::write(&self.device, header.as_bytes()) {
            Ok(_) => true,
            Err(Errno::NOENT | Errno::NODEV) => false,
            Err(errno) => {
                tracing::error!(unique, error, %errno, "the kernel refused an error");
                false
            }
        }
    }
}
