//! A forwarder of root and its peers on a Unix socket who are somebody else. The tests need root.

mod support;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use support::{Peer, Scratch, start, test_name};
use tidegate_server::Running;
use tidegate_wire::{Handle, Op, Outcome, Status};

/// Reactors of each forwarder.
const REACTORS: u32 = 1;
const USER: u32 = 12_345;
const EACCES: Result<Outcome, Status> = Err(Status::Errno(13));

/// A forwarder whose socket all users reach; None where the test is not root.
fn open_to_all(name: &str) -> Option<(Scratch, Running)> {
    if !geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let scratch = Scratch::new(name);
    for path in [&scratch.0, &scratch.export()] {
        set_mode(path, 0o755);
    }
    let running = start(&scratch, |_| ());
    Some((scratch, running))
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
}

/// The session of a user with these supplementary groups, and the group of the user's number.
fn session_of(scratch: &Scratch, user: u32, groups: &[u32]) -> Peer {
    let groups: Vec<Gid> = groups.iter().map(|it| Gid::from_raw(*it)).collect();
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    // Ids are those of a thread.
    let connected = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_groups(&groups).expect("root may");
            set_thread_res_gid(gid, gid, gid).expect("root may");
            set_thread_res_uid(uid, uid, uid).expect("root may");
            Peer::unix(&scratch.socket())
        });
        thread.join().expect("it connects")
    });
    connected.greet()
}

/// A file of a user and a group with `secret` in it.
fn file(scratch: &Scratch, name: &str, owner: (u32, u32), mode: u32) {
    let path = scratch.export().join(name);
    std::fs::write(&path, "secret").expect("the export is ours");
    chown(&path, Some(owner.0), Some(owner.1)).expect("root may");
    set_mode(&path, mode);
}

fn lookup(peer: &mut Peer, name: &str) -> Handle {
    let name = name.as_bytes().into();
    let parent = peer.root();
    match peer.call(Op::Lookup { parent, name }, &[]).0.result {
        Ok(Outcome::Attr(attr)) => attr.handle,
        other => panic!("not found: {other:?}"),
    }
}

fn open(peer: &mut Peer, handle: Handle, number: u64) -> Result<Outcome, Status> {
    let op = Op::Open {
        handle,
        open: number,
        read: true,
        write: false,
    };
    peer.call(op, &[]).0.result
}

#[test]
fn supplementary_groups_of_a_peer_count_for_and_against_it() {
    let Some((scratch, _running)) = open_to_all("groups") else {
        return;
    };
    file(&scratch, "shared", (0, 777), 0o640);
    file(&scratch, "forbidden", (0, 777), 0o604);
    let mut member = session_of(&scratch, USER, &[5, 777]);
    let shared = lookup(&mut member, "shared");
    let forbidden = lookup(&mut member, "forbidden");
    assert!(open(&mut member, shared, 1).is_ok());
    assert_eq!(member.read(shared, 0, 6), b"secret");
    assert_eq!(open(&mut member, forbidden, 2), EACCES);
    let mut other = session_of(&scratch, USER, &[]);
    assert_eq!(open(&mut other, shared, 1), EACCES);
    assert!(open(&mut other, forbidden, 2).is_ok());
}

#[test]
fn root_without_capabilities_is_refused() {
    const CHILD: &str = "TIDEGATE_TEST_POWERLESS";
    if let Some(socket) = std::env::var_os(CHILD) {
        let mut peer = Peer::unix(Path::new(&socket));
        let hello = peer.hello_op();
        assert_eq!(peer.call(hello, &[]).0.result, EACCES);
        return;
    }
    let Some((scratch, _running)) = open_to_all("powerless") else {
        return;
    };
    let mut root = Peer::unix(&scratch.socket()).greet();
    root.check_alive();
    let test = std::env::current_exe().expect("this program");
    let name = test_name(module_path!(), "root_without_capabilities_is_refused");
    // Without the right to act as root on the node, without any capability, and with all of them
    // in a user namespace of its own.
    for way in [
        "setpriv --bounding-set=-sys_admin",
        "setpriv --bounding-set=-all",
        "unshare --user --map-root-user",
    ] {
        let words: Vec<&str> = way.split(' ').collect();
        let ran = Command::new(words[0])
            .args(&words[1..])
            .arg(&test)
            .args(["--exact", &name])
            .env(CHILD, scratch.socket())
            .output();
        let ran = ran.expect("util-linux is there");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(
            ran.status.success() && text.contains("1 passed"),
            "{way}: {text}"
        );
    }
}

/// A directory of a user below the export.
fn directory(scratch: &Scratch, name: &str, owner: u32, mode: u32) {
    let path = scratch.export().join(name);
    std::fs::create_dir(&path).expect("the export is ours");
    chown(&path, Some(owner), Some(owner)).expect("root may");
    set_mode(&path, mode);
}

/// The handle behind a path, as root finds it.
fn find(root: &mut Peer, path: &str) -> Handle {
    path.split('/').fold(root.root(), |parent, name| {
        let name = name.as_bytes().into();
        match root.call(Op::Lookup { parent, name }, &[]).0.result {
            Ok(Outcome::Attr(attr)) => attr.handle,
            other => panic!("not found: {other:?}"),
        }
    })
}

fn resolve(peer: &mut Peer, handle: Handle, path: &str) -> Result<Outcome, Status> {
    let path = path.as_bytes().into();
    peer.call(Op::ResolvePath { handle, path }, &[]).0.result
}

#[test]
fn a_handle_opens_no_way_into_a_private_directory() {
    let Some((scratch, _running)) = open_to_all("private") else {
        return;
    };
    directory(&scratch, "private", 1, 0o700);
    file(&scratch, "private/file", (1, 1), 0o644);
    let link = scratch.export().join("private/link");
    std::os::unix::fs::symlink("/etc", link).expect("the export is ours");
    let mut root = Peer::unix(&scratch.socket()).greet();
    let (dir, file) = (find(&mut root, "private"), find(&mut root, "private/file"));
    let mut user = session_of(&scratch, USER, &[]);
    let unknown = Err(Status::UnknownHandle);
    assert_eq!(open(&mut user, file, 1), unknown);
    let extents = tidegate_wire::Extent { offset: 0, len: 6 }.into();
    let name: Box<[u8]> = (*b"file").into();
    let parent = user.root();
    for op in [
        Op::Read {
            handle: file,
            extents,
        },
        Op::Getattr { handle: file },
        Op::Access {
            handle: file,
            mask: 4,
        },
        Op::Fsync {
            handle: file,
            data_only: false,
        },
        Op::Link {
            handle: file,
            parent,
            name: (*b"mine").into(),
        },
        // One that nobody has.
        Op::Getattr {
            handle: Handle {
                inode: file.inode,
                birth: 1,
            },
        },
    ] {
        assert_eq!(user.call(op, &[]).0.result, unknown);
    }
    for path in [
        "private/file",
        "private/none",
        "private/link",
        "private/link/passwd",
        "private/file/x",
    ] {
        assert_eq!(resolve(&mut user, file, path), EACCES, "{path}");
    }
    // The directory itself anybody sees, and what is in it only its owner.
    let seen = lookup(&mut user, "private");
    assert_eq!(seen, dir);
    assert_eq!(
        user.call(Op::Lookup { parent: dir, name }, &[]).0.result,
        EACCES
    );
    let mut owner = session_of(&scratch, 1, &[]);
    assert!(open(&mut owner, file, 1).is_ok());
    assert_eq!(owner.read(file, 0, 6), b"secret");
}

#[test]
fn who_may_pass_a_directory_but_not_list_it_needs_the_name() {
    let Some((scratch, _running)) = open_to_all("unlisted") else {
        return;
    };
    directory(&scratch, "unlisted", 1, 0o711);
    file(&scratch, "unlisted/name", (1, 1), 0o644);
    file(&scratch, "listed", (1, 1), 0o644);
    let mut root = Peer::unix(&scratch.socket()).greet();
    let (secret, listed) = (find(&mut root, "unlisted/name"), find(&mut root, "listed"));
    let mut user = session_of(&scratch, USER, &[]);
    assert_eq!(open(&mut user, secret, 1), Err(Status::UnknownHandle));
    // The user could have found this one by himself.
    assert!(open(&mut user, listed, 1).is_ok());
    assert!(resolve(&mut user, secret, "unlisted/name").is_ok());
    assert!(open(&mut user, secret, 2).is_ok());
}

#[test]
fn a_refused_unlink_leaves_no_trace() {
    use std::os::unix::fs::MetadataExt;
    let Some((scratch, _running)) = open_to_all("refused") else {
        return;
    };
    directory(&scratch, "own", 1, 0o755);
    directory(&scratch, "sticky", 1, 0o1777);
    let mut root = Peer::unix(&scratch.socket()).greet();
    let mut user = session_of(&scratch, USER, &[]);
    for (dir, errno) in [("own", 13), ("sticky", 1)] {
        let path = format!("{dir}/file");
        file(&scratch, &path, (1, 1), 0o644);
        let open_one = find(&mut root, &path);
        assert!(open(&mut root, open_one, open_one.inode).is_ok());
        let look = || std::fs::metadata(scratch.export().join(&path)).expect("it is there");
        let before = look();
        let parent = lookup(&mut user, dir);
        let name = (*b"file").into();
        let refused = user.call(Op::Unlink { parent, name }, &[]).0.result;
        assert_eq!(refused, Err(Status::Errno(errno)));
        let after = look();
        let of = |it: &std::fs::Metadata| (it.nlink(), it.ctime(), it.ctime_nsec());
        assert_eq!(of(&after), of(&before), "{dir}");
    }
}
