//! A device that a forwarder has for itself, and what it was given to do.

use std::collections::BTreeMap;
use tidegate_device::address::Mapping;
use tidegate_device::{Access, Device, DeviceOptions};
use tidegate_forward::JobId;

/// The time of a device that may be slower than its model.
struct DeviceClock {
    percent: u64,
    /// Since when it has been so slow, in ns, and what its time was then.
    since: u64,
    time: u64,
}

impl DeviceClock {
    /// The device's time at `now`.
    fn time(&self, now: u64) -> u64 {
        let passed = u128::from(now - self.since) * 100 / u128::from(self.percent);
        self.time + passed as u64
    }

    /// When it is that time on the device, at the earliest.
    fn now(&self, time: u64) -> u64 {
        let left = u128::from(time.saturating_sub(self.time)) * u128::from(self.percent);
        let left = u64::try_from(left.div_ceil(100)).unwrap_or(u64::MAX);
        self.since.saturating_add(left)
    }
}

/// What a device does with a call.
pub(super) enum Given {
    /// It ends at this time, and is begun at the other one, in ns.
    Ends { begun: u64, at: u64 },
    /// The device will tell when it ends.
    Later,
    /// It takes no time.
    Now,
}

/// A device.
pub(super) struct OwnDevice {
    device: Device,
    clock: DeviceClock,
    pub(super) mapping: Mapping,
    /// Where the call lies that is given next.
    pub(super) accesses: Vec<Access>,
    /// Of calls whose end the device has yet to tell: the life of the process, and the job.
    calls: BTreeMap<u64, (u32, JobId)>,
    call_ids: u64,
    /// When the world asks the device next if nothing happens before, in ns.
    pub(super) wakes_at: u64,
    /// Until when the device is known to be busy.
    busy_until: u64,
    /// Time in which it had something to do, ns.
    pub(super) busy_ns: u64,
}

impl OwnDevice {
    pub(super) fn new(options: &DeviceOptions) -> OwnDevice {
        OwnDevice {
            device: Device::new(options).expect("the options were checked"),
            clock: DeviceClock {
                percent: 100,
                since: 0,
                time: 0,
            },
            mapping: Mapping::with_unit(options.capacity_bytes(), 0, options.unit_bytes()),
            accesses: Vec::new(),
            calls: BTreeMap::new(),
            call_ids: 0,
            wakes_at: u64::MAX,
            busy_until: 0,
            busy_ns: 0,
        }
    }

    /// Gives the device the accesses, or has it make durable what was written.
    pub(super) fn give(&mut self, now: u64, (life, job): (u32, JobId), flush: bool) -> Given {
        self.call_ids += 1;
        self.count_busy(now);
        let time = self.clock.time(now);
        let ends = match flush {
            false => self.device.submit(time, self.call_ids, &self.accesses),
            true => self.device.flush(time, self.call_ids),
        };
        let Some(at) = ends.map(|time| self.clock.now(time)) else {
            self.calls.insert(self.call_ids, (life, job));
            return Given::Later;
        };
        if flush && at <= now {
            return Given::Now;
        }
        let begun = match self.device.depth() {
            1 => now.max(self.busy_until),
            _ => now,
        };
        self.busy_ns += at.saturating_sub(self.busy_until.max(now));
        self.busy_until = self.busy_until.max(at);
        Given::Ends { begun, at }
    }

    /// Counts the time until now in which the device had calls whose end it has yet to tell.
    fn count_busy(&mut self, now: u64) {
        if !self.calls.is_empty() {
            self.busy_ns += now.saturating_sub(self.busy_until);
        }
        self.busy_until = self.busy_until.max(now);
    }

    /// When the device must be asked next, in ns.
    pub(super) fn next(&self) -> Option<u64> {
        self.device.next_ns().map(|time| self.clock.now(time))
    }

    /// Asks the device what it has done: the lives and jobs of the calls that have ended.
    pub(super) fn advance(&mut self, now: u64) -> Vec<(u32, JobId)> {
        self.count_busy(now);
        let mut ended = Vec::new();
        self.device.advance(self.clock.time(now), &mut ended);
        let calls = ended.iter();
        calls
            .map(|(call, _)| self.calls.remove(call).expect("a call ends once"))
            .collect()
    }

    /// From now on the device takes so many percent of its model's time.
    pub(super) fn is_slow(&mut self, now: u64, percent: u64) {
        self.clock = DeviceClock {
            percent,
            since: now,
            time: self.clock.time(now),
        };
    }
}
