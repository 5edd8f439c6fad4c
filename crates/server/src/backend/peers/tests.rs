//! Forwarders of one process that try a folder with each other, as on mounts of their own.

use super::super::lies::{Liar, Lie};
use super::super::talk::ANSWER_MAX;
use super::*;
use crate::backend::Reach;
use crate::storage::scratch::Scratch;
use std::fs::File;

const WAIT: Duration = Duration::from_secs(40);

fn honest(folder: Arc<OwnedFd>) -> Box<dyn Side> {
    Box::new(Local::new(folder))
}

fn remembers_sizes(folder: Arc<OwnedFd>) -> Box<dyn Side> {
    Box::new(Liar::new(Local::new(folder), Lie::Sizes))
}

/// True while the mount of [`turns_bad`] remembers data.
static BAD: AtomicBool = AtomicBool::new(false);

fn turns_bad(folder: Arc<OwnedFd>) -> Box<dyn Side> {
    match BAD.load(Ordering::Acquire) {
        true => Box::new(Liar::new(Local::new(folder), Lie::Data)),
        false => honest(folder),
    }
}

/// A forwarder on a mount of its own.
fn start(
    scratch: &Scratch,
    own: u16,
    every: Option<Duration>,
    make_side: MakeSide,
) -> Result<Peers, String> {
    let hidden = File::open(scratch.path()).expect("it is there");
    let mut backend = Backend::of(&hidden).expect("it lies somewhere");
    // A local file system coheres by itself; direct I/O of any place it need not have.
    backend.reach = Reach::Coherent;
    let probe = Probe {
        own,
        forwarders: 3,
        every,
        backend,
        path: "/export".into(),
        etcd: false,
    };
    let mount = u64::from(own) + 1;
    Peers::start_on(hidden.as_fd(), probe, make_side, |own| {
        own.pretend_mount(mount)
    })
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < WAIT, "not within {WAIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn left(scratch: &Scratch) -> Vec<String> {
    let folder = scratch.path().join(FOLDER);
    let entries = std::fs::read_dir(folder).expect("the folder of trials");
    let names = entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into());
    names
        .filter(|name: &String| name.starts_with("t-"))
        .collect()
}

#[test]
fn the_second_forwarder_tries_the_back_end_with_the_first() {
    let scratch = Scratch::new("peers");
    let began = Instant::now();
    let first = start(&scratch, 0, None, honest).expect("alone it is fit");
    assert!(began.elapsed() < ANSWER_MAX, "nobody was there to wait for");
    assert_eq!(first.tried(), 0);
    let second = start(&scratch, 1, None, honest).expect("both see the same");
    assert_eq!(second.tried(), 1);
    drop(first);
    // The first has left in order: nobody waits for it.
    let began = Instant::now();
    let first = start(&scratch, 0, None, honest).expect("both see the same");
    assert_eq!(first.tried(), 1);
    drop(second);
    drop(first);
    let third = start(&scratch, 2, None, honest).expect("alone again");
    assert_eq!(third.tried(), 0);
    assert!(began.elapsed() < WAIT);
    assert_eq!(left(&scratch), Vec::<String>::new());
}

#[test]
fn a_forwarder_whose_mount_remembers_does_not_start() {
    let scratch = Scratch::new("peers-lie");
    let first = start(&scratch, 0, None, honest).expect("alone it is fit");
    let refusal = start(&scratch, 1, None, remembers_sizes).err();
    let refusal = refusal.expect("its sizes are old");
    assert!(!refusal.contains('\n'), "{refusal}");
    for part in [
        "/export",
        ": sizes: ",
        " bytes where a file ",
        "forwarder 0 on ",
        "one_node",
    ] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    assert_eq!(first.failure(), None, "who serves goes on");
}

#[test]
fn a_forwarder_that_was_killed_is_not_waited_for_long() {
    let scratch = Scratch::new("peers-dead");
    let first = start(&scratch, 0, None, honest).expect("alone it is fit");
    // Its box stays as it was, and nobody answers any more: as after SIGKILL.
    let of_first = scratch.path().join(FOLDER).join("box.0");
    let alive = std::fs::read(&of_first).expect("its box");
    drop(first);
    std::fs::write(&of_first, alive).expect("its box");
    let began = Instant::now();
    let second = start(&scratch, 1, None, honest).expect("nobody is there");
    assert!(
        began.elapsed() < ANSWER_MAX + Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(second.tried(), 0);
}

#[test]
fn two_that_start_at_once_try_with_each_other() {
    let scratch = Scratch::new("peers-both");
    let started = std::thread::scope(|scope| {
        let both = [0, 1].map(|own| {
            let every = Some(Duration::from_millis(100));
            scope.spawn({
                let scratch = &scratch;
                move || start(scratch, own, every, honest).expect("fit")
            })
        });
        both.map(|one| one.join().expect("it started"))
    });
    let [first, second] = &started;
    until("each has tried with the other", || {
        first.tried() > 0 && second.tried() > 0
    });
    assert_eq!((first.failure(), second.failure()), (None, None));
}

#[test]
fn the_one_whose_mount_turns_bad_is_fenced_whoever_finds_it() {
    let often = Some(Duration::from_millis(100));
    // Once the bad one calls, once the good one does.
    for (of_good, of_bad) in [(None, often), (often, None)] {
        BAD.store(false, Ordering::Release);
        let scratch = Scratch::new("peers-bad");
        let good = start(&scratch, 0, of_good, honest).expect("alone it is fit");
        let bad = start(&scratch, 1, of_bad, turns_bad).expect("as yet it is honest");
        let hooked = Arc::new(AtomicBool::new(false));
        bad.on_failure({
            let hooked = hooked.clone();
            move || hooked.store(true, Ordering::Release)
        });
        BAD.store(true, Ordering::Release);
        until("the bad one is fenced", || bad.failure().is_some());
        let reason = bad.failure().expect("it failed");
        assert!(reason.contains(": data, direct"), "{reason}");
        assert!(hooked.load(Ordering::Acquire));
        assert_eq!(good.failure(), None);
    }
}
