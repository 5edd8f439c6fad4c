//! What requests were like since the last reset, for the interfaces of AGIOS that ask for it.

use super::table::Key;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Files that are told apart; requests to others count, but for their distances.
const FILES_MAX: usize = 65_536;

/// Counts since the last reset.
#[derive(Default)]
pub(super) struct Metrics {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) bytes: u64,
    pub(super) len_max: u64,
    pub(super) served_bytes: u64,
    first_ns: u64,
    last_ns: u64,
    /// Where the last read and the last write of a file ended.
    files: HashMap<u64, [Option<i64>; 2]>,
    distance: u128,
    distances: u64,
}

impl Metrics {
    pub(super) fn arrived(&mut self, key: &Key, now_ns: u64) {
        let len = key.len as u64;
        if self.requests() == 0 {
            self.first_ns = now_ns;
        }
        self.last_ns = now_ns.max(self.last_ns);
        match key.write {
            true => self.writes += 1,
            false => self.reads += 1,
        }
        self.bytes = self.bytes.saturating_add(len);
        self.len_max = self.len_max.max(len);
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&key.file) {
            return;
        }
        let ends = self.files.entry(key.file).or_default();
        let end = &mut ends[usize::from(key.write)];
        if let Some(end) = *end {
            self.distance += u128::from(key.offset.abs_diff(end));
            self.distances += 1;
        }
        *end = Some(key.offset.saturating_add(key.len));
    }

    pub(super) fn served(&mut self, len: i64) {
        self.served_bytes = self.served_bytes.saturating_add(len as u64);
    }

    pub(super) fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Nanoseconds between requests, the mean.
    pub(super) fn between_ns(&self) -> u64 {
        let gaps = self.requests().saturating_sub(1).max(1);
        self.last_ns.saturating_sub(self.first_ns) / gaps
    }

    /// Bytes of a request, the mean.
    pub(super) fn len_mean(&self) -> u64 {
        self.bytes / self.requests().max(1)
    }

    pub(super) fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Bytes from where one request of a file ended to where the next of that direction began.
    pub(super) fn distance_mean(&self) -> u64 {
        let mean = self.distance / u128::from(self.distances.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    /// A line for each number.
    pub(super) fn to_text(&self, algorithm: &str) -> String {
        let mut text = format!("algorithm {algorithm}\n");
        for (name, number) in [
            ("requests", self.requests()),
            ("reads", self.reads),
            ("writes", self.writes),
            ("bytes", self.bytes),
            ("served_bytes", self.served_bytes),
            ("mean_bytes", self.len_mean()),
            ("max_bytes", self.len_max),
            ("mean_ns_between", self.between_ns()),
            ("files", self.files()),
            ("mean_distance_bytes", self.distance_mean()),
        ] {
            writeln!(text, "{name} {number}").expect("strings take all");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(file: u64, offset: i64, write: bool) -> Key {
        let len = 100;
        Key {
            file,
            offset,
            len,
            write,
        }
    }

    #[test]
    fn means_are_of_what_came_since_the_reset() {
        let mut metrics = Metrics::default();
        assert_eq!(
            (metrics.len_mean(), metrics.between_ns(), metrics.files()),
            (0, 0, 0)
        );
        metrics.arrived(&key(1, 0, false), 1000);
        metrics.arrived(&key(1, 500, true), 2000);
        // 50 before where the last read of the file ended, and 100 behind.
        metrics.arrived(&key(1, 50, false), 4000);
        metrics.arrived(&key(1, 250, false), 7000);
        metrics.arrived(&key(2, 0, false), 9000);
        metrics.served(100);
        assert_eq!((metrics.reads, metrics.writes), (4, 1));
        assert_eq!((metrics.bytes, metrics.served_bytes), (500, 100));
        assert_eq!((metrics.len_mean(), metrics.between_ns()), (100, 2000));
        assert_eq!((metrics.files(), metrics.distance_mean()), (2, 75));
        assert!(
            metrics
                .to_text("SJF")
                .starts_with("algorithm SJF\nrequests 5\n")
        );
    }

    #[test]
    fn the_table_of_files_is_bounded() {
        let mut metrics = Metrics::default();
        for file in 0..FILES_MAX as u64 + 10 {
            metrics.arrived(&key(file, 0, false), 0);
        }
        assert_eq!(metrics.files(), FILES_MAX as u64);
        assert_eq!(metrics.requests(), FILES_MAX as u64 + 10);
    }
}
