//! Logs once when a call to the back end does not return, and once more when it has returned.

use std::time::Duration;
use tracing::{info, warn};

/// How long a call may run before it is logged.
const LONG: Duration = Duration::from_secs(10);

/// The calls that were logged.
#[derive(Default)]
pub struct Stuck {
    /// The longest time that a call has run since it was logged.
    longest: Option<Duration>,
    /// How long the oldest call had run when it was last looked at.
    oldest: Duration,
}

enum News {
    Hangs,
    /// The longest call has run this long and goes on.
    GoesOn(Duration),
}

impl Stuck {
    /// Notes how long the oldest call has run, for the status, and logs it if that is long.
    pub fn look(&mut self, oldest: Duration) {
        self.oldest = oldest;
        match self.news(oldest) {
            Some(News::Hangs) => warn!(
                "a call to the back end has not returned for {} s: it may hang, and what needs it \
                 waits",
                oldest.as_secs()
            ),
            Some(News::GoesOn(longest)) => info!(
                "the calls to the back end return again; the longest took about {} s",
                longest.as_secs()
            ),
            None => {}
        }
    }

    /// How long the oldest call had run when it was last looked at.
    pub fn oldest(&self) -> Duration {
        self.oldest
    }

    /// What to log when the oldest call has run for `oldest`.
    fn news(&mut self, oldest: Duration) -> Option<News> {
        match (self.longest, oldest >= LONG) {
            (None, true) => {
                self.longest = Some(oldest);
                Some(News::Hangs)
            }
            (Some(longest), true) => {
                self.longest = Some(longest.max(oldest));
                None
            }
            (Some(longest), false) => {
                self.longest = None;
                Some(News::GoesOn(longest))
            }
            (None, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_is_told_once_and_its_end_once() {
        let mut stuck = Stuck::default();
        let mut told = Vec::new();
        for (second, oldest) in [0, 9, 10, 11, 25, 12, 3, 0, 10, 0].into_iter().enumerate() {
            match stuck.news(Duration::from_secs(oldest)) {
                Some(News::Hangs) => told.push((second, "hangs", oldest)),
                Some(News::GoesOn(longest)) => told.push((second, "goes on", longest.as_secs())),
                None => {}
            }
        }
        let expected = [
            (2, "hangs", 10),
            (6, "goes on", 25),
            (8, "hangs", 10),
            (9, "goes on", 10),
        ];
        assert_eq!(told, expected);
    }
}
