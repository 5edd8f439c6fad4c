//! Bytes that the process behind a mount may hold back: its errors are told to the descriptor that
//! wrote them alone, whether the bytes went through the page cache or past it.

use super::*;
use crate::storage::posix::direct::{Direct, DirectFd};
use crate::storage::posix::handle_table::Known;

/// A rig for direct I/O on what is, or is not, a file system of the kernel's own.
fn direct(name: &str, is_local: bool) -> Option<(Rig, Handle)> {
    let options = ExportOptions {
        direct: true,
        ..ExportOptions::new(LAYOUT)
    };
    let mut rig = rig_with(name, &options);
    let export = Arc::get_mut(&mut rig.files.export);
    export.expect("nobody else has it").is_local = is_local;
    if let Err(error) = rig.files.try_direct() {
        println!("skipped, no direct I/O here: {error}");
        return None;
    }
    let file = rig.create("file");
    Some((rig, file))
}

fn known(rig: &Rig, file: Handle) -> Arc<Known> {
    rig.files.export.table.find(file).expect("known")
}

/// Opens the descriptor that writes the file directly, as each such write asks for it.
fn write_directly(rig: &Rig, file: Handle) -> Arc<Direct> {
    let found = rig.files.direct_and_gate(file, Direction::Write);
    let direct = found.expect("writable").0.expect("direct");
    let (again, _gate) = rig
        .files
        .direct_at_hand(file, Direction::Write)
        .expect("open");
    assert!(Arc::ptr_eq(&direct, &again));
    direct
}

/// Puts a pipe in the place of that descriptor, of which each sync fails.
fn break_it(rig: &Rig, file: Handle) -> std::io::PipeReader {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let writer = rig.files.export.table.counted(writer.into());
    let broken = Direct::new(writer, Direction::Write).expect("flags of a pipe");
    let broken = DirectFd::Open(Arc::new(broken.expect("nothing is said of alignment")));
    known(rig, file).data().direct[Direction::Write as usize] = broken;
    reader
}

fn has_direct(rig: &Rig, file: Handle) -> bool {
    let known = known(rig, file);
    let found = &known.data().direct[Direction::Write as usize];
    matches!(found, DirectFd::Open(_))
}

/// Has the table look at all files, as it does in half a minute.
fn tidy(rig: &Rig) {
    (0..40).for_each(|_| rig.files.tidy());
}

#[test]
fn a_sync_asks_the_descriptor_that_wrote_directly() {
    let Some((mut rig, file)) = direct("unsynced-sync", false) else {
        return;
    };
    drop(write_directly(&rig, file));
    assert!(known(&rig, file).is_unsynced());
    assert_eq!(rig.files.fsync(file, false), Ok(()));
    assert!(!known(&rig, file).is_unsynced());
    drop(write_directly(&rig, file));
    let _reader = break_it(&rig, file);
    for data_only in [true, false] {
        assert_eq!(rig.files.fsync(file, data_only), Err(errno(22)));
        assert!(known(&rig, file).is_unsynced());
    }
    // And the other one, which also wrote.
    known(&rig, file).data().direct = Default::default();
    assert_eq!(rig.files.fsync(file, true), Ok(()));
}

#[test]
fn what_was_written_directly_is_written_back_before_its_descriptor_goes() {
    let Some((rig, file)) = direct("unsynced-tidy", false) else {
        return;
    };
    drop(write_directly(&rig, file));
    tidy(&rig);
    assert!(!has_direct(&rig, file) && !known(&rig, file).is_unsynced());
    drop(write_directly(&rig, file));
    let _reader = break_it(&rig, file);
    tidy(&rig);
    assert!(has_direct(&rig, file) && known(&rig, file).is_unsynced());
}

#[test]
fn a_descriptor_whose_direct_writes_are_refused_is_synced_all_the_same() {
    let Some((mut rig, file)) = direct("unsynced-refused", false) else {
        return;
    };
    drop(write_directly(&rig, file));
    let _reader = break_it(&rig, file);
    rig.files.direct_refused(file, Direction::Write);
    assert!(rig.files.direct_at_hand(file, Direction::Write).is_none());
    let found = rig.files.direct_and_gate(file, Direction::Write);
    assert!(found.expect("writable").0.is_none());
    assert_eq!(rig.files.fsync(file, false), Err(errno(22)));
}

/// There the kernel itself waits for the device, and a second sync would do so once more.
#[test]
fn a_file_system_of_the_kernels_own_is_not_asked_twice() {
    let Some((mut rig, file)) = direct("unsynced-local", true) else {
        return;
    };
    known(&rig, file).sync_begins();
    drop(write_directly(&rig, file));
    assert!(!known(&rig, file).is_unsynced());
    let _reader = break_it(&rig, file);
    assert_eq!(rig.files.fsync(file, false), Ok(()));
    tidy(&rig);
    assert!(!has_direct(&rig, file));
}
