//! Reads and writes: hands their extents to the scheduler, its batches to the host, and the results
//! of batches to their requests.

use super::receive::{Dispatch, Key, Pending};
use super::{Forwarder, IoPart, Running};
use crate::back_end_files::Access;
use crate::host::Job;
use crate::reply_table;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use tidegate_sched::{AppId, Direction, FileId, Input, Output, Request, RequestId, Time};
use tidegate_wire::{Caller, Handle, Lens, Op, Outcome, Status};

/// The scheduler's name for extent number `index` of an outstanding request.
pub(super) fn request_id(key: Key, index: usize) -> RequestId {
    RequestId(u64::from(key) << 16 | index as u64)
}

/// The outstanding request of which this is an extent.
pub(super) fn key_of(id: RequestId) -> Key {
    parts_of(id.0).0
}

fn parts_of(id: u64) -> (Key, usize) {
    ((id >> 16) as Key, (id & 0xffff) as usize)
}

/// An operation of a client.
type Transfer = (u64, u64);

/// Transfers in `serial` mode. The forwarder executes their chunks one at a time, the lowest
/// request id first.
///
/// The scheduler does not know a chunk that waits here. A chunk waits only for another one that has
/// arrived, has its slot, and is being executed. So no chunk waits for one that may never arrive,
/// and the device meanwhile serves other requests.
#[derive(Default)]
pub(super) struct SerialTransfers {
    /// For each transfer of which the forwarder is executing a chunk: the chunks that wait, by id.
    waiting: BTreeMap<Transfer, BTreeMap<u64, Key>>,
}

impl SerialTransfers {
    /// A chunk has come. False if it waits.
    fn enter(&mut self, transfer: Transfer, id: u64, key: Key) -> bool {
        match self.waiting.get_mut(&transfer) {
            Some(waiting) => {
                waiting.insert(id, key);
                false
            }
            None => {
                self.waiting.insert(transfer, BTreeMap::new());
                true
            }
        }
    }

    /// A chunk of the transfer is done. Returns the next one, if one waits.
    fn leave(&mut self, transfer: Transfer) -> Option<Key> {
        let next = self.waiting.get_mut(&transfer)?.pop_first();
        if next.is_none() {
            self.waiting.remove(&transfer);
        }
        next.map(|(_, key)| key)
    }

    /// Takes out a chunk that waits; false if it does not.
    pub(super) fn cancel(&mut self, pending: &Pending) -> bool {
        let waiting = self.waiting.get_mut(&transfer(pending));
        waiting.is_some_and(|waiting| waiting.remove(&pending.id).is_some())
    }
}

fn transfer(pending: &Pending) -> Transfer {
    (pending.client, pending.hints.operation)
}

impl Forwarder {
    /// Executes a data request, once its transfer lets it run.
    pub(super) fn begin_data(&mut self, key: Key) {
        let pending = &mut self.requests[key];
        let Some((_, extents)) = pending.op().data() else {
            unreachable!("its dispatch says that it has extents");
        };
        let extents_len = 1 + extents.rest.len();
        let busy = extents.iter().filter(|extent| extent.len > 0).count() as u32;
        if extents_len > 1 {
            let lens = alloc::vec![0; extents_len - 1];
            pending.done_rest = lens;
        }
        if busy == 0 {
            return self.data_done(key);
        }
        if !pending.serial_chunk || self.enter_transfer(key) {
            self.queue_extents(key, extents_len, busy);
        }
    }

    /// Whether the forwarder may execute a chunk now; otherwise the chunk waits for the one that
    /// runs.
    fn enter_transfer(&mut self, key: Key) -> bool {
        let pending = &mut self.requests[key];
        pending.chunk_runs = self
            .serial_transfers
            .enter(transfer(pending), pending.id, key);
        if !pending.chunk_runs {
            pending.wait.behind_chunk(self.now);
        }
        pending.chunk_runs
    }

    /// The chunk that ran was answered: the next one of its transfer runs.
    pub(super) fn end_chunk(&mut self, answered: &Pending) {
        if let Some(key) = self.serial_transfers.leave(transfer(answered)) {
            self.requests[key].chunk_runs = true;
            self.queue_data(key);
        }
    }

    /// Hands a data request's extents to the scheduler, or parks it until there is room.
    fn queue_data(&mut self, key: Key) {
        let (extents_len, busy) = self.extents_of(key);
        self.queue_extents(key, extents_len, busy);
    }

    fn queue_extents(&mut self, key: Key, extents_len: usize, busy: u32) {
        self.enter_queue(key, busy);
        if self.scheduler.queued() + busy > self.queued_max || !self.parked.is_empty() {
            return self.park(key);
        }
        self.schedule_data(key, extents_len, busy);
    }

    fn schedule_data(&mut self, key: Key, extents_len: usize, busy: u32) {
        self.requests[key].parts_left = busy;
        let mut first = true;
        for index in 0..extents_len {
            let (handle, extent) = self.requests[key].extent(index);
            if extent.len == 0 {
                continue;
            }
            let request = Request {
                id: request_id(key, index),
                file: FileId(handle.inode),
                direction: self.requests[key].direction(),
                offset: extent.offset,
                len: extent.len,
                mergeable: true,
                ..self.hinted(key)
            };
            // What others gave counts once, however many extents the request has.
            let request = match first {
                true => request,
                false => Request {
                    charged_elsewhere_ns: 0,
                    charged_here_ns: 0,
                    bytes_elsewhere: 0,
                    operations_elsewhere: 0,
                    away_ms: 0,
                    ..request
                },
            };
            first = false;
            self.arrived(request);
        }
    }

    /// Hands a whole-file operation to the scheduler.
    pub(super) fn begin_whole(&mut self, key: Key) {
        self.enter_queue(key, 1);
        if self.scheduler.queued() + 1 > self.queued_max || !self.parked.is_empty() {
            return self.park(key);
        }
        self.schedule_whole(key);
    }

    fn schedule_whole(&mut self, key: Key) {
        let handle = whole_file(self.requests[key].op()).expect("its dispatch says so");
        self.requests[key].parts_left = 1;
        let request = Request {
            id: request_id(key, 0),
            file: FileId(handle.inode),
            direction: Direction::Write,
            offset: 0,
            len: u64::MAX,
            mergeable: false,
            ..self.hinted(key)
        };
        self.arrived(request);
    }

    fn arrived(&mut self, request: Request) {
        self.tell_shares();
        let accepted = self.scheduler.handle(self.now, Input::Arrived(request));
        accepted.expect("there is room, and the id is that of an outstanding request");
    }

    /// The request as policies see it, with the client's hints.
    fn hinted(&self, key: Key) -> Request {
        let pending = &self.requests[key];
        let hints = &pending.hints;
        let offset = self.config.scheduler.wall_offset_ns;
        let deadline = (hints.deadline_ns != 0).then(|| hints.deadline_ns.saturating_sub(offset));
        Request {
            app: AppId(hints.app),
            stamp_ns: hints.stamp_ns,
            epoch_seen: pending.epoch,
            operation: hints.operation,
            operation_bytes: hints.operation_bytes,
            operation_bytes_max: hints.operation_bytes_max,
            deadline: deadline.map(Time),
            shuffle_us: hints.shuffle_us,
            shuffle_max_us: hints.shuffle_max_us,
            shuffle_rank: hints.shuffle_rank,
            charged_elsewhere_ns: hints.charged_elsewhere_ns,
            charged_here_ns: hints.charged_here_ns,
            bytes_elsewhere: hints.bytes_elsewhere,
            operations_elsewhere: hints.operations_elsewhere,
            away_ms: hints.away_ms,
            ..Request::default()
        }
    }

    /// How many extents a request has, and how many of them are not empty. A request that counts as
    /// a write of the whole file has none, and one.
    pub(super) fn extents_of(&self, key: Key) -> (usize, u32) {
        let Some((_, extents)) = self.requests[key].op().data() else {
            return (0, 1);
        };
        let filled = extents.iter().filter(|extent| extent.len > 0);
        (1 + extents.rest.len(), filled.count() as u32)
    }

    /// Lets a request wait until the scheduler has room.
    fn park(&mut self, key: Key) {
        self.parked.push(self.requests[key].user, key);
    }

    /// Hands parked requests to the scheduler, which has room again.
    pub(super) fn unpark(&mut self) {
        while let Some(key) = self.parked.front() {
            let (extents_len, busy) = self.extents_of(key);
            if self.scheduler.queued() + busy > self.queued_max {
                return;
            }
            self.parked.pop();
            self.leave_parked(key);
            match extents_len {
                0 => self.schedule_whole(key),
                _ => self.schedule_data(key, extents_len, busy),
            }
        }
    }

    /// Starts the next batch, if the scheduler has one.
    pub(super) fn dispatch(&mut self) {
        self.tell_shares();
        let mut batch = core::mem::take(&mut self.batch);
        match self.scheduler.poll(self.now, &mut batch) {
            Output::Dispatch => {
                self.waits.hold(self.now, false);
                self.scheduler_wakes = None;
                self.start_batch(&mut batch);
                self.unpark();
            }
            Output::Broadcast(report) => self
                .outputs
                .push_back(crate::host::Output::Broadcast(report)),
            Output::WaitUntil(until) => {
                self.scheduler_wakes = Some(until);
                self.waits.hold(self.now, true);
                self.begin_waits();
            }
            Output::Idle => {
                self.scheduler_wakes = None;
                self.waits.hold(self.now, false);
                self.begin_waits();
            }
        }
        self.batch = batch;
    }

    fn start_batch(&mut self, batch: &mut [Request]) {
        self.counters.batches += 1;
        let (first, _) = parts_of(batch[0].id.0);
        if self.requests[first].dispatch == Dispatch::WholeFile {
            assert!(batch.len() == 1, "a whole-file operation shares no batch");
            self.leave_queue(first);
            if self.config.record {
                self.note_dispatch(first, 0);
            }
            return self.begin_operation(first);
        }
        batch.sort_unstable_by_key(|request| (request.offset, request.id));
        let mut rest = &*batch;
        while !rest.is_empty() {
            let len = self.one_call(rest);
            let (call, others) = rest.split_at(len);
            self.start_io(call);
            rest = others;
        }
    }

    /// How many requests at the front can go to the back end in one call: they must be disjoint, of
    /// one file, and if they write, of one writer. Requests of lost seats go apart from the others,
    /// to be refused together.
    fn one_call(&self, requests: &[Request]) -> usize {
        let handle = |request: &Request| {
            let (key, index) = parts_of(request.id.0);
            self.requests[key].extent(index).0
        };
        let lost = |request: &Request| self.is_lost(parts_of(request.id.0).0);
        let next = requests.iter().zip(&requests[1..]);
        let fits = next.take_while(|(before, after)| {
            before.end() <= after.offset
                && handle(before) == handle(after)
                && lost(before) == lost(after)
                && (before.direction == Direction::Read || self.has_one_writer(before, after))
        });
        1 + fits.count()
    }

    /// Whether two requests write on behalf of the same user.
    fn has_one_writer(&self, one: &Request, other: &Request) -> bool {
        let [one, other] = [one, other].map(|it| &self.requests[parts_of(it.id.0).0]);
        let same = one.client == other.client && one.caller == other.caller;
        let acting = |it: &Pending| self.acting(it.client, it.caller.clone());
        same || acting(one) == acting(other)
    }

    /// On whose behalf the bytes of a request are written.
    fn writer(&mut self, key: Key) -> Option<Caller> {
        let pending = &mut self.requests[key];
        let caller = match pending.op().data() {
            // Its further extents may go in another call.
            Some((_, extents)) if !extents.rest.is_empty() => pending.caller.clone(),
            _ => pending.caller.take(),
        };
        let client = pending.client;
        self.acting(client, caller)
    }

    fn start_io(&mut self, requests: &[Request]) {
        let mut ids = self.spare_ids.pop().unwrap_or_default();
        let mut parts = Vec::with_capacity(requests.len());
        for request in requests {
            let (key, index) = parts_of(request.id.0);
            self.leave_queue(key);
            if self.config.record {
                self.note_dispatch(key, index);
            }
            let pending = &self.requests[key];
            ids.push(request.id.0);
            parts.push(IoPart {
                offset: request.offset,
                len: request.len as u32,
                slot: pending.slot.expect("a request with bytes has a slot"),
                slot_offset: pending.slot_offset(index),
                seat: pending.seat,
            });
        }
        let (key, index) = parts_of(requests[0].id.0);
        let (handle, _) = self.requests[key].extent(index);
        let direction = requests[0].direction;
        let writer = match direction {
            Direction::Read => None,
            Direction::Write => self.writer(key),
        };
        self.counters.calls[direction as usize] += 1;
        let job = Job::Io {
            handle,
            direction,
            parts,
            writer,
        };
        self.start(Running::Io(ids), job);
    }

    /// A batch is done: hands each part's result to its request, with its share of the device time.
    pub(super) fn io_finished(
        &mut self,
        mut ids: Vec<u64>,
        parts: Vec<Result<u32, Access>>,
        device_ns: u64,
    ) {
        assert!(ids.len() == parts.len(), "one result for each part");
        // With several calls at a time the device's time is shared out: a call has what passed
        // since the one before it was done, not what that one had.
        let device_ns = device_ns.min(self.now.since(self.io_finished_at));
        self.io_finished_at = self.now;
        let len = |forwarder: &Forwarder, id: u64| {
            let (key, index) = parts_of(id);
            forwarder.requests[key].extent(index).1.len
        };
        let bytes: u64 = ids.iter().map(|id| len(self, *id)).sum();
        self.counters
            .capacity
            .finished(self.now, bytes, ids.len() as u64, device_ns);
        let total = if ids.len() == 1 { 0 } else { bytes };
        for (id, result) in ids.iter().copied().zip(parts) {
            let share = match total {
                0 => device_ns.into(),
                _ => u128::from(device_ns) * u128::from(len(self, id)) / u128::from(total),
            };
            let (key, index) = parts_of(id);
            if self.config.record {
                self.note_finish(key, index);
            }
            let (_, extent) = self.requests[key].extent(index);
            let pending = &mut self.requests[key];
            pending.charged_ns += share as u64;
            match result {
                Ok(done) => {
                    let done = done.min(extent.len as u32);
                    match index {
                        0 => pending.done_first = done,
                        _ => pending.done_rest[index - 1] = done,
                    }
                }
                Err(Access::Errno(errno)) => {
                    pending.failure.get_or_insert(Status::Errno(errno.0));
                }
                Err(access) => pending.failure = Some(access.into()),
            }
            pending.parts_left -= 1;
            let left = pending.parts_left;
            let place = pending.wait.place;
            self.part_finished(id, place);
            if left == 0 {
                self.data_done(key);
            }
        }
        ids.clear();
        self.spare_ids.push(ids);
        self.unpark();
    }

    fn part_finished(&mut self, id: u64, place: u8) {
        let finished = self
            .scheduler
            .handle(self.now, Input::Finished(RequestId(id)));
        finished.expect("it was dispatched and not finished before");
        self.part_done(parts_of(id).0, place);
    }

    /// A whole-file operation is done: the scheduler lets others at the file.
    pub(super) fn whole_finished(&mut self, key: Key) {
        if self.config.record {
            self.note_finish(key, 0);
        }
        let place = self.requests[key].wait.place;
        self.part_finished(request_id(key, 0).0, place);
        self.unpark();
    }

    /// All parts of a data request are done.
    fn data_done(&mut self, key: Key) {
        if self.requests[key].direction() == Direction::Write {
            self.note_written(key);
        }
        let result = match self.requests[key].failure {
            // As write(2): what was written before an error counts, the next write tells the error.
            Some(Status::Errno(errno)) => {
                let done = self.data_outcome(key);
                let written = matches!(done, Outcome::Written { len: 1.. });
                written.then_some(done).ok_or(Status::Errno(errno))
            }
            Some(status) => Err(status),
            None => Ok(self.data_outcome(key)),
        };
        let pending = &self.requests[key];
        if let (Some(reply_slot), Some(number)) = (pending.reply_slot, pending.reply_slot_number)
            && !matches!(result, Err(Status::UnknownHandle | Status::NotMySeat))
            && !self.is_lost(key)
        {
            let table = self.seats[pending.seat].table.as_deref();
            let table = table.expect("a held seat has a table");
            reply_table::record_here(table, number, reply_slot.sequence, &result);
        }
        self.answer(key, result);
    }

    /// The outcome of a data request. Its bytes count up to the first extent that is short. Bytes
    /// of later extents lie past the end of the file, or were written since, and would be in the
    /// wrong place of the reply's payload.
    fn data_outcome(&mut self, key: Key) -> Outcome {
        let pending = &mut self.requests[key];
        let mut rest = core::mem::take(&mut pending.done_rest);
        let first = pending.done_first;
        let mut ended = u64::from(first) < pending.extent(0).1.len;
        let mut sum = u64::from(first);
        for (index, done) in rest.iter_mut().enumerate() {
            if ended {
                *done = 0;
            }
            ended |= u64::from(*done) < pending.extent(index + 1).1.len;
            sum += u64::from(*done);
        }
        match pending.direction() {
            Direction::Write => Outcome::Written { len: sum },
            Direction::Read => Outcome::Data {
                lens: Lens { first, rest },
            },
        }
    }
}

/// The file that a whole-file operation writes, as the scheduler counts it.
fn whole_file(op: &Op) -> Option<Handle> {
    let [file, _] = op.files();
    file.filter(|_| Dispatch::of(op) == Dispatch::WholeFile)
        .map(|(handle, _)| handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_number_that_waits_is_next_and_transfers_do_not_meet() {
        let mut transfers = SerialTransfers::default();
        let (one, other) = ((7, 1), (7, 2));
        assert!(transfers.enter(one, 10, 0));
        assert!(!transfers.enter(one, 13, 3));
        assert!(!transfers.enter(one, 12, 2));
        assert!(transfers.enter(other, 20, 4));
        assert_eq!(transfers.leave(one), Some(2));
        assert!(!transfers.enter(one, 11, 1), "another one is under way");
        assert_eq!(transfers.leave(one), Some(1));
        assert_eq!(transfers.leave(one), Some(3));
        assert_eq!(transfers.leave(one), None);
        assert_eq!(transfers.leave(other), None);
        assert!(transfers.waiting.is_empty());
        assert!(transfers.enter(one, 14, 5));
    }
}
