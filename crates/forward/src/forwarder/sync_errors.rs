//! Who is told that written bytes are lost.
//!
//! The kernel reports an error of write-back once to each descriptor that was open before. All
//! clients' bytes of a file go through one descriptor of the host, so the kernel tells the
//! forwarder once, at the fsync of one client. The forwarder then owes the error to every other
//! client that has the file open here, or that has written the file through a seat that does not
//! keep its opens: that client's next fsync of the file returns the error, once.
//!
//! A connection may end before the client has the answer. The client then repeats the request, by
//! the same number, and is told again.

use super::Forwarder;
use super::ill::is_away;
use super::receive::{Key, Pending};
use crate::back_end_files::Errno;
use alloc::collections::{BTreeMap, BTreeSet};
use tidegate_wire::{Handle, Op, Outcome, Status};

/// The most files that one client has written, as far as the forwarder remembers them. A client
/// with more counts as one that has written every file.
const WROTE_MAX: usize = 1024;

/// The most errors that are kept for one client. Beyond it the forwarder forgets one.
const OWED_MAX: usize = 4096;

/// What a client has not made stable, and has not been told.
#[derive(Default)]
pub(super) struct Unsynced {
    /// Errors of which the client's next fsync of the file tells.
    owed: BTreeMap<Handle, Errno>,
    /// Files that it has written through seats other than their own since its last fsync of them.
    wrote: BTreeSet<Handle>,
    /// There were too many of those.
    wrote_more: bool,
    /// The number of the last fsync of a file that has told of an error, and the error.
    told: BTreeMap<Handle, (u64, Errno)>,
}

impl Unsynced {
    fn owe(&mut self, handle: Handle, errno: Errno) {
        if self.owed.len() >= OWED_MAX && !self.owed.contains_key(&handle) {
            self.owed.pop_first();
        }
        self.owed.insert(handle, errno);
    }

    fn told(&mut self, handle: Handle, request: u64, errno: Errno) {
        self.forget(handle);
        if self.told.len() >= OWED_MAX {
            self.told.pop_first();
        }
        self.told.insert(handle, (request, errno));
    }

    /// What a request has told that this one repeats. Another request shows that its answer came.
    fn repeated(&mut self, handle: Handle, request: u64) -> Option<Errno> {
        let (told, errno) = self.told.get(&handle).copied()?;
        if told != request {
            self.told.remove(&handle);
            return None;
        }
        Some(errno)
    }

    fn wrote(&mut self, handle: Handle) {
        match self.wrote.len() < WROTE_MAX {
            true => drop(self.wrote.insert(handle)),
            false => self.wrote_more |= !self.wrote.contains(&handle),
        }
    }

    fn has_written(&self, handle: Handle) -> bool {
        self.wrote_more || self.wrote.contains(&handle)
    }

    /// The client has no open of the file here any more, or was told of its loss.
    pub(super) fn forget(&mut self, handle: Handle) {
        self.owed.remove(&handle);
        self.wrote.remove(&handle);
        self.told.remove(&handle);
    }
}

impl Forwarder {
    /// Notes who has written, where no open tells it.
    pub(super) fn note_written(&mut self, key: Key) {
        let pending = &self.requests[key];
        let (handle, _) = pending.extent(0);
        if self.config.layout.seat_of_file(handle) != pending.seat
            && let Some(client) = self.clients.get_mut(&pending.client)
        {
            client.unsynced.wrote(handle);
        }
    }

    /// The result of an fsync for its client. An error that the client cannot be told now, because
    /// the forwarder has answered this request early or the connection has ended, is told by the
    /// client's next fsync of the file.
    pub(super) fn synced(
        &mut self,
        pending: &Pending,
        result: Result<Outcome, Status>,
    ) -> Result<Outcome, Status> {
        let Op::Fsync { handle, .. } = *pending.op() else {
            return result;
        };
        let failed = match &result {
            Err(Status::Errno(errno)) => Some(Errno(*errno)),
            _ => None,
        };
        if let Some(errno) = failed.filter(|errno| tells_loss(*errno)) {
            self.owe_others(pending.client, handle, errno);
        }
        let client = self.clients.get_mut(&pending.client);
        let client = client.expect("its client has state");
        let told = !pending.answered_early && client.replies_on(pending.conn).is_some();
        let unsynced = &mut client.unsynced;
        if let Some(errno) = unsynced.repeated(handle, pending.id)
            && result.is_ok()
        {
            return Err(Status::Errno(errno.0));
        }
        match failed {
            Some(errno) if !told && !is_away(errno) => unsynced.owe(handle, errno),
            // What the kernel says now stands for all that it has said before.
            Some(errno) if told && tells_loss(errno) => unsynced.told(handle, pending.id, errno),
            None if told && result.is_ok() => {
                unsynced.wrote.remove(&handle);
                if let Some(errno) = unsynced.owed.remove(&handle) {
                    unsynced.told(handle, pending.id, errno);
                    return Err(Status::Errno(errno.0));
                }
            }
            _ => {}
        }
        result
    }

    /// Owes an error to all clients but the one whose fsync it has ended.
    fn owe_others(&mut self, told: u64, handle: Handle, errno: Errno) {
        for (id, client) in &mut self.clients {
            let concerned = || self.opens.has(*id, handle) || client.unsynced.has_written(handle);
            if *id != told && !client.ended && concerned() {
                client.unsynced.owe(handle, errno);
            }
        }
    }
}

/// Whether the kernel says this of bytes that it could not write back. Other errors concern the
/// call, and a call of another client finds them by itself.
fn tells_loss(errno: Errno) -> bool {
    [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT].contains(&errno)
}
