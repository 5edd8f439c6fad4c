//! Executes operations on names and attributes so that each takes effect once: it stores the
//! intent, changes the back end, and stores the result.
//!
//! After a crash the next holder of the seat looks on the back end for evidence that an operation
//! took effect. The folder has a file for each kind of evidence: `name_effects` (a name appeared,
//! went or moved) and `content_effects` (a size, a value). Operations that may be repeated without
//! harm (writes, chmods, fallocate, copies) store only their result.

mod content_effects;
mod intent;
mod name_effects;

use crate::back_end_files::{Access, Errno, Files};
use crate::host::{JobResult, ReplySlotAddress};
use crate::reply_table::{self, ReplySlotState};
use alloc::boxed::Box;
use alloc::vec::Vec;
use intent::Intent;
use tidegate_wire::{Caller, FileUse, Handle, Op, Outcome, Status};

/// Executes any operation but reads, writes, locks and session operations ([`crate::Job::Op`]).
///
/// With a reply slot, it stores the intent there before the effect, and the result right after the
/// effect. The reply slot may already hold an intent of this request, from a holder of the seat
/// that died: then this function first looks up whether that operation took effect. If the reply
/// slot holds the request's result, the function returns it. [`Access::UnknownHandle`] leaves no
/// result, because nothing was tried. [`Access::NotHeld`] leaves none either, because the next
/// holder of the seat finds out what happened. `payload` is the bytes of an append, else empty.
pub fn perform(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    op: &Op,
    reply_slot: Option<&ReplySlotAddress>,
    payload: &[u8],
) -> Result<Outcome, Access> {
    let Some(reply_slot) = reply_slot else {
        return ask(files, caller, op);
    };
    if let Some(result) = earlier(files, reply_slot, payload)? {
        return result;
    }
    if !reply_slot.unresolved.is_empty() {
        settle_others(files, op, reply_slot)?;
    }
    let mut log = Log {
        reply_slot,
        begun: false,
        refused: false,
    };
    let mut result = change(files, caller, op, payload, &mut log);
    if log.refused {
        return result;
    }
    if log.begun
        && !matches!(op, Op::Append { .. })
        && let Err(Access::Errno(errno)) = result
        && may_be_done_in_part(errno)
        && files.copies_may_differ()
    {
        result = failed(files, reply_slot, errno);
    }
    if let Some(result) = recordable(&result) {
        if log.begun {
            reply_table::finish(
                &*reply_slot.table,
                reply_slot.reply_slot,
                reply_slot.sequence,
                &result,
            );
        } else if matches!(op, Op::CopyRange { .. }) {
            reply_table::record_here(
                &*reply_slot.table,
                reply_slot.reply_slot,
                reply_slot.sequence,
                &result,
            );
        } else {
            reply_table::record(
                &*reply_slot.table,
                reply_slot.reply_slot,
                reply_slot.sequence,
                &result,
            );
        }
    } else if log.begun {
        // An unknown handle was found out after the intent: the effect was refused as a whole. Or
        // the seat was lost since: what the back end has of the intent stays as it is.
        reply_table::clear(&*reply_slot.table, reply_slot.reply_slot);
    }
    result
}

/// The result of a [`crate::Job::Op`] with this directory, whose attributes the host asks for now,
/// with the forwarder's own rights.
pub fn job_result(
    files: &mut dyn Files,
    result: Result<Outcome, Access>,
    directory: Option<Handle>,
) -> JobResult {
    let answered = matches!(result, Ok(_) | Err(Access::Errno(_)));
    let Some(handle) = directory.filter(|_| answered) else {
        return JobResult::Op(result);
    };
    let directory = match ask(files, None, &Op::Getattr { handle }) {
        Ok(Outcome::Attr(attr)) => Some(Box::new(attr)),
        _ => None,
    };
    JobResult::Change { result, directory }
}

/// The result of an operation that failed after it had begun, on a back end whose copies of a file
/// may differ: the operation took effect as far as a look at the back end now shows.
fn failed(
    files: &mut dyn Files,
    reply_slot: &ReplySlotAddress,
    errno: Errno,
) -> Result<Outcome, Access> {
    let record = reply_table::read(&*reply_slot.table, reply_slot.reply_slot);
    let Some(intent) = Intent::decode(&record.intent) else {
        return Err(errno.into());
    };
    let seen = look_up(files, &intent, None).map_err(unknown)?;
    seen.ok_or(errno.into())
}

/// Whether an error is the back end's own, so that the operation may be done in part. Other errors
/// refuse what the caller asked for.
fn may_be_done_in_part(errno: Errno) -> bool {
    let errors = [
        Errno::EIO,
        Errno::ENOSPC,
        Errno::EROFS,
        Errno::ENOTCONN,
        Errno::ETIMEDOUT,
        Errno::EDQUOT,
    ];
    errors.contains(&errno)
}

/// The error of an operation whose outcome could not be looked up, so that it is unknown. `access`
/// is the error of the look-up.
fn unknown(access: Access) -> Access {
    match access {
        Access::Errno(_) => Errno::EIO.into(),
        Access::UnknownHandle | Access::NotHeld => access,
    }
}

/// Looks up whether the operation whose intent the reply slot holds took effect
/// ([`crate::Job::Resolve`]). If it did, the function stores its result; otherwise it empties the
/// reply slot, so that the client's replay executes the operation.
///
/// The intent stays where the back end refuses the look-up, mostly because the host does not know a
/// handle yet. The forwarder then has it looked up again before the next change at that seat.
pub fn resolve(files: &mut dyn Files, reply_slot: &ReplySlotAddress) {
    // Whether it could be looked up shows in the reply slot's state.
    let _ = settle(files, reply_slot, None);
}

/// `payload` is the request's payload, if the caller has it.
fn settle(
    files: &mut dyn Files,
    reply_slot: &ReplySlotAddress,
    payload: Option<&[u8]>,
) -> Result<(), Access> {
    let record = reply_table::read(&*reply_slot.table, reply_slot.reply_slot);
    if record.state != ReplySlotState::Intent {
        return Ok(());
    }
    // Where the bytes make no sense their checksum is right all the same, so another version wrote
    // them: nothing can be looked up, and the reply slot is emptied.
    let outcome = match Intent::decode(&record.intent) {
        Some(intent) => look_up(files, &intent, payload)?,
        None => None,
    };
    match outcome {
        Some(outcome) => reply_table::finish(
            &*reply_slot.table,
            reply_slot.reply_slot,
            record.sequence,
            &Ok(outcome),
        ),
        None => reply_table::clear(&*reply_slot.table, reply_slot.reply_slot),
    }
    Ok(())
}

/// Looks up the outcome of unresolved intents that concern the same files, before this operation
/// hides their evidence. First makes sure that the host knows this operation's own files: another
/// client's request may make them known at any moment after a look-up that failed without them.
fn settle_others(
    files: &mut dyn Files,
    op: &Op,
    reply_slot: &ReplySlotAddress,
) -> Result<(), Access> {
    let touched = touched(op);
    for handle in touched.into_iter().flatten() {
        if files.attr(handle) == Err(Access::UnknownHandle) {
            return Err(Access::UnknownHandle);
        }
    }
    for other in &reply_slot.unresolved {
        let address = ReplySlotAddress {
            reply_slot: *other,
            unresolved: Vec::new(),
            ..reply_slot.clone()
        };
        let record = reply_table::read(&*address.table, *other);
        let concerns = |intent: Intent<'_>| {
            let mut theirs = intent.files().into_iter().flatten();
            theirs.any(|handle| touched.contains(&Some(handle)))
        };
        if *other != reply_slot.reply_slot && Intent::decode(&record.intent).is_some_and(concerns) {
            settle(files, &address, None)?;
        }
    }
    Ok(())
}

/// The files whose names or contents an operation changes.
fn touched(op: &Op) -> [Option<Handle>; 2] {
    op.files().map(|file| match file? {
        (handle, FileUse::Names | FileUse::Set | FileUse::Write) => Some(handle),
        (_, FileUse::Look | FileUse::Read | FileUse::Sync) => None,
    })
}

/// The result of this very request, if the reply slot holds it or its intent took effect.
#[allow(
    clippy::type_complexity,
    reason = "the inner result is the operation's own"
)]
fn earlier(
    files: &mut dyn Files,
    reply_slot: &ReplySlotAddress,
    payload: &[u8],
) -> Result<Option<Result<Outcome, Access>>, Access> {
    let (state, sequence) = reply_table::peek(&*reply_slot.table, reply_slot.reply_slot);
    if state == ReplySlotState::Empty || sequence != reply_slot.sequence {
        return Ok(None);
    }
    settle(files, reply_slot, Some(payload))?;
    Ok(
        match reply_table::read(&*reply_slot.table, reply_slot.reply_slot).result {
            Some(Ok(outcome)) => Some(Ok(outcome)),
            Some(Err(Status::Errno(errno))) => Some(Err(Access::Errno(Errno(errno)))),
            _ => None,
        },
    )
}

/// The result to record in a reply slot; None if nothing was tried, so that the client sends the
/// request again.
fn recordable(result: &Result<Outcome, Access>) -> Option<Result<Outcome, Status>> {
    match result {
        Ok(outcome) => Some(Ok(outcome.clone())),
        Err(Access::Errno(errno)) => Some(Err(Status::Errno(errno.0))),
        Err(Access::UnknownHandle | Access::NotHeld) => None,
    }
}

/// The reply slot in which an operation records its intent, at most once.
struct Log<'a> {
    reply_slot: &'a ReplySlotAddress,
    begun: bool,
    /// The intent could not be persisted, so the operation was not tried and needs no result.
    refused: bool,
}

impl Log<'_> {
    /// Records the intent. If this fails, nothing has taken effect.
    fn begin(&mut self, intent: &Intent<'_>) -> Result<(), Access> {
        let mut bytes = [0; reply_table::INTENT_MAX];
        let len = intent.encode(&mut bytes);
        reply_table::begin(
            &*self.reply_slot.table,
            self.reply_slot.reply_slot,
            self.reply_slot.sequence,
            &bytes[..len],
        );
        let persisted = match self.reply_slot.table.must_persist() {
            true => self.reply_slot.table.persist(),
            false => Ok(()),
        };
        // Persisting may have taken so long that the seat is another's by now: what that one does
        // must not be undone.
        if !self.reply_slot.table.is_held() {
            reply_table::clear(&*self.reply_slot.table, self.reply_slot.reply_slot);
            self.refused = true;
            return Err(Access::NotHeld);
        }
        // A full back end must not keep anybody from making room on it.
        if let Err(errno) = persisted
            && !(is_full(errno.into()) && intent.frees_room())
        {
            reply_table::clear(&*self.reply_slot.table, self.reply_slot.reply_slot);
            self.refused = true;
            return Err(errno.into());
        }
        self.begun = true;
        Ok(())
    }
}

/// Executes an operation that changes nothing.
fn ask(files: &mut dyn Files, caller: Option<&Caller>, op: &Op) -> Result<Outcome, Access> {
    Ok(match op {
        Op::ResolvePath { handle, path } => Outcome::Attr(match caller {
            Some(caller) => files.reach(caller, *handle, path)?,
            None => files.resolve_path(*handle, path)?,
        }),
        Op::Lookup { parent, name } => Outcome::Attr(files.lookup(caller, *parent, name)?),
        Op::Getattr { handle } => Outcome::Attr(files.attr(*handle)?),
        Op::Open {
            handle,
            read,
            write,
            ..
        } => Outcome::Attr(files.opened(caller, *handle, *read, *write)?),
        Op::Readdir {
            handle,
            cookie,
            bytes_max,
            plus,
            xattrs,
        } => {
            let xattrs = plus.then_some(&xattrs[..]);
            Outcome::Entries(files.readdir(caller, *handle, *cookie, *bytes_max, xattrs)?)
        }
        Op::Readlink { handle } => Outcome::Text(files.readlink(caller, *handle)?),
        Op::Access { handle, mask } => {
            files.access(caller, *handle, *mask)?;
            Outcome::Done
        }
        Op::Fsync { handle, data_only } => {
            files.fsync(*handle, *data_only)?;
            Outcome::Done
        }
        Op::Statfs => Outcome::Statfs(files.statfs()?),
        Op::Seek {
            handle,
            offset,
            whence,
        } => Outcome::Offset(files.seek(*handle, *offset, *whence)?),
        Op::Getxattr { handle, name } => Outcome::Text(files.getxattr(caller, *handle, name)?),
        Op::Listxattr { handle } => Outcome::Text(files.listxattr(caller, *handle)?),
        // Changes without a reply slot, and what the forwarder keeps to itself, never come here.
        session_ops!()
        | name_ops!()
        | attribute_ops!()
        | lock_ops!()
        | data_ops!()
        | Op::Close { .. }
        | Op::Append { .. }
        | Op::Fallocate { .. }
        | Op::CopyRange { .. } => {
            return Err(Errno::EINVAL.into());
        }
    })
}

/// Executes an operation that changes something.
fn change(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    op: &Op,
    payload: &[u8],
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    match op {
        Op::Create { .. } | Op::Mkdir { .. } | Op::Mknod { .. } | Op::Symlink { .. } => {
            name_effects::make(files, caller, op, log)
        }
        Op::Link {
            handle,
            parent,
            name,
        } => name_effects::link(files, caller, *handle, (*parent, name), log),
        Op::Unlink { parent, name } => {
            name_effects::remove(files, caller, (*parent, name), false, log)
        }
        Op::Rmdir { parent, name } => {
            name_effects::remove(files, caller, (*parent, name), true, log)
        }
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } => name_effects::rename(
            files,
            caller,
            (*parent, name),
            (*new_parent, new_name),
            *mode,
            log,
        ),
        Op::Append { handle } => content_effects::append(files, *handle, payload, log),
        Op::Setattr { handle, set } => content_effects::set_attr(files, caller, *handle, set, log),
        Op::Setxattr {
            handle,
            name,
            value,
            flags,
        } => content_effects::setxattr(files, caller, (*handle, name), value, *flags, log),
        Op::Removexattr { handle, name } => {
            content_effects::removexattr(files, caller, (*handle, name), log)
        }
        Op::Fallocate {
            handle,
            mode,
            offset,
            len,
        } => files
            .fallocate(*handle, *mode, *offset, *len)
            .map(|()| Outcome::Done),
        Op::CopyRange {
            source,
            source_offset,
            handle,
            offset,
            len,
        } => {
            let len = files.copy_range((*source, *source_offset), (*handle, *offset), *len)?;
            Ok(Outcome::Written { len })
        }
        // A write's bytes move in `Job::Io`; the rest changes nothing and has no reply slot.
        session_ops!() | path_ops!() | look_ops!() | open_ops!() => Err(Errno::EINVAL.into()),
        lock_ops!() | data_ops!() | Op::Fsync { .. } => Err(Errno::EINVAL.into()),
    }
}

/// The outcome of the operation with this intent; None if it did not take effect.
fn look_up(
    files: &mut dyn Files,
    intent: &Intent<'_>,
    payload: Option<&[u8]>,
) -> Result<Option<Outcome>, Access> {
    match intent {
        Intent::Make(made) => name_effects::was_made(files, made),
        Intent::Link {
            handle,
            parent,
            name,
        } => name_effects::was_linked(files, *handle, *parent, name),
        Intent::Remove {
            parent,
            name,
            victim,
        } => name_effects::was_removed(files, *parent, name, *victim),
        Intent::Rename(rename) => name_effects::was_renamed(files, rename),
        Intent::Append {
            handle,
            offset,
            len,
            checksum,
            head,
        } => {
            let known = payload.unwrap_or(head);
            content_effects::was_appended(files, *handle, (*offset, *len), *checksum, known)
        }
        Intent::SetAttr { handle, set, size } => {
            content_effects::was_set(files, *handle, set, *size)
        }
        Intent::SetXattr {
            handle,
            name,
            len,
            hash,
        } => content_effects::was_xattr_set(files, *handle, name, *len, *hash),
        Intent::RemoveXattr { handle, name } => {
            content_effects::was_xattr_removed(files, *handle, name)
        }
    }
}

/// The result of a look-up: what it found, None where the errno is `missing`, or the error.
fn found<T>(result: Result<T, Access>, missing: Errno) -> Result<Option<T>, Access> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Access::Errno(errno)) if errno == missing => Ok(None),
        Err(access) => Err(access),
    }
}

/// As [`found`], where the file or directory itself may be gone too (ESTALE). A mount that has died
/// may call everything stale; then the root cannot be looked up either, and this is an error.
fn remains<T>(
    files: &mut dyn Files,
    result: Result<T, Access>,
    missing: Errno,
) -> Result<Option<T>, Access> {
    match found(result, missing) {
        Err(Access::Errno(Errno::ESTALE)) => match files.root() {
            Ok(_) => Ok(None),
            Err(_) => Err(Access::NotHeld),
        },
        result => result,
    }
}

/// Whether the error says that the file system is full, or the user's quota.
fn is_full(access: Access) -> bool {
    [Errno::ENOSPC, Errno::EDQUOT]
        .map(Access::Errno)
        .contains(&access)
}
