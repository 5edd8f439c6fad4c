//! Looks that end in time, whatever they look at: a thread that is left behind, or where the kernel
//! may not let go of a call, a process that is.

use super::finding::Finding;
use crate::installed;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// What `look` returns, or None if that takes longer than `limit`.
pub fn within<T: Send + 'static>(
    limit: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let seen = Arc::new(Mutex::new(None));
    let put = seen.clone();
    let job = move || {
        let found = look();
        *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
    };
    ends_within(limit, Box::new(job));
    seen.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Waits for the job's end, `limit` at most. One function for all, which keeps the program small.
fn ends_within(limit: Duration, job: Box<dyn FnOnce() + Send>) {
    let (ended, ends) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        job();
        let _ = ended.send(());
    });
    let _ = ends.recv_timeout(limit);
}

/// The findings of a look, or that it has not ended within `limit`.
pub fn findings(
    check: &str,
    limit: Duration,
    look: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    within(limit, look).unwrap_or_else(|| vec![late(check, limit)])
}

/// That a look has not ended.
pub fn late(check: &str, limit: Duration) -> Finding {
    let seconds = limit.as_secs();
    Finding::fails(
        check,
        format!("the look at it has not ended within {seconds} s"),
        "a file system or a server that it needs does not answer: see which mounts of this node \
         hang (/proc/self/mountinfo), and whether names of hosts are resolved",
    )
}

/// What a process of this command finds at a place, None if it says nothing within `limit`. A call
/// that the kernel does not end keeps that process, and not this one.
pub fn apart(probe: &str, place: &Path, limit: Duration) -> Option<Vec<Finding>> {
    let mut command = Command::new(installed::own().ok()?);
    command.args(["doctor", "--probe", probe, "--"]).arg(place);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let mut output = child.stdout.take()?;
    let read = move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    };
    let text = within(limit, read);
    // Whatever is left of it ends by that, or when the kernel lets go of it.
    let _ = child.kill();
    if text.is_some() {
        let _ = child.wait();
    }
    serde_json::from_str(&text?.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_does_not_end_is_told() {
        let (_open, never) = mpsc::channel::<()>();
        let told = findings("it", Duration::from_millis(20), move || {
            let _ = never.recv();
            Vec::new()
        });
        assert_eq!(told.len(), 1);
        assert!(told[0].text.contains("not ended"), "{told:?}");
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }
}
