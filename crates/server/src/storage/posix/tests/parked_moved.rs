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
    let learn = |rig: &Rig| assert!(rig.files.learn_of_moves(&mut || true).is_ok());
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
    assert!(rig.files.learn_of_moves(&mut || true).is_ok());
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

/// Between two looks at the notes, files and directories are renamed by turns.
fn rename_by_turns(other: &mut Other) {
    other.rename("dir/sub/f0", "a/b/f0", Replace);
    // Through directories above which this forwarder knows no open file.
    other.rename("a/b", "b", Replace);
    other.rename("b", "dir/sub/b", Replace);
    other.rename("dir/sub/f1", "dir/sub/g1", Replace);
    other.rename("dir", "a/dir", Replace);
    other.rename("a/dir/sub", "sub", Replace);
    other.rename("a", "sub/a", Replace);
}

#[test]
fn a_file_is_found_though_directories_on_its_new_path_are_renamed() {
    for notes_stay in [true, false] {
        let (mut rig, files) = crowded("parked-by-turns", 40);
        std::fs::create_dir_all(rig.path("a/b")).expect("room");
        forget_directories(&mut rig);
        rename_by_turns(&mut Other::of(&rig));
        for (number, file) in files.iter().enumerate().take(2) {
            let mut third = rig.other_forwarder();
            let reached = third.resolve_path(*file, b"no/where");
            assert_eq!(reached.map(|it| it.handle), Ok(*file), "{number}");
        }
        if !notes_stay {
            assert!(rig.files.learn_of_moves(&mut || true).is_ok());
            remove_notes(&rig);
        }
        forget_directories(&mut rig);
        reads(&mut rig, &files);
    }
}

/// A directory has the name of another one that was renamed, and a file is put there.
#[test]
fn a_path_that_stays_the_same_may_be_another_one() {
    let (mut rig, files) = crowded("parked-same-path", 2);
    forget_directories(&mut rig);
    let mut other = Other::of(&rig);
    other.rename("dir/sub/f0", "f0", Replace);
    other.rename("dir", "before", Replace);
    std::fs::create_dir_all(rig.path("dir/sub")).expect("room");
    other.rename("f0", "dir/sub/f0", Replace);
    assert!(rig.files.learn_of_moves(&mut || true).is_ok());
    remove_notes(&rig);
    forget_directories(&mut rig);
    reads(&mut rig, &files);
}

#[test]
fn what_is_not_found_at_once_is_looked_for_again() {
    let (mut rig, files) = crowded("parked-again-and-again", 2);
    forget_directories(&mut rig);
    Other::of(&rig).rename("dir/sub/f0", "here", Replace);
    std::fs::rename(rig.path("here"), rig.path("away")).expect("there");
    for _ in 0..3 {
        assert!(rig.files.learn_of_moves(&mut || true).is_ok());
    }
    remove_notes(&rig);
    std::fs::rename(rig.path("away"), rig.path("here")).expect("there");
    assert!(rig.files.learn_of_moves(&mut || true).is_ok());
    forget_directories(&mut rig);
    reads(&mut rig, &files);
}

#[test]
fn notes_that_were_not_all_read_are_read_again() {
    let (mut rig, files) = crowded("parked-half-read", 2);
    forget_directories(&mut rig);
    Other::of(&rig).rename("dir/sub/f0", "here", Replace);
    for _ in 0..3 {
        assert!(rig.files.learn_of_moves(&mut || false).is_ok());
    }
    assert!(rig.files.learn_of_moves(&mut || true).is_ok());
    remove_notes(&rig);
    forget_directories(&mut rig);
    reads(&mut rig, &files);
}

/// What a forwarder finds by a note it finds without following a link, by whatever names the link
/// leads to the very file.
#[test]
fn a_note_and_a_place_lead_through_no_link() {
    let (mut rig, files) = crowded("parked-link", 2);
    forget_directories(&mut rig);
    assert_eq!(parked(&rig), 2);
    let outside = Scratch::new("parked-link-outside");
    for (number, dir) in ["dir/sub", "elsewhere"].into_iter().enumerate() {
        let file = format!("f{number}");
        std::fs::hard_link(rig.path("dir/sub").join(&file), outside.path().join(&file))
            .expect("one file system");
        if number == 1 {
            Other::of(&rig).rename("dir/sub/f1", "f1", Replace);
            std::fs::create_dir(rig.path("in")).expect("room");
            Other::of(&rig).rename("f1", "in/f1", Replace);
            std::fs::remove_file(rig.path("in/f1")).expect("there");
            std::fs::remove_dir(rig.path("in")).expect("empty");
            std::os::unix::fs::symlink(outside.path(), rig.path("in")).expect("room");
        } else {
            std::fs::remove_file(rig.path(dir).join(&file)).expect("there");
        }
    }
    std::fs::remove_dir(rig.path("dir/sub")).expect("empty");
    std::os::unix::fs::symlink(outside.path(), rig.path("dir/sub")).expect("room");
    assert!(rig.files.learn_of_moves(&mut || true).is_ok());
    for (file, path) in files.iter().zip(["dir/sub/f0", "in/f1"]) {
        assert!(rig.path(path).exists(), "the link leads there");
        let mut third = rig.other_forwarder();
        assert_eq!(third.resolve_path(*file, path.as_bytes()), Err(errno(40)));
        let read = rig.files.read_at(*file, 0, 100);
        assert_eq!(read, Err(Access::UnknownHandle), "{path}");
    }
}
