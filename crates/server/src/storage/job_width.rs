//! How many jobs of one user run at once: few while they compute, more while they wait for the
//! back end.
//!
//! A job that only computes gains nothing from more threads than processors. It takes the
//! processors from others: a user with a job on each of eight threads has most of the time of two
//! processors, and whoever comes next waits for it. A job that sleeps leaves its processor to
//! others, and a distributed file system serves many of them at once. The kernel counts the times
//! that a thread went to sleep.

/// So many jobs in a row that did not sleep make the width smaller by one. A few sleepers among
/// many that compute are enough for the full width, because one sleeper takes as long as many
/// others.
const COMPUTED_MAX: u32 = 64;

/// The bounds of every user's width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    least: usize,
    most: usize,
}

/// The number of one user's jobs that may run at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    now: usize,
    bounds: Widths,
    /// The jobs in a row that did not sleep.
    computed: u32,
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
            computed: 0,
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

    /// Notes a job that has ended.
    pub(super) fn ended(&mut self, slept: bool) {
        if slept {
            self.computed = 0;
            self.now = self.now.saturating_add(1).min(self.bounds.most);
            return;
        }
        self.computed += 1;
        if self.computed >= COMPUTED_MAX {
            self.computed = 0;
            self.now = (self.now - 1).max(self.bounds.least);
        }
    }
}

/// How often the calling thread went to sleep since it began, as the kernel counts it.
pub(super) fn sleeps() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes one rusage, and zeros are a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut width: Width, jobs: &[(usize, bool)]) -> usize {
        for (number, slept) in jobs {
            (0..*number).for_each(|_| width.ended(*slept));
        }
        width.get()
    }

    #[test]
    fn jobs_that_compute_have_half_of_the_processors() {
        for (threads, processors, least) in [(8, 2, 1), (8, 1, 1), (8, 8, 4), (8, 64, 7), (1, 2, 1)]
        {
            let width = Width::new(Widths::new(threads, processors));
            assert_eq!(after(width, &[(1000, false)]), least);
        }
    }

    #[test]
    fn jobs_that_sleep_have_all_threads_but_one() {
        let width = Width::new(Widths::new(8, 2));
        assert_eq!(after(width, &[(3, true)]), 4);
        assert_eq!(after(width, &[(100, true)]), 7);
        let some = [(63, false), (1, true)].repeat(20);
        assert_eq!(after(width, &some), 7, "one of 64 sleeps");
        assert_eq!(after(width, &[(100, true), (64, false)]), 6);
        assert_eq!(after(width, &[(100, true), (640, false)]), 1);
    }

    #[test]
    fn a_line_without_a_bound_keeps_none() {
        let width = Width::unbounded();
        assert_eq!(after(width, &[(1000, false), (3, true)]), usize::MAX);
    }

    #[test]
    fn a_thread_that_waits_has_slept_and_one_that_computes_has_not() {
        let before = sleeps();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(sleeps() > before);
        // A page that has to be fetched may make it sleep once, and not always.
        let computes = || {
            let before = sleeps();
            std::hint::black_box((0..1000_u32).map(std::hint::black_box).sum::<u32>());
            sleeps() == before
        };
        assert!((0..100).any(|_| computes()));
    }
}
