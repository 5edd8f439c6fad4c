//! Least attained service: the application that has had fewest bytes goes first, everywhere. For
//! operations whose size nobody tells.
//!
//! Programs that send pieces do not say how many will follow. What a program has had already is
//! known, and says something of what is still to come: of many sizes the small ones have ended by
//! then. This is the discretised coflow-aware least attained service of Aalo (D-CLAS: Chowdhury and
//! Stoica, SIGCOMM'15). What counts is the service of *all* forwarders: what this one took, and
//! what clients report of the others. So forwarders come to about the same order without talking to
//! each other.
//!
//! Levels are ten times as wide as the one before, from [`LEVEL_MIB`] on. In a level applications
//! go one after the other, as in `window`. An application with nothing waiting that sent nothing
//! for [`QUIET_MS`] begins anew: its next burst is another operation. Nobody starves: see `later`.

use super::window::{Key, Ranking, Window};
use crate::epochs::{Epochs, ROTATION_SEED, WINDOW_MS};
use crate::flat_btree::FlatBTree;
use crate::later::{LATER_MS_MAX, LATER_MS_PER_MIB, Later};
use crate::options::Options;
use crate::policy::{Bound, PolicySpec};
use crate::policy_options::OptionSpec;
use crate::types::{AppId, Request, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The default is Aalo's.
const LEVEL_MIB: OptionSpec = OptionSpec::integer(
    "level_mib",
    10,
    [1, 1 << 20],
    "an application that has had less than so many MiB of all forwarders is in the first level; \
     each further level reaches ten times as far",
);

const QUIET_MS: OptionSpec = OptionSpec::integer(
    "quiet_ms",
    1000,
    [1, 3_600_000],
    "an application that has sent nothing for so many milliseconds, and has nothing waiting, \
     begins anew",
);

/// With so many applications those that are quiet are forgotten, or else all that wait for nothing.
const APPS_MAX: usize = 4096;

pub(super) const SPEC: PolicySpec = PolicySpec {
    name: "least-attained",
    options: &[
        LATER_MS_MAX,
        LATER_MS_PER_MIB,
        LEVEL_MIB,
        QUIET_MS,
        ROTATION_SEED,
        WINDOW_MS,
    ],
    merges: false,
    keeps_shares: false,
    make: |options| Ok(Box::new(Window::new(options, Attained::new(options)))),
};

/// What an application has had.
#[derive(Clone, Copy, Default)]
struct Had {
    bytes: u64,
    /// Requests of it that wait here.
    waiting: u32,
    /// When a request of it last came, or left the queue.
    at: Time,
}

struct Attained {
    later: Later,
    level_bytes: u64,
    quiet_ns: u64,
    by_app: FlatBTree<u64, Had>,
    /// With so many applications those that wait for nothing are looked for.
    most: usize,
}

impl Attained {
    fn new(options: &Options) -> Attained {
        Attained {
            later: Later::new(options),
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

    /// Counts a request that came, and returns what its application had before it.
    fn count(&mut self, request: &Request, now: Time) -> u64 {
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

    fn level(&self, bytes: u64) -> u64 {
        (bytes / self.level_bytes)
            .checked_ilog10()
            .map_or(0, |log| u64::from(log) + 1)
    }
}

impl Ranking for Attained {
    const COUNTS: bool = true;

    fn key(&mut self, request: &Request, arrived: Time) -> Key {
        let bytes = self.count(request, arrived);
        let window = self.later.window(request, arrived, bytes);
        let rank = self.later.epochs().rank(request.app, window);
        (window, self.level(bytes), rank)
    }

    fn left(&mut self, request: &Request, now: Time) {
        if let Some(mut had) = self.find(request.app) {
            had.waiting = had.waiting.saturating_sub(1);
            had.at = had.at.max(now);
            self.by_app.insert(request.app.0, had);
        }
    }

    fn epochs(&self) -> &Epochs {
        self.later.epochs()
    }

    fn bound(&self) -> Bound {
        self.later.bound()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheduler;
    use crate::test::{drain_at, read};

    const MIB: u64 = 1 << 20;

    fn scheduler() -> Scheduler {
        Scheduler::new(&Options::for_policy("least-attained")).unwrap()
    }

    fn of(app: u64, bytes: u64, elsewhere: u64) -> Request {
        Request {
            app: AppId(app),
            bytes_elsewhere: elsewhere,
            ..read(app, 0, bytes)
        }
    }

    fn order(scheduler: &mut Scheduler, now_ms: u64, input: &[Request]) -> Vec<u64> {
        let batches = drain_at(scheduler, Time(now_ms * 1_000_000), input);
        batches.into_iter().flatten().collect()
    }

    #[test]
    fn who_had_least_of_all_forwarders_goes_first() {
        let mut scheduler = scheduler();
        // 20 MiB here; 200 MiB elsewhere; nothing; then one request of each.
        order(&mut scheduler, 0, &[of(1, 20 * MIB, 0)]);
        let input = [of(2, MIB, 200 * MIB), of(1, MIB, 0), of(3, MIB, 0)];
        assert_eq!(order(&mut scheduler, 10, &input), [2, 1, 0]);
    }

    #[test]
    fn what_comes_after_a_pause_begins_anew() {
        let mut scheduler = scheduler();
        order(&mut scheduler, 0, &[of(1, 20 * MIB, 0)]);
        let input = [of(1, MIB, 0), of(2, 30 * MIB, 0), of(2, MIB, 0)];
        assert_eq!(order(&mut scheduler, 900, &input)[0], 1);
        // Application 1 is quiet for a second, and 2 is not.
        order(&mut scheduler, 1500, &[of(2, MIB, 0)]);
        let input = [of(2, MIB, 0), of(1, MIB, 0)];
        assert_eq!(order(&mut scheduler, 1901, &input), [1, 0]);
    }

    #[test]
    fn applications_that_end_are_forgotten() {
        let mut attained = Attained::new(&Options::for_policy("least-attained"));
        for app in 0..50_000 {
            let request = of(app, MIB, 0);
            attained.key(&request, Time(app * 1000));
            attained.left(&request, Time(app * 1000));
        }
        assert!(
            attained.by_app.len() <= APPS_MAX,
            "{}",
            attained.by_app.len()
        );
        // Those that wait are kept, however many.
        for app in 0..9000 {
            attained.key(&of(app, MIB, 0), Time(1 << 40));
        }
        assert!((0..9000).all(|app| attained.find(AppId(app)).is_some_and(|had| had.waiting > 0)));
    }
}
