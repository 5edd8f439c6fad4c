//! Operations that do not pass the scheduler: the forwarder executes some on its own tables, and
//! the host executes the others as jobs. Those that change names keep an order.

use super::name_queues::Directories;
use super::receive::{Dispatch, Key};
use super::{Forwarder, Running};
use crate::back_end_files::Access;
use crate::host::Job;
use tidegate_wire::{FileUse, Handle, Op, OpKind, Outcome, Status};

impl Forwarder {
    /// Executes an operation on the forwarder's own tables.
    pub(super) fn run_local(&mut self, key: Key) {
        match self.requests[key].op() {
            Op::Close { handle, open } => {
                let (handle, open) = (*handle, *open);
                self.close_file(key, handle, open);
            }
            Op::ReclaimDone => {
                let pending = &self.requests[key];
                let (seat, client) = (pending.seat, pending.client);
                self.answer(key, Ok(Outcome::Done));
                self.reclaim_done(seat, client);
            }
            Op::Open { .. } | lock_ops!() => self.lock_operation(key),
            session_ops!()
            | path_ops!()
            | look_ops!()
            | name_ops!()
            | attribute_ops!()
            | content_ops!()
            | data_ops!() => unreachable!("its dispatch is another"),
        }
    }

    pub(super) fn begin_names(&mut self, key: Key) {
        let pending = &self.requests[key];
        let directories = directories(pending.op()).expect("its dispatch says so");
        if self.names.enter(key, pending.user, directories) {
            self.begin_operation(key);
        }
    }

    /// Starts the job of a request.
    pub(super) fn begin_operation(&mut self, key: Key) {
        let mut reply_slot = self.reply_slot_address(key);
        if let Some(reply_slot) = &mut reply_slot {
            reply_slot.unresolved = self.seats[reply_slot.seat].unresolved.clone();
        }
        let pending = &mut self.requests[key];
        let caller = pending.caller.take();
        let list = match pending.op {
            Some(Op::Setxattr { handle, .. } | Op::Removexattr { handle, .. }) => Some(handle),
            _ => None,
        };
        let op = match pending.dispatch {
            // What names, opens or syncs is read again when the job is done.
            Dispatch::Names | Dispatch::Open => pending.op.clone(),
            Dispatch::WholeFile if pending.kind == OpKind::Fsync => pending.op.clone(),
            Dispatch::Data(_) | Dispatch::WholeFile | Dispatch::ResolvePath => pending.op.take(),
            Dispatch::BackEnd | Dispatch::Local => pending.op.take(),
        };
        let op = op.expect("no job has the operation");
        let payload = pending.slot.map(|slot| (slot, pending.payload_len));
        if let Some(handle) = list {
            // The attribute may be the file's access control list.
            self.rights_changed(handle);
        }
        let pending = &self.requests[key];
        // Who may act for others finds a file for all of them.
        let own = !pending.checked && pending.dispatch == Dispatch::ResolvePath;
        let caller = match own {
            true => None,
            false => self.acting(pending.client, caller),
        };
        let directory = self.begin_in_directory(key);
        let job = Job::Op {
            caller,
            op,
            reply_slot,
            payload,
            directory,
        };
        self.start(Running::Op(key), job);
    }

    pub(super) fn operation_finished(&mut self, key: Key, result: Result<Outcome, Access>) {
        let resolves = self.requests[key].dispatch == Dispatch::ResolvePath;
        let result = result.map_err(|access| match access {
            // The back end did not say that the path leads elsewhere: it could not be asked.
            Access::Errno(_) if resolves && self.has_lapsed() => Status::NotMySeat,
            // Also "not held": the storage thread saw it sooner than this forwarder was told.
            Access::Errno(_) | Access::UnknownHandle | Access::NotHeld => access.into(),
        });
        if self.requests[key].checked
            && let Ok(outcome) = &result
        {
            self.note_reached(key, outcome);
        }
        if self.requests[key].kind == OpKind::Setattr
            && let Ok(Outcome::Attr(attr)) = &result
        {
            self.rights_changed(attr.handle);
        }
        match self.requests[key].dispatch {
            Dispatch::WholeFile => {
                self.whole_finished(key);
                self.answer(key, result);
            }
            Dispatch::Names => {
                let directories =
                    directories(self.requests[key].op()).expect("its dispatch says so");
                let next = self.names.leave(key, directories);
                self.answer(key, result);
                next.into_iter()
                    .flatten()
                    .for_each(|next| self.begin_operation(next));
            }
            Dispatch::Open => self.open_finished(key, result),
            Dispatch::Data(_) | Dispatch::ResolvePath | Dispatch::BackEnd | Dispatch::Local => {
                self.answer(key, result);
            }
        }
    }
}

/// The directories whose names an operation changes.
fn directories(op: &Op) -> Option<Directories> {
    let names = |file: &(Handle, FileUse)| file.1 == FileUse::Names;
    let [one, other] = op.files().map(|file| file.filter(names));
    let (one, _) = one?;
    let other = other.map(|(handle, _)| handle);
    Some((one, other.filter(|other| *other != one)))
}
