//! Turns: what shares a device by weights serves several requests of one application in a row.
//!
//! Fair queueing alone goes from application to application with each request. On a disk each
//! change costs a seek, and programs that read in order together get a fraction of what the disk
//! could give. So an application keeps its turn until it has moved bytes for as long as the seek
//! takes that the turn began with: then at least half of the time is worked, if what it asks for
//! lies together. Where it does not, the turn ends after the time of [`TURN_SEEKS`] seeks. Both
//! times are the cost model's. Large requests pay for their seek alone, so there each is a turn;
//! and where a seek costs nothing there are no turns. Only requests that wait go on: nobody is
//! waited for, and the device never idles for a turn.
//!
//! Where a latency target is promised, a turn ends as soon as somebody else with a target waits:
//! he would wait for others' turns. Then all is served request by request.
//!
//! Tags are charged as ever, so who had a longer turn waits longer for the next, and shares stay
//! what they were over more than a few turns.

use crate::cost::CostModel;
use crate::hash_table::NONE;
use crate::options::Options;
use crate::policy_options::OptionSpec;
use crate::types::{Direction, Request};

pub(crate) const TURN_SEEKS: OptionSpec = OptionSpec::integer(
    "turn_seeks",
    8,
    [0, 1000],
    "who is served goes on, while it has requests waiting, until its bytes took as long as a seek, \
     and at most for the device time of so many seeks if each request needs one; a seek is what an \
     access elsewhere costs more than one that goes on, by the cost model; 0: each request is a \
     turn, as printed in the papers",
);

/// Whose turn it is.
pub(crate) struct Turn {
    seeks: u64,
    seek_ns: u64,
    /// The device time of a turn: what so many seeks take.
    most_ns: u64,
    /// Number of the flow whose turn it is.
    owner: u32,
    left_ns: u64,
    /// Time that bytes must still take until the turn's seek is worth it.
    unpaid_ns: u64,
    cost: CostModel,
}

impl Turn {
    /// Nobody's turn yet; its length by [`TURN_SEEKS`] and the cost model.
    pub(crate) fn new(options: &Options) -> Turn {
        let mut turn = Turn {
            seeks: options.table.integer(&TURN_SEEKS),
            seek_ns: 0,
            most_ns: 0,
            owner: NONE,
            left_ns: 0,
            unpaid_ns: 0,
            cost: options.cost,
        };
        turn.set_cost_model(&options.cost);
        turn
    }

    /// Sets what a seek costs from now on.
    pub(crate) fn set_cost_model(&mut self, cost: &CostModel) {
        let seek_ns = |direction| {
            let base_ns = |sequential| cost.access(direction, sequential).base_ns;
            base_ns(false).saturating_sub(base_ns(true))
        };
        self.seek_ns = seek_ns(Direction::Read).max(seek_ns(Direction::Write));
        self.most_ns = self.seek_ns.saturating_mul(self.seeks);
        self.left_ns = self.left_ns.min(self.most_ns);
        self.cost = *cost;
    }

    /// The device time of a turn, beyond the last request of it.
    pub(crate) fn most_ns(&self) -> u64 {
        self.most_ns
    }

    /// Who goes next: the flow whose turn it is if it may go on, or `first`, whose turn begins.
    #[inline]
    pub(crate) fn next(&mut self, may_go_on: impl FnOnce(u32) -> bool, first: u32) -> u32 {
        if self.left_ns == 0 || !may_go_on(self.owner) {
            (self.owner, self.left_ns) = (first, self.most_ns);
            self.unpaid_ns = self.seek_ns;
        }
        self.owner
    }

    /// A request of a flow runs, and costs so much as an access elsewhere.
    #[inline]
    pub(crate) fn runs(&mut self, flow: u32, request: &Request, cost_ns: u64) {
        if flow != self.owner || self.left_ns == 0 {
            return;
        }
        self.left_ns = self.left_ns.saturating_sub(cost_ns);
        let len = if request.mergeable { request.len } else { 0 };
        let paid_ns = self.cost.access(request.direction, true).ns(len);
        self.unpaid_ns = self.unpaid_ns.saturating_sub(paid_ns);
        if self.unpaid_ns == 0 {
            self.left_ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(len: u64) -> Request {
        crate::test::read(1, 0, len)
    }

    /// Who is served where the request with this number is the next by tags.
    fn served(turn: &mut Turn, count: u32, request: &Request) -> std::vec::Vec<u32> {
        let mut one = |at: u32| {
            let flow = turn.next(|flow| flow != 7, at);
            let cost_ns = turn.cost.request_ns(request);
            turn.runs(flow, request, cost_ns);
            flow
        };
        (0..count).map(&mut one).collect()
    }

    #[test]
    fn a_turn_lasts_until_its_seek_is_paid_for_and_begins_again() {
        // The default is a disk with seeks of 7.9 ms: 512 KiB take 5.1, and 4 KiB 0.14.
        let mut options = Options::for_policy("wfq");
        let mut turn = Turn::new(&options);
        assert_eq!(served(&mut turn, 6, &read(512 << 10)), [0, 0, 2, 2, 4, 4]);
        assert_eq!(served(&mut turn, 3, &read(1 << 20)), [0, 1, 2]);
        assert_eq!(
            served(&mut turn, 17, &read(4096))[7..],
            [0, 8, 8, 8, 8, 8, 8, 8, 8, 16]
        );
        // One that has nothing any more loses its turn.
        assert_eq!(turn.next(|_| false, 7), 7);
        assert_eq!(turn.next(|flow| flow != 7, 3), 3);
        options.table.set("turn_seeks", 0);
        assert_eq!(served(&mut Turn::new(&options), 3, &read(1)), [0, 1, 2]);
        let ideal = CostModel {
            read_random: options.cost.read_sequential,
            write_random: options.cost.write_sequential,
            ..options.cost
        };
        turn.set_cost_model(&ideal);
        assert_eq!(served(&mut turn, 4, &read(1))[1..], [1, 2, 3]);
    }
}
