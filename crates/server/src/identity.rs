//! Which node this is, which boot of it, and what its wall clock says.

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

/// The hash that application names have, which is fixed for all versions.
fn hash(text: &str) -> u64 {
    AppId::from_name(text).0
}
