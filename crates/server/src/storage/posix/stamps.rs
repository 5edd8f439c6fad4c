//! The clock by which the back end stamps its files. It tells whether a file was made after an
//! intent was recorded. The clock may be another node's, and either clock may be set while the
//! forwarder runs. So the forwarder measures the difference again and again.

use super::hidden::{draft_name, open_hidden_file};
use super::sys;
use crate::clock::since_boot;
use crate::lock::lock;
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

/// A difference below the precision of the measurement counts as none, in ns.
const UNCERTAIN_NS: i64 = 20_000_000;
/// If the wall clock and the time since boot drift apart by more than this, in ns, the wall clock
/// was set.
const STEP_NS: i64 = 200_000_000;
/// How long a measurement is used, in ns: the back end's own clock may be set as well.
const KEPT_NS: i64 = 60_000_000_000;

/// The difference between the back end's clock and this node's.
pub(super) struct Stamps {
    measured: Mutex<Measured>,
}

#[derive(Clone, Copy)]
struct Measured {
    /// How far the back end's clock is ahead of the node's, in ns.
    ahead_ns: i64,
    /// The node's clocks when that was measured, in ns.
    wall_ns: i64,
    since_boot_ns: i64,
}

impl Stamps {
    /// Measures for the first time, by a file of the hidden folder.
    pub(super) fn measure(hidden: BorrowedFd<'_>) -> io::Result<Stamps> {
        Ok(Stamps {
            measured: Mutex::new(Measured::now(hidden)?),
        })
    }

    /// The time that the back end would stamp on a file now, in ns since 1970.
    pub(super) fn now_ns(&self, hidden: BorrowedFd<'_>) -> i64 {
        let mut measured = *self.lock();
        if measured.is_old() {
            // Measure without a lock: it may take long, and a second thread measures the same.
            measured = match Measured::now(hidden) {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "the clock of the back end cannot be asked; it is taken for what it was"
                    );
                    measured.kept()
                }
            };
            *self.lock() = measured;
        }
        own_wall_ns().saturating_add(measured.ahead_ns)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Measured> {
        lock(&self.measured)
    }
}

impl Measured {
    fn now(hidden: BorrowedFd<'_>) -> io::Result<Measured> {
        let name = draft_name("clock");
        let file = open_hidden_file(hidden, &name)?;
        let (wall_ns, since_boot_ns) = (own_wall_ns(), since_boot_ns());
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let now = Timestamps {
            last_access: now,
            last_modification: now,
        };
        let stamped = rustix::fs::futimens(&file, &now).and_then(|()| sys::stat(&file));
        rustix::fs::unlinkat(hidden, name, AtFlags::empty())?;
        let ahead_ns = sys::nanoseconds(&stamped?.stx_mtime).saturating_sub(wall_ns);
        Ok(Measured {
            ahead_ns: match ahead_ns.saturating_abs() < UNCERTAIN_NS {
                true => 0,
                false => ahead_ns,
            },
            wall_ns,
            since_boot_ns,
        })
    }

    fn is_old(&self) -> bool {
        let passed = since_boot_ns() - self.since_boot_ns;
        let stepped = (own_wall_ns() - self.wall_ns - passed).saturating_abs();
        stepped > STEP_NS || passed > KEPT_NS
    }

    /// The same measurement, used without a doubt from now on.
    fn kept(self) -> Measured {
        Measured {
            wall_ns: own_wall_ns(),
            since_boot_ns: since_boot_ns(),
            ..self
        }
    }
}

fn since_boot_ns() -> i64 {
    i64::try_from(since_boot().as_nanos()).unwrap_or(i64::MAX)
}

/// The clock that stamps local files. It lags a few ms behind the precise one.
fn own_wall_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::scratch::Scratch;
    use std::os::fd::{AsFd, OwnedFd};

    const HOUR_NS: i64 = 3_600_000_000_000;

    #[test]
    fn a_clock_that_was_set_is_measured_again() {
        let scratch = Scratch::new("stamps");
        let hidden: OwnedFd = std::fs::File::open(scratch.path()).expect("there").into();
        let stamps = Stamps::measure(hidden.as_fd()).expect("room");
        let is_right = |stamps: &Stamps| {
            let away = stamps.now_ns(hidden.as_fd()) - own_wall_ns();
            away.abs() < HOUR_NS / 60
        };
        assert!(is_right(&stamps));
        let fresh = *stamps.lock();
        let set = |measured| *stamps.lock() = measured;
        // Right until the node's clock was set forward by an hour, to what the back end has.
        set(Measured {
            ahead_ns: HOUR_NS,
            wall_ns: fresh.wall_ns - HOUR_NS,
            ..fresh
        });
        assert!(is_right(&stamps));
        // Right until the back end's was set back, two minutes ago.
        set(Measured {
            ahead_ns: HOUR_NS,
            wall_ns: fresh.wall_ns - 2 * KEPT_NS,
            since_boot_ns: fresh.since_boot_ns - 2 * KEPT_NS,
        });
        assert!(is_right(&stamps));
        // What cannot be asked stays as it was, for a while.
        std::fs::remove_dir_all(scratch.path()).expect("ours");
        set(Measured {
            ahead_ns: 2 * HOUR_NS,
            wall_ns: fresh.wall_ns - HOUR_NS,
            ..fresh
        });
        assert!(!is_right(&stamps) && !stamps.lock().is_old());
    }
}
