//! Handshakes between right and wrong ends, and with somebody between them.

use super::*;
use crate::frames::{FrameReader, Step};
use std::io::IoSliceMut;
use tidegate_wire::frame::encode_request;
use tidegate_wire::{Caller, Limits, Op, Request, Role};

fn site(bytes: &str) -> SiteSecret {
    SiteSecret::of_bytes(bytes.into()).expect("it is long enough")
}

fn secret(site: &SiteSecret) -> Secret {
    site.derive(Grant::site()).expect("every site has it")
}

fn expiring(expires: u64) -> Grant {
    Grant {
        role: Role::Operator,
        name: "ann".into(),
        expires: Some(expires),
        by: None,
    }
}

/// The encryption of a channel that both ends come to.
fn meet(secret: &Secret, site: SiteSecret, asks: Encryption, least: Encryption) -> Encryption {
    let (initiator, greeting) = Initiator::begin(secret, asks);
    let accepted = accept(&[site], least, 0, &greeting).expect("the secret is right");
    assert_eq!(accepted.grant, secret.grant);
    let channel = initiator.finish(&accepted.answer).expect("a forwarder");
    match (channel, accepted.channel) {
        (Finished::Plain(greeting), Err(confirmation)) => {
            assert!(confirmation.is_in(&greeting));
            assert!(!confirmation.is_in(&Greeting::refusal(Refusal::Secret)));
            Encryption::Off
        }
        (Finished::Protected(client), Ok(forwarder)) => {
            let mut way = Vec::new();
            let write = |bytes: &[u8]| {
                way.extend_from_slice(bytes);
                Ok(bytes.len())
            };
            assert_eq!(
                client
                    .send(&[crate::RawBytes::from(&b"word"[..])], write)
                    .expect("there is room"),
                4
            );
            let mut word = [0; 4];
            let mut left = &way[..];
            let pieces = &mut [IoSliceMut::new(&mut word)];
            let read = |into: &mut [IoSliceMut<'_>]| std::io::Read::read_vectored(&mut left, into);
            assert_eq!(forwarder.receive(pieces, read).expect("it came"), 4);
            assert_eq!(&word, b"word");
            match way.windows(4).any(|it| it == b"word") {
                true => Encryption::Integrity,
                false => Encryption::On,
            }
        }
        _ => panic!("the ends differ"),
    }
}

#[test]
fn both_ends_come_to_the_stronger_protection() {
    for asks in Encryption::ALL {
        for least in Encryption::ALL {
            let site = site("open sesame, please");
            let met = meet(&secret(&site), site, asks, least);
            assert_eq!(met, asks.max(least));
        }
    }
}

#[test]
fn a_derived_secret_proves_its_grant_until_it_expires() {
    let site = site("open sesame, please");
    let ann = site.derive(expiring(100)).expect("the grant is right");
    for (now, taken) in [(99, true), (100, false)] {
        let (_, greeting) = Initiator::begin(&ann, Encryption::On);
        let accepted = accept(std::slice::from_ref(&site), Encryption::On, now, &greeting);
        match accepted {
            Ok(accepted) => assert!(taken && accepted.grant == expiring(100)),
            Err(refusal) => assert!(!taken && refusal == Refusal::Expired),
        }
    }
    // A grant that its holder has widened has another key.
    let widened = Secret {
        grant: expiring(10_000),
        ..site.derive(expiring(100)).expect("as before")
    };
    let (_, greeting) = Initiator::begin(&widened, Encryption::On);
    let refused = accept(&[site], Encryption::On, 99, &greeting).err();
    assert_eq!(refused, Some(Refusal::Secret));
}

#[test]
fn a_ticket_proves_its_user_while_its_giver_could() {
    let right = site("open sesame, please");
    let taken = |secret: &Secret, now| {
        let (initiator, greeting) = Initiator::begin(secret, Encryption::On);
        let sites = std::slice::from_ref(&right);
        let accepted = accept(sites, Encryption::On, now, &greeting)?;
        assert!(initiator.finish(&accepted.answer).is_ok());
        Ok(accepted.grant)
    };
    let mount = Grant {
        role: Role::Mount(Limits::default()),
        ..expiring(100)
    };
    let mount = right.derive(mount).expect("the grant is right");
    let user = || Caller::alone(1000, 100);
    let ticket = mount.ticket(user(), "", 90).expect("it may");
    let grant = taken(&ticket, 89).expect("the ticket is right");
    assert_eq!(grant, ticket.grant);
    assert_eq!(taken(&ticket, 90), Err(Refusal::Expired));
    let longer = mount.ticket(user(), "", 900).expect("it may");
    assert_eq!(taken(&longer, 100), Err(Refusal::Expired));
    let of_site = secret(&right).ticket(user(), "io1", 90).expect("it may");
    assert_eq!(taken(&of_site, 89), Ok(of_site.grant.clone()));
    // Who has a ticket can make of it neither another's nor a longer one, nor the mount's own
    // proof; and a key that no site has given makes none either.
    let other_giver = site("another secret, not it").derive(mount.grant.clone());
    let other_giver = other_giver.expect("the grant is right");
    let forged = |grant: Grant| Secret {
        grant,
        ..ticket_of(&mount, 90)
    };
    for forged in [
        forged(
            mount
                .ticket(Caller::alone(1001, 100), "", 90)
                .expect("it may")
                .grant,
        ),
        forged(longer.grant.clone()),
        forged(mount.grant.clone()),
        forged(of_site.grant.clone()),
        Secret {
            forwarders: ticket.forwarders,
            ..other_giver.ticket(user(), "", 90).expect("it may")
        },
    ] {
        assert_eq!(taken(&forged, 0), Err(Refusal::Secret));
    }
}

fn ticket_of(giver: &Secret, expires: u64) -> Secret {
    let user = Caller::alone(1000, 100);
    giver.ticket(user, "", expires).expect("it may")
}

#[test]
fn two_secrets_are_valid_while_they_are_changed() {
    let sites = [
        site("the new secret of the site"),
        site("the old secret of the site"),
    ];
    for of in &sites {
        let (initiator, greeting) = Initiator::begin(&secret(of), Encryption::On);
        let accepted = accept(&sites, Encryption::On, 0, &greeting).expect("it is valid");
        assert!(initiator.finish(&accepted.answer).is_ok());
    }
    let (_, greeting) = Initiator::begin(&secret(&sites[1]), Encryption::On);
    let refused = accept(&sites[..1], Encryption::On, 0, &greeting).err();
    assert_eq!(refused, Some(Refusal::Secret));
}

#[test]
fn who_has_a_derived_secret_or_none_cannot_pose_as_a_forwarder() {
    let right = site("open sesame, please");
    let node = Grant {
        role: Role::Mount(Limits::default()),
        name: "cn1".into(),
        expires: None,
        by: None,
    };
    let node = right.derive(node).expect("the grant is right");
    let (initiator, greeting) = Initiator::begin(&node, Encryption::Off);
    // The thief of the same secret knows its key and the forwarders' public key, and has no private
    // one that fits.
    let private = site("another secret, not it").private;
    let said = &greeting.content[..greeting.content.len() - FIRST_LEN];
    let prologue = prologue_of(said);
    let mut state = responder(&private, &node.key, &prologue).expect("it is built");
    let first = &greeting.content[said.len()..];
    assert!(state.read_message(first, &mut []).is_err());
    // Nor does an answer from another connection help, or any other bytes.
    let (_, other) = Initiator::begin(&node, Encryption::Off);
    let stolen = accept(&[right], Encryption::Off, 0, &other).expect("it is right");
    let refused = initiator.finish(&stolen.answer).err();
    assert_eq!(refused, Some(HandshakeError::Unproved));
}

#[test]
fn nobody_between_the_ends_can_change_what_they_say() {
    let site = || site("open sesame, please");
    let (_, greeting) = Initiator::begin(&secret(&site()), Encryption::On);
    for at in 0..greeting.content.len() {
        let mut changed = greeting.clone();
        changed.content[at] ^= 1 << (at % 8);
        assert!(
            accept(&[site()], Encryption::Off, 0, &changed).is_err(),
            "{at}"
        );
        let mut cut = greeting.clone();
        cut.content.truncate(at);
        assert!(accept(&[site()], Encryption::Off, 0, &cut).is_err(), "{at}");
    }
    let answers = || {
        let (initiator, greeting) = Initiator::begin(&secret(&site()), Encryption::On);
        let accepted = accept(&[site()], Encryption::Off, 0, &greeting).expect("it is right");
        (initiator, accepted.answer)
    };
    for at in 0..SECOND_LEN {
        let (initiator, mut answer) = answers();
        answer.content[at] ^= 1 << (at % 8);
        assert_eq!(
            initiator.finish(&answer).err(),
            Some(HandshakeError::Unproved),
            "{at}"
        );
    }
}

#[test]
fn refusals_are_understood() {
    use Refusal::{Expired, Insecure, Missing, Secret, Version};
    for refusal in [Missing, Secret, Expired, Insecure, Version] {
        let site = site("open sesame, please");
        let (initiator, _) = Initiator::begin(&secret(&site), Encryption::On);
        let answer = Greeting::of_bytes(&Greeting::refusal(refusal).to_bytes());
        let error = initiator.finish(&answer).err();
        assert_eq!(error, Some(HandshakeError::Refused(refusal)));
    }
}

/// Reads a stream of these bytes, `step` at a time, until its first step that is not `More`.
fn read(mut reader: FrameReader, mut bytes: &[u8], step: usize) -> Result<String, FrameError> {
    loop {
        let more = match reader.next(&mut [])? {
            Step::More => true,
            Step::Greeting(greeting) => return Ok(format!("{greeting:?}")),
            other => return Ok(format!("{other:?}")),
        };
        assert!(more);
        let fill = reader.fill(
            |pieces| {
                let count = step.min(bytes.len()).min(pieces[0].len());
                pieces[0][..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                Ok(count)
            },
            &mut [],
        );
        if fill.expect("it does not fail").is_none() {
            return Ok("end".into());
        }
    }
}

#[test]
fn greetings_are_read_however_they_are_divided() {
    let (_, greeting) = Initiator::begin(&secret(&site("open sesame, please")), Encryption::On);
    let bytes = greeting.to_bytes();
    let shown = format!("{greeting:?}");
    let reader = |replies| match replies {
        true => FrameReader::of_replies(1 << 20, true),
        false => FrameReader::of_requests(1 << 20, true),
    };
    for replies in [true, false] {
        for step in [1, 3, 7, 1000] {
            assert_eq!(read(reader(replies), &bytes, step), Ok(shown.clone()));
        }
        for cut in 0..bytes.len() {
            assert_eq!(read(reader(replies), &bytes[..cut], 1000), Ok("end".into()));
        }
        let more = [&bytes[..], &[0]].concat();
        assert_eq!(
            read(reader(replies), &more, 1000),
            Err(FrameError::Trailing)
        );
        let mut long = bytes.clone();
        long[6..8].copy_from_slice(&[255; 2]);
        assert!(read(reader(replies), &long, 1000).is_err());
    }
    // Who does not greet sends a frame first. Whether that is right is for others to say.
    let mut frame = Vec::new();
    let request = Request {
        id: 1,
        seat: 0,
        reply_slot: None,
        generation: 0,
        epoch: 0,
        replay: false,
        caller: None,
        hints: None,
        op: Op::Ping,
        payload_len: 0,
    };
    encode_request(&request, &mut frame);
    let first = read(reader(false), &frame, 1).expect("it is a frame");
    assert!(first.starts_with("Frame"), "{first}");
}

#[test]
fn who_replays_a_greeting_cannot_confirm_it() {
    let site = [site("open sesame, please")];
    let (initiator, greeting) = Initiator::begin(&secret(&site[0]), Encryption::Off);
    let accepted = || accept(&site, Encryption::Off, 0, &greeting).expect("it is right");
    let (first, replayed) = (accepted(), accepted());
    let finished = initiator.finish(&first.answer).expect("a forwarder");
    let Finished::Plain(greeting) = finished else {
        panic!("both want no protection");
    };
    let holds = |accepted: Accepted| accepted.channel.err().is_some_and(|it| it.is_in(&greeting));
    assert!(!holds(replayed) && holds(first));
}
