//! Payload in memory that a client shares with the forwarder: it is read and written in place, and
//! an offer or a frame that is wrong harms nobody else.

mod support;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use support::{Peer, Scratch, start};
use tidegate_device::DeviceOptions;
use tidegate_wire::frame::encode_request_shared;
use tidegate_wire::{Extent, Extents, Handle, Op, Outcome, Request, Status};

/// Reactors of each forwarder; `reactors.rs` runs these tests with more.
#[allow(dead_code, reason = "of use where this file is the test program")]
const REACTORS: u32 = 1;

const BYTES: u64 = 1 << 20;
const EOPNOTSUPP: u16 = 95;

fn memory(seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"test", flags).expect("memory");
    ftruncate(&fd, BYTES).expect("its size");
    fcntl_add_seals(&fd, seals).expect("seals");
    File::from(fd)
}

/// Offers memory; what the forwarder says.
fn offer(peer: &mut Peer, memory: Option<&File>, bytes: u64) -> Result<Outcome, Status> {
    let frame = peer.frame(Op::ShareMemory { bytes }, &[]);
    match memory {
        Some(memory) => peer.send_with(&frame, memory.as_fd()),
        None => peer.send(&frame).expect("the connection is open"),
    }
    peer.receive().expect("a reply comes").0.result
}

fn extents(all: &[(u64, u64)]) -> Extents {
    let mut all = all.iter().map(|&(offset, len)| Extent { offset, len });
    Extents {
        first: all.next().expect("there is one"),
        rest: all.collect(),
    }
}

fn send_shared(peer: &mut Peer, op: Op, place: u64) {
    let len = match &op {
        Op::Write { extents, .. } => extents.bytes() as u32,
        _ => 0,
    };
    let request = peer.request(op, len);
    let mut frame = Vec::new();
    encode_request_shared(&request, place, &mut frame);
    peer.send(&frame).expect("the connection is open");
}

/// Sends a request again, under the id that it had.
fn repeat_shared(peer: &mut Peer, op: Op, id: u64, place: u64) {
    let request = Request {
        id,
        replay: true,
        ..peer.request(op, 0)
    };
    let mut frame = Vec::new();
    encode_request_shared(&request, place, &mut frame);
    peer.send(&frame).expect("the connection is open");
}

fn sharing(scratch: &Scratch) -> (Peer, File) {
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let memory = memory(SealFlags::SHRINK | SealFlags::GROW);
    assert_eq!(offer(&mut peer, Some(&memory), BYTES), Ok(Outcome::Done));
    (peer, memory)
}

fn write(peer: &mut Peer, handle: Handle, ranges: &[(u64, u64)], place: u64) {
    let extents = extents(ranges);
    let len = extents.bytes();
    send_shared(peer, Op::Write { handle, extents }, place);
    let (reply, _) = peer.receive().expect("a reply comes");
    assert_eq!(reply.result, Ok(Outcome::Written { len }));
}

#[test]
fn files_are_read_and_written_in_place() {
    let scratch = Scratch::new("shared");
    // A pool without room: payload in shared memory needs none.
    let running = start(&scratch, |config| config.pool_bytes = 4096);
    let (mut peer, memory) = sharing(&scratch);
    let handle = peer.create("file");
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    memory.write_all_at(&bytes, 8192).expect("it is memory");
    write(
        &mut peer,
        handle,
        &[(100, 200_000), (400_000, 100_000)],
        8192,
    );
    let stored = std::fs::read(scratch.export().join("file")).expect("the file is there");
    assert_eq!(stored.len(), 500_000);
    assert_eq!(stored[100..200_100], bytes[..200_000]);
    assert_eq!(stored[400_000..], bytes[200_000..]);

    // Read at another place, also past the end, and without shared memory.
    let ranges = extents(&[(0, 1000), (499_000, 5000)]);
    let extents = ranges.clone();
    send_shared(&mut peer, Op::Read { handle, extents }, 500_001);
    let (reply, inline) = peer.receive().expect("a reply comes");
    let Ok(Outcome::Data { lens }) = reply.result else {
        panic!("{reply:?}");
    };
    assert_eq!(lens.iter().collect::<Vec<_>>(), [1000, 1000]);
    assert_eq!((reply.payload_len, inline.len()), (2000, 0));
    let mut read = vec![0; 2000];
    memory
        .read_exact_at(&mut read, 500_001)
        .expect("it is memory");
    assert_eq!(read[..1000], stored[..1000]);
    assert_eq!(read[1000..], stored[499_000..]);
    assert_eq!(peer.read(handle, 0, 4096), stored[..4096]);
    drop(peer);
    assert!(running.shutdown().expect("it ends"));
}

#[test]
fn what_is_no_sound_offer_is_refused_and_the_session_goes_on() {
    let scratch = Scratch::new("offers");
    let _running = start(&scratch, |_| ());
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let refused = Err(Status::Errno(EOPNOTSUPP));
    let sealed = memory(SealFlags::SHRINK);
    let file = File::open(scratch.export()).expect("the export is there");
    assert_eq!(offer(&mut peer, None, BYTES), refused);
    assert_eq!(
        offer(&mut peer, Some(&memory(SealFlags::GROW)), BYTES),
        refused
    );
    assert_eq!(offer(&mut peer, Some(&file), BYTES), refused);
    assert_eq!(offer(&mut peer, Some(&sealed), 0), refused);
    assert_eq!(offer(&mut peer, Some(&sealed), BYTES + 1), refused);
    assert_eq!(offer(&mut peer, Some(&sealed), u64::MAX), refused);
    peer.check_alive();
    assert_eq!(offer(&mut peer, Some(&sealed), BYTES), Ok(Outcome::Done));
    assert_eq!(
        offer(&mut peer, Some(&sealed), BYTES),
        refused,
        "a second one"
    );
    peer.check_alive();
}

#[test]
fn payload_outside_of_the_memory_ends_its_own_session_only() {
    let scratch = Scratch::new("outside");
    let _running = start(&scratch, |_| ());
    let mut good = Peer::unix(&scratch.socket()).greet();
    let handle = good.create("file");
    good.write(handle, 0, &[7; 8192]);
    let places = [BYTES - 4095, BYTES, u64::MAX, u64::MAX - 4095, 1 << 63];
    for place in places {
        for write in [false, true] {
            let (mut bad, _memory) = sharing(&scratch);
            let extents = extents(&[(0, 4096)]);
            let op = match write {
                true => Op::Write { handle, extents },
                false => Op::Read { handle, extents },
            };
            send_shared(&mut bad, op, place);
            assert!(bad.is_cut_off(), "place {place}: the session goes on");
            good.check_alive();
        }
    }
    let mut bad = Peer::unix(&scratch.socket()).greet();
    let extents = extents(&[(0, 4096)]);
    send_shared(&mut bad, Op::Read { handle, extents }, 0);
    assert!(bad.is_cut_off(), "nothing was offered");
    assert_eq!(good.read(handle, 0, 8192), [7; 8192]);
}

#[test]
fn a_client_that_came_back_is_not_told_that_its_bytes_are_where_they_are_not() {
    let scratch = Scratch::new("back");
    let _running = start(&scratch, |config| {
        // Slow enough that a client can come back meanwhile.
        let mut device = DeviceOptions::preset("ideal").expect("it is known");
        device.set("service_us", 50_000).expect("it can be so slow");
        config.device = Some(device);
    });
    let (mut peer, memory) = sharing(&scratch);
    let handle = peer.create("file");
    write(&mut peer, handle, &[(0, 4096)], 0);
    let read = |at| Op::Read {
        handle,
        extents: extents(&[(at, 1)]),
    };
    const READS: u64 = 24;
    for number in 0..READS {
        send_shared(&mut peer, read(number * 97), number);
    }
    let first = peer.last_id() + 1 - READS;
    let again = Peer::unix(&scratch.socket()).again(peer.client(), 2);
    let mut again = again.greet();
    let offered = offer_unheard(&mut again, &memory);
    let (reply, _) = again.receive().expect("a reply comes");
    assert_eq!((reply.id, reply.result), (offered, Ok(Outcome::Done)));
    let mut unanswered: Vec<u64> = (first..first + READS).collect();
    for id in &unanswered {
        repeat_shared(&mut again, read((id - first) * 97), *id, 100 + id - first);
    }
    let mut later = 0;
    while !unanswered.is_empty() {
        let (reply, _) = again.receive().expect("a reply comes");
        let at = unanswered.iter().position(|id| *id == reply.id);
        unanswered.remove(at.expect("it was asked for"));
        match reply.result {
            Err(Status::TryLater) => later += 1,
            // It was answered on the older connection already.
            Ok(Outcome::Data { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(later >= 5, "only {later} were in hand");
    // What it asks for now it gets.
    let id = again.last_id() + 1;
    send_shared(&mut again, read(0), 8192);
    loop {
        let (reply, _) = again.receive().expect("a reply comes");
        if reply.id == id {
            assert!(matches!(reply.result, Ok(Outcome::Data { .. })));
            return;
        }
    }
}

/// Offers memory; under which id.
fn offer_unheard(peer: &mut Peer, memory: &File) -> u64 {
    let frame = peer.frame(Op::ShareMemory { bytes: BYTES }, &[]);
    peer.send_with(&frame, memory.as_fd());
    peer.last_id()
}
