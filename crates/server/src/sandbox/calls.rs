//! System calls that a forwarder or a mount never makes, and is refused (seccomp).
//!
//! A list of what is refused, not of what is allowed: what the C library and the kernel's own
//! helpers call changes with their versions. The unit files in `packaging/systemd` bring a list of
//! what is allowed. A refused call fails with EPERM.

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Arg, SeccompCmpOp as Is,
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter, apply_filter_all_threads,
    sock_filter,
};
use std::collections::BTreeMap;

/// What is refused besides what nobody needs.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    /// io_uring.
    pub(super) rings: bool,
    /// Sockets other than Unix, IP and the kernel's routing table.
    pub(super) families: bool,
    /// Taking mounts off.
    pub(super) unmount: bool,
}

/// Never needed.
const NEVER: &[i64] = &[
    // Programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // A file by its number, past all directories.
    libc::SYS_open_by_handle_at,
    // The kernel, the machine, their clocks and keys.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

const RINGS: &[i64] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// What the process that looks at peers calls, its memory included.
const LOOKING: &[i64] = &[
    libc::SYS_read,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_close,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Refuses this thread, and those that it starts.
pub(super) fn refuse(refused: Refused) -> Result<(), Error> {
    programs(refused)?
        .iter()
        .try_for_each(|it| apply_filter(it))
}

/// Refuses all threads of this process.
pub(super) fn refuse_in_all_threads(refused: Refused) -> Result<(), Error> {
    let programs = programs(refused)?;
    programs
        .iter()
        .try_for_each(|it| apply_filter_all_threads(it))
}

/// Allows the process that looks at peers that, and nothing else.
pub(super) fn allow_looking() -> Result<(), Error> {
    let rules: Rules = LOOKING.iter().map(|call| (*call, Vec::new())).collect();
    apply_filter(&program(rules, refusal(libc::EPERM), SeccompAction::Allow)?)
}

fn programs(refused: Refused) -> Result<Vec<BpfProgram>, Error> {
    let mut rules: Rules = NEVER.iter().map(|call| (*call, Vec::new())).collect();
    if refused.rings {
        rules.extend(RINGS.iter().map(|call| (*call, Vec::new())));
    }
    if refused.unmount {
        rules.insert(libc::SYS_umount2, Vec::new());
    }
    // A process of its own, or a namespace: what makes no thread of this process.
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![only(0, Is::MaskedEq(thread), 0)?]);
    // Types a line into the terminal of whoever started this process.
    rules.insert(libc::SYS_ioctl, vec![only(1, Is::Eq, libc::TIOCSTI)?]);
    if refused.families {
        let known = [
            libc::AF_UNIX,
            libc::AF_INET,
            libc::AF_INET6,
            libc::AF_NETLINK,
        ];
        let other = known.map(|family| condition(0, Is::Ne, family as u64));
        let other = other.into_iter().collect::<Result<Vec<_>, _>>()?;
        rules.insert(libc::SYS_socket, vec![SeccompRule::new(other)?]);
    }
    let mut programs = vec![program(rules, SeccompAction::Allow, refusal(libc::EPERM))?];
    // Its arguments lie in memory, where no filter can look. Without it the C library uses `clone`.
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    programs.push(program(rules, SeccompAction::Allow, refusal(libc::ENOSYS))?);
    #[cfg(target_arch = "x86_64")]
    programs.push(no_x32());
    Ok(programs)
}

fn refusal(errno: i32) -> SeccompAction {
    SeccompAction::Errno(errno.unsigned_abs())
}

fn program(
    rules: Rules,
    other: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, Error> {
    let machine = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, other, matched, machine)?.try_into()?)
}

fn condition(argument: u8, is: Is, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, Arg::Dword, is, value)?)
}

fn only(argument: u8, is: Is, value: u64) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(vec![condition(argument, is, value)?])?)
}

/// Refuses the second set of numbers under which x86-64 kernels have most of the same calls.
#[cfg(target_arch = "x86_64")]
fn no_x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    let (load, compare, end) = (0x20, 0x35, 0x06);
    let step = |code, jt, k| sock_filter { code, jt, jf: 0, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    vec![
        // The number of the call.
        step(load, 0, 0),
        sock_filter {
            code: compare,
            jt: 0,
            jf: 1,
            k: X32,
        },
        step(end, 0, refused),
        step(end, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
