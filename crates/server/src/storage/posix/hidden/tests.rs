//! Hidden folders that somebody prepared before the first forwarder came.

use super::{FOLDER_TRIES, TEXT_MAX, read_hidden_file, until_there};
use crate::seats::Seats;
use crate::storage::scratch::Scratch;
use crate::storage::{ExportError, ExportOptions, PosixFiles};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::time::Duration;
use tidegate_wire::Layout;

const LAYOUT: Layout = Layout {
    seats: 2,
    stripe: 1 << 20,
};

fn export(dir: &Path) -> Result<PosixFiles, ExportError> {
    PosixFiles::open(dir, &ExportOptions::new(LAYOUT))
}

/// The words that refuse the export or its seats.
fn refusal(dir: &Path) -> String {
    let words = match export(dir) {
        Err(error) => error.to_string(),
        Ok(files) => {
            let seats = Seats::open(&files, LAYOUT, 0);
            seats.err().expect("a refusal").to_string()
        }
    };
    assert!(!words.contains('\n'), "{words}");
    words
}

#[test]
fn a_folder_of_somebody_else_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, needs root: folders of others");
        return;
    }
    let scratch = Scratch::new("foreign");
    let hidden = scratch.path().join(".tidegate");
    std::fs::create_dir(&hidden).expect("mkdir");
    chown(&hidden, Some(1001), Some(1001)).expect("chown");
    let words = refusal(scratch.path());
    assert!(words.contains("belongs to user 1001"), "{words}");
    assert!(words.contains("remove it"), "{words}");
    chown(&hidden, Some(0), Some(0)).expect("chown");
    for name in ["opens", "orphans"] {
        std::fs::create_dir_all(hidden.join("orphans")).expect("mkdir");
        std::fs::write(hidden.join("opens"), b"").expect("write");
        chown(hidden.join(name), Some(1001), None).expect("chown");
        let words = refusal(scratch.path());
        let said = format!("`{name}` belongs to user 1001");
        assert!(words.contains(&said), "{words}");
        chown(hidden.join(name), Some(0), None).expect("chown");
    }
    std::fs::write(hidden.join("layout"), b"seats = 2\n").expect("write");
    chown(hidden.join("layout"), Some(1001), None).expect("chown");
    let words = refusal(scratch.path());
    assert!(words.contains("`layout` belongs to user 1001"), "{words}");
}

#[test]
fn links_are_not_followed() {
    let (scratch, outside) = (Scratch::new("links"), Scratch::new("outside"));
    let hidden = scratch.path().join(".tidegate");
    symlink(outside.path(), &hidden).expect("symlink");
    refusal(scratch.path());
    std::fs::remove_file(&hidden).expect("remove");
    std::fs::create_dir(&hidden).expect("mkdir");
    // One that leads nowhere would be made where it points to.
    symlink(outside.path().join("made"), hidden.join("layout")).expect("symlink");
    let words = refusal(scratch.path());
    assert!(words.contains("`layout` is a symbolic link"), "{words}");
    std::fs::remove_file(hidden.join("layout")).expect("remove");
    symlink(outside.path().join("made"), hidden.join("seat.1")).expect("symlink");
    let files = export(scratch.path()).expect("export");
    let seats = Seats::open(&files, LAYOUT, 0).expect("seats");
    assert!(seats.try_take(1).is_err());
    assert_eq!(std::fs::read_dir(outside.path()).expect("list").count(), 0);
}

#[test]
fn what_is_ours_is_taken_from_all_others() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("modes");
    let hidden = scratch.path().join(".tidegate");
    std::fs::create_dir(&hidden).expect("mkdir");
    std::fs::write(hidden.join("opens"), b"").expect("write");
    for (path, mode) in [(hidden.clone(), 0o777), (hidden.join("opens"), 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
    }
    let files = export(scratch.path()).expect("export");
    Seats::open(&files, LAYOUT, 0).expect("seats");
    let mode = |name: &str| {
        let metadata = std::fs::symlink_metadata(hidden.join(name));
        metadata.expect("stat").mode() & 0o7777
    };
    assert_eq!((mode("."), mode("opens")), (0o700, 0o600));
    assert_eq!((mode("orphans"), mode("layout")), (0o700, 0o600));
}

#[test]
fn forwarders_that_start_at_once_agree() {
    let scratch = Scratch::new("starts");
    let start = |seats: u16| {
        let layout = Layout { seats, ..LAYOUT };
        let options = ExportOptions::new(layout);
        let files = PosixFiles::open(scratch.path(), &options).expect("export");
        Seats::open(&files, layout, 0).is_ok()
    };
    let agreed: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || start(2 + number % 2)))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.expect("no panic")).collect()
    });
    let (even, odd) = (agreed[0], agreed[1]);
    assert_ne!(even, odd, "one layout was recorded: {agreed:?}");
    assert!(agreed.chunks(2).all(|pair| pair == [even, odd]));
    let names = std::fs::read_dir(scratch.path().join(".tidegate")).expect("list");
    let drafts = names.filter(|name| {
        let name = name.as_ref().expect("entry").file_name();
        name.to_string_lossy().starts_with("layout.")
    });
    assert_eq!(drafts.count(), 0);
}

#[test]
fn a_folder_that_another_forwarder_is_making_is_waited_for_but_not_for_ever() {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let found = |from: u32| {
        let mut tries = 0;
        let found = until_there(Duration::ZERO, || {
            tries += 1;
            (tries >= from).then_some(()).ok_or_else(missing)
        });
        (found.map_err(|error| error.kind()), tries)
    };
    assert_eq!(found(1), (Ok(()), 1));
    assert_eq!(found(5), (Ok(()), 5));
    assert_eq!(
        found(u32::MAX),
        (Err(io::ErrorKind::NotFound), FOLDER_TRIES)
    );
    let denied = || Err::<(), _>(io::Error::from(io::ErrorKind::PermissionDenied));
    let mut tries = 0;
    let refused = until_there(Duration::ZERO, || {
        tries += 1;
        denied()
    });
    assert_eq!(
        refused.map_err(|error| error.kind()),
        Err(io::ErrorKind::PermissionDenied)
    );
    assert_eq!(tries, 1, "only what is missing is waited for");
}

#[test]
fn what_forwarders_that_died_were_about_to_write_goes_after_a_while() {
    let scratch = Scratch::new("drafts");
    drop(export(scratch.path()).expect("export"));
    let hidden = scratch.path().join(".tidegate");
    let old = ["keeper.8265.808276518.2", "forwarder.0.8261.686293301.2"];
    let kept = [
        "keeper",
        "forwarder.7",
        "seat.3.17",
        "draft.3.17.18",
        "1.2.3",
        "a.b.2.3",
    ];
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    for name in old.iter().chain(&kept) {
        let file = std::fs::File::create(hidden.join(name)).expect("room");
        file.set_modified(long_ago).expect("own");
    }
    std::fs::write(hidden.join("policy.8265.808276518.2"), "").expect("room");
    drop(export(scratch.path()).expect("export"));
    let is_there = |name: &&&str| hidden.join(name).exists();
    assert_eq!(old.iter().filter(is_there).count(), 0);
    assert_eq!(kept.iter().filter(is_there).count(), kept.len());
    assert!(
        hidden.join("policy.8265.808276518.2").exists(),
        "it may be in use"
    );
}

#[test]
fn a_kept_text_is_read_if_it_can_be_one() {
    let scratch = Scratch::new("texts");
    let folder = std::fs::File::open(scratch.path()).expect("own");
    let read = |name: &str| read_hidden_file(folder.as_fd(), name);
    assert_eq!(read("none").expect("there is none"), None);
    let write = |bytes: &[u8]| {
        let path = scratch.path().join("text");
        std::fs::write(&path, bytes).expect("room");
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, own).expect("own");
    };
    write(&vec![b'x'; TEXT_MAX as usize]);
    let text = read("text").expect("the longest").expect("it is there");
    assert_eq!(text.len() as u64, TEXT_MAX);
    for (bytes, why) in [
        (vec![b'x'; TEXT_MAX as usize + 1], "is longer than"),
        (vec![b'x', 0xff], "is no text"),
    ] {
        write(&bytes);
        let refused = read("text").expect_err(why).to_string();
        assert!(refused.contains(why), "{refused}");
    }
}
