//! An endpoint for one peer and its queue of completions.

use crate::domain::{Domain, Error, Registration, check, text};
use crate::ffi;
use std::ffi::{CString, c_int};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// EAGAIN, as libfabric says it.
const AGAIN: c_int = -11;
/// Longest name of an endpoint.
pub(crate) const NAME_MAX: usize = 512;

/// See the head of the file. Used by one thread at a time.
pub(crate) struct Endpoint {
    raw: NonNull<ffi::RawEndpoint>,
    fd: Option<RawFd>,
    pub(crate) domain: Arc<Domain>,
}

// SAFETY: no thread owns it; the link that has it calls from one at a time.
unsafe impl Send for Endpoint {}

/// An operation that is over.
pub(crate) struct Done {
    /// What it was begun with.
    pub(crate) number: u64,
    /// Bytes of a message that came.
    pub(crate) len: usize,
    /// What went wrong.
    pub(crate) error: Option<String>,
}

impl Endpoint {
    /// Takes messages from now on. `entries`: most operations under way.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        name: Option<&str>,
        entries: usize,
    ) -> Result<Endpoint, Error> {
        let name = name.map(|name| CString::new(name).expect("names have no zeros"));
        let name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open, the name lives through the call, `raw` takes what it makes.
        let code = unsafe { ffi::tgf_ep_open(domain.raw(), name, entries, &raw mut raw) };
        check("opening an endpoint", code)?;
        let raw = NonNull::new(raw).expect("a code of 0 comes with an endpoint");
        // SAFETY: it was just made.
        let fd = unsafe { ffi::tgf_ep_fd(raw.as_ptr()) };
        Ok(Endpoint {
            raw,
            fd: (fd >= 0).then_some(fd),
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn raw(&self) -> *mut ffi::RawEndpoint {
        self.raw.as_ptr()
    }

    /// Becomes readable with a completion; None where the provider has no such thing.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.fd
    }

    /// Its address, for the peer.
    pub(crate) fn name(&self) -> Result<Vec<u8>, Error> {
        let mut name = vec![0; NAME_MAX];
        let mut len = name.len();
        // SAFETY: there is room for `len` bytes.
        let code = unsafe { ffi::tgf_ep_name(self.raw(), name.as_mut_ptr().cast(), &raw mut len) };
        check("asking for an endpoint's address", code)?;
        name.truncate(len);
        Ok(name)
    }

    /// Messages and moves go to the peer of this address from now on.
    pub(crate) fn join(&mut self, name: &[u8]) -> Result<(), Error> {
        // Providers read an address of their own kind's length, whatever came.
        let mut padded = [0; NAME_MAX];
        let len = name.len().min(NAME_MAX - 1);
        padded[..len].copy_from_slice(&name[..len]);
        // SAFETY: longer than any address, and its end is zero.
        let code = unsafe { ffi::tgf_ep_peer(self.raw(), padded.as_ptr().cast()) };
        check("the peer's address", code)
    }

    /// Begins to send; false: not now.
    ///
    /// # Safety
    /// The bytes stay as they are until the operation is over or the endpoint is closed.
    pub(crate) unsafe fn send(
        &mut self,
        bytes: *const u8,
        len: usize,
        memory: Option<&Registration>,
        number: u64,
    ) -> Result<bool, Error> {
        let memory = memory.map_or(ptr::null_mut(), Registration::raw);
        // SAFETY: the caller's promise.
        let code = unsafe { ffi::tgf_send(self.raw(), bytes.cast(), len, memory, number) };
        begun("sending", code)
    }

    /// Takes the next message there; false: not now.
    ///
    /// # Safety
    /// The bytes are the endpoint's until the operation is over or the endpoint is closed.
    pub(crate) unsafe fn receive(
        &mut self,
        bytes: *mut u8,
        len: usize,
        memory: Option<&Registration>,
        number: u64,
    ) -> Result<bool, Error> {
        let memory = memory.map_or(ptr::null_mut(), Registration::raw);
        // SAFETY: the caller's promise.
        let code = unsafe { ffi::tgf_receive(self.raw(), bytes.cast(), len, memory, number) };
        begun("receiving", code)
    }

    /// Begins to move bytes to (`put`) or from the peer's memory; false: not now.
    ///
    /// # Safety
    /// The bytes are the endpoint's until the operation is over or the endpoint is closed.
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn move_bytes(
        &mut self,
        put: bool,
        bytes: *mut u8,
        len: usize,
        memory: Option<&Registration>,
        (address, key): (u64, u64),
        number: u64,
    ) -> Result<bool, Error> {
        let memory = memory.map_or(ptr::null_mut(), Registration::raw);
        let put = put.into();
        // SAFETY: the caller's promise.
        let code = unsafe {
            ffi::tgf_move(
                self.raw(),
                put,
                bytes.cast(),
                len,
                memory,
                address,
                key,
                number,
            )
        };
        begun("reaching for the peer's memory", code)
    }

    /// The next operation that is over, if one is.
    pub(crate) fn poll(&mut self) -> Result<Option<Done>, Error> {
        let mut done = ffi::Done::default();
        // SAFETY: `done` is the place of what it tells.
        let code = unsafe { ffi::tgf_poll(self.raw(), &raw mut done) };
        match code {
            0 => Ok(None),
            1 => Ok(Some(Done {
                number: done.number,
                len: done.len as usize,
                error: (done.error != 0).then(|| text(done.error)),
            })),
            code => Err(check("the queue of completions", code).expect_err("it is not 0")),
        }
    }

    /// Whether a wait for the descriptor ends with the next completion.
    pub(crate) fn may_wait(&mut self) -> bool {
        // SAFETY: it is open.
        unsafe { ffi::tgf_may_wait(self.raw()) != 0 }
    }
}

fn begun(what: &'static str, code: c_int) -> Result<bool, Error> {
    match code {
        0 => Ok(true),
        AGAIN => Ok(false),
        code => Err(check(what, code).expect_err("it is not 0")),
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and dropped once.
        unsafe { ffi::tgf_ep_close(self.raw.as_ptr()) };
    }
}
