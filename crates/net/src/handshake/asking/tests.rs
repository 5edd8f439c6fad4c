//! Tickets for credentials, between right and wrong ends.

use super::*;
use crate::secret::SiteSecret;
use tidegate_wire::{Caller, Grant};

const CREDENTIAL_TEXT: &str = "MUNGE:AwQFAAB=:";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn ticket() -> Secret {
    let site = SiteSecret::of_bytes(b"open sesame, please".to_vec()).expect("it is long enough");
    let user = Caller {
        groups: (0..64).map(|group| 4_000_000_000 + group).collect(),
        ..Caller::alone(1000, 100)
    };
    let site = site.derive(Grant::site()).expect("every site has it");
    site.ticket(user, "munge-cn1", 9).expect("it may")
}

fn carried() -> Carried {
    Carried::new(at("10.0.0.1:4600")).expect("random bytes")
}

#[test]
fn a_ticket_comes_as_it_was_given() {
    let (carried, life) = (carried(), Duration::from_millis(45_001));
    let (asking, greeting) = Asking::begin(CREDENTIAL_TEXT, &carried).expect("a credential");
    // What goes over the network is read as it was written.
    let bytes = greeting.to_bytes();
    let read = Greeting::read(&mut &bytes[..]).expect("it is whole");
    assert_eq!(read, greeting);
    assert_eq!(read.credential(), Some(CREDENTIAL_TEXT));
    for cut in 0..bytes.len() {
        assert!(Greeting::read(&mut &bytes[..cut]).is_err(), "{cut}");
    }
    let answer = give_ticket(&read, &carried, &ticket(), life).expect("the key is right");
    assert_eq!(answer.credential(), None);
    let text = ticket().to_text();
    let is_open = |needle: &[u8]| answer.content.windows(needle.len()).any(|it| it == needle);
    assert!(!is_open(b"uid=1000") && !is_open(&text.as_bytes()[..20]));
    let (given, good) = asking.finish(&answer).expect("a forwarder");
    assert_eq!((given.to_text(), good), (text, life));
}

#[test]
fn who_has_not_the_key_gets_and_gives_nothing() {
    let (right, wrong, life) = (carried(), carried(), Duration::from_secs(45));
    let (asking, greeting) = Asking::begin(CREDENTIAL_TEXT, &right).expect("a credential");
    let given = give_ticket(&greeting, &wrong, &ticket(), life);
    assert_eq!(given, Err(Refusal::Credential));
    // A forwarder of another's asking has answered.
    let (_, other) = Asking::begin(CREDENTIAL_TEXT, &right).expect("a credential");
    let answer = give_ticket(&other, &right, &ticket(), life).expect("the key is right");
    assert_eq!(asking.finish(&answer).err(), Some(HandshakeError::Unproved));
    // Somebody between has changed a bit, of the question or of the answer.
    for at in 0..greeting.content.len() {
        let mut changed = greeting.clone();
        changed.content[at] ^= 1;
        assert!(
            give_ticket(&changed, &right, &ticket(), life).is_err(),
            "{at}"
        );
    }
    for at in 0..answer.content.len() {
        let (asking, greeting) = Asking::begin(CREDENTIAL_TEXT, &right).expect("a credential");
        let mut answer = give_ticket(&greeting, &right, &ticket(), life).expect("right");
        answer.content[at] ^= 1;
        assert!(asking.finish(&answer).is_err(), "{at}");
    }
    // The same credential shown again with what was heard: the answer is of no use.
    let again = give_ticket(&greeting, &right, &ticket(), life).expect("munged refuses it, not we");
    let (late, _) = Asking::begin(CREDENTIAL_TEXT, &right).expect("a credential");
    assert!(late.finish(&again).is_err());
    for (refusal, code) in super::super::REFUSALS {
        let (asking, _) = Asking::begin(CREDENTIAL_TEXT, &right).expect("a credential");
        let told = Greeting::refusal(refusal);
        assert_eq!(told.content, [code]);
        assert_eq!(
            asking.finish(&told).err(),
            Some(HandshakeError::Refused(refusal))
        );
    }
}

#[test]
fn a_credential_is_for_one_forwarder() {
    let carried = carried();
    let read = Carried::of_bytes(&carried.to_bytes()).expect("as it was written");
    assert!(read == carried);
    assert!(read.is_for(at("10.0.0.1:4600")) && read.is_for(at("[::ffff:10.0.0.1]:4600")));
    for other in ["10.0.0.1:4601", "10.0.0.2:4600", "[::1]:4600"] {
        assert!(!read.is_for(at(other)), "{other}");
    }
    let mapped = Carried::new(at("[::ffff:10.0.0.1]:4600")).expect("random bytes");
    assert!(mapped.is_for(at("10.0.0.1:4600")));
    let near = Carried::new("[fe80::1%3]:4600".parse().expect("with a zone"));
    let near = near.expect("random bytes");
    assert!(
        Carried::of_bytes(&near.to_bytes())
            .expect("as written")
            .is_for(at("[fe80::1]:4600"))
    );
    // What is for other programs is for no forwarder.
    let bytes = carried.to_bytes();
    for wrong in [
        &b""[..],
        b"slurm",
        &bytes[1..],
        &bytes[..LABEL.len() + KEY_LEN],
        &bytes[..20],
    ] {
        assert!(Carried::of_bytes(wrong).is_none());
    }
    assert!(Carried::of_bytes(&[&bytes[..], b"0"].concat()).is_none_or(|it| it != carried));
    assert!(
        Carried::new(at("10.0.0.1:4600")).expect("random") != carried,
        "each has a new key"
    );
}

#[test]
fn what_is_no_credential_is_not_shown_and_not_taken() {
    let carried = carried();
    let long = format!("MUNGE:{}:", "A".repeat(CREDENTIAL_MAX));
    for wrong in ["", "AwQF", "MUNGE:A B:", "MUNGE:\0:", &long] {
        assert!(Asking::begin(wrong, &carried).is_none(), "{wrong}");
        let greeting = Greeting {
            kind: ASKS_TICKET,
            version: VERSION,
            content: [wrong.as_bytes(), &[0; FIRST_LEN]].concat(),
        };
        assert_eq!(greeting.credential(), None);
    }
    let short = Greeting {
        kind: ASKS_TICKET,
        version: VERSION,
        content: vec![b'M'; FIRST_LEN - 1],
    };
    assert_eq!(short.credential(), None);
    assert_eq!(Greeting::refusal(Refusal::Version).credential(), None);
}
