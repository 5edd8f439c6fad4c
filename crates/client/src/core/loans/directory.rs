//! What a directory is after an own change of its names, as the answer to the change lends it.

use super::{Part, Terms, Value};
use crate::core::requests::Id;
use crate::core::{Core, Errno};
use crate::wire::{Attr, Caller, FileUse, Handle, Lent, Outcome, Reply, Status};

/// The attributes of a directory after a change of its names.
pub(in crate::core) struct LentDirectory {
    attr: Box<Attr>,
    until: u64,
    caller: Option<Caller>,
}

impl Core {
    /// Keeps what a reply lends, but for the directory that it has changed.
    pub(in crate::core) fn take_lent(
        &mut self,
        forwarder: usize,
        reply: &mut Reply,
    ) -> Option<LentDirectory> {
        let id = reply.id;
        let tells = matches!(reply.result, Ok(Outcome::Attr(_) | Outcome::Entries(_)));
        if reply.lent != Lent::default() || tells {
            let result = reply.result.as_ref().map_err(|status| match status {
                Status::Errno(errno) => Errno(i32::from(*errno)),
                _ => Errno::PROTO,
            });
            self.lent(forwarder, id, result, &reply.lent);
        }
        let is_final = matches!(reply.result, Ok(_) | Err(Status::Errno(_)));
        let directory = reply.lent.directory.take().filter(|_| is_final)?;
        self.lends_directory(forwarder, id, directory)
    }

    /// What the reply to a request lends of the directory in which it changes names, if it is that.
    fn lends_directory(&self, forwarder: usize, id: Id, attr: Box<Attr>) -> Option<LentDirectory> {
        let until = self.lent_until(forwarder, id)?;
        let pending = self.requests.get(&id)?;
        let mut files = pending.op.files().into_iter().flatten();
        let is_it = |file: (Handle, FileUse)| file == (attr.handle, FileUse::Names);
        files.any(is_it).then(|| LentDirectory {
            attr,
            until,
            caller: pending.caller.clone(),
        })
    }

    /// Keeps that, once the change has ended.
    pub(in crate::core) fn lent_directory(&mut self, lent: &LentDirectory) {
        let terms = Terms {
            now: self.now,
            until: lent.until,
            caller: lent.caller.as_ref(),
        };
        self.loans.forget_ended(self.now);
        let place = (lent.attr.handle, Part::Attr);
        self.loans.put(place, Value::Attr(*lent.attr), &terms);
    }
}
