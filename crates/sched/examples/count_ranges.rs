//! Lets N ranges come and go beside so many pending ones of one file, so that callgrind can count
//! the instructions of one: the difference of two runs, divided by the difference of their N.
//!
//! `valgrind --tool=callgrind target/release/examples/count_ranges 4096 20000`

use std::collections::VecDeque;
use tidegate_sched::{AppId, Direction, FileId, Ranges, Request, RequestId, mix64};

const BLOCK: u64 = 4096;

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(pending), Some(count)) = (args.next(), args.next()) else {
        eprintln!("usage: count_ranges PENDING N");
        std::process::exit(2);
    };
    let pending: u64 = pending.parse().expect("PENDING must be a whole number");
    let count: u64 = count.parse().expect("N must be a whole number");
    let (mut ranges, mut freed) = (Ranges::new(), Vec::new());
    let mut free = VecDeque::new();
    // What comes and goes before the counted ones is the same in both runs.
    for number in 0..3 * pending + count {
        let mut id = RequestId(number);
        if number >= pending {
            id = free.pop_front().expect("the oldest waits for nothing");
            assert!(ranges.gone(id, &mut freed), "it is free");
            free.extend(freed.drain(..));
        }
        if !ranges.arrived(&request(id, number, pending)).waits {
            free.push_back(id);
        }
    }
    println!("{count} ranges beside {pending} pending");
}

/// Half of them writes, 4 to 64 KiB anywhere; about a third overlap a pending one.
fn request(id: RequestId, number: u64, pending: u64) -> Request {
    let random = mix64(number + 1);
    let direction = match random % 2 {
        0 => Direction::Read,
        _ => Direction::Write,
    };
    let (block, blocks) = (mix64(random) % (pending * 34), 1 + (random >> 8) % 16);
    let (offset, len) = (block * BLOCK, blocks * BLOCK);
    Request::new(id, AppId(1), FileId(1), direction, offset, len)
}
