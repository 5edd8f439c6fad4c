//! The errnos that the core itself answers with, as Linux on x86-64 numbers them.

use crate::Errno;

pub(super) const ENOENT: Errno = Errno(2);
pub(super) const EINTR: Errno = Errno(4);
pub(super) const EIO: Errno = Errno(5);
pub(super) const E2BIG: Errno = Errno(7);
pub(super) const EAGAIN: Errno = Errno(11);
pub(super) const EINVAL: Errno = Errno(22);
pub(super) const EFBIG: Errno = Errno(27);
pub(super) const ERANGE: Errno = Errno(34);
pub(super) const ENAMETOOLONG: Errno = Errno(36);
pub(super) const EPROTO: Errno = Errno(71);
pub(super) const EMSGSIZE: Errno = Errno(90);
pub(super) const ETIMEDOUT: Errno = Errno(110);
pub(super) const ECONNREFUSED: Errno = Errno(111);
pub(super) const ESTALE: Errno = Errno(116);
