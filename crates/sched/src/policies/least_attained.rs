//! Least attained service: the application that has had fewest bytes goes first, everywhere. For
//! operations whose size nobody tells.
//!
//! Programs that send pieces do not say how many will follow. What a program has had already is
//! known, and says something of what is still to come: of many sizes the small ones have ended by
//! then. This is the discretised coflow-aware least attained service of Aalo (D-CLAS: Chowdhury and
//! Stoica, SIGCOMM'15); `attained` has the sums and the levels. In a level applications go one
//! after the other, as in `window`. Nobody starves: see `later`.

use super::window::{Key, Ranking, Window};
use crate::attained::{Attained, LEVEL_MIB, QUIET_MS};
use crate::epochs::{Epochs, ROTATION_SEED, WINDOW_MS};
use crate::later::{LATER_MS_MAX, LATER_MS_PER_MIB, Later};
use crate::options::Options;
use crate::policy::{Bound, PolicySpec};
use crate::types::{Request, Time};
use alloc::boxed::Box;

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
    make: |options| Ok(Box::new(Window::new(options, LeastAttained::new(options)))),
};

struct LeastAttained {
    later: Later,
    attained: Attained,
}

impl LeastAttained {
    fn new(options: &Options) -> LeastAttained {
        LeastAttained {
            later: Later::new(options),
            attained: Attained::new(options),
        }
    }
}

impl Ranking for LeastAttained {
    const COUNTS: bool = true;

    fn key(&mut self, request: &Request, arrived: Time) -> Key {
        let bytes = self.attained.came(request, arrived);
        let window = self.later.window(request, arrived, bytes);
        let rank = self.later.epochs().rank(request.app, window);
        (window, self.attained.level(bytes), rank)
    }

    fn left(&mut self, request: &Request, now: Time) {
        self.attained.left(request, now);
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
    use crate::test::{drain_at, read};
    use crate::{AppId, Scheduler};
    use alloc::vec::Vec;

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
}
