//! Whether a thread of another process is about to die of a signal.
//!
//! The kernel sends FUSE_INTERRUPT for *any* signal, also for one with a handler: a timer, a child
//! that ended, the preemption signal of a Go program. Ending a read of a regular file with EINTR
//! for those would break programs that never saw that on a local disk. So an interrupt ends an
//! operation only when the caller will not live to see the result.

use std::fs;

/// Signals whose default action is not to end the process: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG
/// and WINCH.
const HARMLESS: u64 = bit(17) | bit(18) | bit(19) | bit(20) | bit(21) | bit(22) | bit(23) | bit(28);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// True when thread `tid` has a signal pending that ends its process, or is no longer there.
/// Also true for 0, by which the kernel names a process that cannot be seen from here: then being
/// killed in time matters more than a spurious EINTR.
pub(super) fn is_dying(tid: u32) -> bool {
    if tid == 0 {
        return true;
    }
    match fs::read_to_string(format!("/proc/{tid}/status")) {
        Ok(status) => is_fatal(&status),
        Err(_) => true,
    }
}

/// The process of thread `tid`, if that is still there.
pub(super) fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().filter(|process| *process != 0)
}

/// True when all threads of a process that is still there are ending because of a signal. One that
/// ends by itself is left the time to finish what it has begun.
pub(super) fn is_killed(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    let mut any = false;
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("stat")) {
            Ok(stat) if ends_by_signal(&stat) => any = true,
            Ok(_) => return false,
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    any
}

/// Whether a thread's `stat` says that it is ending (flag PF_EXITING, field 9) with an exit code
/// (field 52) that names a signal.
fn ends_by_signal(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    // The second field is the program's name, which may hold anything: count from its end.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| {
        fields
            .get(number - 3)
            .and_then(|field| field.parse::<u64>().ok())
    };
    let exiting = field(9).is_some_and(|flags| flags & PF_EXITING != 0);
    exiting && field(52).is_some_and(|code| code & 0x7f != 0)
}

/// The kernel marks every thread of a process that was sent a fatal signal with a pending SIGKILL;
/// a signal that dumps core stays what it is until it is delivered.
fn is_fatal(status: &str) -> bool {
    let set = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = set("SigPnd:") | set("ShdPnd:");
    let survived = HARMLESS | set("SigBlk:") | set("SigIgn:") | set("SigCgt:");
    // Nothing blocks, ignores or catches SIGKILL, so it needs no case of its own.
    pending & !survived != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tcat\nSigQ:\t0/7866\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn only_signals_that_end_the_process_count() {
        assert!(is_fatal(&status(bit(9), 0, 0, 0, 0)), "killed");
        assert!(is_fatal(&status(0, bit(3), 0, 0, 0)), "dumps core");
        assert!(!is_fatal(&status(0, bit(3), 0, 0, bit(3))), "has a handler");
        assert!(!is_fatal(&status(0, bit(2), 0, bit(2), 0)), "ignored");
        assert!(!is_fatal(&status(0, bit(2), bit(2), 0, 0)), "blocked");
        assert!(
            !is_fatal(&status(bit(23), bit(17), 0, 0, 0)),
            "urgent data, a child that ended"
        );
        assert!(!is_fatal("nothing of the kind"));
    }

    #[test]
    fn only_the_end_by_a_signal_counts_as_killed() {
        let stat = |flags: u32, code: u32| {
            let mut fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
            fields[9 - 3] = flags.to_string();
            fields[52 - 3] = code.to_string();
            format!("7 (a) b) {}", fields.join(" "))
        };
        assert!(ends_by_signal(&stat(4 | 64, 9)));
        assert!(ends_by_signal(&stat(4, 11 | 0x80)), "with a core dump");
        assert!(!ends_by_signal(&stat(64, 9)));
        assert!(!ends_by_signal(&stat(4, 3 << 8)), "by itself, with code 3");
        assert!(!ends_by_signal("7 (cut) S 1"));
        assert!(!is_killed(std::process::id()));
        assert_eq!(process_of(std::process::id()), Some(std::process::id()));
    }

    #[test]
    fn this_thread_lives_and_nobody_does_not() {
        assert!(!is_dying(std::process::id()));
        assert!(is_dying(0));
        assert!(is_dying(u32::MAX));
    }
}
