//! Operations whose evidence is a name: it appeared, went, or moved.

use super::intent::{Intent, Make, Rename, hash};
use super::{Log, found, remains};
use crate::back_end_files::{Access, Errno, Files};
use tidegate_wire::{Attr, Caller, Handle, Op, Outcome, RenameMode};

/// A directory and a name in it.
type At<'a> = (Handle, &'a [u8]);

/// How far the birth of a file that this operation made may lie before the intent's clock reading,
/// ns. File systems stamp files with a clock that moves in ticks, and on another node perhaps with
/// an offset that NTP leaves.
const BIRTH_SLACK_NS: i64 = 2_000_000_000;

/// The same for a file's last change, ns, where the file system keeps no births. The change may be
/// stamped by a server whose clock nobody has compared with this node's.
const CHANGE_SLACK_NS: i64 = 60_000_000_000;

const KIND_MASK: u32 = 0o170000;
const DIRECTORY: u32 = 0o040000;
const REGULAR: u32 = 0o100000;
const LINK: u32 = 0o120000;

/// Makes a name: create, mkdir, mknod, symlink.
pub(super) fn make(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    op: &Op,
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    let (parent, name, kind, target, exclusive) = match op {
        Op::Create {
            parent,
            name,
            exclusive,
            ..
        } => (*parent, name, REGULAR, None, *exclusive),
        Op::Mkdir { parent, name, .. } => (*parent, name, DIRECTORY, None, true),
        Op::Mknod {
            parent, name, mode, ..
        } => {
            let kind = mode & KIND_MASK;
            (
                *parent,
                name,
                if kind == 0 { REGULAR } else { kind },
                None,
                true,
            )
        }
        Op::Symlink {
            parent,
            name,
            target,
        } => (*parent, name, LINK, Some(&**target), true),
        Op::Link { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | session_ops!()
        | path_ops!()
        | look_ops!()
        | attribute_ops!()
        | content_ops!()
        | open_ops!()
        | lock_ops!()
        | data_ops!() => return Err(Errno::EINVAL.into()),
    };
    if let Some(attr) = found(files.lookup(caller, parent, name), Errno::ENOENT)? {
        return existing(attr, exclusive);
    }
    log.begin(&Intent::Make(Make {
        parent,
        name,
        kind,
        wall_ns: files.wall_ns(),
        target: target.map_or((0, 0), |target| (target.len() as u32, hash(target))),
    }))?;
    match call(files, caller, op, (parent, name)) {
        // Somebody beside Tidegate was faster.
        Err(Access::Errno(Errno::EEXIST)) if !exclusive => {
            existing(files.lookup(caller, parent, name)?, exclusive)
        }
        made => Ok(Outcome::Attr(made?)),
    }
}

/// Makes a name on the back end.
fn call(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    op: &Op,
    (parent, name): (Handle, &[u8]),
) -> Result<Attr, Access> {
    match op {
        Op::Create { mode, .. } => files.create(caller, parent, name, *mode),
        Op::Mkdir { mode, .. } => files.mkdir(caller, parent, name, *mode),
        Op::Mknod { mode, rdev, .. } => files.mknod(caller, parent, name, *mode, *rdev),
        Op::Symlink { target, .. } => files.symlink(caller, parent, name, target),
        Op::Link { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | session_ops!()
        | path_ops!()
        | look_ops!()
        | attribute_ops!()
        | content_ops!()
        | open_ops!()
        | lock_ops!()
        | data_ops!() => unreachable!("it makes no name"),
    }
}

fn existing(attr: Attr, exclusive: bool) -> Result<Outcome, Access> {
    if exclusive {
        return Err(Errno::EEXIST.into());
    }
    Ok(Outcome::Attr(attr))
}

/// Looks up whether a name was made: it leads to a file of this kind that is not older than the
/// intent.
pub(super) fn was_made(files: &mut dyn Files, made: &Make<'_>) -> Result<Option<Outcome>, Access> {
    let attr = files.lookup(None, made.parent, made.name);
    let attr = remains(files, attr, Errno::ENOENT)?;
    let Some(attr) = attr.filter(|attr| attr.mode & KIND_MASK == made.kind) else {
        return Ok(None);
    };
    // Without births a change from before our intent must do to tell a file that was renamed here
    // from elsewhere: all other changes of a directory's names are made at its seat.
    let (since, slack) = match i64::try_from(attr.handle.birth) {
        Ok(0) => (attr.mtime_ns, CHANGE_SLACK_NS),
        birth => (birth.unwrap_or(i64::MAX), BIRTH_SLACK_NS),
    };
    if since < made.wall_ns.saturating_sub(slack) {
        return Ok(None);
    }
    if made.kind == LINK {
        let says = files.readlink(None, attr.handle)?;
        if (says.len() as u32, hash(&says)) != made.target {
            return Ok(None);
        }
    }
    Ok(Some(Outcome::Attr(attr)))
}

/// Gives a file another name.
pub(super) fn link(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    handle: Handle,
    (parent, name): At<'_>,
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    if found(files.lookup(caller, parent, name), Errno::ENOENT)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    log.begin(&Intent::Link {
        handle,
        parent,
        name,
    })?;
    Ok(Outcome::Attr(files.link(caller, handle, parent, name)?))
}

/// Looks up whether a link was made: the name leads to the file.
pub(super) fn was_linked(
    files: &mut dyn Files,
    handle: Handle,
    parent: Handle,
    name: &[u8],
) -> Result<Option<Outcome>, Access> {
    let attr = files.lookup(None, parent, name);
    let attr = remains(files, attr, Errno::ENOENT)?;
    Ok(attr.filter(|attr| attr.handle == handle).map(Outcome::Attr))
}

/// Removes a name: unlink, rmdir.
pub(super) fn remove(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    (parent, name): At<'_>,
    directory: bool,
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    let victim = files.lookup(caller, parent, name)?.handle;
    log.begin(&Intent::Remove {
        parent,
        name,
        victim,
    })?;
    if directory {
        files.rmdir(caller, parent, name)?;
    } else {
        files.unlink(caller, parent, name)?;
    }
    Ok(Outcome::Removed(Some(victim)))
}

/// Looks up whether a name was removed: it is gone, or leads to another file.
pub(super) fn was_removed(
    files: &mut dyn Files,
    parent: Handle,
    name: &[u8],
    victim: Handle,
) -> Result<Option<Outcome>, Access> {
    let now = files.lookup(None, parent, name);
    let now = remains(files, now, Errno::ENOENT)?;
    let still_there = now.is_some_and(|attr| attr.handle == victim);
    Ok((!still_there).then_some(Outcome::Removed(Some(victim))))
}

/// Renames, in each of the modes.
pub(super) fn rename(
    files: &mut dyn Files,
    caller: Option<&Caller>,
    from: At<'_>,
    to: At<'_>,
    mode: RenameMode,
    log: &mut Log<'_>,
) -> Result<Outcome, Access> {
    let source = files.lookup(caller, from.0, from.1)?.handle;
    let target = found(files.lookup(caller, to.0, to.1), Errno::ENOENT)?.map(|attr| attr.handle);
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
        (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
        _ => {}
    }
    let rename = Rename {
        from,
        to,
        source,
        target,
        mode,
    };
    if target != Some(source) {
        log.begin(&Intent::Rename(rename))?;
    }
    // Two names of one file: rename(2) leaves both, which needs no evidence.
    files.rename(caller, from, to, mode)?;
    Ok(moved(&rename))
}

fn moved(rename: &Rename<'_>) -> Outcome {
    let replaced = rename.target.filter(|target| *target != rename.source);
    Outcome::Removed(replaced.filter(|_| rename.mode != RenameMode::Exchange))
}

/// Looks up whether a name was moved: the old name no longer leads to the file. The new name is no
/// evidence, because another seat may be in charge of its directory and may have changed it since.
pub(super) fn was_renamed(
    files: &mut dyn Files,
    rename: &Rename<'_>,
) -> Result<Option<Outcome>, Access> {
    let old = files.lookup(None, rename.from.0, rename.from.1);
    let old = remains(files, old, Errno::ENOENT)?;
    let still_there = old.is_some_and(|attr| attr.handle == rename.source);
    Ok((!still_there).then(|| moved(rename)))
}

#[cfg(all(test, feature = "model"))]
mod tests {
    use super::*;
    use crate::effect::perform;
    use crate::host::ReplySlotAddress;
    use crate::model::{Copies, Disk, ModelTable, Switch};
    use std::sync::Arc;

    const NAME: &[u8] = b"f";

    #[test]
    fn a_file_that_is_there_after_its_creation_failed_was_created() {
        let disk = Disk::new();
        let mut files = disk.files(&Switch::new());
        disk.keep_copies(Copies::Seen);
        disk.set_room(0);
        let reply_slot = ReplySlotAddress {
            seat: 0,
            table: Arc::new(ModelTable::new(&Switch::new())),
            reply_slot: 3,
            sequence: 7,
            unresolved: std::vec::Vec::new(),
        };
        let parent = disk.root().handle;
        let op = Op::Create {
            parent,
            name: NAME.into(),
            mode: 0o644,
            exclusive: true,
        };
        let told = perform(&mut files, None, &op, Some(&reply_slot), &[]);
        let attr = files.lookup(None, parent, NAME).expect("there");
        assert_eq!(told, Ok(Outcome::Attr(attr)));
    }

    #[test]
    fn a_whiteout_under_the_old_name_shows_that_it_was_moved() {
        let disk = Disk::new();
        let mut files = disk.files(&Switch::new());
        let parent = disk.root().handle;
        let made = files.create(None, parent, NAME, 0o644).expect("room");
        let rename = Rename {
            from: (parent, NAME),
            to: (parent, b"new"),
            source: made.handle,
            target: None,
            mode: RenameMode::Whiteout,
        };
        assert_eq!(was_renamed(&mut files, &rename), Ok(None));
        let renamed = files.rename(None, rename.from, rename.to, rename.mode);
        assert_eq!(renamed, Ok(()));
        let whiteout = files.lookup(None, parent, NAME).expect("a device");
        assert_eq!((whiteout.mode, whiteout.rdev), (0o020_000, 0));
        let done = was_renamed(&mut files, &rename);
        assert_eq!(done, Ok(Some(Outcome::Removed(None))));
    }

    #[test]
    fn without_births_a_file_that_has_not_changed_for_long_was_not_made_now() {
        let disk = Disk::new().without_births();
        let mut files = disk.files(&Switch::new());
        let parent = disk.root().handle;
        let made = files.create(None, parent, NAME, 0o644).expect("made");
        let look = |files: &mut dyn Files, wall_ns| {
            let made = Make {
                parent,
                name: NAME,
                kind: REGULAR,
                wall_ns,
                target: (0, 0),
            };
            was_made(files, &made).expect("told")
        };
        let soon = made.mtime_ns + CHANGE_SLACK_NS;
        assert_eq!(look(&mut files, soon), Some(Outcome::Attr(made)));
        assert_eq!(look(&mut files, soon + 1), None);
    }
}
