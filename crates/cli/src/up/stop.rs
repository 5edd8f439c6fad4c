//! Stops what `tidegate up` started: the mount first, and those that `tidegate mount` made of it,
//! so that their last requests reach the forwarders, then the forwarders.

use crate::copies::{self, Copy};
use crate::dead_mount::{self, is_tidegates};
use crate::errln;
use crate::holders::{self, Holder};
use crate::members::{self, RunningMount};
use crate::processes::{self, Process};
use crate::restarts::Restarts;
use crate::set_mounts::SetMount;
use crate::state::{FORWARDERS_MAX, MOUNT, StateDir};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For the mount to end by itself.
const MOUNT_PATIENCE: Duration = Duration::from_secs(15);
/// Between two requests that the mount end.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// For forwarders to drain: longer than their own bound.
const DRAIN_PATIENCE: Duration = Duration::from_secs(35);

/// The file of the state directory that says what had to be killed, a line each.
const KILLED: &str = "killed";

/// A mount that processes still use, or have a copy of, while the command wants to unmount it.
pub struct Busy {
    point: PathBuf,
    holders: Vec<Holder>,
    copies: Vec<Copy>,
    since: Instant,
}

impl Busy {
    /// Finds the processes that use the mounts of a state directory; prints them on standard error,
    /// and how long the command waits for them.
    pub fn look(state: &StateDir) -> Vec<Busy> {
        let mut points: Vec<PathBuf> = SetMount::all(state)
            .into_iter()
            .filter(|(mount, process)| process.is_some() && mount.is_there())
            .map(|(mount, _)| mount.point)
            .collect();
        let named = client_mount(state).map(|point| holders::spelled(&point));
        points.extend(named.filter(|point| is_tidegates(point)));
        points.sort();
        points.dedup();
        points.into_iter().filter_map(Busy::look_at).collect()
    }

    /// The same of the mount at one place.
    fn look_at(point: PathBuf) -> Option<Busy> {
        let (holders, copies) = (holders::find(&point), copies::find(&point));
        let place = point.display();
        if let Some(first) = copies.first() {
            let more = match copies.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            errln!(
                "tidegate: a copy of the mount {place} is in the mount namespace of {first}{more}; \
                 it ends, too"
            );
        }
        if !holders.is_empty() {
            errln!(
                "tidegate: the mount {place} is in use by {}; waiting up to {} s until they let go \
                 of it",
                holders::list(&holders),
                MOUNT_PATIENCE.as_secs()
            );
        }
        let is_used = !holders.is_empty() || !copies.is_empty();
        is_used.then_some(Busy {
            point,
            holders,
            copies,
            since: Instant::now(),
        })
    }

    /// Prints that no process uses the mount any more, if one has.
    pub fn say_free(&self) {
        if self.holders.is_empty() {
            return;
        }
        let seconds = self.since.elapsed().as_secs_f64();
        let point = self.point.display();
        errln!("tidegate: {point} was let go of and taken away after {seconds:.1} s");
    }

    /// Those that are still there.
    fn still(&self) -> Vec<Holder> {
        let there = self.holders.iter().filter(|holder| holder.is_there());
        there.cloned().collect()
    }

    /// What keeps the mount, for a message.
    fn text(&self) -> String {
        let there = self.still();
        match (there.is_empty(), self.copies.first()) {
            (false, _) => format!(" in use by {}", holders::list(&there)),
            (true, Some(copy)) => format!(", of which a copy is in the namespace of {copy}"),
            (true, None) => String::new(),
        }
    }
}

/// Ends the mount; true if it ended by itself. It serves open files to their end, and so does a
/// process that has its working directory there. For nothing else: where the mount has a copy in
/// another namespace, the kernel would let it live as long as that.
fn end_mount(process: &Process, busy: Option<&Busy>) -> bool {
    let is_waited_for = || {
        let there = busy.map_or(Vec::new(), Busy::still);
        there.iter().any(|holder| !holder.has_file())
    };
    let mut asked = Instant::now();
    process.end_or(MOUNT_PATIENCE, || {
        if asked.elapsed() < ASK_AGAIN || is_waited_for() {
            return;
        }
        asked = Instant::now();
        // It ends now if no file is open on it, which it knows best.
        process.ask_to_end();
    })
}

/// Stops the processes of the state directory, those included that no file of it names. Returns
/// those that it had to kill, in words.
pub fn stop(state: &StateDir) -> Vec<String> {
    let (mounts, forwarders) = members::running(state);
    let told = SetMount::all(state);
    let client = client_mount(state);
    let mut killed = end_mounts(&mounts, client.as_deref());
    for (mount, _) in &told {
        if mount.is_there() {
            processes::detach(&mount.point);
        }
        mount.forget(state);
    }
    // Those of which only their place is known, if nobody serves them any more.
    let points = mounts.into_iter().filter_map(|(point, _)| point);
    for point in points.chain(client).chain([state.file(MOUNT)]) {
        dead_mount::mend(&point);
    }
    killed.extend(end_forwarders(&forwarders));
    for name in ["mount.pid", "up.pid", "client.toml"] {
        // Left from an earlier run, or already gone.
        let _ = std::fs::remove_file(state.inside(&state.file(name)));
    }
    Restarts::remove(state);
    for index in 0..FORWARDERS_MAX {
        for what in ["pid", "sock"] {
            let _ = std::fs::remove_file(state.inside(&state.forwarder(index, what)));
        }
    }
    if !killed.is_empty() {
        // For a `tidegate down` that waits for this; without the file, the log still says it.
        let _ = std::fs::write(state.inside(&state.file(KILLED)), killed.join("\n"));
    }
    killed
}

/// Where `client.toml` says that the set is mounted.
fn client_mount(state: &StateDir) -> Option<PathBuf> {
    state.read_client_file().ok()?.mount
}

/// Ends the processes of mounts, all at once; returns those that it had to kill, in words.
/// `client`: where one is whose place is not told.
fn end_mounts(mounts: &[RunningMount], client: Option<&Path>) -> Vec<String> {
    std::thread::scope(|scope| {
        let ends = mounts.iter().map(|(point, process)| {
            scope.spawn(move || {
                let point = point.as_deref().or(client);
                let there = point.filter(|point| is_tidegates(point));
                let busy = there.and_then(|point| Busy::look_at(point.to_path_buf()));
                if end_mount(process, busy.as_ref()) {
                    busy.iter().for_each(Busy::say_free);
                    return None;
                }
                let still = busy.map_or(String::new(), |busy| busy.text());
                let seconds = MOUNT_PATIENCE.as_secs();
                Some(format!("the mount{still}, after {seconds} s"))
            })
        });
        let ends: Vec<_> = ends.collect();
        let ends = ends.into_iter().filter_map(|end| end.join().ok());
        ends.flatten().collect()
    })
}

/// Whether something is left to stop, be it only a dead mount.
pub fn is_left(state: &StateDir) -> bool {
    let mut told = SetMount::all(state).into_iter();
    members::runs(state)
        || told.any(|(mount, _)| mount.is_there())
        || dead_mount::is_dead(&state.file(MOUNT))
}

/// Takes the list of what the [`stop`] of another process has killed.
pub fn take_killed(state: &StateDir) -> Vec<String> {
    let path = state.inside(&state.file(KILLED));
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    // Not there if nothing was killed.
    let _ = std::fs::remove_file(path);
    text.lines().map(str::to_string).collect()
}

/// The message when processes had to be killed.
pub fn cut_off(killed: &[String]) -> String {
    let what = killed.join("; ");
    format!("stopped, but this had to be killed: {what}; its requests were cut off")
}

/// Ends the forwarders; returns those that it had to kill.
fn end_forwarders(running: &[(usize, Process)]) -> Vec<String> {
    // All at once: each waits for its own work only.
    std::thread::scope(|scope| {
        let ends = running.iter().map(|(index, process)| {
            let end = scope.spawn(move || process.end(DRAIN_PATIENCE));
            (index, end)
        });
        let ends: Vec<_> = ends.collect();
        let killed = ends.into_iter().filter_map(|(index, end)| {
            let gently = end.join().unwrap_or(false);
            let seconds = DRAIN_PATIENCE.as_secs();
            (!gently).then(|| format!("forwarder {index}, after {seconds} s"))
        });
        killed.collect()
    })
}
