//! Tables that are large, damaged or late, and takings that go on in pieces.

use super::*;
use crate::storage::posix::SETTLED_BYTE;

#[test]
fn a_seat_of_4000_clients_is_taken_within_one_lease_over_a_slow_back_end() {
    let scratch = Scratch::new("leased-many");
    let (mut a, mut b, clock) = two(&scratch);
    fill(&*taken(&mut a, 0).table, 4_000);
    a.release(0).expect("release");
    slow::each_call_takes(&clock.0, 3 * MS);
    let began = b.options.fence.now();
    let second = taken(&mut b, 0);
    let took = b.options.fence.now().0 - began.0;
    assert!(took < TTL / 4 * 3, "{} ms", took / MS);
    for client in [0, 1_023, 1_024, 3_999] {
        let mut bytes = [0; 8];
        second.table.load(reply_slots_at(client), &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), client as u64);
    }
}

#[test]
fn leases_are_renewed_between_the_pieces_of_a_taking() {
    let scratch = Scratch::new("leased-pieces");
    let (mut a, mut b, clock) = two(&scratch);
    fill(&*taken(&mut a, 0).table, 4_000);
    a.release(0).expect("release");
    taken(&mut b, 1);
    slow::each_call_takes(&clock.0, 20 * MS);
    let began = b.options.fence.now();
    let mut renewed = began;
    let first = loop {
        match b.try_take(0).expect("the back end works") {
            Tried::GoesOn if b.options.fence.now().0 - renewed.0 >= TTL / 5 => {
                renewed = b.options.fence.now();
                assert!(b.renew().until.is_some());
            }
            Tried::GoesOn => {}
            Tried::Taken(taken, _) => break taken,
            _ => panic!("nobody else has it"),
        }
    };
    let took = b.options.fence.now().0 - began.0;
    assert!(took > TTL, "it takes longer than a lease: {} ms", took / MS);
    assert!(!b.options.fence.is_closed());
    assert_eq!(b.held(), [0, 1]);
    first.table.persist().expect("it is held");
}

#[test]
fn a_taking_that_outlasts_its_lease_is_given_up() {
    let scratch = Scratch::new("leased-slow");
    let (mut a, mut b, clock) = two(&scratch);
    fill(&*taken(&mut a, 0).table, 4_000);
    a.release(0).expect("release");
    slow::each_call_takes(&clock.0, 20 * MS);
    let error = pieces(&mut b, 0).err().expect("nobody renews it");
    assert!(error.to_string().contains("too slow"), "{error}");
    assert!(b.held().is_empty() && !b.has_leases());
    slow::each_call_takes(&[], 0);
    let files = b.generations.of_seat(0).expect("list");
    assert_eq!(
        files.leases.len(),
        1,
        "nobody waits for what came to nothing"
    );
    let mut bytes = [0; 8];
    taken(&mut b, 0)
        .table
        .load(reply_slots_at(3_999), &mut bytes);
    assert_eq!(
        u64::from_le_bytes(bytes),
        3_999,
        "what it began is passed over"
    );
}

#[test]
fn an_owner_that_cannot_take_its_seat_leaves_it_to_others() {
    let scratch = Scratch::new("leased-cannot");
    let (mut a, mut b, clock) = two(&scratch);
    fill(&*taken(&mut b, 0).table, 4_000);
    a.want(0).expect("locks work");
    b.release(0).expect("release");
    assert!(busy(&mut b, 0), "the owner waits for it");
    slow::each_call_takes(&clock.0, 20 * MS);
    assert!(pieces(&mut a, 0).is_err(), "it is too slow");
    slow::each_call_takes(&[], 0);
    taken(&mut b, 0);
}

#[test]
fn a_renewal_does_not_wait_for_tables() {
    let scratch = Scratch::new("leased-first");
    let (mut a, _b, clock) = two(&scratch);
    let table = taken(&mut a, 0).table;
    for client in (0..SEGMENT_CLIENTS).step_by(2) {
        table.store_later(reply_slots_at(client), b"a result");
    }
    slow::each_call_takes(&clock.0, MS);
    let began = a.options.fence.now();
    assert!(a.renew().until.is_some());
    let calls = (a.options.fence.now().0 - began.0) / MS;
    assert_eq!(calls, 1, "the record is written");
    let until = Instant::now() + std::time::Duration::from_secs(60);
    a.write_tables(until).expect("room");
    assert!(a.flush(0, until).expect("room"), "nothing is left");
}

#[test]
fn a_table_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let scratch = Scratch::new("leased-damaged");
    let (mut a, mut b, clock) = two(&scratch);
    let first = taken(&mut a, 0).generation;
    a.release(0).expect("release");
    let file = a.generations.open(0, first, Way::Past).expect("open");
    let file = file.expect("there");
    let mut page = [Page::ZERO];
    file.read(0, &mut page).expect("read");
    let whole = page.clone();
    for (byte, why) in [(40, "checksum"), (8, "version")] {
        page[0].0[byte] ^= 0x10;
        file.write(0, &page).expect("write");
        // What it says cannot be believed either, so its lease is waited for.
        let error = loop {
            match pieces(&mut b, 0) {
                Ok(Tried::Waits(_)) => clock.pass(2 * TTL),
                Ok(_) => panic!("the seat is taken without its table"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(
            error.contains(why) && error.contains(&file_name(0, first)),
            "{error}"
        );
        page = whole.clone();
    }
    assert_eq!(
        b.generations.of_seat(0).expect("list").leases,
        [first],
        "nothing is left behind"
    );
    file.write(0, &page).expect("write");
    assert_eq!(taken(&mut b, 0).generation, first + 1);
}

/// Gives a number that others have passed, as a listing does that is old.
struct Stale(u64);

impl Claims for Stale {
    fn claim(&mut self, _seat: u16) -> Result<Claim, SeatsError> {
        let began = Time(0);
        Ok(Claim::Ours {
            generation: self.0,
            began,
        })
    }

    fn confirm(&mut self, _seat: u16) -> io::Result<()> {
        Ok(())
    }

    fn renew(&mut self, held: &[(u16, u64)]) -> io::Result<Vec<io::Result<Option<String>>>> {
        Ok(held.iter().map(|_| Ok(None)).collect())
    }

    fn release(&mut self, _seat: u16) -> io::Result<()> {
        Ok(())
    }

    fn settle(&mut self, _seat: u16) -> Result<(), SeatsError> {
        Ok(())
    }

    fn want(&mut self, _seat: u16) -> Result<(), SeatsError> {
        Ok(())
    }

    fn wanted(&mut self, _held: &[u16]) -> io::Result<Vec<u16>> {
        Ok(Vec::new())
    }

    fn look(&mut self, _seat: u16) {}

    fn double(&mut self, _seat: u16) -> Option<String> {
        None
    }
}

#[test]
fn a_number_that_others_have_passed_is_not_taken() {
    let scratch = Scratch::new("leased-stale");
    let (mut a, mut b, _clock) = two(&scratch);
    let first = taken(&mut a, 0).generation;
    b.claims = Box::new(Stale(first - 1));
    assert!(matches!(pieces(&mut b, 0), Ok(Tried::Busy)));
    assert!(b.held().is_empty());
}

#[test]
fn a_seat_that_is_lost_is_not_said_to_be_settled() {
    let scratch = Scratch::new("leased-settle");
    let (mut a, mut b, clock) = two(&scratch);
    taken(&mut a, 0);
    clock.lose_lock(0, 0);
    assert_eq!(a.renew().lost.len(), 1);
    assert!(a.settle(0).is_err());
    taken(&mut b, 1);
    clock.pass(TTL);
    assert!(b.settle(1).is_err());
    let [locks, _] = clock.1;
    assert!(!locks.is_locked(0, SETTLED_BYTE) && !locks.is_locked(1, SETTLED_BYTE));
}

#[test]
fn records_go_past_the_page_cache_whatever_tables_outlive() {
    let scratch = Scratch::new("leased-process");
    let (mut a, _locks, _clock) = forwarder(&scratch, 0);
    a.options.outlives_node = false;
    taken(&mut a, 0);
    assert!(a.held[&0].file.is_past_cache());
}

#[test]
fn a_file_that_cannot_be_opened_is_no_lease_that_others_wait_for() {
    let scratch = Scratch::new("leased-unopened");
    let (mut a, b, _clock) = two(&scratch);
    let first = taken(&mut a, 0).generation;
    a.release(0).expect("release");
    let (dir, next) = (b.generations.folder(), first + 1);
    let spare = format!("spare.0.{next}");
    rustix::fs::symlinkat("elsewhere", dir, &spare).expect("a new name");
    let took = spare::take(dir, 0, next, true, Way::Past);
    assert!(took.is_err(), "it is a link");
    let files = b.generations.of_seat(0).expect("list");
    assert_eq!(files.leases, [first]);
}
