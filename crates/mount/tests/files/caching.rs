//! Attributes in the kernel's cache: asked for once while they last, and forgotten when the mount
//! is told so.

use crate::local::Local;
use crate::mount::{Mount, PATIENCE};
use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

const LONG_NS: u64 = 60_000_000_000;

/// A mount whose kernel may cache attributes, with a file of 5 bytes.
fn mount(name: &str) -> Option<Mount> {
    let mount = Mount::new(name)?;
    mount.local.lasts_ns.store(LONG_NS, Ordering::SeqCst);
    fs::write(mount.behind("f"), b"bytes").expect("written");
    // So that the kernel asks for nothing but the file from now on.
    fs::metadata(mount.path("")).expect("stat");
    Some(mount)
}

fn len(file: &File) -> u64 {
    file.metadata().expect("fstat").len()
}

fn lengthen(mount: &Mount) {
    let file = fs::OpenOptions::new().append(true).open(mount.behind("f"));
    file.expect("there").write_all(b"more").expect("written");
}

fn clear(mount: &Mount) {
    let cache = mount.local.cache.get().expect("the mount has one");
    let left = cache.invalidate(&[Local::handle(&mount.behind("f"))]);
    assert!(left.is_empty(), "the kernel has taken in every answer");
}

/// Does `look` on another thread, whose answer comes when `meanwhile` is over.
fn late<T: Send>(mount: &Mount, look: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    std::thread::scope(|scope| {
        let looks = mount.local.looks.load(Ordering::SeqCst);
        mount.local.late.store(true, Ordering::SeqCst);
        let looking = scope.spawn(look);
        let begun = Instant::now();
        while mount.local.looks.load(Ordering::SeqCst) == looks {
            assert!(begun.elapsed() < PATIENCE, "nobody looks");
            std::thread::yield_now();
        }
        meanwhile();
        mount.local.late.store(false, Ordering::SeqCst);
        looking.join().expect("it ends")
    })
}

#[test]
fn attributes_are_asked_for_once_until_the_cache_is_cleared_of_them() {
    let Some(mount) = mount("caching") else {
        return;
    };
    let file = File::open(mount.path("f")).expect("opened");
    assert_eq!(len(&file), 5);
    let looks = mount.local.looks.load(Ordering::SeqCst);
    lengthen(&mount);
    assert_eq!(len(&file), 5, "it is cached");
    assert_eq!(mount.local.looks.load(Ordering::SeqCst), looks);
    clear(&mount);
    assert_eq!(len(&file), 9);
    // By its name: one look-up of each name, which tells the attributes too.
    fs::create_dir_all(mount.behind("d/e")).expect("mkdir");
    fs::write(mount.behind("d/e/f"), b"bytes").expect("written");
    for (path, names) in [("f", 1), ("d/e/f", 3)] {
        for _ in 0..2 {
            let looks = mount.local.looks.load(Ordering::SeqCst);
            fs::metadata(mount.path(path)).expect("stat");
            assert_eq!(mount.local.looks.load(Ordering::SeqCst), looks + names);
        }
    }
}

#[test]
fn nothing_is_left_in_the_cache_when_the_mount_is_gone() {
    let Some(mount) = mount("caching-gone") else {
        return;
    };
    fs::metadata(mount.path("f")).expect("stat");
    assert!(mount.mounted.unmount());
    mount.mounted.wait();
    clear(&mount);
}

#[test]
fn an_answer_that_comes_when_the_cache_was_cleared_is_not_cached() {
    let Some(mount) = mount("caching-late") else {
        return;
    };
    // Of a file that the kernel does not know yet.
    let path = mount.path("f");
    let meanwhile = || {
        lengthen(&mount);
        clear(&mount);
    };
    let file = late(&mount, || File::open(&path).expect("opened"), meanwhile);
    assert_eq!(len(&file), 9);
    // Of one that it knows.
    clear(&mount);
    assert_eq!(late(&mount, || len(&file), meanwhile), 9);
    assert_eq!(len(&file), 13);
    // By its name: the kernel does not take what the look-up says, and asks.
    clear(&mount);
    let stat = || fs::metadata(&path).expect("stat").len();
    assert_eq!(late(&mount, stat, meanwhile), 17);
    assert_eq!(len(&file), 17);
}
