//! Names, attributes and directories.

use crate::mount::Mount;
use rustix::fs::{RenameFlags, SeekFrom, XattrFlags};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

#[test]
fn names_are_made_found_moved_and_removed() {
    let Some(mount) = Mount::new("names") else {
        return;
    };
    fs::create_dir(mount.path("a")).expect("mkdir");
    fs::write(mount.path("a/file"), b"bytes").expect("create");
    assert_eq!(fs::read(mount.behind("a/file")).expect("behind"), b"bytes");
    fs::hard_link(mount.path("a/file"), mount.path("a/other")).expect("link");
    let (one, other) = (
        fs::metadata(mount.path("a/file")),
        fs::metadata(mount.path("a/other")),
    );
    let (one, other) = (one.expect("stat"), other.expect("stat"));
    assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
    symlink("file", mount.path("a/link")).expect("symlink");
    assert_eq!(
        fs::read_link(mount.path("a/link")).expect("readlink"),
        Path::new("file")
    );
    assert_eq!(fs::read(mount.path("a/link")).expect("followed"), b"bytes");
    fs::rename(mount.path("a"), mount.path("b")).expect("rename");
    assert!(fs::metadata(mount.path("a")).is_err());
    let (from, to) = (mount.path("b/file"), mount.path("b/link"));
    let rename = |flags| {
        let root = File::open(mount.path("")).expect("root");
        rustix::fs::renameat_with(&root, &from, &root, &to, flags)
    };
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).expect("exchanged");
    assert!(fs::symlink_metadata(&from).expect("there").is_symlink());
    let new = mount.path("b/new");
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    let both = rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &new, both);
    assert_eq!(both, Err(rustix::io::Errno::INVAL));
    let error = fs::remove_dir(mount.path("b")).expect_err("not empty");
    assert_eq!(error.raw_os_error(), Some(39));
    fs::remove_dir_all(mount.path("b")).expect("removed");
    // The same name and perhaps the same inode, but another directory.
    fs::create_dir(mount.path("b")).expect("again");
    fs::write(mount.path("b/file"), b"").expect("a live directory");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, mount.path("fifo"), fifo, 0o600.into(), 0).expect("mknod");
    assert_eq!(
        fs::metadata(mount.path("fifo")).expect("stat").mode() & 0o170_000,
        0o010_000
    );
}

#[test]
fn attributes_are_those_behind() {
    let Some(mount) = Mount::new("attributes") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, vec![1; 10_000]).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    let times = fs::FileTimes::new().set_modified(time).set_accessed(time);
    File::options()
        .write(true)
        .open(&path)
        .expect("open")
        .set_times(times)
        .expect("utimens");
    let (here, there) = (
        fs::metadata(&path).expect("stat"),
        fs::metadata(mount.behind("file")),
    );
    let there = there.expect("stat");
    assert_eq!(here.modified().expect("mtime"), time);
    let all = |it: &fs::Metadata| {
        let times = (it.mtime(), it.mtime_nsec(), it.atime(), it.ctime_nsec());
        (
            it.ino(),
            it.len(),
            it.mode(),
            it.uid(),
            it.gid(),
            it.nlink(),
            it.blocks(),
            times,
        )
    };
    assert_eq!(all(&here), all(&there));
    File::options()
        .write(true)
        .open(&path)
        .expect("open")
        .set_len(77)
        .expect("truncate");
    assert_eq!(fs::metadata(mount.behind("file")).expect("stat").len(), 77);
    // Changed behind the mount's back, seen at once.
    fs::write(mount.behind("file"), b"other").expect("written");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 5);
    assert_eq!(fs::read(&path).expect("read"), b"other");
    let space = rustix::fs::statvfs(mount.path("")).expect("statvfs");
    assert_eq!(
        space.f_blocks,
        rustix::fs::statvfs(&mount.base).expect("statvfs").f_blocks
    );
}

#[test]
fn a_directory_is_listed_whole_in_any_steps() {
    let Some(mount) = Mount::new("list") else {
        return;
    };
    for number in 0..3000 {
        fs::write(
            mount.behind(&format!("some-rather-long-name-{number}")),
            b"",
        )
        .expect("written");
    }
    let listed = fs::read_dir(mount.path("")).expect("listed").count();
    assert_eq!(listed, 3000);
    // In small steps, and again from a remembered place.
    let root = File::open(mount.path("")).expect("root");
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 512];
    let mut all = Vec::new();
    let mut listing = rustix::fs::RawDir::new(&root, &mut buffer);
    while let Some(entry) = listing.next() {
        let entry = entry.expect("an entry");
        all.push((
            entry.file_name().to_owned(),
            entry.next_entry_cookie(),
            entry.ino(),
        ));
    }
    assert_eq!(all.len(), 3002, "with itself and its parent");
    assert_eq!(
        (all[0].0.as_bytes(), all[1].0.as_bytes()),
        (&b"."[..], &b".."[..])
    );
    let inode = fs::metadata(mount.path("")).expect("stat").ino();
    assert_eq!((all[0].2, all[1].2), (inode, inode));
    for place in [0, 1, 2, 1500, 2999] {
        rustix::fs::seek(&root, SeekFrom::Start(all[place].1)).expect("a remembered place");
        let mut listing = rustix::fs::RawDir::new(&root, &mut buffer);
        let next = listing
            .next()
            .expect("more")
            .expect("an entry")
            .file_name()
            .to_owned();
        assert_eq!(next, all[place + 1].0, "behind {place}");
    }
}

#[test]
fn extended_attributes() {
    let Some(mount) = Mount::new("xattr") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, b"").expect("written");
    let mut buffer = [0; 100];
    if let Err(errno) = rustix::fs::setxattr(&path, "user.colour", b"blue", XattrFlags::CREATE) {
        println!("SKIP: no extended attributes here: {errno}");
        return;
    }
    let again = rustix::fs::setxattr(&path, "user.colour", b"red", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    assert_eq!(
        rustix::fs::getxattr(&path, "user.colour", &mut buffer),
        Ok(4)
    );
    assert_eq!(&buffer[..4], b"blue");
    let short = rustix::fs::getxattr(&path, "user.colour", &mut buffer[..2]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    let len = rustix::fs::listxattr(&path, &mut buffer).expect("listed");
    assert!(
        buffer[..len]
            .windows(12)
            .any(|name| name == b"user.colour\0")
    );
    rustix::fs::removexattr(&path, "user.colour").expect("removed");
    let gone = rustix::fs::getxattr(&path, "user.colour", &mut buffer);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
}
