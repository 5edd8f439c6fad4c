//! Ids from names.

use tidegate_sched::mix64;

/// The hash of the scheduler's `AppId::from_name`, of any bytes.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix64(fnv)
}
