//! Nothing outside of the export can be reached: by no name, link or mount point.

use super::*;
use std::os::unix::fs::symlink;

#[test]
fn nothing_above_or_beside_the_root_can_be_reached() {
    let mut rig = rig("escapes");
    std::fs::create_dir_all(rig.path("a/b")).expect("mkdir");
    let outside = Scratch::new("outside");
    std::fs::write(outside.path().join("secret"), b"s").expect("write");
    let secret = sys::handle_of(
        &sys::stat(std::fs::File::open(outside.path().join("secret")).expect("open"))
            .expect("stat"),
    );
    symlink(outside.path(), rig.path("absolute")).expect("symlink");
    symlink("../..", rig.path("a/up")).expect("symlink");
    symlink(
        format!(
            "../{}",
            outside.path().file_name().expect("name").to_string_lossy()
        ),
        rig.path("beside"),
    )
    .expect("symlink");
    symlink("/proc/self/root", rig.path("magic")).expect("symlink");
    symlink("a", rig.path("inside")).expect("symlink");
    let name = outside.path().to_string_lossy().into_owned();
    let tries = [
        "../secret".to_owned(),
        "a/../../secret".to_owned(),
        "a/b/../..".to_owned(),
        "absolute/secret".to_owned(),
        "beside/secret".to_owned(),
        "a/up/secret".to_owned(),
        "inside/b".to_owned(),
        format!("magic{name}/secret"),
        format!("{name}/secret"),
        "/etc/passwd".to_owned(),
        "a//b".to_owned(),
        "a/./b".to_owned(),
        "a/b/".to_owned(),
        String::new(),
        "a\0b".to_owned(),
        "x/".repeat(3000),
    ];
    for path in tries {
        let reached = rig.files.resolve_path(secret, path.as_bytes());
        assert!(
            matches!(reached, Err(Access::Errno(_))),
            "{path:?}: {reached:?}"
        );
    }
    for name in ["..", ".", "", "a/b", "/", "a\0"] {
        assert_eq!(rig.lookup(name), Err(errno(22)), "{name:?}");
        let made = rig.files.create(None, rig.root, name.as_bytes(), 0o644);
        assert_eq!(made, Err(errno(22)), "{name:?}");
        let moved = rig.files.rename(
            None,
            (rig.root, b"a"),
            (rig.root, name.as_bytes()),
            RenameMode::Replace,
        );
        assert_eq!(moved, Err(errno(22)), "{name:?}");
    }
}

#[test]
fn a_symbolic_link_is_a_file_and_never_a_way() {
    let mut rig = rig("escapes");
    std::fs::write(rig.path("file"), b"text").expect("write");
    symlink("/etc", rig.path("link")).expect("symlink");
    let link = rig.lookup("link").expect("lookup");
    assert_eq!(link.mode & sys::KIND, libc::S_IFLNK);
    assert_eq!(
        &*rig.files.readlink(None, link.handle).expect("readlink"),
        b"/etc"
    );
    let below = rig.files.lookup(None, link.handle, b"passwd");
    assert_eq!(below, Err(errno(20)));
    assert_eq!(
        rig.files.create(None, link.handle, b"x", 0o644),
        Err(errno(20))
    );
    assert_eq!(
        rig.files.readdir(None, link.handle, 0, 4096, None),
        Err(errno(20))
    );
    assert_eq!(
        rig.files.data_fd(link.handle, Direction::Read).err(),
        Some(errno(22))
    );
    assert_eq!(
        rig.files.unlink(None, link.handle, b"passwd"),
        Err(errno(20))
    );
    assert!(std::path::Path::new("/etc/passwd").exists());
}

#[test]
fn the_hidden_folder_is_invisible() {
    let mut rig = rig("hidden");
    let hidden = HIDDEN.as_bytes();
    let inner = std::fs::File::open(rig.path(".tidegate/layout")).expect("open");
    let inner = sys::handle_of(&sys::stat(inner).expect("stat"));
    let file = rig.create("file");
    let root = rig.root;
    let files = &mut rig.files;
    assert_eq!(files.lookup(None, root, hidden), Err(errno(2)));
    assert_eq!(files.create(None, root, hidden, 0o644), Err(errno(1)));
    assert_eq!(files.mkdir(None, root, hidden, 0o755), Err(errno(1)));
    assert_eq!(
        files.mknod(None, root, hidden, libc::S_IFIFO | 0o644, 0),
        Err(errno(1))
    );
    assert_eq!(files.symlink(None, root, hidden, b"x"), Err(errno(1)));
    assert_eq!(files.link(None, file, root, hidden), Err(errno(1)));
    assert_eq!(files.unlink(None, root, hidden), Err(errno(2)));
    assert_eq!(files.rmdir(None, root, hidden), Err(errno(2)));
    let replace = RenameMode::Replace;
    assert_eq!(
        files.rename(None, (root, b"file"), (root, hidden), replace),
        Err(errno(1))
    );
    for mode in [replace, RenameMode::Exchange] {
        assert_eq!(
            files.rename(None, (root, hidden), (root, b"x"), mode),
            Err(errno(2))
        );
    }
    assert_eq!(
        files.resolve_path(inner, b".tidegate/layout"),
        Err(errno(116))
    );
    assert_eq!(files.attr(inner), Err(Access::UnknownHandle));
    let names: Vec<_> = files
        .readdir(None, root, 0, 4096, None)
        .expect("readdir")
        .entries;
    assert_eq!(
        names.iter().map(|entry| &*entry.name).collect::<Vec<_>>(),
        [b"file"]
    );
    // Elsewhere it is a name like any other.
    let sub = files
        .mkdir(None, root, b"sub", 0o755)
        .expect("mkdir")
        .handle;
    let own = files.mkdir(None, sub, hidden, 0o755).expect("mkdir").handle;
    assert_eq!(files.lookup(None, sub, hidden).expect("lookup").handle, own);
    assert_eq!(
        files
            .resolve_path(own, b"sub/.tidegate")
            .expect("resolve")
            .handle,
        own
    );
}

#[test]
fn a_mount_point_below_is_another_export() {
    if !is_root("mount points") {
        return;
    }
    let mut rig = rig("mounts");
    std::fs::create_dir(rig.path("mounted")).expect("mkdir");
    let Some(_mount) = crate::storage::scratch::Tmpfs::mount(&rig.path("mounted"), "1m") else {
        return;
    };
    std::fs::write(rig.path("mounted/inner"), b"x").expect("write");
    assert_eq!(rig.lookup("mounted"), Err(errno(18)));
    let listed = rig.looked_up();
    assert!(
        listed
            .iter()
            .any(|entry| &*entry.name == b"mounted" && entry.attr.is_none())
    );
    let inner = std::fs::File::open(rig.path("mounted/inner")).expect("open");
    let inner = sys::handle_of(&sys::stat(inner).expect("stat"));
    assert!(rig.files.resolve_path(inner, b"mounted/inner").is_err());
}
