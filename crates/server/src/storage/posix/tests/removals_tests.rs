//! The room of removed files, at several forwarders of one node.

use super::*;

/// A file that two forwarders have used and nobody has open any more.
fn used_by_two(rig: &mut Rig, other: &mut PosixFiles) -> Handle {
    let file = rig.create("file");
    rig.files.opened(None, file, true, true).expect("open");
    rig.files.write_at(file, 0, &[7; 8192]).expect("room");
    other.resolve_path(file, b"file").expect("there");
    other.write_at(file, 8192, &[7; 8192]).expect("room");
    rig.files.closed(file).expect("close");
    file
}

#[test]
fn a_removal_is_told_to_the_other_forwarders_at_once() {
    let mut rig = rig("removals-told");
    let mut other = rig.other_forwarder();
    let file = used_by_two(&mut rig, &mut other);
    let told = other.told_of_removals();
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    assert_ne!(other.told_of_removals(), told);
    other.wait_for_removals(told, std::time::Duration::from_secs(3600));
    other.let_go_of_removed();
    assert_eq!(other.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn a_file_that_is_open_goes_everywhere_with_its_last_close() {
    let mut rig = rig("removals-open");
    let mut other = rig.other_forwarder();
    let file = used_by_two(&mut rig, &mut other);
    rig.files.opened(None, file, true, true).expect("open");
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    other.let_go_of_removed();
    assert_eq!(other.attr(file).expect("it is open").size, 16384);
    rig.files.closed(file).expect("close");
    other.let_go_of_removed();
    assert_eq!(other.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn a_file_that_is_replaced_goes_and_one_with_another_name_stays() {
    let mut rig = rig("removals-replaced");
    let mut other = rig.other_forwarder();
    let file = used_by_two(&mut rig, &mut other);
    rig.files.link(None, file, rig.root, b"two").expect("link");
    rig.create("new");
    let (new, old) = ((rig.root, &b"new"[..]), (rig.root, &b"file"[..]));
    let replaced = rig.files.rename(None, new, old, RenameMode::Replace);
    replaced.expect("rename");
    other.let_go_of_removed();
    assert!(other.attr(file).is_ok());
    rig.create("more");
    let (more, two) = ((rig.root, &b"more"[..]), (rig.root, &b"two"[..]));
    let replaced = rig.files.rename(None, more, two, RenameMode::Replace);
    replaced.expect("rename");
    other.let_go_of_removed();
    assert_eq!(other.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn who_missed_removals_looks_at_all_files() {
    let mut rig = rig("removals-missed");
    let mut other = rig.other_forwarder();
    let file = used_by_two(&mut rig, &mut other);
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    for _ in 0..2000 {
        rig.create("many");
        rig.files.unlink(None, rig.root, b"many").expect("unlink");
    }
    other.let_go_of_removed();
    assert_eq!(other.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn a_call_without_room_waits_for_what_was_removed_and_only_for_that() {
    let mut rig = rig("removals-full");
    let mut other = rig.other_forwarder();
    let file = used_by_two(&mut rig, &mut other);
    rig.files.unlink(None, rig.root, b"file").expect("unlink");
    let full = Access::Errno(Errno::ENOSPC);
    // There is room as soon as this forwarder has let go of the file.
    let freed = other.clone();
    let done = other.with_space(|| match freed.export.table.look(file) {
        Some(_) => Err(full),
        None => Ok(()),
    });
    assert_eq!(done, Ok(()));
    let mut tries = 0;
    let mut in_vain = || {
        other.with_space(|| -> Done<()> {
            tries += 1;
            Err(full)
        })
    };
    assert_eq!(in_vain(), Err(full));
    assert_eq!(in_vain(), Err(full));
    // Nothing was removed in between.
    assert_eq!(tries, 7);
}
