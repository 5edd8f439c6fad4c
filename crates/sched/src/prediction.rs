//! Anticipation by prediction: whether a run of adjacent requests should wait for more of it.
//!
//! The policies that keep `runs` share this block. There are two predictors. `recorded` is AGIOS's
//! (Boito et al., ICPADS'13, section IV): it reads traces of earlier runs of the program. `online`
//! needs no trace, and learns from the load. A predictor only proposes. This file applies the rules
//! that hold for every wait: it costs less than it gains, a run waits at most once, and never for
//! longer than `wait_us_max`. With `online` the time for which the device idles in waits stays
//! below `idle_percent_max` of the time for which it works. `recorded` has no such limit, as in the
//! paper.

mod expected;
mod online;
mod recorded;
mod trust;

use crate::cost::CostModel;
use crate::options::Options;
use crate::options_error::OptionsError;
use crate::policy_options::{OptionKind, OptionSpec};
use crate::predicted_runs::HIDDEN_MOST;
use crate::requests::{Index, Requests};
use crate::runs::Runs;
use crate::types::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use online::Online;
use recorded::Recorded;
use trust::Trust;

/// How much of the device's time waits may cost without a trace.
pub(crate) const IDLE_PERCENT_MAX: OptionSpec = OptionSpec::integer(
    "idle_percent_max",
    2,
    [0, 100],
    "with `prediction = \"online\"`: the device idles for waits at most so many percent of the \
     time that it works",
);

/// Which predictor.
pub(crate) const PREDICTION: OptionSpec = OptionSpec::new(
    "prediction",
    OptionKind::Word(&["off", "recorded", "online"]),
    "a run of adjacent requests may wait for more of it. `recorded`: as traces of earlier runs \
     foretell; `online`: as was learned from the load; see [prediction.md](prediction.md)",
);

/// The prediction says how long a wait is; this bound keeps a wrong one from stopping the device.
pub(crate) const WAIT_US_MAX: OptionSpec = OptionSpec::integer(
    "wait_us_max",
    100_000,
    [1, 10_000_000],
    "the longest such wait, in microseconds",
);

/// The entry of a run that has not waited.
const NO_GOAL: (u64, u64) = (0, u64::MAX);

enum Kind {
    Recorded(Recorded),
    Online(Box<Online>),
}

/// The predictor of a policy, or none.
pub(crate) struct Predictor {
    kind: Option<Kind>,
    cost: CostModel,
    wait_ns_max: u64,
    idle_percent_max: u64,
    /// Time for which the device worked, and for which it idled in waits.
    busy_ns: u64,
    idle_ns: u64,
    /// Requests that run, and the time up to which the two above are counted.
    running: u32,
    counted: Time,
    /// The end of the last wait in which the device idles.
    anticipates_until: Time,
    /// By run: its length when its wait began and the length at which the wait ends, or `NO_GOAL`.
    goals: Vec<(u64, u64)>,
    trust: Trust,
    /// The part of a wait, of 256, that other work hides, as measured so far (the paper's alpha).
    hidden: u64,
}

impl Predictor {
    /// The options `prediction`, `wait_us_max` and `idle_percent_max`.
    pub(crate) fn new(options: &Options) -> Result<Predictor, OptionsError> {
        let table = &options.table;
        let kind = match table.text(&PREDICTION).as_str() {
            "off" => None,
            "recorded" => {
                let prediction = options.prediction.clone();
                let prediction = prediction.ok_or(OptionsError::NoPrediction)?;
                Some(Kind::Recorded(Recorded::new(prediction)))
            }
            _ => Some(Kind::Online(Box::new(Online::new()))),
        };
        Ok(Predictor {
            kind,
            cost: options.cost,
            wait_ns_max: table.integer(&WAIT_US_MAX) * 1000,
            idle_percent_max: table.integer(&IDLE_PERCENT_MAX),
            busy_ns: 0,
            idle_ns: 0,
            running: 0,
            counted: Time(0),
            anticipates_until: Time(0),
            goals: Vec::new(),
            trust: Trust::new(),
            hidden: 0,
        })
    }

    /// What accesses cost from now on.
    pub(crate) fn set_cost_model(&mut self, cost: &CostModel) {
        self.cost = *cost;
    }

    /// The longest time for which one wait makes the device idle.
    pub(crate) fn wait_ns_max(&self) -> u64 {
        match self.kind {
            None => 0,
            Some(_) => self.wait_ns_max,
        }
    }

    /// Takes a request that arrived and joined a run. True if that run was waiting, and has now the
    /// length that it waited for.
    pub(crate) fn arrived(&mut self, requests: &Requests, index: Index, runs: &Runs) -> bool {
        let entry = &requests[index];
        match &mut self.kind {
            None => return false,
            Some(Kind::Recorded(recorded)) => recorded.arrived(entry, index),
            Some(Kind::Online(online)) => online.arrived(entry, index),
        }
        let run = runs.run(entry.tag);
        let Some(goal) = self.goals.get_mut(entry.tag as usize) else {
            return false;
        };
        if run.count == 1 {
            // Another run had this number before.
            *goal = NO_GOAL;
        }
        run.waited && run.end - run.start >= goal.1
    }

    /// Until when an eligible run should wait; `None` if it should not.
    pub(crate) fn waits(
        &mut self,
        requests: &Requests,
        runs: &Runs,
        run: u32,
        now: Time,
    ) -> Option<Time> {
        let expected = match self.kind.as_mut()? {
            Kind::Recorded(recorded) => recorded.expected(requests, runs, run, now),
            Kind::Online(online) => online.expected(runs, run, now),
        }?;
        self.count(now);
        if !self.may_idle(expected.wait_ns) {
            return None;
        }
        let len = runs.run(run).end - runs.run(run).start;
        let access = self.cost.access(runs.queue_of(run).direction, false);
        let apart = access.ns(len) + access.ns(expected.len.saturating_sub(len));
        let gain = apart.saturating_sub(access.ns(expected.len));
        // What other work hides costs nothing: (1 - alpha) of the wait against the gain.
        let price = expected.wait_ns.saturating_mul(256 - self.hidden) / 256;
        if price >= gain || expected.wait_ns > self.wait_ns_max || !self.trust.allows() {
            return None;
        }
        if self.goals.len() <= run as usize {
            self.goals.resize(run as usize + 1, NO_GOAL);
        }
        self.goals[run as usize] = (len, expected.len);
        // Ski rental: if the rest does not come, what was waited is at most what it could have
        // brought. Times of arrival vary, and to give up just before the rest comes is the worst:
        // a quarter of the gain is always worth a try.
        let most = gain * 256 / (256 - self.hidden).max(256 / HIDDEN_MOST);
        let patience = (2 * expected.wait_ns).max(gain / 4).min(most);
        Some(now + patience.clamp(1, self.wait_ns_max))
    }

    /// Asks whether the device may idle until `until`, when only runs that wait are left. `None` if
    /// it may not.
    pub(crate) fn may_anticipate(&mut self, now: Time, until: Time) -> Option<Time> {
        self.count(now);
        if self.running == 0 && !self.may_idle(until.since(now)) {
            return None;
        }
        self.anticipates_until = until;
        Some(until)
    }

    /// Takes note that a run was chosen. If it had waited, the outcome counts for or against later
    /// waits.
    pub(crate) fn leaves(&mut self, runs: &Runs, run: u32) {
        let Some(&(from, goal)) = self.goals.get(run as usize) else {
            return;
        };
        let run = runs.run(run);
        // Closed runs count as having waited, so that they never do.
        if run.waited && (from, goal) != NO_GOAL {
            let half = from + goal.saturating_sub(from) / 2;
            self.trust.note(run.end - run.start >= half);
        }
    }

    /// Counts a batch of so many requests as running.
    pub(crate) fn dispatched(&mut self, count: usize, now: Time) {
        if self.kind.is_some() {
            self.count(now);
            self.anticipates_until = Time(0);
            self.running += count as u32;
        }
    }

    /// Counts a request that ran as finished.
    pub(crate) fn finished(&mut self, index: Index, now: Time) {
        if let Some(kind) = &mut self.kind {
            if let Kind::Online(online) = kind {
                online.left(index);
            }
            self.count(now);
            self.running = self.running.saturating_sub(1);
        }
    }

    /// Forgets a request that was cancelled.
    pub(crate) fn cancelled(&mut self, index: Index) {
        if let Some(Kind::Online(online)) = &mut self.kind {
            online.left(index);
        }
    }

    fn may_idle(&self, wait_ns: u64) -> bool {
        match self.kind {
            // The paper has no such limit.
            Some(Kind::Recorded(_)) => true,
            _ => self.idle_ns.saturating_add(wait_ns) <= self.busy_ns / 100 * self.idle_percent_max,
        }
    }

    /// Counts the time since the last call as worked, idled for a wait, or neither.
    fn count(&mut self, now: Time) {
        let from = self.counted;
        self.counted = self.counted.max(now);
        // Idle time after `anticipates_until` has another reason than a wait.
        let (passed, hidden) = match self.running > 0 {
            true => (now.since(from), 256),
            false => (now.min(self.anticipates_until).since(from), 0),
        };
        match self.running > 0 {
            true => self.busy_ns += passed,
            false => self.idle_ns += passed,
        }
        // A moving mean over about the last 16 ms.
        let weight = passed.min(16_000_000);
        self.hidden = (self.hidden * (16_000_000 - weight) + hidden * weight) / 16_000_000;
    }
}

#[cfg(test)]
mod tests {
    use super::Predictor;
    use crate::{
        CostModel, FileId, Input, Options, Output, PolicyOptions, Request, RequestId, Scheduler,
        Time,
    };
    use crate::{Observed, Prediction};
    use alloc::sync::Arc;
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    /// The n-th call of a program: two adjacent requests, the second 2 ms later; and where a
    /// call begins the next is not near it.
    fn requests(calls: u64) -> Vec<(u64, Request)> {
        let call = |n: u64| {
            let at = n * 40 * MS;
            [
                (at, 2 * n, n * 65_536),
                (at + 2 * MS, 2 * n + 1, n * 65_536 + 8192),
            ]
        };
        let request = |(at, id, offset): (u64, u64, u64)| {
            let request = crate::test::read(1, offset, 8192);
            (
                at,
                Request {
                    id: RequestId(id),
                    ..request
                },
            )
        };
        (0..calls).flat_map(call).map(request).collect()
    }

    /// Runs them on a device of the default cost; returns batches, and the time it idled beside
    /// requests.
    fn run(options: &Options, input: &[(u64, Request)]) -> (Vec<usize>, u64) {
        let mut scheduler = Scheduler::new(options).unwrap();
        let (mut batches, mut batch, mut idle_ns) = (Vec::new(), Vec::new(), 0);
        let mut input = input.iter().copied().peekable();
        let (mut now, mut busy_until, mut running) = (0, u64::MAX, Vec::new());
        loop {
            let wake = match scheduler.poll(Time(now), &mut batch) {
                Output::Dispatch => {
                    let bytes = batch.iter().map(|request| request.len).sum();
                    busy_until = now + options.cost.read_random.ns(bytes);
                    running.extend(batch.iter().map(|request| request.id));
                    batches.push(batch.len());
                    continue;
                }
                Output::WaitUntil(until) => until.0,
                Output::Broadcast(_) => unreachable!("aioli tells nothing"),
                Output::Idle => u64::MAX,
            };
            let arrival = input.peek().map_or(u64::MAX, |(at, _)| *at);
            let next = wake.min(busy_until).min(arrival);
            if next == u64::MAX {
                return (batches, idle_ns);
            }
            if running.is_empty() && scheduler.queued() > 0 {
                idle_ns += next - now;
            }
            now = next;
            if now == busy_until {
                busy_until = u64::MAX;
                for id in running.drain(..) {
                    scheduler.handle(Time(now), Input::Finished(id)).unwrap();
                }
            }
            if now == arrival {
                let (_, request) = input.next().unwrap();
                scheduler
                    .handle(Time(now), Input::Arrived(request))
                    .unwrap();
            }
        }
    }

    fn options(kind: &str) -> Options {
        let table = PolicyOptions::default().with("prediction", kind);
        Options {
            table,
            ..Options::for_policy("aioli")
        }
    }

    #[test]
    fn without_prediction_each_request_is_a_batch_of_its_own() {
        assert_eq!(run(&options("off"), &requests(20)), (vec![1; 40], 0));
    }

    #[test]
    fn a_recorded_trace_makes_each_call_one_batch_from_the_first() {
        let trace = |shift: u64| -> Vec<Observed> {
            let observed = |&(at_ns, request): &(u64, Request)| Observed {
                file: request.file,
                direction: request.direction,
                offset: request.offset,
                len: request.len,
                at_ns: at_ns + shift,
            };
            requests(20).iter().map(observed).collect()
        };
        let mut options = options("recorded");
        let error = Scheduler::new(&options).err().unwrap();
        assert_eq!(
            error.to_string(),
            "prediction = \"recorded\" needs traces of earlier runs"
        );
        let prediction = Prediction::new(&[trace(0), trace(9000)], &options.cost);
        assert_eq!(prediction.len(), (40, 20));
        options.prediction = Some(Arc::new(prediction));
        assert_eq!(run(&options, &requests(20)).0, [2; 20]);
        // Another program: nothing is linked, nothing waits.
        let mut other = requests(20);
        for (_, request) in &mut other {
            request.file = FileId(9);
        }
        assert_eq!(run(&options, &other), (vec![1; 40], 0));
    }

    #[test]
    fn the_trace_of_another_program_is_soon_no_longer_believed() {
        let observed = |(at_ns, request): (u64, Request)| Observed {
            file: request.file,
            direction: request.direction,
            offset: request.offset,
            len: request.len,
            at_ns,
        };
        let trace = requests(400).into_iter().map(observed).collect();
        let mut options = options("recorded");
        let prediction = Prediction::new(&[trace], &options.cost);
        options.prediction = Some(Arc::new(prediction));
        // The same places at the same times, but only the first of each two.
        let first: Vec<_> = requests(400).into_iter().step_by(2).collect();
        let (batches, idle_ns) = run(&options, &first);
        assert_eq!(batches, vec![1; 400]);
        // Each wait in vain is of twice the 2 ms that were foretold.
        assert!((8 * 4 * MS..40 * 4 * MS).contains(&idle_ns), "{idle_ns}");
    }

    #[test]
    fn requests_that_nothing_may_join_say_nothing_about_waits() {
        let mut input = requests(30);
        // Half a second in which there are only such; their runs get the numbers of earlier ones.
        for (at, _) in &mut input[20..] {
            *at += 1200 * MS;
        }
        let alone = (0..30).map(|n| {
            let request = crate::test::read(2, n * 65_536, 8192);
            let id = RequestId(1000 + n);
            let mergeable = false;
            let request = Request {
                id,
                mergeable,
                ..request
            };
            ((400 + 40 * n) * MS, request)
        });
        input.splice(20..20, alone);
        let observed = |&(at_ns, request): &(u64, Request)| Observed {
            file: request.file,
            direction: request.direction,
            offset: request.offset,
            len: request.len,
            at_ns,
        };
        let trace = input.iter().map(observed).collect();
        let mut options = options("recorded");
        let prediction = Prediction::new(&[trace], &options.cost);
        options.prediction = Some(Arc::new(prediction));
        let expected = [vec![2; 10], vec![1; 30], vec![2; 20]].concat();
        assert_eq!(run(&options, &input).0, expected);
    }

    #[test]
    fn what_is_cancelled_while_it_waits_is_not_waited_for_until_the_next_request() {
        let mut options = options("online");
        options.table.set("idle_percent_max", 100);
        let mut predictor = Predictor::new(&options).unwrap();
        predictor.dispatched(1, Time(0));
        predictor.finished(0, Time(1000 * MS));
        let until = Time(1005 * MS);
        assert_eq!(
            predictor.may_anticipate(Time(1000 * MS), until),
            Some(until)
        );
        // It is cancelled; an hour later there is another one.
        predictor.dispatched(1, Time(3_600_000 * MS));
        assert_eq!((predictor.busy_ns, predictor.idle_ns), (1000 * MS, 5 * MS));
    }

    #[test]
    fn online_rows_that_move_on_are_known_by_their_length() {
        // Rounds of calls of four programs, each in its own part of the file.
        let mut input = requests(160);
        for (number, (_, request)) in (0..).zip(&mut input) {
            let (round, program, half) = (number / 8, number / 2 % 4, number % 2);
            request.offset = (program << 21) + 16_384 * round + 8192 * half;
        }
        let mut options = options("online");
        options.table.set("idle_percent_max", 100);
        let (batches, _) = run(&options, &input);
        let joined = batches.iter().filter(|&&count| count == 2).count();
        assert!(joined > 100, "{batches:?}");
    }

    #[test]
    fn online_it_is_learned_and_the_device_idles_no_more_than_allowed() {
        let mut options = options("online");
        options.table.set("idle_percent_max", 100);
        let (batches, _) = run(&options, &requests(40));
        let (first, later) = batches.split_at(12);
        assert_eq!(first[..8], [1; 8], "nothing is known yet");
        assert!(later.iter().all(|&count| count == 2), "{batches:?}");
        options.table.set("idle_percent_max", 2);
        let calls = 400;
        let (batches, idle_ns) = run(&options, &requests(calls));
        let busy_ns: u64 = batches
            .iter()
            .map(|&count| CostModel::default().read_random.ns(8192 * count as u64))
            .sum();
        assert!(
            batches.contains(&2) && 50 * idle_ns <= busy_ns,
            "{idle_ns} of {busy_ns}"
        );
    }
}
