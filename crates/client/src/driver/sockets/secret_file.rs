//! The file of the client's secret, which a thread of its own reads: the I/O thread, on which all
//! sessions depend, must not wait for a file system that does not answer.

use crate::driver::SignalGuard;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use tidegate_net::Secret;

/// See the head of the file.
pub(crate) struct SecretFile {
    path: PathBuf,
    /// What was in the file when it was last read.
    secret: Arc<Secret>,
    /// What each thread of the client calls first, if anything.
    begins: Option<fn()>,
    /// Where the thread that reads the file gives what it has read; None while there is no thread.
    reading: Option<Receiver<Secret>>,
}

impl SecretFile {
    /// The file at this path, in which this secret was found.
    pub(crate) fn new(path: PathBuf, secret: Secret, begins: Option<fn()>) -> SecretFile {
        SecretFile {
            path,
            secret: Arc::new(secret),
            begins,
            reading: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins to read the file, unless a thread is still at it.
    pub(super) fn read_again(&mut self) {
        self.take();
        if self.reading.is_some() {
            return;
        }
        let (sender, receiver) = sync_channel(1);
        let (path, begins) = (self.path.clone(), self.begins);
        let _guard = SignalGuard::begin();
        // Without a thread, or if the file cannot be read now, what was there before stays.
        let thread = thread::Builder::new().name("tidegate-secret".to_string());
        let read = move || {
            if let Some(begins) = begins {
                begins();
            }
            if let Ok(secret) = Secret::read(&path) {
                // Nobody waits for it once the client has ended.
                let _ = sender.send(secret);
            }
        };
        self.reading = thread.spawn(read).is_ok().then_some(receiver);
    }

    /// Whether a thread is still reading the file.
    pub(super) fn is_being_read(&mut self) -> bool {
        self.take();
        self.reading.is_some()
    }

    /// What was last read.
    pub(super) fn secret(&self) -> Arc<Secret> {
        Arc::clone(&self.secret)
    }

    fn take(&mut self) {
        let Some(reading) = &self.reading else {
            return;
        };
        match reading.try_recv() {
            Ok(secret) => self.secret = Arc::new(secret),
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => {}
        }
        self.reading = None;
    }
}
