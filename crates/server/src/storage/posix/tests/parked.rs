//! Files that are open without a descriptor.

use super::*;
use rustix::fs::OFlags;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A rig with room for few descriptors, and so many open files in `dir/sub`, each with its number
/// as its bytes.
pub(super) fn crowded(name: &str, files: usize) -> (Rig, Vec<Handle>) {
    let options = ExportOptions {
        fds_max: Some(16),
        ..ExportOptions::new(LAYOUT)
    };
    let mut rig = rig_with(name, &options);
    let dir = rig.files.mkdir(None, rig.root, b"dir", 0o755);
    let dir = dir.expect("room").handle;
    let sub = rig.files.mkdir(None, dir, b"sub", 0o755);
    let sub = sub.expect("room").handle;
    let open = |number: usize| {
        let name = format!("f{number}");
        let file = rig.files.create(None, sub, name.as_bytes(), 0o644);
        let file = file.expect("room").handle;
        rig.files.opened(None, file, true, true).expect("open");
        let bytes = bytes(number);
        let written = rig.files.write_at(file, 0, &bytes);
        assert_eq!(written, Ok(bytes.len() as u64));
        file
    };
    let files = (0..files).map(open).collect();
    (rig, files)
}

fn bytes(number: usize) -> Vec<u8> {
    format!("the bytes of file {number}").into_bytes()
}

/// How many of the files have no descriptor.
pub(super) fn parked(rig: &Rig) -> usize {
    rig.files.export.table.parked()
}

/// Uses so many other files that the table needs the room of all that are idle.
pub(super) fn crowd_out(rig: &mut Rig) {
    static OTHERS: AtomicUsize = AtomicUsize::new(0);
    for _ in 0..100 {
        let number = OTHERS.fetch_add(1, Ordering::Relaxed);
        rig.create(&format!("other{number}"));
    }
}

pub(super) fn reads(rig: &mut Rig, files: &[Handle]) {
    for (number, file) in files.iter().enumerate() {
        assert_eq!(
            rig.files.read_at(*file, 0, 100),
            Ok(bytes(number)),
            "{number}"
        );
    }
}

#[test]
fn open_files_need_no_descriptor_while_they_are_idle() {
    let (mut rig, files) = crowded("parked", 500);
    let fds = rig.files.export.table.fds();
    assert!(fds <= 24, "{fds} descriptors");
    assert!(parked(&rig) > 450);
    reads(&mut rig, &files);
    for (number, file) in files.iter().enumerate() {
        let attr = rig.files.attr(*file).expect("it is open");
        assert_eq!(
            (attr.handle, attr.size),
            (*file, bytes(number).len() as u64)
        );
        assert_eq!(rig.files.fsync(*file, false), Ok(()));
        rig.files.closed(*file).expect("close");
    }
    assert_eq!(parked(&rig), 0);
}

#[test]
fn renames_and_removals_by_anybody_lose_no_open_file() {
    let (mut rig, files) = crowded("parked-moved", 40);
    crowd_out(&mut rig);
    let mut other = rig.other_forwarder();
    let root = other.root().expect("root").handle;
    let dir = other.lookup(None, root, b"dir").expect("there").handle;
    let sub = other.lookup(None, dir, b"sub").expect("there").handle;
    let replace = RenameMode::Replace;
    other
        .rename(None, (sub, b"f0"), (root, b"here"), replace)
        .expect("rename");
    other.unlink(None, sub, b"f1").expect("unlink");
    // A directory high above.
    other
        .rename(None, (root, b"dir"), (root, b"moved"), replace)
        .expect("rename");
    crowd_out(&mut rig);
    reads(&mut rig, &files);
    assert_eq!(rig.files.attr(files[1]).expect("open").nlink, 0);
    assert_eq!(rig.orphans(), 1);
    crowd_out(&mut rig);
    assert!(parked(&rig) > 30);
    reads(&mut rig, &files);
    // By this forwarder.
    rig.files.unlink(None, rig.root, b"here").expect("unlink");
    crowd_out(&mut rig);
    reads(&mut rig, &files);
    for file in files {
        rig.files.closed(file).expect("close");
    }
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn the_last_way_to_a_file_is_never_closed() {
    let (mut rig, files) = crowded("parked-last", 4);
    crowd_out(&mut rig);
    reads(&mut rig, &files);
    // Beside the forwarders, so that there is no hidden name.
    std::fs::remove_file(rig.path("dir/sub/f3")).expect("there");
    for _ in 0..4 {
        crowd_out(&mut rig);
    }
    assert_eq!(parked(&rig), 3);
    reads(&mut rig, &files);
}

/// Another forwarder has linked a hidden name for a removal, which then fails.
#[test]
fn a_file_is_found_by_its_name_when_its_hidden_name_goes_again() {
    let (mut rig, files) = crowded("parked-undone", 2);
    let name = crate::storage::posix::orphans::hidden_name(files[0]);
    let hidden = rig.path(HIDDEN).join("orphans").join(name);
    std::fs::hard_link(rig.path("dir/sub/f0"), &hidden).expect("link");
    crowd_out(&mut rig);
    assert_eq!(parked(&rig), 2);
    std::fs::remove_file(hidden).expect("it is there");
    reads(&mut rig, &files);
}

/// A file that is made later may have its name and its number.
#[test]
fn without_a_birth_time_an_open_file_keeps_its_descriptor() {
    let (mut rig, files) = crowded("parked-birth", 2);
    let path = rig.path("dir/sub/f0");
    let fd = rustix::fs::open(&path, OFlags::PATH, rustix::fs::Mode::empty()).expect("there");
    let handle = Handle {
        birth: 0,
        ..files[0]
    };
    let known = rig.files.export.table.insert(handle, sys::REGULAR, fd);
    known.set_open(true);
    drop(known);
    (0..4).for_each(|_| crowd_out(&mut rig));
    assert_eq!(parked(&rig), 2, "those with one");
    assert!(rig.files.export.table.find(handle).is_some());
}

#[test]
fn a_file_whose_name_goes_keeps_its_descriptor() {
    let (mut rig, files) = crowded("parked-hold", 1);
    assert_eq!(rig.files.fsync(files[0], true), Ok(()));
    let table = &rig.files.export.table;
    drop(rig.files.export.known(files[0]).expect("open"));
    let known = (0..32).find_map(|_| {
        let mut unused = table.unused(16).into_iter();
        unused.find(|known| known.handle == files[0])
    });
    let known = known.expect("nothing uses it");
    assert!(known.take_idle_data().is_some());
    // Its place is looked for here, and its name goes just after that.
    let place = crate::storage::posix::place::Place {
        dir: None,
        name: (*b"f0").into(),
    };
    let path = || rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()).expect("there");
    let held = table.hold(files[0], sys::REGULAR, path());
    assert!(held.is_some_and(|held| Arc::ptr_eq(&held, &known)));
    (0..4).for_each(|_| drop(table.unused(1000)));
    assert!(!table.park(known, Some(place)));
    assert!(table.find(files[0]).is_some());
    let never_seen = Handle { inode: 0, birth: 0 };
    assert!(table.hold(never_seen, sys::REGULAR, path()).is_none());
    reads(&mut rig, &files);
}

#[test]
fn another_file_under_the_name_is_not_taken_for_it() {
    let (mut rig, files) = crowded("parked-other", 2);
    crowd_out(&mut rig);
    assert_eq!(parked(&rig), 2);
    std::fs::rename(rig.path("dir/sub/f0"), rig.path("dir/sub/f1")).expect("there");
    assert_eq!(
        rig.files.read_at(files[1], 0, 100),
        Err(Access::UnknownHandle)
    );
    assert_eq!(
        rig.files.read_at(files[0], 0, 100),
        Err(Access::UnknownHandle)
    );
    // The client says where it is.
    assert!(rig.files.resolve_path(files[0], b"dir/sub/f1").is_ok());
    assert_eq!(rig.files.read_at(files[0], 0, 100), Ok(bytes(0)));
}

#[test]
fn an_error_that_a_closed_descriptor_was_told_is_told_by_the_next_sync() {
    let (mut rig, files) = crowded("parked-error", 1);
    crowd_out(&mut rig);
    rig.files.export.untold.add(files[0], errno(5), true);
    assert_eq!(parked(&rig), 1);
    assert_eq!(rig.files.fsync(files[0], false), Err(errno(5)));
    assert_eq!(rig.files.fsync(files[0], false), Ok(()));
}

/// The kernel tells it once, whatever it is: a server of NFS that does not answer is no loss that
/// others could be told of.
#[test]
fn any_error_of_a_write_back_waits_for_the_next_sync() {
    let (mut rig, files) = crowded("parked-any", 1);
    let note = |error| {
        let known = rig.files.export.known(files[0]).expect("open");
        rig.files.export.note(&known, error);
    };
    note(rustix::io::Errno::TIMEDOUT);
    // This says nothing of the bytes.
    note(rustix::io::Errno::SPIPE);
    assert_eq!(rig.files.fsync(files[0], false), Err(errno(110)));
    assert_eq!(rig.files.fsync(files[0], false), Ok(()));
}

#[test]
fn one_call_syncs_few_files_of_a_distributed_file_system() {
    let mut rig = rig("parked-few");
    let export = Arc::get_mut(&mut rig.files.export);
    export.expect("nobody else has it").is_local = false;
    let made = (0..40).map(|number| {
        let file = rig.create(&format!("f{number}"));
        rig.files.write_at(file, 0, b"bytes").expect("room");
        file
    });
    let files: Vec<Handle> = made.collect();
    let known = |file: &Handle| rig.files.export.table.find(*file).expect("known");
    let all: Vec<_> = files.iter().map(known).collect();
    let closed = || files.iter().filter(|it| data_fds(&rig, **it) == 0).count();
    let few = crate::storage::posix::parking::Syncs::MAX as usize;
    rig.files.export.let_go_of_data(&all);
    assert_eq!(closed(), few);
    rig.files.export.let_go_of_data(&all);
    assert_eq!(closed(), 2 * few);
}

#[test]
fn another_open_of_a_file_without_a_name_keeps_its_descriptor() {
    let (mut rig, files) = crowded("parked-again", 1);
    // Beside the forwarders, so that there is no hidden name.
    std::fs::remove_file(rig.path("dir/sub/f0")).expect("there");
    let again = rig.files.opened(None, files[0], true, true);
    assert_eq!(again.map(|attr| attr.nlink), Ok(0));
    reads(&mut rig, &files);
    // Who comes first to a file without a name comes too late.
    rig.files.closed(files[0]).expect("close");
    let late = rig.files.opened(None, files[0], true, true);
    assert!(late.is_err());
}

/// Has the table look at all files, as it does in half a minute.
fn tidy(rig: &Rig) {
    (0..40).for_each(|_| rig.files.tidy());
}

fn data_fds(rig: &Rig, file: Handle) -> usize {
    let known = rig.files.export.table.find(file).expect("it is known");
    let data = known.data();
    usize::from(data.read.is_some()) + usize::from(data.write.is_some())
}

#[test]
fn a_file_that_is_open_elsewhere_is_written_back_before_its_descriptor_goes() {
    let (mut rig, _) = crowded("parked-part", 0);
    let file = rig.create("part");
    rig.files.write_at(file, 0, b"bytes").expect("room");
    tidy(&rig);
    assert_eq!(data_fds(&rig, file), 0);
    // Of a pipe nothing can be written back, so it stays.
    rig.files.write_at(file, 0, b"bytes").expect("room");
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let writer = rig.files.export.table.counted(writer.into());
    let known = rig.files.export.table.find(file).expect("known");
    known.data().write = Some(Arc::new(writer));
    assert!(known.is_unsynced());
    drop(known);
    tidy(&rig);
    assert_eq!(data_fds(&rig, file), 1);
    crowd_out(&mut rig);
    assert_eq!(data_fds(&rig, file), 1);
    rig.files.export.table.set_short(true);
    for _ in 0..4 {
        rig.files.export.close_some();
    }
    assert_eq!(data_fds(&rig, file), 1);
}

#[test]
fn overlays_and_btrfs_are_synced_whole() {
    let local = |kind| crate::storage::posix::export::LOCAL.contains(&kind);
    assert!(local(0xef53) && !local(0x794c_7630) && !local(0x9123_683e));
}

#[test]
fn what_goes_past_the_page_cache_to_a_mount_is_synced() {
    for is_local in [true, false] {
        let mut options = ExportOptions::new(LAYOUT);
        options.trust.pages = false;
        let mut rig = rig_with("parked-past", &options);
        let export = Arc::get_mut(&mut rig.files.export);
        export.expect("nobody else has it").is_local = is_local;
        let file = rig.create("file");
        rig.files.data_fd(file, Direction::Write).expect("room");
        let known = rig.files.export.table.find(file).expect("known");
        assert_eq!(known.is_unsynced(), !is_local);
    }
}

#[test]
fn a_file_that_a_call_uses_keeps_its_gate() {
    let (mut rig, _) = crowded("parked-gate", 0);
    let (by_fd, by_gate) = (rig.create("fd"), rig.create("gate"));
    let fd = rig.files.data_fd(by_fd, Direction::Read).expect("readable");
    let gate = |rig: &Rig, file| {
        let known = rig.files.export.table.find(file);
        known.map(|known| Arc::as_ptr(&known.gate))
    };
    let before = [by_fd, by_gate].map(|file| gate(&rig, file));
    let known = rig.files.export.table.find(by_gate).expect("known");
    let pass = known.gate.enter(crate::storage::cache_gate::Kind::Buffered);
    drop(known);
    crowd_out(&mut rig);
    assert_eq!([by_fd, by_gate].map(|file| gate(&rig, file)), before);
    drop((fd, pass));
    crowd_out(&mut rig);
    assert_eq!([by_fd, by_gate].map(|file| gate(&rig, file)), [None; 2]);
}

#[test]
fn an_error_outlives_the_last_close_and_not_the_file() {
    let (mut rig, files) = crowded("parked-closed", 2);
    crowd_out(&mut rig);
    for file in &files {
        rig.files.export.untold.add(*file, errno(28), true);
        rig.files.closed(*file).expect("close");
    }
    assert!(rig.files.resolve_path(files[0], b"dir/sub/f0").is_ok());
    assert_eq!(rig.files.fsync(files[0], false), Err(errno(28)));
    let dir = rig.lookup("dir").expect("there").handle;
    let sub = rig.files.lookup(None, dir, b"sub").expect("there").handle;
    rig.files.unlink(None, sub, b"f1").expect("unlink");
    assert_eq!(rig.files.export.untold.take(files[1]), None);
}

#[test]
fn a_file_is_marked_as_open_only_while_its_registration_lasts() {
    let (mut rig, files) = crowded("parked-race", 1);
    let opens = &rig.files.export.opens;
    let file = files[0];
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        opens.if_open_here(file, || {
            scope.spawn(|| {
                opens.closed(file, &Permit::default()).expect("close");
                ended.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(
                !ended.load(Ordering::SeqCst),
                "the mark would come too late"
            );
        });
    });
    assert!(ended.load(Ordering::SeqCst));
    opens.if_open_here(file, || panic!("it is closed"));
    rig.files.closed(file).expect("close");
    let known = rig.files.export.table.find(file).expect("known");
    assert!(!known.is_open());
}

#[test]
fn a_file_that_is_just_being_synced_stays() {
    let (mut rig, _) = crowded("parked-syncing", 0);
    let file = rig.create("file");
    rig.files.write_at(file, 0, b"bytes").expect("room");
    let known = rig.files.export.known(file).expect("known");
    let syncing = known.syncing.read().expect("not poisoned");
    tidy(&rig);
    assert!(known.is_unsynced() && data_fds(&rig, file) > 0);
    drop(syncing);
    tidy(&rig);
    assert!(!known.is_unsynced() && data_fds(&rig, file) == 0);
}

#[test]
fn a_seat_that_goes_to_another_forwarder_takes_its_files_along() {
    let (mut rig, files) = crowded("parked-seat", 50);
    crowd_out(&mut rig);
    (0..LAYOUT.seats).for_each(|seat| rig.files.seat_released(seat));
    assert_eq!(parked(&rig), 0);
    let path = b"dir/sub/f0";
    assert!(rig.files.resolve_path(files[0], path).is_ok());
    assert!(rig.files.read_at(files[0], 0, 9).is_ok());
}

#[test]
fn a_call_that_finds_no_descriptor_waits_for_one() {
    let rig = rig("short");
    let tries = std::cell::Cell::new(0);
    let opened = rig.files.export.with_room(|| {
        tries.set(tries.get() + 1);
        match tries.get() {
            ..3 => Err(rustix::io::Errno::MFILE),
            _ => rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()),
        }
    });
    assert!(opened.is_ok() && tries.get() == 3);
    let never = rig
        .files
        .export
        .with_room(|| Err::<(), _>(rustix::io::Errno::MFILE));
    assert_eq!(never, Err(errno(23)));
}
