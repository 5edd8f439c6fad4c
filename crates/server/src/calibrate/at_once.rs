//! Accesses that several threads make at once, and how many of them end in a second.
//!
//! They are counted between two moments that all threads share: from when each has made its first
//! access until one of them has seen enough, and all are at work in between. So the device's queue
//! neither fills nor drains meanwhile, and threads that have to take turns on few processors do not
//! count as if each had had the device for all of the time. An access that lies across one of the
//! moments counts in part.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How many accesses there were in a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) accesses: usize,
    pub(super) per_second: f64,
}

/// How many accesses there are to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// At once.
    pub depth: u32,
    /// That end while it is counted, even if that takes longer than `time`.
    pub least: u32,
    /// How long it is counted.
    pub time: Duration,
}

/// Runs a worker in each of `depth` threads, which makes one access after the other. What failed is
/// named with its error.
pub(super) fn at_once<W: FnMut() -> io::Result<()>>(
    limits: Limits,
    thread: impl Fn(u32) -> Builder,
    worker: impl Fn(u32) -> W + Sync,
) -> Result<Slice, (&'static str, io::Error)> {
    let tally = Tally::new(limits);
    let zero = Instant::now();
    let now_ns = || zero.elapsed().as_nanos() as u64;
    let work = |number| {
        let _ends = EndsAll(&tally);
        let mut access = worker(number);
        let mut own = Own::default();
        loop {
            let begin_ns = now_ns();
            access()?;
            if !tally.ended(&mut own, begin_ns, now_ns()) {
                return Ok(own.accesses);
            }
        }
    };
    let work = &work;
    let started = std::thread::scope(|scope| {
        let start = |number| thread(number).spawn_scoped(scope, move || work(number));
        let started: io::Result<Vec<_>> = (0..limits.depth).map(start).collect();
        // The others wait until all are there.
        let started = started.inspect_err(|_| tally.stop())?;
        let joined = started.into_iter();
        let ends = joined.map(|thread| thread.join().expect("no worker panics"));
        Ok(ends.collect::<io::Result<Vec<f64>>>())
    });
    let ended = started.map_err(|error| ("starting a thread", error))?;
    Ok(tally.slice(&ended.map_err(|error| ("an access", error))?))
}

/// Ends all workers when one ends, however it does.
struct EndsAll<'a>(&'a Tally);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What a worker knows of itself.
#[derive(Default)]
struct Own {
    /// Whether it has made an access.
    has_begun: bool,
    /// How many lie between the moments; parts of those that lie across one.
    accesses: f64,
}

/// What the workers have in common. Times are in ns; 0 is none.
struct Tally {
    least: u32,
    time_ns: u64,
    /// How many have not yet made their first access.
    missing: AtomicU32,
    /// When the last of the first accesses so far ended.
    last_first_ns: AtomicU64,
    opened_ns: AtomicU64,
    closed_ns: AtomicU64,
    /// Accesses that ended between the moments.
    count: AtomicU32,
    stopped: AtomicBool,
}

impl Tally {
    fn new(limits: Limits) -> Tally {
        Tally {
            least: limits.least,
            time_ns: limits.time.as_nanos() as u64,
            missing: AtomicU32::new(limits.depth),
            last_first_ns: AtomicU64::new(0),
            opened_ns: AtomicU64::new(0),
            closed_ns: AtomicU64::new(0),
            count: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// An access of a worker has ended. Returns whether the worker goes on.
    fn ended(&self, own: &mut Own, begin_ns: u64, end_ns: u64) -> bool {
        if !own.has_begun {
            own.has_begun = true;
            self.last_first_ns.fetch_max(end_ns, Ordering::SeqCst);
            if self.missing.fetch_sub(1, Ordering::SeqCst) == 1 {
                let last_ns = self.last_first_ns.load(Ordering::SeqCst);
                self.opened_ns.store(last_ns.max(1), Ordering::SeqCst);
            }
            return !self.stopped.load(Ordering::SeqCst);
        }
        let opened_ns = self.opened_ns.load(Ordering::SeqCst);
        if opened_ns == 0 || end_ns <= opened_ns {
            return !self.stopped.load(Ordering::SeqCst);
        }
        let mut closed_ns = self.closed_ns.load(Ordering::SeqCst);
        let goes_on = closed_ns == 0;
        if goes_on {
            let count = self.count.fetch_add(1, Ordering::SeqCst).saturating_add(1);
            if count >= self.least && end_ns - opened_ns >= self.time_ns {
                let closed = &self.closed_ns;
                let _ = closed.compare_exchange(0, end_ns, Ordering::SeqCst, Ordering::SeqCst);
            }
            closed_ns = end_ns;
        }
        let counted_ns = end_ns
            .min(closed_ns)
            .saturating_sub(begin_ns.max(opened_ns));
        own.accesses += counted_ns as f64 / (end_ns - begin_ns).max(1) as f64;
        goes_on && !self.stopped.load(Ordering::SeqCst)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    fn slice(&self, each: &[f64]) -> Slice {
        let [opened_ns, closed_ns] =
            [&self.opened_ns, &self.closed_ns].map(|it| it.load(Ordering::SeqCst));
        let ns = closed_ns.saturating_sub(opened_ns).max(1);
        Slice {
            accesses: self.count.load(Ordering::SeqCst) as usize,
            per_second: each.iter().sum::<f64>() * 1e9 / ns as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate on a device that serves so many accesses at a time, each for 1000 ns, in order.
    fn rate(depth: u32, served_at_once: usize, least: u32, time_ns: u64) -> Slice {
        let time = Duration::from_nanos(time_ns);
        let tally = Tally::new(Limits { depth, least, time });
        let mut free_ns = vec![0; served_at_once];
        let mut submit = |begin_ns: u64| {
            let first = free_ns.iter_mut().min().expect("it serves some");
            *first = begin_ns.max(*first) + 1000;
            *first
        };
        let mut workers: Vec<Own> = (0..depth).map(|_| Own::default()).collect();
        let mut running: Vec<(u64, u64, usize)> = Vec::new();
        running.extend((0..depth as usize).map(|worker| (submit(0), 0, worker)));
        while !running.is_empty() {
            running.sort_unstable_by(|a, b| b.cmp(a));
            let (end_ns, begin_ns, worker) = running.pop().expect("one is there");
            if tally.ended(&mut workers[worker], begin_ns, end_ns) {
                running.push((submit(end_ns), end_ns, worker));
            }
        }
        let each: Vec<f64> = workers.iter().map(|own| own.accesses).collect();
        tally.slice(&each)
    }

    #[test]
    fn a_rate_is_that_of_the_device_however_few_accesses_there_are() {
        for (depth, served_at_once) in [(1, 1), (2, 1), (32, 1), (32, 4), (32, 32), (8, 64)] {
            let expected = 1e6 * f64::from(depth.min(served_at_once as u32));
            for time_ns in [0, 3_000, 1_000_000] {
                let slice = rate(depth, served_at_once, 4, time_ns);
                assert!(slice.accesses >= 4, "{slice:?}");
                let ratio = slice.per_second / expected;
                let what = format!("{ratio} at {depth} on {served_at_once} in {time_ns} ns");
                assert!((0.95..=1.05).contains(&ratio), "{what}");
            }
        }
    }

    #[test]
    fn workers_that_take_turns_share_the_time() {
        let time = Duration::from_millis(20);
        let depth = 2;
        let tally = Tally::new(Limits {
            depth,
            least: 4,
            time,
        });
        // On one processor, each for 10 ms: accesses of 1 ms that do not sleep.
        let mut workers = [Own::default(), Own::default()];
        let mut goes_on = [true; 2];
        for ms in 0..100 {
            let worker = ms / 10 % 2;
            if goes_on[worker] {
                let [begin_ns, end_ns] = [ms, ms + 1].map(|it| it as u64 * 1_000_000);
                goes_on[worker] = tally.ended(&mut workers[worker], begin_ns, end_ns);
            }
        }
        assert_eq!(goes_on, [false; 2]);
        let slice = tally.slice(&workers.map(|own| own.accesses));
        assert!((slice.per_second - 1000.0).abs() < 1.0, "{slice:?}");
    }

    #[test]
    fn a_thread_that_cannot_be_started_ends_the_others() {
        let time = Duration::from_secs(3600);
        let limits = Limits {
            depth: 8,
            least: 1,
            time,
        };
        let thread = |number| match number {
            5 => Builder::new().stack_size(usize::MAX / 4),
            _ => Builder::new(),
        };
        let refused = at_once(limits, thread, |_| || Ok(()));
        assert_eq!(
            refused.expect_err("no stack is so large").0,
            "starting a thread"
        );
    }

    #[test]
    fn an_access_that_fails_ends_all() {
        let time = Duration::from_secs(3600);
        let limits = Limits {
            depth: 4,
            least: 1,
            time,
        };
        let worker = |number| {
            move || match number {
                2 => Err(io::Error::from(io::ErrorKind::StorageFull)),
                _ => Ok(()),
            }
        };
        let (what, error) = at_once(limits, |_| Builder::new(), worker).expect_err("one fails");
        assert_eq!(
            (what, error.kind()),
            ("an access", io::ErrorKind::StorageFull)
        );
    }
}
