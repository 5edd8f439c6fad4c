//! Processor time of this process and of others.

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};

/// Processor time that all threads of this process have used so far, those that ended included.
pub fn own_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Processor time that the threads of another process have used so far. The first number of
/// `schedstat` is in nanoseconds, where `stat` counts in hundredths of a second.
pub fn of_process_ns(pid: Pid) -> u64 {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let Ok(tasks) = std::fs::read_dir(tasks) else {
        return 0;
    };
    let of_task = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_by_both() {
        let pid = rustix::process::getpid();
        let (own, other) = (own_ns(), of_process_ns(pid));
        let mut sum = 0u64;
        while own_ns() < own + 30_000_000 {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
        }
        // Threads of other tests may have ended in between, and then their time is not seen.
        let counted = of_process_ns(pid);
        assert!(counted > 0 && other > 0, "{other} {counted}");
    }
}
