//! How many jobs of one user run at once: few while they compute, more while they wait for the
//! back end.
//!
//! A job that only computes gains nothing from more threads than processors. It takes the
//! processors from others: a user with a job on each of eight threads has most of the time of two
//! processors, and whoever comes next waits for it. A job that waits leaves its processor to
//! others, and a distributed file system serves many of them at once.
//!
//! Whether a thread sleeps does not tell them apart, because jobs that change one directory wait
//! for each other in the kernel, one of them computing all the time. So it goes by what a user's
//! jobs compute together: beyond half of what their least number of threads can, they run up a
//! debt. A job that waited for nothing but a processor is no reason for more threads: where many
//! threads compute, all of them wait for that.

use std::time::Duration;

/// The processor time beyond a user's share at which the user's width becomes smaller. It is some
/// ten name operations: short enough that others hardly notice, long enough for jobs that compute
/// now and then.
const DEBT_MAX: Duration = Duration::from_millis(4);

/// The bounds of every user's width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    least: usize,
    most: usize,
}

/// What time a job took.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobTime {
    /// When it ended, by a clock that all jobs share.
    pub(super) ended: Duration,
    pub(super) took: Duration,
    /// How much of that its thread had a processor.
    pub(super) computed: Duration,
    /// Whether it waited for anything but a processor.
    pub(super) slept: bool,
}

/// The number of one user's jobs that may run at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    now: usize,
    bounds: Widths,
    /// The processor time that the jobs had beyond half of as many processors as the least width,
    /// at most [`DEBT_MAX`].
    debt: Duration,
    /// When it was so.
    at: Duration,
}

impl Widths {
    /// For so many threads on so many processors: half of the processors at least, and one thread
    /// less than all at most, because a job takes as long as the back end likes.
    pub(super) fn new(threads: usize, processors: usize) -> Widths {
        let most = threads.saturating_sub(1).max(1);
        let least = (processors / 2).clamp(1, most);
        Widths { least, most }
    }

    /// The most that a width can be.
    pub(super) fn most(self) -> usize {
        self.most
    }
}

impl Width {
    /// That of a user whose jobs have not run yet.
    pub(super) fn new(bounds: Widths) -> Width {
        Width {
            now: bounds.least,
            bounds,
            debt: Duration::ZERO,
            at: Duration::ZERO,
        }
    }

    /// That of a line which has no bound.
    pub(super) fn unbounded() -> Width {
        let bounds = Widths {
            least: usize::MAX,
            most: usize::MAX,
        };
        Width::new(bounds)
    }

    pub(super) fn get(self) -> usize {
        self.now
    }

    /// Notes a job that has ended. Jobs of several threads may be noted in another order than they
    /// ended.
    pub(super) fn ended(&mut self, job: JobTime) {
        let share = u32::try_from(self.bounds.least).unwrap_or(u32::MAX);
        let since = job.ended.saturating_sub(self.at);
        self.at = self.at.max(job.ended);
        let paid = since.saturating_mul(share) / 2;
        let left = self.debt.saturating_sub(paid);
        self.debt = left.saturating_add(job.computed).min(DEBT_MAX);
        if self.debt == DEBT_MAX {
            self.now = (self.now - 1).max(self.bounds.least);
        } else if self.debt < DEBT_MAX / 2 && job.slept && job.computed < job.took / 2 {
            self.widen();
        }
    }

    /// Lets one more job run.
    pub(super) fn widen(&mut self) {
        self.now = self.now.saturating_add(1).min(self.bounds.most);
    }
}

#[cfg(test)]
impl JobTime {
    /// A job of 200 us that ended at this time, in us, and computed for so long.
    pub(super) fn new(ended: u64, computed: u64) -> JobTime {
        JobTime {
            ended: Duration::from_micros(ended),
            took: Duration::from_micros(200),
            computed: Duration::from_micros(computed),
            slept: computed < 200,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The widths while so many jobs of 200 us each end, as many at once as the width is; each
    /// computes for as many us as `computes` says of the number of the job and of those at once.
    fn widths(
        width: &mut Width,
        jobs: usize,
        computes: impl Fn(usize, usize) -> u64,
    ) -> Vec<usize> {
        let mut at = u64::try_from(width.at.as_micros()).expect("some ms");
        let (mut done, mut seen) = (0, Vec::new());
        while done < jobs {
            let at_once = width.get();
            at += 200;
            for _ in 0..at_once {
                width.ended(JobTime::new(at, computes(done, at_once)));
                done += 1;
            }
            seen.push(width.get());
        }
        seen
    }

    #[test]
    fn jobs_that_compute_have_half_of_the_processors() {
        for (threads, processors, least) in [(8, 2, 1), (8, 1, 1), (8, 8, 4), (8, 64, 7), (1, 2, 1)]
        {
            let mut width = Width::new(Widths::new(threads, processors));
            widths(&mut width, 1000, |_, _| 10);
            assert_eq!(width.get(), threads.max(2) - 1, "they wait");
            widths(&mut width, 1000, |_, _| 200);
            assert_eq!(width.get(), least, "they compute");
        }
    }

    #[test]
    fn jobs_that_wait_have_all_threads_but_one() {
        let mut width = Width::new(Widths::new(8, 2));
        assert_eq!(widths(&mut width, 3, |_, _| 10), [2, 4]);
        let now = widths(&mut width, 1000, |_, _| 10);
        assert_eq!(now[now.len() - 100..], [7; 100]);
    }

    /// As with one directory, where the kernel lets one thread change names at a time: each job
    /// waits for the others and computes in its turn.
    #[test]
    fn jobs_that_wait_for_each_other_stay_near_their_share() {
        let mut width = Width::new(Widths::new(8, 2));
        let now = widths(&mut width, 10_000, |_, at_once| {
            (300 / at_once as u64).min(200)
        });
        let long: usize = now.iter().sum();
        assert!(long < 2 * now.len(), "{long} in {} rounds", now.len());
    }

    #[test]
    fn a_job_that_waits_now_and_then_widens_for_a_moment_only() {
        let mut width = Width::new(Widths::new(8, 2));
        let now = widths(&mut width, 10_000, |job, _| {
            [200, 10][usize::from(job % 64 == 0)]
        });
        assert!(now.iter().all(|width| *width < 4), "{:?}", now.iter().max());
        assert!(now.iter().filter(|width| **width > 1).count() < now.len() / 2);
    }

    #[test]
    fn jobs_that_wait_for_a_processor_alone_get_no_more_threads() {
        let mut width = Width::new(Widths::new(8, 2));
        for job in 1..100 {
            width.ended(JobTime {
                slept: false,
                ..JobTime::new(200 * job, 20)
            });
        }
        assert_eq!(width.get(), 1);
    }

    #[test]
    fn jobs_that_compute_for_most_of_what_one_thread_can_have_one() {
        let mut width = Width::new(Widths::new(8, 2));
        widths(&mut width, 1000, |_, _| 10);
        // Together 130 us of 200, however many there are.
        let now = widths(&mut width, 10_000, |_, at_once| 130 / at_once as u64);
        assert_eq!(now[now.len() - 100..], [1; 100]);
    }

    #[test]
    fn a_debt_is_bounded_and_paid_by_time() {
        let mut width = Width::new(Widths::new(8, 2));
        widths(&mut width, 1000, |_, _| 10);
        // A second of eight processors, noted at once and out of order.
        for job in 0..40_000 {
            width.ended(JobTime::new(1_000_000 - job % 100, 200));
        }
        assert_eq!((width.get(), width.debt), (1, DEBT_MAX));
        width.ended(JobTime::new(1_004_000, 10));
        assert_eq!(width.get(), 1, "half is paid");
        width.ended(JobTime::new(1_008_000, 10));
        assert_eq!(width.get(), 2);
    }

    #[test]
    fn a_line_without_a_bound_keeps_none() {
        let mut width = Width::unbounded();
        for job in 0..10_000 {
            width.ended(JobTime::new(job, 200));
        }
        width.widen();
        assert_eq!(width.get(), usize::MAX);
    }
}
