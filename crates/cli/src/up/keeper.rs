//! Keeps the forwarders of a local set: one that dies is started again after a pause, which doubles
//! while it dies again. One that was told to end stays away. One that refuses what it is told
//! counts as dead: it has served with the same before, so what it misses may come back.

use crate::errln;
use crate::fail::Fail;
use crate::restarts::{Restart, Restarts, now_s};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// The pause before the first start, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often in a row a forwarder may die.
const DEATHS_MAX: u32 = 8;

/// One that lived for so long did not die in a row with the death before.
const STEADY: Duration = Duration::from_secs(300);

/// A forwarder's process, or the lack of one.
pub struct Kept {
    /// None once it has ended.
    pub child: Option<Child>,
    /// When it was started the last time.
    started: Instant,
    /// How often in a row it has died.
    deaths: u32,
    /// When to start it again; None if it runs, or stays away.
    due: Option<Instant>,
}

impl Kept {
    /// One that has just been started.
    pub fn new(child: Child) -> Kept {
        Kept {
            child: Some(child),
            started: Instant::now(),
            deaths: 0,
            due: None,
        }
    }

    /// Whether it runs, or is to be started again.
    pub fn is_kept(&self) -> bool {
        self.child.is_some() || self.due.is_some()
    }

    /// How the process ended, if it has since the last look.
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }

    /// Notes a death: when to start again, if at all.
    fn died(&mut self, now: Instant) {
        if now.saturating_duration_since(self.started) >= STEADY {
            self.deaths = 0;
        }
        self.deaths += 1;
        let pause = PAUSE.saturating_mul(1 << (self.deaths - 1).min(16));
        self.due = (self.deaths <= DEATHS_MAX).then(|| now + pause.min(PAUSE_MAX));
    }
}

/// What the keeper needs to know of a set.
pub trait Set {
    /// Starts the process of a forwarder again; None if somebody else has.
    fn start_again(&self, index: usize) -> Result<Option<Child>, Fail>;
    /// The path of its log.
    fn log(&self, index: usize) -> String;
    /// The last line of its log.
    fn last_words(&self, index: usize) -> String;
    /// Keeps for other commands what was restarted.
    fn write(&self, restarts: &Restarts);
}

/// Prints that a child has been stopped, as by SIGSTOP, or goes on, if it has since the last look:
/// programs wait meanwhile, and nothing else tells them.
pub fn look_for_stop(name: &str, child: &Child) {
    let pid = Pid::from_child(child);
    let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
    let Ok(Some(found)) = waitid(WaitId::Pid(pid), options) else {
        return;
    };
    let pid = pid.as_raw_nonzero();
    match found.stopping_signal() {
        Some(signal) => errln!(
            "tidegate: {name} (process {pid}) is stopped, by signal {signal}: programs wait for \
             it; `kill -CONT {pid}` lets it go on"
        ),
        None if found.continued() => errln!("tidegate: {name} (process {pid}) goes on"),
        None => {}
    }
}

/// Notes and prints which forwarders have ended. `again`: those that died are to be started again.
pub fn look(set: &dyn Set, kept: &mut [Kept], restarts: &mut Restarts, again: bool) {
    for (index, one) in kept.iter_mut().enumerate() {
        let Some(status) = one.ended() else {
            if let Some(child) = &one.child {
                look_for_stop(&format!("forwarder {index}"), child);
            }
            continue;
        };
        let log = set.log(index);
        let mut then = String::new();
        let mut how = status.to_string();
        if status.code().is_some_and(|code| code != 0) {
            how = format!("{how}: {}", set.last_words(index));
        }
        if again && is_death(status) {
            note_death(one, restarts.of(index), &how);
            set.write(restarts);
            then = match one.due {
                Some(due) => {
                    let pause = due.saturating_duration_since(Instant::now()).as_secs_f64();
                    format!("; starting it again in {pause:.0} s")
                }
                None => format!("; it died {} times in a row and stays away", one.deaths),
            };
        }
        errln!("tidegate: forwarder {index} ended ({how}){then}; its log is {log}");
    }
}

fn note_death(one: &mut Kept, known: &mut Restart, how: &str) {
    one.died(Instant::now());
    known.how = how.to_string();
    (known.waits, known.given_up) = (one.due.is_some(), one.due.is_none());
}

/// Starts those whose time has come.
pub fn start_due(set: &dyn Set, kept: &mut [Kept], restarts: &mut Restarts) {
    let now = Instant::now();
    for (index, one) in kept.iter_mut().enumerate() {
        if one.due.is_none_or(|due| due > now) {
            continue;
        }
        one.due = None;
        match set.start_again(index) {
            Ok(Some(child)) => {
                (one.child, one.started) = (Some(child), now);
                let known = restarts.of(index);
                (known.count, known.last_s) = (known.count.saturating_add(1), now_s());
                known.waits = false;
                set.write(restarts);
            }
            Ok(None) => {
                restarts.of(index).waits = false;
                set.write(restarts);
            }
            Err(fail) => {
                errln!("tidegate: forwarder {index}: {}", fail.message);
                note_death(one, restarts.of(index), &fail.message);
                set.write(restarts);
            }
        }
    }
}

/// How long until something is due.
pub fn pause(kept: &[Kept]) -> Option<Duration> {
    let due = kept.iter().filter_map(|one| one.due).min()?;
    Some(due.saturating_duration_since(Instant::now()))
}

/// Whether nobody has asked for this end: 0 is the end of one that was told to.
fn is_death(status: ExitStatus) -> bool {
    let asked = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT];
    let by_signal = status
        .signal()
        .is_some_and(|signal| !asked.contains(&signal));
    by_signal || !matches!(status.code(), None | Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let now = Instant::now();
        let mut one = Kept {
            child: None,
            started: now,
            deaths: 0,
            due: None,
        };
        let mut pauses = Vec::new();
        for _ in 0..=DEATHS_MAX {
            one.died(now);
            pauses.push(one.due.map(|due| (due - now).as_secs()));
        }
        let some = [1, 2, 4, 8, 16, 32, 60, 60].map(Some);
        assert_eq!(pauses, [&some[..], &[None]].concat());
        one.died(now + STEADY);
        assert_eq!(one.due, Some(now + STEADY + PAUSE), "it lived long");
    }

    #[test]
    fn an_end_that_was_asked_for_is_no_death() {
        for (raw, dies) in [(0, false), (9, true), (11, true), (15, false), (2, false)] {
            assert_eq!(is_death(ExitStatus::from_raw(raw)), dies, "signal {raw}");
        }
        for (code, dies) in [(0, false), (1, true), (2, true), (101, true)] {
            assert_eq!(
                is_death(ExitStatus::from_raw(code << 8)),
                dies,
                "code {code}"
            );
        }
    }
}
