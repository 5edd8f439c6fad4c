//! Fresh folders, in memory where that can be.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder that goes with its last user.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let memory = Path::new("/dev/shm");
        let place = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let path = place.join(format!("tidegate-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("it is a fresh directory");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a file that is this user's alone.
    pub(crate) fn private(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("there is room");
        let mode = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("it is ours");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
