//! Open files without a descriptor that are renamed, or whose directories are, and are found again
//! when the notes of that are gone.

use super::parked::{crowd_out, crowded, parked, reads};
use super::*;
use RenameMode::{Exchange, Replace};

/// Another forwarder, which renames by paths below the root.
struct Other(PosixFiles);

impl Other {
    fn of(rig: &Rig) -> Other {
        Other(rig.other_forwarder())
    }

    fn directory(&mut self, path: &str) -> Handle {
        let root = self.0.root().expect("root").handle;
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(root, |at, name| {
            let found = self.0.lookup(None, at, name.as_bytes());
            found.expect("there").handle
        })
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) {
        let mut split = |path: &str| {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            (self.directory(above), name.as_bytes().to_vec())
        };
        let (from, to) = (split(from), split(to));
        let renamed = self.0.rename(None, (from.0, &from.1), (to.0, &to.1), mode);
        renamed.expect("rename");
    }
}

/// The notes of renames go in time, or because there are many.
fn remove_notes(rig: &Rig) {
    let folder = rig.path(HIDDEN).join("moved");
    for note in std::fs::read_dir(folder).expect("folder") {
        std::fs::remove_file(note.expect("readable").path()).expect("there");
    }
}

/// Forgets what leads to the files but their places.
fn forget_directories(rig: &mut Rig) {
    for _ in 0..4 {
        crowd_out(rig);
    }
}

#[test]
fn what_this_forwarder_renames_is_found_without_a_note() {
    let (mut rig, files) = crowded("parked-own-move", 40);
    forget_directories(&mut rig);
    assert_eq!(parked(&rig), 40);
    let root = rig.root;
    let dir = rig.lookup("dir").expect("there").handle;
    let sub = rig.files.lookup(None, dir, b"sub").expect("there").handle;
    let mut rename = |from: (Handle, &[u8]), to: (Handle, &[u8]), mode| {
        rig.files.rename(None, from, to, mode).expect("rename");
    };
    rename((sub, b"f0"), (root, b"here"), Replace);
    rename((sub, b"f1"), (sub, b"f2"), Exchange);
    rename((dir, b"sub"), (root, b"below"), Replace);
    rename((root, b"dir"), (sub, b"above"), Replace);
    remove_notes(&rig);
    forget_directories(&mut rig);
    reads(&mut rig, &files);
}

#[test]
fn what_others_rename_is_found_when_their_notes_are_gone() {
    let (mut rig, files) = crowded("parked-others-move", 40);
    forget_directories(&mut rig);
    let mut other = Other::of(&rig);
    let learn = |rig: &Rig| assert!(rig.files.learn_of_moves().is_ok());
    // In one tick of the clock, and after what was read before.
    for round in 0..3 {
        learn(&rig);
        other.rename("dir/sub/f0", "dir/sub/new", Replace);
        other.rename("dir/sub/new", "dir/sub/f0", Replace);
        other.rename("dir/sub/f0", &format!("here{round}"), Replace);
        other.rename(&format!("here{round}"), "dir/sub/f0", Replace);
    }
    other.rename("dir/sub/f0", "here", Replace);
    other.rename("dir", "moved", Replace);
    learn(&rig);
    learn(&rig);
    remove_notes(&rig);
    forget_directories(&mut rig);
    reads(&mut rig, &files);
    // And again, with a directory that changes places with the one above it.
    forget_directories(&mut rig);
    other.rename("moved/sub", "sub", Replace);
    other.rename("moved", "sub/moved", Replace);
    learn(&rig);
    remove_notes(&rig);
    forget_directories(&mut rig);
    reads(&mut rig, &files);
}

/// A directory comes back to its path, below another one.
#[test]
fn what_is_remembered_of_directories_is_of_those_that_are_there() {
    let (mut rig, mut files) = crowded("parked-chain", 2);
    forget_directories(&mut rig);
    let mut other = Other::of(&rig);
    other.rename("dir", "before", Replace);
    std::fs::create_dir(rig.path("dir")).expect("room");
    other.rename("before/sub", "dir/sub", Replace);
    assert!(rig.files.learn_of_moves().is_ok());
    let dir = rig.lookup("dir").expect("there").handle;
    let sub = rig.files.lookup(None, dir, b"sub").expect("there").handle;
    let file = rig
        .files
        .create(None, sub, b"f2", 0o644)
        .expect("room")
        .handle;
    rig.files.opened(None, file, true, true).expect("open");
    rig.files
        .write_at(file, 0, b"the bytes of file 2")
        .expect("room");
    files.push(file);
    forget_directories(&mut rig);
    assert_eq!(parked(&rig), 3);
    other.rename("dir", "after", Replace);
    forget_directories(&mut rig);
    reads(&mut rig, &files);
}
