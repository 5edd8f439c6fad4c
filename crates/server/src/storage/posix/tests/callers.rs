//! What callers may do: as on a local file system with their ids.

use super::*;

fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller {
        uid,
        gid,
        groups: groups.into(),
    }
}

fn chmod(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

/// A root directory that everybody may write to.
fn shared_rig(what: &str) -> Option<Rig> {
    if !is_root(what) {
        return None;
    }
    let mut rig = rig("callers");
    rig.files
        .set_attr(None, rig.root, &chmod(0o777))
        .expect("chmod");
    Some(rig)
}

#[test]
fn what_a_caller_makes_is_the_callers() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[3001]), caller(1002, 2002, &[3001]));
    let file = rig
        .files
        .create(Some(&ann), rig.root, b"file", 0o640)
        .expect("create");
    assert_eq!(
        (file.uid, file.gid, file.mode & 0o7777),
        (1001, 2001, 0o640)
    );
    let dir = rig
        .files
        .mkdir(Some(&ann), rig.root, b"dir", 0o750)
        .expect("mkdir");
    assert_eq!((dir.uid, dir.gid), (1001, 2001));
    let link = rig
        .files
        .symlink(Some(&bob), rig.root, b"link", b"file")
        .expect("symlink");
    assert_eq!((link.uid, link.gid), (1002, 2002));
    // A set-gid directory hands its group on.
    rig.files
        .set_attr(None, dir.handle, &chmod(0o2777))
        .expect("chmod");
    let set = SetAttr {
        gid: Some(3001),
        ..SetAttr::default()
    };
    rig.files
        .set_attr(Some(&ann), dir.handle, &set)
        .expect("chgrp to a group of hers");
    rig.files
        .set_attr(None, dir.handle, &chmod(0o2777))
        .expect("chmod");
    let inner = rig
        .files
        .create(Some(&bob), dir.handle, b"inner", 0o644)
        .expect("create");
    assert_eq!((inner.uid, inner.gid), (1002, 3001));
    let sub = rig
        .files
        .mkdir(Some(&bob), dir.handle, b"sub", 0o755)
        .expect("mkdir");
    assert_eq!((sub.gid, sub.mode & 0o2000), (3001, 0o2000));
    // And afterwards the thread is the forwarder again.
    let own = rig.create("own");
    assert_eq!(rig.files.attr(own).expect("attr").uid, 0);
}

#[test]
fn whoever_may_list_a_directory_and_not_search_it_learns_names_alone() {
    let Some(mut rig) = shared_rig("listing for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[]), caller(1002, 2002, &[]));
    let dir = (rig.files).mkdir(Some(&ann), rig.root, b"dir", 0o754);
    let dir = dir.expect("mkdir").handle;
    let file = rig.files.create(Some(&ann), dir, b"file", 0o640);
    file.expect("create");
    for (caller, looks) in [(ann, true), (bob, false)] {
        let listing = (rig.files).readdir(Some(&caller), dir, 0, 4096, Some(&[]));
        let listing = listing.expect("readdir");
        assert_eq!(listing.entries[0].attr.is_some(), looks);
    }
}

#[test]
fn the_kernel_judges_as_it_would_for_the_caller() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[]), caller(1002, 2002, &[]));
    let member = caller(1003, 2003, &[5, 2001]);
    let dir = rig
        .files
        .mkdir(Some(&ann), rig.root, b"dir", 0o710)
        .expect("mkdir")
        .handle;
    let file = rig
        .files
        .create(Some(&ann), dir, b"file", 0o640)
        .expect("create")
        .handle;
    let files = &mut rig.files;
    assert_eq!(files.lookup(Some(&bob), dir, b"file"), Err(errno(13)));
    assert!(files.lookup(Some(&member), dir, b"file").is_ok());
    assert_eq!(
        files.readdir(Some(&member), dir, 0, 4096, None),
        Err(errno(13))
    );
    assert_eq!(
        files.create(Some(&member), dir, b"new", 0o644),
        Err(errno(13))
    );
    assert_eq!(files.unlink(Some(&member), dir, b"file"), Err(errno(13)));
    assert_eq!(files.access(Some(&bob), file, 4), Err(errno(13)));
    assert_eq!(files.access(Some(&member), file, 4), Ok(()));
    assert_eq!(files.access(Some(&member), file, 2), Err(errno(13)));
    assert!(files.opened(Some(&member), file, true, false).is_ok());
    assert_eq!(
        files.opened(Some(&member), file, true, true),
        Err(errno(13))
    );
    assert_eq!(
        files.set_attr(Some(&member), file, &chmod(0o777)),
        Err(errno(1))
    );
    assert_eq!(
        files.set_attr(Some(&member), file, &size(0)),
        Err(errno(13))
    );
    let steal = SetAttr {
        uid: Some(1002),
        ..SetAttr::default()
    };
    assert_eq!(files.set_attr(Some(&ann), file, &steal), Err(errno(1)));
    let node = files.mknod(Some(&ann), dir, b"null", libc::S_IFCHR | 0o666, 0x103);
    assert_eq!(node, Err(errno(1)));
    // What only root may do, a caller may not do through a forwarder run by root.
    let trusted = files.setxattr(Some(&ann), file, b"trusted.x", b"1", 0);
    assert_eq!(trusted, Err(errno(1)));
    let capability = files.setxattr(Some(&ann), file, b"security.capability", &[0; 20], 0);
    assert!(capability.is_err());
}

#[test]
fn the_id_that_means_no_change_is_refused() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let no = u32::MAX;
    for who in [
        caller(no, 2001, &[]),
        caller(1001, no, &[]),
        caller(1001, 2001, &[no]),
        caller(0, 0, &[5, no]),
    ] {
        let made = rig.files.create(Some(&who), rig.root, b"file", 0o644);
        assert_eq!(made, Err(errno(22)), "{who:?}");
        assert_eq!(rig.files.write_as(Some(&who)), Err(errno(22)), "{who:?}");
    }
    rig.files.act_as_itself().expect("it is root");
}

#[test]
fn the_sticky_bit_guards_names_in_a_shared_directory() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[]), caller(1002, 2002, &[]));
    let files = &mut rig.files;
    files
        .set_attr(None, rig.root, &chmod(0o1777))
        .expect("chmod");
    files
        .create(Some(&ann), rig.root, b"hers", 0o666)
        .expect("create");
    assert_eq!(files.unlink(Some(&bob), rig.root, b"hers"), Err(errno(1)));
    let moved = files.rename(
        Some(&bob),
        (rig.root, b"hers"),
        (rig.root, b"his"),
        RenameMode::Replace,
    );
    assert_eq!(moved, Err(errno(1)));
    assert_eq!(files.unlink(Some(&ann), rig.root, b"hers"), Ok(()));
}

#[test]
fn an_open_file_goes_on_working_for_its_owner_whatever_its_mode() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[]), caller(1002, 2002, &[]));
    let made = rig
        .files
        .create(Some(&ann), rig.root, b"file", 0o444)
        .expect("create");
    let file = made.handle;
    assert!(rig.files.opened(Some(&ann), file, true, true).is_ok());
    rig.files.write_at(file, 0, b"text").expect("write");
    rig.files
        .set_attr(Some(&ann), file, &chmod(0))
        .expect("chmod");
    rig.files.write_at(file, 4, b"more").expect("write");
    assert!(rig.files.data_fd(file, Direction::Read).is_ok());
    assert_eq!(
        rig.files
            .set_attr(Some(&ann), file, &size(6))
            .expect("truncate")
            .size,
        6
    );
    assert_eq!(
        rig.files.set_attr(Some(&bob), file, &size(0)),
        Err(errno(13))
    );
    // The same at another forwarder, which opens it only now.
    let mut other = rig.other_forwarder();
    other.resolve_path(file, b"file").expect("resolve");
    other.write_at(file, 6, b"x").expect("write");
}

#[test]
fn set_id_bits_fall_as_they_do_on_the_back_end() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[]), caller(1002, 2002, &[]));
    let file = rig
        .files
        .create(Some(&ann), rig.root, b"file", 0o777)
        .expect("create")
        .handle;
    rig.files
        .set_attr(Some(&ann), file, &chmod(0o6777))
        .expect("chmod");
    let cut = rig
        .files
        .set_attr(Some(&bob), file, &size(0))
        .expect("truncate");
    assert_eq!(cut.mode & 0o7777, 0o777);
    rig.files
        .set_attr(Some(&ann), file, &chmod(0o4755))
        .expect("chmod");
    let set = SetAttr {
        gid: Some(2001),
        ..SetAttr::default()
    };
    let same = rig.files.set_attr(Some(&ann), file, &set).expect("chgrp");
    assert_eq!(same.mode & 0o7777, 0o755);
    // A group that is not the caller's cannot be had by set-gid.
    rig.files
        .set_attr(
            None,
            file,
            &SetAttr {
                gid: Some(7),
                ..SetAttr::default()
            },
        )
        .expect("chgrp");
    let set = rig
        .files
        .set_attr(Some(&ann), file, &chmod(0o2755))
        .expect("chmod");
    assert_eq!(set.mode & 0o7777, 0o755);
}

#[test]
fn times_follow_the_rules_of_utimens() {
    let Some(mut rig) = shared_rig("acting for callers") else {
        return;
    };
    let (ann, bob) = (caller(1001, 2001, &[]), caller(1002, 2002, &[]));
    let file = rig
        .files
        .create(Some(&ann), rig.root, b"file", 0o666)
        .expect("create")
        .handle;
    let past = SetAttr {
        mtime: Some(tidegate_wire::SetTime::At(-1_500_000_000)),
        ..SetAttr::default()
    };
    let now = SetAttr {
        atime: Some(tidegate_wire::SetTime::Now),
        mtime: Some(tidegate_wire::SetTime::Now),
        ..SetAttr::default()
    };
    assert_eq!(rig.files.set_attr(Some(&bob), file, &past), Err(errno(1)));
    assert!(rig.files.set_attr(Some(&bob), file, &now).is_ok());
    let set = rig
        .files
        .set_attr(Some(&ann), file, &past)
        .expect("utimens");
    assert_eq!(set.mtime_ns, -1_500_000_000);
    // Of a symbolic link itself.
    let link = rig
        .files
        .symlink(Some(&ann), rig.root, b"link", b"file")
        .expect("symlink");
    let set = rig
        .files
        .set_attr(Some(&ann), link.handle, &past)
        .expect("utimens");
    assert_eq!((set.handle, set.mtime_ns), (link.handle, -1_500_000_000));
}

/// Not a test of its own: the next one runs it as another user.
#[test]
fn child_of_another_user() {
    let Some(dir) = std::env::var_os("TIDEGATE_TEST_USER_DIR") else {
        return;
    };
    let mut files = PosixFiles::open(Path::new(&dir), &ExportOptions::new(LAYOUT)).expect("export");
    let root = files.root().expect("root").handle;
    let ann = caller(1, 1, &[]);
    // Callers do not count for a forwarder that is not root.
    let made = files
        .create(Some(&ann), root, b"file", 0o400)
        .expect("create");
    assert_eq!(made.uid, 1001);
    let file = made.handle;
    let mut fresh = PosixFiles::open(Path::new(&dir), &ExportOptions::new(LAYOUT)).expect("export");
    fresh.resolve_path(file, b"file").expect("resolve");
    fresh
        .write_at(file, 0, b"own")
        .expect("the owner may write to an open file of any mode");
    fresh.set_attr(None, file, &chmod(0)).expect("chmod");
    assert_eq!(fresh.attr(file).expect("attr").mode & 0o7777, 0);
    assert!(fresh.data_fd(file, Direction::Read).is_ok());
    assert_eq!(fresh.attr(file).expect("attr").mode & 0o7777, 0);
    // A file of somebody else in an own directory can be removed, open or not.
    let foreign = fresh.lookup(None, root, b"foreign").expect("lookup").handle;
    fresh.opened(None, foreign, true, false).expect("readable");
    fresh.unlink(None, root, b"foreign").expect("unlink");
}

#[test]
fn a_forwarder_of_a_user_serves_that_user() {
    use std::os::unix::process::CommandExt;
    let Some(rig) = shared_rig("running as another user") else {
        return;
    };
    std::fs::create_dir(rig.path("export")).expect("mkdir");
    std::fs::write(rig.path("export/foreign"), b"x").expect("write");
    std::os::unix::fs::chown(rig.path("export"), Some(1001), Some(2001)).expect("chown");
    // The test's own binary may lie where other users cannot go.
    let binary = rig.path("child");
    std::fs::copy(std::env::current_exe().expect("this test"), &binary).expect("copy");
    std::fs::set_permissions(&binary, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("chmod");
    let ended = std::process::Command::new(&binary)
        .args([
            "--exact",
            "storage::posix::tests::callers::child_of_another_user",
        ])
        .env("TIDEGATE_TEST_USER_DIR", rig.path("export"))
        .current_dir("/")
        .uid(1001)
        .gid(2001)
        .output()
        .expect("child");
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stdout)
    );
}

#[test]
fn set_id_bits_go_with_a_write_and_can_be_set_between_writes() {
    let Some(mut rig) = shared_rig("set-id bits") else {
        return;
    };
    let ann = caller(1001, 2001, &[]);
    let file = rig.files.create(Some(&ann), rig.root, b"tool", 0o755);
    let file = file.expect("create").handle;
    // Acting for a caller in between makes all capabilities effective again.
    for (who, mode) in [(Some(&ann), 0o4777), (None, 0o2775), (Some(&ann), 0o6755)] {
        let set = rig.files.set_attr(who, file, &chmod(mode)).expect("chmod");
        assert_eq!(set.mode & 0o7777, mode);
        rig.files.write_at(file, 0, b"data").expect("write");
        let left = rig.files.attr(file).expect("attr").mode & 0o7777;
        assert_eq!(left, mode & 0o777);
    }
    // Root in a group that is not the file's: the kernel would drop the bit without the capability.
    let root = caller(0, 0, &[]);
    let set = rig.files.set_attr(Some(&root), file, &chmod(0o2755));
    assert_eq!(set.expect("chmod").mode & 0o7777, 0o2755);
}
