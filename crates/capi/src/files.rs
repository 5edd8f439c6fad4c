//! Reads files that a host names: ordinary ones, and no more of them than makes sense. A pipe would
//! be waited for, and a device read without end.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The bytes of a file. One with more than `bytes_max` is refused.
pub(crate) fn read(path: impl AsRef<Path>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    // Before it is opened, which already waits for the other end of a pipe.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("is not a file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("has more than {bytes_max} bytes");
        return Err(io::Error::other(what));
    }
    Ok(bytes)
}

/// The same, of text.
pub(crate) fn read_text(path: impl AsRef<Path>, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read(path, bytes_max)?).map_err(|_| io::Error::other("is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_size_are_read() {
        let path = std::env::temp_dir().join(format!("tidegate-capi-{}", std::process::id()));
        fs::write(&path, "four").expect("a temporary file");
        assert_eq!(read_text(&path, 4).expect("it fits"), "four");
        let error = |path: &Path, max| read_text(path, max).expect_err("refused").to_string();
        assert_eq!(error(&path, 3), "has more than 3 bytes");
        fs::write(&path, b"\xff").expect("a temporary file");
        assert_eq!(error(&path, 3), "is not UTF-8");
        fs::remove_file(&path).expect("it is ours");
        assert!(error(&path, 3).starts_with("No such file"));
        assert_eq!(error(Path::new("/dev/zero"), 3), "is not a file");
        assert_eq!(error(&std::env::temp_dir(), 3), "is not a file");
    }
}
