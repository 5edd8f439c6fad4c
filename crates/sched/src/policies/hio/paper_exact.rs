//! Algorithm 1 of Liu, Chen and Zhuang, for the sub-queue of one window on one forwarder.
//!
//! Aggregators stand in the order of their rank by acceptable delay if all shuffles together are
//! more than a fifth of all reads, else in the base order. Then each, from the first to the last
//! but one, changes places with its successor if its acceptable delay is more than its successor's
//! read; its delay shrinks by that read, and the successor's grows by its own.
//!
//! The text of the paper says so; its listing does not. There (1) an aggregator is compared with
//! every later one and changes places over a distance, which makes the delays wrong for all in
//! between: here neighbours alone are compared. (2) The delays are updated by position after the
//! exchange, which is right only if `j` then means the one that has moved forward: here it does.
//! (3) `j++` in the inner loop and in the outer one skip a position: here none is skipped. Equal
//! ranks, about which the paper says nothing, keep the base order, as does the application id,
//! which `order = "id"` makes the printed one.
//!
//! The order of a window is made again when a request has come or gone.

use super::operations::Operations;
use alloc::vec::Vec;

/// Aggregators that are put in order; those behind them keep the base order.
const SUB_QUEUE_MAX: usize = 256;

struct Aggregator {
    part: u32,
    /// Its place in the base order.
    place: u32,
    rank: u16,
    delay_ns: u64,
    read_ns: u64,
}

pub(super) struct PaperExact {
    /// The last one is next. Empty: to be made.
    order: Vec<u32>,
    queue: Vec<Aggregator>,
}

impl PaperExact {
    pub(super) fn new() -> PaperExact {
        PaperExact {
            order: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// The order is not right any more.
    pub(super) fn forget(&mut self) {
        self.order.clear();
    }

    /// The part that is next.
    pub(super) fn next(&mut self, operations: &Operations) -> u32 {
        while let Some(&part) = self.order.last() {
            if operations.waits(part) {
                return part;
            }
            self.order.pop();
        }
        self.order_anew(operations);
        *self.order.last().expect("pick on an empty policy")
    }

    fn order_anew(&mut self, operations: &Operations) {
        let (mut shuffles_ns, mut reads_ns) = (0u128, 0u128);
        self.queue.clear();
        for operation in operations.of_first_window() {
            for (number, part) in operations.parts(operation) {
                if self.queue.len() == SUB_QUEUE_MAX {
                    break;
                }
                shuffles_ns += u128::from(part.shuffle_ns);
                reads_ns += u128::from(part.work_ns);
                self.queue.push(Aggregator {
                    part: number,
                    place: self.queue.len() as u32,
                    rank: part.rank,
                    delay_ns: part.shuffle_max_ns.saturating_sub(part.shuffle_ns),
                    read_ns: part.work_ns,
                });
            }
            if self.queue.len() == SUB_QUEUE_MAX {
                break;
            }
        }
        if shuffles_ns * 5 > reads_ns {
            self.queue.sort_unstable_by_key(|one| (one.rank, one.place));
        }
        tune(&mut self.queue);
        self.order
            .extend(self.queue.iter().rev().map(|one| one.part));
    }
}

/// Changes places of neighbours, once through.
fn tune(queue: &mut [Aggregator]) {
    for j in 1..queue.len() {
        if queue[j - 1].delay_ns > queue[j].read_ns {
            queue.swap(j - 1, j);
            queue[j - 1].delay_ns = queue[j - 1].delay_ns.saturating_add(queue[j].read_ns);
            queue[j].delay_ns -= queue[j - 1].read_ns;
        }
    }
}
