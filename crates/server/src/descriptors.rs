//! How the process divides its limit of open descriptors: a connection takes one, a known file up
//! to three, until others need them.

use crate::config::Config;
use rustix::process::{Resource, getrlimit};

/// Descriptors that every forwarder has: its log, the export's root and hidden folder, locks and
/// notes of opens, listeners, epoll; and those of each seat and of each thread for connections.
const FIXED: u64 = 24;
const OF_A_SEAT: u64 = 3;
const OF_A_REACTOR: u64 = 2;
/// Those that calls need for a moment.
const MOMENTS_MIN: u64 = 6;
const MOMENTS_MAX: u64 = 64;
/// The fewest connections and descriptors of files with which a forwarder works at all.
const CONNS_MIN: u64 = 6;
const FILES_MIN: u64 = 8;
/// The most descriptors of files, whatever the limit.
const FILES_MAX: u64 = 65_536;
/// With fewer descriptors of files programs that use some hundred files run slowly.
const FILES_FAIR: u64 = 768;
/// The descriptors of files for each storage thread: a call on names opens several at once.
const OF_A_THREAD: u64 = 4;
const THREADS_MIN: u64 = 2;
/// The most pipes for pages that are sent without a copy.
const PIPES_MAX: u64 = 64;

/// For how many connections and files the limit of descriptors has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit; None if there is none.
    limit: Option<u64>,
    /// The most connections at once.
    pub conns_max: usize,
    /// How many of them may be additional connections of a session.
    pub joined_max: usize,
    /// The most descriptors of known files at once.
    pub files_max: usize,
    /// The most storage threads.
    pub threads_max: u32,
    /// The most pipes for pages.
    pub pipes_max: usize,
    /// Whether the limit is too low for the configured number of sessions.
    is_low: bool,
}

/// What a limit of open files lacks for a forwarder of four with the default number of sessions:
/// Err(why), if it does not start; Ok(Some(warning)), if it has less room than it wants.
pub fn open_files_lack(limit: Option<u64>) -> Result<Option<String>, String> {
    let wanted = Wanted {
        sessions_max: 4096,
        seats: 4,
        reactors: 1,
    };
    Ok(share_out(limit, wanted)?.warning(wanted))
}

/// What a forwarder is configured for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    sessions_max: u32,
    seats: u16,
    reactors: u32,
}

impl Descriptors {
    /// Divides the descriptors that this process may open now, and says so in the log, with a
    /// warning if they are few. The error says why they are too few for a forwarder.
    pub fn of_process(config: &Config) -> Result<Descriptors, String> {
        let wanted = Wanted {
            sessions_max: config.sessions_max,
            seats: config.seats,
            reactors: config.reactors,
        };
        let descriptors = share_out(getrlimit(Resource::Nofile).current, wanted)?;
        tracing::info!("{}", descriptors.words());
        if let Some(warning) = descriptors.warning(wanted) {
            tracing::warn!("{warning}");
        }
        Ok(descriptors)
    }

    /// The line for the log.
    fn words(&self) -> String {
        let Descriptors {
            conns_max,
            files_max,
            ..
        } = self;
        let limit = self.limit.map(|limit| limit.to_string());
        let limit = limit.as_deref().unwrap_or("unlimited");
        format!("open files: {limit}, of which {conns_max} connections and {files_max} of files")
    }

    /// The warning for a limit that is too low, or None.
    fn warning(&self, wanted: Wanted) -> Option<String> {
        let limit = self.limit.filter(|_| self.is_low)?;
        Some(format!(
            "room for {} connections, not for sessions_max = {}: this process may have {limit} \
             open files; raise the hard limit (ulimit -Hn, LimitNOFILE=) to at least {}",
            self.conns_max,
            wanted.sessions_max,
            wanted.enough()
        ))
    }
}

impl Wanted {
    /// How many additional connections all sessions together want; few clients gain from them, and
    /// many use none.
    fn joined(&self) -> u64 {
        u64::from(self.sessions_max) / 4
    }

    /// How many connections the sessions need. A client that reconnects has its old and its new
    /// connection for a moment.
    fn conns(&self) -> u64 {
        let sessions = u64::from(self.sessions_max);
        sessions + sessions / 4 + 64 + self.joined()
    }

    fn fixed(&self) -> u64 {
        FIXED + OF_A_SEAT * u64::from(self.seats) + OF_A_REACTOR * u64::from(self.reactors)
    }

    /// The lowest limit with which a forwarder works.
    fn least(&self) -> u64 {
        self.fixed() + MOMENTS_MIN + CONNS_MIN + FILES_MIN
    }

    /// The lowest limit that restricts nothing.
    fn enough(&self) -> u64 {
        self.fixed() + MOMENTS_MAX + 2 * PIPES_MAX + self.conns() + FILES_FAIR
    }
}

/// Serves connections first, because a file can be opened again. Connections get three quarters at
/// most.
fn share_out(limit: Option<u64>, wanted: Wanted) -> Result<Descriptors, String> {
    let bound = limit.unwrap_or(u64::MAX);
    let least = wanted.least();
    if bound < least {
        return Err(format!(
            "this process may have {bound} open files, and a forwarder needs {least}: raise the \
             hard limit (ulimit -Hn, LimitNOFILE=), if possible to {}",
            wanted.enough()
        ));
    }
    let moments = (bound / 16).clamp(MOMENTS_MIN, MOMENTS_MAX);
    let pipes = (bound / 128).min(PIPES_MAX);
    let others = wanted.fixed() + moments + 2 * pipes;
    let free = bound.saturating_sub(others).max(CONNS_MIN + FILES_MIN);
    let conns = wanted.conns().min(free / 4 * 3).min(free - FILES_MIN);
    let conns = conns.max(CONNS_MIN);
    let joined = wanted.joined().min(conns / 6);
    let files = (free - conns).min(FILES_MAX);
    Ok(Descriptors {
        limit,
        conns_max: conns as usize,
        joined_max: joined as usize,
        files_max: files as usize,
        threads_max: (files / OF_A_THREAD).max(THREADS_MIN) as u32,
        pipes_max: pipes as usize,
        is_low: conns < u64::from(wanted.sessions_max) + joined,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn wanted(sessions_max: u32) -> Wanted {
        Wanted {
            sessions_max,
            seats: 4,
            reactors: 1,
        }
    }

    #[test]
    fn connections_come_first_and_files_have_the_rest() {
        let shared = |limit, sessions| share_out(limit, wanted(sessions)).expect("enough");
        let plenty = shared(Some(1 << 20), 4096);
        assert_eq!((plenty.conns_max, plenty.files_max), (6208, 65_536));
        assert_eq!(plenty.joined_max, 1024);
        assert_eq!((plenty.threads_max, plenty.pipes_max), (16_384, 64));
        assert_eq!(plenty.warning(wanted(4096)), None);
        assert_eq!(
            shared(None, 4096),
            Descriptors {
                limit: None,
                ..plenty
            }
        );
        let some = shared(Some(20_000), 10_240);
        let others = 24 + 4 * 3 + 2 + 64 + 128;
        assert_eq!(
            (some.conns_max, some.is_low),
            ((20_000 - others) / 4 * 3, false)
        );
        assert_eq!(some.files_max, 20_000 - others - some.conns_max);
        let exact = shared(Some(wanted(4096).enough()), 4096);
        assert_eq!(exact.warning(wanted(4096)), None);
    }

    #[test]
    fn a_limit_that_is_too_low_is_told_with_what_to_do() {
        let little = share_out(Some(1024), wanted(4096)).expect("it works");
        assert_eq!((little.conns_max, little.files_max), (678, 228));
        let text = little.warning(wanted(4096)).expect("too low");
        assert!(text.contains("room for 678 connections"), "{text}");
        assert!(text.contains("have 1024 open files"), "{text}");
        assert!(text.contains("at least 7206"), "{text}");
        let words = little.words();
        assert_eq!(
            words,
            "open files: 1024, of which 678 connections and 228 of files"
        );
    }

    #[test]
    fn few_descriptors_are_shared_out_and_too_few_refused_with_what_is_needed() {
        let few = share_out(Some(64), wanted(4096)).expect("it works");
        assert_eq!((few.conns_max, few.files_max), (12, 8));
        assert_eq!((few.threads_max, few.pipes_max), (2, 0));
        let used = 24 + 4 * 3 + 2 + 6 + few.conns_max + few.files_max;
        assert_eq!(used, 64);
        let least = wanted(4096).least();
        let at_least = share_out(Some(least), wanted(4096)).expect("it works");
        assert_eq!((at_least.conns_max, at_least.files_max), (6, 8));
        let refused = share_out(Some(least - 1), wanted(4096)).expect_err("too few");
        assert!(refused.contains("a forwarder needs 58:"), "{refused}");
    }
}
