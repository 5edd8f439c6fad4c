//! Files that hold a secret: used only if nobody but their owner can read them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The file's bytes without white space at the end; the error is words for behind the path.
pub(crate) fn read_private(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    let mode = std::fs::metadata(path)
        .map_err(cannot)?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        return Err("can be read by others; `chmod 600` it".to_string());
    }
    let mut bytes = std::fs::read(path).map_err(cannot)?;
    bytes.truncate(bytes.trim_ascii_end().len());
    Ok(bytes)
}
