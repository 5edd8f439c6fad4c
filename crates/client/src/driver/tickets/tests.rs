//! A source that gives tickets or fails, and what the client has at hand meanwhile. The tickets are
//! good for an hour, so time alone changes nothing.

use super::*;
use crate::ticket::tests::ticket;
use std::sync::atomic::{AtomicBool, Ordering};

const HOUR: Duration = Duration::from_secs(3600);

/// Tickets of a source that fails while `fails` is set.
fn tickets(fails: &Arc<AtomicBool>) -> Arc<Tickets> {
    let fails = Arc::clone(fails);
    let source = move || match fails.load(Ordering::Relaxed) {
        true => Err(io::Error::other("gone")),
        false => Ok(ticket(HOUR)),
    };
    Arc::new(Tickets::begin(Box::new(source), false).expect("the first one comes"))
}

/// Waits until that holds, which the thread makes true.
fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < end, "it never comes");
        thread::sleep(Duration::from_millis(1));
    }
}

fn number(tickets: &Tickets) -> Result<u64, NoTicket> {
    tickets.current().map(|(_, number)| number)
}

#[test]
fn a_refused_ticket_is_replaced_and_the_third_in_a_row_is_the_last() {
    let tickets = tickets(&Arc::default());
    assert_eq!(number(&tickets), Ok(1));
    // Several forwarders refuse the same one.
    for _ in 0..5 {
        assert_eq!(tickets.refused(1), Ok(()));
    }
    assert_eq!(number(&tickets), Err(NoTicket::Waits));
    tickets.keep(None).expect("a thread");
    until(|| number(&tickets) == Ok(2));
    // A late answer to the first changes nothing.
    assert_eq!(tickets.refused(1), Ok(()));
    assert_eq!(number(&tickets), Ok(2));
    assert_eq!(tickets.refused(2), Ok(()));
    until(|| number(&tickets) == Ok(3));
    tickets.taken();
    for refused in 3..5 {
        assert_eq!(tickets.refused(refused), Ok(()));
        until(|| number(&tickets) == Ok(refused + 1));
    }
    assert_eq!(tickets.refused(5), Err(NoTicket::Ended));
    tickets.end();
    until(|| Arc::strong_count(&tickets) == 1);
}

#[test]
fn where_none_comes_the_last_one_is_shown_to_its_end() {
    let fails = Arc::new(AtomicBool::new(false));
    let tickets = tickets(&fails);
    tickets.keep(None).expect("a thread");
    fails.store(true, Ordering::Relaxed);
    {
        // Time to renew it, and not its end.
        tickets.kept().renew = Instant::now();
        tickets.due.notify_one();
    }
    until(|| tickets.kept().failed);
    assert_eq!(number(&tickets), Ok(1));
    tickets.kept().ends = Instant::now();
    assert_eq!(number(&tickets), Err(NoTicket::Ended));
    // The mount may come back in between.
    fails.store(false, Ordering::Relaxed);
    until(|| number(&tickets) == Ok(2));
    tickets.end();
    until(|| Arc::strong_count(&tickets) == 1);
}

#[test]
fn where_nobody_else_serves_it_a_client_waits_for_a_ticket() {
    let fails = Arc::new(AtomicBool::new(false));
    let source = {
        let fails = Arc::clone(&fails);
        move || match fails.load(Ordering::Relaxed) {
            true => Err(io::Error::other("gone")),
            false => Ok(ticket(HOUR)),
        }
    };
    let tickets = Tickets::begin(Box::new(source), true).expect("the first one comes");
    let tickets = Arc::new(tickets);
    let handed = tickets.hand_on().expect("it is good");
    let (shown, _) = tickets.current().expect("it is good");
    assert_eq!(handed.secret.to_text(), shown.to_text());
    assert!(handed.life < HOUR);
    fails.store(true, Ordering::Relaxed);
    {
        let mut kept = tickets.kept();
        (kept.ends, kept.renew) = (Instant::now(), Instant::now());
    }
    tickets.keep(None).expect("a thread");
    until(|| tickets.kept().failed);
    assert_eq!(number(&tickets), Err(NoTicket::Waits));
    assert!(tickets.hand_on().is_none());
    fails.store(false, Ordering::Relaxed);
    until(|| number(&tickets) == Ok(2));
    // However many are refused, it goes on; and asks no more than it must.
    for refused in 2..=4 {
        assert_eq!(tickets.refused(refused), Ok(()));
        until(|| number(&tickets) == Ok(refused + 1));
    }
    for _ in 0..3 {
        assert_eq!(tickets.refused(5), Ok(()));
        assert_eq!(number(&tickets), Ok(5));
    }
    tickets.end();
    until(|| Arc::strong_count(&tickets) == 1);
}

#[test]
fn the_next_ticket_is_due_well_before_the_end() {
    let begun = Instant::now();
    let kept = Kept::of(ticket(Duration::from_secs(45)), 1, begun);
    assert_eq!(kept.renew, begun + Duration::from_secs(30));
    assert_eq!(kept.ends, begun + Duration::from_secs(44));
    let none = Kept::of(ticket(Duration::ZERO), 1, begun);
    assert!(none.ends <= begun && none.renew <= begun);
}
