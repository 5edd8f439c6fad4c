//! Runs the accesses of a cell on a model of a device, in virtual time.

use super::Route;
use super::at_once::Slice;
use super::cells::Cell;
use super::scratch::Stream;
use crate::device::{Access, Device, DeviceOptions, OptionsError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_sched::Direction;

/// Lets `cell.depth` accesses run at any time until `count` have ended. The places are those that
/// a measurement of a file of `bytes` has, for which the model's first bytes stand.
pub(super) fn run(
    options: &DeviceOptions,
    cell: &Cell,
    bytes: u64,
    seed: u64,
    count: usize,
) -> Result<Slice, OptionsError> {
    let mut device = Device::new(options)?;
    let mut stream = Stream::new(&cell.access(Route::Direct), bytes, seed, 0);
    let mut certain = BinaryHeap::new();
    let (mut now_ns, mut submitted, mut done) = (0, 0u64, 0);
    let mut ended: Vec<(u64, u64)> = Vec::new();
    loop {
        while submitted - (done as u64) < u64::from(cell.depth) {
            let access = Access {
                address: stream.next().0,
                len: cell.len,
                write: cell.direction == Direction::Write,
            };
            if let Some(end_ns) = device.submit(now_ns, submitted, &[access]) {
                certain.push(Reverse(end_ns));
            }
            submitted += 1;
        }
        let first = certain.peek().map(|Reverse(at)| *at);
        let next_ns = [first, device.next_ns()].into_iter().flatten().min();
        now_ns = next_ns.expect("an access is running").max(now_ns);
        device.advance(now_ns, &mut ended);
        done += ended.len();
        ended.clear();
        while certain.peek().is_some_and(|Reverse(at)| *at <= now_ns) {
            certain.pop();
            done += 1;
        }
        if done >= count {
            return Ok(Slice {
                accesses: done,
                per_second: done as f64 * 1e9 / now_ns.max(1) as f64,
            });
        }
    }
}
