//! Pages of a file on their way to a socket, in a pipe. This process does not copy their bytes.
//!
//! A storage thread moves the pages from the page cache into the pipe (`splice`), and waits for the
//! back end if it must. The thread of the connection moves them on when the socket has room. Pipes
//! are few and are reused. If no pipe is free, the bytes are copied.

use crate::lock::lock;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

/// The most pipes. Together they hold as many pages as the system allows a user without privileges.
const PIPES_MAX: usize = 64;
/// How many bytes a pipe holds, if they begin at a page.
const PIPE_BYTES: usize = 1 << 20;
/// The unit in which a pipe counts its bytes.
const PAGE: u64 = 4096;
/// From this many bytes on, sending pages is faster than a copy.
pub(super) const BYTES_MIN: u32 = 64 << 10;

/// The pipes of a forwarder. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Pipes {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    free: Vec<Pipe>,
    /// The number of pipes, those in use included.
    made: usize,
    /// The most pipes, if the process has few descriptors.
    most: Option<usize>,
    /// Set once the system gives no pipe, or the file system no pages.
    unable: bool,
}

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Bytes of a file that wait in a pipe to be sent.
pub struct Pages {
    pipes: Pipes,
    /// The pipe; always present until this is dropped.
    pipe: Option<Pipe>,
    left: usize,
}

impl Pipe {
    fn make() -> rustix::io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        match fcntl_setpipe_size(&write, PIPE_BYTES)? {
            len if len >= PIPE_BYTES => Ok(Pipe { read, write }),
            _ => Err(Errno::PERM),
        }
    }
}

impl Pipes {
    /// Makes no more pipes than that.
    pub(super) fn bound(&self, most: usize) {
        self.state().most = Some(most.min(PIPES_MAX));
    }

    /// Fills a pipe with the bytes from `offset` on: at most `len`, and fewer at the end of the
    /// file, which `is_end` confirms. None if the bytes must be copied instead. `calls` counts
    /// system calls.
    pub(super) fn fill(
        &self,
        file: impl AsFd,
        mut offset: u64,
        len: u32,
        mut is_end: impl FnMut(u64) -> bool,
        calls: &mut u64,
    ) -> Option<Pages> {
        let pages = (offset % PAGE + u64::from(len)).div_ceil(PAGE);
        if pages * PAGE > PIPE_BYTES as u64 {
            return None;
        }
        let mut found = Pages {
            pipes: self.clone(),
            pipe: Some(self.take()?),
            left: 0,
        };
        while found.left < len as usize {
            *calls += 1;
            let into = &found.pipe.as_ref()?.write;
            let left = len as usize - found.left;
            // There is room in the pipe; the file may make this thread wait all the same.
            match splice(
                &file,
                Some(&mut offset),
                into,
                None,
                left,
                SpliceFlags::NONBLOCK,
            ) {
                Ok(0) if is_end(offset) => break,
                // A read into memory gets beyond this point.
                Ok(0) => return None,
                Ok(moved) => found.left += moved,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL | Errno::NOSYS) => {
                    self.state().unable = true;
                    return None;
                }
                // A read into memory will return the error.
                Err(_) => return None,
            }
        }
        Some(found)
    }

    fn take(&self) -> Option<Pipe> {
        let mut state = self.state();
        if state.unable {
            return None;
        }
        if let Some(pipe) = state.free.pop() {
            return Some(pipe);
        }
        if state.made >= state.most.unwrap_or(PIPES_MAX) {
            return None;
        }
        match Pipe::make() {
            Ok(pipe) => {
                state.made += 1;
                Some(pipe)
            }
            Err(error) => {
                tracing::info!(%error, "no more pipes: some payload is copied");
                state.unable |= state.made == 0;
                None
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Pages {
    /// How many bytes are still to be sent.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Sends at most `len` bytes, and returns the number of bytes that were sent.
    pub fn send(&mut self, socket: impl AsFd, len: usize) -> io::Result<usize> {
        let Some(pipe) = &self.pipe else {
            return Ok(0);
        };
        let len = len.min(self.left);
        let sent = splice(&pipe.read, None, socket, None, len, SpliceFlags::NONBLOCK)?;
        self.left -= sent;
        Ok(sent)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let pipe = mem::take(&mut self.pipe);
        let mut state = self.pipes.state();
        match pipe.filter(|_| self.left == 0) {
            Some(pipe) => state.free.push(pipe),
            // A pipe that still contains bytes is not reused.
            None => state.made -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn pages_are_sent_whole_up_to_the_end_of_the_file() {
        let scratch = Scratch::new("pages");
        let path = scratch.path().join("file");
        let bytes = pattern(300_000);
        std::fs::write(&path, &bytes).expect("room");
        let file = File::open(&path).expect("it was written");
        let pipes = Pipes::default();
        for (offset, len) in [
            (0, 65_536),
            (1, 200_000),
            (299_000, 65_536),
            (400_000, 65_536),
        ] {
            let mut calls = 0;
            let pages = pipes.fill(&file, offset, len, |_| true, &mut calls);
            let mut pages = pages.expect("this file system gives pages");
            let wanted = &bytes[(offset as usize).min(bytes.len())..];
            let wanted = &wanted[..wanted.len().min(len as usize)];
            assert_eq!(pages.left(), wanted.len());
            assert!(calls > 0);
            let (ours, mut theirs) = UnixStream::pair().expect("sockets");
            let mut come = vec![0; wanted.len()];
            std::thread::scope(|scope| {
                scope.spawn(|| theirs.read_exact(&mut come).expect("they come"));
                while pages.left() > 0 {
                    pages.send(&ours, 10_000).expect("it is read");
                }
            });
            assert!(come == wanted, "bytes from {offset} on");
        }
        assert_eq!(pipes.state().made, 1, "the pipe is used again");
    }

    #[test]
    fn pipes_are_few_and_what_was_not_sent_is_never_sent() {
        let scratch = Scratch::new("pages-few");
        let path = scratch.path().join("file");
        std::fs::write(&path, pattern(70_000)).expect("room");
        let file = File::open(&path).expect("it was written");
        let pipes = Pipes::default();
        let fill = || pipes.fill(&file, 0, 65_536, |_| true, &mut 0);
        let mut all: Vec<Pages> = (0..PIPES_MAX + 3).map_while(|_| fill()).collect();
        assert!((1..=PIPES_MAX).contains(&all.len()));
        assert!(fill().is_none(), "they are all in use");
        all.pop();
        assert!(
            pipes.state().free.is_empty(),
            "it was full of another's bytes"
        );
        assert!(fill().is_some());
        assert!(
            pipes
                .fill(&file, 1, PIPE_BYTES as u32, |_| true, &mut 0)
                .is_none(),
            "too long"
        );
    }

    #[test]
    fn an_end_that_is_none_is_left_to_reads() {
        let scratch = Scratch::new("pages-end");
        let path = scratch.path().join("file");
        std::fs::write(&path, pattern(70_000)).expect("room");
        let file = File::open(&path).expect("it was written");
        let pipes = Pipes::default();
        let mut asked = None;
        let unproved = |at| {
            asked = Some(at);
            false
        };
        assert!(pipes.fill(&file, 8192, 65_536, unproved, &mut 0).is_none());
        assert_eq!(asked, Some(70_000));
        assert!(pipes.fill(&file, 0, 65_536, |_| false, &mut 0).is_some());
    }
}
