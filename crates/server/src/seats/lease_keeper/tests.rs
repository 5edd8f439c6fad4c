//! The thread of the leases as the forwarder's loop sees it.

use super::super::Seats;
use super::super::leased::LeaseOptions;
use super::*;
use crate::storage::scratch::Scratch;
use crate::storage::{ExportOptions, Fence};

/// A keeper over a hidden folder, and the poll that it wakes.
fn keeper(scratch: &Scratch, own: u16) -> (LeaseKeeper, mio::Poll) {
    keeper_with(scratch, own, Duration::from_secs(60))
}

fn keeper_with(scratch: &Scratch, own: u16, ttl: Duration) -> (LeaseKeeper, mio::Poll) {
    let layout = tidegate_wire::Layout {
        seats: 2,
        stripe: 1 << 20,
    };
    let files = PosixFiles::open(scratch.path(), &ExportOptions::new(layout)).expect("export");
    let locks = Seats::open(&files, layout, own).expect("seats");
    let options = LeaseOptions {
        ttl_ns: ttl.as_nanos() as u64,
        outlives_node: true,
        one_node: false,
        fence: Fence::default(),
    };
    let seats = LeasedSeats::by_files(locks, options).expect("random numbers");
    let poll = mio::Poll::new().expect("epoll");
    let waker = mio::Waker::new(poll.registry(), mio::Token(0)).expect("eventfd");
    // As in a forwarder, the waker outlives the thread: closing it would take its event back.
    let waker: &'static mio::Waker = Box::leak(Box::new(waker));
    let notify = Arc::new(move || drop(waker.wake()));
    let keeper = LeaseKeeper::start(seats, files, own, ttl, notify).expect("thread");
    (keeper, poll)
}

/// Waits until the keeper has said something.
fn wait(poll: &mut mio::Poll) {
    let mut events = mio::Events::with_capacity(4);
    let waited = poll.poll(&mut events, Some(Duration::from_secs(60)));
    waited.expect("no signal comes");
    assert!(!events.is_empty(), "nothing was said");
}

#[test]
fn a_seat_that_is_taken_when_the_forwarder_ends_is_free_at_once() {
    let scratch = Scratch::new("keeper-end");
    let (first, mut poll) = keeper(&scratch, 0);
    first.take(0);
    wait(&mut poll);
    // Nobody has heard of it, so nobody lets it go.
    drop(first);
    let (second, mut poll) = keeper(&scratch, 1);
    second.take(0);
    wait(&mut poll);
    let inputs = second.inputs();
    let taken = |input: &Input| matches!(input, Input::SeatTaken { seat: 0, .. });
    assert!(inputs.iter().any(taken), "its lease is waited for");
}

#[test]
fn trouble_with_a_seat_lasts_while_it_is_waited_for_again() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new("keeper-trouble");
    let (first, mut poll) = keeper(&scratch, 0);
    first.take(0);
    wait(&mut poll);
    drop(first);
    let hidden = std::fs::read_dir(scratch.path().join(".tidegate")).expect("hidden folder");
    let mut files = hidden.map(|entry| entry.expect("listed").path());
    let is_lease = |path: &std::path::PathBuf| path.to_string_lossy().contains("/lease.0.");
    let file = files.find(is_lease).expect("the seat was taken");
    let file = std::fs::File::options().write(true).open(file);
    // Of another version.
    file.expect("open").write_all_at(&[2], 8).expect("write");
    let (second, mut poll) = keeper_with(&scratch, 1, Duration::from_millis(400));
    second.take(0);
    let until = Instant::now() + Duration::from_secs(60);
    let mut told = Vec::new();
    let mut since = None::<Instant>;
    while since.is_none_or(|since| since.elapsed() < Duration::from_secs(2)) {
        assert!(Instant::now() < until, "it is not told");
        let timeout = Some(Duration::from_millis(100));
        let mut events = mio::Events::with_capacity(4);
        poll.poll(&mut events, timeout).expect("no signal comes");
        // Clients go on asking.
        second.take(0);
        for input in second.inputs() {
            if let Input::BackEnd(trouble) = input {
                since.get_or_insert_with(Instant::now);
                told.push(trouble);
            }
        }
    }
    assert!(told.iter().all(Option::is_some), "{told:?}");
    let said = told[0].as_deref().expect("trouble");
    assert!(said.contains("it has version 2"), "{said}");
}

#[test]
fn a_lease_out_of_reach_is_no_dead_mount() {
    let is_final = |errno| is_final(&io::Error::from_raw_os_error(errno));
    assert!(!is_final(libc::ENOTCONN), "one brick is away");
    assert!(is_final(libc::ESHUTDOWN), "this client is blocklisted");
}

#[test]
fn a_panic_of_the_thread_ends_the_forwarder() {
    let scratch = Scratch::new("keeper-panic");
    let (keeper, mut poll) = keeper(&scratch, 0);
    assert_eq!(keeper.failure(), None);
    keeper.tell(Command::Panic);
    wait(&mut poll);
    assert!(keeper.failure().expect("told").contains("panicked"));
}

#[test]
fn a_seat_that_many_ask_for_is_tried_all_the_same() {
    let began = Instant::now();
    let mut hope = Hope {
        asked: began,
        tried: began,
    };
    // Asked for every 10 ms, which is more often than it may be tried.
    let asks = (1..=100).map(|number| began + Duration::from_millis(10) * number);
    let tries = asks.filter(|now| hope.ask(*now)).count();
    assert_eq!(tries, 10);
    assert_eq!(hope.asked, began + Duration::from_secs(1));
}
