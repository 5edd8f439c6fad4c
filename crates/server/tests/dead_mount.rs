//! The mount of the back end dies under a forwarder: it ends with the reason, and what was asked of
//! it takes effect once, at the next forwarder.

mod support;

use std::io::ErrorKind;
use support::{Peer, Scratch, start};
use tidegate_server::StartError;
use tidegate_server::config::Durability;
use tidegate_wire::frame::encode_request;
use tidegate_wire::{Op, Outcome, RenameMode, Request, Status};

const REACTORS: u32 = 1;
/// More jobs than the requests below lead to.
const JOBS_MAX: u64 = 16;

/// Changes that cannot be repeated: each fails where the one before it is missing, and where it has
/// had its effect already.
fn changes(peer: &Peer) -> Vec<Op> {
    let parent = peer.root();
    vec![
        Op::Create {
            parent,
            name: (*b"file").into(),
            mode: 0o644,
            exclusive: true,
        },
        Op::Mkdir {
            parent,
            name: (*b"folder").into(),
            mode: 0o755,
        },
        Op::Rename {
            parent,
            name: (*b"file").into(),
            new_parent: parent,
            new_name: (*b"moved").into(),
            mode: RenameMode::NoReplace,
        },
        Op::Unlink {
            parent,
            name: (*b"moved").into(),
        },
        Op::Rmdir {
            parent,
            name: (*b"folder").into(),
        },
    ]
}

/// What comes of a request; None if the forwarder ends the connection instead of an answer.
fn ask(peer: &mut Peer, request: &Request) -> Option<(u64, Result<Outcome, Status>)> {
    let mut bytes = Vec::new();
    encode_request(request, &mut bytes);
    let answer = peer.send(&bytes).and_then(|()| peer.receive());
    match answer {
        Ok((reply, _)) => Some((reply.generation, reply.result)),
        Err(error) => {
            let gone = [
                ErrorKind::UnexpectedEof,
                ErrorKind::ConnectionReset,
                ErrorKind::BrokenPipe,
            ];
            assert!(gone.contains(&error.kind()), "{error}");
            None
        }
    }
}

/// The mount dies at that job. False if there were fewer.
fn dies_at(job: u64, durability: Option<Durability>) -> bool {
    let scratch = Scratch::new("dead-mount");
    let ill = start(&scratch, |config| {
        config.faults.dead_mount_at = Some(job);
        config.ownership.durability = durability;
        config.ownership.ttl_ms = 400;
    });
    let mut peer = Peer::unix(&scratch.socket()).greet();
    let client = peer.client();
    let requests: Vec<Request> = changes(&peer)
        .into_iter()
        .map(|op| peer.request(op, 0))
        .collect();
    let mut asked = requests.iter();
    let open = asked.find(|request| {
        let answer = ask(&mut peer, request);
        if let Some((_, result)) = &answer {
            assert!(result.is_ok(), "job {job}: {:?}: {result:?}", request.op);
        }
        answer.is_none()
    });
    let Some(open) = open else {
        return false;
    };
    match ill.shutdown() {
        Err(StartError::Stopped(why)) => {
            let why = why.to_string();
            assert!(why.contains("the mount of the back end is dead"), "{why}");
        }
        other => panic!("job {job}: it did not end with the reason: {other:?}"),
    }
    let healthy = start(&scratch, |config| {
        config.ownership.durability = durability;
        config.ownership.ttl_ms = 400;
    });
    let mut peer = Peer::unix(&scratch.socket()).again(client, 2).greet();
    let mut generation = 0;
    for request in [open].into_iter().chain(asked) {
        // It sends elsewhere until it has its seat, and then tells the number.
        let result = loop {
            let request = Request {
                generation,
                ..request.clone()
            };
            match ask(&mut peer, &request).expect("this forwarder is well") {
                (now, Err(Status::NewGeneration)) => generation = now,
                (_, Err(Status::NotMySeat)) => {}
                (_, result) => break result,
            }
        };
        assert!(result.is_ok(), "job {job}: {:?}: {result:?}", request.op);
    }
    assert!(healthy.shutdown().expect("it ends"));
    true
}

fn each_change_takes_effect_once(durability: Option<Durability>) {
    let died = (1..=JOBS_MAX).take_while(|job| dies_at(*job, durability));
    let died = died.count() as u64;
    assert!((5..JOBS_MAX).contains(&died), "{died} jobs");
}

#[test]
fn a_dead_mount_is_told_to_nobody_by_locks() {
    each_change_takes_effect_once(None);
}

#[test]
fn a_dead_mount_is_told_to_nobody_by_leases() {
    each_change_takes_effect_once(Some(Durability::Node));
}
