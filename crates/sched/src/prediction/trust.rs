//! Whether predictions come true. If most waits fail, as with the trace of another program, waits
//! are refused for a while.

/// Waits are refused after so many have failed, if fewer have succeeded.
const FAILED_MIN: u32 = 8;

/// Counts above this are halved, so that a change is noticed soon.
const COUNT_MAX: u32 = 64;

/// So many waits are refused before some are tried again: at first, and at most. The number doubles
/// each time that the tries fail. Several waits in a row are tried, because a single one fails: the
/// requests that it should be merged with were dispatched without a wait.
const REFUSED: [u32; 2] = [64, 4096];

/// The outcomes of the last waits.
pub(super) struct Trust {
    kept: u32,
    failed: u32,
    /// Waits that are still to be refused, and how many will be the next time.
    refuse: u32,
    refuse_next: u32,
}

impl Trust {
    pub(super) fn new() -> Trust {
        Trust {
            kept: 0,
            failed: 0,
            refuse: 0,
            refuse_next: REFUSED[0],
        }
    }

    /// Counts the outcome of a wait: whether at least half of the expected growth came.
    pub(super) fn note(&mut self, kept: bool) {
        match kept {
            true => self.kept += 1,
            false => self.failed += 1,
        }
        if self.kept + self.failed > COUNT_MAX {
            self.kept /= 2;
            self.failed /= 2;
            if self.kept > self.failed {
                self.refuse_next = REFUSED[0];
            }
        }
        if self.failed >= FAILED_MIN && self.failed > self.kept {
            (self.kept, self.failed) = (0, 0);
            self.refuse = self.refuse_next;
            self.refuse_next = (2 * self.refuse_next).min(REFUSED[1]);
        }
    }

    /// Whether the next wait may be made.
    pub(super) fn allows(&mut self) -> bool {
        let allowed = self.refuse == 0;
        self.refuse = self.refuse.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_seldom_until_it_works_again() {
        let mut trust = Trust::new();
        let mut tried = |kept: bool| {
            let allowed = (0..10_000).filter(|_| {
                let allowed = trust.allows();
                if allowed {
                    trust.note(kept);
                }
                allowed
            });
            allowed.count()
        };
        assert_eq!(tried(true), 10_000);
        let failed = tried(false);
        assert!((60..150).contains(&failed), "{failed}");
        assert!(tried(false) <= 3 * FAILED_MIN as usize);
        // It is found again, after the refusals that were still to come.
        assert!(tried(true) > 5000);
        assert_eq!(tried(true), 10_000);
    }
}
