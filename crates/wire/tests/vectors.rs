//! Frames as checked-in bytes, so that a change of the format cannot go unnoticed and another
//! implementation has something to compare with.
//!
//! Each file of `vectors/` holds a message as Rust prints it, in comments, and its bytes in hex.
//! `TIDEGATE_BLESS=1 cargo test -p tidegate-wire --test vectors` writes them anew.

use std::fs;
use std::path::PathBuf;
use tidegate_wire::frame::{self, HEADER_LEN};
use tidegate_wire::*;

fn request(op: Op) -> Request {
    Request {
        id: 0x0102_0304_0506_0708,
        seat: 3,
        reply_slot: None,
        generation: 9,
        epoch: 11,
        replay: false,
        caller: None,
        hints: None,
        op,
        payload_len: 0,
    }
}

fn reply(result: Result<Outcome, Status>) -> Reply {
    Reply {
        id: 0x0102_0304_0506_0708,
        seat: 3,
        generation: 9,
        epoch: 11,
        charged_ns: 250_000,
        result,
        payload_len: 0,
        lent: Default::default(),
    }
}

const DIR: Handle = Handle {
    inode: 2,
    birth: 1_700_000_000_000_000_000,
};
const FILE: Handle = Handle {
    inode: 4242,
    birth: 1_700_000_000_000_000_001,
};

fn attr() -> Attr {
    Attr {
        handle: FILE,
        size: 4096,
        blocks: 8,
        atime_ns: -1,
        mtime_ns: 1_700_000_001_000_000_000,
        ctime_ns: 1_700_000_002_000_000_000,
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        block_size: 4096,
    }
}

fn hints() -> Hints {
    Hints {
        app: 0xdead_beef,
        operation: 5,
        operation_bytes: 1 << 20,
        operation_bytes_max: 1 << 18,
        stamp_ns: 1_700_000_003_000_000_000,
        deadline_ns: 0,
        charged_elsewhere_ns: 77,
        charged_here_ns: 78,
        bytes_elsewhere: 3 << 20,
        operations_elsewhere: 3,
        away_ms: 40,
        shuffle_us: 12,
        shuffle_max_us: 2500,
        shuffle_rank: 4,
    }
}

fn hello() -> Hello {
    Hello {
        version: 6,
        client: 99,
        incarnation: 1,
        joins: false,
        asks: true,
        borrows: false,
        wall_ns: 1_700_000_000_000_000_000,
        payload_max: 1 << 20,
        pipeline: Pipeline::new(Pipelining::Parallel, 512 << 10),
        uid: 1000,
        gid: 100,
        name: Box::from(*b"node7:4711"),
    }
}

fn lock() -> Lock {
    Lock {
        family: LockFamily::Range,
        kind: LockKind::Exclusive,
        owner: 17,
        pid: 4711,
        start: 0,
        end: u64::MAX,
    }
}

fn set() -> SetAttr {
    SetAttr {
        mode: Some(0o600),
        size: Some(7),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(-5)),
        ..SetAttr::default()
    }
}

fn create() -> Op {
    let name: Name = Box::from(*b"results.dat");
    Op::Create {
        parent: DIR,
        name,
        mode: 0o644,
        exclusive: true,
    }
}

fn rename() -> Op {
    let name: Name = Box::from(*b"results.dat");
    Op::Rename {
        parent: DIR,
        name: name.clone(),
        new_parent: FILE,
        new_name: name,
        mode: RenameMode::NoReplace,
    }
}

fn write() -> Op {
    Op::Write {
        handle: FILE,
        extents: Extents {
            first: Extent { offset: 0, len: 5 },
            rest: vec![Extent { offset: 8, len: 2 }],
        },
    }
}

fn register() -> Op {
    Op::RegisterMemory {
        bytes: 64 << 20,
        address: 0x7f00_1122_3000,
        key: 0x0a0b_0c0d,
    }
}

fn shares() -> Vec<(&'static str, Request)> {
    vec![
        (
            "application",
            request(Op::Application {
                app: 0xdead_beef,
                name: Box::from(*b"slurm-17.0"),
                job: Box::from(*b"17"),
                project: Box::from(*b"climate"),
            }),
        ),
        (
            "readdir",
            request(Op::Readdir {
                handle: FILE,
                cookie: 7,
                bytes_max: 8192,
                plus: true,
                xattrs: vec![Box::from(*b"user.a"), Box::from(*b"security.b")],
            }),
        ),
        ("drain", request(Op::Drain { undo: true })),
        ("give-back", request(Op::GiveBack { handle: FILE })),
        (
            "set-shares",
            request(Op::SetShares {
                text: Box::from(*b"[[app]]\nname = \"a\"\nweight = 3\n"),
                keep: Keep::Saved,
                after: 7,
                at: 1_700_000_000_000_000_000,
            }),
        ),
    ]
}

fn requests() -> Vec<(&'static str, Request)> {
    let reply_slot = |index, sequence| Some(ReplySlot { index, sequence });
    vec![
        ("hello", request(Op::Hello(hello()))),
        ("ping", request(Op::Ping)),
        (
            "create",
            Request {
                reply_slot: reply_slot(1, 2),
                caller: Some(Caller {
                    uid: 1000,
                    gid: 100,
                    groups: Box::from([100, 27]),
                }),
                ..request(create())
            },
        ),
        (
            "write",
            Request {
                reply_slot: reply_slot(63, 40),
                replay: true,
                hints: Some(hints()),
                payload_len: 7,
                ..request(write())
            },
        ),
        (
            "read",
            Request {
                hints: Some(hints()),
                ..request(Op::Read {
                    handle: FILE,
                    extents: Extents::from(Extent {
                        offset: 1 << 40,
                        len: 65536,
                    }),
                })
            },
        ),
        ("share-memory", request(Op::ShareMemory { bytes: 64 << 20 })),
        ("register-memory", request(register())),
        (
            "rename",
            Request {
                reply_slot: reply_slot(0, 1),
                ..request(rename())
            },
        ),
        (
            "setattr",
            Request {
                reply_slot: reply_slot(0, 2),
                ..request(Op::Setattr {
                    handle: FILE,
                    set: set(),
                })
            },
        ),
        (
            "set-lock",
            request(Op::SetLock {
                handle: FILE,
                lock: lock(),
                wait: true,
                reclaim: false,
            }),
        ),
    ]
}

fn hello_reply() -> HelloReply {
    HelloReply {
        version: 6,
        forwarder: 1,
        seats: 4,
        stripe: 1 << 20,
        payload_max: 1 << 20,
        pipeline: Pipeline::new(Pipelining::Serial, 256 << 10),
        credits: 64,
        connections: 2,
        reply_slots: 64,
        fresh: true,
        lease_ms: 30_000,
        loan_ms: 0,
        wall_ns: 1_700_000_000_000_000_000,
        host: 21,
        boot: 22,
        export: ExportId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f),
        process: 23,
        forwarders: Box::from([
            Listed {
                index: 0,
                addresses: vec!["tcp:io0:4600".into(), "unix:/run/f0".into()],
            },
            Listed {
                index: 3,
                addresses: Vec::new(),
            },
        ]),
        held: Box::from([(1, 5), (3, 9)]),
        root: attr(),
    }
}

/// The op code of a request of this name.
fn op(name: &str) -> u8 {
    match requests().iter().find(|(it, _)| *it == name) {
        Some((_, request)) => frame::op_code(&request.op),
        None => unreachable!("{name} is no vector"),
    }
}

fn replies() -> Vec<(&'static str, u8, Reply)> {
    let entry = |name: &[u8], cookie, attr: Option<Attr>| Entry {
        name: Box::from(name),
        inode: 4242,
        kind: 8,
        cookie,
        attr,
        lacks: u8::from(attr.is_some()) * 2,
        lent: attr.is_some(),
    };
    let listing = Listing {
        entries: vec![entry(b"a", 1, None), entry(b"b", 2, Some(attr()))],
        ended: true,
    };
    let data = Outcome::Data {
        lens: Lens {
            first: 4096,
            rest: vec![100],
        },
    };
    let hello = Outcome::Hello(Box::new(hello_reply()));
    vec![
        ("hello-reply", op("hello"), reply(Ok(hello))),
        (
            "create-reply",
            op("create"),
            reply(Ok(Outcome::Attr(attr()))),
        ),
        ("readdir-reply", 25, reply(Ok(Outcome::Entries(listing)))),
        (
            "read-reply",
            op("read"),
            Reply {
                payload_len: 4196,
                ..reply(Ok(data))
            },
        ),
        (
            "recall-notice",
            12,
            Reply {
                id: frame::NOTICE,
                ..reply(Ok(Outcome::Recalled(Some(FILE))))
            },
        ),
        ("errno-reply", op("create"), reply(Err(Status::Errno(17)))),
        (
            "generation-reply",
            op("write"),
            reply(Err(Status::NewGeneration)),
        ),
    ]
}

/// Replies that lend something.
fn lent_replies() -> Vec<(&'static str, u8, Reply)> {
    let directory = || Lent {
        directory: Some(Box::new(attr())),
        ..Lent::default()
    };
    vec![
        (
            "lent-reply",
            16,
            Reply {
                lent: Lent {
                    asked: true,
                    found: true,
                    directory: None,
                },
                ..reply(Ok(Outcome::Attr(attr())))
            },
        ),
        (
            "lent-directory-reply",
            OpKind::Unlink as u8,
            Reply {
                lent: directory(),
                ..reply(Ok(Outcome::Removed(None)))
            },
        ),
        (
            "lent-directory-errno-reply",
            OpKind::Mkdir as u8,
            Reply {
                lent: directory(),
                ..reply(Err(Status::Errno(17)))
            },
        ),
    ]
}

/// The file of a vector: the message in comments, then 32 bytes a line.
fn file_text(message: &str, bytes: &[u8]) -> String {
    let comment = message.lines().map(|line| format!("# {line}\n"));
    let hex = bytes.chunks(32).map(|line| {
        let digits: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        digits + "\n"
    });
    comment.chain(hex).collect()
}

fn bytes_of(text: &str) -> Vec<u8> {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hex digits"))
        .collect()
}

fn compare(name: &str, encoded: &[u8], message: &str, decode: impl Fn(&[u8]) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors")
        .join(format!("{name}.hex"));
    let text = file_text(message, encoded);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, &text).expect("the vectors' folder is writable");
    }
    let stored = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert_eq!(stored, text, "{name}: encoding has changed");
    assert_eq!(
        decode(&bytes_of(&stored)),
        message,
        "{name}: decoding has changed"
    );
}

fn split(bytes: &[u8]) -> (frame::Header, &[u8]) {
    let (head, body) = bytes
        .split_first_chunk::<HEADER_LEN>()
        .expect("a frame has a header");
    let header = frame::decode_header(head, 1 << 20).expect("the header is sound");
    (header, body)
}

#[test]
fn requests_are_the_checked_in_bytes() {
    for (name, request) in requests().into_iter().chain(shares()) {
        let mut bytes = Vec::new();
        frame::encode_request(&request, &mut bytes);
        compare(name, &bytes, &format!("{request:#?}"), |bytes| {
            let (header, body) = split(bytes);
            format!("{:#?}", frame::decode_request(&header, body).expect(name))
        });
    }
}

#[test]
fn shared_payloads_are_the_checked_in_bytes() {
    let place = 0x0012_3000;
    let all = requests();
    let (_, read) = all
        .iter()
        .find(|(name, _)| *name == "read")
        .expect("it is a vector");
    let mut bytes = Vec::new();
    frame::encode_request_shared(read, place, &mut bytes);
    let message = format!("{:#?}", (read, Some(place)));
    compare("read-shared", &bytes, &message, |bytes| {
        let (header, body) = split(bytes);
        let decoded = frame::decode_request_shared(&header, body).expect("read-shared");
        format!("{decoded:#?}")
    });
    let replies = replies();
    let found = replies.iter().find(|(name, ..)| *name == "read-reply");
    let (_, op, reply) = found.expect("it is a vector");
    let mut bytes = Vec::new();
    frame::encode_reply_shared(*op, reply, &mut bytes);
    compare(
        "read-reply-shared",
        &bytes,
        &format!("{reply:#?}"),
        |bytes| {
            let (header, body) = split(bytes);
            assert!(header.shared);
            format!(
                "{:#?}",
                frame::decode_reply(&header, body).expect("read-reply-shared")
            )
        },
    );
}

#[test]
fn replies_are_the_checked_in_bytes() {
    for (name, op, reply) in replies().into_iter().chain(lent_replies()) {
        let mut bytes = Vec::new();
        frame::encode_reply(op, &reply, &mut bytes);
        compare(name, &bytes, &format!("{reply:#?}"), |bytes| {
            let (header, body) = split(bytes);
            format!("{:#?}", frame::decode_reply(&header, body).expect(name))
        });
    }
}
