//! Greetings between nodes, the channel that comes of them, and the frames in it: whoever lacks
//! the secret is not believed, and what was changed on the way is not taken.

use crate::Draw;
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::LazyLock;
use std::time::Duration;
use tidegate_net::{
    Asking, Carried, Channel, Encryption, Finished, FrameReader, Greeting, Initiator, Secret,
    SiteSecret, Step, accept, give_ticket,
};
use tidegate_wire::frame::{HEADER_LEN, checksum};
use tidegate_wire::{Grant, Limits, Role};

/// Bytes of a payload that the frames may have.
const PAYLOAD_MAX: u32 = 1 << 16;

/// A site, and the secrets of a mount and of an operator who has left.
pub(crate) static SITE: LazyLock<[SiteSecret; 1]> =
    LazyLock::new(|| [site(*b"the secret of this site")]);
pub(crate) static MOUNT: LazyLock<Secret> =
    LazyLock::new(|| derived(Role::Mount(Limits::default()), None));
static LEFT: LazyLock<Secret> = LazyLock::new(|| derived(Role::Operator, Some(1)));

fn site<const N: usize>(bytes: [u8; N]) -> SiteSecret {
    SiteSecret::of_bytes(bytes.into()).expect("it is long enough")
}

fn derived(role: Role, expires: Option<u64>) -> Secret {
    let name = "fuzz".into();
    let grant = Grant {
        role,
        name,
        expires,
        by: None,
    };
    SITE[0].derive(grant).expect("the grant is right")
}

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    match draw.u8() % 5 {
        0 => forwarder_hears(&mut draw),
        1 => client_hears(&mut draw),
        2 => on_the_way(&mut draw),
        3 => through_a_channel(&mut draw),
        _ => frames(&mut draw),
    }
}

fn encryption(draw: &mut Draw<'_>) -> Encryption {
    draw.of(&Encryption::ALL)
}

/// The greeting at the front of these bytes, as a reader of such frames finds it.
fn greeting(bytes: &[u8], replies: bool, step: usize) -> Option<Greeting> {
    let mut found = None;
    read(bytes, (replies, true), step, |step| match step {
        Step::Greeting(greeting) => {
            found = Some(greeting);
            false
        }
        _ => false,
    });
    found
}

/// Reads a stream of these bytes, `step` at a time, until `take` is false or the bytes are over: of
/// replies or requests, with or without greetings. Returns whether it was sound up to there.
fn read(
    mut bytes: &[u8],
    (replies, greets): (bool, bool),
    step: usize,
    mut take: impl FnMut(Step<'_>) -> bool,
) -> bool {
    let mut reader = match replies {
        true => FrameReader::of_replies(PAYLOAD_MAX, greets),
        false => FrameReader::of_requests(PAYLOAD_MAX, greets),
    };
    let (mut target, mut kept) = (Vec::new(), 0);
    loop {
        match reader.next(&mut target) {
            Err(_) => return false,
            Ok(Step::More) => {}
            Ok(Step::Frame(header, body)) => {
                let payload = match header.shared {
                    true => 0,
                    false => header.payload_len as usize,
                };
                assert!(payload <= PAYLOAD_MAX as usize);
                if !take(Step::Frame(header, body)) {
                    return true;
                }
                kept += 1;
                match kept % 2 {
                    1 if payload > 0 => {
                        target = vec![0; payload];
                        reader.keep_payload();
                    }
                    _ => reader.skip_payload(),
                }
                continue;
            }
            Ok(other) => {
                let payload = matches!(other, Step::Payload);
                if !take(other) {
                    return true;
                }
                if payload {
                    target.clear();
                }
                continue;
            }
        }
        let receive = |pieces: &mut [IoSliceMut<'_>]| {
            let mut all = 0;
            for piece in pieces {
                let count = piece.len().min(bytes.len()).min(step - all);
                piece[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                all += count;
            }
            Ok(all)
        };
        if let Ok(None) = reader.fill(receive, &mut target) {
            return true;
        }
    }
}

/// What a forwarder hears of somebody who has no secret.
fn forwarder_hears(draw: &mut Draw<'_>) {
    let least = encryption(draw);
    let step = 1 + usize::from(draw.u8());
    if let Some(greeting) = greeting(draw.rest(), false, step) {
        assert!(accept(&*SITE, least, 0, &greeting).is_err());
        if greeting.credential().is_some() {
            let carried = Carried::new(([10, 0, 0, 1], 4600).into()).expect("random bytes");
            let given = give_ticket(&greeting, &carried, &MOUNT, Duration::from_secs(45));
            assert!(given.is_err(), "who has not the key gets no ticket");
        }
    }
    if let Some(carried) = Carried::of_bytes(draw.rest()) {
        assert!(Carried::of_bytes(&carried.to_bytes()).is_some_and(|it| it == carried));
    }
}

/// What a client hears of somebody who has no secret.
fn client_hears(draw: &mut Draw<'_>) {
    let (initiator, _) = Initiator::begin(&MOUNT, encryption(draw));
    let step = 1 + usize::from(draw.u8());
    if let Some(greeting) = greeting(draw.rest(), true, step) {
        assert!(initiator.finish(&greeting).is_err());
        let carried = Carried::new(([10, 0, 0, 1], 4600).into()).expect("random bytes");
        let (asking, _) = Asking::begin("MUNGE:AwQ=:", &carried).expect("a credential");
        assert!(asking.finish(&greeting).is_err());
    }
}

/// Bytes with a few of them changed, left out or put in, and whether they differ.
pub(crate) fn changed(draw: &mut Draw<'_>, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut changed = bytes.to_vec();
    for _ in 0..draw.u8() % 4 {
        let at = usize::from(draw.u16()) % (changed.len() + 1);
        match draw.u8() % 4 {
            0 => changed.truncate(at),
            1 => drop(changed.splice(at..at, draw.some_bytes().iter().copied())),
            2 => drop(changed.drain(at..changed.len().min(at + 1 + usize::from(draw.u8())))),
            _ => {
                let flip = draw.u8();
                changed.get_mut(at).into_iter().for_each(|it| *it ^= flip);
            }
        }
    }
    let differ = changed != bytes;
    (changed, differ)
}

/// A true client and a true forwarder, with somebody between them who changes what they say.
fn on_the_way(draw: &mut Draw<'_>) {
    let (asks, least) = (encryption(draw), encryption(draw));
    let left = draw.one_in(4);
    let secret = if left { &*LEFT } else { &*MOUNT };
    let (initiator, said) = Initiator::begin(secret, asks);
    let (heard, differs) = changed(draw, &said.to_bytes());
    let Some(heard) = greeting(&heard, false, 1 << 12) else {
        return assert!(differs, "a greeting was not found");
    };
    let Ok(accepted) = accept(&*SITE, least, 1, &heard) else {
        return assert!(differs || left, "a greeting was refused");
    };
    assert!(!differs && !left, "a greeting was forged");
    let (answer, differs) = changed(draw, &accepted.answer.to_bytes());
    let Some(answer) = greeting(&answer, true, 1 << 12) else {
        return assert!(differs, "an answer was not found");
    };
    let Ok(finished) = initiator.finish(&answer) else {
        return assert!(differs, "an answer was refused");
    };
    assert!(!differs, "an answer was forged");
    if let (Finished::Plain(confirms), Err(confirmation)) = (finished, accepted.channel) {
        let (confirms, differs) = changed(draw, &confirms.to_bytes());
        let heard = greeting(&confirms, false, 1 << 12);
        let confirmed = heard.is_some_and(|it| confirmation.is_in(&it));
        // Frames may follow it at once.
        assert!(
            !confirmed || !differs || confirms.len() > 40,
            "it was forged"
        );
    }
}

/// Two ends of a channel that protects.
fn pair(asks: Encryption) -> (Channel, Channel) {
    let (initiator, said) = Initiator::begin(&MOUNT, asks.max(Encryption::Integrity));
    let accepted = accept(&*SITE, Encryption::Off, 0, &said);
    let accepted = accepted.unwrap_or_else(|refusal| panic!("{refusal}"));
    let finished = initiator.finish(&accepted.answer);
    match (finished, accepted.channel) {
        (Ok(Finished::Protected(client)), Ok(forwarder)) => (*client, forwarder),
        _ => panic!("they agree on a channel"),
    }
}

/// What goes through a channel, changed on the way, arrives as it was sent or not at all.
fn through_a_channel(draw: &mut Draw<'_>) {
    let (client, forwarder) = pair(encryption(draw));
    let (mut way, mut sent) = (Vec::new(), Vec::new());
    let shape = draw.u8();
    for number in 0..1 + shape % 4 {
        let len = usize::from(draw.u16()) + 1;
        let mut piece: Vec<u8> = (0..len).map(|at| (at + sent.len()) as u8).collect();
        sent.extend_from_slice(&piece);
        let mut left = &mut piece[..];
        while !left.is_empty() {
            let mut write = |bytes: &[u8]| {
                way.extend_from_slice(bytes);
                Ok(bytes.len())
            };
            let count = match shape >> (2 + number) & 1 {
                0 => client.send(&[(&*left).into()], write),
                _ => client.send_in_place(left, |pieces| {
                    let written = pieces.iter().map(|piece| write(piece));
                    written.sum()
                }),
            };
            left = &mut left[count.expect("there is room")..];
        }
    }
    let (way, differs) = changed(draw, &way);
    let (step, room) = (1 + usize::from(draw.u16()), 1 + usize::from(draw.u16()));
    let mut left = &way[..];
    let (mut heard, mut into, mut filled) = (Vec::new(), vec![0; room], 0);
    loop {
        let read = |pieces: &mut [IoSliceMut<'_>]| -> io::Result<usize> {
            let mut all = 0;
            for into in pieces {
                let count = left.len().min(into.len()).min(step - all);
                into[..count].copy_from_slice(&left[..count]);
                left = &left[count..];
                all += count;
            }
            Ok(all)
        };
        // A piece is filled before the next one begins.
        match forwarder.receive(&mut [IoSliceMut::new(&mut into[filled..])], read) {
            Ok(0) => break,
            Ok(count) => {
                heard.extend_from_slice(&into[filled..filled + count]);
                filled = (filled + count) % room;
            }
            Err(error) => {
                assert!(differs && error.kind() != ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!(sent.starts_with(&heard), "bytes were forged");
    assert!(differs || heard == sent, "bytes were lost");
}

/// Frames with payload are the same however the bytes are divided.
fn frames(draw: &mut Draw<'_>) {
    let (replies, step) = (draw.yes(), 1 + usize::from(draw.u8()));
    let mut bytes = Vec::new();
    while !draw.is_over() {
        let mut head = [0; HEADER_LEN];
        let drawn = draw.bytes(28);
        head[..drawn.len()].copy_from_slice(drawn);
        let body = draw.some_bytes();
        head[20..24].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[56..60].copy_from_slice(&checksum(body).to_le_bytes());
        let sum = checksum(&head[..60]);
        head[60..64].copy_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(draw.some_bytes());
    }
    let steps = |step| {
        let mut steps = Vec::new();
        let sound = read(&bytes, (replies, false), step, |step| {
            steps.push(format!("{step:?}"));
            true
        });
        (sound, steps)
    };
    assert_eq!(steps(step), steps(usize::MAX / 2));
}
