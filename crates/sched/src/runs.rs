//! Virtual requests: adjacent requests of one file and direction, joined as they arrive, in one
//! queue for each file and direction.
//!
//! The shared block of the policies that come from aIOLi (Lebre et al., 2006): AGIOS's `aioli` and
//! `mlf`. A virtual request, here a *run*, must earn its turn: a run has a quantum of device time
//! that grows with each step (a decision of the scheduler), and is eligible when that covers what
//! it costs. The paper visits every request at every step; here the step at which a run becomes
//! eligible is computed once, when it is made or grows, so a step costs the same however many
//! requests wait. If no run is eligible, time jumps to the step at which one is.
//!
//! Inside a queue the next run is the one upwards of the last, and from the lowest again at the
//! end. Which queue is next the policy chooses, by [`Order`].
//!
//! A long queue is mostly far away in memory. Eligible runs lie in a `CScan`, which looks at what
//! comes next only; the endpoints find what is adjacent to a request; and what will be next after
//! the next one is fetched while others run.

mod stages;

use crate::c_scan::{CScan, Chunks, Place};
use crate::cost::CostModel;
use crate::endpoint_index::{Edge, EndpointIndex};
use crate::flat_btree::FlatBTree;
use crate::hash_table::{HashTable, put};
use crate::heap::Heap;
use crate::options::Options;
use crate::requests::{Index, List, Requests};
use crate::types::{Direction, Request, Time};
use alloc::vec::Vec;

/// How the quantum of a request grows with its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// By one quantum each step; a run has the sum of its requests' quanta.
    Linear,
    /// Doubles each step; a run has that of its oldest request.
    Doubling,
}

/// Which queue is next, of those with an eligible run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The one whose next run has the oldest request.
    Oldest,
    /// They take turns.
    Turns,
}

/// The most steps that a run must earn, whatever it costs, so that steps never end.
const STEPS_MAX: u64 = 1 << 20;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Eligible at a later step.
    Waiting { step: u64 },
    /// Eligible, but a request that belongs to it is expected until then.
    Parked { until: Time },
    /// Can be chosen.
    Eligible,
}

/// First byte, number of the run, and its first request, packed so that they compare at once.
fn place(start: u64, run: u32, index: Index) -> Place {
    u128::from(start) << 64 | u128::from(run) << 32 | u128::from(index)
}

fn run_of(place: Place) -> u32 {
    (place >> 32) as u32
}

fn index_of(place: Place) -> Index {
    place as u32
}

fn start_of(place: Place) -> u64 {
    (place >> 64) as u64
}

/// Adjacent requests.
pub(crate) struct Run {
    /// Number of its queue.
    pub(crate) queue: u32,
    /// First byte.
    pub(crate) start: u64,
    /// One past the last byte.
    pub(crate) end: u64,
    /// Number of requests.
    pub(crate) count: u32,
    /// When the first of them to come became free.
    pub(crate) since: Time,
    /// Whether it was parked before; nothing is waited for twice.
    pub(crate) waited: bool,
    /// Whether nothing may join it.
    pub(crate) closed: bool,
    /// An operation on the file as a whole, which moves no data.
    whole: bool,
    /// The arrival number of the oldest.
    oldest: u64,
    /// The steps at which its requests came: their sum, and the first.
    steps_sum: u64,
    step_first: u64,
    stage: Stage,
    /// In order of place.
    requests: List,
}

/// The runs of one file and direction.
pub(crate) struct Queue {
    /// The file.
    pub(crate) file: u64,
    /// Read or write.
    pub(crate) direction: Direction,
    /// The order among queues, the least first.
    rank: u64,
    runs: u32,
    /// The eligible ones.
    sweep: CScan,
    /// The next run, if one is eligible.
    next: Option<Place>,
    /// Whether the sweep has moved on, so that `next` must be asked for anew before a choice.
    moved: bool,
}

/// All runs.
pub(crate) struct Runs {
    growth: Growth,
    order: Order,
    quantum_bytes: u64,
    quantum_ns: u64,
    cost: CostModel,
    on: bool,
    bytes_max: u64,
    requests_max: u32,
    step: u64,
    /// Ranks given to queues that take turns.
    ranks: u64,
    runs: Vec<Run>,
    runs_free: Vec<u32>,
    queues: Vec<Queue>,
    queues_free: Vec<u32>,
    by_file: [HashTable; 2],
    chunks: Chunks,
    /// Queues that have moved.
    moved: Vec<u32>,
    /// Where the runs that others may join begin and end, by queue.
    endpoints: EndpointIndex,
    /// Waiting ones by step; parked ones by time.
    due: FlatBTree<(u64, u32), ()>,
    parked: FlatBTree<(u64, u32), ()>,
    /// Queues with an eligible run, by rank.
    eligible: Heap<u64>,
}

/// What a read of a step's quantum costs.
fn quantum_ns(cost: &CostModel, bytes: u64) -> u64 {
    cost.access(Direction::Read, false).ns(bytes)
}

impl Runs {
    /// No runs. A step adds to a request's quantum what a read of `quantum_bytes` costs.
    pub(crate) fn new(options: &Options, growth: Growth, order: Order, quantum_bytes: u64) -> Runs {
        Runs {
            growth,
            order,
            quantum_bytes,
            quantum_ns: quantum_ns(&options.cost, quantum_bytes),
            cost: options.cost,
            on: options.merge.unwrap_or(false),
            bytes_max: options.batch_bytes_max,
            requests_max: options.batch_requests_max,
            step: 0,
            ranks: 0,
            runs: Vec::new(),
            runs_free: Vec::new(),
            queues: Vec::new(),
            queues_free: Vec::new(),
            by_file: [HashTable::new(), HashTable::new()],
            chunks: Chunks::new(),
            moved: Vec::new(),
            endpoints: EndpointIndex::new(),
            due: FlatBTree::new(),
            parked: FlatBTree::new(),
            eligible: Heap::new(),
        }
    }

    /// Sets the cost model, and with it the quantum. Runs that wait for a step keep that step.
    pub(crate) fn set_cost_model(&mut self, cost: &CostModel) {
        (self.cost, self.quantum_ns) = (*cost, quantum_ns(cost, self.quantum_bytes));
    }

    /// What a step adds to a request's quantum, in nanoseconds of device time; at least 1.
    pub(crate) fn quantum_ns(&self) -> u64 {
        self.quantum_ns
    }

    /// A run, by the number that requests carry as their tag.
    pub(crate) fn run(&self, run: u32) -> &Run {
        &self.runs[run as usize]
    }

    /// The queue of a run.
    pub(crate) fn queue_of(&self, run: u32) -> &Queue {
        &self.queues[self.runs[run as usize].queue as usize]
    }

    /// The request of a run with the lowest place.
    pub(crate) fn first_of(&self, requests: &Requests, run: u32) -> Option<Index> {
        requests.front(&self.runs[run as usize].requests)
    }

    /// Device time of a run as one access elsewhere.
    pub(crate) fn cost_ns(&self, run: u32) -> u64 {
        let run = &self.runs[run as usize];
        let direction = self.queues[run.queue as usize].direction;
        let bytes = if run.whole { 0 } else { run.end - run.start };
        self.cost.access(direction, false).ns(bytes)
    }

    /// Takes a request into a run. Returns the run.
    pub(crate) fn arrived(&mut self, requests: &mut Requests, index: Index) -> u32 {
        let request = requests[index].request;
        let queue = self.queue_for(&request);
        let (left, right) = match self.on && can_join(&request) {
            true => self.neighbours(queue, &request),
            false => (None, None),
        };
        let run = match (left, right) {
            (Some(left), Some(right)) => self.join(requests, left, right, index),
            (Some(run), None) => {
                let old = &mut self.runs[run as usize];
                old.end = request.end();
                requests.push_back(&mut old.requests, index);
                let stream = u64::from(queue);
                self.endpoints
                    .remove(stream, request.offset, Edge::End, run);
                self.endpoints.insert(stream, request.end(), Edge::End, run);
                run
            }
            (None, Some(run)) => {
                self.unplace(requests, run);
                let old = &mut self.runs[run as usize];
                old.start = request.offset;
                requests.insert_behind(&mut old.requests, None, index);
                self.place(requests, run);
                run
            }
            (None, None) => return self.make(requests, queue, index),
        };
        requests[index].tag = run;
        let entry = &mut self.runs[run as usize];
        entry.count += 1;
        entry.steps_sum = entry.steps_sum.saturating_add(self.step);
        self.review(requests, run);
        run
    }

    /// A request leaves without having run.
    pub(crate) fn cancelled(&mut self, requests: &mut Requests, index: Index) {
        let number = requests[index].tag;
        if self.runs[number as usize].count == 1 {
            self.remove(requests, number, &mut Vec::new());
            return;
        }
        self.unplace(requests, number);
        let run = &mut self.runs[number as usize];
        // Which step it came at is not known any more: the mean of its run.
        run.steps_sum -= run.steps_sum / u64::from(run.count);
        run.count -= 1;
        let mut rest = requests.split_behind(&mut run.requests, index);
        requests.unlink(&mut run.requests, index);
        let entry = &requests[index].request;
        let after = core::mem::replace(&mut run.end, entry.offset);
        if run.requests.is_empty() {
            run.requests = rest;
            (run.start, run.end) = (entry.end(), after);
        } else if !rest.is_empty() {
            self.cut_off(requests, number, &mut rest, after);
        }
        self.place(requests, number);
        self.review(requests, number);
    }

    /// One step: whatever has earned its turn by now can be chosen.
    pub(crate) fn step(&mut self, requests: &Requests, now: Time) {
        self.step += 1;
        while let Some(queue) = self.moved.pop() {
            self.queues[queue as usize].moved = false;
            self.find_next(requests, queue);
        }
        self.wake(requests, now);
        if self.eligible.is_empty()
            && let Some(((step, _), ())) = self.due.first()
        {
            self.step = self.step.max(step);
            self.wake(requests, now);
        }
    }

    /// The next run of the queue whose turn it is.
    pub(crate) fn next(&self) -> Option<u32> {
        let (_, queue) = self.eligible.first()?;
        self.next_of(queue)
    }

    /// The next run of one queue.
    pub(crate) fn next_of(&self, queue: u32) -> Option<u32> {
        self.queues[queue as usize].next.map(run_of)
    }

    /// When the first parked run can be chosen, if any is parked.
    pub(crate) fn parked_until(&self) -> Option<Time> {
        self.parked.first().map(|((until, _), ())| Time(until))
    }

    /// Waits for more of an eligible run, once.
    pub(crate) fn park(&mut self, requests: &Requests, run: u32, until: Time) {
        self.unplace(requests, run);
        let entry = &mut self.runs[run as usize];
        (entry.stage, entry.waited) = (Stage::Parked { until }, true);
        self.place(requests, run);
    }

    /// Ends a wait before its time, if the run waits.
    pub(crate) fn unpark(&mut self, requests: &Requests, run: u32) {
        if matches!(self.runs[run as usize].stage, Stage::Parked { .. }) {
            self.make_eligible(requests, run);
        }
    }

    /// The run whose wait ends next.
    pub(crate) fn first_parked(&self) -> Option<u32> {
        self.parked.first().map(|((_, run), ())| run)
    }

    /// Moves the requests of a run to `into`, in order of place, and forgets it. The sweep of its
    /// queue goes on from here.
    pub(crate) fn remove(&mut self, requests: &mut Requests, number: u32, into: &mut Vec<Index>) {
        let queue = self.runs[number as usize].queue;
        self.queues[queue as usize].runs -= 1;
        if self.order == Order::Turns {
            self.take_turn(queue);
        }
        self.leave(requests, number);
        let run = &mut self.runs[number as usize];
        while let Some(index) = requests.pop_front(&mut run.requests) {
            into.push(index);
        }
        self.runs_free.push(number);
        let entry = &mut self.queues[queue as usize];
        if entry.runs == 0 {
            self.set_next(queue, None);
            let entry = &mut self.queues[queue as usize];
            entry.sweep.restart();
            self.by_file[entry.direction as usize].remove(queue);
            self.queues_free.push(queue);
        }
    }

    /// Runs that end where a request begins, and begin where it ends, and have room for it.
    fn neighbours(&self, queue: u32, request: &Request) -> (Option<u32>, Option<u32>) {
        let (start, end, stream) = (request.offset, request.end(), u64::from(queue));
        // Both at once.
        self.endpoints.prefetch(stream, end);
        let (mut left, mut right) = (None, None);
        let is_better = |run: u32, than: Option<u32>| {
            let is_adjacent =
                |found: &Run| found.queue == queue && (found.end == start || found.start == end);
            is_adjacent(&self.runs[run as usize])
                && self.has_room(run, request.len, 1)
                && than.is_none_or(|than| {
                    self.runs[run as usize].oldest < self.runs[than as usize].oldest
                })
        };
        // Of several it joins the oldest.
        self.endpoints.find(stream, start, Edge::End, |run| {
            if is_better(run, left) {
                left = Some(run);
            }
        });
        self.endpoints.find(stream, end, Edge::Start, |run| {
            if is_better(run, right) {
                right = Some(run);
            }
        });
        if let (Some(first), Some(second)) = (left, right) {
            let Run {
                start, end, count, ..
            } = self.runs[second as usize];
            if !self.has_room(first, (end - start).saturating_add(request.len), count + 1) {
                right = None;
            }
        }
        (left, right)
    }

    fn has_room(&self, run: u32, bytes: u64, count: u32) -> bool {
        let run = &self.runs[run as usize];
        !run.closed
            && run.count + count <= self.requests_max
            && (run.end - run.start).saturating_add(bytes) <= self.bytes_max
    }

    /// Two runs and the request between them become one; the larger keeps its number.
    fn join(&mut self, requests: &mut Requests, left: u32, right: u32, index: Index) -> u32 {
        self.unplace(requests, left);
        self.unplace(requests, right);
        let [first, second] = self
            .runs
            .get_disjoint_mut([left as usize, right as usize])
            .expect("a run is not its own neighbour");
        requests.push_back(&mut first.requests, index);
        requests.append(&mut first.requests, &mut second.requests);
        let joined = first.requests;
        let (start, end) = (first.start, second.end);
        let (keeps, goes) = match first.count >= second.count {
            true => (left, right),
            false => (right, left),
        };
        let [kept, gone] = self
            .runs
            .get_disjoint_mut([keeps as usize, goes as usize])
            .expect("they are two");
        // Only the smaller part is told, so each request is told at most log2(requests_max) times.
        let (from, mut left_to_tell) = match goes == right {
            true => (requests.after(index), gone.count),
            false => (requests.front(&joined), gone.count),
        };
        let mut next = from;
        while let Some(member) = next.filter(|_| left_to_tell > 0) {
            requests[member].tag = keeps;
            left_to_tell -= 1;
            next = requests.after(member);
        }
        kept.requests = joined;
        (kept.start, kept.end) = (start, end);
        kept.count += gone.count;
        kept.oldest = kept.oldest.min(gone.oldest);
        kept.since = kept.since.min(gone.since);
        kept.waited |= gone.waited;
        kept.steps_sum = kept.steps_sum.saturating_add(gone.steps_sum);
        kept.step_first = kept.step_first.min(gone.step_first);
        kept.stage = match (kept.stage, gone.stage) {
            (Stage::Parked { until }, _) | (_, Stage::Parked { until }) => Stage::Parked { until },
            (Stage::Eligible, _) | (_, Stage::Eligible) => Stage::Eligible,
            (stage, _) => stage,
        };
        gone.requests = List::new();
        let queue = kept.queue;
        self.runs_free.push(goes);
        self.queues[queue as usize].runs -= 1;
        self.place(requests, keeps);
        keeps
    }

    /// A run of one request.
    fn make(&mut self, requests: &mut Requests, queue: u32, index: Index) -> u32 {
        let entry = &requests[index];
        let closed = !self.on || !can_join(&entry.request);
        let number = self.add(Run {
            queue,
            start: entry.request.offset,
            end: entry.request.end(),
            count: 1,
            since: entry.ready,
            waited: closed,
            closed,
            whole: !entry.request.mergeable,
            oldest: entry.arrival,
            steps_sum: self.step,
            step_first: self.step,
            stage: Stage::Eligible,
            requests: List::new(),
        });
        requests[index].tag = number;
        requests.push_back(&mut self.runs[number as usize].requests, index);
        let step = self.eligible_at(number);
        if step > self.step + 1 {
            self.runs[number as usize].stage = Stage::Waiting { step };
        }
        self.place(requests, number);
        number
    }

    fn add(&mut self, run: Run) -> u32 {
        self.queues[run.queue as usize].runs += 1;
        put(&mut self.runs, &mut self.runs_free, run)
    }

    /// What lay behind a cancelled request becomes a run of its own.
    fn cut_off(&mut self, requests: &mut Requests, number: u32, rest: &mut List, end: u64) {
        let first = requests.front(rest).expect("checked by the caller");
        let start = requests[first].request.offset;
        let old = &mut self.runs[number as usize];
        let mut run = Run {
            start,
            end,
            count: 0,
            requests: List::new(),
            ..*old
        };
        requests.append(&mut run.requests, rest);
        let steps = old.steps_sum / u64::from(old.count);
        let made = self.add(run);
        let mut next = Some(first);
        let mut count = 0;
        while let Some(member) = next {
            requests[member].tag = made;
            count += 1;
            next = requests.after(member);
        }
        let old = &mut self.runs[number as usize];
        old.count -= count;
        old.steps_sum -= steps * u64::from(count);
        let run = &mut self.runs[made as usize];
        (run.count, run.steps_sum) = (count, steps * u64::from(count));
        self.place(requests, made);
    }
}

/// Whole-file operations say that they cannot; an empty range would be adjacent to itself.
fn can_join(request: &Request) -> bool {
    request.mergeable && request.offset < request.end()
}
