//! The host's counts of system calls and copies, as the forwarder's status reports them.

use crate::connections::traffic::Traffic;
use crate::storage::Counts;
use std::time::Duration;
use tidegate_forward::HostCounts;

/// Joins the counts of sockets and of storage. `oldest_job` is how long the oldest running job had
/// run when it was last looked at.
pub fn host_counts(traffic: &Traffic, storage: &Counts, oldest_job: Duration) -> HostCounts {
    HostCounts {
        waits: traffic.waits,
        wakes: traffic.wakes,
        receives: traffic.receives,
        receives_empty: traffic.receives_empty,
        received_bytes: traffic.received_bytes,
        sends: traffic.sends,
        sends_blocked: traffic.sends_blocked,
        sent_bytes: traffic.sent_bytes,
        spliced_bytes: traffic.spliced_bytes,
        copied_bytes: traffic.copied_bytes,
        storage_reads: storage.read_syscalls,
        storage_writes: storage.write_syscalls,
        storage_operations: storage.operations,
        oldest_job_ms: match storage.pending {
            0 => 0,
            _ => u64::try_from(oldest_job.as_millis()).unwrap_or(u64::MAX),
        },
    }
}
