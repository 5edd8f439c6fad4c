//! The threads that let go of files which are not used: of those that other forwarders have removed
//! at once, of others after a while. They are two because the other files may have to be written
//! back first, which takes as long as the back end likes.

use crate::storage::PosixFiles;
use crate::thread_rights::{Work, keep_for};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
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

/// The running threads.
pub(super) struct Tidying {
    files: PosixFiles,
    tidy: Running,
    removed: Running,
}

struct Running {
    /// Dropped when the thread is to end.
    end: Sender<()>,
    /// Ends with the thread.
    ended: Receiver<()>,
}

impl Tidying {
    pub(super) fn start(files: PosixFiles) -> io::Result<Tidying> {
        Ok(Tidying {
            tidy: Running::start("tidy", &files, tidy)?,
            removed: Running::start("removed", &files, let_go_of_removed)?,
            files,
        })
    }

    /// Ends the threads, unless one waits for a back end that never answers. Then it ends with the
    /// process.
    pub(super) fn end(self) {
        let Running { end, ended } = self.removed;
        drop((end, self.tidy.end));
        self.files.end_wait();
        for ended in [ended, self.tidy.ended] {
            let _ = ended.recv_timeout(TIDY_END_MAX);
        }
    }
}

impl Running {
    fn start(
        name: &str,
        files: &PosixFiles,
        run: fn(&PosixFiles, &Receiver<()>),
    ) -> io::Result<Running> {
        let (end, its_end) = channel::<()>();
        let (its_ended, ended) = channel::<()>();
        let files = files.clone();
        let thread = std::thread::Builder::new().name(name.to_string());
        thread.spawn(move || {
            keep_for(Work::OwnFiles);
            let _ended: Sender<()> = its_ended;
            run(&files, &its_end);
        })?;
        Ok(Running { end, ended })
    }
}

fn tidy(files: &PosixFiles, end: &Receiver<()>) {
    let mut rounds = 0;
    let mut learn_at = Instant::now();
    while end.recv_timeout(TIDY_EVERY) == Err(RecvTimeoutError::Timeout) {
        files.look_at_hidden();
        let mut looked = Instant::now();
        // What follows may take long where there are many files and calls are slow.
        let mut goes_on = || {
            if looked.elapsed() >= TIDY_EVERY {
                files.look_at_hidden();
                looked = Instant::now();
            }
            end.try_recv() != Err(TryRecvError::Disconnected)
        };
        files.tidy();
        files.trim_notes(&mut goes_on);
        let began = Instant::now();
        if began >= learn_at {
            if let Err(error) = files.learn_of_moves(&mut goes_on) {
                warn!(%error, "renames by other forwarders are not known; trying again");
            }
            // A tenth of the time at most.
            learn_at = Instant::now() + began.elapsed() * 10;
        }
        rounds += 1;
        if rounds % SWEEP_ROUNDS == 0
            && let Err(error) = files.sweep_apart(&mut goes_on)
        {
            warn!(%error, "files without a name stay until the next time");
        }
    }
}

fn let_go_of_removed(files: &PosixFiles, end: &Receiver<()>) {
    loop {
        let told = files.told_of_removals();
        if end.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
        files.let_go_of_removed();
        files.wait_for_removals(told, TIDY_EVERY);
        std::thread::sleep(REMOVED_PAUSE);
    }
}
