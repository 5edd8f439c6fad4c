//! A disk that has a queue of commands and a cache for writes, as disks with native command queuing
//! do.
//!
//! Of the commands in its queue the arm serves the one that it reaches first, seek and rotation
//! together; the oldest first once it has waited for too long. A read whose bytes are in the buffer
//! or in the write cache does not need the arm. A write has ended when the cache has it; the arm
//! writes what the cache has when no read waits, when the cache is nearly full, and when a flush
//! asks for it. A write that finds no room in the cache waits for it.
//!
//! When a command ends is known when the arm begins it, so a call's end is an event: after
//! [`QueuedDisk::submit`] the caller asks [`QueuedDisk::next_ns`] when to call
//! [`QueuedDisk::advance`].

use super::cache::{Cache, Extent};
use super::mechanism::{Arm, Mechanism};
use super::segments::Segments;
use crate::options::DiskOptions;
use crate::{Access, transfer_ns};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Extents of the cache on either side of the arm of which the nearest in time is chosen.
const EXTENTS_LOOKED_AT: usize = 16;

/// One access of a call.
#[derive(Clone, Copy, Debug)]
struct Command {
    call: u64,
    access: Access,
    since_ns: u64,
}

/// What the arm does.
enum Work {
    Command(Command),
    Cached(Extent),
}

/// A call of which commands are left.
struct Call {
    left: usize,
    /// When the last of the others ends, ns.
    ends_ns: u64,
}

pub(crate) struct QueuedDisk {
    mechanism: Mechanism,
    arm: Arm,
    /// What the arm does, and when it has done it.
    doing: Option<(u64, Work)>,
    /// Commands that wait for the arm or for room in the cache, in order of arrival.
    queue: Vec<Command>,
    /// Commands for which the queue has no place.
    outside: VecDeque<Command>,
    calls: BTreeMap<u64, Call>,
    /// When calls end that need the arm no more.
    ending: BTreeSet<(u64, u64)>,
    cache: Cache,
    /// Flushes, and the last write that each waits for.
    flushes: Vec<(u64, u64)>,
    segments: Segments,
    interface_free_ns: u64,
}

impl QueuedDisk {
    pub(crate) fn new(options: &DiskOptions, capacity_bytes: u64) -> QueuedDisk {
        QueuedDisk {
            mechanism: Mechanism::new(options, capacity_bytes),
            arm: Arm::REST,
            doing: None,
            queue: Vec::new(),
            outside: VecDeque::new(),
            calls: BTreeMap::new(),
            ending: BTreeSet::new(),
            cache: Cache::default(),
            flushes: Vec::new(),
            segments: Segments::new(options.segments.saturating_sub(1)),
            interface_free_ns: 0,
        }
    }

    /// See [`crate::Device::submit`].
    pub(crate) fn submit(&mut self, now_ns: u64, call: u64, accesses: &[Access]) {
        self.work_until(now_ns);
        let left = accesses.len();
        if left == 0 {
            self.ending.insert((now_ns + self.command_ns(), call));
            return;
        }
        self.calls.insert(call, Call { left, ends_ns: 0 });
        for access in accesses {
            self.outside.push_back(Command {
                call,
                access: self.mechanism.on_disk(access),
                since_ns: now_ns,
            });
        }
        self.go_on(now_ns);
    }

    /// See [`crate::Device::flush`].
    pub(crate) fn flush(&mut self, now_ns: u64, call: u64) {
        self.work_until(now_ns);
        self.flushes.push((call, self.cache.last()));
        self.go_on(now_ns);
    }

    /// See [`crate::Device::next_ns`].
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let ending = self.ending.first().map(|(at, _)| *at);
        let doing = self.doing.as_ref().map(|(at, _)| *at);
        [ending, doing].into_iter().flatten().min()
    }

    /// See [`crate::Device::advance`].
    pub(crate) fn advance(&mut self, now_ns: u64, ended: &mut Vec<(u64, u64)>) {
        self.work_until(now_ns);
        while let Some((at, call)) = self.ending.first().copied().filter(|(at, _)| *at <= now_ns) {
            self.ending.remove(&(at, call));
            ended.push((call, at));
        }
    }

    /// Does all that the arm ends by `now_ns`.
    fn work_until(&mut self, now_ns: u64) {
        while let Some((at, work)) = self.doing.take_if(|(at, _)| *at <= now_ns) {
            match work {
                Work::Command(command) => self.command_ends(command.call, at),
                Work::Cached(extent) => self.cache.written(extent),
            }
            self.go_on(at);
        }
    }

    /// Does what can be done at once, and gives the arm something to do.
    fn go_on(&mut self, now_ns: u64) {
        self.take_in(now_ns);
        self.end_flushes(now_ns);
        if self.doing.is_none() {
            self.doing = self.choose(now_ns);
        }
    }

    /// Fills the queue. Writes go into the cache as long as it has room, in order of arrival, and
    /// reads end that do not need the arm.
    fn take_in(&mut self, now_ns: u64) {
        loop {
            let mut at = 0;
            let mut room = true;
            while at < self.queue.len() {
                let command = self.queue[at];
                let ends = match command.access.write && self.caches(&command) {
                    true => {
                        room = room && self.has_room(&command);
                        room.then(|| self.write_to_cache(now_ns, &command))
                    }
                    false => self.read_from_buffer(now_ns, &command),
                };
                match ends {
                    Some(ends_ns) => {
                        self.queue.remove(at);
                        self.command_ends(command.call, ends_ns);
                    }
                    None => at += 1,
                }
            }
            let places = self.mechanism.geometry.options.queue as usize - self.queue.len();
            if places == 0 || self.outside.is_empty() {
                return;
            }
            let fits = places.min(self.outside.len());
            self.queue.extend(self.outside.drain(..fits));
        }
    }

    /// Whether a write goes through the cache: what is larger than it does not.
    fn caches(&self, command: &Command) -> bool {
        command.access.len <= self.mechanism.geometry.options.write_cache_bytes
    }

    fn has_room(&self, command: &Command) -> bool {
        let max = self.mechanism.geometry.options.write_cache_bytes;
        self.cache.bytes() + command.access.len <= max
    }

    fn write_to_cache(&mut self, now_ns: u64, command: &Command) -> u64 {
        let Access { address, len, .. } = command.access;
        self.segments.overwrite(address, address + len);
        self.cache.take(address, address + len);
        self.carry(now_ns, command)
    }

    /// When a read ends whose bytes are all in the buffer or the cache.
    fn read_from_buffer(&mut self, now_ns: u64, command: &Command) -> Option<u64> {
        let Access {
            address,
            len,
            write,
        } = command.access;
        let end = address + len;
        let stream = self.arm.stream;
        let found = !write
            && (self.cache.covers(address, end)
                || !stream.write
                    && self.doing.is_none()
                    && stream.start <= address
                    && end <= stream.end
                || self.segments.find(address, end));
        found.then(|| self.carry(now_ns, command))
    }

    /// When the interface has carried a command's bytes that wait for nothing else.
    fn carry(&mut self, now_ns: u64, command: &Command) -> u64 {
        let begins_ns = now_ns.max(command.since_ns + self.command_ns());
        let rate_mb_s = self.mechanism.geometry.options.interface_mb_s;
        let ends_ns =
            begins_ns.max(self.interface_free_ns) + transfer_ns(command.access.len, rate_mb_s);
        self.interface_free_ns = ends_ns;
        ends_ns
    }

    fn command_ends(&mut self, call: u64, ends_ns: u64) {
        let Some(its) = self.calls.get_mut(&call) else {
            return;
        };
        its.left -= 1;
        its.ends_ns = its.ends_ns.max(ends_ns);
        if its.left == 0 {
            let ends_ns = its.ends_ns;
            self.calls.remove(&call);
            self.ending.insert((ends_ns, call));
        }
    }

    /// Ends flushes of which everything is on the platters.
    fn end_flushes(&mut self, now_ns: u64) {
        if self.flushes.is_empty() {
            return;
        }
        let writing = match &self.doing {
            Some((_, Work::Cached(extent))) => extent.oldest,
            _ => u64::MAX,
        };
        let cache = &self.cache;
        let command_ns = self.mechanism.geometry.options.command_us * 1000;
        let ending = &mut self.ending;
        self.flushes.retain(|(call, last)| {
            let waits = writing <= *last || cache.has_of(*last);
            if !waits {
                ending.insert((now_ns + command_ns, *call));
            }
            waits
        });
    }

    /// What the arm does next: what it reaches first.
    fn choose(&mut self, now_ns: u64) -> Option<(u64, Work)> {
        let age_ns = self.mechanism.geometry.options.queue_age_us * 1000;
        let mut best: Option<(u64, Work)> = None;
        // Writes that wait for room in the cache do not wait for the arm.
        let waiting = |command: &&Command| !command.access.write || !self.caches(command);
        for command in self.queue.iter().filter(waiting) {
            let reached_ns = self.reached_ns(now_ns, &command.access);
            if best
                .as_ref()
                .is_none_or(|(best_ns, _)| reached_ns < *best_ns)
            {
                best = Some((reached_ns, Work::Command(*command)));
            }
            // The queue is in order of arrival: the first is the oldest.
            if now_ns.saturating_sub(command.since_ns) > age_ns {
                best = Some((reached_ns, Work::Command(*command)));
                return self.begin(now_ns, best);
            }
        }
        if best.is_none() || self.must_write() {
            let last = match self.flushes.iter().map(|(_, last)| *last).min() {
                Some(last) if self.cache.has_of(last) => last,
                _ => u64::MAX,
            };
            let at = self.arm.stream.end;
            for extent in self.cache.near(at, EXTENTS_LOOKED_AT, last) {
                let reached_ns = self.reached_ns(now_ns, &write_of(extent));
                if best
                    .as_ref()
                    .is_none_or(|(best_ns, _)| reached_ns < *best_ns)
                {
                    best = Some((reached_ns, Work::Cached(extent)));
                }
            }
        }
        self.begin(now_ns, best)
    }

    /// Whether the cache is to be written although reads wait.
    fn must_write(&self) -> bool {
        let max = self.mechanism.geometry.options.write_cache_bytes;
        let waits_for_room = |command: &Command| command.access.write && self.caches(command);
        !self.cache.is_clean()
            && (self.cache.bytes() > max / 4 * 3
                || !self.flushes.is_empty()
                || self.queue.iter().any(waits_for_room))
    }

    /// When the first byte of an access would pass the head.
    fn reached_ns(&self, now_ns: u64, access: &Access) -> u64 {
        let ends_ns = self.mechanism.make(&mut self.arm.clone(), now_ns, access);
        let geometry = &self.mechanism.geometry;
        ends_ns.saturating_sub(geometry.pass_ns(access.address, access.address + access.len))
    }

    /// Lets the arm begin what was chosen.
    fn begin(&mut self, now_ns: u64, chosen: Option<(u64, Work)>) -> Option<(u64, Work)> {
        let (begins_ns, access, work) = match chosen?.1 {
            Work::Command(command) => {
                let same = |its: &Command| its.call == command.call && its.access == command.access;
                let at = self.queue.iter().position(same)?;
                self.queue.remove(at);
                let begins_ns = now_ns.max(command.since_ns + self.command_ns());
                (begins_ns, command.access, Work::Command(command))
            }
            Work::Cached(extent) => {
                let extent = self.cache.begin(extent);
                (now_ns, write_of(extent), Work::Cached(extent))
            }
        };
        let before = self.arm.stream;
        let read_to = self.mechanism.read_ahead(&self.arm, begins_ns);
        let ends_ns = self.mechanism.make(&mut self.arm, begins_ns, &access);
        let after = self.arm.stream;
        let goes_on = !after.write && after.start <= before.end && before.end <= after.end;
        if !before.write && !goes_on {
            self.segments.keep(before.start, read_to);
        }
        if access.write {
            self.segments
                .overwrite(access.address, access.address + access.len);
        }
        Some((ends_ns, work))
    }

    fn command_ns(&self) -> u64 {
        self.mechanism.geometry.options.command_us * 1000
    }
}

/// The access that writes an extent.
fn write_of(extent: Extent) -> Access {
    Access {
        address: extent.start,
        len: extent.end - extent.start,
        write: true,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Device, DeviceOptions};
    use std::collections::VecDeque;
    use std::vec::Vec;

    fn options() -> DeviceOptions {
        DeviceOptions::preset("hdd-ncq").unwrap()
    }

    fn disk(options: &DeviceOptions) -> Device {
        Device::new(options).unwrap()
    }

    /// A fixed sequence of numbers that look random.
    fn random(i: u64) -> u64 {
        crate::address::mix(i + 1)
    }

    fn read(address: u64, len: u64) -> Access {
        Access {
            address,
            len,
            write: false,
        }
    }

    fn write(address: u64, len: u64) -> Access {
        Access {
            address,
            len,
            write: true,
        }
    }

    /// Times of `count` calls of one access each, `depth` of them running at any time, and when the
    /// last one ends, in ns.
    fn times(
        device: &mut Device,
        count: u64,
        depth: u64,
        access: impl Fn(u64) -> Access,
    ) -> (Vec<u64>, u64) {
        let (mut times, mut ended, mut now_ns) = (Vec::new(), Vec::new(), 0);
        let mut begun = VecDeque::new();
        for call in 0..depth.min(count) {
            begun.push_back(now_ns);
            assert_eq!(device.submit(now_ns, call, &[access(call)]), None);
        }
        while (times.len() as u64) < count {
            now_ns = device.next_ns().expect("calls are left");
            device.advance(now_ns, &mut ended);
            for (call, at) in ended.drain(..) {
                assert_eq!(at, now_ns);
                times.push(at - begun[call as usize]);
                let next = begun.len() as u64;
                if next < count {
                    begun.push_back(now_ns);
                    device.submit(now_ns, next, &[access(next)]);
                }
            }
        }
        (times, now_ns)
    }

    #[test]
    fn random_reads_gain_by_depth_and_none_waits_for_ever() {
        let rate = |depth| {
            let (times, end_ns) = times(&mut disk(&options()), 4000, depth, |i| {
                read(random(i) % 3_900_000_000_000 / 4096 * 4096, 4096)
            });
            let longest_ms = times.iter().max().unwrap() / 1_000_000;
            // The age, and as many as can have got as old.
            assert!(longest_ms < 1000 + 13 * depth + 30, "{depth}: {longest_ms}");
            4000 * 1_000_000_000 / end_ns
        };
        let rates: Vec<u64> = [1, 4, 8, 32].map(rate).into();
        assert!((72..84).contains(&rates[0]), "{rates:?}");
        assert!(
            rates.windows(2).all(|pair| pair[0] * 110 / 100 < pair[1]),
            "{rates:?}"
        );
        assert!((150..300).contains(&rates[3]), "{rates:?}");
        // More than the queue has waits in order of arrival.
        let deeper = rate(64);
        assert!(
            deeper.abs_diff(rates[3]) * 20 < rates[3],
            "{rates:?} {deeper}"
        );
    }

    #[test]
    fn streams_run_at_the_rate_of_the_platters() {
        let mb_s = |device: &mut Device, access: &dyn Fn(u64) -> Access, depth| {
            let (_, end_ns) = times(device, 1024, depth, access);
            1024 * 64 * 1024 * 1000 / end_ns
        };
        for depth in [1, 8] {
            let rate = mb_s(
                &mut disk(&options()),
                &|i| read((1 << 35) + i * 65_536, 65_536),
                depth,
            );
            assert!((160..=190).contains(&rate), "{depth}: {rate}");
        }
        // Writes of 64 MiB that the cache takes come at the rate of the interface; behind them the
        // platters decide.
        let mut device = disk(&options());
        let rate = mb_s(&mut device, &|i| write((1 << 35) + i * 65_536, 65_536), 1);
        assert!(rate > 300, "{rate}");
        let mut small = options();
        small.set("write_cache_bytes", 2 << 20).unwrap();
        let rate = mb_s(
            &mut disk(&small),
            &|i| write((1 << 35) + i * 65_536, 65_536),
            4,
        );
        assert!((150..=195).contains(&rate), "{rate}");
    }

    #[test]
    fn the_buffer_keeps_several_streams() {
        let alternating = |segments| {
            let mut options = options();
            options.set("segments", segments).unwrap();
            options.set("queue", 32).unwrap();
            // Eight streams in turns of 64 KiB, with pauses in which the head reads on.
            let (mut device, mut now_ns) = (disk(&options), 0);
            for i in 0..512 {
                let at = (i % 8) * (100 << 30) + i / 8 * 65_536;
                now_ns = device.serve(now_ns, &[read(at, 65_536)]) + 5_000_000;
            }
            now_ns - 512 * 5_000_000
        };
        let (one, many) = (alternating(1), alternating(16));
        assert!(many * 3 < one, "{many} {one}");
    }

    #[test]
    fn a_flush_waits_for_what_the_cache_has_and_for_no_later_write() {
        let mut device = disk(&options());
        let mut ended = Vec::new();
        let mut now_ns = 0;
        for i in 0..100 {
            let begun_ns = now_ns;
            now_ns = device.serve(now_ns, &[write(random(i) % (1 << 41), 4096)]);
            assert!(now_ns - begun_ns < 200_000, "{i}");
        }
        assert_eq!(device.flush(now_ns, 7), None);
        // Later writes keep the cache from ever being empty.
        let mut later = 1000;
        let flushed_ns = loop {
            let next_ns = device.next_ns().expect("the flush is left");
            device.advance(next_ns, &mut ended);
            if let Some((_, at)) = ended.iter().find(|(call, _)| *call == 7) {
                break *at - now_ns;
            }
            if later < 1400 {
                device.submit(next_ns, later, &[write(random(later) % (1 << 41), 4096)]);
                later += 1;
            }
        };
        // 100 positionings of which the nearest of 32 is taken.
        assert!(
            (300_000_000..1_000_000_000).contains(&flushed_ns),
            "{flushed_ns}"
        );
        let mut clean = disk(&options());
        clean.flush(5, 1);
        clean.advance(1_000_000, &mut ended);
        assert_eq!(ended.last(), Some(&(1, 50_005)));
    }

    #[test]
    fn reads_pass_the_cache_and_see_what_it_has() {
        let mut device = disk(&options());
        let mut ended = Vec::new();
        for i in 0..1000 {
            device.submit(0, i, &[write(random(i) % (1 << 41), 4096)]);
        }
        device.advance(20_000_000, &mut ended);
        assert_eq!(ended.len(), 1000);
        // What the cache has is read from it, anything else after one write of the arm at most.
        let cached_ns =
            device.serve(20_000_000, &[read(random(990) % (1 << 41), 4096)]) - 20_000_000;
        assert!(cached_ns < 100_000, "{cached_ns}");
        let taken_ns = device.serve(30_000_000, &[read(1 << 33, 4096)]) - 30_000_000;
        assert!(taken_ns < 60_000_000, "{taken_ns}");
    }

    #[test]
    fn a_full_cache_makes_writes_wait() {
        let mut options = options();
        options.set("write_cache_bytes", 1 << 20).unwrap();
        let (times, _) = times(&mut disk(&options), 1000, 1, |i| {
            write(random(i) % (1 << 41), 16_384)
        });
        assert!(times[..60].iter().all(|time| *time < 200_000));
        let late_ms = times[500..].iter().sum::<u64>() / 500_000_000;
        assert!((2..8).contains(&late_ms), "{late_ms}");
    }

    #[test]
    fn a_call_ends_with_its_last_extent() {
        let mut device = disk(&options());
        let extents: Vec<Access> = (0..20).map(|i| read(random(i) % (1 << 41), 4096)).collect();
        let together_ns = device.serve(0, &extents);
        let mut one_by_one = disk(&options());
        let apart_ns = extents
            .iter()
            .fold(0, |now, one| one_by_one.serve(now, &[*one]));
        assert!(together_ns * 3 < apart_ns * 2, "{together_ns} {apart_ns}");
        assert!(device.serve(together_ns, &[]) > together_ns);
        // A write beyond the cache goes straight to the platters.
        let large_ns = device.serve(together_ns, &[write(0, 128 << 20)]) - together_ns;
        assert!(large_ns > 600_000_000, "{large_ns}");
    }
}
