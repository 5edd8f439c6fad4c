//! What is replayed of a trace, and what is refused.

use super::reading::extent;
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_trace::{Direction, Header, Record, Shuffle, Writer};

/// The bytes of a trace of one application.
fn trace(records: &[Record]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &Header::default()).expect("memory");
    let app = writer.application("job").expect("memory");
    for record in records {
        writer.record(&Record { app, ..*record }).expect("memory");
    }
    writer.finish().expect("memory")
}

/// Reads these bytes as the trace `t`.
fn read_bytes(options: ReplayOptions, bytes: &[u8]) -> Result<Replay, (String, String)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("tidegate-replay-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("t"), bytes).expect("room");
    let replay = Replay::read(options, &folder);
    std::fs::remove_dir_all(&folder).expect("it was made above");
    replay
}

fn steps_of(replay: &Replay) -> Vec<Step> {
    assert_eq!(replay.names().collect::<Vec<_>>(), ["job"]);
    assert_eq!(replay.clients().collect::<Vec<_>>(), [1]);
    let mut programs = replay.programs(0, 1000);
    let mut rng = Rng::new(1);
    std::iter::repeat_with(|| programs[0].next(&mut rng))
        .take_while(|step| *step != Step::Exit)
        .collect()
}

fn steps(options: ReplayOptions, records: &[Record]) -> Vec<Step> {
    let replay = read_bytes(options, &trace(records)).expect("it is right");
    assert!(replay.warnings().is_empty(), "{:?}", replay.warnings());
    steps_of(&replay)
}

fn options() -> ReplayOptions {
    ReplayOptions {
        files: vec!["t".into()],
        pace: ReplayPace::Recorded,
        speed: 2.0,
        in_flight: 2,
        request_max: Bytes(100),
    }
}

fn record(arrival_ns: u64, offset: u64, len: u64, listed: bool) -> Record {
    Record {
        arrival_ns,
        offset,
        len,
        listed,
        ..Record::default()
    }
}

#[test]
fn accesses_come_at_their_times_or_as_answers_come() {
    let records = [
        record(50, 0, 10, false),
        record(50, 20, 10, true),
        record(70, 0, 250, false),
    ];
    let issue = |ranges: &[(u64, u64)]| {
        let mut extents = ranges.iter().map(|(offset, len)| extent(*offset, *len));
        let first = extents.next().expect("one");
        let rest = extents.collect();
        Step::Issue(Access {
            file: 0,
            direction: Direction::Read,
            extents: tidegate_wire::Extents { first, rest },
            part: None,
        })
    };
    let made = [
        issue(&[(0, 10), (20, 10)]),
        issue(&[(0, 100)]),
        issue(&[(100, 100)]),
        issue(&[(200, 50)]),
    ];
    let times = [0, 10, 10, 10];
    let open = made.iter().zip(times);
    let open: Vec<Step> = open
        .flat_map(|(step, at)| [Step::Until(1000 + at), step.clone()])
        .collect();
    assert_eq!(steps(options(), &records), open);
    let closed = ReplayOptions {
        pace: ReplayPace::Closed,
        ..options()
    };
    let pairs = made.iter().flat_map(|step| [Step::Drain(1), step.clone()]);
    assert_eq!(steps(closed, &records), pairs.collect::<Vec<_>>());
}

#[test]
fn requests_of_one_collective_operation_are_one_again_with_their_shuffles() {
    let of = |client, operation, issue_ns, us| Record {
        client,
        operation,
        issue_ns: Some(issue_ns),
        shuffle: Some(Shuffle {
            us,
            max_us: 50,
            rank: 1,
        }),
        ..record(90, 0, 10, false)
    };
    let alone = Record {
        shuffle: None,
        ..of(2, 7, 20, 0)
    };
    // Number and stamp tell operations apart.
    let records = [
        of(1, 7, 20, 5),
        of(1, 7, 20, 5),
        of(2, 7, 20, 50),
        alone,
        of(2, 7, 30, 7),
        of(2, 8, 20, 6),
    ];
    let replay = read_bytes(options(), &trace(&records)).expect("it is right");
    let mut programs = replay.programs(0, 0);
    let parts = programs.iter_mut().map(|program| {
        let mut rng = Rng::new(1);
        let steps = std::iter::repeat_with(|| program.next(&mut rng));
        let steps = steps.take_while(|step| *step != Step::Exit);
        let parts = steps.filter_map(|step| match step {
            Step::Issue(access) => {
                let part = access.part;
                Some(part.map(|part| (part.operation, part.shuffle_ns, part.with_shuffle)))
            }
            _ => None,
        });
        parts.collect::<Vec<_>>()
    });
    // Both of the first client's are of one operation: its shuffle comes once, behind the last.
    let expected = [
        vec![Some((0, 5000, false)), Some((0, 5000, true))],
        vec![
            Some((0, 50_000, true)),
            None,
            Some((2, 6000, true)),
            Some((1, 7000, true)),
        ],
    ];
    assert_eq!(parts.collect::<Vec<_>>(), expected);
}

#[test]
fn what_cannot_be_replayed_is_named() {
    let read = |options| Replay::read(options, Path::new("/nowhere")).err();
    let key = |options| read(options).expect("it is wrong").0;
    assert_eq!(key(options()), "files");
    assert_eq!(
        key(ReplayOptions {
            speed: 0.0,
            ..options()
        }),
        "speed"
    );
    assert_eq!(
        key(ReplayOptions {
            in_flight: 0,
            ..options()
        }),
        "in_flight"
    );
    assert_eq!(
        key(ReplayOptions {
            files: vec![],
            ..options()
        }),
        "files"
    );
}

#[test]
fn what_is_missing_in_a_trace_is_said() {
    let records = [record(0, 0, 10, false), record(50, 10, 10, false)];
    let bytes = trace(&records);
    let warnings = |bytes: &[u8]| {
        let replay = read_bytes(options(), bytes).expect("a part is left");
        let warnings = replay.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        warnings[0].clone()
    };
    let cut = warnings(&bytes[..bytes.len() - 5]);
    assert!(cut.contains("/t: the trace is cut short amid"), "{cut}");
    let mut damaged = bytes.clone();
    let end = damaged.len();
    damaged[end - 20] ^= 1;
    let damaged = warnings(&damaged);
    assert!(damaged.contains("/t: the trace is damaged at"), "{damaged}");

    let mut writer = Writer::new(Vec::new(), &Header::default()).expect("memory");
    writer.record(&records[0]).expect("memory");
    writer.dropped(7).expect("memory");
    let dropped = warnings(&writer.finish().expect("memory"));
    assert!(dropped.starts_with("7 requests are missing"), "{dropped}");
}

#[test]
fn requests_that_had_failed_are_left_out_and_counted() {
    let failed = |arrival_ns, offset, listed| Record {
        errno: 5,
        ..record(arrival_ns, offset, 10, listed)
    };
    let records = [
        // Times count from the first one that is replayed.
        failed(10, 0, false),
        record(50, 0, 10, false),
        // The rest of this message does not become a part of the access before.
        failed(70, 20, false),
        record(70, 40, 10, true),
        record(70, 60, 10, true),
    ];
    let replay = read_bytes(options(), &trace(&records)).expect("a part is left");
    let issued: Vec<_> = steps_of(&replay)
        .into_iter()
        .map(|step| match step {
            Step::Issue(access) => access.extents.iter().map(|it| it.offset).collect(),
            Step::Until(at) => vec![at],
            step => panic!("{step:?}"),
        })
        .collect();
    assert_eq!(issued, [vec![1000], vec![0], vec![1010], vec![40, 60]]);
    let said = replay.warnings();
    assert!(
        said.len() == 1 && said[0].ends_with("/t: requests that had failed are not replayed: 2"),
        "{said:?}"
    );
    let error = read_bytes(options(), &trace(&records[..1])).expect_err("nothing is left");
    assert_eq!(error.1, "all 1 requests in these traces had failed");
}

#[test]
fn impossible_records_are_named() {
    let good = record(5, 0, 10, false);
    let far = i64::MAX as u64;
    let year = 365 * 24 * 3_600_000_000_000;
    for (bad, said) in [
        (
            record(9, 0, far, false),
            "/t: record 2: 9223372036854775807 bytes: with it, these are more than 16777216",
        ),
        (
            record(9, far, 10, false),
            "/t: record 2: 10 bytes at offset 9223372036854775807 end behind the last byte",
        ),
        (record(9, u64::MAX, u64::MAX, false), "/t: record 2: "),
        (
            record(1_000_000 + 2 * year, 0, 10, false),
            "/t: record 2: it begins more than a year after the first one, at 2 times",
        ),
    ] {
        let (key, reason) = read_bytes(options(), &trace(&[good, bad])).expect_err("it is wrong");
        assert!(key == "files" && reason.contains(said), "{key}: {reason}");
    }
    let slow = ReplayOptions {
        speed: 1e-300,
        ..options()
    };
    let records = [good, record(9, 0, 10, false)];
    let (_, reason) = read_bytes(slow, &trace(&records)).expect_err("it takes for ever");
    assert!(reason.contains("more than a year"), "{reason}");
}
