//! Collects facts about data requests until the forwarder answers them, for hosts that record them
//! ([`crate::Config::record`]).

use super::Forwarder;
use super::receive::{Dispatch, Key, Pending};
use crate::host::{Output, Served};
use alloc::vec::Vec;
use tidegate_sched::{Direction, Time};
use tidegate_wire::{Op, Outcome, Reply, Status};

/// When an extent went to the back end and came back.
#[derive(Clone, Copy, Default)]
struct Times {
    dispatched: Option<Time>,
    finished: Option<Time>,
}

/// The facts about an outstanding request. When it is answered, another request uses its place and
/// memory.
#[derive(Default)]
pub(super) struct Noted {
    arrived: Time,
    /// The file of an append, because a job takes the append's operation away.
    appends_to: Option<u64>,
    /// Whether the reply repeats an earlier one.
    replay: bool,
    first: Times,
    rest: Vec<Times>,
}

impl Noted {
    fn times(&mut self, index: usize) -> &mut Times {
        match index {
            0 => &mut self.first,
            _ => &mut self.rest[index - 1],
        }
    }
}

impl Forwarder {
    /// A request has come.
    pub(super) fn note_arrival(&mut self, key: Key) {
        let place = key as usize;
        if self.noted.len() <= place {
            self.noted.resize_with(place + 1, Noted::default);
        }
        let noted = &mut self.noted[place];
        let mut rest = core::mem::take(&mut noted.rest);
        rest.clear();
        let op = self.requests[key].op();
        if let Some((_, extents)) = op.data() {
            rest.resize(extents.rest.len(), Times::default());
        }
        let appends_to = match op {
            Op::Append { handle } => Some(handle.inode),
            session_ops!() | path_ops!() | look_ops!() | name_ops!() | attribute_ops!() => None,
            Op::Fsync { .. } | Op::Fallocate { .. } | Op::CopyRange { .. } => None,
            open_ops!() | lock_ops!() | data_ops!() => None,
        };
        *noted = Noted {
            arrived: self.now,
            appends_to,
            replay: false,
            first: Times::default(),
            rest,
        };
    }

    /// An extent goes to the back end.
    pub(super) fn note_dispatch(&mut self, key: Key, index: usize) {
        self.noted[key as usize].times(index).dispatched = Some(self.now);
    }

    /// The back end is done with an extent.
    pub(super) fn note_finish(&mut self, key: Key, index: usize) {
        self.noted[key as usize].times(index).finished = Some(self.now);
    }

    /// Notes that the reply to a request will repeat an earlier one.
    pub(super) fn note_replay(&mut self, key: Key) {
        if self.config.record {
            self.noted[key as usize].replay = true;
        }
    }

    /// Reports a request that the forwarder has answered.
    pub(super) fn tell_served(&mut self, key: Key, pending: &Pending, reply: &Reply) {
        let noted = &self.noted[key as usize];
        let errno = match reply.result {
            _ if noted.replay => return,
            Ok(_) => 0,
            Err(Status::Errno(errno)) => errno,
            // The client comes again, here or elsewhere.
            Err(_) => return,
        };
        let hints = &pending.hints;
        let served = Served {
            client: pending.client,
            app: hints.app,
            operation: hints.operation,
            stamp_ns: hints.stamp_ns,
            shuffle: (hints.shuffle_us, hints.shuffle_max_us, hints.shuffle_rank),
            file: 0,
            direction: Direction::Write,
            append: false,
            listed: false,
            offset: 0,
            len: 0,
            done: 0,
            errno,
            arrived: noted.arrived,
            dispatched: noted.first.dispatched,
            finished: noted.first.finished,
        };
        if let Dispatch::Data(direction) = pending.dispatch {
            return self.tell_extents(
                key,
                pending,
                reply,
                Served {
                    direction,
                    ..served
                },
            );
        }
        if let Some(file) = noted.appends_to {
            let (offset, done) = match reply.result {
                Ok(Outcome::Appended { offset, len }) => (offset, len),
                _ => (0, 0),
            };
            self.outputs.push_back(Output::Served(Served {
                file,
                append: true,
                offset,
                len: pending.payload_len.into(),
                done,
                ..served
            }));
        }
    }

    /// Reports one fact for each extent. Bytes count up to the first extent that is short.
    fn tell_extents(&mut self, key: Key, pending: &Pending, reply: &Reply, served: Served) {
        let Some((handle, extents)) = pending.op().data() else {
            unreachable!("its dispatch says that it has extents");
        };
        let mut left = match &reply.result {
            Ok(Outcome::Written { len }) => *len,
            Ok(_) => reply.payload_len.into(),
            Err(_) => 0,
        };
        for (index, extent) in extents.iter().enumerate() {
            let done = left.min(extent.len);
            left -= done;
            let times = *self.noted[key as usize].times(index);
            self.outputs.push_back(Output::Served(Served {
                file: handle.inode,
                listed: index > 0,
                offset: extent.offset,
                len: extent.len,
                done,
                dispatched: times.dispatched,
                finished: times.finished,
                ..served
            }));
        }
    }
}
