//! Random messages within the protocol's bounds, from a seed.

use super::*;
use crate::message::*;
use std::boxed::Box;

/// SplitMix64.
pub(super) struct Random(u64);

/// A request without arguments.
pub(super) fn ping(id: u64) -> Request {
    Request {
        id,
        seat: 0,
        reply_slot: None,
        generation: 0,
        epoch: 0,
        replay: false,
        caller: None,
        hints: None,
        op: Op::Ping,
        payload_len: 0,
    }
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }

    fn some<T>(&mut self, value: impl FnOnce(&mut Random) -> T) -> Option<T> {
        self.yes().then(|| value(self))
    }

    fn u16(&mut self) -> u16 {
        self.next() as u16
    }

    fn u32(&mut self) -> u32 {
        self.next() as u32
    }

    fn bytes(&mut self, max: u64) -> Box<[u8]> {
        let len = self.below(max + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn name(&mut self) -> Name {
        let len = match self.below(8) {
            0 => 255,
            _ => 1 + self.below(12),
        };
        (0..len).map(|_| b'a' + self.below(26) as u8).collect()
    }

    fn path(&mut self) -> Box<[u8]> {
        let names: Vec<Name> = (0..self.below(5)).map(|_| self.name()).collect();
        names.join(&b'/').into()
    }

    fn handle(&mut self) -> Handle {
        Handle {
            inode: self.next(),
            birth: self.next(),
        }
    }

    fn attr(&mut self) -> Attr {
        Attr {
            handle: self.handle(),
            size: self.next(),
            blocks: self.next(),
            atime_ns: self.next() as i64,
            mtime_ns: self.next() as i64,
            ctime_ns: self.next() as i64,
            mode: self.u32(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            rdev: self.u32(),
            block_size: self.u32(),
        }
    }

    fn lock(&mut self) -> Lock {
        let (a, b) = (self.next(), self.next());
        Lock {
            family: self.family(),
            kind: match self.below(3) {
                0 => LockKind::Shared,
                1 => LockKind::Exclusive,
                _ => LockKind::None,
            },
            owner: self.next(),
            pid: self.u32(),
            start: a.min(b),
            end: a.max(b),
        }
    }

    fn family(&mut self) -> LockFamily {
        match self.yes() {
            true => LockFamily::Range,
            false => LockFamily::Whole,
        }
    }

    fn time(&mut self) -> SetTime {
        match self.yes() {
            true => SetTime::Now,
            false => SetTime::At(self.next() as i64),
        }
    }

    fn extents(&mut self) -> Extents {
        let count = match self.below(16) {
            0 => EXTENTS_MAX as u64,
            few => 1 + few / 12,
        };
        let mut at = self.below(1 << 50);
        let mut next = |random: &mut Random| {
            let offset = at + random.below(3) * 4096;
            let len = 1 + random.below(60_000);
            at = offset + len;
            Extent { offset, len }
        };
        Extents {
            first: next(self),
            rest: (1..count).map(|_| next(self)).collect(),
        }
    }

    fn hello(&mut self) -> Hello {
        Hello {
            version: self.next() as u8,
            client: self.next() | 1,
            incarnation: self.next(),
            joins: self.yes(),
            asks: self.yes(),
            borrows: self.yes(),
            wall_ns: self.next(),
            payload_max: 4096 + self.below(1 << 20) as u32,
            pipeline: self.pipeline(),
            uid: self.u32(),
            gid: self.u32(),
            name: self.bytes(255),
        }
    }

    fn kept(&mut self) -> (Keep, Box<[u8]>) {
        let text = self.bytes(300);
        match self.below(3) {
            0 => (Keep::Run, text),
            1 => (Keep::Saved, text),
            _ => (Keep::Configured, Box::default()),
        }
    }

    fn pipeline(&mut self) -> Pipeline {
        let mode = Pipelining::ALL[self.below(3) as usize];
        Pipeline::new(mode, 4096 + self.below(1 << 19) as u32)
    }

    fn hello_reply(&mut self) -> HelloReply {
        let seats = 1 + self.below(9) as u16;
        HelloReply {
            version: self.next() as u8,
            forwarder: self.below(u64::from(seats)) as u16,
            seats,
            stripe: 4096 << self.below(20),
            payload_max: (1 << 20) + self.below(1 << 20) as u32,
            pipeline: self.pipeline(),
            credits: 1 + self.u16() as u32,
            connections: 1 + self.below(64) as u16,
            reply_slots: 1 + self.below(1000) as u16,
            fresh: self.yes(),
            lease_ms: 1 + self.u16() as u32,
            loan_ms: 0,
            wall_ns: self.next(),
            host: self.next(),
            boot: self.next(),
            export: ExportId(u128::from(self.next()) << 64 | u128::from(self.next())),
            process: self.next(),
            forwarders: (0..seats)
                .filter_map(|index| self.some(|random| random.listed(index)))
                .collect(),
            held: (0..seats)
                .filter_map(|seat| self.some(|random| (seat, random.next())))
                .collect(),
            root: self.attr(),
        }
    }

    fn listed(&mut self, index: u16) -> Listed {
        let addresses = (0..self.below(4)).map(|_| format!("tcp:io{}:4600", self.u16()).into());
        Listed {
            index,
            addresses: addresses.collect(),
        }
    }

    fn name_op(&mut self) -> Op {
        let (parent, name, handle) = (self.handle(), self.name(), self.handle());
        let (mode, rdev) = (self.u32(), self.u32());
        match self.below(9) {
            0 => Op::Lookup { parent, name },
            1 => {
                let exclusive = self.yes();
                Op::Create {
                    parent,
                    name,
                    mode,
                    exclusive,
                }
            }
            2 => Op::Mkdir { parent, name, mode },
            3 => Op::Mknod {
                parent,
                name,
                mode,
                rdev,
            },
            4 => {
                let target = self.name();
                Op::Symlink {
                    parent,
                    name,
                    target,
                }
            }
            5 => Op::Link {
                handle,
                parent,
                name,
            },
            6 => Op::Unlink { parent, name },
            7 => Op::Rmdir { parent, name },
            _ => Op::Rename {
                parent,
                name,
                new_parent: handle,
                new_name: self.name(),
                mode: match self.below(4) {
                    0 => RenameMode::Replace,
                    1 => RenameMode::NoReplace,
                    2 => RenameMode::Exchange,
                    _ => RenameMode::Whiteout,
                },
            },
        }
    }

    fn set(&mut self) -> SetAttr {
        SetAttr {
            mode: self.some(Random::u32),
            uid: self.some(Random::u32),
            gid: self.some(Random::u32),
            size: self.some(Random::next),
            atime: self.some(Random::time),
            mtime: self.some(Random::time),
        }
    }

    fn copy_range(&mut self) -> Op {
        Op::CopyRange {
            source: self.handle(),
            source_offset: self.next(),
            handle: self.handle(),
            offset: self.next(),
            len: self.next(),
        }
    }

    fn file_op(&mut self) -> Op {
        let (handle, name) = (self.handle(), self.name());
        let (offset, len) = (self.next(), self.next());
        match self.below(16) {
            0 => {
                let bytes_max = self.below(u64::from(READDIR_MAX) + 1) as u32;
                let plus = self.yes();
                let count = if plus { self.below(5) } else { 0 };
                Op::Readdir {
                    handle,
                    cookie: offset,
                    bytes_max,
                    plus,
                    xattrs: (0..count).map(|_| self.name()).collect(),
                }
            }
            1 => Op::Getattr { handle },
            2 => Op::Setattr {
                handle,
                set: self.set(),
            },
            3 => Op::Open {
                handle,
                open: offset,
                read: self.yes(),
                write: self.yes(),
            },
            4 => Op::Close {
                handle,
                open: offset,
            },
            5 => Op::Readlink { handle },
            6 => Op::Access {
                handle,
                mask: self.below(8) as u32,
            },
            7 => Op::Fsync {
                handle,
                data_only: self.yes(),
            },
            8 => Op::Statfs,
            9 => Op::Fallocate {
                handle,
                mode: self.u32(),
                offset,
                len,
            },
            10 => self.copy_range(),
            11 => Op::Seek {
                handle,
                offset,
                whence: 3 + self.below(2) as u32,
            },
            12 => Op::Getxattr { handle, name },
            13 => {
                let value = self.bytes(300);
                Op::Setxattr {
                    handle,
                    name,
                    value,
                    flags: self.u32(),
                }
            }
            14 => Op::Listxattr { handle },
            _ => Op::Removexattr { handle, name },
        }
    }

    fn lock_op(&mut self) -> Op {
        let (handle, lock) = (self.handle(), self.lock());
        match self.below(5) {
            0 => Op::SetLock {
                handle,
                lock,
                wait: self.yes(),
                reclaim: self.yes(),
            },
            1 => Op::TestLock { handle, lock },
            2 => Op::DropLocks {
                handle,
                family: lock.family,
                owner: lock.owner,
            },
            3 => Op::CancelLock {
                request: self.next(),
            },
            _ => Op::ReclaimDone,
        }
    }

    fn session_op(&mut self) -> Op {
        match self.below(12) {
            0 => Op::Hello(self.hello()),
            1 => Op::Bye,
            2 => Op::Ping,
            3 => Op::Status,
            10 => Op::Drain { undo: self.yes() },
            11 => Op::GiveBack {
                handle: self.handle(),
            },
            4 => {
                let (keep, text) = self.kept();
                Op::SetPolicy { text, keep }
            }
            5 => {
                let (keep, text) = self.kept();
                let (after, at) = (self.next(), self.next());
                Op::SetShares {
                    text,
                    keep,
                    after,
                    at,
                }
            }
            6 => Op::Application {
                app: self.next(),
                name: self.bytes(255),
                job: self.bytes(255),
                project: self.bytes(255),
            },
            7 => Op::ShareMemory { bytes: self.next() },
            8 => Op::RegisterMemory {
                bytes: self.next(),
                address: self.next(),
                key: self.next(),
            },
            _ => Op::ResolvePath {
                handle: self.handle(),
                path: self.path(),
            },
        }
    }

    pub(super) fn request(&mut self) -> Request {
        let handle = self.handle();
        let op = match self.below(8) {
            0 => self.session_op(),
            1 | 2 => self.name_op(),
            3 | 4 => self.file_op(),
            5 => self.lock_op(),
            _ => match self.below(3) {
                0 => Op::Append { handle },
                1 => Op::Read {
                    handle,
                    extents: self.extents(),
                },
                _ => Op::Write {
                    handle,
                    extents: self.extents(),
                },
            },
        };
        let payload_len = match &op {
            Op::Write { extents, .. } => extents.bytes() as u32,
            Op::Append { .. } => self.below(1 << 20) as u32,
            _ => 0,
        };
        Request {
            id: self.next(),
            seat: self.u16(),
            reply_slot: op.mutates().then(|| ReplySlot {
                index: self.u16(),
                sequence: self.next().max(1),
            }),
            generation: self.next(),
            epoch: self.next(),
            replay: self.yes(),
            caller: self.some(|random| Caller {
                uid: random.u32(),
                gid: random.u32(),
                groups: (0..random.below(65)).map(|_| random.u32()).collect(),
            }),
            hints: op.moves_data().then(|| Hints {
                app: self.next(),
                operation: self.next(),
                operation_bytes: self.next(),
                operation_bytes_max: self.next(),
                stamp_ns: self.next(),
                deadline_ns: self.next(),
                charged_elsewhere_ns: self.next(),
                charged_here_ns: self.next(),
                bytes_elsewhere: self.next(),
                operations_elsewhere: self.u32(),
                away_ms: self.next() as u16,
                shuffle_us: self.u32(),
                shuffle_max_us: self.u32(),
                shuffle_rank: self.next() as u16,
            }),
            op,
            payload_len,
        }
    }

    pub(super) fn entry(&mut self, name_len: usize) -> Entry {
        Entry {
            name: std::vec![b'e'; name_len].into(),
            inode: self.next(),
            kind: self.next() as u8,
            cookie: self.next(),
            attr: Some(self.attr()),
            lacks: self.next() as u8,
            lent: self.yes(),
        }
    }

    fn listing(&mut self) -> Listing {
        let entries = (0..self.below(20)).map(|_| {
            let entry = Entry {
                name: self.name(),
                ..self.entry(1)
            };
            match self.yes() {
                true => entry,
                false => Entry {
                    attr: None,
                    lacks: 0,
                    lent: false,
                    ..entry
                },
            }
        });
        Listing {
            entries: entries.collect(),
            ended: self.yes(),
        }
    }

    fn outcome(&mut self, op: &Op) -> Outcome {
        match op.kind().spec().reply {
            ReplyKind::Done => Outcome::Done,
            ReplyKind::Hello => Outcome::Hello(Box::new(self.hello_reply())),
            ReplyKind::Attr => Outcome::Attr(self.attr()),
            ReplyKind::Removed => Outcome::Removed(self.some(Random::handle)),
            ReplyKind::Recalled => Outcome::Recalled(self.some(Random::handle)),
            ReplyKind::Text => Outcome::Text(self.bytes(3000)),
            ReplyKind::Entries => Outcome::Entries(self.listing()),
            ReplyKind::Data => Outcome::Data {
                lens: Lens {
                    first: self.below(60_000) as u32,
                    rest: (0..self.below(4)).map(|_| self.below(9) as u32).collect(),
                },
            },
            ReplyKind::Written => Outcome::Written { len: self.next() },
            ReplyKind::Appended => Outcome::Appended {
                offset: self.next(),
                len: self.next(),
            },
            ReplyKind::Offset => Outcome::Offset(self.next()),
            ReplyKind::Statfs => Outcome::Statfs(Statfs {
                blocks: self.next(),
                blocks_free: self.next(),
                blocks_available: self.next(),
                files: self.next(),
                files_free: self.next(),
                block_size: self.u32(),
                name_max: self.u32(),
            }),
            ReplyKind::Lock => Outcome::Lock(self.some(Random::lock)),
        }
    }

    pub(super) fn reply(&mut self, op: &Op) -> Reply {
        let result = match self.below(8) {
            0 => Err(Status::Errno(1 + self.below(4095) as u16)),
            1 => Err(Status::NotMySeat),
            2 => Err(Status::UnknownHandle),
            3 => Err(Status::NewGeneration),
            4 => Err(Status::TryLater),
            _ => Ok(self.outcome(op)),
        };
        let payload_len = match &result {
            Ok(Outcome::Data { lens }) => lens.bytes() as u32,
            _ => 0,
        };
        let directory = self.yes().then(|| Box::new(self.attr()));
        Reply {
            id: self.next(),
            seat: self.u16(),
            generation: self.next(),
            epoch: self.next(),
            charged_ns: self.next(),
            result,
            payload_len,
            lent: Lent {
                asked: self.yes(),
                found: self.yes(),
                directory,
            },
        }
    }
}
