//! Names of the applications that `tidegate run` started, one a line, in a file beside the
//! description of their forwarders. Forwarders know only the hashes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tidegate_client::app_id;

/// Names that a file holds; the older half is forgotten when there would be more.
const NAMES_MAX: usize = 1000;

/// Bytes of a name; longer ones are not kept.
const NAME_LEN_MAX: usize = 255;

/// Adds a name to a file, if that is possible. The program with that name runs in any case.
pub fn remember(file: &Path, name: &str) {
    let fits = name.len() <= NAME_LEN_MAX && !name.contains(char::is_control);
    let known = lines(file);
    if fits && !known.iter().any(|line| line == name) {
        // The folder may be another user's.
        let _ = add(file, &known, name);
    }
}

fn add(file: &Path, known: &[String], name: &str) -> io::Result<()> {
    let mut options = File::options();
    let options = options.create(true).mode(0o600);
    if known.len() < NAMES_MAX {
        // One call, so that two programs that start at once both are in it.
        return (options.append(true).open(file)?).write_all(format!("{name}\n").as_bytes());
    }
    let other = file.with_added_extension(std::process::id().to_string());
    let kept = &known[known.len() - NAMES_MAX / 2..];
    let text = format!("{}\n{name}\n", kept.join("\n"));
    let mut writer = options.write(true).truncate(true).open(&other)?;
    writer.write_all(text.as_bytes())?;
    fs::rename(&other, file)
}

/// The names of a file by their hashes, as forwarders write these.
pub fn read(file: &Path) -> BTreeMap<String, String> {
    let names = lines(file).into_iter();
    names
        .map(|name| (format!("{:016x}", app_id(&name)), name))
        .collect()
}

fn lines(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_their_hashes_and_the_oldest_forgotten() {
        let name = format!("tidegate-names-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("the temporary directory is ours");
        let file = folder.join("applications");
        for number in 0..3 * NAMES_MAX {
            remember(&file, &format!("job {number}"));
            assert!(lines(&file).len() <= NAMES_MAX);
        }
        remember(&file, "two\nlines");
        remember(&file, &"x".repeat(NAME_LEN_MAX + 1));
        let last = format!("job {}", 3 * NAMES_MAX - 1);
        remember(&file, &last);
        let names = read(&file);
        let name = |name: &str| names.get(&format!("{:016x}", app_id(name)));
        assert_eq!(name(&last), Some(&last));
        assert_eq!(name("job 0"), None);
        assert!(names.values().all(|name| name.starts_with("job ")));
        assert_eq!(names.len(), lines(&file).len());
        assert_eq!(fs::read_dir(&folder).expect("ours").count(), 1);
        fs::remove_dir_all(&folder).expect("ours");
        // Nowhere to write is no reason to fail.
        remember(&file, "name");
        assert!(read(&file).is_empty());
    }
}
