//! What a confined thread can do, and what it cannot.

use super::*;
use crate::config::Source;
use crate::storage::scratch::Scratch;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A folder with an export, a place for a socket, a secret, and a file that is none of a
/// forwarder's business.
fn config(scratch: &Scratch, more: &str) -> Config {
    let at = scratch.path();
    for folder in ["export/a", "export/b", "run", "etc", "other"] {
        fs::create_dir_all(at.join(folder)).expect("room");
    }
    fs::write(at.join("other/file"), "theirs").expect("room");
    fs::write(at.join("etc/secret"), "the secret before").expect("room");
    let at = at.display();
    let text = format!(
        "export = \"{at}/export\"\nlisten = [\"unix:{at}/run/socket\"]\n\
         secret_file = \"{at}/etc/secret\"\n{more}"
    );
    let source = Source::parse(&text, "test").expect("TOML");
    Config::from_source(source).expect("right")
}

/// Does this in a thread that is confined, for what holds belongs to threads.
fn confined(config: &Config, then: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            confine_forwarder(config, Looks::Apart);
            then();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Whether this kernel can keep a process from files.
fn has_landlock() -> bool {
    let found = paths::kernel() >= 2;
    if !found {
        eprintln!("skipped: no Landlock here");
    }
    found
}

#[test]
fn files_outside_the_export_are_out_of_reach() {
    if !has_landlock() {
        return;
    }
    let scratch = Scratch::new("sandbox-out");
    let config = config(&scratch, "");
    let other = scratch.path().join("other");
    let refused = |done: std::io::Result<()>| done.err().map(|error| error.kind());
    confined(&config, || {
        let denied = Some(ErrorKind::PermissionDenied);
        assert_eq!(refused(File::open(other.join("file")).map(drop)), denied);
        assert_eq!(refused(fs::write(other.join("file"), "mine")), denied);
        assert_eq!(refused(fs::write(other.join("new"), "mine")), denied);
        assert_eq!(refused(fs::remove_file(other.join("file"))), denied);
        assert_eq!(refused(fs::read_dir(&other).map(drop)), denied);
        assert_eq!(refused(File::open("/etc/shadow").map(drop)), denied);
        // By a link in the export, and in a thread that the confined one starts.
        let link = config.export.join("link");
        symlink(&other, &link).expect("links are names");
        let inner = std::thread::spawn(move || File::open(link.join("file")).map(drop));
        assert_eq!(refused(inner.join().expect("no panic")), denied);
        let moved = fs::rename(config.export.join("link"), other.join("link"));
        assert!(moved.is_err(), "nothing leaves the export");
    });
    assert_eq!(
        fs::read(other.join("file")).expect("it is there"),
        b"theirs"
    );
}

#[test]
fn what_a_forwarder_does_with_its_export_is_allowed() {
    let scratch = Scratch::new("sandbox-in");
    let config = config(&scratch, "");
    let at = |name: &str| config.export.join(name);
    confined(&config, || {
        fs::write(at("a/file"), "bytes").expect("write");
        fs::rename(at("a/file"), at("b/file")).expect("rename between directories");
        fs::hard_link(at("b/file"), at("a/link")).expect("link between directories");
        fs::create_dir(at("a/below")).expect("directory");
        fs::rename(at("a/below"), at("b/below")).expect("rename a directory");
        fs::remove_dir(at("b/below")).expect("remove a directory");
        File::options()
            .write(true)
            .open(at("b/file"))
            .expect("open")
            .set_len(2)
            .expect("cut");
        fs::write(at("b/file"), "again").expect("open with O_TRUNC");
        symlink("nowhere", at("a/symlink")).expect("symbolic link");
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("a/fifo"), fifo, mode, 0).expect("pipe");
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let made = rustix::fs::open(at("a"), flags, mode).expect("a file without a name");
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made));
        let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
        let (from, to) = (rustix::fs::CWD, at("b/named"));
        rustix::fs::linkat(from, &name, from, to, follow).expect("a name for it");
        File::options()
            .append(true)
            .open(&name)
            .expect("opened again");
        fs::remove_file(at("a/link")).expect("remove");
        // Its other places: socket, secret that is replaced, what it tells of processes.
        UnixListener::bind(scratch.path().join("run/socket")).expect("bind");
        fs::remove_file(scratch.path().join("run/socket")).expect("remove the socket");
        fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        std::net::TcpListener::bind("127.0.0.1:0").expect("TCP");
    });
}

#[test]
fn a_secret_behind_a_symbolic_link_is_read() {
    let scratch = Scratch::new("sandbox-link");
    let config = config(&scratch, "");
    let (file, kept) = (
        scratch.path().join("etc/secret"),
        scratch.path().join("kept/secret"),
    );
    fs::create_dir(scratch.path().join("kept")).expect("room");
    fs::rename(&file, &kept).expect("it is ours");
    symlink("../kept/secret", &file).expect("it is ours");
    confined(&config, || {
        assert_eq!(fs::read(&file).expect("it is read"), b"the secret before");
    });
}

#[test]
fn a_secret_that_was_replaced_is_read_and_not_written() {
    let scratch = Scratch::new("sandbox-secret");
    let config = config(&scratch, "");
    let (new, file) = (
        scratch.path().join("etc/new"),
        scratch.path().join("etc/secret"),
    );
    let (confine, replaced) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            confine.wait();
            fs::write(&new, "the secret after").expect("room");
            fs::rename(&new, &file).expect("it is ours");
            replaced.wait();
        });
        confined(&config, || {
            confine.wait();
            replaced.wait();
            let read = fs::read_to_string(&file).expect("its directory may be read");
            assert_eq!(read, "the secret after");
            assert!(!has_landlock() || fs::write(&file, "mine").is_err());
        });
    });
}

#[test]
fn no_program_is_started_and_no_other_process_touched() {
    let scratch = Scratch::new("sandbox-calls");
    let call = |number, arguments: [libc::c_long; 4]| {
        let [a, b, c, d] = arguments;
        // SAFETY: calls that are refused, or fail with these arguments.
        let done = unsafe { libc::syscall(number, a, b, c, d) };
        (done < 0)
            .then(|| std::io::Error::last_os_error().raw_os_error())
            .flatten()
    };
    let ring = || call(libc::SYS_io_uring_setup, [0; 4]);
    let denied = Some(libc::EPERM);
    confined(&config(&scratch, ""), || {
        let started = std::process::Command::new("/bin/true").status();
        assert_eq!(
            started.map_err(|error| error.raw_os_error()).err(),
            Some(denied)
        );
        // SAFETY: with this flag alone it would make a process, and is refused.
        let fork = call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0]);
        assert_eq!(fork, denied);
        for (number, arguments) in [
            (libc::SYS_execve, [0; 4]),
            (libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), 1, 0, 0]),
            (libc::SYS_process_vm_readv, [1, 0, 0, 0]),
            (libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0]),
            (libc::SYS_setns, [-1, 0, 0, 0]),
            (libc::SYS_mount, [0; 4]),
            (libc::SYS_umount2, [0; 4]),
            (libc::SYS_open_by_handle_at, [-1, 0, 0, 0]),
            (
                libc::SYS_socket,
                [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0, 0],
            ),
            (libc::SYS_ioctl, [0, libc::TIOCSTI as libc::c_long, 0, 0]),
            (libc::SYS_bpf, [0; 4]),
        ] {
            assert_eq!(call(number, arguments), denied, "call {number}");
        }
        assert_eq!(call(libc::SYS_clone3, [0; 4]), Some(libc::ENOSYS));
        assert_eq!(ring(), denied);
        std::thread::spawn(|| ())
            .join()
            .expect("threads are allowed");
    });
    confined(&config(&scratch, "[storage]\nio = \"direct\"\n"), || {
        assert_ne!(ring(), denied, "direct I/O uses rings");
    });
    confined(&config(&scratch, "sandbox = \"off\"\n"), || {
        let theirs = scratch.path().join("other/file");
        assert!(Path::new(&theirs).exists() && File::open(theirs).is_ok());
        assert!(std::process::Command::new("/bin/true").status().is_ok());
    });
}
