//! The folder of the memory that forwarders of one user on a node share.

use rustix::fs::{AtFlags, CWD, FileType, Mode, mkdir, statat};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// The folder, which is made if it is missing. Fails if others could change what is in it.
pub(crate) fn own_folder() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = PathBuf::from(format!("/dev/shm/tidegate-{user}"));
    make(&folder)?;
    Ok(folder)
}

fn make(folder: &Path) -> io::Result<()> {
    match mkdir(folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let found = statat(CWD, folder, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    let is_own = found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o077 == 0;
    match is_folder && is_own {
        true => Ok(()),
        false => {
            let folder = folder.display();
            let error = format!("{folder} is not a folder of this user alone; remove it");
            Err(io::Error::other(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_others_could_change_is_not_used() {
        let folder = PathBuf::from(format!("/dev/shm/tidegate-test-{}", std::process::id()));
        make(&folder).expect("made");
        make(&folder).expect("there");
        let open = std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o770));
        open.expect("own");
        assert!(make(&folder).is_err());
        std::fs::remove_dir(&folder).expect("empty");
        symlink("/tmp", &folder).expect("room");
        assert!(make(&folder).is_err());
        std::fs::remove_file(&folder).expect("own");
    }
}
