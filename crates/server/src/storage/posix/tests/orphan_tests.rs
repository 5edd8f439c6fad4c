//! Files that are open and have lost their last name, over one forwarder and several.

use super::*;
use crate::storage::Fence;
use tidegate_sched::Time;

/// A holder of both seats and another forwarder, where locks do not tell them of each other.
fn apart() -> (Rig, PosixFiles, Fence) {
    let fence = Fence::default();
    let options = ExportOptions {
        apart: Some(fence.clone()),
        ..ExportOptions::new(LAYOUT)
    };
    let mut rig = rig("opens-apart");
    rig.files = PosixFiles::open(rig.scratch.path(), &options).expect("export");
    rig.root = rig.files.root().expect("root").handle;
    (0..LAYOUT.seats).for_each(|seat| rig.files.seat_settled(seat));
    let other = PosixFiles::open(rig.scratch.path(), &options).expect("export");
    (rig, other, fence)
}

#[test]
fn without_locks_a_name_taken_elsewhere_leaves_the_file_until_the_holder_sweeps() {
    let (mut rig, mut other, _fence) = apart();
    let root = other.root().expect("root").handle;
    let file = rig.create("file");
    rig.create("unused");
    rig.files.opened(None, file, true, true).expect("open");
    for name in ["file", "unused"] {
        other.unlink(None, root, name.as_bytes()).expect("unlink");
    }
    assert_eq!(rig.orphans(), 2, "the other one cannot tell which is open");
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(rig.orphans(), 1);
    rig.files.write_at(file, 0, b"kept").expect("write");
    rig.files.closed(file).expect("close");
    assert_eq!(rig.orphans(), 0);
    let near = rig.create("near");
    rig.files.unlink(None, rig.root, b"near").expect("unlink");
    assert_eq!(rig.orphans(), 0, "the holder knows that nobody has it open");
    assert_eq!(rig.files.attr(near), Err(Access::UnknownHandle));
}

#[test]
fn without_locks_who_has_lost_a_seat_keeps_its_files_though_nobody_told_the_names() {
    let (mut rig, _other, fence) = apart();
    let file = rig.create("file");
    let seat = LAYOUT.seat_of_file(file);
    // Found out by a renewal, which is still busy with the other seats.
    fence.taken(seat).close();
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    assert_eq!(rig.orphans(), 1, "it may be open at the next holder's");
}

#[test]
fn without_locks_only_a_settled_holder_sweeps_and_not_a_file_that_still_has_its_name() {
    let (mut rig, mut other, fence) = apart();
    let root = other.root().expect("root").handle;
    let file = rig.create("file");
    rig.files.link(None, file, rig.root, b"more").expect("link");
    other.unlink(None, root, b"file").expect("unlink");
    (0..LAYOUT.seats).for_each(|seat| rig.files.seat_lost(seat));
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(rig.orphans(), 1, "a seat that is lost is not swept");
    (0..LAYOUT.seats).for_each(|seat| rig.files.seat_settled(seat));
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(
        rig.orphans(),
        1,
        "somebody may be about to take its name away"
    );
    fence.opens_until(Time(0));
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(
        rig.orphans(),
        1,
        "its lease has run out, and it does not know yet"
    );
    fence.opens_until(Time(u64::MAX));
    rig.files.sweep_apart(&mut || true).expect("sweep");
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.lookup("more").expect("it has that name").nlink, 1);
}

#[test]
fn without_locks_a_note_of_a_rename_goes_with_the_sweep() {
    let (mut rig, mut other, _fence) = apart();
    let root = other.root().expect("root").handle;
    let notes = |rig: &Rig| std::fs::read_dir(rig.path(".tidegate/moved")).map(Iterator::count);
    rig.create("file");
    other
        .rename(
            None,
            (root, b"file"),
            (root, b"renamed"),
            RenameMode::Replace,
        )
        .expect("rename");
    assert_eq!(notes(&rig).expect("folder"), 1);
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(notes(&rig).expect("folder"), 0);
}

/// Each look at a note may be a trip to a server.
#[test]
fn a_sweep_looks_at_each_note_for_one_seat_only() {
    let (mut rig, mut other, _fence) = apart();
    let root = rig.root;
    let mut opened = 0;
    for number in 0..40 {
        let (from, to) = (format!("f{number}"), format!("g{number}"));
        let file = rig.create(&from);
        if number % 2 == 0 {
            rig.files.opened(None, file, true, true).expect("open");
            opened += 1;
        }
        let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
        let renamed = other.rename(None, from, to, RenameMode::Replace);
        renamed.expect("rename");
    }
    let notes = || {
        let notes = std::fs::read_dir(rig.path(".tidegate/moved"));
        notes.expect("folder").count()
    };
    assert!(rig.files.sweep_apart(&mut || false).is_ok());
    assert_eq!(notes(), 40, "it ends where it is told to");
    let (swept, asked) = super::sys::asked(|| rig.files.sweep_apart(&mut || true));
    swept.expect("sweep");
    assert_eq!(notes(), opened);
    assert!(asked <= 2 * 40, "asked {asked} times for 40 notes");
}

#[test]
fn an_open_file_outlives_its_name_until_its_last_close() {
    let mut rig = rig("opens");
    let file = rig.create("file");
    rig.files.write_at(file, 0, b"kept").expect("write");
    rig.files.opened(None, file, true, true).expect("open");
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    assert_eq!(rig.lookup("file"), Err(errno(2)));
    assert_eq!(rig.orphans(), 1);
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 0);
    assert_eq!(rig.files.link(None, file, rig.root, b"back"), Err(errno(2)));
    // Every forwarder reaches it, under any path it had.
    let mut other = rig.other_forwarder();
    let reached = other.resolve_path(file, b"file").expect("resolve");
    assert_eq!((reached.handle, reached.size, reached.nlink), (file, 4, 0));
    other.write_at(file, 4, b" on").expect("write");
    assert_eq!(rig.files.attr(file).expect("attr").size, 7);
    rig.files.closed(file).expect("close");
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.files.attr(file), Err(Access::UnknownHandle));
    for _ in 0..64 {
        other.tidy();
    }
    assert_eq!(other.resolve_path(file, b"file"), Err(errno(116)));
}

#[test]
fn a_file_that_nobody_has_open_is_gone_at_once() {
    let mut rig = rig("opens");
    let file = rig.create("file");
    rig.files.opened(None, file, true, false).expect("open");
    rig.files.closed(file).expect("close");
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.files.attr(file), Err(Access::UnknownHandle));
    assert_eq!(rig.files.resolve_path(file, b"file"), Err(errno(116)));
}

#[test]
fn a_name_taken_at_another_forwarder_leaves_the_open_file() {
    let mut rig = rig("opens");
    let file = rig.create("file");
    rig.files.opened(None, file, true, false).expect("open");
    let mut other = rig.other_forwarder();
    let root = other.root().expect("root").handle;
    std::fs::write(rig.path("new"), b"new").expect("write");
    other
        .rename(None, (root, b"new"), (root, b"file"), RenameMode::Replace)
        .expect("rename");
    assert_eq!(rig.orphans(), 1);
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 0);
    rig.files.closed(file).expect("close");
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn a_file_with_two_names_keeps_count_of_the_real_ones() {
    let mut rig = rig("opens");
    let file = rig.create("one");
    rig.files.link(None, file, rig.root, b"two").expect("link");
    rig.files.opened(None, file, true, false).expect("open");
    rig.files.unlink(None, rig.root, b"one").expect("unlink");
    assert_eq!(rig.orphans(), 1);
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 1);
    assert_eq!(rig.lookup("two").expect("lookup").nlink, 1);
    let listed = rig
        .files
        .readdir(None, rig.root, 0, 4096, Some(&[]))
        .expect("readdir")
        .entries;
    assert_eq!(listed[0].attr.expect("attr").nlink, 1);
    rig.files.unlink(None, rig.root, b"two").expect("unlink");
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 0);
    rig.files.closed(file).expect("close");
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn a_rename_onto_another_name_of_the_same_file_changes_nothing() {
    let mut rig = rig("opens");
    let file = rig.create("one");
    rig.files.link(None, file, rig.root, b"two").expect("link");
    rig.files.opened(None, file, true, false).expect("open");
    let (one, two) = ((rig.root, &b"one"[..]), (rig.root, &b"two"[..]));
    rig.files
        .rename(None, one, two, RenameMode::Replace)
        .expect("rename");
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 2);
}

#[test]
fn a_removal_that_fails_leaves_no_hidden_name() {
    let mut rig = rig("opens");
    let dir = rig
        .files
        .mkdir(None, rig.root, b"dir", 0o755)
        .expect("mkdir")
        .handle;
    let file = rig
        .files
        .create(None, dir, b"file", 0o644)
        .expect("create")
        .handle;
    rig.files.opened(None, file, true, false).expect("open");
    // A directory cannot replace a file.
    rig.files
        .mkdir(None, rig.root, b"other", 0o755)
        .expect("mkdir");
    let moved = rig.files.rename(
        None,
        (rig.root, b"other"),
        (dir, b"file"),
        RenameMode::Replace,
    );
    assert_eq!(moved, Err(errno(20)));
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 1);
}

#[test]
fn while_a_seat_cannot_vouch_for_its_opens_every_removed_file_is_kept() {
    let mut rig = rig("opens");
    let held: Vec<Handle> = (0..8).map(|i| rig.create(&format!("f{i}"))).collect();
    for seat in 0..LAYOUT.seats {
        rig.seats.release(seat);
        rig.files.seat_released(seat);
    }
    for number in 0..8 {
        let name = format!("f{number}");
        rig.files
            .unlink(None, rig.root, name.as_bytes())
            .expect("unlink");
    }
    assert_eq!(rig.orphans(), 8);
    let reclaimed = held[3];
    for seat in 0..LAYOUT.seats {
        rig.seats.try_take(seat).expect("take").expect("free");
    }
    // In the grace period a client tells that it had one of them open.
    rig.files.resolve_path(reclaimed, b"f3").expect("resolve");
    rig.files
        .opened(None, reclaimed, true, true)
        .expect("open again");
    let mut swept = 0;
    for seat in 0..LAYOUT.seats {
        rig.seats.settle(seat).expect("settle");
        swept += rig.files.sweep(seat).expect("sweep");
    }
    assert_eq!((swept, rig.orphans()), (7, 1));
    rig.files.closed(reclaimed).expect("close");
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn registrations_go_with_the_seat_and_hidden_names_stay_for_its_next_holder() {
    let mut rig = rig("opens");
    let file = rig.create("file");
    let seat = LAYOUT.seat_of_file(file);
    rig.files.opened(None, file, true, true).expect("open");
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    rig.seats.release(seat);
    rig.files.seat_released(seat);
    assert_eq!(rig.orphans(), 1);
    let other = rig.other_forwarder();
    let seats = Seats::open(&other, LAYOUT, 1).expect("seats");
    assert!(seats.try_take(seat).expect("take").is_some());
    seats.settle(seat).expect("settle");
    assert_eq!(other.sweep(seat).expect("sweep"), 1);
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn an_open_that_comes_too_late_is_told() {
    let mut rig = rig("opens");
    let file = rig.create("file");
    std::fs::remove_file(rig.path("file")).expect("remove");
    assert_eq!(rig.files.opened(None, file, true, false), Err(errno(116)));
}

#[test]
fn a_hidden_name_left_by_a_dead_forwarder_goes_with_the_last_real_one() {
    let mut rig = rig("opens");
    let file = rig.create("file");
    let left = format!(".tidegate/orphans/{}-{}", file.inode, file.birth);
    std::fs::hard_link(rig.path("file"), rig.path(&left)).expect("link");
    assert_eq!(rig.lookup("file").expect("lookup").nlink, 1);
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    assert_eq!(rig.orphans(), 0);
    assert_eq!(rig.files.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn two_forwarders_that_open_close_and_remove_at_once_leave_nothing_behind() {
    let mut rig = rig("opens");
    let other = rig.other_forwarder();
    let root = rig.root;
    for round in 0..300 {
        let (one, two) = (format!("one{round}"), format!("two{round}"));
        let file = rig.create(&one);
        rig.files
            .link(None, file, root, two.as_bytes())
            .expect("link");
        let (mut opener, mut near, mut far) = (rig.files.clone(), rig.files.clone(), other.clone());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if opener.opened(None, file, true, true).is_ok() {
                    opener
                        .write_at(file, 0, b"still there")
                        .expect("an open file can be written");
                    opener.closed(file).expect("close");
                }
            });
            scope.spawn(move || near.unlink(None, root, one.as_bytes()).expect("unlink"));
            scope.spawn(move || far.unlink(None, root, two.as_bytes()).expect("unlink"));
        });
        assert_eq!(rig.orphans(), 0, "round {round}");
    }
}

#[test]
fn with_many_open_files_none_is_locked_and_the_holder_sweeps_what_others_keep() {
    let mut rig = rig("crowd");
    let open = |rig: &mut Rig, name: &str| {
        let file = rig.create(name);
        rig.files.opened(None, file, true, true).expect("open");
        file
    };
    let files: Vec<Handle> = (0..1100)
        .map(|number| open(&mut rig, &format!("f{number}")))
        .collect();
    let mut other = rig.other_forwarder();
    let root = other.root().expect("root").handle;
    rig.create("unused");
    for name in ["f1099", "unused"] {
        other.unlink(None, root, name.as_bytes()).expect("unlink");
    }
    assert_eq!(rig.orphans(), 2, "the other one cannot tell which is open");
    rig.create("near");
    rig.files.unlink(None, rig.root, b"near").expect("unlink");
    rig.files.unlink(None, rig.root, b"f1098").expect("unlink");
    assert_eq!(rig.orphans(), 3, "the holder can");
    rig.files.sweep_apart(&mut || true).expect("sweep");
    assert_eq!(rig.orphans(), 2);
    assert_eq!(rig.files.attr(files[1099]).expect("open").nlink, 0);
    for file in &files[..1000] {
        rig.files.closed(*file).expect("close");
    }
    rig.files.sweep_apart(&mut || true).expect("sweep");
    rig.create("late");
    for name in ["late", "f1097"] {
        other.unlink(None, root, name.as_bytes()).expect("unlink");
    }
    assert_eq!(rig.orphans(), 3, "now others can");
    for file in &files[1000..] {
        rig.files.closed(*file).expect("close");
    }
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn a_seat_whose_sweep_failed_is_swept_once_more() {
    let rig = rig("sweep-again");
    let opens = &rig.files.export.opens;
    assert!(opens.to_sweep().is_empty());
    (0..2).for_each(|_| opens.sweep_again(0));
    assert_eq!(opens.to_sweep(), [0]);
    assert!(opens.to_sweep().is_empty());
}
