//! Who had the device, as the forwarder counts it for the statistics of waits: device time by
//! application, and what of a request's wait each of them caused.
//!
//! Between two looks the time goes to the applications whose requests run, in proportion to how
//! many do. Of a few applications it is counted apart, of the rest together. A request that waits
//! has the counts of the moment at which its wait began ([`Counts`]); their difference to those of
//! its end says who had the device meanwhile. Of an application whose requests ran, those that had
//! come before the one that waits, or ran already, were before it: it waited for the device. Those
//! that came later have overtaken it: it waited for its turn.

use tidegate_sched::Time;

/// Applications that are counted apart.
const APART: usize = 8;

/// The place of all others.
const REST: usize = APART;

/// One application's requests, or those of the rest.
#[derive(Clone, Copy, Default)]
struct Flow {
    app: u64,
    /// How many applications have had this place. 0: none.
    generation: u32,
    /// Parts of requests that came, went to the device, were finished, and were given up before
    /// they went there. They may wrap.
    came: u32,
    dispatched: u32,
    finished: u32,
    dropped: u32,
    busy_ns: u64,
}

/// What [`Flow`] counted at a moment.
#[derive(Clone, Copy, Default)]
struct Counted {
    generation: u32,
    running: u32,
    /// Parts that had gone to the device, and those that had come.
    dispatched: u32,
    came: u32,
    busy_ns: u64,
}

/// The counts of the moment at which a wait began.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    flows: [Counted; APART + 1],
    busy_ns: u64,
    held_ns: u64,
}

impl Counts {
    /// These are of a later look of the same wait: what came since the first look is behind it.
    pub(super) fn came_as_in(&mut self, first: &Counts) {
        for (flow, then) in self.flows.iter_mut().zip(&first.flows) {
            flow.came = match flow.generation == then.generation {
                true => then.came,
                // An application that got the place since then.
                false => 0,
            };
        }
    }
}

/// What one neighbour had of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Had {
    /// None: the applications that are not counted apart.
    pub(super) app: Option<u64>,
    /// Its requests were before, ns.
    pub(super) before_ns: u64,
    /// Its requests came later and went first, ns.
    pub(super) overtook_ns: u64,
}

/// Device time by application.
#[derive(Default)]
pub(super) struct DeviceTime {
    /// Until when everything is counted.
    at: Time,
    flows: [Flow; APART + 1],
    busy_ns: u64,
    /// Whether the policy leaves the device idle beside requests, and for how long it has.
    holds: bool,
    held_ns: u64,
    /// Where the last request's application was found.
    last: usize,
    /// Where to look first for a place that is free.
    next: usize,
    /// Requests that wait. The time counts only while there are any.
    lookers: u32,
}

impl DeviceTime {
    /// Counts the time until now.
    #[inline]
    pub(super) fn pass(&mut self, now: Time) {
        if self.lookers > 0 {
            self.count(now);
        }
    }

    fn count(&mut self, now: Time) {
        let ns = now.since(self.at);
        if ns == 0 {
            return;
        }
        self.at = now;
        if self.holds {
            self.held_ns += ns;
        }
        let all: u64 = self.flows.iter().map(Flow::running).sum();
        if all == 0 {
            return;
        }
        self.busy_ns += ns;
        let (mut left_ns, mut left) = (ns, all);
        for flow in self.flows.iter_mut().filter(|flow| flow.running() > 0) {
            let running = flow.running();
            // What is left over of a division goes to those behind.
            let part_ns = left_ns / left * running + left_ns % left * running / left;
            flow.busy_ns += part_ns;
            (left_ns, left) = (left_ns - part_ns, left - running);
        }
    }

    /// Notes whether the policy leaves the device idle beside requests from now on.
    #[inline]
    pub(super) fn hold(&mut self, now: Time, holds: bool) {
        if self.holds != holds {
            self.pass(now);
            self.holds = holds;
        }
    }

    /// So many parts of a request of this application wait. Returns its place, for what follows.
    #[inline]
    pub(super) fn came(&mut self, app: u64, parts: u32) -> u8 {
        let at = match self.flows[self.last] {
            last if last.app == app && last.generation > 0 => self.last,
            _ => self.place_of(app),
        };
        if at != REST {
            self.last = at;
        }
        self.flows[at].came = self.flows[at].came.wrapping_add(parts);
        at as u8
    }

    fn place_of(&mut self, app: u64) -> usize {
        let apart = &self.flows[..APART];
        let its = |flow: &Flow| flow.app == app && flow.generation > 0;
        if let Some(at) = apart.iter().position(its) {
            return at;
        }
        let idle = |at: &usize| apart[*at].is_idle();
        let order = (0..APART).map(|step| (self.next + step) % APART);
        let Some(at) = order.into_iter().find(idle) else {
            return REST;
        };
        self.next = (at + 1) % APART;
        self.flows[at] = Flow {
            app,
            generation: self.flows[at].generation.wrapping_add(1).max(1),
            ..Flow::default()
        };
        at
    }

    /// One part goes to the device.
    #[inline]
    pub(super) fn dispatched(&mut self, now: Time, place: u8) {
        self.pass(now);
        let flow = &mut self.flows[usize::from(place)];
        flow.dispatched = flow.dispatched.wrapping_add(1);
    }

    /// The device is done with one part.
    #[inline]
    pub(super) fn finished(&mut self, now: Time, place: u8) {
        self.pass(now);
        let flow = &mut self.flows[usize::from(place)];
        flow.finished = flow.finished.wrapping_add(1);
    }

    /// So many parts that came will not go to the device.
    pub(super) fn dropped(&mut self, place: u8, parts: u32) {
        let flow = &mut self.flows[usize::from(place)];
        flow.dropped = flow.dropped.wrapping_add(parts);
    }

    /// The counts of now, for a request whose wait begins.
    pub(super) fn look(&mut self, now: Time) -> Counts {
        match self.lookers {
            0 => self.at = now,
            _ => self.count(now),
        }
        self.lookers += 1;
        Counts {
            flows: self.flows.map(|flow| Counted {
                generation: flow.generation,
                running: flow.dispatched.wrapping_sub(flow.finished),
                dispatched: flow.dispatched,
                came: flow.came,
                busy_ns: flow.busy_ns,
            }),
            busy_ns: self.busy_ns,
            held_ns: self.held_ns,
        }
    }

    /// A wait is over.
    pub(super) fn looked_at_no_longer(&mut self) {
        self.lookers -= 1;
    }

    /// For how long the policy has left the device idle since then, by now, ns. The time must have
    /// been counted.
    pub(super) fn held_ns(&self, then: &Counts) -> u64 {
        self.held_ns - then.held_ns
    }

    /// Tells `tell` what each application had of a wait of `wait_ns` since then, by now. Returns
    /// the sum of what it told; the device had nothing to do in the rest. The time must have been
    /// counted.
    pub(super) fn had(
        &self,
        then: &Counts,
        place: u8,
        wait_ns: u64,
        mut tell: impl FnMut(Had),
    ) -> u64 {
        let busy_ns = self.busy_ns - then.busy_ns;
        let shown_ns = busy_ns.min(wait_ns);
        let mut told_ns = 0;
        for (at, (flow, before)) in self.flows.iter().zip(&then.flows).enumerate() {
            // Another application had the place then.
            let before = match before.generation == flow.generation {
                true => *before,
                false => Counted::default(),
            };
            let its_ns = flow.busy_ns - before.busy_ns;
            if its_ns == 0 {
                continue;
            }
            let all_ns = scaled(its_ns, shown_ns, busy_ns);
            let overtook_ns = match at == usize::from(place) && at != REST {
                // Its own requests.
                true => 0,
                false => scaled(all_ns, flow.overtook(&before), flow.ran_since(&before)),
            };
            let had = Had {
                app: (at != REST).then_some(flow.app),
                before_ns: all_ns - overtook_ns,
                overtook_ns,
            };
            told_ns += all_ns;
            tell(had);
        }
        // Applications that had a place in between, and what divisions left over.
        let rest_ns = shown_ns - told_ns;
        if rest_ns > 0 {
            let had = Had {
                app: None,
                before_ns: rest_ns,
                overtook_ns: 0,
            };
            tell(had);
        }
        shown_ns
    }
}

impl Flow {
    /// Parts that run.
    fn running(&self) -> u64 {
        self.dispatched.wrapping_sub(self.finished).into()
    }

    /// Nothing of it waits or runs.
    fn is_idle(&self) -> bool {
        self.came == self.finished.wrapping_add(self.dropped)
    }

    /// Parts that went to the device since then and had not come then.
    fn overtook(&self, then: &Counted) -> u64 {
        let gone = self.dispatched.wrapping_add(self.dropped);
        let later = gone.wrapping_sub(then.came) as i32;
        u64::from(later.max(0) as u32).min(self.ran_since(then))
    }

    /// Parts that ran then, or went to the device since.
    fn ran_since(&self, then: &Counted) -> u64 {
        u64::from(self.dispatched.wrapping_sub(then.dispatched)) + u64::from(then.running)
    }
}

/// `amount * part / whole`; all of it if there is no whole.
fn scaled(amount: u64, part: u64, whole: u64) -> u64 {
    match whole {
        0 => amount,
        _ => (u128::from(amount) * u128::from(part.min(whole)) / u128::from(whole)) as u64,
    }
}

#[cfg(test)]
impl DeviceTime {
    /// Requests that wait, and places whose application has requests.
    pub(super) fn in_use(&self) -> (u32, usize) {
        let used = self.flows.iter().filter(|flow| !flow.is_idle());
        (self.lookers, used.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn told(device: &mut DeviceTime, then: &Counts, place: u8, now: u64) -> Vec<Had> {
        device.pass(Time(now));
        let mut all = Vec::new();
        device.had(then, place, now, |had| all.push(had));
        all
    }

    fn had(app: u64, before_ns: u64, overtook_ns: u64) -> Had {
        Had {
            app: Some(app),
            before_ns,
            overtook_ns,
        }
    }

    #[test]
    fn who_was_before_had_the_device_and_who_came_later_has_overtaken() {
        let mut device = DeviceTime::default();
        let one = device.came(1, 2);
        device.dispatched(Time(0), one);
        let own = device.came(2, 2);
        device.dispatched(Time(0), own);
        let then = device.look(Time(0));
        // Both run for 100, then one of the two that waited, then one that came later.
        device.finished(Time(100), one);
        device.finished(Time(100), own);
        device.dispatched(Time(100), one);
        device.finished(Time(150), one);
        let later = device.came(3, 1);
        device.dispatched(Time(150), later);
        device.finished(Time(250), later);
        let all = told(&mut device, &then, own, 250);
        assert_eq!(all, [had(1, 100, 0), had(2, 50, 0), had(3, 0, 100)]);
    }

    #[test]
    fn who_overtook_before_a_second_look_has_overtaken_after_it() {
        let mut device = DeviceTime::default();
        let own = device.came(1, 1);
        let before = device.came(2, 1);
        device.dispatched(Time(0), before);
        let first = device.look(Time(0));
        // One of an application that is known comes, and one of another.
        device.came(2, 1);
        let other = device.came(3, 1);
        let mut then = device.look(Time(0));
        then.came_as_in(&first);
        device.finished(Time(100), before);
        device.dispatched(Time(100), before);
        device.finished(Time(200), before);
        device.dispatched(Time(200), other);
        device.finished(Time(250), other);
        let all = told(&mut device, &then, own, 250);
        assert_eq!(all, [had(2, 100, 100), had(3, 0, 50)]);
    }

    #[test]
    fn places_are_given_again_and_the_rest_is_one() {
        let mut device = DeviceTime::default();
        let own = device.came(1, 1);
        let then = device.look(Time(0));
        let mut all = vec![];
        for app in 2..20 {
            let place = device.came(app, 1);
            assert_eq!(usize::from(place) == REST, app > 8, "{app}");
            all.push(place);
        }
        let mut now = 0;
        for place in &all {
            device.dispatched(Time(now), *place);
            now += 10;
            device.finished(Time(now), *place);
        }
        let others = told(&mut device, &then, own, now);
        assert_eq!(others.len(), 8);
        assert_eq!(others[7].app, None);
        assert_eq!(others[7].overtook_ns, 110);
        // The places of those that are idle go to others; what they had is somebody's.
        for app in 30..40 {
            let place = device.came(app, 1);
            device.dispatched(Time(now), place);
            now += 10;
            device.finished(Time(now), place);
        }
        let others = told(&mut device, &then, own, now);
        let sum: u64 = others.iter().map(|it| it.before_ns + it.overtook_ns).sum();
        assert_eq!(sum, now);
        assert!(others.iter().all(|it| it.app != Some(2)));
    }

    #[test]
    fn what_is_given_up_leaves_its_place_and_overtakes_nobody() {
        let mut device = DeviceTime::default();
        let own = device.came(1, 1);
        let other = device.came(2, 5);
        let then = device.look(Time(0));
        device.dropped(other, 4);
        device.dispatched(Time(0), other);
        device.finished(Time(10), other);
        device.came(2, 1);
        device.dispatched(Time(10), other);
        device.finished(Time(30), other);
        assert_eq!(device.in_use(), (1, 1));
        let all = told(&mut device, &then, own, 30);
        assert_eq!(all, [had(2, 15, 15)]);
    }

    #[test]
    fn the_time_of_calls_that_run_together_is_shared_out() {
        let mut device = DeviceTime::default();
        let (one, other) = (device.came(1, 3), device.came(2, 1));
        for _ in 0..3 {
            device.dispatched(Time(0), one);
        }
        device.dispatched(Time(0), other);
        let then = device.look(Time(0));
        let all = told(&mut device, &then, REST as u8, 1001);
        assert_eq!(all, [had(1, 750, 0), had(2, 251, 0)]);
        device.hold(Time(1001), true);
        device.hold(Time(1101), false);
        device.pass(Time(2000));
        assert_eq!(device.held_ns(&then), 100);
    }
}
