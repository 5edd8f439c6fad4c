//! Measures during a run, window by window, whether applications got what they were promised:
//! whether latencies kept their targets, and how their parts of the service compare with their
//! weights.

use super::Windows;

/// Windows in which latency targets are asked for, ns: that of the two-level scheduler's feedback,
/// and one second.
const TARGET_WINDOWS_NS: [u64; 2] = [500_000_000, 1_000_000_000];

/// Windows over which parts of the service are compared, ns.
const SHARE_WINDOW_NS: u64 = 10_000_000_000;

/// What one application is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promised {
    /// Whether metrics count it.
    pub measured: bool,
    /// Its weight, in its group if it has one.
    pub weight: u32,
    /// Number and weight of its group.
    pub group: Option<(u32, u32)>,
    /// Latency target: how many thousandths of its accesses are to be done within how many ns.
    pub within: Option<(u64, u32)>,
}

/// Follows the accesses of a run. Memory does not grow with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promises {
    apps: Vec<OfApplication>,
    /// Number of the present window of shares.
    window: u64,
    share_error: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
struct OfApplication {
    promised: Promised,
    /// By length, if it has a target.
    windows: Option<[Windows; 2]>,
    under_way: u64,
    /// Since when there is nothing under way, or since when there is and nothing was done.
    since_ns: u64,
    /// Service in the present window of shares.
    served: u64,
    /// Whether it was without an access for some time in it.
    paused: bool,
}

impl Promises {
    /// Promises of a run that has not begun.
    pub fn new(promised: impl IntoIterator<Item = Promised>) -> Promises {
        let app = |promised: Promised| OfApplication {
            promised,
            windows: promised.within.map(|(bound_ns, per_mille)| {
                TARGET_WINDOWS_NS.map(|window_ns| Windows::new(window_ns, bound_ns, per_mille))
            }),
            under_way: 0,
            since_ns: 0,
            served: 0,
            paused: false,
        };
        Promises {
            apps: promised.into_iter().map(app).collect(),
            ..Promises::default()
        }
    }

    /// An access of the application of this number begins. Times never go back.
    pub fn begins(&mut self, app: usize, now_ns: u64) {
        self.advance(now_ns);
        let app = &mut self.apps[app];
        app.under_way += 1;
        if app.under_way == 1 {
            app.paused |= now_ns > app.since_ns;
            app.since_ns = now_ns;
        }
    }

    /// An access ends that took `latency_ns`; `service` is what it got.
    pub fn ends(&mut self, app: usize, now_ns: u64, latency_ns: u64, service: u64) {
        self.advance(now_ns);
        let app = &mut self.apps[app];
        for windows in app.windows.iter_mut().flatten() {
            windows.waited(app.since_ns, now_ns);
            windows.completed(now_ns, latency_ns);
        }
        app.under_way = app.under_way.saturating_sub(1);
        app.since_ns = now_ns;
        app.served = app.served.saturating_add(service);
    }

    /// The share of windows in which an application kept its target: windows of half a second, and
    /// of a second. Returns the smallest over the measured applications with a target; None: there
    /// is no such application.
    pub fn kept(&self) -> Option<[f64; 2]> {
        let measured = self.apps.iter().filter(|app| app.promised.measured);
        let targets = measured.filter_map(|app| app.windows.as_ref());
        let shares = targets.map(|windows| [windows[0].kept_share(), windows[1].kept_share()]);
        shares.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1])])
    }

    /// The largest difference between an application's part of the service and that of its weight,
    /// over all windows of ten seconds that are over. Compares measured applications that had an
    /// access under way during the whole window, if there are at least two.
    pub fn share_error(&self) -> Option<f64> {
        self.share_error
    }

    /// Ends windows of shares that are over.
    fn advance(&mut self, now_ns: u64) {
        let window = now_ns / SHARE_WINDOW_NS;
        while self.window < window {
            self.compare();
            self.window += 1;
            let begins_ns = self.window * SHARE_WINDOW_NS;
            let mut is_quiet = true;
            for app in &mut self.apps {
                app.served = 0;
                app.paused = app.under_way == 0 && app.since_ns < begins_ns;
                is_quiet &= app.paused;
            }
            if is_quiet {
                // Nothing will be found until something begins.
                self.window = window;
            }
        }
    }

    fn compare(&mut self) {
        let ends_ns = (self.window + 1) * SHARE_WINDOW_NS;
        let busy = self.apps.iter().filter(|app| {
            let paused = app.paused || (app.under_way == 0 && app.since_ns < ends_ns);
            app.promised.measured && !paused
        });
        let busy: Vec<&OfApplication> = busy.collect();
        let served: f64 = busy.iter().map(|app| app.served as f64).sum();
        if busy.len() < 2 || served == 0.0 {
            return;
        }
        let weight = |app: &OfApplication| f64::from(app.promised.weight);
        // What a group has is divided by those of it that are compared.
        let in_all = |app: &OfApplication| match app.promised.group {
            None => weight(app),
            Some((group, of_group)) => {
                let its = busy
                    .iter()
                    .filter(|it| it.promised.group.is_some_and(|(its, _)| its == group));
                f64::from(of_group) * weight(app) / its.map(|it| weight(it)).sum::<f64>()
            }
        };
        let all: f64 = busy.iter().map(|app| in_all(app)).sum();
        for app in &busy {
            let distance = (app.served as f64 / served - in_all(app) / all).abs();
            let largest = self.share_error.unwrap_or(0.0);
            self.share_error = Some(largest.max(distance));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn promised(weight: u32) -> Promised {
        Promised {
            measured: true,
            weight,
            group: None,
            within: None,
        }
    }

    /// Each application has two accesses on their way, and is served so much each second.
    fn serve(promises: &mut Promises, seconds: std::ops::Range<u64>, services: &[u64]) {
        for second in seconds {
            for (app, service) in services.iter().enumerate() {
                promises.ends(app, second * SECOND + 5, 7, *service);
                promises.begins(app, second * SECOND + 5);
            }
        }
    }

    #[test]
    fn parts_of_the_service_are_compared_with_weights() {
        let mut promises = Promises::new([promised(3), promised(1)]);
        (0..2).for_each(|app| (0..2).for_each(|_| promises.begins(app, 0)));
        serve(&mut promises, 0..10, &[70, 30]);
        assert_eq!(promises.share_error(), None, "the window is not over");
        serve(&mut promises, 10..20, &[74, 26]);
        let error = promises.share_error().expect("one window");
        assert!((error - 0.05).abs() < 1e-12, "{error}");
        // Who is away for an instant is away; the others are compared with each other: with nobody.
        promises.ends(0, 20 * SECOND + 1, 1, 0);
        promises.ends(0, 20 * SECOND + 1, 1, 0);
        promises.begins(0, 20 * SECOND + 2);
        promises.begins(0, 20 * SECOND + 2);
        serve(&mut promises, 21..30, &[1, 99]);
        promises.begins(1, 40 * SECOND);
        assert_eq!(promises.share_error(), Some(error));
    }

    #[test]
    fn groups_are_divided_by_those_that_want() {
        let of_group = Promised {
            group: Some((0, 2)),
            ..promised(5)
        };
        let background = Promised {
            measured: false,
            ..promised(9)
        };
        let mut promises = Promises::new([of_group, of_group, promised(2), background]);
        (0..4).for_each(|app| (0..2).for_each(|_| promises.begins(app, 0)));
        serve(&mut promises, 0..11, &[1, 1, 2, 50]);
        assert_eq!(promises.share_error(), Some(0.0));
    }

    #[test]
    fn windows_in_which_one_waits_too_long_count_too() {
        let target = Promised {
            within: Some((100_000_000, 950)),
            ..promised(1)
        };
        let mut promises = Promises::new([target, promised(1)]);
        assert_eq!(promises.kept(), Some([1.0, 1.0]));
        promises.begins(0, 0);
        promises.ends(0, SECOND / 10, SECOND / 10, 1);
        // Nothing is asked for until 3.2 s; then for 2 s nothing is done.
        promises.begins(0, 3 * SECOND + SECOND / 5);
        promises.ends(0, 5 * SECOND + SECOND / 5, 2 * SECOND, 1);
        // Kept from 0; not in the windows from 3.5, 4, 4.5 s, in which it waited, and from 5 s.
        let [half, whole] = promises.kept().expect("one has a target");
        assert_eq!((half, whole), (1.0 / 5.0, 1.0 / 3.0));
    }
}
