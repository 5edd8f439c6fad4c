//! The clocks of the system, in nanoseconds.

/// The time of CLOCK_MONOTONIC in nanoseconds.
#[inline]
pub(crate) fn clock_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
pub(crate) fn wall_offset_ns() -> u64 {
    read_clock(libc::CLOCK_REALTIME).saturating_sub(clock_ns())
}

#[inline]
fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is ours. The call cannot fail: both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
