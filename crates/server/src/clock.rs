//! The forwarder's time: it goes on while the node is suspended, as that of others does.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tidegate_sched::Time;

/// The zero from which a forwarder counts.
#[derive(Clone, Copy, Debug)]
pub struct Zero {
    since_boot: Duration,
}

impl Zero {
    /// It is now.
    pub fn now() -> Zero {
        Zero {
            since_boot: since_boot(),
        }
    }

    /// What has passed since.
    pub fn elapsed(self) -> Duration {
        since_boot().saturating_sub(self.since_boot)
    }

    /// The same in the core's words.
    pub fn time(self) -> Time {
        Time(u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// What has passed since the node was booted. A lease runs out elsewhere whether this node sleeps
/// or not: a clock that stands still then (`CLOCK_MONOTONIC`, [`std::time::Instant`]) would have it
/// served for too long.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
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
        // The kernel counts suspensions in there, too.
        assert!((since_boot().as_secs_f64() - boot).abs() < 1.0);
        let zero = Zero::now();
        std::thread::sleep(Duration::from_millis(2));
        assert!((2_000_000..10_000_000_000).contains(&zero.time().0));
    }
}
