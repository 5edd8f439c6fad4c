//! What changes anything is refused once the seat is lost, and nothing else is.

use super::*;
use crate::storage::{Fence, Permit};
use std::io::Write;
use std::sync::{Arc, Mutex};
use tidegate_forward::{ReplySlotAddress, SEGMENT_BYTES, SeatTable, effect};
use tidegate_wire::{Op, SetAttr, SetTime};

/// Everything that is in a directory, with what can be changed of it.
fn all_of(dir: &std::path::Path) -> Vec<String> {
    let listed = std::process::Command::new("find")
        .args([
            dir.as_os_str(),
            "-printf".as_ref(),
            "%P %y %m %n %s %T@\n".as_ref(),
        ])
        .output()
        .expect("find is there");
    let text = String::from_utf8(listed.stdout).expect("plain names");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A call that changes something; the error that it ended in.
type Change = Box<dyn Fn(&mut PosixFiles) -> Option<Access>>;

/// Changes of names in `root`, which has `file`, `other` and a directory `dir`.
fn changes_of_names(root: Handle, file: Handle) -> Vec<Change> {
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    let rename = move |to: &'static [u8], mode| -> Change {
        let from = (root, &b"file"[..]);
        Box::new(move |files| files.rename(None, from, (root, to), mode).err())
    };
    vec![
        Box::new(move |files| files.create(None, root, b"new", 0o644).err()),
        Box::new(move |files| files.mkdir(None, root, b"new", 0o755).err()),
        Box::new(move |files| files.mknod(None, root, b"new", 0o644, 0).err()),
        Box::new(move |files| files.symlink(None, root, b"new", b"to").err()),
        Box::new(move |files| files.link(None, file, root, b"new").err()),
        Box::new(move |files| files.unlink(None, root, b"file").err()),
        Box::new(move |files| files.unlink(None, root, b"other").err()),
        Box::new(move |files| files.rmdir(None, root, b"dir").err()),
        rename(b"other", replace),
        rename(b"dir", exchange),
    ]
}

/// Changes of the file itself.
fn changes_of_contents(file: Handle, other: Handle, xattrs: bool) -> Vec<Change> {
    let set =
        |set: SetAttr| -> Change { Box::new(move |files| files.set_attr(None, file, &set).err()) };
    let (size, mode) = (Some(1), Some(0o600));
    let (atime, uid) = (
        Some(SetTime::At(5)),
        Some(rustix::process::geteuid().as_raw()),
    );
    let none = SetAttr::default();
    let mut changes = vec![
        set(SetAttr { size, ..none }),
        set(SetAttr { mode, ..none }),
        set(SetAttr { atime, ..none }),
        set(SetAttr { uid, ..none }),
        Box::new(move |files| files.fallocate(file, 0, 0, 8192).err()),
        Box::new(move |files| files.copy_range((file, 0), (other, 0), 5).err()),
        Box::new(move |files| files.write_at(file, 5, b"more").err()),
    ];
    if xattrs {
        let add = move |files: &mut PosixFiles| files.setxattr(None, file, b"user.two", b"2", 0);
        changes.push(Box::new(move |files| add(files).err()));
        let remove = move |files: &mut PosixFiles| files.removexattr(None, file, b"user.one");
        changes.push(Box::new(move |files| remove(files).err()));
    }
    changes
}

#[test]
fn every_change_is_refused_once_the_seat_is_lost() {
    let mut rig = rig("fenced");
    let (root, file, other) = (rig.root, rig.create("file"), rig.create("other"));
    rig.files.write_at(file, 0, b"bytes").expect("room");
    rig.files.mkdir(None, root, b"dir", 0o755).expect("room");
    let xattrs = rig.files.setxattr(None, file, b"user.one", b"1", 0).is_ok();
    rig.files.opened(None, other, true, true).expect("opened");
    rig.files.permit = Fence::default().taken(1);
    rig.files.permit.close();
    let seen = |rig: &Rig| {
        let mut all = all_of(rig.scratch.path());
        // A file that may be open has got its hidden name, which the next holder sweeps.
        all.retain(|line| !line.starts_with(HIDDEN) && !line.starts_with("other "));
        all
    };
    let before = seen(&rig);
    let mut changes = changes_of_contents(file, other, xattrs);
    changes.append(&mut changes_of_names(root, file));
    for (number, change) in changes.iter().enumerate() {
        let refused = change(&mut rig.files);
        assert_eq!(refused, Some(Access::NotHeld), "change {number}");
        assert_eq!(seen(&rig), before, "change {number}");
    }
    let kept = std::fs::metadata(rig.path("other")).expect("kept");
    assert_eq!(kept.len(), 0);
    assert!(rig.files.attr(file).is_ok() && rig.files.fsync(file, false).is_ok());
    rig.files.permit = Permit::default();
    let held = |change: &Change, files: &mut PosixFiles| change(files) != Some(Access::NotHeld);
    assert!(changes.iter().all(|change| held(change, &mut rig.files)));
}

#[test]
fn a_hidden_name_stays_with_the_next_holder_when_the_seat_is_lost() {
    let mut rig = rig("fenced-hidden");
    let file = rig.create("file");
    rig.files.opened(None, file, true, true).expect("opened");
    rig.files.unlink(None, rig.root, b"file").expect("there");
    assert_eq!(rig.orphans(), 1);
    let permit = Fence::default().taken(0);
    permit.close();
    let held = std::mem::replace(&mut rig.files.permit, permit);
    // Another client has it open there.
    assert_eq!(rig.files.closed(file), Err(Access::NotHeld));
    assert_eq!(rig.orphans(), 1);
    rig.files.permit = held;
    rig.files.closed(file).expect("closed");
    assert_eq!(rig.orphans(), 0);
}

/// A table whose seat is lost when an intent has been persisted; its next holder appends at once.
struct LastOne {
    bytes: Mutex<Vec<u8>>,
    file: std::fs::File,
    permit: Permit,
}

impl SeatTable for LastOne {
    fn load(&self, at: usize, bytes: &mut [u8]) {
        let all = self.bytes.lock().expect("no panic");
        bytes.copy_from_slice(&all[at..][..bytes.len()]);
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.bytes.lock().expect("no panic")[at..][..bytes.len()].copy_from_slice(bytes);
    }

    fn must_persist(&self) -> bool {
        true
    }

    fn persist(&self) -> Result<(), Errno> {
        (&self.file).write_all(b"theirs").expect("room");
        self.permit.close();
        Ok(())
    }

    fn grow(&self) -> bool {
        false
    }

    fn len(&self) -> usize {
        SEGMENT_BYTES
    }
}

#[test]
fn bytes_that_the_next_holder_appends_are_not_taken_for_ours() {
    let mut rig = rig("fenced-append");
    let handle = rig.create("file");
    let mut options = std::fs::OpenOptions::new();
    let permit = Fence::default().taken(0);
    rig.files.permit = permit.clone();
    let table = LastOne {
        bytes: Mutex::new(vec![0; SEGMENT_BYTES]),
        file: options.append(true).open(rig.path("file")).expect("there"),
        permit,
    };
    let reply_slot = ReplySlotAddress {
        seat: 0,
        table: Arc::new(table),
        reply_slot: 0,
        sequence: 1,
        unresolved: Vec::new(),
    };
    let op = Op::Append { handle };
    let done = effect::perform(&mut rig.files, None, &op, Some(&reply_slot), b"ours");
    assert_eq!(done, Err(Access::NotHeld));
    let bytes = std::fs::read(rig.path("file")).expect("there");
    assert_eq!(bytes, b"theirs");
}
