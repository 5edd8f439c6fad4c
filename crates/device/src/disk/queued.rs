//! A disk that has a queue of commands and a cache for writes, as disks with native command queuing
//! do.
//!
//! Of the commands in its queue the arm serves the one that it reaches first, seek and rotation
//! together; the oldest first once it has waited for too long. A read whose bytes are in the buffer
//! or in the write cache does not need the arm. A write has ended when the cache has it; the arm
//! writes what the cache has when no read waits, and when the cache is nearly full. A write that
//! finds no room in the cache waits for it. While a flush waits, the arm does nothing but write
//! what the flush waits for: so it is with ATA's command, which is not queued.
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
            let ends_ns = now_ns.saturating_add(self.command_ns());
            self.ending.insert((ends_ns, call));
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
        let begins_ns = now_ns.max(self.taken_ns(command));
        let rate_mb_s = self.mechanism.geometry.options.interface_mb_s;
        let carry_ns = transfer_ns(command.access.len, rate_mb_s);
        let ends_ns = begins_ns
            .max(self.interface_free_ns)
            .saturating_add(carry_ns);
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
                ending.insert((now_ns.saturating_add(command_ns), *call));
            }
            waits
        });
    }

    /// What the arm does next: what it reaches first.
    fn choose(&mut self, now_ns: u64) -> Option<(u64, Work)> {
        if let Some(last) = self.flushes.iter().map(|(_, last)| *last).min() {
            let first = self.nearest(now_ns, last, None);
            if first.is_some() {
                return self.begin(now_ns, first);
            }
        }
        let age_ns = self.mechanism.geometry.options.queue_age_us * 1000;
        let is_old = |command: &Command| now_ns.saturating_sub(command.since_ns) > age_ns;
        let mut best: Option<(u64, Work)> = None;
        // The queue is in order of arrival.
        for command in &self.queue {
            if self.waits_for_room(command) {
                if is_old(command) {
                    best = self.nearest(now_ns, u64::MAX, None);
                    return self.begin(now_ns, best);
                }
                continue;
            }
            let reached_ns = self.reached_ns(now_ns, &command.access);
            if is_old(command) {
                best = Some((reached_ns, Work::Command(*command)));
                return self.begin(now_ns, best);
            }
            if best
                .as_ref()
                .is_none_or(|(best_ns, _)| reached_ns < *best_ns)
            {
                best = Some((reached_ns, Work::Command(*command)));
            }
        }
        if best.is_none() || self.must_write() {
            best = self.nearest(now_ns, u64::MAX, best);
        }
        self.begin(now_ns, best)
    }

    /// Of the cache's extents with a write up to number `last`, the one that the arm reaches first,
    /// if it is before `best`.
    fn nearest(
        &self,
        now_ns: u64,
        last: u64,
        mut best: Option<(u64, Work)>,
    ) -> Option<(u64, Work)> {
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
        best
    }

    /// Whether the cache is to be written although reads wait.
    fn must_write(&self) -> bool {
        let max = self.mechanism.geometry.options.write_cache_bytes;
        self.cache.bytes() > max / 4 * 3 || self.queue.iter().any(|it| self.waits_for_room(it))
    }

    /// Whether a command of the queue waits for room in the cache, and not for the arm.
    fn waits_for_room(&self, command: &Command) -> bool {
        command.access.write && self.caches(command)
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
                let begins_ns = now_ns.max(self.taken_ns(&command));
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

    /// When a command that has just come can begin.
    fn taken_ns(&self, command: &Command) -> u64 {
        command.since_ns.saturating_add(self.command_ns())
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
mod tests;
