//! Records and clients of a reply table, whole, torn and damaged.

use super::*;
use crate::model::{ModelTable, Switch};

const RESULT: Result<Outcome, Status> = Ok(Outcome::Appended { offset: 7, len: 9 });

fn table() -> (Switch, ModelTable) {
    let switch = Switch::new();
    (switch.clone(), ModelTable::new(&switch))
}

#[test]
fn the_crc_is_the_usual_one() {
    assert_eq!(crc(&[b"1234", b"56789"]), 0xcbf4_3926);
}

#[test]
fn clients_come_and_go_and_are_found_again() {
    let (_, table) = table();
    let last = SEGMENT_CLIENTS as u16 - 1;
    assert!(enter(&table, 3, 77) && enter(&table, last, 88));
    set_held(&table, last, true);
    let entry = |block, client, held| ClientEntry {
        block,
        client,
        held,
        vacant: ALL_VACANT,
    };
    assert_eq!(
        clients(&table),
        (alloc::vec![entry(3, 77, false), entry(last, 88, true)], 0)
    );
    leave(&table, 3);
    set_held(&table, last, false);
    assert_eq!(clients(&table), (alloc::vec![entry(last, 88, false)], 0));
}

#[test]
fn a_table_grows_with_its_clients_until_it_has_all_its_segments() {
    let (_, table) = table();
    assert_eq!(table.len(), SEGMENT_BYTES);
    for block in (0..SEGMENTS_MAX).map(|segment| segment * SEGMENT_CLIENTS) {
        assert!(enter(&table, block as u16, 1 + block as u64));
        assert_eq!(room(&table), block + SEGMENT_CLIENTS);
    }
    assert!(!table.grow(), "it has all its segments");
    let (found, damaged) = clients(&table);
    assert_eq!((found.len(), damaged), (SEGMENTS_MAX, 0));
    assert_eq!(usize::from(found[15].block), 15 * SEGMENT_CLIENTS);
    // Neither entries nor reply slots of two clients share a byte.
    let mut ends = [(0, 0); 2 * SEGMENTS_MAX];
    for (segment, places) in ends.chunks_mut(2).enumerate() {
        let block = (segment * SEGMENT_CLIENTS + 1023) as u16;
        places[0] = (entry_at(block), entry_at(block) + CLIENT_BYTES);
        let reply_slot = reply_slot_at(reply_slot_number(block, REPLY_SLOTS as u16 - 1));
        places[1] = (reply_slot, reply_slot + ReplyRecord::BYTES_MAX);
    }
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert_eq!(ends[ends.len() - 1].1, table.len());
}

#[test]
fn a_new_client_finds_the_reply_slots_of_its_block_empty() {
    let (_, table) = table();
    enter(&table, 3, 77);
    let reply_slot = reply_slot_number(3, 63);
    let mut vacant = ALL_VACANT;
    assert!(open_page(&table, 3, 63, &mut vacant));
    record(&table, reply_slot, 1, &RESULT);
    leave(&table, 3);
    enter(&table, 3, 88);
    let (found, _) = clients(&table);
    assert_eq!((found[0].client, found[0].vacant), (88, ALL_VACANT));
    let mut vacant = ALL_VACANT;
    assert!(open_page(&table, 3, 60, &mut vacant));
    assert_eq!(vacant, 0x7fff);
    assert_eq!(clients(&table).0[0].vacant, vacant);
    assert_eq!(read(&table, reply_slot).state, ReplySlotState::Empty);
    assert_eq!(peek(&table, reply_slot), (ReplySlotState::Empty, 0));
}

/// Kills a change of clients at every store, whole and torn: the block is the old client's, with
/// its reply slots, nobody's, or the new client's, who finds no reply slot of the old one.
#[test]
fn a_client_that_comes_while_the_process_dies_has_no_reply_slots_of_another() {
    for torn in [false, true] {
        for stores in 0..12 {
            let (switch, table) = table();
            enter(&table, 3, 77);
            let mut vacant = ALL_VACANT;
            assert!(open_page(&table, 3, 0, &mut vacant));
            record(&table, reply_slot_number(3, 0), 1, &RESULT);
            switch.fail_after(stores, torn);
            leave(&table, 3);
            enter(&table, 3, 88);
            let mut vacant = ALL_VACANT;
            assert!(open_page(&table, 3, 0, &mut vacant));
            let seen = table.seen_by(&Switch::new());
            let (found, _) = clients(&seen);
            let reply_slot = read(&seen, reply_slot_number(3, 0)).state;
            match found.first() {
                None => {}
                Some(entry) if entry.client == 77 => {
                    assert_eq!(
                        (entry.vacant, reply_slot),
                        (!1, ReplySlotState::Done),
                        "{stores} stores"
                    );
                }
                Some(entry) => {
                    assert_eq!(entry.client, 88);
                    let open = entry.vacant & 1 == 0;
                    assert!(
                        !open || reply_slot == ReplySlotState::Empty,
                        "after {stores} stores"
                    );
                }
            }
        }
    }
}

#[test]
fn every_result_comes_back() {
    let (_, table) = table();
    let attr = tidegate_wire::Attr {
        handle: tidegate_wire::Handle { inode: 1, birth: 2 },
        size: 3,
        blocks: 4,
        atime_ns: -5,
        mtime_ns: 6,
        ctime_ns: 7,
        mode: 8,
        nlink: 9,
        uid: 10,
        gid: 11,
        rdev: 12,
        block_size: 13,
    };
    let results = [
        Ok(Outcome::Done),
        Ok(Outcome::Attr(attr)),
        Ok(Outcome::Removed(None)),
        Ok(Outcome::Removed(Some(attr.handle))),
        Ok(Outcome::Written { len: 5 }),
        RESULT,
        Err(Status::Errno(28)),
    ];
    for (sequence, result) in results.into_iter().enumerate() {
        begin(&table, 9, sequence as u64, b"intent");
        finish(&table, 9, sequence as u64, &result);
        let stored = read(&table, 9);
        assert_eq!(
            (stored.state, stored.sequence),
            (ReplySlotState::Done, sequence as u64)
        );
        assert_eq!(
            (&*stored.intent, stored.result),
            (&b"intent"[..], Some(result))
        );
    }
}

/// Kills a record at every store, whole and torn: what is read is old, empty, or new, never
/// mixed.
#[test]
fn a_record_that_is_torn_anywhere_is_old_empty_or_new() {
    for torn in [false, true] {
        for stores in 0..10 {
            let (switch, table) = table();
            record(&table, 0, 1, &Ok(Outcome::Done));
            switch.fail_after(stores, torn);
            begin(&table, 0, 2, b"an intent of some length");
            finish(&table, 0, 2, &RESULT);
            let now = read(&table, 0);
            match (now.state, now.sequence) {
                (ReplySlotState::Done, 1) => assert_eq!(now.result, Some(Ok(Outcome::Done))),
                (ReplySlotState::Empty, _) => {}
                (ReplySlotState::Intent, 2) => {
                    assert_eq!(&*now.intent, b"an intent of some length");
                }
                (ReplySlotState::Done, 2) => assert_eq!(now.result, Some(RESULT)),
                other => panic!("{other:?} after {stores} stores"),
            }
            // An effect lies between begin's last store and finish's first.
            let begun = stores >= 4;
            assert_eq!(begun, now.sequence == 2, "after {stores} stores: {now:?}");
        }
    }
}

#[test]
fn a_flipped_bit_never_makes_another_record() {
    let (_, table) = table();
    begin(&table, 0, 2, b"an intent");
    finish(&table, 0, 2, &RESULT);
    let good = read(&table, 0);
    for bit in 0..ReplyRecord::BYTES_MAX * 8 {
        let at = reply_slot_at(0) + bit / 8;
        let mut byte = [0];
        table.load(at, &mut byte);
        table.store(at, &[byte[0] ^ 1 << (bit % 8)]);
        let bad = read(&table, 0);
        let expected = match bad.state {
            ReplySlotState::Done => good.clone(),
            ReplySlotState::Intent => ReplyRecord {
                state: ReplySlotState::Intent,
                result: None,
                ..good.clone()
            },
            ReplySlotState::Empty => ReplyRecord::empty(),
        };
        assert_eq!(bad, expected, "bit {bit}");
        table.store(at, &byte);
    }
}

#[test]
fn nobody_uses_the_spare_bytes_of_a_page() {
    let (_, table) = table();
    let mut vacant = ALL_VACANT;
    assert!(enter(&table, 0, u64::MAX) && open_page(&table, 0, 0, &mut vacant));
    set_held(&table, 0, true);
    begin(&table, 0, u64::MAX, &[255; INTENT_MAX]);
    finish(&table, 0, u64::MAX, &RESULT);
    for at in [entry_at(0), reply_slot_at(0)] {
        let mut spare = [1; 4];
        table.load(at + SPARE_AT, &mut spare);
        assert_eq!((at % PAGE_BYTES, spare), (0, [0; 4]));
    }
}
