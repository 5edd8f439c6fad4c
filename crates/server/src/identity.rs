//! Which node this is, which boot of it, and what its wall clock says.

use std::ffi::{CStr, CString};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_sched::AppId;

/// The node: its machine id and name, so that neither copied images nor equal names mix nodes up.
pub fn host() -> u64 {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    hash(&format!("{} {name}", machine.trim()))
}

/// This boot of the node.
pub fn boot() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    hash(boot.trim())
}

/// The wall clock, ns since 1970.
pub fn wall_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The number of the user of this name, as the system's directory of users says.
pub fn uid_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // Longer entries than this are not to be expected, and then there is no such user.
    let mut buffer = [0 as libc::c_char; 16_384];
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero is a valid passwd, which is only looked at after it was filled.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: name ends with a NUL; the others outlive the call, and the length is the buffer's.
    let error = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    (error == 0 && !found.is_null()).then_some(entry.pw_uid)
}

/// The name of the user of this number, as the system's directory of users says.
pub fn user_of(uid: u32) -> Option<String> {
    let mut buffer = [0 as libc::c_char; 16_384];
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero is a valid passwd, which is only looked at after it was filled.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: all outlive the call, and the length is the buffer's.
    let error = unsafe {
        libc::getpwuid_r(
            uid,
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    if error != 0 || found.is_null() {
        return None;
    }
    // SAFETY: an entry that was found has a name, which ends with a NUL and lies in the buffer.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    name.to_str().ok().map(str::to_string)
}

/// The hash that application names have, which is fixed for all versions.
fn hash(text: &str) -> u64 {
    AppId::from_name(text).0
}
