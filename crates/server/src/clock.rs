//! The forwarder's clock, which counts on while the node is suspended, as the clocks of other nodes
//! do; and the wall clock.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_sched::Time;

/// The instant from which a forwarder counts time.
#[derive(Clone, Copy, Debug)]
pub struct Zero {
    boot_ns: u64,
}

impl Zero {
    /// The current instant.
    pub fn now() -> Zero {
        Zero { boot_ns: boot_ns() }
    }

    /// The time that has passed since this instant.
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(self.time().0)
    }

    /// The time that has passed since this instant, in the forwarder's unit (ns).
    pub fn time(self) -> Time {
        Time(boot_ns().saturating_sub(self.boot_ns))
    }
}

/// The time since the node was booted, suspended time included. Other nodes see a lease expire
/// whether this node is suspended or not. A clock that stops during suspension (`CLOCK_MONOTONIC`,
/// [`std::time::Instant`]) would let this node serve a seat for too long.
pub fn since_boot() -> Duration {
    Duration::from_nanos(boot_ns())
}

fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The wall clock, in ns since 1970.
pub fn wall_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The wall clock, in whole seconds since 1970.
pub fn wall_s() -> u64 {
    wall_ns() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_what_the_node_has_slept() {
        let boot: f64 = std::fs::read_to_string("/proc/uptime")
            .expect("there")
            .split(' ')
            .next()
            .and_then(|uptime| uptime.parse().ok())
            .expect("a number of seconds");
        // The kernel includes suspended time in this clock.
        assert!((since_boot().as_secs_f64() - boot).abs() < 1.0);
        let zero = Zero::now();
        std::thread::sleep(Duration::from_millis(2));
        assert!((2_000_000..10_000_000_000).contains(&zero.time().0));
    }
}
