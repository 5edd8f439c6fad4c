//! Error numbers as Linux numbers them: the type, and those that the client names.

use rustix::io::Errno as Linux;
use std::fmt;
use std::io;

/// A Linux errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

#[allow(missing_docs)] // Each is the errno of its name.
impl Errno {
    pub const ACCES: Errno = Errno(Linux::ACCESS.raw_os_error());
    pub const AGAIN: Errno = Errno(Linux::AGAIN.raw_os_error());
    pub const BADF: Errno = Errno(Linux::BADF.raw_os_error());
    pub const BUSY: Errno = Errno(Linux::BUSY.raw_os_error());
    pub const CONNREFUSED: Errno = Errno(Linux::CONNREFUSED.raw_os_error());
    pub const DQUOT: Errno = Errno(Linux::DQUOT.raw_os_error());
    pub const EXIST: Errno = Errno(Linux::EXIST.raw_os_error());
    pub const FBIG: Errno = Errno(Linux::FBIG.raw_os_error());
    pub const INTR: Errno = Errno(Linux::INTR.raw_os_error());
    pub const INVAL: Errno = Errno(Linux::INVAL.raw_os_error());
    pub const IO: Errno = Errno(Linux::IO.raw_os_error());
    pub const ISDIR: Errno = Errno(Linux::ISDIR.raw_os_error());
    pub const KEYEXPIRED: Errno = Errno(Linux::KEYEXPIRED.raw_os_error());
    pub const LOOP: Errno = Errno(Linux::LOOP.raw_os_error());
    pub const MSGSIZE: Errno = Errno(Linux::MSGSIZE.raw_os_error());
    pub const NAMETOOLONG: Errno = Errno(Linux::NAMETOOLONG.raw_os_error());
    pub const NODATA: Errno = Errno(Linux::NODATA.raw_os_error());
    pub const NOENT: Errno = Errno(Linux::NOENT.raw_os_error());
    pub const NOSPC: Errno = Errno(Linux::NOSPC.raw_os_error());
    pub const NOTCONN: Errno = Errno(Linux::NOTCONN.raw_os_error());
    pub const NOTDIR: Errno = Errno(Linux::NOTDIR.raw_os_error());
    pub const NOTTY: Errno = Errno(Linux::NOTTY.raw_os_error());
    pub const OPNOTSUPP: Errno = Errno(Linux::OPNOTSUPP.raw_os_error());
    pub const PERM: Errno = Errno(Linux::PERM.raw_os_error());
    pub const PROTO: Errno = Errno(Linux::PROTO.raw_os_error());
    pub const RANGE: Errno = Errno(Linux::RANGE.raw_os_error());
    pub const ROFS: Errno = Errno(Linux::ROFS.raw_os_error());
    pub const STALE: Errno = Errno(Linux::STALE.raw_os_error());
    pub const TIMEDOUT: Errno = Errno(Linux::TIMEDOUT.raw_os_error());
    pub const TOOBIG: Errno = Errno(Linux::TOOBIG.raw_os_error());
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}
