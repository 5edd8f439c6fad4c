//! Data, sizes, holes, copies, extended attributes, and a file system without room.

use super::*;
use crate::storage::Trust;
use crate::storage::scratch::Tmpfs;

#[test]
fn sizes_holes_and_allocation() {
    let mut rig = rig("data");
    let file = rig.create("sparse");
    let files = &mut rig.files;
    let set = SetAttr {
        size: Some(1 << 30),
        ..SetAttr::default()
    };
    assert_eq!(
        files.set_attr(None, file, &set).expect("truncate").size,
        1 << 30
    );
    files.write_at(file, 512 << 20, &[1; 4096]).expect("write");
    assert!(
        files.attr(file).expect("attr").blocks < 1000,
        "holes take no room"
    );
    assert_eq!(files.seek(file, 0, 3).expect("data"), 512 << 20);
    assert_eq!(
        files.seek(file, 512 << 20, 4).expect("hole"),
        (512 << 20) + 4096
    );
    assert_eq!(files.seek(file, 1 << 30, 3), Err(errno(6)));
    assert_eq!(files.seek(file, 0, 0), Err(errno(22)));
    files.fallocate(file, 3, 512 << 20, 4096).expect("punch");
    assert_eq!(files.seek(file, 0, 3), Err(errno(6)));
    match files.fallocate(file, 0x10, 0, 8192) {
        Err(error) if error == errno(95) => println!("the back end has no zero range"),
        zeroed => zeroed.expect("zero range"),
    }
    files.fallocate(file, 1, 1 << 30, 8192).expect("keep size");
    assert_eq!(files.attr(file).expect("attr").size, 1 << 30);
    files.fallocate(file, 0, 1 << 30, 8192).expect("extend");
    assert_eq!(files.attr(file).expect("attr").size, (1 << 30) + 8192);
    assert_eq!(files.fallocate(file, 8, 0, 4096), Err(errno(95)));
    let set = SetAttr {
        size: Some(u64::MAX),
        ..SetAttr::default()
    };
    assert_eq!(files.set_attr(None, file, &set), Err(errno(27)));
    assert_eq!(files.set_attr(None, rig.root, &set), Err(errno(27)));
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(files.set_attr(None, rig.root, &set), Err(errno(21)));
}

#[test]
fn copies_that_may_differ_are_written_as_one_was_found() {
    let apart = Trust {
        copies: false,
        ..Trust::WHOLE
    };
    for (trust, expected) in [(Trust::WHOLE, &b"0123"[..]), (apart, b"0ab")] {
        let options = ExportOptions {
            trust,
            ..ExportOptions::new(LAYOUT)
        };
        let mut rig = rig_with("copies", &options);
        let file = rig.create("file");
        rig.files.write_at(file, 0, b"0123").expect("write");
        rig.files.align_copies(file, 1, b"ab").expect("bytes");
        rig.files.align_copies(file, 3, b"").expect("end");
        assert_eq!(rig.files.read_at(file, 0, 9).expect("read"), expected);
        rig.files.doubt_end(file, (1, 2));
        let doubted = |rig: &Rig| rig.files.export.doubts.of(file).is_some();
        assert_eq!(doubted(&rig), !trust.copies);
        assert_eq!(rig.files.size(file), Ok(expected.len() as u64));
        assert!(!doubted(&rig));
        assert_eq!(rig.files.read_at(file, 0, 9).expect("read"), expected);
    }
}

#[test]
fn ranges_are_copied_between_files() {
    let mut rig = rig("data");
    let (source, target) = (rig.create("source"), rig.create("target"));
    rig.files.write_at(source, 0, &[7; 10_000]).expect("write");
    let copied = rig
        .files
        .copy_range((source, 1000), (target, 5), 1 << 40)
        .expect("copy");
    assert_eq!(copied, 9000);
    assert_eq!(rig.files.attr(target).expect("attr").size, 9005);
    assert_eq!(
        rig.files
            .copy_range((source, 10_000), (target, 0), 10)
            .expect("copy"),
        0
    );
    assert_eq!(
        rig.files.copy_range((source, 0), (source, 10), 100),
        Err(errno(22))
    );
    assert_eq!(
        rig.files.copy_range((source, 0), (rig.root, 0), 1),
        Err(errno(21))
    );
}

#[test]
fn everything_can_be_synced_and_measured() {
    let mut rig = rig("data");
    let file = rig.create("file");
    rig.files.write_at(file, 0, b"x").expect("write");
    for data_only in [false, true] {
        rig.files.fsync(file, data_only).expect("file");
        rig.files.fsync(rig.root, data_only).expect("directory");
    }
    let mut other = rig.other_forwarder();
    other.resolve_path(file, b"file").expect("resolve");
    other.fsync(file, false).expect("a file not written here");
    let state = rig.files.statfs().expect("statfs");
    assert!(state.blocks > state.blocks_free && state.block_size >= 512 && state.name_max == 255);
    let made = rig.files.attr(file).expect("attr").handle.birth as i64;
    let now = rig.files.wall_ns();
    assert!(
        made == 0 || (now - made).abs() < 10_000_000_000,
        "{made} {now}"
    );
}

#[test]
fn extended_attributes_of_every_length() {
    let mut rig = rig("data");
    let file = rig.create("file");
    let files = &mut rig.files;
    if files.setxattr(None, file, b"user.a", b"1", 0) == Err(errno(95)) {
        println!("skipped, the back end has no extended attributes");
        return;
    }
    let long = vec![b'v'; 2000];
    files
        .setxattr(None, file, b"user.long", &long, 1)
        .expect("create");
    assert_eq!(
        files.setxattr(None, file, b"user.long", b"", 1),
        Err(errno(17))
    );
    assert_eq!(
        files.setxattr(None, file, b"user.none", b"", 2),
        Err(errno(61))
    );
    assert_eq!(&*files.getxattr(None, file, b"user.a").expect("get"), b"1");
    assert_eq!(
        &*files.getxattr(None, file, b"user.long").expect("get"),
        &long[..]
    );
    let listed = files.listxattr(None, file).expect("list");
    let mut names: Vec<&[u8]> = listed
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    assert!(names.ends_with(&[b"user.a", b"user.long"]), "{names:?}");
    files.removexattr(None, file, b"user.a").expect("remove");
    assert_eq!(files.getxattr(None, file, b"user.a"), Err(errno(61)));
    assert_eq!(
        files.setxattr(None, file, b"user.big", &vec![0; 65537], 0),
        Err(errno(7))
    );
}

#[test]
fn a_full_file_system_is_an_ordinary_answer() {
    if !is_root("a file system of its own") {
        return;
    }
    let outer = Scratch::new("full");
    let Some(_mount) = Tmpfs::mount(outer.path(), "2m") else {
        return;
    };
    let mut files = PosixFiles::open(outer.path(), &ExportOptions::new(LAYOUT)).expect("export");
    let root = files.root().expect("root").handle;
    let file = files
        .create(None, root, b"file", 0o644)
        .expect("create")
        .handle;
    let full = (0..1000).find_map(|i| files.write_at(file, i << 16, &[1; 1 << 16]).err());
    assert_eq!(full, Some(errno(28)));
    let no_room = Seats::open(&files, LAYOUT, 0);
    let no_room = no_room
        .and_then(|seats| seats.try_take(0))
        .err()
        .expect("no room")
        .to_string();
    assert!(
        no_room.contains("No space") || no_room.contains("no room"),
        "{no_room}"
    );
    files
        .unlink(None, root, b"file")
        .expect("a full disk can be emptied");
}

#[test]
fn a_full_disk_fails_the_parts_that_did_not_fit() {
    use crate::storage::pool::{PoolOptions, ThreadPool};
    use crate::storage::{Completion, Faults, Slots, Storage};
    use tidegate_forward::{IoPart, Job, JobId, JobResult, SlotId};
    if !is_root("a file system of its own") {
        return;
    }
    let outer = Scratch::new("full");
    let Some(_mount) = Tmpfs::mount(outer.path(), "1m") else {
        return;
    };
    let mut files = PosixFiles::open(outer.path(), &ExportOptions::new(LAYOUT)).expect("export");
    let root = files.root().expect("root").handle;
    let file = files
        .create(None, root, b"file", 0o644)
        .expect("create")
        .handle;
    files.write_at(file, 0, &[1; 4096]).expect("write");
    let slots = Slots::new(0);
    slots.open(SlotId(0), 2 << 20);
    let options = PoolOptions {
        threads: 1,
        queued_max: 8,
        faults: Faults::default(),
        fence: Default::default(),
    };
    let mut pool = ThreadPool::new(&files, &slots, &options, Arc::new(|| ())).expect("threads");
    let part = |i: u32| IoPart {
        offset: u64::from(i) << 18,
        len: 1 << 18,
        slot: SlotId(0),
        slot_offset: i << 18,
        seat: 0,
    };
    // Seven adjacent parts, more than there is room for, then one over what is there already.
    let mut parts: Vec<IoPart> = (1..8).map(part).collect();
    parts.insert(
        0,
        IoPart {
            offset: 0,
            len: 4096,
            slot: SlotId(0),
            slot_offset: 0,
            seat: 0,
        },
    );
    pool.submit(
        JobId(1),
        Job::Io {
            handle: file,
            direction: Direction::Write,
            parts,
            writer: None,
        },
    );
    pool.shutdown();
    let mut done: Vec<Completion> = Vec::new();
    pool.completions(&mut done);
    let JobResult::Io { parts, .. } = &done[0].result else {
        panic!("a data job")
    };
    assert_eq!(parts[0], Ok(4096));
    assert_eq!(parts[1], Ok(1 << 18));
    assert_eq!(parts[7], Err(errno(28)));
}
