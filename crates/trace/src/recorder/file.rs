//! The file of a recorder: new, or a trace that is gone on with.

use crate::format::BLOCK_LEN;
use crate::reader::Reader;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file to record into. It is locked, readable by its owner only, and ends with a whole
/// block.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true).mode(0o600);
    // A pipe without a reader is an error then, not a wait, and one that is full takes nothing.
    options.custom_flags(libc::O_NONBLOCK);
    let file = options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => {
                io::Error::other("a pipe that nobody reads; start its reader first")
            }
            _ => error,
        })?;
    let found = file.metadata()?;
    if !found.is_file() {
        let kind = found.file_type();
        return match kind.is_fifo() || kind.is_char_device() {
            true => Ok(file),
            false => Err(io::Error::other("neither a file nor a pipe; name another")),
        };
    }
    match file.try_lock() {
        // Where the file system has no locks, one recorder a file is the user's care.
        Ok(()) | Err(TryLockError::Error(_)) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(io::Error::other(
                "another forwarder records into it; each needs a file of its own",
            ));
        }
    }
    let len = file.metadata()?.len();
    if len > 0 {
        let reader = Reader::new(File::open(path)?, "it exists");
        reader.map_err(|error| {
            io::Error::other(format!("{error}; name another file, or remove it"))
        })?;
        // What a killed recorder wrote last may be part of a block.
        file.set_len(len - len % BLOCK_LEN as u64)?;
    }
    Ok(file)
}
