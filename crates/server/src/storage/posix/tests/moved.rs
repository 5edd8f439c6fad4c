//! Files that are renamed while they are open are reached by the paths they had.

use super::*;
use RenameMode::{Exchange, NoReplace, Replace};

impl Rig {
    /// Notes that exist now.
    fn notes(&self) -> usize {
        let notes = std::fs::read_dir(self.path(".tidegate/moved"));
        notes.expect("folder").count()
    }

    fn open(&mut self, name: &str) -> Handle {
        let file = self.create(name);
        self.files.opened(None, file, true, true).expect("open");
        file
    }

    fn rename(&mut self, from: &str, to: (Handle, &str), mode: RenameMode) {
        let (from, to) = ((self.root, from.as_bytes()), (to.0, to.1.as_bytes()));
        self.files.rename(None, from, to, mode).expect("rename");
    }
}

#[test]
fn an_open_file_is_reached_by_a_path_it_had() {
    let mut rig = rig("moved");
    let file = rig.open("old");
    let dir = rig.files.mkdir(None, rig.root, b"dir", 0o755);
    let dir = dir.expect("mkdir").handle;
    rig.rename("old", (rig.root, "between"), Replace);
    rig.rename("between", (dir, "new"), NoReplace);
    assert_eq!(rig.notes(), 1);
    let reached = rig
        .other_forwarder()
        .resolve_path(file, b"old")
        .expect("resolve");
    assert_eq!((reached.handle, reached.nlink), (file, 1));
    // Another file under the old name is not taken for it.
    std::fs::write(rig.path("old"), b"another").expect("write");
    for path in [&b"old"[..], b"between", b"dir/new", b"no/where"] {
        let reached = rig
            .other_forwarder()
            .resolve_path(file, path)
            .expect("resolve");
        assert_eq!(reached.handle, file);
    }
    rig.files.closed(file).expect("close");
    assert_eq!(rig.notes(), 0);
    assert_eq!(
        rig.other_forwarder().resolve_path(file, b"old"),
        Err(errno(116))
    );
}

#[test]
fn a_rename_by_another_forwarder_is_noted_and_forgotten_by_the_one_that_closes() {
    let mut rig = rig("moved");
    let file = rig.open("old");
    let mut other = rig.other_forwarder();
    let root = rig.root;
    other
        .rename(None, (root, b"old"), (root, b"new"), Replace)
        .expect("rename");
    assert_eq!(rig.notes(), 1);
    let mut third = rig.other_forwarder();
    assert_eq!(
        third.resolve_path(file, b"old").expect("resolve").handle,
        file
    );
    rig.files.closed(file).expect("close");
    assert_eq!(rig.notes(), 0);
}

#[test]
fn notes_outlive_the_forwarders_and_go_with_the_sweep() {
    let mut rig = rig("moved");
    let file = rig.open("old");
    rig.rename("old", (rig.root, "new"), Replace);
    let options = ExportOptions::new(LAYOUT);
    let again = || PosixFiles::open(rig.scratch.path(), &options).expect("export");
    rig.files = again();
    let mut other = again();
    assert_eq!(
        other.resolve_path(file, b"old").expect("resolve").handle,
        file
    );
    assert_eq!(
        rig.files
            .resolve_path(file, b"old")
            .expect("resolve")
            .handle,
        file
    );
    // Its client opens it again: the sweep leaves the note.
    rig.files.opened(None, file, true, true).expect("open");
    for seat in 0..LAYOUT.seats {
        rig.files.sweep(seat).expect("sweep");
    }
    assert_eq!(rig.notes(), 1);
    // Nobody does, after the next restart.
    rig.files = again();
    for seat in 0..LAYOUT.seats {
        rig.files.sweep(seat).expect("sweep");
    }
    assert_eq!(rig.notes(), 0);
}

#[test]
fn an_exchange_notes_both() {
    let mut rig = rig("moved");
    let (one, two) = (rig.open("one"), rig.open("two"));
    rig.rename("one", (rig.root, "two"), Exchange);
    assert_eq!(rig.notes(), 2);
    let mut other = rig.other_forwarder();
    assert_eq!(
        other.resolve_path(one, b"one").expect("resolve").handle,
        one
    );
    assert_eq!(
        other.resolve_path(two, b"two").expect("resolve").handle,
        two
    );
    rig.files.closed(one).expect("close");
    assert_eq!(rig.notes(), 1);
    rig.files.closed(two).expect("close");
    assert_eq!(rig.notes(), 0);
}

#[test]
fn what_nobody_has_open_is_not_noted() {
    let mut rig = rig("moved");
    rig.create("old");
    rig.rename("old", (rig.root, "new"), Replace);
    std::os::unix::fs::symlink("new", rig.path("link")).expect("symlink");
    rig.rename("link", (rig.root, "link2"), Replace);
    assert_eq!(rig.notes(), 0);
}

#[test]
fn a_forwarder_with_many_open_files_knows_which_of_its_own_are_open() {
    let mut rig = rig("moved");
    rig.create("old");
    let file = rig.open("open");
    for number in 0..512 {
        rig.open(&format!("f{number}"));
    }
    rig.rename("old", (rig.root, "new"), Replace);
    assert_eq!(rig.notes(), 0);
    rig.rename("open", (rig.root, "moved"), Replace);
    assert_eq!(rig.notes(), 1);
    // Another forwarder cannot tell, so it leaves a note, which the holder's sweep removes.
    let (root, mut other) = (rig.root, rig.other_forwarder());
    other
        .rename(None, (root, b"new"), (root, b"newer"), Replace)
        .expect("rename");
    assert_eq!(rig.notes(), 2);
    (0..LAYOUT.seats).for_each(|seat| assert!(rig.files.sweep(seat).is_ok()));
    assert_eq!(rig.notes(), 1);
    rig.files.closed(file).expect("close");
    assert_eq!(rig.notes(), 0);
}

#[test]
fn directories_are_noted_until_they_are_gone() {
    let mut rig = rig("moved");
    let dir = rig.files.mkdir(None, rig.root, b"dir", 0o755);
    let dir = dir.expect("mkdir").handle;
    rig.rename("dir", (rig.root, "moved"), Replace);
    let mut other = rig.other_forwarder();
    assert_eq!(
        other.resolve_path(dir, b"dir").expect("resolve").handle,
        dir
    );
    rig.files.closed(dir).expect("close");
    let sweep = |rig: &Rig| {
        (0..LAYOUT.seats).for_each(|seat| assert!(rig.files.sweep(seat).is_ok()));
        rig.notes()
    };
    assert_eq!(sweep(&rig), 1);
    std::fs::remove_dir(rig.path("moved")).expect("rmdir");
    assert_eq!(sweep(&rig), 0);
    // Others read them before they go, also where they are many.
    for number in 0..1030 {
        std::fs::create_dir(rig.path("a")).expect("mkdir");
        rig.rename("a", (rig.root, &format!("b{number}")), Replace);
    }
    assert_eq!(rig.notes(), 1030);
}

#[test]
fn a_note_leads_nowhere_that_a_path_does_not() {
    let mut rig = rig("moved");
    let outside = Scratch::new("outside");
    std::fs::write(outside.path().join("secret"), b"s").expect("write");
    let secret = std::fs::File::open(outside.path().join("secret")).expect("open");
    let secret = sys::handle_of(&sys::stat(secret).expect("stat"));
    let note = rig.path(&format!(
        ".tidegate/moved/{}-{}",
        secret.inode, secret.birth
    ));
    let beside = outside.path().file_name().expect("name").to_string_lossy();
    std::os::unix::fs::symlink(outside.path(), rig.path("link")).expect("symlink");
    for to in [
        &format!("../{beside}/secret"),
        ".tidegate/opens",
        "link/secret",
    ] {
        let to = format!("0/{to}");
        std::os::unix::fs::symlink(to, &note).expect("symlink");
        assert_eq!(rig.files.resolve_path(secret, b"x"), Err(errno(116)));
        std::fs::remove_file(&note).expect("remove");
    }
}
