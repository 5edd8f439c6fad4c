//! Names: made, moved, listed, removed; and handles, which outlive what their files are called.

use super::*;
use std::collections::BTreeSet;
use tidegate_wire::Name;

#[test]
fn names_appear_move_and_go() {
    let mut rig = rig("names");
    let file = rig.create("file");
    assert_eq!(
        rig.files.create(None, rig.root, b"file", 0o600),
        Err(errno(17))
    );
    let dir = rig
        .files
        .mkdir(None, rig.root, b"dir", 0o750)
        .expect("mkdir");
    assert_eq!(dir.mode, libc::S_IFDIR | 0o750);
    let linked = rig
        .files
        .link(None, file, dir.handle, b"again")
        .expect("link");
    assert_eq!((linked.handle, linked.nlink), (file, 2));
    let fifo = rig
        .files
        .mknod(None, rig.root, b"fifo", libc::S_IFIFO | 0o666, 0)
        .expect("mknod");
    assert_eq!(fifo.mode, libc::S_IFIFO | 0o666);
    assert_eq!(
        rig.files.data_fd(fifo.handle, Direction::Read).err(),
        Some(errno(22))
    );
    assert_eq!(rig.files.rmdir(None, rig.root, b"dir"), Err(errno(39)));
    assert_eq!(rig.files.unlink(None, rig.root, b"dir"), Err(errno(21)));
    assert_eq!(rig.files.rmdir(None, rig.root, b"file"), Err(errno(20)));
    let (from, to) = ((rig.root, &b"file"[..]), (rig.root, &b"fifo"[..]));
    assert_eq!(
        rig.files.rename(None, from, to, RenameMode::NoReplace),
        Err(errno(17))
    );
    rig.files
        .rename(None, from, to, RenameMode::Exchange)
        .expect("exchange");
    assert_eq!(rig.lookup("fifo").expect("lookup").handle, file);
    rig.files
        .rename(None, to, from, RenameMode::Replace)
        .expect("replace");
    assert_eq!(rig.lookup("fifo"), Err(errno(2)));
    rig.files
        .unlink(None, dir.handle, b"again")
        .expect("unlink");
    assert_eq!(rig.files.attr(file).expect("attr").nlink, 1);
    rig.files.rmdir(None, rig.root, b"dir").expect("rmdir");
    assert_eq!(rig.files.unlink(None, rig.root, b"gone"), Err(errno(2)));
    let long = [b'x'; 256];
    assert_eq!(
        rig.files.create(None, rig.root, &long, 0o644),
        Err(errno(36))
    );
}

#[test]
fn a_handle_stays_good_over_renames_of_the_file_and_of_what_is_above() {
    let mut rig = rig("names");
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
    let replace = RenameMode::Replace;
    rig.files
        .rename(None, (rig.root, b"dir"), (rig.root, b"moved"), replace)
        .expect("rename");
    rig.files
        .rename(None, (dir, b"file"), (rig.root, b"out"), replace)
        .expect("rename");
    rig.files.write_at(file, 0, b"text").expect("write");
    assert_eq!(rig.files.attr(file).expect("attr").size, 4);
    assert_eq!(std::fs::read(rig.path("out")).expect("read"), b"text");
    // Another forwarder needs the path, and the right one.
    let mut other = rig.other_forwarder();
    assert_eq!(other.attr(file), Err(Access::UnknownHandle));
    assert_eq!(other.resolve_path(file, b"dir/file"), Err(errno(116)));
    assert_eq!(other.resolve_path(file, b"moved"), Err(errno(116)));
    assert_eq!(other.resolve_path(file, b"out").expect("resolve").size, 4);
    rename_by_hand(&rig, "out", "elsewhere");
    assert_eq!(other.attr(file).expect("attr").size, 4);
}

fn rename_by_hand(rig: &Rig, from: &str, to: &str) {
    std::fs::rename(rig.path(from), rig.path(to)).expect("rename");
}

#[test]
fn a_reused_inode_is_another_file() {
    let mut rig = rig("names");
    let mut other = rig.other_forwarder();
    let first = rig.create("first");
    if first.birth == 0 {
        println!("skipped, the back end keeps no birth times");
        return;
    }
    // As a client sees it whose file had this inode before.
    let former = Handle {
        birth: first.birth - 1,
        ..first
    };
    assert_eq!(other.resolve_path(former, b"first"), Err(errno(116)));
    assert_eq!(rig.files.attr(former), Err(Access::UnknownHandle));
    rig.files.unlink(None, rig.root, b"first").expect("unlink");
    for number in 0..100 {
        let name = format!("file{number}");
        let made = rig.create(&name);
        if made.inode == first.inode {
            assert_ne!(made, first);
            assert_eq!(rig.files.attr(first), Err(Access::UnknownHandle));
            assert_eq!(other.resolve_path(first, name.as_bytes()), Err(errno(116)));
            return;
        }
        // ext4 gives a free inode again once the one before it is free too.
        rig.files
            .unlink(None, rig.root, name.as_bytes())
            .expect("unlink");
    }
    println!("the back end has not used the inode again in 100 files");
}

#[test]
fn a_listing_goes_on_where_it_stopped_though_names_go_meanwhile() {
    let mut rig = rig("listing");
    let names: BTreeSet<String> = (0..3000).map(|i| format!("entry-{i:04}")).collect();
    for name in &names {
        std::fs::write(rig.path(name), b"").expect("write");
    }
    let mut seen = BTreeSet::new();
    let mut removed = BTreeSet::new();
    let mut cookie = 0;
    loop {
        let part = rig
            .files
            .readdir(None, rig.root, cookie, 4096, None)
            .expect("readdir")
            .entries;
        let Some(last) = part.last() else { break };
        cookie = last.cookie;
        let bytes: usize = part.iter().map(|entry| entry.name.len() + 32).sum();
        assert!(bytes <= 4096);
        for entry in part {
            assert_eq!(entry.kind, libc::DT_REG);
            let name = String::from_utf8(entry.name.into()).expect("ascii");
            assert!(seen.insert(name), "an entry came twice");
        }
        // Those just listed go, and some that may still be to come.
        for name in seen
            .iter()
            .rev()
            .take(20)
            .chain(names.iter().rev().take(1500))
        {
            if removed.len() < 1500 && removed.insert(name.clone()) {
                rig.files
                    .unlink(None, rig.root, name.as_bytes())
                    .expect("unlink");
            }
        }
    }
    let stayed: BTreeSet<_> = names.difference(&removed).cloned().collect();
    assert!(
        stayed.is_subset(&seen),
        "an entry that stayed was not listed"
    );
}

#[test]
fn a_listing_with_attributes_looks_its_entries_up() {
    let mut rig = rig("listing-look");
    let path = rig.path("made-beside");
    std::fs::write(&path, b"bytes").expect("a file");
    let names: [Name; 2] = [Box::from(*b"user.has"), Box::from(*b"user.lacks")];
    let set = rustix::fs::setxattr(&path, "user.has", b"value", rustix::fs::XattrFlags::empty());
    set.expect("an extended attribute");
    let mut listed = |xattrs: Option<&[Name]>| {
        let listing = rig.files.readdir(None, rig.root, 0, 65536, xattrs);
        let listing = listing.expect("readdir");
        assert!(listing.ended);
        listing.entries[0].clone()
    };
    let entry = listed(None);
    assert_eq!((entry.attr, entry.lacks), (None, 0));
    let entry = listed(Some(&names));
    assert_eq!(entry.lacks, 0b10);
    // Its handle is good for other calls now.
    let attr = entry.attr.expect("attributes");
    assert_eq!(rig.files.attr(attr.handle).expect("attr").size, 5);
    // Where the back end is slow, entries that there was no time for are left out.
    rig.create("other");
    let listing = rig.files.readdir(None, rig.root, 0, 65536, None);
    let mut listing = listing.expect("readdir");
    let dir = std::fs::File::open(rig.path("")).expect("the directory");
    let now = std::time::Instant::now();
    (rig.files).look_up_all(&dir.into(), &mut listing, &names, now);
    assert_eq!((listing.entries.len(), listing.ended), (1, false));
    assert!(listing.entries[0].attr.is_some());
}

#[test]
fn a_listing_tells_attributes_and_always_gets_on() {
    let mut rig = rig("listing");
    let file = rig.create("a-file-with-a-name");
    rig.files
        .mkdir(None, rig.root, b"dir", 0o755)
        .expect("mkdir");
    let all = rig.looked_up();
    assert_eq!(all.len(), 2);
    let entry = all
        .iter()
        .find(|entry| entry.kind == libc::DT_REG)
        .expect("the file");
    assert_eq!(entry.attr.expect("attributes").handle, file);
    assert_eq!(entry.inode, file.inode);
    let first = rig
        .files
        .readdir(None, rig.root, 0, 1, None)
        .expect("readdir")
        .entries;
    assert_eq!(first.len(), 1);
    let rest = rig
        .files
        .readdir(None, rig.root, first[0].cookie, 1, None)
        .expect("readdir")
        .entries;
    assert_eq!(rest.len(), 1);
    let end = rig
        .files
        .readdir(None, rig.root, rest[0].cookie, 1, None)
        .expect("readdir")
        .entries;
    assert!(end.is_empty());
}

#[test]
fn a_small_table_forgets_files_but_not_open_ones() {
    let options = ExportOptions {
        fds_max: Some(64),
        ..ExportOptions::new(LAYOUT)
    };
    let mut rig = rig_with("names", &options);
    let open = rig.create("open");
    rig.files.opened(None, open, true, true).expect("open");
    let made: Vec<Handle> = (0..500).map(|i| rig.create(&format!("f{i}"))).collect();
    assert_eq!(rig.files.attr(open).expect("attr").handle, open);
    assert!(made.iter().all(|file| rig.files.attr(*file).is_ok()));
    let fds = rig.files.export.table.fds();
    assert!(fds <= 70, "{fds} descriptors");
}

#[test]
fn a_table_that_is_not_small_forgets_files_that_are_not_open() {
    let options = ExportOptions {
        fds_max: Some(512),
        ..ExportOptions::new(LAYOUT)
    };
    let mut rig = rig_with("names", &options);
    let open = rig.create("open");
    rig.files.opened(None, open, true, true).expect("open");
    let made: Vec<Handle> = (0..1500).map(|i| rig.create(&format!("f{i}"))).collect();
    assert_eq!(rig.files.attr(open).expect("attr").handle, open);
    assert_eq!(rig.files.attr(made[0]), Err(Access::UnknownHandle));
    let resolved = rig.files.resolve_path(made[0], b"f0").expect("resolve");
    assert_eq!(resolved.handle, made[0]);
}

#[test]
fn tidying_lets_go_of_what_others_removed() {
    let mut rig = rig("names");
    let file = rig.create("file");
    rig.files.write_at(file, 0, b"x").expect("write");
    std::fs::remove_file(rig.path("file")).expect("remove");
    for _ in 0..64 {
        rig.files.tidy();
    }
    assert_eq!(rig.files.attr(file), Err(Access::UnknownHandle));
}

#[test]
fn a_forwarder_notices_that_its_hidden_folder_went_elsewhere() {
    let rig = rig("displaced");
    let look = || {
        rig.files.look_at_hidden();
        rig.files.displaced().is_some()
    };
    assert_eq!([look(), look(), look()], [false; 3]);
    std::fs::rename(rig.path(".tidegate"), rig.path("x")).expect("ours");
    assert!(!look(), "it may be gone for a moment");
    std::fs::rename(rig.path("x"), rig.path(".tidegate")).expect("ours");
    assert!(!look() && !look());
    std::fs::rename(rig.path(".tidegate"), rig.path("x")).expect("ours");
    let other = rig.other_forwarder();
    assert!(!look() && look(), "another has its place");
    std::fs::remove_dir_all(rig.path(".tidegate")).expect("ours");
    std::fs::rename(rig.path("x"), rig.path(".tidegate")).expect("ours");
    assert!(look(), "what was served meanwhile is not known");
    drop(other);
}

#[test]
fn a_whiteout_takes_the_old_name_and_what_is_replaced_stays_open() {
    let mut rig = rig("whiteout");
    let (moved, replaced) = (rig.create("moved"), rig.create("replaced"));
    rig.files.opened(None, replaced, true, false).expect("open");
    let (from, to) = ((rig.root, &b"moved"[..]), (rig.root, &b"replaced"[..]));
    let renamed = rig.files.rename(None, from, to, RenameMode::Whiteout);
    if renamed == Err(errno(22)) {
        println!("skipped: the file system has no whiteouts");
        return;
    }
    assert_eq!(renamed, Ok(()));
    assert_eq!(rig.lookup("replaced").expect("there").handle, moved);
    let whiteout = rig.lookup("moved").expect("there");
    assert_eq!(
        (whiteout.mode & sys::KIND, whiteout.rdev),
        (libc::S_IFCHR, 0)
    );
    assert_eq!(rig.orphans(), 1);
    rig.files.closed(replaced).expect("close");
    assert_eq!(rig.orphans(), 0);
}

#[test]
fn a_path_longer_than_a_kernel_takes_it_leads_to_its_file() {
    let mut rig = rig("deep");
    let (mut at, mut path) = (rig.root, Vec::new());
    for depth in 0..50 {
        let name = format!("{depth:0200}");
        let dir = rig.files.mkdir(None, at, name.as_bytes(), 0o755);
        at = dir.expect("room").handle;
        path.extend([name.as_bytes(), b"/"].concat());
    }
    let file = rig.files.create(None, at, b"file", 0o644);
    let file = file.expect("room").handle;
    path.extend(b"file");
    assert!(path.len() > 2 * tidegate_wire::PATH_MAX);
    let mut other = rig.other_forwarder();
    assert_eq!(other.attr(file), Err(Access::UnknownHandle));
    assert_eq!(other.resolve_path(file, &path).expect("there").handle, file);
    let nobody = Handle { inode: 1, birth: 1 };
    assert_eq!(other.resolve_path(nobody, &path), Err(errno(116)));
    path.truncate(path.len() - 1);
    assert_eq!(other.resolve_path(nobody, &path), Err(errno(116)));
}
