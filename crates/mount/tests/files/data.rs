//! The bytes of files.

use crate::mount::{Mount, read_write};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::ReadWriteFlags;
use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use tidegate_client::wire::Extent;

#[test]
fn bytes_of_all_sizes_and_places() {
    let Some(mount) = Mount::new("bytes") else {
        return;
    };
    let file = read_write(&mount.path("file"));
    let bytes: Vec<u8> = (0..5_000_003_u32).map(|at| (at % 249) as u8).collect();
    file.write_all_at(&bytes, 11).expect("written");
    let mut back = vec![0; bytes.len() + 11];
    file.read_exact_at(&mut back, 0).expect("read");
    assert!(back[..11] == [0; 11] && back[11..] == bytes);
    assert_eq!(
        file.read_at(&mut back, bytes.len() as u64 + 11)
            .expect("at the end"),
        0
    );
    assert!(fs::read(mount.behind("file")).expect("behind")[11..] == bytes);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 6_000_000, 1000).expect("fallocate");
    assert_eq!(file.metadata().expect("stat").len(), 6_001_000);
    let copy = read_write(&mount.path("copy"));
    let (mut from, mut to) = (11, 0);
    let len = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 1_000_000);
    assert_eq!(len.expect("copied"), 1_000_000);
    assert!(fs::read(mount.path("copy")).expect("read") == bytes[..1_000_000]);
    let sparse = read_write(&mount.path("sparse"));
    sparse.write_all_at(b"x", 1 << 20).expect("written");
    assert_eq!(
        rustix::fs::seek(&sparse, SeekFrom::Data(0)).expect("data"),
        1 << 20
    );
    assert_eq!(
        rustix::fs::seek(&sparse, SeekFrom::Hole(0)).expect("hole"),
        0
    );
    sparse.sync_all().expect("fsync");
    File::open(mount.path(""))
        .expect("root")
        .sync_all()
        .expect("fsyncdir");
}

#[test]
fn appenders_do_not_overwrite_each_other() {
    let Some(mount) = Mount::new("append") else {
        return;
    };
    let path = mount.path("log");
    fs::write(&path, b"").expect("created");
    std::thread::scope(|scope| {
        for number in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = File::options().append(true).open(path).expect("opened");
                for _ in 0..200 {
                    file.write_all(&[b'a' + number; 32]).expect("appended");
                }
            });
        }
    });
    // Grown behind the mount's back: the kernel's idea of the length is old.
    let mut behind = File::options()
        .append(true)
        .open(mount.behind("log"))
        .expect("opened");
    let mut file = File::options().append(true).open(&path).expect("opened");
    behind.write_all(&[b'z'; 32]).expect("appended");
    file.write_all(&[b'y'; 32]).expect("appended");
    let bytes = fs::read(&path).expect("read");
    assert_eq!(bytes.len(), (4 * 200 + 2) * 32);
    for record in bytes.chunks(32) {
        assert!(
            record.iter().all(|byte| *byte == record[0]),
            "torn: {record:?}"
        );
    }
    assert_eq!(bytes[bytes.len() - 1], b'y');
}

#[test]
fn a_removed_file_lives_until_it_is_closed() {
    let Some(mount) = Mount::new("removed") else {
        return;
    };
    let mut file = read_write(&mount.path("file"));
    fs::remove_file(mount.path("file")).expect("removed");
    file.write_all(b"still").expect("written");
    file.set_len(3).expect("truncated");
    let mut back = Vec::new();
    File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&file)
    ))
    .expect("opened anew")
    .read_to_end(&mut back)
    .expect("read");
    assert_eq!(back, b"sti");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
}

#[test]
fn what_must_be_stable_when_a_write_returns_is_synced() {
    let Some(mount) = Mount::new("stable") else {
        return;
    };
    let path = mount.path("file");
    let plain = read_write(&path);
    plain.write_all_at(b"bytes", 0).expect("written");
    let synced = || std::mem::take(&mut *mount.local.syncs.lock().unwrap());
    assert_eq!(synced(), []);
    // As Linux has them: the names that rustix gives them are both O_SYNC.
    let (o_sync, o_dsync) = (0o4_010_000, 0o10_000);
    let range = |offset, len| Some(Extent { offset, len });
    for (flag, data_only) in [(o_sync, false), (o_dsync, true)] {
        let mut options = File::options();
        let options = options.write(true).custom_flags(flag);
        let stable = options.open(&path).expect("opened");
        stable.write_all_at(b"more", 5).expect("written");
        assert_eq!(synced(), [(data_only, range(5, 4))]);
    }
    let once = |flags| rustix::io::pwritev2(&plain, &[IoSlice::new(b"x")], 9, flags);
    assert_eq!(once(ReadWriteFlags::DSYNC), Ok(1));
    assert_eq!(synced(), [(true, range(9, 1))]);
    // An append is the business of the forwarder that has the first byte.
    let mut options = File::options();
    let options = options.append(true).custom_flags(o_dsync);
    let mut appending = options.open(&path).expect("opened");
    appending.write_all(b"end").expect("written");
    assert_eq!(synced(), [(true, range(0, 1))]);
    plain.sync_all().expect("synced");
    assert_eq!(synced(), [(false, None)]);
    assert_eq!(once(ReadWriteFlags::empty()), Ok(1));
    assert_eq!(synced(), []);
}
