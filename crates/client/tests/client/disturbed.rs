//! Calls of threads that signals and cancellations come to.

use crate::calls::{create, pattern};
use crate::fake::{Fake, plain};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

static HANDLES: AtomicBool = AtomicBool::new(false);
static OTHER_DONE: AtomicBool = AtomicBool::new(false);
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Waits for what another thread does.
extern "C" fn handler(_: libc::c_int) {
    HANDLES.store(true, Ordering::Release);
    let until = Instant::now() + PATIENCE;
    while !OTHER_DONE.load(Ordering::Acquire) {
        if Instant::now() > until {
            IN_VAIN.store(true, Ordering::Release);
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_signal_handler_may_wait_for_calls_of_other_threads() {
    let fake = Fake::start("handler-waits");
    let client = fake.client();
    let file = create(&client, b"file");
    let bytes = pattern(1000, 3);
    assert_eq!(client.write(&plain(), file, 0, bytes.clone()), Ok(1000));
    // SAFETY: the handler calls nothing that a handler may not, and the signal is this test's.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
    fake.with(|state| state.held = true);
    thread::scope(|scope| {
        let (own, reads) = mpsc::channel();
        let client = &client;
        let reader = scope.spawn(move || {
            own.send(myself()).expect("the test listens");
            client.read(&plain(), file, 0, 1000)
        });
        fake.wait_for("read", 1);
        // It waits for all connections meanwhile, and takes the signal when it no longer does.
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(reads.recv().expect("it has begun"), libc::SIGUSR2) };
        let until = Instant::now() + PATIENCE;
        while !HANDLES.load(Ordering::Acquire) {
            assert!(Instant::now() < until, "the signal never came");
            thread::sleep(Duration::from_millis(1));
        }
        fake.with(|state| state.held = false);
        for _ in 0..10 {
            let data = client.read(&plain(), file, 0, 1000).expect("it is there");
            assert_eq!(data.into_bytes(), bytes);
        }
        OTHER_DONE.store(true, Ordering::Release);
        let data = reader.join().expect("no panic").expect("it is there");
        assert_eq!(data.into_bytes(), bytes);
    });
    assert!(!IN_VAIN.load(Ordering::Acquire), "nobody led meanwhile");
}

static ROUNDS_BEGUN: AtomicUsize = AtomicUsize::new(0);
static ROUNDS_OVER: AtomicUsize = AtomicUsize::new(0);

/// The reader is in a call, and not where it frees what a call gave: memory has locks of its own.
static CALLS: AtomicBool = AtomicBool::new(false);

/// Waits until the test has made a call since this began.
extern "C" fn handler_of_rounds(_: libc::c_int) {
    let round = ROUNDS_BEGUN.fetch_add(1, Ordering::AcqRel);
    if !CALLS.load(Ordering::Relaxed) {
        return;
    }
    let until = Instant::now() + PATIENCE;
    while ROUNDS_OVER.load(Ordering::Acquire) <= round {
        if Instant::now() > until {
            IN_VAIN.store(true, Ordering::Release);
            return;
        }
        std::hint::spin_loop();
    }
}

#[test]
fn signals_come_where_a_call_has_no_lock() {
    const ROUNDS: usize = 400;
    let fake = Fake::start("signals-anywhere");
    let client = fake.client();
    let file = create(&client, b"file");
    let bytes = pattern(1000, 5);
    assert_eq!(client.write(&plain(), file, 0, bytes.clone()), Ok(1000));
    let handler = handler_of_rounds as *const () as libc::sighandler_t;
    // SAFETY: the handler calls nothing that a handler may not, and the signal is this test's.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let (own, readers) = mpsc::channel();
        let (client, ended, bytes) = (&client, &ended, &bytes);
        scope.spawn(move || {
            own.send(myself()).expect("the test listens");
            while !ended.load(Ordering::Acquire) {
                let ctx = plain();
                CALLS.store(true, Ordering::Relaxed);
                let data = client.read(&ctx, file, 0, 1000);
                let begun = client.start_read(&ctx, file, 0, 1000);
                CALLS.store(false, Ordering::Relaxed);
                assert_eq!(data.expect("it is there").into_bytes(), *bytes);
                drop(begun.expect("it is there"));
            }
        });
        let reader = readers.recv().expect("it has begun");
        for round in 0..ROUNDS {
            // Anywhere in a call.
            thread::sleep(Duration::from_micros(round as u64 % 50));
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(reader, libc::SIGUSR1) };
            while ROUNDS_BEGUN.load(Ordering::Acquire) <= round {
                std::hint::spin_loop();
            }
            let data = client.read(&plain(), file, 0, 1000).expect("it is there");
            assert_eq!(data.into_bytes(), *bytes);
            ROUNDS_OVER.store(round + 1, Ordering::Release);
            if IN_VAIN.load(Ordering::Acquire) {
                break;
            }
        }
        ended.store(true, Ordering::Release);
    });
    assert!(
        !IN_VAIN.load(Ordering::Acquire),
        "a call waited for the handler"
    );
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

#[test]
fn a_cancelled_thread_ends_its_call_first() {
    let fake = Fake::start("pthread-cancel");
    let client = fake.client();
    let file = create(&client, b"file");
    let bytes = pattern(1000, 4);
    assert_eq!(client.write(&plain(), file, 0, bytes.clone()), Ok(1000));
    fake.with(|state| state.held = true);
    thread::scope(|scope| {
        let (own, reads) = mpsc::channel();
        let client = &client;
        let reader = scope.spawn(move || {
            own.send(myself()).expect("the test listens");
            let first = client.read(&plain(), file, 0, 1000);
            let second = client.read(&plain(), file, 0, 1000);
            // SAFETY: plain numbers. The test itself goes on to its end.
            unsafe { pthread_setcancelstate(1, std::ptr::null_mut()) };
            (first, second)
        });
        fake.wait_for("read", 1);
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_cancel(reads.recv().expect("it has begun")) };
        fake.with(|state| state.held = false);
        let (first, second) = reader.join().expect("it was not torn out");
        assert_eq!(first.expect("it is there").into_bytes(), bytes);
        assert_eq!(second.expect("it is there").into_bytes(), bytes);
    });
}

fn myself() -> libc::pthread_t {
    // SAFETY: it cannot fail.
    unsafe { libc::pthread_self() }
}
