//! The shim's calls, as `shim.h` declares them.

use std::ffi::{c_char, c_int, c_void};

/// A fabric and a domain of it.
#[repr(C)]
pub(crate) struct RawDomain {
    _opaque: [u8; 0],
}

/// An endpoint with its queue of completions.
#[repr(C)]
pub(crate) struct RawEndpoint {
    _opaque: [u8; 0],
}

/// Registered memory.
#[repr(C)]
pub(crate) struct RawMemory {
    _opaque: [u8; 0],
}

/// `struct tgf_facts`.
#[repr(C)]
pub(crate) struct Facts {
    pub(crate) provider: *const c_char,
    pub(crate) name: *const c_char,
    pub(crate) message_max: u64,
    pub(crate) local: c_int,
    pub(crate) bound: c_int,
}

/// `struct tgf_done`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) number: u64,
    pub(crate) len: u64,
    pub(crate) error: c_int,
}

/// `struct tgf_place`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct RawPlace {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// The shim's calls; without it they are there too, and nobody comes to call them but
/// [`tgf_load`], which says so.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[cfg(feature = "libfabric")]
        unsafe extern "C" {
            pub(crate) fn tgf_load() -> *const c_char;
            $(pub(crate) fn $name($($argument: $type),*) $(-> $result)?;)*
        }
        $(
            #[cfg(not(feature = "libfabric"))]
            #[allow(clippy::too_many_arguments, reason = "as many as the shim's have")]
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                $(let _ = $argument;)*
                unreachable!("without libfabric there is no domain, and nothing else")
            }
        )*
    };
}

/// Why there is no libfabric.
#[cfg(not(feature = "libfabric"))]
pub(crate) unsafe fn tgf_load() -> *const c_char {
    c"this program was built without it; build with `--features fabric`".as_ptr()
}

calls! {
    fn tgf_version() -> u32;
    fn tgf_text(code: c_int) -> *const c_char;
    fn tgf_open(
        provider: *const c_char,
        node: *const c_char,
        out: *mut *mut RawDomain,
    ) -> c_int;
    fn tgf_close(domain: *mut RawDomain);
    fn tgf_facts(domain: *const RawDomain, facts: *mut Facts);
    fn tgf_ep_open(
        domain: *mut RawDomain,
        name: *const c_char,
        entries: usize,
        out: *mut *mut RawEndpoint,
    ) -> c_int;
    fn tgf_ep_close(ep: *mut RawEndpoint);
    fn tgf_ep_fd(ep: *const RawEndpoint) -> c_int;
    fn tgf_ep_name(ep: *mut RawEndpoint, name: *mut c_void, len: *mut usize) -> c_int;
    fn tgf_ep_peer(ep: *mut RawEndpoint, name: *const c_void) -> c_int;
    fn tgf_send(
        ep: *mut RawEndpoint,
        bytes: *const c_void,
        len: usize,
        mr: *mut RawMemory,
        number: u64,
    ) -> c_int;
    fn tgf_receive(
        ep: *mut RawEndpoint,
        bytes: *mut c_void,
        len: usize,
        mr: *mut RawMemory,
        number: u64,
    ) -> c_int;
    fn tgf_move(
        ep: *mut RawEndpoint,
        put: c_int,
        bytes: *mut c_void,
        len: usize,
        mr: *mut RawMemory,
        address: u64,
        key: u64,
        number: u64,
    ) -> c_int;
    fn tgf_poll(ep: *mut RawEndpoint, done: *mut Done) -> c_int;
    fn tgf_may_wait(ep: *mut RawEndpoint) -> c_int;
    fn tgf_register(
        domain: *mut RawDomain,
        ep: *mut RawEndpoint,
        bytes: *mut c_void,
        len: usize,
        remote: c_int,
        wanted: u64,
        out: *mut *mut RawMemory,
        place: *mut RawPlace,
    ) -> c_int;
    fn tgf_unregister(mr: *mut RawMemory);
}
