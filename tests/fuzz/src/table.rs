//! The reply table of a seat, whose last holder left anything there: the next holder takes the
//! seat, looks up what was begun, answers clients that come back, and serves new ones.

use crate::Draw;
use crate::host::{Host, SECOND, plain};
use crate::operation::{Things, operation};
use std::sync::Arc;
use tidegate_forward::model::{Disk, ModelTable, Switch};
use tidegate_forward::{
    ConnId, ENTRIES_BYTES, Files, Input, Peer, REPLY_SLOTS, ReplyRecord, SEGMENT_CLIENTS, SeatTable,
};
use tidegate_wire::frame::checksum;
use tidegate_wire::{Caller, Handle, Hello, Name, Op, Outcome, Pipeline, ReplySlot, Request};

/// Steps of a run.
const STEPS_MAX: usize = 40;
/// Clients that the table may know.
const CLIENTS: u64 = 3;
/// Bytes of a client in the table.
const CLIENT_BYTES: usize = 64;
/// Offsets in the record of a reply slot: of its state, its result's head, intent and result.
const STATE_AT: usize = 16;
const RESULT_HEAD_AT: usize = 20;
const INTENT_AT: usize = 32;
const RESULT_AT: usize = 896;

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let disk = Disk::new();
    let mut host = Host::new(&disk, 1);
    let root = disk.root().handle;
    let files = furnish(&mut host, root);
    let table = Arc::new(ModelTable::new(&Switch::new()));
    for _ in 0..draw.u8() % 12 {
        damage(&mut draw, &*table, &files);
    }
    host.tables.insert(0, table);
    host.run();
    let mut generation = 1;
    for step in 1..STEPS_MAX as u64 {
        if draw.is_over() {
            break;
        }
        match draw.u8() % 16 {
            0 => {
                host.tell(Input::SeatLost { seat: 0 });
                generation += 1;
            }
            1 => host.advance(u64::from(draw.u8()) * SECOND / 4),
            _ => {
                let client = 1 + u64::from(draw.u8()) % CLIENTS;
                let Some(conn) = greet(&mut host, client, step) else {
                    continue;
                };
                ask(&mut draw, &mut host, (conn, step, generation), &files);
            }
        }
        host.closed.clear();
        host.sent.clear();
    }
    host.advance(60 * SECOND);
    host.sent.clear();
    let conn = greet(&mut host, 99, STEPS_MAX as u64).expect("a new client is served");
    let request = plain(STEPS_MAX as u64 + 1, Op::Ping);
    host.receive(conn, &request, &[]);
    let answer = host.sent.pop_back().map(|sent| sent.reply.result);
    assert_eq!(answer, Some(Ok(Outcome::Done)), "it serves nobody");
}

/// Makes the files that intents may speak of. Returns all handles.
fn furnish(host: &mut Host, root: Handle) -> Vec<Handle> {
    let files = &mut host.files;
    let made = [
        files.mkdir(None, root, b"a", 0o755),
        files.create(None, root, b"b", 0o644),
        files.symlink(None, root, b"c", b"b"),
    ];
    let made = made.map(|it| it.expect("the disk has room").handle);
    let inner = files.create(None, made[0], b"a", 0o644);
    let written = files.write_at(made[1], 0, &[b'.'; 600]);
    written.expect("the disk has room");
    let set = files.setxattr(None, made[1], b"user.d", b"....", 0);
    set.expect("the disk has room");
    let inner = inner.expect("the disk has room").handle;
    vec![root, made[0], made[1], made[2], inner]
}

/// Puts an entry, a reply slot or any bytes into the table.
fn damage(draw: &mut Draw<'_>, table: &dyn SeatTable, files: &[Handle]) {
    let client = usize::from(draw.u8()) % CLIENTS as usize;
    match draw.u8() % 8 {
        0 => {
            let at = usize::from(draw.u16());
            table.store(at, draw.some_bytes());
        }
        1..=3 => {
            let mut entry = [0; CLIENT_BYTES];
            // Two entries may name one client.
            let named = 1 + u64::from(draw.u8()) % CLIENTS;
            entry[..8].copy_from_slice(&named.to_le_bytes());
            let sum = checksum(&entry[..8]);
            entry[8..12].copy_from_slice(&sum.to_le_bytes());
            entry[STATE_AT] = draw.u8() % 2;
            let vacant = draw.of(&[0, 0, u16::MAX, u16::MAX - 1, 0x5555]);
            entry[18..20].copy_from_slice(&vacant.to_le_bytes());
            let place = draw.of(&[client, client, SEGMENT_CLIENTS - 1]);
            table.store(place * CLIENT_BYTES, &entry);
        }
        _ => {
            let slot = usize::from(draw.u8()) % 6;
            let at = ENTRIES_BYTES + (client * REPLY_SLOTS + slot) * ReplyRecord::BYTES_MAX;
            table.store(at, &record(draw, files));
        }
    }
}

/// A reply slot whose checksums are right, mostly.
fn record(draw: &mut Draw<'_>, files: &[Handle]) -> Vec<u8> {
    let mut bytes = vec![0; ReplyRecord::BYTES_MAX];
    let sequence = draw.of(&[1, 1, 2, 3, 0, u64::MAX]);
    bytes[..8].copy_from_slice(&sequence.to_le_bytes());
    let intent = fields(draw, files, RESULT_AT - INTENT_AT);
    let len = intent.len() as u16;
    bytes[8..10].copy_from_slice(&len.to_le_bytes());
    bytes[INTENT_AT..][..intent.len()].copy_from_slice(&intent);
    let sum = checksum(&[&bytes[..12], &intent].concat());
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes[STATE_AT] = draw.of(&[1, 1, 2, 2, 0, 3]);
    let result = fields(draw, files, ReplyRecord::BYTES_MAX - RESULT_AT);
    let len = result.len() as u16;
    bytes[RESULT_HEAD_AT..][..2].copy_from_slice(&len.to_le_bytes());
    bytes[RESULT_AT..][..result.len()].copy_from_slice(&result);
    let sum = checksum(&[&bytes[..8], &bytes[20..24], &result].concat());
    bytes[24..28].copy_from_slice(&sum.to_le_bytes());
    if draw.one_in(16) {
        let at = usize::from(draw.u16()) % bytes.len();
        bytes[at] ^= draw.u8();
    }
    bytes
}

/// A kind, then fields: handles, names, numbers.
fn fields(draw: &mut Draw<'_>, files: &[Handle], most: usize) -> Vec<u8> {
    let mut bytes = vec![draw.u8() % 10];
    for _ in 0..draw.u8() % 10 {
        match draw.u8() % 8 {
            0..=2 => {
                let Handle { inode, birth } = draw.of(files);
                bytes.extend_from_slice(&inode.to_le_bytes());
                bytes.extend_from_slice(&birth.to_le_bytes());
            }
            3 | 4 => {
                let name = draw.of(&[&b"a"[..], b"b", b"e", b"user.d", b"..", b""]);
                bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
                bytes.extend_from_slice(name);
            }
            5 => bytes.extend_from_slice(&draw.size().to_le_bytes()),
            6 => bytes.extend_from_slice(&draw.u32().to_le_bytes()),
            _ => bytes.push(draw.u8()),
        }
    }
    bytes.truncate(most);
    bytes
}

/// A client of root begins a session.
fn greet(host: &mut Host, client: u64, incarnation: u64) -> Option<ConnId> {
    let conn = host.connect(Peer {
        credentials: Some(Caller::alone(0, 0)),
        powerless: None,
        address: "fuzz".into(),
        grant: None,
    });
    let hello = Op::Hello(Hello {
        version: tidegate_wire::frame::VERSION,
        client,
        incarnation,
        joins: false,
        asks: false,
        borrows: true,
        wall_ns: 0,
        payload_max: 1 << 16,
        pipeline: Pipeline::default(),
        uid: 0,
        gid: 0,
        name: b"fuzz".as_slice().into(),
    });
    host.receive(conn, &plain(1, hello), &[]);
    let answered = host.sent.pop_back().map(|sent| sent.reply.result);
    matches!(answered, Some(Ok(Outcome::Hello(_)))).then_some(conn)
}

/// A client asks for something, perhaps again.
fn ask(
    draw: &mut Draw<'_>,
    host: &mut Host,
    (conn, step, generation): (ConnId, u64, u64),
    files: &[Handle],
) {
    let names = [&b"a"[..], b"b", b"e", b"user.d"].map(Name::from);
    let of = Things {
        handles: files,
        names: &names,
        new_names: &names,
        paths: &[b"a/a".as_slice().into()],
        fill: b'.',
        large: false,
    };
    let op = operation(draw, &of);
    if matches!(
        op,
        Op::SetPolicy { .. } | Op::SetShares { .. } | Op::Drain { .. }
    ) {
        return;
    }
    let len = match &op {
        Op::Write { extents, .. } => extents.bytes().min(1 << 16) as usize,
        Op::Append { .. } => usize::from(draw.u16() % 600),
        _ => 0,
    };
    let reply_slot = op.mutates().then(|| ReplySlot {
        index: u16::from(draw.u8() % 6),
        sequence: draw.of(&[1, 1, 1, 2, 2, 3, 4, u64::MAX]),
    });
    let request = Request {
        reply_slot,
        generation: draw.of(&[generation, generation, 0, 1]),
        replay: draw.yes(),
        hints: op.moves_data().then(Default::default),
        payload_len: len as u32,
        ..plain(step + 1, op)
    };
    host.receive(conn, &request, &vec![b'.'; len]);
}
