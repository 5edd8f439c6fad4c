//! MUNGE, by which the nodes of a cluster vouch for their users to each other: its daemon, munged,
//! makes and reads *credentials*, which only nodes with the cluster's key can.
//!
//! Its library is loaded when it is first asked for, so nobody needs it who does not use it. Its
//! calls wait for munged, and for many seconds where that does not answer: they belong into threads
//! that may wait.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The library.
const LIBRARY: &CStr = c"libmunge.so.2";
/// How long a credential is good, in seconds, and how far the clocks of two nodes may differ.
const TTL_S: c_int = 60;
/// Most bytes that are taken out of a credential.
const CARRIED_MAX: usize = 4096;

// Numbers of munge.h.
const OPT_CIPHER_TYPE: c_int = 0;
const OPT_ZIP_TYPE: c_int = 2;
const OPT_TTL: c_int = 4;
const OPT_SOCKET: c_int = 8;
const OPT_UID_RESTRICTION: c_int = 9;
const CIPHER_NONE: c_int = 0;
const CIPHER_DEFAULT: c_int = 1;
const ZIP_NONE: c_int = 0;
const SUCCESS: c_int = 0;
const SOCKET: c_int = 6;
const TIMEOUT: c_int = 7;
const EXPIRED: c_int = 15;
const REWOUND: c_int = 16;
const REPLAYED: c_int = 17;
const UNAUTHORIZED: c_int = 18;

/// Why munge makes no credential, or does not take one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MungeError {
    /// The library is not there, or is none.
    #[error("{0}; install MUNGE's library (Debian: libmunge2)")]
    Library(String),
    /// munged is not there, or does not answer.
    #[error("munged does not answer ({0}); does it run on this node?")]
    Daemon(String),
    /// The credential is too old.
    #[error("the credential has expired; do the clocks of the nodes agree?")]
    Expired,
    /// The credential was made later than now.
    #[error("the credential comes from the future; do the clocks of the nodes agree?")]
    Rewound,
    /// The credential was read before.
    #[error("the credential was shown before")]
    Replayed,
    /// The credential is for another user to read.
    #[error("the credential is not for this forwarder's user to read")]
    Unauthorized,
    /// Anybody on the way could have read what the credential carries.
    #[error("what the credential carries is open to others")]
    Open,
    /// Anything else, such as a credential that was made with another key.
    #[error("munge refuses: {0}")]
    Invalid(String),
}

/// Whom a credential stands for, and what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vouched {
    /// The user whose process had it made.
    pub uid: u32,
    /// The group of that process.
    pub gid: u32,
    /// What it carries.
    pub carried: Vec<u8>,
}

type Context = *mut c_void;

/// MUNGE's library, loaded.
pub struct Munge {
    ctx_create: unsafe extern "C" fn() -> Context,
    ctx_destroy: unsafe extern "C" fn(Context),
    // Both take a last argument of the type that the option says.
    ctx_set: unsafe extern "C" fn(Context, c_int, ...) -> c_int,
    ctx_get: unsafe extern "C" fn(Context, c_int, ...) -> c_int,
    ctx_strerror: unsafe extern "C" fn(Context) -> *const c_char,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    encode: unsafe extern "C" fn(*mut *mut c_char, Context, *const c_void, c_int) -> c_int,
    #[rustfmt::skip]
    decode: unsafe extern "C" fn(
        *const c_char, Context, *mut *mut c_void, *mut c_int, *mut libc::uid_t, *mut libc::gid_t,
    ) -> c_int,
}

impl Munge {
    /// The library, which is loaded by the first call that finds it.
    pub fn load() -> Result<&'static Munge, MungeError> {
        static LOADED: OnceLock<Munge> = OnceLock::new();
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let loaded = Munge::open()?;
        Ok(LOADED.get_or_init(|| loaded))
    }

    fn open() -> Result<Munge, MungeError> {
        // SAFETY: the name ends with a NUL, and the library's own code at its loading is MUNGE's.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(MungeError::Library(last_error()));
        }
        // SAFETY: these are the declarations of munge.h, the same for all of libmunge.so.2. The
        // library is never unloaded.
        unsafe {
            Ok(Munge {
                ctx_create: found(library, c"munge_ctx_create")?,
                ctx_destroy: found(library, c"munge_ctx_destroy")?,
                ctx_set: found(library, c"munge_ctx_set")?,
                ctx_get: found(library, c"munge_ctx_get")?,
                ctx_strerror: found(library, c"munge_ctx_strerror")?,
                strerror: found(library, c"munge_strerror")?,
                encode: found(library, c"munge_encode")?,
                decode: found(library, c"munge_decode")?,
            })
        }
    }

    /// Has munged make a credential of the calling process's user, which carries these bytes,
    /// encrypted, and which only the user `reader` can have read, once, for a minute. `socket` is
    /// munged's; None: the usual one.
    pub fn encode(
        &self,
        socket: Option<&Path>,
        reader: u32,
        carried: &[u8],
    ) -> Result<String, MungeError> {
        let context = ContextGuard::new(self, socket)?;
        context.set(OPT_CIPHER_TYPE, CIPHER_DEFAULT)?;
        context.set(OPT_ZIP_TYPE, ZIP_NONE)?;
        context.set(OPT_TTL, TTL_S)?;
        context.set(OPT_UID_RESTRICTION, reader.cast_signed())?;
        let len = c_int::try_from(carried.len()).map_err(|_| invalid("too long"))?;
        let mut made = null_mut();
        // SAFETY: the context is alive, the bytes are as long as is said, and the library writes
        // one pointer.
        let code = unsafe { (self.encode)(&mut made, context.raw, carried.as_ptr().cast(), len) };
        let made = Allocated(made.cast());
        context.check(code)?;
        if made.0.is_null() {
            return Err(invalid("no credential"));
        }
        // SAFETY: a credential that was made is a string.
        let text = unsafe { CStr::from_ptr(made.0.cast()) };
        text.to_str()
            .map(str::to_string)
            .map_err(|_| invalid("the credential is no text"))
    }

    /// Has munged read a credential, which must be for this process's user alone and encrypted.
    pub fn decode(&self, socket: Option<&Path>, credential: &str) -> Result<Vouched, MungeError> {
        let context = ContextGuard::new(self, socket)?;
        let credential = CString::new(credential).map_err(|_| invalid("no credential"))?;
        let (mut carried, mut len) = (null_mut(), 0);
        let (mut uid, mut gid) = (u32::MAX, u32::MAX);
        // SAFETY: the context is alive, the credential ends with a NUL, and the library writes one
        // value of its type to each of the others.
        let code = unsafe {
            (self.decode)(
                credential.as_ptr(),
                context.raw,
                &mut carried,
                &mut len,
                &mut uid,
                &mut gid,
            )
        };
        let carried = Allocated(carried);
        context.check(code)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if carried.0.is_null() || len > CARRIED_MAX {
            return Err(invalid("it carries nothing, or too much"));
        }
        let own = rustix::process::geteuid().as_raw().cast_signed();
        if context.get(OPT_CIPHER_TYPE)? == CIPHER_NONE || context.get(OPT_UID_RESTRICTION)? != own
        {
            return Err(MungeError::Open);
        }
        // SAFETY: the library has said that so many bytes are there.
        let bytes = unsafe { std::slice::from_raw_parts(carried.0.cast::<u8>(), len) };
        Ok(Vouched {
            uid,
            gid,
            carried: bytes.to_vec(),
        })
    }
}

/// What the library's calls are made with; destroyed with this.
struct ContextGuard<'a> {
    munge: &'a Munge,
    raw: Context,
}

impl ContextGuard<'_> {
    fn new<'a>(munge: &'a Munge, socket: Option<&Path>) -> Result<ContextGuard<'a>, MungeError> {
        // SAFETY: the call takes nothing.
        let raw = unsafe { (munge.ctx_create)() };
        if raw.is_null() {
            return Err(invalid("no memory"));
        }
        let context = ContextGuard { munge, raw };
        if let Some(socket) = socket {
            let path = CString::new(socket.as_os_str().as_bytes());
            let path = path.map_err(|_| invalid("its socket's path has a NUL"))?;
            // SAFETY: this option takes a string, which the library copies.
            context.check(unsafe { (munge.ctx_set)(raw, OPT_SOCKET, path.as_ptr()) })?;
        }
        Ok(context)
    }

    /// Sets an option that is a number.
    fn set(&self, option: c_int, value: c_int) -> Result<(), MungeError> {
        // SAFETY: the options that this is called with take an int, or a uid_t of the same size.
        self.check(unsafe { (self.munge.ctx_set)(self.raw, option, value) })
    }

    /// An option that is a number.
    fn get(&self, option: c_int) -> Result<c_int, MungeError> {
        let mut value: c_int = 0;
        let into: *mut c_int = &mut value;
        // SAFETY: the options that this is called with are an int, or a uid_t of the same size.
        self.check(unsafe { (self.munge.ctx_get)(self.raw, option, into) })?;
        Ok(value)
    }

    fn check(&self, code: c_int) -> Result<(), MungeError> {
        Err(match code {
            SUCCESS => return Ok(()),
            SOCKET | TIMEOUT => MungeError::Daemon(self.words(code)),
            EXPIRED => MungeError::Expired,
            REWOUND => MungeError::Rewound,
            REPLAYED => MungeError::Replayed,
            UNAUTHORIZED => MungeError::Unauthorized,
            _ => MungeError::Invalid(self.words(code)),
        })
    }

    /// What the library says of an error.
    fn words(&self, code: c_int) -> String {
        // SAFETY: the context is alive.
        let said = unsafe { (self.munge.ctx_strerror)(self.raw) };
        let said = match said.is_null() {
            // SAFETY: the call takes any number.
            true => unsafe { (self.munge.strerror)(code) },
            false => said,
        };
        match said.is_null() {
            true => format!("error {code}"),
            // SAFETY: what it says is a string, which is copied at once.
            false => unsafe { CStr::from_ptr(said) }
                .to_string_lossy()
                .into_owned(),
        }
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, and nobody has it any more.
        unsafe { (self.munge.ctx_destroy)(self.raw) }
    }
}

/// Memory that the library has allotted with malloc; null: none.
struct Allocated(*mut c_void);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: the library's caller has to free it, and nobody else has it.
        unsafe { libc::free(self.0) }
    }
}

/// A function of the library.
///
/// # Safety
/// `F` must be the type of a pointer to the function of that name.
unsafe fn found<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, MungeError> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a pointer");
    // SAFETY: the library is loaded, and the name ends with a NUL.
    let at = unsafe { libc::dlsym(library, name.as_ptr()) };
    if at.is_null() {
        return Err(MungeError::Library(last_error()));
    }
    // SAFETY: it has the size of a pointer to a function, and by the caller's word its type.
    Ok(unsafe { transmute_copy(&at) })
}

/// What the loader says of the last error in this thread.
fn last_error() -> String {
    // SAFETY: the call takes nothing; what it says is a string, which is copied at once.
    unsafe {
        let said = libc::dlerror();
        match said.is_null() {
            true => format!("{} cannot be loaded", LIBRARY.to_string_lossy()),
            false => CStr::from_ptr(said).to_string_lossy().into_owned(),
        }
    }
}

fn invalid(what: &str) -> MungeError {
    MungeError::Invalid(what.to_string())
}

#[cfg(test)]
mod tests;
