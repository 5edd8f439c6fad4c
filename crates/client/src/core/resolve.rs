//! Files whose handle a forwarder does not know: the client sends it their paths.

use super::Core;
use super::names::Key;
use super::requests::{Id, Pending, Place, Purpose, Target};
use crate::core::Errno;
use crate::wire::{Caller, Handle, Op, RenameMode};
use std::sync::Arc;

/// How many times the client resolves files for one request on one connection before it gives the
/// request up.
const RESOLVES_MAX: u8 = 4;
/// How many times the client sends all paths of a file, if the file has got others meanwhile.
const ROUNDS_MAX: u8 = 4;

/// A file whose possible paths the client sends, one after the other.
pub(super) struct Resolving {
    waiters: Vec<Id>,
    /// The user whose request asks for the file.
    caller: Option<Caller>,
    paths: Vec<Box<[u8]>>,
    /// Number of paths that the client has sent.
    sent: usize,
    rounds: u8,
    /// Why the forwarder could not look for the file at a path.
    refused: Option<Errno>,
}

impl Core {
    /// The forwarder did not know a file of the request: sends it the file's paths.
    pub(super) fn unknown_handle(&mut self, forwarder: usize, id: Id) {
        let connection = (forwarder, self.sessions[forwarder].incarnation());
        let Some(pending) = self.requests.get_mut(&id) else {
            return;
        };
        // Each holder of the seat, and each new process of it, needs the paths anew.
        if pending.resolved_on != connection {
            (pending.resolved_on, pending.resolves) = (connection, 0);
        }
        pending.resolves += 1;
        let tries_left = pending.resolves <= RESOLVES_MAX;
        let files = pending.op.files();
        let mut files = files.map(|file| file.map(|(handle, _)| handle));
        if files[0] == files[1] {
            files[1] = None;
        }
        let files = files.into_iter().flatten();
        let files = files.map(|handle| (handle, self.paths(handle)));
        let files: Vec<_> = files.filter(|(_, paths)| !paths.is_empty()).collect();
        if files.is_empty() || !tries_left {
            return self.settled(forwarder, id, Err(Errno::STALE));
        }
        if let Some(pending) = self.requests.get_mut(&id) {
            pending.place = Place::Resolving;
            pending.resolving_left = files.len() as u8;
            pending.unreachable = None;
        }
        for (handle, paths) in files {
            self.resolve_path(forwarder, handle, paths, id);
        }
    }

    /// The likeliest path of a file below the root; None if the core knows no name of it.
    pub fn path_of(&self, handle: Handle) -> Option<Box<[u8]>> {
        self.paths(handle).into_iter().next()
    }

    /// Notes the path of a file whose directories this client has not looked up: it stands as one
    /// name in the root.
    pub(super) fn told_path(&mut self, handle: Handle, path: &[u8]) {
        if let Some(root) = self
            .root
            .filter(|_| !path.is_empty() && path.len() <= crate::wire::WALK_MAX)
        {
            self.names.seen(root.handle, path, handle);
        }
    }

    fn paths(&self, handle: Handle) -> Vec<Box<[u8]>> {
        let root = self.root.map(|root| root.handle);
        root.map_or_else(Vec::new, |root| {
            self.names.paths(root, handle, &self.moving())
        })
    }

    /// Renames without an answer. The forwarder may have carried them out, so a file is where it
    /// was or where the rename moves it.
    fn moving(&self) -> Vec<(Key, Key)> {
        let mut moving = Vec::new();
        for pending in self.requests.values() {
            let Op::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } = &pending.op
            else {
                continue;
            };
            let from = (*parent, Arc::from(&**name));
            let to = (*new_parent, Arc::from(&**new_name));
            if *mode == RenameMode::Exchange {
                moving.push((to.clone(), from.clone()));
            }
            moving.push((from, to));
        }
        moving
    }

    fn resolve_path(
        &mut self,
        forwarder: usize,
        handle: Handle,
        paths: Vec<Box<[u8]>>,
        waiter: Id,
    ) {
        if let Some(resolving) = self.resolving.get_mut(&(forwarder, handle)) {
            resolving.waiters.push(waiter);
            return;
        }
        let resolving = Resolving {
            waiters: vec![waiter],
            caller: self.requests.get(&waiter).and_then(|it| it.caller.clone()),
            paths,
            sent: 0,
            rounds: 1,
            refused: None,
        };
        self.resolving.insert((forwarder, handle), resolving);
        self.send_path(forwarder, handle);
    }

    /// Sends the next path; false if there is none. A file that was renamed meanwhile may have been
    /// missed at all of its paths.
    fn send_path(&mut self, forwarder: usize, handle: Handle) -> bool {
        let paths_now = self.paths(handle);
        let Some(resolving) = self.resolving.get_mut(&(forwarder, handle)) else {
            return false;
        };
        if resolving.sent == resolving.paths.len() {
            if resolving.rounds == ROUNDS_MAX || resolving.paths == paths_now {
                return false;
            }
            resolving.rounds += 1;
            (resolving.paths, resolving.sent) = (paths_now, 0);
        }
        let Some(path) = resolving.paths.get(resolving.sent).cloned() else {
            return false;
        };
        resolving.sent += 1;
        let caller = resolving.caller.clone();
        let op = Op::ResolvePath { handle, path };
        let target = Target::Forwarder(forwarder);
        let pending = Pending::new(op, 0, target, Purpose::ResolvePath { handle });
        self.submit(Pending { caller, ..pending });
        true
    }

    /// Takes in the answer to a path: the file was found, or the core tries the next path. Requests
    /// go on once their last file is resolved.
    pub(super) fn path_resolved(
        &mut self,
        forwarder: usize,
        handle: Handle,
        found: Result<(), Errno>,
    ) {
        if let (Err(errno), Some(resolving)) = (found, self.resolving.get_mut(&(forwarder, handle)))
        {
            // A forwarder that cannot look does not say that there is nothing.
            if !matches!(errno, Errno::STALE | Errno::NOENT) {
                resolving.refused.get_or_insert(errno);
            }
            if self.send_path(forwarder, handle) {
                return;
            }
        }
        let Some(resolving) = self.resolving.remove(&(forwarder, handle)) else {
            return;
        };
        let missing = found
            .is_err()
            .then(|| resolving.refused.unwrap_or(Errno::STALE));
        for id in resolving.waiters {
            let Some(pending) = self.requests.get_mut(&id) else {
                continue;
            };
            pending.resolving_left -= 1;
            pending.unreachable = pending.unreachable.or(missing);
            if pending.resolving_left > 0 {
                continue;
            }
            pending.place = Place::Nowhere;
            match pending.unreachable {
                Some(errno) => self.settled(forwarder, id, Err(errno)),
                None => self.route(id),
            }
        }
    }
}
