//! Stopping what `tidegate up` started: the mount first, so that what it still has reaches the
//! forwarders, then these.

use crate::processes;
use crate::state::{ClientFile, StateDir};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// For the mount to end by itself.
const MOUNT_PATIENCE: Duration = Duration::from_secs(15);
/// For forwarders to drain: longer than their own bound.
const DRAIN_PATIENCE: Duration = Duration::from_secs(35);

/// Stops what the state directory knows of. False if something had to be killed.
pub fn stop(state: &StateDir) -> bool {
    let mut gently = true;
    if let Some(pid) = processes::find(&state.file("mount.pid"), "mount") {
        gently &= processes::end(pid, "mount", MOUNT_PATIENCE);
    }
    let client = ClientFile::read(&state.client_file()).ok();
    if let Some(point) = client.as_ref().and_then(|client| client.mount.as_ref())
        && processes::is_mounted(point)
    {
        detach(point);
    }
    let configs = client.map_or(0, |client| client.forwarders.len());
    let running: Vec<_> = (0..configs)
        .filter_map(|index| {
            let mark = state.forwarder(index, "toml").display().to_string();
            let pid = processes::find(&state.forwarder(index, "pid"), &mark)?;
            Some((pid, mark))
        })
        .collect();
    // All at once: each waits for its own work only.
    std::thread::scope(|scope| {
        let ends: Vec<_> = running
            .iter()
            .map(|(pid, mark)| scope.spawn(move || processes::end(*pid, mark, DRAIN_PATIENCE)))
            .collect();
        for end in ends {
            gently &= end.join().unwrap_or(false);
        }
    });
    for name in ["mount.pid", "up.pid", "client.toml"] {
        // Left from an earlier run, or already gone.
        let _ = std::fs::remove_file(state.file(name));
    }
    for index in 0..configs {
        let _ = std::fs::remove_file(state.forwarder(index, "pid"));
    }
    gently
}

/// Takes a mount away whose process is gone.
pub fn detach(point: &Path) -> bool {
    let commands: [(&str, &[&str]); 3] = [
        ("fusermount3", &["-uz"]),
        ("fusermount", &["-uz"]),
        ("umount", &["-l"]),
    ];
    commands.iter().any(|(program, flags)| {
        let quiet = Command::new(program)
            .args(*flags)
            .arg(point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        quiet.is_ok_and(|status| status.success())
    })
}
