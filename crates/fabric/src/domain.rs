//! A provider of libfabric on one network of this node, and memory that is registered with it.

use crate::ffi;
use crate::provider::Provider;
use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::IpAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

/// What libfabric cannot do, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no libfabric.
    #[error("no libfabric: {0}")]
    Absent(String),
    /// No fabric of the provider.
    #[error("libfabric has no provider {provider} here ({why}); `fi_info -l` lists what there is")]
    Provider {
        /// Its name.
        provider: &'static str,
        /// What libfabric says.
        why: String,
    },
    /// A call was refused.
    #[error("libfabric: {what}: {why}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// What libfabric says.
        why: String,
    },
    /// The peer speaks another language.
    #[error("{0}")]
    Peer(String),
}

/// What libfabric says about one of its codes.
pub(crate) fn text(code: c_int) -> String {
    // SAFETY: a plain number; the library was loaded before it gave one.
    string(unsafe { ffi::tgf_text(code) })
}

pub(crate) fn check(what: &'static str, code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        code => Err(Error::Call {
            what,
            why: text(code),
        }),
    }
}

fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a text of libfabric's, which ends with zero and lives while it is copied.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// A provider, open.
pub struct Domain {
    raw: NonNull<ffi::RawDomain>,
    provider: Provider,
    name: String,
    /// Largest message or move, bytes.
    pub(crate) message_max: u64,
    local: bool,
    bound: bool,
}

// SAFETY: it was asked for with FI_THREAD_SAFE: any thread may call with its objects.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// Loads libfabric, which takes tenths of a second the first time, and longer on a busy machine.
pub fn load() -> Result<(), Error> {
    // SAFETY: no arguments.
    let trouble = unsafe { ffi::tgf_load() };
    match trouble.is_null() {
        true => Ok(()),
        false => Err(Error::Absent(string(trouble))),
    }
}

/// Domains that are open, by process: a fork child's are its own. Few, and never closed: to open
/// one takes milliseconds.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

struct Open {
    process: u32,
    node: Option<IpAddr>,
    domain: Arc<Domain>,
}

impl Domain {
    /// The domain of a provider, on the network of a local address if it has such.
    pub fn shared(provider: Provider, local: Option<IpAddr>) -> Result<Arc<Domain>, Error> {
        let node = local.filter(|_| provider.speaks_ip());
        let process = std::process::id();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |one: &&Open| {
            one.process == process && one.node == node && one.domain.provider == provider
        };
        if let Some(found) = open.iter().find(same) {
            return Ok(Arc::clone(&found.domain));
        }
        let domain = Arc::new(Domain::open(provider, node)?);
        open.push(Open {
            process,
            node,
            domain: Arc::clone(&domain),
        });
        Ok(domain)
    }

    fn open(provider: Provider, node: Option<IpAddr>) -> Result<Domain, Error> {
        load()?;
        let name = CString::new(provider.name()).expect("names have no zeros");
        let node = node.map(|node| CString::new(node.to_string()).expect("nor have addresses"));
        let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        let mut raw = ptr::null_mut();
        // SAFETY: both texts live through the call, and `raw` takes what it makes.
        let code = unsafe { ffi::tgf_open(name.as_ptr(), node, &raw mut raw) };
        let raw = match (code, NonNull::new(raw)) {
            (0, Some(raw)) => raw,
            (code, _) => {
                return Err(Error::Provider {
                    provider: provider.name(),
                    why: text(code),
                });
            }
        };
        let mut facts = ffi::Facts {
            provider: ptr::null(),
            name: ptr::null(),
            message_max: 0,
            local: 0,
            bound: 0,
        };
        if provider == Provider::Shm {
            remove_left();
        }
        // SAFETY: the domain was just made; `facts` is its place.
        unsafe { ffi::tgf_facts(raw.as_ptr(), &raw mut facts) };
        Ok(Domain {
            raw,
            provider,
            name: string(facts.provider),
            message_max: facts.message_max,
            local: facts.local != 0,
            bound: facts.bound != 0,
        })
    }

    /// The provider that was asked for.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The provider in libfabric's words, with what it is layered over: `tcp;ofi_rxm`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of libfabric, as `1.17`.
    pub fn version(&self) -> String {
        // SAFETY: the library is loaded, or there were no domain.
        let version = unsafe { ffi::tgf_version() };
        format!("{}.{}", version >> 16, version & 0xffff)
    }

    pub(crate) fn raw(&self) -> *mut ffi::RawDomain {
        self.raw.as_ptr()
    }

    /// Registers memory of this process for moves from here; peers cannot reach it. None where the
    /// provider does not want that.
    ///
    /// # Safety
    /// The memory stays where it is until the registration is dropped.
    pub unsafe fn register(
        self: &Arc<Domain>,
        bytes: *mut u8,
        len: usize,
    ) -> Result<Option<Registration>, Error> {
        if self.bound && !self.local {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let made = unsafe { Registration::new(self, ptr::null_mut(), bytes, len, false) };
        made.map(Some)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made by `open`; endpoints and registrations hold the domain, so none is left.
        unsafe { ffi::tgf_close(self.raw.as_ptr()) };
    }
}

/// What the name of an endpoint of the provider shm begins with; the process follows.
pub(crate) const SHM_NAME: &str = "tidegate.";

/// Removes what endpoints of processes that were killed have left in `/dev/shm`.
pub(crate) fn remove_left() {
    let Ok(folder) = std::fs::read_dir("/dev/shm") else {
        return;
    };
    for entry in folder.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(SHM_NAME));
        let process = process.and_then(|rest| rest.split_once('.')?.0.parse().ok());
        let Some(process) = process.and_then(Pid::from_raw) else {
            continue;
        };
        if rustix::process::test_kill_process(process) == Err(Errno::SRCH) {
            // What is not ours stays for its user.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Memory that is registered until this is dropped.
pub struct Registration {
    raw: NonNull<ffi::RawMemory>,
    /// What peers need to find it: the address of its first byte, and a key.
    pub(crate) address: u64,
    pub(crate) key: u64,
    pub(crate) domain: Arc<Domain>,
}

// SAFETY: as for the domain.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// Keys that are ours to choose are tried so often before it is somebody else's fault.
const KEYS_MAX: u32 = 8;

impl Registration {
    /// # Safety
    /// The memory stays where it is until the registration is dropped. `endpoint` is null, or an
    /// endpoint that is closed after that.
    pub(crate) unsafe fn new(
        domain: &Arc<Domain>,
        endpoint: *mut ffi::RawEndpoint,
        bytes: *mut u8,
        len: usize,
        remote: bool,
    ) -> Result<Registration, Error> {
        let (mut code, mut place) = (0, ffi::RawPlace::default());
        for _ in 0..KEYS_MAX {
            // Not to be guessed where the provider takes ours. Some take no more than 32 bits.
            let wanted = getrandom::u32().map_err(|error| Error::Call {
                what: "a random key",
                why: error.to_string(),
            })?;
            let mut raw = ptr::null_mut();
            // SAFETY: the caller's promise; the other pointers live through the call.
            code = unsafe {
                ffi::tgf_register(
                    domain.raw(),
                    endpoint,
                    bytes.cast(),
                    len,
                    remote.into(),
                    wanted.into(),
                    &raw mut raw,
                    &raw mut place,
                )
            };
            if let (0, Some(raw)) = (code, NonNull::new(raw)) {
                return Ok(Registration {
                    raw,
                    address: place.address,
                    key: place.key,
                    domain: Arc::clone(domain),
                });
            }
        }
        let why = match code {
            0 => "it gave nothing".to_string(),
            code => text(code),
        };
        Err(Error::Call {
            what: "registering memory (is there a limit on locked memory, ulimit -l?)",
            why,
        })
    }

    /// Whether it is of this domain.
    pub fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    pub(crate) fn raw(&self) -> *mut ffi::RawMemory {
        self.raw.as_ptr()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and dropped once.
        unsafe { ffi::tgf_unregister(self.raw.as_ptr()) };
    }
}
