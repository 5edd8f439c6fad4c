//! The session on a real mount: concurrency, interrupts, threads, mapping, unmounting.

mod mapping;
mod memory;

use mapping::Mapping;
use memory::{BLOCKED, FORGETFUL, MANY, MANY_LEN, Memory, PANICS};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidegate_mount::fuse::{Limits, MountError, MountSettings, Serving, Session};

/// How long a killed process may stay.
const GONE: Duration = Duration::from_secs(1);
/// How long anything else may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Mount {
    memory: Arc<Memory>,
    serving: Serving,
    directory: PathBuf,
    direct_mmap: bool,
}

impl Mount {
    /// A mount, or `None` with a line that says why where none can be made.
    fn new(name: &str, readdirplus: bool, limits: Limits) -> Option<Self> {
        let directory =
            std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a mount point");
        let settings = MountSettings {
            name: "tidegate-test".into(),
            readdirplus,
            ..MountSettings::new(&directory)
        };
        let session = match Session::mount(&settings) {
            Ok(session) => session,
            Err(error @ (MountError::Path { .. } | MountError::Stale(_))) => panic!("{error}"),
            Err(error) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
                panic!("no mount: {error}");
            }
            Err(error) => {
                println!("SKIP: {error}");
                fs::remove_dir(&directory).expect("an empty mount point");
                return None;
            }
        };
        let (minor, direct_mmap) = (session.negotiated().protocol.1, session.direct_mmap());
        assert!(minor >= 31, "the kernel speaks 7.{minor}");
        let memory = Memory::new(true);
        let serving = session
            .start(Arc::clone(&memory) as _, limits)
            .expect("threads");
        Some(Self {
            memory,
            serving,
            directory,
            direct_mmap,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn blocked(&self) -> usize {
        self.memory.blocked.load(Ordering::SeqCst)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.serving.unmount().expect("unmounted");
        fs::remove_dir(&self.directory).expect("an empty mount point");
    }
}

fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "{what} took more than {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a child runs this program and is in this state, as `/proc/PID/stat` has them: here `S`
/// waits for an answer of the mount, and `D` does so too after a signal.
fn is_in(child: &Child, state: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id()));
    stat.expect("a child that was not waited for")
        .contains(state)
}

fn created(path: &Path) -> File {
    let mut options = File::options();
    options.create(true).read(true).write(true).truncate(true);
    options.open(path).expect("created")
}

/// A command that dies of signals even where those who started the tests ignore them.
fn mortal(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

fn cat(path: &Path) -> Child {
    let mut cat = mortal("cat");
    cat.arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    cat.spawn().expect("cat")
}

#[test]
fn what_is_written_side_by_side_is_read_back() {
    let Some(mount) = Mount::new("data", false, Limits::default()) else {
        return;
    };
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let path = mount.path(&format!("file-{number}"));
            scope.spawn(move || {
                let file = created(&path);
                // Longer than one request, and no multiple of a page.
                let bytes: Vec<u8> = (0..3_000_001_u32)
                    .map(|at| (at % 251) as u8 ^ number)
                    .collect();
                for (at, part) in bytes.chunks(700_001).enumerate() {
                    file.write_all_at(part, at as u64 * 700_001)
                        .expect("written");
                }
                let mut back = vec![0; bytes.len()];
                file.read_exact_at(&mut back, 0).expect("read");
                assert!(back == bytes, "file {number} differs");
            });
        }
    });
    until("closing", PATIENCE, || {
        mount.memory.open.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn a_killed_reader_is_gone_at_once_while_its_request_blocks() {
    let Some(mount) = Mount::new("kill", false, Limits::default()) else {
        return;
    };
    for signal in ["KILL", "TERM", "QUIT"] {
        let mut reader = cat(&mount.path(BLOCKED));
        until("reading", PATIENCE, || mount.blocked() == 1);
        signal_to(&reader, signal);
        until("dying", GONE, || {
            reader.try_wait().expect("our child").is_some()
        });
        until("the cancelled request", GONE, || mount.blocked() == 0);
    }
    assert_eq!(mount.memory.cancelled.load(Ordering::SeqCst), 3);
}

#[test]
fn a_signal_that_is_survived_ends_no_read_but_a_later_kill_does() {
    let Some(mount) = Mount::new("signal", false, Limits::default()) else {
        return;
    };
    let mut reader = Command::new("sh")
        .args(["-c", "trap : USR1; read -r line < \"$0\""])
        .arg(mount.path(BLOCKED))
        .spawn()
        .expect("sh");
    until("reading", PATIENCE, || mount.blocked() == 1);
    signal_to(&reader, "USR1");
    // The kernel asks the mount to interrupt the read, and lets only a kill end it from then on.
    until("the interrupt", PATIENCE, || is_in(&reader, "(sh) D "));
    // The mount has read the interrupt before the next request.
    fs::metadata(mount.path(MANY)).expect("served");
    assert_eq!(
        mount.blocked(),
        1,
        "the read ended with a signal that has a handler"
    );
    reader.kill().expect("our child");
    until("dying", GONE, || {
        reader.try_wait().expect("our child").is_some()
    });
}

#[test]
fn waiting_for_a_lock_ends_with_any_signal() {
    let Some(mount) = Mount::new("lock", false, Limits::default()) else {
        return;
    };
    fs::write(mount.path("file"), b"x").expect("written");
    let mut holder = mortal("flock")
        .arg(mount.path("file"))
        .arg("true")
        .spawn()
        .expect("flock");
    until("waiting", PATIENCE, || mount.blocked() == 1);
    signal_to(&holder, "INT");
    until("dying", GONE, || {
        holder.try_wait().expect("our child").is_some()
    });
}

#[test]
fn more_blocked_requests_than_threads_can_all_be_interrupted() {
    let Some(mount) = Mount::new("crowd", false, Limits::default()) else {
        return;
    };
    let mut readers: Vec<Child> = (0..600).map(|_| cat(&mount.path(BLOCKED))).collect();
    until("filling all threads but the reading one", PATIENCE, || {
        mount.blocked() == 511
    });
    // The ones beyond wait in the queue. They, too, are gone at once; the others have not moved.
    until("waiting in the queue", PATIENCE, || {
        readers.iter().all(|reader| is_in(reader, "(cat) S "))
    });
    assert_eq!(mount.blocked(), 511);
    let start = Instant::now();
    for reader in &mut readers {
        reader.kill().expect("our child");
    }
    for reader in &mut readers {
        reader.wait().expect("our child");
    }
    let took = start.elapsed();
    assert!(took < 5 * GONE, "600 killed readers took {took:?} to go");
    until("the cancelled requests", PATIENCE, || mount.blocked() == 0);
    fs::write(mount.path("after"), b"still here").expect("the mount works on");
}

#[test]
fn two_threads_are_enough_to_be_interruptible() {
    let limits = Limits {
        threads_max: 2,
        ..Limits::default()
    };
    let Some(mount) = Mount::new("two", false, limits) else {
        return;
    };
    let mut first = cat(&mount.path(BLOCKED));
    until("reading", PATIENCE, || mount.blocked() == 1);
    // Queued behind the first, which holds the only thread that serves.
    let mut second = Command::new("stat")
        .arg(mount.path(MANY))
        .stdout(Stdio::null())
        .spawn()
        .expect("stat");
    let mut third = cat(&mount.path(BLOCKED));
    until("waiting in the queue", PATIENCE, || {
        is_in(&second, "(stat) S ") && is_in(&third, "(cat) S ")
    });
    third.kill().expect("our child");
    until("dying in the queue", GONE, || {
        third.try_wait().expect("our child").is_some()
    });
    assert!(second.try_wait().expect("our child").is_none());
    first.kill().expect("our child");
    until("dying", GONE, || {
        first.try_wait().expect("our child").is_some()
    });
    assert!(
        second.wait().expect("our child").success(),
        "the queued request was lost"
    );
}

#[test]
fn a_full_queue_refuses() {
    let limits = Limits {
        threads_max: 2,
        queued_max: 1,
        ..Limits::default()
    };
    let Some(mount) = Mount::new("full", false, limits) else {
        return;
    };
    let mut first = cat(&mount.path(BLOCKED));
    until("reading", PATIENCE, || mount.blocked() == 1);
    let mut second = cat(&mount.path(FORGETFUL));
    // Its first request fills the queue.
    until("waiting in the queue", PATIENCE, || {
        is_in(&second, "(cat) S ")
    });
    let refused = fs::metadata(mount.path(MANY)).expect_err("no room");
    assert_eq!(refused.raw_os_error(), Some(12), "{refused}");
    for child in [&mut first, &mut second] {
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
}

#[test]
fn a_request_that_panics_or_is_dropped_fails_alone() {
    let Some(mount) = Mount::new("panic", false, Limits::default()) else {
        return;
    };
    for name in [PANICS, FORGETFUL] {
        let error = fs::read(mount.path(name)).expect_err(name);
        assert_eq!(error.raw_os_error(), Some(5), "{name}: {error}");
    }
    fs::write(mount.path("file"), b"fine").expect("the others go on");
}

#[test]
fn a_long_directory_is_listed_whole() {
    for readdirplus in [false, true] {
        let name = if readdirplus { "plus" } else { "names" };
        let Some(mount) = Mount::new(name, readdirplus, Limits::default()) else {
            return;
        };
        let mut names: Vec<_> = fs::read_dir(mount.path(MANY))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len() as u64, MANY_LEN);
        for number in [0, MANY_LEN / 2, MANY_LEN - 1] {
            fs::metadata(mount.path(MANY).join(format!("entry-{number}"))).expect("looked up");
        }
    }
}

#[test]
fn a_shared_mapping_and_the_file_agree() {
    let Some(mount) = Mount::new("mmap", false, Limits::default()) else {
        return;
    };
    if !mount.direct_mmap {
        println!("SKIP: this kernel maps no files open past the page cache (Linux 6.6 does)");
        return;
    }
    let path = mount.path("mapped");
    let file = created(&path);
    file.write_all_at(&[7; 100], 0).expect("written");
    // Grown through another descriptor: the mapping must see the new length, or touching it is a
    // SIGBUS.
    let other = File::options().write(true).open(&path).expect("opened");
    other.write_all_at(&[8; 100], 8192).expect("written");
    let mapping = Mapping::new(&file, 8292);
    assert_eq!(
        (mapping.at(99), mapping.at(100), mapping.at(8291)),
        (7, 0, 8)
    );
    mapping.set(4096, 9);
    mapping.sync();
    assert_eq!(mount.memory.content("mapped").expect("there")[4096], 9);
    let mut byte = [0];
    other.sync_all().expect("synced");
    file.read_exact_at(&mut byte, 4096).expect("read");
    assert_eq!(byte, [9]);
}

#[test]
fn unmounting_while_busy_takes_the_name_and_then_the_rest() {
    let Some(mount) = Mount::new("busy", false, Limits::default()) else {
        return;
    };
    let path = mount.path("open");
    let file = created(&path);
    mount.serving.unmount().expect("unmounted lazily");
    assert!(!path.exists(), "the name is still there");
    file.write_all_at(b"later", 0)
        .expect("an open file goes on");
    assert_eq!(mount.memory.content("open").expect("there"), b"later");
    drop(file);
    // The kernel may drop the last release together with the connection.
    mount.serving.wait();
}

#[test]
fn dropping_the_session_unmounts() {
    let Some(mount) = Mount::new("drop", false, Limits::default()) else {
        return;
    };
    let directory = mount.directory.clone();
    let listed = || fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(listed().contains(directory.to_str().expect("a plain name")));
    drop(mount);
    assert!(!listed().contains(directory.to_str().expect("a plain name")));
}

fn signal_to(child: &Child, signal: &str) {
    let status = Command::new("kill")
        .args(["-s", signal, &child.id().to_string()])
        .status();
    assert!(status.expect("kill").success());
}
