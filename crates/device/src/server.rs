//! A storage server of a parallel file system: its threads take calls in order of arrival, and
//! serve them from a page cache or from its device.
//!
//! A read of bytes that are all in the cache takes no time of the device. A write ends when it is
//! in the cache, and waits where too much of what is there is not written back yet. What was
//! written goes to the device when that has nothing else to do, when writes wait for room, and
//! when somebody waits for its durability: in order of place from where the last went to, in runs.

mod pages;

use crate::{Access, Device};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use pages::Pages;

/// Bytes that are written back in one run at most, unless they came in one access.
const RUN_BYTES: u64 = 1 << 20;

/// How a server works, beside its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Calls that are served at once, at least 1. The others wait in order of arrival.
    pub threads: u32,
    /// Bytes of the page cache. 0: every call goes to the device.
    pub cache_bytes: u64,
    /// Of these, how many may be written and not yet at the device. 0: a write ends when it is at
    /// the device.
    pub dirty_bytes: u64,
}

/// What a call to the device is for.
enum Purpose {
    /// A call of a client; these bytes are in the cache afterwards.
    Call(u64, Vec<Access>),
    /// These bytes are written back.
    WriteBack(u64, u64),
    /// A client waits until all is durable.
    Flush(u64),
}

/// A server, with its device. Its user gives it calls and asks it as a [`Device`], but learns of
/// every end by [`advance`](Server::advance).
pub struct Server {
    options: ServerOptions,
    device: Device,
    pages: Pages,
    /// Calls without a thread.
    waiting: VecDeque<(u64, Vec<Access>)>,
    /// Writes that have a thread and wait for room in the cache.
    throttled: VecDeque<(u64, Vec<Access>)>,
    /// Calls that have a thread.
    serving: u32,
    /// Calls that wait until what was written before this stamp is at the device.
    flushes: Vec<(u64, u64)>,
    at_device: BTreeMap<u64, Purpose>,
    device_calls: u64,
    /// When calls to the device end, where that is known.
    ends: BTreeSet<(u64, u64)>,
    writes_back: bool,
    /// Where on the device the last run ended.
    swept_to: u64,
    /// Calls that have ended and were not told yet, each with its end.
    ended: Vec<(u64, u64)>,
    busy_ns: u64,
    busy_since: u64,
    /// Bytes that the device has read and written.
    moved_bytes: u64,
}

impl Server {
    /// A server at rest with an empty cache.
    pub fn new(options: ServerOptions, device: Device) -> Server {
        Server {
            options: ServerOptions {
                threads: options.threads.max(1),
                dirty_bytes: options.dirty_bytes.min(options.cache_bytes),
                ..options
            },
            device,
            pages: Pages::new(options.cache_bytes),
            waiting: VecDeque::new(),
            throttled: VecDeque::new(),
            serving: 0,
            flushes: Vec::new(),
            at_device: BTreeMap::new(),
            device_calls: 0,
            ends: BTreeSet::new(),
            writes_back: false,
            swept_to: 0,
            ended: Vec::new(),
            busy_ns: 0,
            busy_since: 0,
            moved_bytes: 0,
        }
    }

    /// Gives the server a call at `now_ns`, whose accesses are all reads or all writes.
    pub fn submit(&mut self, now_ns: u64, call: u64, accesses: &[Access]) {
        self.work(now_ns);
        self.waiting.push_back((call, accesses.to_vec()));
        self.settle(now_ns);
    }

    /// Asks the server to make durable what the calls wrote that have ended.
    pub fn flush(&mut self, now_ns: u64, call: u64) {
        self.work(now_ns);
        self.flushes.push((call, self.pages.stamp()));
        self.settle(now_ns);
    }

    /// When [`advance`](Server::advance) must be called at the latest.
    pub fn next_ns(&self) -> Option<u64> {
        let told = self.ended.first().map(|(_, end_ns)| *end_ns);
        told.into_iter().chain(self.device_next_ns()).min()
    }

    /// Lets the server work until `now_ns`. Appends the calls that have ended, each with its end.
    pub fn advance(&mut self, now_ns: u64, ended: &mut Vec<(u64, u64)>) {
        self.work(now_ns);
        ended.append(&mut self.ended);
    }

    /// For how long the device had something to do until `now_ns`.
    pub fn busy_ns(&self, now_ns: u64) -> u64 {
        match self.at_device.is_empty() {
            true => self.busy_ns,
            false => self.busy_ns + now_ns.saturating_sub(self.busy_since),
        }
    }

    /// Bytes that the device has read and written: not those of calls that the cache answered.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    fn device_next_ns(&self) -> Option<u64> {
        let known = self.ends.first().map(|(end_ns, _)| *end_ns);
        known.into_iter().chain(self.device.next_ns()).min()
    }

    fn work(&mut self, now_ns: u64) {
        let mut ended = Vec::new();
        while let Some(at_ns) = self.device_next_ns().filter(|at_ns| *at_ns <= now_ns) {
            self.device.advance(at_ns, &mut ended);
            while let Some(&(end_ns, number)) = self.ends.first()
                && end_ns <= at_ns
            {
                self.ends.pop_first();
                ended.push((number, end_ns));
            }
            for (number, _) in ended.drain(..) {
                self.device_ends(at_ns, number);
            }
            self.settle(at_ns);
        }
    }

    /// Begins all that can begin.
    fn settle(&mut self, now_ns: u64) {
        while let Some((call, accesses)) = self.throttled.front()
            && self.has_room(accesses)
        {
            let call = *call;
            if let Some((_, accesses)) = self.throttled.pop_front() {
                self.absorb(now_ns, call, &accesses);
            }
        }
        while self.serving < self.options.threads
            && let Some((call, accesses)) = self.waiting.pop_front()
        {
            self.serving += 1;
            self.begin(now_ns, call, accesses);
        }
        let oldest = self.pages.oldest_dirty();
        let flushes = core::mem::take(&mut self.flushes);
        for (call, stamp) in flushes {
            match oldest.is_none_or(|oldest| oldest > stamp) {
                true => {
                    self.device_calls += 1;
                    let end_ns = self.device.flush(now_ns, self.device_calls);
                    self.asked(now_ns, end_ns, Purpose::Flush(call));
                }
                false => self.flushes.push((call, stamp)),
            }
        }
        let idle = self.at_device.is_empty();
        if (idle || !self.throttled.is_empty() || !self.flushes.is_empty()) && !self.writes_back {
            self.write_back(now_ns);
        }
    }

    fn begin(&mut self, now_ns: u64, call: u64, accesses: Vec<Access>) {
        let writes = accesses.first().is_some_and(|access| access.write);
        if writes && self.options.dirty_bytes > 0 {
            match self.throttled.is_empty() && self.has_room(&accesses) {
                true => self.absorb(now_ns, call, &accesses),
                false => self.throttled.push_back((call, accesses)),
            }
            return;
        }
        let mut asked = Vec::new();
        match writes {
            true => asked.extend_from_slice(&accesses),
            false => accesses
                .iter()
                .for_each(|access| self.pages.read(access, &mut asked)),
        }
        if asked.iter().all(|access| access.len == 0) {
            return self.ends(now_ns, call);
        }
        self.ask_device(now_ns, &asked, Purpose::Call(call, accesses));
    }

    /// Whether the cache takes a write. One that is larger than all it may take waits until
    /// nothing else is there.
    fn has_room(&self, accesses: &[Access]) -> bool {
        let bytes: u64 = accesses.iter().map(|access| access.len).sum();
        let dirty = self.pages.dirty_bytes();
        dirty == 0 || dirty.saturating_add(bytes) <= self.options.dirty_bytes
    }

    /// Takes a write into the cache.
    fn absorb(&mut self, now_ns: u64, call: u64, accesses: &[Access]) {
        accesses.iter().for_each(|access| self.pages.write(access));
        self.ends(now_ns, call);
    }

    /// A call that has a thread ends.
    fn ends(&mut self, now_ns: u64, call: u64) {
        self.serving -= 1;
        self.ended.push((call, now_ns));
    }

    fn write_back(&mut self, now_ns: u64) {
        let Some((start, end)) = self.pages.take_run(self.swept_to, RUN_BYTES) else {
            return;
        };
        self.writes_back = true;
        self.swept_to = end;
        let run = Access {
            address: start,
            len: end - start,
            write: true,
        };
        self.ask_device(now_ns, &[run], Purpose::WriteBack(start, end));
    }

    fn ask_device(&mut self, now_ns: u64, accesses: &[Access], purpose: Purpose) {
        self.device_calls += 1;
        let end_ns = self.device.submit(now_ns, self.device_calls, accesses);
        self.asked(now_ns, end_ns, purpose);
    }

    fn asked(&mut self, now_ns: u64, end_ns: Option<u64>, purpose: Purpose) {
        if self.at_device.is_empty() {
            self.busy_since = now_ns;
        }
        self.at_device.insert(self.device_calls, purpose);
        self.ends
            .extend(end_ns.map(|end_ns| (end_ns.max(now_ns), self.device_calls)));
    }

    fn device_ends(&mut self, now_ns: u64, number: u64) {
        let purpose = self.at_device.remove(&number);
        if self.at_device.is_empty() {
            self.busy_ns += now_ns.saturating_sub(self.busy_since);
        }
        match purpose.expect("a call to the device ends once") {
            Purpose::Call(call, accesses) => {
                self.moved_bytes += accesses.iter().map(|access| access.len).sum::<u64>();
                accesses.iter().for_each(|access| self.pages.keep(access));
                self.ends(now_ns, call);
            }
            Purpose::WriteBack(start, end) => {
                self.moved_bytes += end - start;
                self.pages.is_written(start, end);
                self.writes_back = false;
            }
            Purpose::Flush(call) => self.ended.push((call, now_ns)),
        }
    }
}

#[cfg(test)]
mod tests;
