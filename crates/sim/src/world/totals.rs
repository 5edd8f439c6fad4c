//! Sums over a run's accesses, in memory that does not grow with their number.

use super::operation::Operation;
use crate::metrics::Quantiles;

/// The accesses of a run, added up in the order of their ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Times of accesses from issue to completion, ns.
    pub accesses: Quantiles,
    /// Times of operations of whole applications ([`super::Step::Begin`]), ns.
    pub operations: Quantiles,
    /// Of these times, the sum of those in which the application had no access under way, and the
    /// sum of all, ns.
    pub shuffled_ns: (u64, u64),
    /// The sum of the accesses' times, ns, added up as a float.
    pub waited_ns: f64,
    /// By application, in the run's order, those that are not measured too.
    pub applications: Vec<ApplicationTotals>,
    /// How far apart forwarders finish their parts; empty unless [`super::Setup::note_served`].
    pub spreads: Spreads,
}

/// One application's accesses, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplicationTotals {
    /// Not measured: its accesses count here and nowhere else.
    pub background: bool,
    /// Bytes read and written.
    pub bytes: u64,
    /// Time in which at least one access was under way, ns.
    pub io_ns: u64,
    /// Accesses without an answer, and since when there are any, ns.
    under_way: u32,
    since_ns: u64,
}

impl ApplicationTotals {
    /// [`ApplicationTotals::io_ns`] up to now, accesses that go on included.
    pub(super) fn io_until(&self, now: u64) -> u64 {
        let going_on_ns = if self.under_way > 0 {
            now - self.since_ns
        } else {
            0
        };
        self.io_ns + going_on_ns
    }
}

/// Sums over the accesses of which some forwarder took time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spreads {
    /// Time until the last forwarder was done, over that of the first one.
    pub ratios: f64,
    /// Time until the first one was done, ns.
    pub firsts_ns: f64,
    /// How many.
    pub count: f64,
}

impl Totals {
    /// Empty sums, for applications that are measured or not.
    pub(super) fn new(measured: impl Iterator<Item = bool>) -> Totals {
        let application = |measured: bool| ApplicationTotals {
            background: !measured,
            ..ApplicationTotals::default()
        };
        Totals {
            applications: measured.map(application).collect(),
            ..Totals::default()
        }
    }

    /// Bytes of all measured applications.
    pub fn bytes(&self) -> u64 {
        let measured = self.applications.iter().filter(|app| !app.background);
        measured.map(|app| app.bytes).sum()
    }

    pub(super) fn access_begins(&mut self, app: u32, now: u64) {
        let app = &mut self.applications[app as usize];
        if app.under_way == 0 {
            app.since_ns = now;
        }
        app.under_way += 1;
    }

    /// An fsync ends, which began as an access does: time of I/O, and no access.
    pub(super) fn sync_ends(&mut self, app: u32, now: u64) {
        let app = &mut self.applications[app as usize];
        app.under_way -= 1;
        if app.under_way == 0 {
            app.io_ns += now - app.since_ns;
        }
    }

    /// `served_ns`: when each forwarder was done with it, on the clock of `access`.
    pub(super) fn access_ends(
        &mut self,
        access: &Operation,
        now: u64,
        served_ns: impl Iterator<Item = u64> + Clone,
    ) {
        self.sync_ends(access.app, now);
        let app = &mut self.applications[access.app as usize];
        app.bytes += access.bytes;
        if app.background {
            return;
        }
        let took_ns = access.completed_ns - access.issued_ns;
        self.accesses.add(took_ns);
        self.waited_ns += took_ns as f64;
        let since = served_ns.map(|at| at.saturating_sub(access.issued_ns));
        if let (Some(first), Some(last)) = (since.clone().min(), since.max())
            && first > 0
        {
            self.spreads.ratios += last as f64 / first as f64;
            self.spreads.firsts_ns += first as f64;
            self.spreads.count += 1.0;
        }
    }
}

impl Spreads {
    /// Means: last forwarder's time over the first one's, and the first one's, ns. Zeros if there
    /// was nothing.
    pub fn means(&self) -> (f64, f64) {
        match self.count {
            0.0 => (0.0, 0.0),
            count => (self.ratios / count, self.firsts_ns / count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(app: u32, issued_ns: u64, completed_ns: u64) -> Operation {
        Operation {
            app,
            process: 0,
            issued_ns,
            completed_ns,
            bytes: 10,
        }
    }

    #[test]
    fn overlapping_accesses_count_once_as_time_with_io() {
        let mut totals = Totals::new([true, true, false].into_iter());
        totals.access_begins(0, 100);
        totals.access_begins(0, 110);
        totals.access_ends(&access(0, 0, 20), 120, [5, 10].into_iter());
        totals.access_ends(&access(0, 10, 40), 140, [14, 22].into_iter());
        totals.access_begins(0, 200);
        totals.access_ends(&access(0, 100, 105), 205, std::iter::empty());
        assert_eq!((totals.applications[0].io_ns, totals.bytes()), (45, 30));
        assert_eq!(totals.applications[1], ApplicationTotals::default());
        totals.access_begins(2, 0);
        totals.access_ends(&access(2, 0, 300), 300, [5, 300].into_iter());
        assert_eq!((totals.applications[2].bytes, totals.bytes()), (10, 30));
        assert_eq!((totals.accesses.count(), totals.accesses.max()), (3, 30));
        assert_eq!(totals.waited_ns, 55.0);
        assert_eq!(totals.spreads.means(), ((2.0 + 3.0) / 2.0, 4.5));
    }
}
