//! Short turns at the processor for the threads that answer requests. They compute for some
//! microseconds at a time; a storage thread that lists a directory, or another program, computes
//! for milliseconds. With the kernel's usual turns of 3 ms such a thread goes on while what it has
//! found, or somebody else's request, waits. A thread with short turns is let in at once, unless it
//! has had more than its share of the processor lately: as the one that answers many small requests
//! has, beside a storage thread that lists for the same user. Where the system allows it, the
//! forwarder's loop and its reactors have a larger share, which they seldom use up.

use rustix::process::{getpriority_process, setpriority_process};
use std::mem::MaybeUninit;

/// The length of a turn in ns: the shortest that the kernel gives.
const TURN_NS: u64 = 100_000;

/// How much nicer other threads are than those that go first: these weigh three times as much.
const NICER: i32 = 5;

/// Gives the calling thread, and those that it starts, a larger share of a processor than other
/// threads have. It takes the capability SYS_NICE, or a limit (`RLIMIT_NICE`) that allows it; else
/// the share stays as it is. So it does if somebody has given the forwarder a niceness.
pub(crate) fn go_first() {
    if getpriority_process(None) == Ok(0) {
        let _ = setpriority_process(None, -NICER);
    }
}

/// Takes that from a thread again which one that goes first has started.
pub(crate) fn go_with_others() {
    if getpriority_process(None) == Ok(-NICER) {
        let _ = setpriority_process(None, 0);
    }
}

/// Asks for short turns for the calling thread and for those that it starts. Its share of the
/// processor stays what it was. Linux has them from 6.12 on; older kernels ignore the wish.
pub(crate) fn ask() {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut now = MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel fills at most `size` bytes, and zeros are a value of this type.
    let mut attr = unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, now.as_mut_ptr(), size, 0) != 0 {
            return;
        }
        now.assume_init()
    };
    // Who has given the forwarder another policy has said how it is to run.
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.sched_runtime = TURN_NS;
    // SAFETY: the kernel reads `size` bytes, which `attr` has.
    let asked = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if asked != 0 {
        tracing::debug!("no short turns: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The niceness of the calling thread.
    fn niceness() -> i32 {
        getpriority_process(None).expect("this thread has one")
    }

    #[test]
    fn who_goes_first_weighs_more_where_the_system_allows_it() {
        let own = niceness();
        let allowed = std::thread::spawn(|| setpriority_process(None, -NICER).is_ok());
        let allowed = allowed.join().expect("it only asks");
        let thread = std::thread::spawn(|| {
            go_first();
            let below = std::thread::spawn(|| {
                let before = niceness();
                go_with_others();
                (before, niceness())
            });
            (niceness(), below.join().expect("it only looks"))
        });
        let wanted = if allowed && own == 0 { -NICER } else { own };
        assert_eq!(
            thread.join().expect("it only asks"),
            (wanted, (wanted, own))
        );
        assert_eq!(niceness(), own);
        let nicer = std::thread::spawn(|| {
            let nicer = rustix::process::nice(1).expect("a thread may be nicer");
            go_first();
            (nicer, niceness())
        });
        let (nicer, after) = nicer.join().expect("it only asks");
        assert_eq!(nicer, after);
    }

    /// The length of this thread's turns and its niceness.
    fn turns() -> (u64, i32) {
        let mut attr = MaybeUninit::<libc::sched_attr>::zeroed();
        let size = size_of::<libc::sched_attr>();
        // SAFETY: as above.
        let attr = unsafe {
            let got = libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size, 0);
            assert_eq!(got, 0);
            attr.assume_init()
        };
        (attr.sched_runtime, attr.sched_nice)
    }

    #[test]
    fn a_thread_that_asks_has_short_turns_and_its_niceness() {
        let thread = std::thread::spawn(|| {
            let nice = rustix::process::nice(3).expect("a thread may be nicer");
            let before = turns();
            ask();
            let after = turns();
            let below = std::thread::spawn(turns).join().expect("it only looks");
            (nice, before, after, below)
        });
        let (nice, before, after, below) = thread.join().expect("it only asks");
        assert_eq!((before.1, after.1, below.1), (nice, nice, nice));
        match before.0 {
            0 => println!("skipped, this kernel gives all threads the same turns"),
            _ => assert_eq!((after.0, below.0), (TURN_NS, TURN_NS)),
        }
    }
}
