//! What the forwarder's status tells of the system calls and copies of its host.

use crate::connections::traffic::Traffic;
use crate::storage::Counts;
use std::time::Duration;
use tidegate_forward::HostCounts;

/// Of sockets and storage; `oldest_job`: how long the oldest job ran at the last look.
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
