//! Commands of Slurm's inside a program that `tidegate run` has started: they start programs that
//! are no children of the run. `tidegate run` takes their place, and starts them as it would have
//! started them itself.

use crate::libc_next;
use crate::redirect::variable;
use libc::{c_char, c_int};
use std::ffi::CStr;

/// The commands.
const STARTERS: [&[u8]; 3] = [b"srun", b"sbatch", b"salloc"];

/// Between the words of `TIDEGATE_AGAIN`.
const BETWEEN: u8 = 0x1f;

/// Replaces this program by `tidegate run` if it is such a command, and `run` has told how.
///
/// # Safety
/// The arguments are those of `main`.
pub(crate) unsafe fn begin(
    count: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || arguments.is_null() {
        return;
    }
    // SAFETY: the caller says so.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, count) };
    // SAFETY: arguments are strings.
    let name = unsafe { CStr::from_ptr(arguments[0]) }.to_bytes();
    if !is_starter(name.rsplit(|byte| *byte == b'/').next().unwrap_or(name)) {
        return;
    }
    let Some(words) = variable(c"TIDEGATE_AGAIN") else {
        return;
    };
    let mut text = words.to_bytes().to_vec();
    text.push(BETWEEN);
    for byte in &mut text {
        if *byte == BETWEEN {
            *byte = 0;
        }
    }
    let words = text.split_inclusive(|byte| *byte == 0);
    let mut all: Vec<*const c_char> = words.map(|word| word.as_ptr().cast()).collect();
    all.extend([c"--inside".as_ptr(), c"--".as_ptr()]);
    all.extend(arguments);
    all.push(std::ptr::null());
    // SAFETY: strings, and a NULL at the end of each list.
    unsafe {
        libc::syscall(libc::SYS_execve, all[0], all.as_ptr(), environment);
    }
    libc_next::say(
        b"tidegate: a command of Slurm's is started without `tidegate run`: what its tasks do goes \
          past the forwarders\n",
    );
}

/// Whether a program's name is that of such a command, perhaps with what distributions that have
/// several programs of the name put behind it.
fn is_starter(name: &[u8]) -> bool {
    STARTERS.iter().any(|known| {
        let rest = name.strip_prefix(*known);
        rest.is_some_and(|rest| matches!(rest, b"" | b"-wlm" | b"-slurm" | b".slurm"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_known() {
        for name in ["srun", "srun-wlm", "sbatch", "salloc.slurm"] {
            assert!(is_starter(name.as_bytes()), "{name}");
        }
        for name in ["", "srunner", "srun_case", "scancel", "sh"] {
            assert!(!is_starter(name.as_bytes()), "{name}");
        }
    }
}
