//! What a process notices of a forwarder that stands still: it waits, but it can be killed.

use crate::mount::{GONE, Mount, PATIENCE, go_on, gone, line, python, until};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn start(program: &str, arguments: &[&std::path::Path]) -> Child {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("a program that every system has")
}

#[test]
fn a_killed_process_is_gone_whatever_it_waits_for() {
    let Some(mount) = Mount::new("stopped") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, vec![1; 100_000]).expect("written");
    let other = mount.path("other");
    let calls: [(&str, &[&std::path::Path]); 6] = [
        ("cat", &[&path]),
        ("ls", &[&mount.path("")]),
        ("mkdir", &[&other]),
        ("rm", &[&path]),
        ("cp", &[&path, &other]),
        ("mv", &[&path, &other]),
    ];
    for (program, arguments) in calls {
        mount.freeze(true);
        let mut child = start(program, arguments);
        until(program, PATIENCE, || mount.waiting() == 1);
        child.kill().expect("our child");
        until("dying", GONE, || gone(&mut child));
        until("the cancelled call", GONE, || mount.waiting() == 0);
        mount.freeze(false);
    }
    assert!(
        path.exists() && !other.exists(),
        "a cancelled call has taken effect"
    );
}

const LOCK_AND_READ: &str = "
import fcntl, os, sys
files = [os.open(sys.argv[1] + str(number), os.O_RDWR | os.O_CREAT) for number in range(8)]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.write(file, b'x')
print('open', flush=True)
os.pread(files[0], 1, 0)
input()
os.pread(files[0], 1, 0)";

#[test]
fn a_killed_process_with_open_files_and_locks_is_gone() {
    let Some(mount) = Mount::new("holding") else {
        return;
    };
    let Some(mut child) = python(LOCK_AND_READ, &mount.path("file")) else {
        return;
    };
    assert_eq!(line(&mut child), "open");
    mount.freeze(true);
    go_on(&mut child);
    until("reading", PATIENCE, || mount.waiting() == 1);
    child.kill().expect("our child");
    // Its eight closes wait for their locks, but together no longer than one of them may.
    until("dying", GONE, || gone(&mut child));
    until("giving up on the forwarder", PATIENCE, || {
        mount.waiting() == 0
    });
    assert!(
        mount
            .local
            .dropped
            .load(std::sync::atomic::Ordering::SeqCst)
            >= 8
    );
    mount.freeze(false);
    // What it held is free.
    let file = File::open(mount.path("file0")).expect("opened");
    until("unlocked", PATIENCE, || {
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, lock).is_ok()
    });
}

const ASYNCHRONOUS: &str = "
import ctypes, mmap, os, platform, struct, sys, time
setup, submit = (206, 209) if platform.machine() == 'x86_64' else (0, 2)
call = ctypes.CDLL(None, use_errno=True).syscall
file = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
context = ctypes.c_ulong(0)
assert call(setup, 1, ctypes.byref(context)) == 0
page = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
block = struct.pack('QIIHhIQQqQII', 0, 0, 0, 0, 0, file, address, 4096, 0, 0, 0, 0)
block = ctypes.create_string_buffer(block, len(block))
blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
print('open', flush=True)
input()
assert call(submit, context, 1, blocks) == 1
print('submitted', flush=True)
time.sleep(60)";

#[test]
fn a_killed_process_does_not_wait_for_its_asynchronous_reads() {
    let Some(mount) = Mount::new("aio") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, [1; 4096]).expect("written");
    let Some(mut child) = python(ASYNCHRONOUS, &path) else {
        return;
    };
    assert_eq!(line(&mut child), "open");
    mount.freeze(true);
    go_on(&mut child);
    assert_eq!(line(&mut child), "submitted");
    until("reading", PATIENCE, || mount.waiting() == 1);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        mount.waiting(),
        1,
        "a read of a living process was cancelled"
    );
    child.kill().expect("our child");
    until("dying", GONE, || gone(&mut child));
}

#[test]
fn closing_does_not_wait_for_the_forwarder() {
    let Some(mount) = Mount::new("close") else {
        return;
    };
    let file = File::create(mount.path("file")).expect("created");
    mount.freeze(true);
    let start = Instant::now();
    drop(file);
    assert!(
        start.elapsed() < Duration::from_millis(200),
        "{:?}",
        start.elapsed()
    );
    mount.freeze(false);
}

#[test]
fn a_hundred_waiting_processes_die_together_and_the_rest_goes_on() {
    let Some(mount) = Mount::new("hundred") else {
        return;
    };
    let path = mount.path("file");
    fs::write(&path, b"x").expect("written");
    mount.freeze(true);
    let mut all: Vec<Child> = (0..100).map(|_| start("cat", &[&path])).collect();
    until("waiting", PATIENCE, || mount.waiting() == 100);
    for child in &mut all[1..] {
        child.kill().expect("our child");
    }
    until("dying", 3 * GONE, || all[1..].iter_mut().all(gone));
    assert!(!gone(&mut all[0]));
    mount.freeze(false);
    assert!(
        all[0].wait().expect("our child").success(),
        "the one that waits on gets its bytes"
    );
}
