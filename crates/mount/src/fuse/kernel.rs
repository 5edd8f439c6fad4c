//! Tells the kernel what it must not cache any more.

use super::abi;
use super::connection::Connection;
use rustix::io::Errno;
use std::sync::{Arc, Once, Weak};
use zerocopy::IntoBytes;

/// The kernel's side of a mount. Tells it nothing more once the mount is gone.
#[derive(Clone)]
pub struct Kernel {
    connection: Weak<Connection>,
}

impl Kernel {
    pub(super) fn of(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::downgrade(connection),
        }
    }

    /// Makes the kernel forget the attributes of a node, also those in answers to requests that it
    /// has made before and not finished. False: it does not know the node, or not yet. Takes no
    /// lock that a program holds while it waits for an answer.
    pub fn forget_attributes(&self, node: u64) -> bool {
        let Some(connection) = self.connection.upgrade() else {
            return true;
        };
        let notice = abi::InvalidInodeOut {
            node,
            // No bytes of the file, only the attributes.
            offset: -1,
            len: 0,
        };
        match connection.notify(abi::notice::INVALID_INODE, notice.as_bytes()) {
            Ok(()) => true,
            Err(_) if connection.is_gone() => true,
            Err(Errno::NOENT) => false,
            Err(errno) => {
                static WARNED: Once = Once::new();
                WARNED.call_once(|| tracing::warn!(node, %errno, "the kernel takes no notice"));
                false
            }
        }
    }
}
