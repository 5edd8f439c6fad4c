//! Says in the log that a call to the back end does not return, once, and once that it has.

use std::time::Duration;
use tracing::{info, warn};

/// Calls that take longer are told.
const LONG: Duration = Duration::from_secs(10);

/// What was said.
#[derive(Default)]
pub struct Stuck {
    /// The longest that a call was seen to run, since it was told.
    longest: Option<Duration>,
    /// How long the oldest call ran at the last look.
    oldest: Duration,
}

enum News {
    Hangs,
    /// The longest call took so long.
    GoesOn(Duration),
}

impl Stuck {
    /// Looks how long the oldest call runs: for the status, and for the log.
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

    /// How long the oldest call ran at the last look.
    pub fn oldest(&self) -> Duration {
        self.oldest
    }

    /// What there is to say when the oldest call has run for so long.
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
