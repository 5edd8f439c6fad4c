//! The machine of a run, in words.

use std::path::Path;

/// This machine, as far as figures depend on it; the file system is the one of `dir`.
pub fn words(dir: &Path) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let uname = rustix::system::uname();
    format!(
        "{cores} cores ({}), {} GiB, Linux {}, files on {}",
        processor(&read("/proc/cpuinfo")),
        number_of(&read("/proc/meminfo"), "MemTotal") >> 20,
        uname.release().to_string_lossy(),
        file_system(&read("/proc/self/mountinfo"), dir),
    )
}

fn processor(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line
        .and_then(|line| line.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    name.trim().to_string()
}

fn number_of(text: &str, key: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(key))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The type of the file system that is mounted nearest above a directory.
fn file_system(mountinfo: &str, dir: &Path) -> String {
    let of_line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.to_string();
        let kind = after.split(' ').next()?.to_string();
        dir.starts_with(&point).then_some((point.len(), kind))
    };
    // Of several mounts at one place the last one is seen.
    let nearest = mountinfo
        .lines()
        .filter_map(of_line)
        .max_by_key(|(len, _)| *len);
    nearest.map_or("an unknown file system".to_string(), |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts() {
        let text =
            "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tmp rw,nosuid shared:2 - tmpfs t rw\n";
        assert_eq!(file_system(text, Path::new("/tmp/x")), "tmpfs");
        assert_eq!(file_system(text, Path::new("/tmpfile")), "ext4");
        assert_eq!(file_system("", Path::new("/")), "an unknown file system");
    }

    #[test]
    fn this_machine_can_be_named() {
        let words = words(Path::new("/"));
        assert!(
            words.contains("cores (") && words.contains("Linux "),
            "{words}"
        );
        assert_eq!(number_of("MemTotal:  2048 kB\n", "MemTotal"), 2048);
        assert_eq!(processor("x: 1\nmodel name\t: A B\n"), "A B");
    }
}
