//! Reads and writes over several seats.

use super::*;
use crate::collective::Collective;

#[test]
fn a_write_is_split_at_stripes_without_copying() {
    let mut rig = Rig::open(4);
    let whole = bytes(20_000);
    let id = rig.call_with(write(file(7), 1000, 20_000), whole.clone(), None);
    assert_eq!(rig.sent.len(), 6);
    let parts: Vec<Sent> = rig.sent.drain(..).collect();
    let mut at = 0;
    for sent in &parts {
        let Op::Write { extents, .. } = &sent.request.op else {
            panic!("a write is sent as writes");
        };
        let extent = extents.first;
        assert_eq!(extent.offset, 1000 + at);
        assert_eq!(sent.forwarder, usize::from(sent.request.seat));
        assert_eq!(u64::from(sent.request.payload_len), extent.len);
        let [piece] = &sent.payload[..] else {
            panic!("one extent is one piece");
        };
        let wanted = whole.slice(at as usize..(at + extent.len) as usize);
        assert_eq!(piece.as_ptr(), wanted.as_ptr());
        assert_eq!(piece.len(), wanted.len());
        at += extent.len;
        let hints = sent.request.hints.expect("writes carry hints");
        assert_eq!(hints.operation, 1);
        assert_eq!(hints.operation_bytes, 20_000);
        assert_eq!(hints.operation_bytes_max, 4096 + 3096);
    }
    // In any order.
    for sent in parts.iter().rev() {
        let len = u64::from(sent.request.payload_len);
        rig.ok(sent, Outcome::Written { len });
    }
    assert_eq!(rig.succeeded(id), Outcome::Written { len: 20_000 });
}

#[test]
fn parts_of_a_collective_say_what_it_is_on_all_clients() {
    let mut rig = Rig::open(4);
    let collective = Collective {
        operation: 1 << 63 | 9,
        bytes: 100_000,
        stamp_ns: 77,
        shuffle_us: 500,
        shuffle_max_us: 900,
        shuffle_rank: 2,
    };
    rig.calls += 1;
    let id = CallId(rig.calls);
    let call = Call {
        op: read(file(7), 0, 8192),
        caller: None,
        app: 7,
        payload: Payload::new(),
        deadline_ns: None,
        forwarder: 0,
        operation: None,
        collective: Some(collective),
        caches: false,
        open: None,
        range: None,
    };
    rig.input(Input::Call { id, call });
    let parts: Vec<Sent> = rig.sent.drain(..).collect();
    assert_eq!(parts.len(), 2);
    for sent in &parts {
        let hints = sent.request.hints.expect("reads carry hints");
        assert_eq!((hints.operation, hints.stamp_ns), (1 << 63 | 9, 77));
        assert_eq!((hints.operation_bytes, hints.shuffle_us), (100_000, 500));
        assert_eq!((hints.shuffle_max_us, hints.shuffle_rank), (900, 2));
        assert_eq!(hints.operation_bytes_max, 25_000);
    }
    // Of what the client does beside it, the numbers go on from 1.
    let id = rig.call(read(file(7), 0, 10));
    let sent = rig.next();
    let hints = sent.request.hints.expect("reads carry hints");
    assert_eq!((hints.operation, hints.shuffle_us), (1, 0));
    rig.data(&sent, bytes(10));
    rig.result(id).expect("the read succeeds");
    let wall_ns = 5;
    let extent = Extent {
        offset: 0,
        len: 16_384,
    };
    let operation = rig
        .core
        .begin_operation(wall_ns, file(7), extent, Some(collective));
    let operation = operation.expect("forwarders are known");
    assert_eq!((operation.number, operation.shuffle_us), (1 << 63 | 9, 500));
}

#[test]
fn merged_blocks_travel_as_one_request() {
    let mut rig = Rig::with(2, true);
    for forwarder in 0..2 {
        rig.core.connect(forwarder);
        rig.pump();
        rig.greet(forwarder, GRANT, &[]);
    }
    let id = rig.call_with(write(file(7), 0, 16_384), bytes(16_384), None);
    assert_eq!(rig.sent.len(), 2);
    for sent in std::mem::take(&mut rig.sent) {
        assert_eq!((sent.payload.len(), sent.request.payload_len), (2, 8192));
        rig.ok(&sent, Outcome::Written { len: 8192 });
    }
    assert_eq!(rig.succeeded(id), Outcome::Written { len: 16_384 });
}

#[test]
fn a_read_ends_at_its_first_short_part() {
    let mut rig = Rig::open(2);
    let whole = bytes(12_288);
    let id = rig.call(read(file(7), 0, 12_288));
    let parts: Vec<Sent> = rig.sent.drain(..).collect();
    rig.data(&parts[2], whole.slice(8192..));
    rig.data(&parts[1], whole.slice(4096..5000));
    rig.data(&parts[0], whole.slice(..4096));
    let answer = rig.result(id).expect("the read succeeds");
    assert_eq!(answer.data.len, 5000);
    assert_eq!(answer.data.to_vec(), &whole[..5000]);
}

#[test]
fn an_error_in_one_part_fails_a_read() {
    let mut rig = Rig::open(2);
    let id = rig.call(read(file(7), 0, 8192));
    let parts: Vec<Sent> = rig.sent.drain(..).collect();
    rig.fail(&parts[1], Status::Errno(5));
    assert!(rig.done.is_empty(), "the other part is waited for");
    rig.data(&parts[0], bytes(4096));
    assert_eq!(rig.errno(id), 5);
}

#[test]
fn nothing_is_read_or_written_without_a_request() {
    let mut rig = Rig::open(2);
    let id = rig.call(read(file(7), 50, 0));
    assert_eq!(rig.result(id).expect("nothing fails").data.len, 0);
    let id = rig.call(write(file(7), 50, 0));
    assert_eq!(rig.succeeded(id), Outcome::Written { len: 0 });
    assert!(rig.sent.is_empty());
}

#[test]
fn other_forwarders_charges_and_epochs_are_passed_on() {
    let mut rig = Rig::open(2);
    let handle = rig.file_of_seat(0);
    rig.call(read(handle, 4096, 10));
    let early = rig.next().request.hints.expect("reads carry hints");
    assert_eq!((early.charged_elsewhere_ns, early.charged_here_ns), (0, 0));
    rig.call(read(handle, 0, 10));
    let first = rig.next();
    rig.input(Input::Received {
        forwarder: 0,
        reply: Reply {
            id: first.request.id,
            seat: first.request.seat,
            generation: 1,
            epoch: 41,
            charged_ns: 900,
            result: Err(Status::Errno(5)),
            payload_len: 0,
            lent: Default::default(),
        },
        payload: Payload::new(),
    });
    let told = |rig: &mut Rig, offset| {
        rig.call(read(handle, offset, 10));
        let request = rig.next().request;
        assert_eq!(request.epoch, 41);
        let hints = request.hints.expect("reads carry hints");
        (hints.charged_elsewhere_ns, hints.charged_here_ns)
    };
    assert_eq!(told(&mut rig, 4096), (900, 0));
    assert_eq!(told(&mut rig, 4096), (0, 0));
    assert_eq!(told(&mut rig, 0), (0, 900));
    assert_eq!(told(&mut rig, 0), (0, 0));
}

#[test]
fn what_one_user_was_charged_is_no_other_users() {
    // Both users' applications have the same name, and so the same id.
    let mut rig = Rig::open(2);
    let handle = rig.file_of_seat(0);
    let told = |rig: &mut Rig, uid, offset| {
        rig.caller = Some(Caller::alone(uid, uid));
        rig.call(read(handle, offset, 10));
        let sent = rig.next();
        let hints = sent.request.hints.expect("reads carry hints");
        (sent, hints.charged_elsewhere_ns)
    };
    for uid in [1, 2] {
        assert_eq!(told(&mut rig, uid, 4096).1, 0);
    }
    let (first, _) = told(&mut rig, 1, 0);
    rig.input(Input::Received {
        forwarder: 0,
        reply: Reply {
            id: first.request.id,
            seat: first.request.seat,
            generation: 1,
            epoch: 0,
            charged_ns: 900,
            result: Err(Status::Errno(5)),
            payload_len: 0,
            lent: Default::default(),
        },
        payload: Payload::new(),
    });
    assert_eq!(told(&mut rig, 2, 4096).1, 0);
    assert_eq!(told(&mut rig, 1, 4096).1, 900);
}

#[test]
fn an_abandoned_read_costs_a_credit_until_it_is_answered() {
    let mut rig = Rig::new(1);
    rig.greet(
        0,
        Grant {
            credits: 1,
            ..GRANT
        },
        &[],
    );
    let id = rig.call_with(read(file(7), 0, 10), Bytes::new(), Some(5));
    let first = rig.next();
    rig.at(5);
    assert_eq!(rig.errno(id), 110);
    rig.call(getattr(file(7)));
    assert!(rig.sent.is_empty());
    rig.data(&first, bytes(10));
    assert_eq!(rig.next().request.op, getattr(file(7)));
}

#[test]
fn a_call_notes_when_each_forwarder_served_its_last_part() {
    let mut rig = Rig::open(2);
    rig.core.note_served();
    let handle = file(7);
    let id = rig.call(read(handle, 0, 4 * 4096));
    let parts: Vec<Sent> = std::mem::take(&mut rig.sent);
    assert_eq!(parts.len(), 4);
    for (step, part) in (1..).zip(&parts) {
        rig.at(step * MS);
        rig.data(part, bytes(4096));
    }
    rig.succeeded(id);
    let mut served = rig.core.take_served(id);
    served.sort_by_key(|served| served.at_ns);
    let at: Vec<u64> = served.iter().map(|served| served.at_ns).collect();
    assert_eq!(at, [3 * MS, 4 * MS]);
    assert_ne!(served[0].forwarder, served[1].forwarder);
    assert!(rig.core.take_served(id).is_empty());
}

/// A core that wants to move a call's bytes so, at forwarders that allow so much.
fn moving(forwarders: usize, wanted: Pipelining, granted: Pipelining) -> Rig {
    let mut rig = Rig::moving(forwarders, false, Pipeline::new(wanted, 4096));
    let grant = Grant {
        pipelining: granted,
        ..GRANT
    };
    for forwarder in 0..forwarders {
        rig.core.connect(forwarder);
        rig.pump();
        rig.greet(forwarder, grant, &[]);
    }
    rig
}

#[test]
fn without_pipelining_a_chunk_is_sent_when_the_one_before_is_done() {
    for (wanted, granted) in [
        (Pipelining::None, Pipelining::None),
        (Pipelining::Parallel, Pipelining::None),
    ] {
        let mut rig = moving(2, wanted, granted);
        let id = rig.call(read(file(7), 0, 6 * 4096));
        for _ in 0..3 {
            let chunks: Vec<Sent> = rig.sent.drain(..).collect();
            assert_eq!(chunks.len(), 2, "one at each forwarder");
            assert_ne!(chunks[0].forwarder, chunks[1].forwarder);
            for chunk in chunks.iter().rev() {
                rig.data(chunk, bytes(4096));
            }
        }
        assert_eq!(rig.result(id).expect("it succeeds").data.len, 6 * 4096);
    }
    let mut rig = moving(2, Pipelining::Parallel, Pipelining::Serial);
    rig.call(read(file(7), 0, 6 * 4096));
    assert_eq!(rig.sent.len(), 6, "they are sent ahead");
}

#[test]
fn chunks_behind_others_go_where_those_went() {
    let mut rig = moving(2, Pipelining::None, Pipelining::None);
    let whole = bytes(3 * 4096);
    let id = rig.call_with(write(rig.file_of_seat(0), 0, 3 * 4096), whole, None);
    assert_eq!(rig.sent.len(), 2);
    // The forwarder of chunks 0 and 2 is gone; the other stands in.
    let chunk = rig.take(|sent| sent.forwarder == 1);
    rig.ok(&chunk, Outcome::Written { len: 4096 });
    rig.lose(0);
    for _ in 0..2 {
        let chunk = rig.next();
        assert_eq!((chunk.forwarder, rig.sent.len()), (1, 0));
        rig.reply(&chunk, 2, Ok(Outcome::Written { len: 4096 }));
    }
    assert_eq!(rig.succeeded(id), Outcome::Written { len: 3 * 4096 });
}

#[test]
fn an_abandoned_transfer_sends_no_further_chunk() {
    let mut rig = moving(1, Pipelining::None, Pipelining::None);
    let id = rig.call_with(read(file(7), 0, 4 * 4096), Bytes::new(), Some(5));
    let first = rig.next();
    rig.at(5);
    assert_eq!(rig.errno(id), 110);
    rig.data(&first, bytes(4096));
    assert!(rig.sent.is_empty());
    assert!(rig.core.requests.is_empty());
}
