//! Whether waits bring what was foretold: if most do not, as with the trace of another program,
//! few more are tried.

/// Waits that must have failed before any is refused.
const FAILED_MIN: u32 = 8;

/// Counts beyond this are halved, so that a change is noticed soon.
const COUNT_MAX: u32 = 64;

/// Of waits that are not believed in, one in so many is tried all the same.
const TRIED: u32 = 16;

/// How the last waits ended.
#[derive(Default)]
pub(super) struct Trust {
    kept: u32,
    failed: u32,
    refused: u32,
}

impl Trust {
    /// A wait is over: it brought at least half of what it was for, or not.
    pub(super) fn note(&mut self, kept: bool) {
        match kept {
            true => self.kept += 1,
            false => self.failed += 1,
        }
        if self.kept + self.failed > COUNT_MAX {
            self.kept /= 2;
            self.failed /= 2;
        }
    }

    /// Whether the next wait should be made.
    pub(super) fn allows(&mut self) -> bool {
        if self.failed < FAILED_MIN || self.kept >= self.failed {
            return true;
        }
        self.refused = (self.refused + 1) % TRIED;
        self.refused == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_seldom_until_it_works_again() {
        let mut trust = Trust::default();
        let mut tried = |kept: bool| {
            let allowed = (0..160).filter(|_| {
                let allowed = trust.allows();
                if allowed {
                    trust.note(kept);
                }
                allowed
            });
            allowed.count()
        };
        assert_eq!(tried(true), 160);
        let failed = tried(false);
        assert!((30..90).contains(&failed), "{failed}");
        assert_eq!(tried(false), 10);
        // A few that work do not make up for many that failed; more do.
        while tried(true) < 160 {}
    }
}
