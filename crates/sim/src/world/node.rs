//! A compute node: one client core for all processes on it, as one mount serves them.

use super::fabric::LinkId;
use super::program::Access;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use tidegate_client::Collective;
use tidegate_client::core::{Call, CallId, Core, CoreOptions, Input, Output, Served};
use tidegate_client::{Bytes, Errno, Payload};
use tidegate_sched::Direction;
use tidegate_wire::{Handle, Op, Pipeline, Pipelining};

/// Most bytes of one call.
pub const CALL_BYTES_MAX: u64 = 64 << 20;

/// The bytes of writes. Nobody reads them, so the kernel never gives them memory.
static ZEROS: LazyLock<&[u8]> = LazyLock::new(|| vec![0; CALL_BYTES_MAX as usize].leak());

/// A call without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// None: a session is opened before the run.
    pub(super) process: Option<u32>,
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// Shuffle that follows the answer before the access has ended, ns.
    pub(super) shuffle_ns: u64,
    /// An fsync, which is no access.
    pub(super) is_sync: bool,
}

impl Asked {
    /// A read or write of a process.
    pub(super) fn access(now: u64, process: u32, access: &Access) -> Asked {
        let shuffle = access.part.filter(|part| part.with_shuffle);
        Asked {
            process: Some(process),
            at: now,
            bytes: access.extents.bytes(),
            shuffle_ns: shuffle.map_or(0, |part| part.shuffle_ns),
            is_sync: false,
        }
    }

    /// An fsync of a process.
    pub(super) fn sync(now: u64, process: u32) -> Asked {
        Asked {
            process: Some(process),
            at: now,
            bytes: 0,
            shuffle_ns: 0,
            is_sync: true,
        }
    }
}

/// A call that has ended.
pub(super) struct Answered {
    pub(super) asked: Asked,
    pub(super) errno: Option<Errno>,
    pub(super) served: Vec<Served>,
}

/// A call without caller and application.
fn call(op: Op) -> Call {
    Call {
        op,
        caller: None,
        app: 0,
        payload: Payload::new(),
        deadline_ns: None,
        forwarder: 0,
        operation: None,
        collective: None,
        caches: false,
        open: None,
        range: None,
    }
}

/// The handle of a file: files are told apart by their number, and none was made twice.
pub(super) fn handle_of(file: u64) -> Handle {
    Handle {
        inode: file,
        birth: 1,
    }
}

/// One node.
pub(super) struct Node {
    core: Core,
    /// The connection to each forwarder.
    pub(super) links: Vec<Option<LinkId>>,
    /// When the world pumps it again if nothing happens before, in ns.
    pub(super) wakes_at: u64,
    calls: BTreeMap<u64, Asked>,
    call_ids: u64,
    notes_served: bool,
    /// The wall clock at virtual time 0, ns since 1970.
    wall_ns: u64,
}

impl Node {
    pub(super) fn new(
        number: usize,
        forwarders: usize,
        payload_max: u32,
        merge_blocks: bool,
        wall_ns: u64,
    ) -> Node {
        let options = CoreOptions {
            client: number as u64 + 1,
            uid: 0,
            gid: 0,
            name: format!("node-{number}").into_bytes().into(),
            forwarders,
            export: None,
            asks: false,
            borrows: false,
            payload_max,
            connections: 1,
            // A request has what the scenario's largest payload allows, as in the papers.
            pipeline: Pipeline::new(Pipelining::Parallel, payload_max),
            merge_blocks,
            names_max: 1,
        };
        Node {
            core: Core::new(options),
            links: vec![None; forwarders],
            wakes_at: u64::MAX,
            calls: BTreeMap::new(),
            call_ids: 0,
            notes_served: false,
            wall_ns,
        }
    }

    pub(super) fn note_served(&mut self) {
        self.notes_served = true;
        self.core.note_served();
    }

    /// Makes a read or write for a process.
    pub(super) fn access(
        &mut self,
        now: u64,
        (process, app): (u32, u64),
        access: Access,
        collective: Option<Collective>,
    ) {
        let bytes = access.extents.bytes();
        let asked = Asked::access(now, process, &access);
        let handle = handle_of(access.file);
        let (extents, direction) = (access.extents, access.direction);
        let (op, payload) = match direction {
            Direction::Read => (Op::Read { handle, extents }, Bytes::new()),
            Direction::Write => {
                let payload = Bytes::from_static(&ZEROS[..bytes as usize]);
                (Op::Write { handle, extents }, payload)
            }
        };
        let call = Call {
            app,
            payload: payload.into(),
            collective,
            ..call(op)
        };
        self.ask(now, asked, call);
    }

    /// Makes an fsync for a process.
    pub(super) fn sync(&mut self, now: u64, (process, app): (u32, u64), file: u64) {
        let asked = Asked::sync(now, process);
        let op = Op::Fsync {
            handle: handle_of(file),
            data_only: false,
        };
        self.ask(now, asked, Call { app, ..call(op) });
    }

    /// Notes a call that goes past the core.
    pub(super) fn ask_past(&mut self, asked: Asked) -> CallId {
        self.call_ids += 1;
        self.calls.insert(self.call_ids, asked);
        CallId(self.call_ids)
    }

    /// The wall clock of this node, ns since 1970.
    pub(super) fn wall_ns(&self, now: u64) -> u64 {
        self.wall_ns + now
    }

    /// Opens a session before the run.
    pub(super) fn open_session(&mut self, now: u64, forwarder: usize) {
        let asked = Asked {
            process: None,
            at: now,
            bytes: 0,
            shuffle_ns: 0,
            is_sync: false,
        };
        let call = Call {
            forwarder,
            ..call(Op::Status)
        };
        self.ask(now, asked, call);
    }

    fn ask(&mut self, now: u64, asked: Asked, call: Call) {
        self.call_ids += 1;
        self.calls.insert(self.call_ids, asked);
        let id = CallId(self.call_ids);
        self.tell(now, Input::Call { id, call });
    }

    pub(super) fn tell(&mut self, now: u64, input: Input) {
        self.core.handle(now, self.wall_ns + now, input);
    }

    pub(super) fn poll(&mut self, now: u64) -> Option<Output> {
        self.core.poll(now)
    }

    pub(super) fn wake_at(&self) -> Option<u64> {
        self.core.wake_at()
    }

    /// A call has ended.
    pub(super) fn done(&mut self, id: CallId, errno: Option<Errno>) -> Answered {
        let asked = self.calls.remove(&id.0).expect("a call ends once");
        let served = match self.notes_served {
            true => self.core.take_served(id),
            false => Vec::new(),
        };
        Answered {
            asked,
            errno,
            served,
        }
    }

    /// A read's payload of this number of bytes.
    pub(super) fn payload(bytes: u32) -> Bytes {
        Bytes::from_static(&ZEROS[..bytes as usize])
    }
}
