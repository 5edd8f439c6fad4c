//! A connection: a socket, and an endpoint at each end of it.
//!
//! Bytes go in messages of bounded length, at most so many as the peer has buffers for; the peer
//! tells in its messages how many it has used up. Every message begins with a key that only the
//! peer was told, because an endpoint takes messages from anybody. Payload goes by moves, to and
//! from memory that the peer has registered.
//!
//! Where the provider has no descriptor to wait for, a byte on the socket says that there is news.

mod messages;
mod moves;
mod state;
#[cfg(test)]
mod tests;

use crate::RawBytes;
use crate::domain::{Domain, Error, Registration};
use state::State;
use std::io::{self, IoSliceMut};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// How long a wait may last, so that nothing of a link is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// There is something to be taken in now.
    Not,
    /// It must be looked at again after this.
    AtMost(Duration),
    /// One of its descriptors becomes readable.
    Any,
}

/// Memory of this process that a move fills or empties.
pub struct Local {
    /// First byte.
    pub start: *mut u8,
    /// Number of bytes.
    pub len: usize,
    /// Its registration, if the domain gives one.
    pub registration: Option<Arc<Registration>>,
    /// What keeps the memory where it is.
    pub keep: Box<dyn Send>,
}

/// Memory of the peer, as the peer told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte, in the sense of its registration.
    pub address: u64,
    /// The registration's key.
    pub key: u64,
}

/// See the head of the file. For any thread; each call locks it for a moment.
pub struct Link {
    socket: Arc<OwnedFd>,
    queue: Option<RawFd>,
    domain: Arc<Domain>,
    process: u32,
    state: ManuallyDrop<Mutex<State>>,
}

impl Link {
    /// Begins on a socket that does not block, connected or about to be; both ends do the same.
    pub fn begin(domain: &Arc<Domain>, socket: Arc<OwnedFd>) -> Result<Link, Error> {
        let state = State::new(domain)?;
        Ok(Link {
            socket,
            queue: state.fd(),
            domain: Arc::clone(domain),
            process: std::process::id(),
            state: ManuallyDrop::new(Mutex::new(state)),
        })
    }

    /// What its endpoint is of.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The socket's descriptor: readable when the peer says something there, or is gone.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The other descriptor to wait for, if the provider has one.
    pub fn queue(&self) -> Option<RawFd> {
        self.queue
    }

    /// Something has happened at a descriptor: the next call looks at the socket as well.
    pub fn woken(&self) {
        self.state().socket_due = true;
    }

    /// Reads what has come: `WouldBlock` if nothing has, 0 at the end.
    pub fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.advanced();
        let read = state.read(into);
        state.ring(&self.socket);
        read
    }

    /// Takes bytes to be sent, as many as there is room for; else `WouldBlock`.
    pub fn write(&self, pieces: &[RawBytes<'_>]) -> io::Result<usize> {
        let mut state = self.state();
        // Where there is room, what has come is left to whoever waits for it. Memory of a peer that
        // is gone is not to be written to.
        if !state.has_room() || self.queue.is_none() {
            state.advance(&self.socket);
        }
        let wrote = state.write(pieces);
        state.ring(&self.socket);
        wrote
    }

    /// Whether a thread that waits must be woken, as a call of another has found something or was
    /// put off.
    pub fn wants_look(&self) -> bool {
        self.state().wants_look()
    }

    /// Fetches bytes from the peer's memory.
    ///
    /// # Safety
    /// Until [`Link::moved`] has told `number`, or the link is dropped, nobody looks at the local
    /// bytes or changes them.
    pub unsafe fn get(&self, local: Local, remote: Remote, number: u64) -> Result<(), Error> {
        self.begin_move(false, local, remote, number)
    }

    /// Puts bytes into the peer's memory. What is written afterwards arrives behind them once this
    /// is told as done.
    ///
    /// # Safety
    /// As for [`Link::get`].
    pub unsafe fn put(&self, local: Local, remote: Remote, number: u64) -> Result<(), Error> {
        self.begin_move(true, local, remote, number)
    }

    fn begin_move(
        &self,
        put: bool,
        local: Local,
        remote: Remote,
        number: u64,
    ) -> Result<(), Error> {
        let mut state = self.state();
        if self.queue.is_none() {
            state.advance(&self.socket);
        }
        let begun = state.begin_move(put, local, remote, number);
        state.ring(&self.socket);
        begun
    }

    /// The next move that is over, and what went wrong with it.
    pub fn moved(&self) -> Option<(u64, Result<(), String>)> {
        self.advanced().take_moved()
    }

    /// Lets the peer read and write this memory, until the link is dropped.
    ///
    /// # Safety
    /// The memory stays where it is, and what `keep` holds keeps it there. Nobody relies on what is
    /// in it while the peer may change it.
    pub unsafe fn offer(
        &self,
        start: *mut u8,
        len: usize,
        keep: Box<dyn Send>,
    ) -> Result<Remote, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.state().offer(start, len, keep) }
    }

    /// Whether everything that was written has been read by the peer, or never will be. Asks the
    /// peer to say so.
    pub fn is_delivered(&self) -> bool {
        let mut state = self.advanced();
        let delivered = state.is_delivered();
        state.ring(&self.socket);
        delivered
    }

    /// Whether there may be something to take in.
    pub fn has_news(&self) -> bool {
        self.advanced().has_news()
    }

    /// How long to wait for its descriptors at most. `awaits`: the peer is to move bytes. `reads`:
    /// what has come would be read.
    pub fn wait(&self, awaits: bool, reads: bool) -> Wait {
        let mut state = self.state();
        if !state.is_armed(awaits) {
            state.advance(&self.socket);
        }
        state.wait(awaits, reads)
    }

    /// Ends it for both; what was not read yet is lost.
    pub fn close(&self) {
        self.state().end("closed here");
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn advanced(&self) -> Held<'_> {
        let mut state = self.state();
        state.advance(&self.socket);
        state
    }

    fn state(&self) -> Held<'_> {
        // What a panic left behind is whole enough to be closed.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || OPEN.read().unwrap_or_else(PoisonError::into_inner);
        Held {
            state,
            _open: self.queue.is_none().then(open),
        }
    }
}

/// With the provider shm each end writes to the memory of the other, and where both are in one
/// process an endpoint that is closed takes that memory away. So nobody closes one while another
/// works, and who works looks first whether the peer's socket has ended, which it does before.
static OPEN: RwLock<()> = RwLock::new(());

/// A link's state, for one thread.
struct Held<'l> {
    state: MutexGuard<'l, State>,
    _open: Option<RwLockReadGuard<'static, ()>>,
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // In a fork child the endpoint is the parent's, and closing it would end it for both.
        if self.process == std::process::id() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
            let close = || OPEN.write().unwrap_or_else(PoisonError::into_inner);
            let _closed = self.queue.is_none().then(close);
            // SAFETY: nobody uses it any more, and it is dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
