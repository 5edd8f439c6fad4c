//! Connections over libfabric: bytes in order by messages, and payload by remote access to memory.
//!
//! A [`Link`] joins two processes. A socket brings them together: over it they tell each other the
//! addresses of their endpoints, and its end is the end of the link. Endpoints are of the kind
//! `FI_EP_RDM`, which all providers of interest have: `shm` and `cxi` have nothing else, and `tcp`
//! and `verbs` have it through `ofi_rxm`. Such endpoints know nothing of connections, hence the
//! socket.
//!
//! Without the feature `libfabric` everything is here but [`Domain::shared`], which says so.

mod domain;
mod endpoint;
mod ffi;
mod greeting;
mod link;
mod memory;
mod provider;
mod raw_bytes;

pub use domain::{Domain, Error, Registration, load};
pub use greeting::greeting_in;
pub use link::{Link, Local, Remote, Wait};
pub use provider::Provider;
pub use raw_bytes::{RawBytes, RawRoom};
