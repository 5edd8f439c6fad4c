//! The thread that lets go of files which are not used: of those that other forwarders have removed
//! at once, of others after a while.

use crate::storage::PosixFiles;
use crate::thread_rights::{Work, keep_for};
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};
use tracing::warn;

/// How often a part of the known files is looked at.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How many such looks pass between two sweeps of removed files, where only a seat's holder knows
/// that no client has them open.
const SWEEP_ROUNDS: u32 = 10;

/// The pause between two looks at what was removed, so that many removals share one.
const REMOVED_PAUSE: Duration = Duration::from_millis(5);

/// How long a forwarder that stops waits until its idle files are closed.
const TIDY_END_MAX: Duration = Duration::from_secs(1);

/// The running thread.
pub(super) struct Tidying {
    files: PosixFiles,
    /// Dropped when the thread is to end.
    end: Sender<()>,
    /// Ends with the thread.
    tidied: Receiver<()>,
}

impl Tidying {
    pub(super) fn start(files: PosixFiles) -> io::Result<Tidying> {
        let (end, ended) = channel::<()>();
        let (tidy, tidied) = channel::<()>();
        let its = files.clone();
        let thread = std::thread::Builder::new().name("tidy".to_string());
        thread.spawn(move || {
            keep_for(Work::OwnFiles);
            let _tidy: Sender<()> = tidy;
            run(&its, &ended);
        })?;
        Ok(Tidying { files, end, tidied })
    }

    /// Ends the thread, unless it waits for a back end that never answers. Then it ends with the
    /// process.
    pub(super) fn end(self) {
        drop(self.end);
        self.files.end_wait();
        let _ = self.tidied.recv_timeout(TIDY_END_MAX);
    }
}

fn run(files: &PosixFiles, ended: &Receiver<()>) {
    let mut rounds = 0;
    let mut next = Instant::now() + TIDY_EVERY;
    loop {
        let told = files.told_of_removals();
        if ended.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
        files.let_go_of_removed();
        let left = next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            files.wait_for_removals(told, left);
            std::thread::sleep(REMOVED_PAUSE);
            continue;
        }
        next = Instant::now() + TIDY_EVERY;
        files.look_at_hidden();
        files.tidy();
        rounds += 1;
        if rounds % SWEEP_ROUNDS == 0
            && let Err(error) = files.sweep_apart()
        {
            warn!(%error, "files without a name stay until the next time");
        }
    }
}
