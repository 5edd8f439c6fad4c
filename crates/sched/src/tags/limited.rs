//! For how long limits hold applications back, for those who ask why requests wait.

use super::{Node, Tags};
use crate::types::{AppId, Time};

/// The time for which a limit has held a node back. It does not count while the node has no
/// request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limited {
    before_ns: u64,
    /// The time since its limit was looked at last, as far as that held it back.
    since: u64,
    until: u64,
}

impl Limited {
    /// Whether a limit that allows the next request at this time holds it back now. Notes it.
    pub(super) fn is_held(&mut self, now: Time, limit_at: u64) -> bool {
        self.before_ns = self.by(now);
        (self.since, self.until) = (now.0, limit_at);
        limit_at > now.0
    }

    fn by(&self, now: Time) -> u64 {
        let last_ns = self.until.min(now.0).saturating_sub(self.since);
        self.before_ns.saturating_add(last_ns)
    }
}

impl Tags {
    /// For how long limits of an application and its group have held it back by now, in
    /// nanoseconds. Only differences mean something, while the application has requests.
    pub(crate) fn limited_ns(&self, app: AppId, now: Time) -> u64 {
        let Some(number) = self.known(app) else {
            return 0;
        };
        let limited = |node: &Node| node.share.max.map_or(0, |_| node.limited.by(now));
        self.both(number)
            .map(|one| limited(self.node(one)))
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_limit_held_back_counts_once() {
        let mut limited = Limited::default();
        assert!(limited.is_held(Time(100), 150));
        assert_eq!(limited.by(Time(120)), 20);
        // Looked at again, and charged meanwhile.
        assert!(limited.is_held(Time(130), 200));
        assert_eq!(limited.by(Time(190)), 90);
        // It is past, and does not go on.
        assert_eq!(limited.by(Time(900)), 100);
        assert!(!limited.is_held(Time(300), 200));
        assert_eq!(limited.by(Time(900)), 100);
        // The limit was taken away before its time.
        assert!(limited.is_held(Time(1000), 5000));
        assert!(!limited.is_held(Time(1100), 0));
        assert_eq!(limited.by(Time(6000)), 200);
    }
}
