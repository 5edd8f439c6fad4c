//! `tidegate down`: stops what `tidegate up` started.

use crate::errln;
use crate::fail::Fail;
use crate::lock::StateLock;
use crate::members;
use crate::processes::Process;
use crate::restarts::Restarts;
use crate::state::StateDir;
use crate::up;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Longer than the forwarders' own bound of a drain.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often another `tidegate up` may have come between, before this gives up.
const ROUNDS_MAX: usize = 16;

/// Unmount and stop the forwarders that `tidegate up` started.
///
/// Mounts that `tidegate mount` made of these forwarders end too. Programs that use a mount are
/// named and waited for, up to 15 s; then they are cut off.
#[derive(clap::Args)]
pub struct Down {
    /// The state directory of that `tidegate up`
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Down {
    /// Stops them, also when the `tidegate up` that started them is gone.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let state = StateDir::choose(self.state_dir.as_deref());
        let is_there = state.enter()?;
        // Down in the mount, we would keep it busy ourselves. There always is a root.
        let _ = std::env::set_current_dir("/");
        let any_died = is_there && say_dead(&state);
        let mut killed = Vec::new();
        let mut found = false;
        let mut lock = None;
        for _ in 0..ROUNDS_MAX {
            // Before the lock, which that process needs to end.
            if let Some(process) = members::supervisor(&state) {
                found = true;
                // What an earlier one left.
                up::take_killed(&state);
                killed.extend(end(&state, &process));
                if state.is_gone() {
                    return ended(&killed);
                }
            }
            if !is_there {
                break;
            }
            let taken = match StateLock::take(&state, "down", up::LOCK_PATIENCE) {
                // Another has ended all that was here.
                Err(_) if state.is_gone() => return ended(&killed),
                taken => taken?,
            };
            // One that had the lock before us may be up now.
            if Process::find(&state.inside(&state.file("up.pid"))).is_none() {
                lock = Some(taken);
                break;
            }
        }
        // An `up` that was killed early has left its number alone.
        let files = [state.client_file(), state.file("up.pid")];
        let is_file = |file: &PathBuf| state.inside(file).exists();
        let rest = || files.iter().any(is_file) || up::is_left(&state);
        if is_there && lock.is_none() {
            let dir = state.path().display();
            return Err(Fail::runtime(format!(
                "{ROUNDS_MAX} times, another `tidegate up` has begun in {dir} while this ended the \
                 one before: end what starts them"
            )));
        }
        if !(found || rest()) {
            return Err(nothing_up(&state));
        }
        killed.extend(up::stop(&state));
        up::take_killed(&state);
        if killed.is_empty() && !any_died {
            state.remove_of_job();
        }
        ended(&killed)
    }
}

/// That there is nothing to stop, and where there may be.
fn nothing_up(state: &StateDir) -> Fail {
    let place = state.told();
    let other = state.outside_of_jobs().map_or(String::new(), |other| {
        let other = other.display();
        format!(", the directory of this job; that of no job is {other}")
    });
    let elsewhere = members::other_sets(state).map_or(String::new(), |sets| {
        format!("; you have forwarders in {sets}")
    });
    Fail::usage(format!(
        "nothing is up in {place}{other}{elsewhere}; see --state-dir"
    ))
}

/// The end, after this had to be killed.
fn ended(killed: &[String]) -> Result<ExitCode, Fail> {
    match killed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Fail::runtime(up::cut_off(killed))),
    }
}

/// Prints which forwarders had died, since who looks at the end of a set may not have seen it.
/// Whether any ever has.
fn say_dead(state: &StateDir) -> bool {
    let restarts = Restarts::read(state);
    if !restarts.any() {
        return false;
    }
    let (_, running) = members::running(state);
    let runs = |index| running.iter().any(|(one, _)| *one == index);
    for line in restarts.dead(runs) {
        errln!("tidegate: {line}");
    }
    true
}

/// Ends the `tidegate up` that runs; returns what had to be killed, in words.
fn end(state: &StateDir, process: &Process) -> Vec<String> {
    // That process says the same, but mostly into its log.
    let busy = up::Busy::look(state);
    let mut killed = Vec::new();
    if !process.end(PATIENCE) {
        let seconds = PATIENCE.as_secs();
        killed.push(format!("`tidegate up`, after {seconds} s"));
    }
    killed.extend(up::take_killed(state));
    if killed.is_empty() {
        busy.iter().for_each(up::Busy::say_free);
    }
    killed
}
