//! Advisory locks: who holds what, and until when.

use crate::mount::{Mount, PATIENCE, go_on, gone, line, python, read_write, until};
use rustix::fs::FlockOperation;
use rustix::process::{Flock, FlockType};
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn a_whole_file_lock_ends_with_its_holder() {
    let Some(mount) = Mount::new("flock") else {
        return;
    };
    let path = mount.path("file");
    let first = read_write(&path);
    let second = read_write(&path);
    rustix::fs::flock(&first, FlockOperation::LockExclusive).expect("free");
    let refused = rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN));
    // Waits, and gets it when the holder closes; never sees a lock that is already given up.
    let waiter = std::thread::spawn(move || {
        rustix::fs::flock(&second, FlockOperation::LockExclusive).map(|()| second)
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(first);
    drop(waiter.join().expect("joined").expect("locked"));
    for round in 0..50 {
        let file = read_write(&path);
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked, Ok(()), "round {round}");
    }
}

const HOLD: &str = "
import fcntl, sys
f = open(sys.argv[1], 'r+')
fcntl.lockf(f, fcntl.LOCK_EX, 4, 2)
print('held', flush=True)
input()
open(sys.argv[1]).close()
print('closed another', flush=True)
input()";

const TEST: &str = "
import fcntl, sys
f = open(sys.argv[1], 'r+')
def free(start):
    try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, start)
    except OSError: return 'taken'
    return 'free'
print(free(0), free(4), free(6), flush=True)";

const WAIT: &str = "
import fcntl, sys
f = open(sys.argv[1], 'r+')
fcntl.lockf(f, fcntl.LOCK_EX)
print('got it', flush=True)";

fn free_ranges(path: &Path) -> String {
    let mut test = python(TEST, path).expect("there was one before");
    let free = line(&mut test);
    assert!(test.wait().expect("our child").success());
    free
}

#[test]
fn byte_ranges_are_kept_apart_and_end_with_a_close() {
    let Some(mount) = Mount::new("ranges") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, b"0123456789").expect("written");
    let Some(mut holder) = python(HOLD, &path) else {
        return;
    };
    assert_eq!(line(&mut holder), "held");
    assert_eq!(free_ranges(&path), "free taken free");
    go_on(&mut holder);
    assert_eq!(line(&mut holder), "closed another");
    // Closing any descriptor of the file gives up the process's ranges.
    assert_eq!(free_ranges(&path), "free free free");
    holder.kill().expect("our child");
    holder.wait().expect("our child");
}

#[test]
fn byte_ranges_end_with_a_killed_process() {
    let Some(mount) = Mount::new("killed") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, b"0123456789").expect("written");
    let Some(mut holder) = python(HOLD, &path) else {
        return;
    };
    assert_eq!(line(&mut holder), "held");
    let mut waiter = python(WAIT, &path).expect("there was one before");
    until("waiting", PATIENCE, || {
        mount.local.locks.waiting.load(Ordering::SeqCst) == 1
    });
    assert!(!gone(&mut waiter));
    holder.kill().expect("our child");
    holder.wait().expect("our child");
    assert_eq!(line(&mut waiter), "got it");
    assert!(waiter.wait().expect("our child").success());
}

#[test]
fn ranges_of_an_open_file_end_with_its_last_close() {
    let Some(mount) = Mount::new("ofd") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, b"0123456789").expect("written");
    // F_OFD_SETLK with a write lock of bytes 2 to 5; then closed.
    let own = "
import fcntl, struct, sys
f = open(sys.argv[1], 'r+')
fcntl.fcntl(f, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 2, 4, 0))
print('held', flush=True)
input()
open(sys.argv[1]).close()
print('closed another', flush=True)
input()
f.close()
print('closed', flush=True)
input()";
    let Some(mut holder) = python(own, &path) else {
        return;
    };
    assert_eq!(line(&mut holder), "held");
    assert_eq!(free_ranges(&path), "free taken free");
    go_on(&mut holder);
    assert_eq!(line(&mut holder), "closed another");
    assert_eq!(free_ranges(&path), "free taken free");
    go_on(&mut holder);
    assert_eq!(line(&mut holder), "closed");
    assert_eq!(free_ranges(&path), "free free free");
    holder.kill().expect("our child");
    holder.wait().expect("our child");
}

#[test]
fn who_stands_in_the_way_is_told() {
    let Some(mount) = Mount::new("getlk") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, b"0123456789").expect("written");
    let Some(mut holder) = python(HOLD, &path) else {
        return;
    };
    assert_eq!(line(&mut holder), "held");
    let file = read_write(&path);
    let asked = Flock::from(FlockType::WriteLock);
    let found = rustix::process::fcntl_getlk(&file, &asked)
        .expect("asked")
        .expect("taken");
    assert_eq!(
        found.pid.map(|pid| pid.as_raw_nonzero().get()),
        Some(holder.id() as i32)
    );
    assert_eq!((found.start, found.length), (2, 4));
    holder.kill().expect("our child");
    holder.wait().expect("our child");
    until("released", PATIENCE, || {
        rustix::process::fcntl_getlk(&file, &asked)
            .expect("asked")
            .is_none()
    });
}
