//! Which files a client that is not trusted has reached, so that it may use their handles.
//!
//! A handle is no secret: it can be guessed from those of files made at the same time. A client
//! that is not trusted may use handles that it got here, for names that it looked up, made, listed
//! or resolved, and those of files that it has open here. For any other one the host walks to the
//! file as the client's user, who must be allowed to list each directory on the way: such a user
//! could have found the file himself. Other handles are answered like handles that nobody knows;
//! the client may then send a path, which the host walks as the client's user too.

use super::receive::Key;
use super::{Forwarder, Running};
use crate::back_end_files::Access;
use crate::host::Job;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use tidegate_wire::{Handle, Op, Outcome, Status};

/// Files that the forwarder remembers for one client, in each of two generations.
const REACHED_MAX: usize = 4096;

/// Files that one client has reached. Those that were not used for long are forgotten.
#[derive(Default)]
pub(super) struct Reached {
    young: BTreeSet<Handle>,
    old: BTreeSet<Handle>,
}

impl Reached {
    fn add(&mut self, handle: Handle) {
        if self.young.len() >= REACHED_MAX {
            self.old = core::mem::take(&mut self.young);
        }
        self.young.insert(handle);
    }

    fn has(&mut self, handle: Handle) -> bool {
        if self.young.contains(&handle) {
            return true;
        }
        let found = self.old.remove(&handle);
        if found {
            self.add(handle);
        }
        found
    }
}

impl Forwarder {
    /// The first file of a request that its client, which is not trusted, has not reached.
    pub(super) fn unreached(&mut self, key: Key) -> Option<Handle> {
        let pending = &self.requests[key];
        let root = self.config.root.handle;
        let client = self.clients.get_mut(&pending.client)?;
        let files = pending.op().files().into_iter().flatten();
        let mut handles = files.map(|(handle, _)| handle);
        handles.find(|it| *it != root && !client.rights.has_open(*it) && !client.reached.has(*it))
    }

    /// Has the host look whether the client's user can find a file.
    pub(super) fn reach(&mut self, key: Key, handle: Handle) {
        let (client, caller) = (self.requests[key].client, Some(self.judged_as(key)));
        let work = Job::Op {
            caller: self.acting(client, caller),
            op: Op::ResolvePath {
                handle,
                path: Box::default(),
            },
            reply_slot: None,
            payload: None,
            directory: None,
        };
        self.start(Running::Reach { key, handle }, work);
    }

    /// The host has looked.
    pub(super) fn reach_finished(
        &mut self,
        key: Key,
        handle: Handle,
        result: Result<Outcome, Access>,
    ) {
        match result {
            Ok(_) => {
                let client = self.requests[key].client;
                if let Some(client) = self.clients.get_mut(&client) {
                    client.reached.add(handle);
                }
                self.check_rights(key);
            }
            Err(Access::NotHeld) => self.answer(key, Err(Access::NotHeld.into())),
            // Whether there is such a file the client does not learn.
            Err(Access::Errno(_) | Access::UnknownHandle) => {
                self.answer(key, Err(Status::UnknownHandle));
            }
        }
    }

    /// Remembers the handles that a reply gives to a client that is not trusted.
    pub(super) fn note_reached(&mut self, key: Key, outcome: &Outcome) {
        let pending = &self.requests[key];
        let Some(client) = self.clients.get_mut(&pending.client) else {
            return;
        };
        if let Outcome::Attr(attr) = outcome {
            client.reached.add(attr.handle);
        }
        if let Outcome::Entries(listing) = outcome {
            for attr in listing.entries.iter().filter_map(|entry| entry.attr) {
                client.reached.add(attr.handle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_use_stay_and_others_are_forgotten() {
        let file = |inode| Handle { inode, birth: 1 };
        let mut reached = Reached::default();
        reached.add(file(0));
        reached.add(file(1));
        for inode in 2..3 * REACHED_MAX as u64 {
            reached.add(file(inode));
            assert!(reached.has(file(0)), "after {inode}");
        }
        assert!(!reached.has(file(1)));
        assert!(reached.young.len() + reached.old.len() <= 2 * REACHED_MAX);
    }
}
