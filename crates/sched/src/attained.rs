//! What each application has had of all forwarders together.
//!
//! The policies `auto` and `least-attained` share this block. What counts is what this forwarder
//! took, and what clients report of the others, so forwarders come to about the same sums without
//! talking to each other. An application with nothing waiting that sent nothing for [`QUIET_MS`]
//! begins anew: its next burst is another operation.
//!
//! Sums are in levels, each ten times as wide as the one before, from [`LEVEL_MIB`] on (D-CLAS:
//! Chowdhury and Stoica, SIGCOMM'15).

use crate::flat_btree::FlatBTree;
use crate::options::Options;
use crate::policy_options::OptionSpec;
use crate::types::{AppId, Request, Time};
use alloc::vec::Vec;

/// The default is Aalo's.
pub(crate) const LEVEL_MIB: OptionSpec = OptionSpec::integer(
    "level_mib",
    10,
    [1, 1 << 20],
    "an application that has had less than so many MiB of all forwarders is in the first level; \
     each further level reaches ten times as far",
);

pub(crate) const QUIET_MS: OptionSpec = OptionSpec::integer(
    "quiet_ms",
    1000,
    [1, 3_600_000],
    "an application that has sent nothing for so many milliseconds, and has nothing waiting, \
     begins anew",
);

/// With so many applications those that are quiet are forgotten, or else all that wait for nothing.
const APPS_MAX: usize = 4096;

/// What an application has had.
#[derive(Clone, Copy, Default)]
struct Had {
    bytes: u64,
    /// Requests of it that wait here.
    waiting: u32,
    /// When a request of it last came, or left the queue.
    at: Time,
}

/// What all applications have had.
pub(crate) struct Attained {
    level_bytes: u64,
    quiet_ns: u64,
    by_app: FlatBTree<u64, Had>,
    /// With so many applications those that wait for nothing are looked for.
    most: usize,
}

impl Attained {
    /// Nothing yet; levels and pauses by [`LEVEL_MIB`] and [`QUIET_MS`].
    pub(crate) fn new(options: &Options) -> Attained {
        Attained {
            level_bytes: options.table.integer(&LEVEL_MIB) << 20,
            quiet_ns: options.table.integer(&QUIET_MS) * 1_000_000,
            by_app: FlatBTree::new(),
            most: APPS_MAX,
        }
    }

    fn find(&self, app: AppId) -> Option<Had> {
        let found = self.by_app.at_or_after(&app.0);
        found.filter(|(key, _)| *key == app.0).map(|(_, had)| had)
    }

    fn is_quiet(&self, had: &Had, now: Time) -> bool {
        had.waiting == 0 && now.since(had.at) >= self.quiet_ns
    }

    /// Counts a request that came, and returns the bytes that its application had before it.
    pub(crate) fn came(&mut self, request: &Request, now: Time) -> u64 {
        let found = self.find(request.app);
        if found.is_none() && self.by_app.len() >= self.most {
            self.forget(now);
        }
        let mut had = found.unwrap_or_default();
        if self.is_quiet(&had, now) {
            had.bytes = 0;
        }
        // What its client tells of a time before the pause belongs to what was before.
        let is_recent = u64::from(request.away_ms) * 1_000_000 < self.quiet_ns;
        let elsewhere = if is_recent {
            request.bytes_elsewhere
        } else {
            0
        };
        let before = had.bytes.saturating_add(elsewhere);
        // A change of the file as a whole moves no bytes.
        let len = if request.len == u64::MAX {
            0
        } else {
            request.len
        };
        had.bytes = before.saturating_add(len);
        had.waiting += 1;
        had.at = had.at.max(now);
        self.by_app.insert(request.app.0, had);
        before
    }

    /// A request leaves the queue.
    pub(crate) fn left(&mut self, request: &Request, now: Time) {
        if let Some(mut had) = self.find(request.app) {
            had.waiting = had.waiting.saturating_sub(1);
            had.at = had.at.max(now);
            self.by_app.insert(request.app.0, had);
        }
    }

    /// Makes room: for those that are quiet, or else for those that wait for nothing. Looks again
    /// when there are twice as many, so that it costs little for each that came.
    fn forget(&mut self, now: Time) {
        let all: Vec<(u64, Had)> = self.by_app.iter().collect();
        let quiet = all.iter().filter(|(_, had)| self.is_quiet(had, now));
        let mut gone: Vec<u64> = quiet.map(|(app, _)| *app).collect();
        if gone.is_empty() {
            let idle = all.iter().filter(|(_, had)| had.waiting == 0);
            gone.extend(idle.map(|(app, _)| *app));
        }
        for app in gone {
            self.by_app.remove(&app);
        }
        self.most = APPS_MAX.max(2 * self.by_app.len());
    }

    /// The level of a sum, from 0.
    pub(crate) fn level(&self, bytes: u64) -> u64 {
        (bytes / self.level_bytes)
            .checked_ilog10()
            .map_or(0, |log| u64::from(log) + 1)
    }

    /// The least bytes that are in the level of a sum.
    pub(crate) fn level_start(&self, bytes: u64) -> u64 {
        let log = (bytes / self.level_bytes).checked_ilog10();
        log.map_or(0, |log| self.level_bytes * 10u64.pow(log))
    }

    /// The least bytes of its doubling; 0 in the first level.
    pub(crate) fn doubling_start(&self, bytes: u64) -> u64 {
        let log = (bytes / self.level_bytes).checked_ilog2();
        log.map_or(0, |log| self.level_bytes << log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::read;

    const MIB: u64 = 1 << 20;

    fn attained() -> Attained {
        Attained::new(&Options::for_policy("least-attained"))
    }

    #[test]
    fn applications_that_end_are_forgotten() {
        let mut attained = attained();
        let of = |app: u64| Request {
            app: AppId(app),
            ..read(app, 0, MIB)
        };
        for app in 0..50_000 {
            let request = of(app);
            attained.came(&request, Time(app * 1000));
            attained.left(&request, Time(app * 1000));
        }
        assert!(
            attained.by_app.len() <= APPS_MAX,
            "{}",
            attained.by_app.len()
        );
        // Those that wait are kept, however many.
        for app in 0..9000 {
            attained.came(&of(app), Time(1 << 40));
        }
        assert!((0..9000).all(|app| attained.find(AppId(app)).is_some_and(|had| had.waiting > 0)));
    }

    #[test]
    fn levels_begin_at_powers_of_ten() {
        let attained = attained();
        let starts = [0, 1, 10 * MIB - 1, 10 * MIB, 99 * MIB, 100 * MIB, u64::MAX];
        let levels = starts.map(|bytes| attained.level(bytes));
        assert_eq!(levels, [0, 0, 0, 1, 1, 2, 13]);
        for bytes in starts {
            let start = attained.level_start(bytes);
            assert!(start <= bytes && attained.level(start) == attained.level(bytes));
            assert!(start == 0 || attained.level(start - 1) < attained.level(start));
        }
    }
}
