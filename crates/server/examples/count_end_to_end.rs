//! Runs N reads or writes of a client through a forwarder, both in this process, over a Unix socket
//! and memory that they share, so that callgrind can count the instructions of a request's whole
//! way, sockets and files included: the difference of two runs, divided by the difference of their
//! N.
//!
//! callgrind does not know the system call `openat2`. Built with `rustix/use-libc`, the forwarder
//! calls it through libc's `syscall`, in whose place this program calls `openat`.
//!
//! How often threads poll before they sleep depends on the machine. So this program's `sched_yield`
//! takes as long as beside threads that compute, and most waits begin asleep.
//!
//! `cargo build --release -p tidegate-server --example count_end_to_end --features rustix/use-libc`
//! `valgrind --tool=callgrind target/release/examples/count_end_to_end read 4096 2000`

use std::ffi::{c_char, c_int, c_long};
use tidegate_client::{Bytes, Client, Context, Options};
use tidegate_server::Server;
use tidegate_server::config::{Address, Config};

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(what), Some(bytes), Some(count)) = (args.next(), args.next(), args.next()) else {
        eprintln!("usage: count_end_to_end read|write BYTES N");
        std::process::exit(2);
    };
    let bytes: usize = bytes.parse().expect("BYTES must be a whole number");
    let count: u64 = count.parse().expect("N must be a whole number");
    let dir = std::env::temp_dir().join(format!("tidegate-count-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary directory is ours");
    let socket = Address::unix(dir.with_extension("socket"));
    let server = Server::bind(&Config::local(&dir, socket.clone())).expect("it starts");
    let running = server.spawn().expect("a thread can be had");
    let client = Client::connect(Options::new(vec![socket.to_string()])).expect("it serves");
    let context = Context::default();
    let file = client
        .create(&context, client.root().handle, b"file", 0o644, false)
        .expect("it can be made");
    let data = Bytes::from(vec![7; bytes]);
    let write = || client.write(&context, file.handle, 0, data.clone());
    write().expect("it is written");
    for _ in 0..count {
        if what == "write" {
            write().expect("it is written");
        } else {
            let read = client.read(&context, file.handle, 0, bytes);
            assert_eq!(read.expect("it is read").len, bytes);
        }
    }
    drop(client);
    assert!(
        running.shutdown().expect("it ends"),
        "the drain ended in time"
    );
    std::fs::remove_dir_all(&dir).expect("the directory is ours");
    println!("{count} calls");
}

/// Stands in front of libc's `sched_yield`, and tells who polls that another thread computes.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    std::thread::sleep(std::time::Duration::from_millis(1));
    0
}

/// Stands in front of libc's `syscall`: opens by `openat` what is to be opened by `openat2`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;
    // SAFETY: libc has a function of this name and type; the arguments are those of the caller, of
    // which a system call takes no more than six.
    unsafe {
        if number == libc::SYS_openat2 {
            let how = &*(c as *const libc::open_how);
            let (flags, mode) = (how.flags as c_int, how.mode as libc::mode_t);
            return libc::openat(a as c_int, b as *const c_char, flags, mode).into();
        }
        let next = libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr());
        std::mem::transmute::<*mut libc::c_void, Syscall>(next)(number, a, b, c, d, e, f)
    }
}
