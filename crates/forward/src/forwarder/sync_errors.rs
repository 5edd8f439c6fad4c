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
use super::holdings::{Bound, STEP};
use super::ill::is_away;
use super::receive::{Key, Pending};
use crate::back_end_files::Errno;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use tidegate_wire::{Handle, Op, Outcome, Status};

/// The most files that one client has written, as far as the forwarder remembers them: as many as a
/// client itself remembers. Beyond it the forwarder forgets the eighth that was written first.
const WROTE_MAX: u32 = 1 << 16;

/// Such files of all clients of one holder; as many as a user may have open.
const WROTE: Bound = Bound {
    of_user: 1 << 17,
    of_node: 1 << 17,
};

/// Such files of all clients, about 50 bytes each; a client may have `STEP` more before they are
/// counted. Beyond it the forwarder forgets files of the client that has the most: a file whose
/// opens and names end at other seats is never heard of again.
const WROTE_OF_ALL_MAX: u32 = if cfg!(test) { 1 << 11 } else { 1 << 20 };

/// The most fsyncs that have told one client of errors, as far as the forwarder remembers them. The
/// client repeats those alone that it was waiting for, which are fewer.
const TOLD_MAX: usize = 4096;

/// What a client has not made stable, and has not been told.
#[derive(Default)]
pub(super) struct Unsynced {
    /// Errors of which the client's next fsync of the file tells. It has the file open here, or the
    /// file is in `wrote`; so there are no more than the client may have opens, and `WROTE_MAX`.
    owed: BTreeMap<Handle, Errno>,
    wrote: Wrote,
    /// The fsyncs that have told of an error, by number: file and error.
    tellers: BTreeMap<u64, (Handle, Errno)>,
}

/// Files that a client has written through seats other than their own since its last fsync of them.
#[derive(Default)]
struct Wrote {
    /// By file, a number that grows.
    files: BTreeMap<Handle, u64>,
    last: u64,
}

impl Wrote {
    fn insert(&mut self, handle: Handle) {
        self.last += 1;
        self.files.insert(handle, self.last);
    }

    /// Forgets the eighth that was written first, one file at least. An eighth, because it looks at
    /// all of them.
    fn forget_first(&mut self) -> Vec<Handle> {
        let mut numbers: Vec<u64> = self.files.values().copied().collect();
        if numbers.is_empty() {
            return Vec::new();
        }
        let last = numbers.len() / 8;
        let last = *numbers.select_nth_unstable(last).1;
        let of_first = |_: &Handle, number: &mut u64| *number <= last;
        let first = self.files.extract_if(.., of_first);
        first.map(|(handle, _)| handle).collect()
    }
}

impl Unsynced {
    fn owe(&mut self, handle: Handle, errno: Errno) {
        self.owed.insert(handle, errno);
    }

    fn has_told(&mut self, handle: Handle, request: u64, errno: Errno) {
        self.settle(handle);
        if self.tellers.len() >= TOLD_MAX {
            self.tellers.pop_first();
        }
        self.tellers.insert(request, (handle, errno));
    }

    /// What a request has told that this one repeats.
    fn repeated(&self, handle: Handle, request: u64) -> Option<Errno> {
        let (file, errno) = self.tellers.get(&request)?;
        (*file == handle).then_some(*errno)
    }

    fn has_written(&self, handle: Handle) -> bool {
        self.wrote.files.contains_key(&handle)
    }

    fn written(&self) -> u32 {
        self.wrote.files.len() as u32
    }

    /// The client was told of all that it can be told of the file, or has no open of it here any
    /// more. Returns what it was owed.
    pub(super) fn settle(&mut self, handle: Handle) -> Option<Errno> {
        self.wrote.files.remove(&handle);
        self.owed.remove(&handle)
    }
}

impl Forwarder {
    /// Notes who has written, where no open tells it.
    pub(super) fn note_written(&mut self, key: Key) {
        let pending = &self.requests[key];
        let ((handle, _), client) = (pending.extent(0), pending.client);
        if self.config.layout.seat_of_file(handle) != pending.seat {
            self.remember(client, handle);
        }
    }

    /// Keeps in mind that a client has written a file, and perhaps forgets others for it.
    fn remember(&mut self, id: u64, handle: Handle) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        if client.unsynced.has_written(handle) {
            return;
        }
        let of = |id| self.clients.get(&id).map_or(0, |it| it.unsynced.written());
        let own = of(id);
        if own >= WROTE_MAX || !self.may_have_more(id, own, WROTE, of) {
            self.forget_first(id);
        }
        if own > 0 && own.is_multiple_of(STEP) {
            self.forget_written();
        }
        let client = self.clients.get_mut(&id).expect("it was there");
        client.unsynced.wrote.insert(handle);
    }

    /// Keeps what is remembered of all clients within its bound.
    fn forget_written(&mut self) {
        let written = self.clients.values().map(|it| it.unsynced.written());
        let mut all: u32 = written.sum();
        while all >= WROTE_OF_ALL_MAX {
            let clients = self.clients.iter();
            let most = clients.max_by_key(|(_, it)| it.unsynced.written());
            let id = *most.expect("somebody has written").0;
            all -= self.forget_first(id);
        }
    }

    /// Forgets files that a client has written first, and says how many.
    fn forget_first(&mut self, id: u64) -> u32 {
        let unsynced = &mut self.clients.get_mut(&id).expect("it is there").unsynced;
        let first = unsynced.wrote.forget_first();
        for handle in &first {
            if !self.opens.has(id, *handle) {
                unsynced.owed.remove(handle);
            }
        }
        first.len() as u32
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
        let client = self.clients.get(&pending.client);
        let client = client.expect("its client has state");
        let hears = !pending.answered_early && client.replies_on(pending.conn).is_some();
        if result.is_ok()
            && let Some(errno) = client.unsynced.repeated(handle, pending.id)
        {
            return Err(Status::Errno(errno.0));
        }
        let untold = failed.filter(|errno| !hears && !is_away(*errno));
        if untold.is_some() && !self.opens.has(pending.client, handle) {
            self.remember(pending.client, handle);
        }
        let client = self.clients.get_mut(&pending.client);
        let unsynced = &mut client.expect("its client has state").unsynced;
        match failed {
            Some(errno) if untold.is_some() => unsynced.owe(handle, errno),
            // What the kernel says now stands for all that it has said before.
            Some(errno) if hears && tells_loss(errno) => {
                unsynced.has_told(handle, pending.id, errno);
            }
            None if hears && result.is_ok() => {
                if let Some(errno) = unsynced.settle(handle) {
                    unsynced.has_told(handle, pending.id, errno);
                    return Err(Status::Errno(errno.0));
                }
            }
            _ => {}
        }
        result
    }

    /// Owes an error to all clients but the one whose fsync it has ended.
    fn owe_others(&mut self, caller: u64, handle: Handle, errno: Errno) {
        for (id, client) in &mut self.clients {
            let concerned = || self.opens.has(*id, handle) || client.unsynced.has_written(handle);
            if *id != caller && !client.ended && concerned() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_were_written_first_are_forgotten_first() {
        let mut wrote = Wrote::default();
        let file = |inode| Handle { inode, birth: 0 };
        for inode in (0..9).map(|n| n * 7 % 9) {
            wrote.insert(file(inode));
        }
        wrote.files.remove(&file(7));
        assert_eq!(wrote.forget_first(), [file(0), file(5)]);
        for inode in [3, 1, 8, 6, 4, 2] {
            assert_eq!(wrote.forget_first(), [file(inode)]);
        }
        assert_eq!(wrote.forget_first(), []);
    }
}
