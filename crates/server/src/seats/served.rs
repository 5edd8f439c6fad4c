//! Whether somebody serves a directory now, for those who do not want to serve it.

use super::HELD_BYTE;
use crate::storage::ofd;
use crate::storage::posix::HIDDEN;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// Whether a live forwarder holds a seat of this directory, as far as this user may see it and the
/// locks of the file system reach.
pub fn is_served(directory: &Path) -> bool {
    let Ok(files) = std::fs::read_dir(directory.join(HIDDEN)) else {
        return false;
    };
    let names = files.flatten().map(|file| file.file_name());
    let mut seats = names.filter(|name| name.to_string_lossy().starts_with("seat."));
    seats.any(|name| {
        let file = File::open(directory.join(HIDDEN).join(name));
        file.is_ok_and(|file| matches!(ofd::held_elsewhere(file.as_fd(), HELD_BYTE), Ok(Some(_))))
    })
}
