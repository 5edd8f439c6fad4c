//! Short turns at the processor for the threads that answer requests. They compute for some
//! microseconds at a time; a storage thread that lists a directory, or another program, computes
//! for milliseconds. With the kernel's usual turns of 3 ms such a thread goes on while what it has
//! found, or somebody else's request, waits. A thread with short turns is let in at once.

use std::mem::MaybeUninit;

/// The length of a turn in ns: the shortest that the kernel gives.
const TURN_NS: u64 = 100_000;

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
