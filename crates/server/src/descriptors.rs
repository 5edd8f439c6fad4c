//! How the process divides its limit of open descriptors: a connection takes one, a known file up
//! to three.

use rustix::process::{Resource, getrlimit};

/// Descriptors for all that is neither a client's connection nor a file: listeners, the log, the
/// seats, the trace.
const OTHERS: u64 = 128;
/// The most descriptors that a known file takes.
const OF_A_FILE: u64 = 3;
/// The most known files, whatever the limit.
const HANDLES_MAX: u64 = 16_384;
/// The fewest known files with which programs still run at a fair speed.
const HANDLES_MIN: u64 = 256;

/// For how many connections and files the limit of descriptors has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The most connections at once.
    pub conns_max: usize,
    /// How many of them may be additional connections of a session.
    pub joined_max: usize,
    /// The most known files at once.
    pub handles_max: usize,
    /// The limit, if it is too low for the configured number of sessions.
    pub too_low: Option<u64>,
}

impl Descriptors {
    /// Divides the descriptors that this process may open now.
    pub fn of_process(sessions_max: u32) -> Descriptors {
        share_out(getrlimit(Resource::Nofile).current, sessions_max)
    }

    /// The warning for a limit that is too low, or None.
    pub fn warning(&self, sessions_max: u32) -> Option<String> {
        self.too_low.map(|limit| {
            format!(
                "room for {} connections, not for sessions_max = {sessions_max}: this process may \
                 have {limit} open files; raise the hard limit (ulimit -Hn, LimitNOFILE=) to at \
                 least {}",
                self.conns_max,
                needed(sessions_max)
            )
        })
    }
}

/// How many additional connections all sessions together want; few clients gain from them, and many
/// use none.
fn joined_wanted(sessions_max: u32) -> u64 {
    u64::from(sessions_max) / 4
}

/// How many connections a number of sessions needs. A client that reconnects has its old and its
/// new connection for a moment.
fn conns_wanted(sessions_max: u32) -> u64 {
    u64::from(sessions_max) + u64::from(sessions_max) / 4 + 64 + joined_wanted(sessions_max)
}

/// The lowest limit of open files that restricts nothing.
fn needed(sessions_max: u32) -> u64 {
    OTHERS + conns_wanted(sessions_max) + OF_A_FILE * HANDLES_MIN
}

/// Serves connections first, because a file can be opened again. Connections get three quarters at
/// most.
fn share_out(limit: Option<u64>, sessions_max: u32) -> Descriptors {
    let limit = limit.unwrap_or(u64::MAX);
    let free = limit.saturating_sub(OTHERS);
    let conns = conns_wanted(sessions_max).min(free / 4 * 3).max(1);
    let joined = joined_wanted(sessions_max).min(conns / 6);
    let files = free.saturating_sub(conns) / OF_A_FILE;
    Descriptors {
        conns_max: conns as usize,
        joined_max: joined as usize,
        handles_max: files.clamp(16, HANDLES_MAX) as usize,
        too_low: (conns < u64::from(sessions_max) + joined).then_some(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_come_first_and_files_have_the_rest() {
        let plenty = share_out(Some(1 << 20), 4096);
        assert_eq!((plenty.conns_max, plenty.handles_max), (6208, 16_384));
        assert_eq!(plenty.joined_max, 1024);
        assert_eq!(plenty.warning(4096), None);
        assert_eq!(share_out(None, 4096), plenty);
        let enough = share_out(Some(20_000), 10_240);
        assert_eq!((enough.conns_max, enough.too_low), (14_904, None));
        assert_eq!(enough.handles_max, (20_000 - 128 - 14_904) / 3);
        let exact = share_out(Some(needed(4096)), 4096);
        assert_eq!((exact.conns_max, exact.too_low), (5232, None));
    }

    #[test]
    fn a_limit_that_is_too_low_is_told_with_what_to_do() {
        let little = share_out(Some(1024), 4096);
        assert_eq!((little.conns_max, little.handles_max), (672, 74));
        let text = little.warning(4096).expect("too low");
        assert!(text.contains("room for 672 connections"), "{text}");
        assert!(text.contains("have 1024 open files"), "{text}");
        assert!(text.contains("at least 7104"), "{text}");
        let none = share_out(Some(0), 4096);
        assert_eq!((none.conns_max, none.handles_max), (1, 16));
    }
}
