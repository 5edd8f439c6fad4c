//! The bytes of a trace: checked-in vectors, every cut, every flipped bit, and random blocks.
//!
//! Each file of `vectors/` holds a block as Rust prints it, in comments, and its bytes in hex.
//! `TIDEGATE_BLESS=1 cargo test -p tidegate-trace --test format` writes them anew.

use std::fmt::Write as _;
use std::path::PathBuf;
use tidegate_trace::format::{BLOCK_LEN, Block, BlockError, Bytes, checksum};
use tidegate_trace::{
    AppId, Direction, Ending, FileId, Header, Merged, Origin, ReadError, Reader, Record, Shuffle,
    Writer,
};

fn header() -> Header {
    Header {
        zero_wall_ns: 1_700_000_000_000_000_000,
        forwarders: 4,
        stripe: 1 << 20,
        origin: Origin::Forwarder,
    }
}

fn read() -> Record {
    Record {
        arrival_ns: 5_000_000_123,
        issue_ns: Some(-77),
        app: AppId::from_name("climate"),
        operation: 9,
        file: FileId(4242),
        client: 0xcafe_f00d,
        forwarder: Some(3),
        direction: Direction::Read,
        append: false,
        listed: true,
        offset: 7 << 20,
        len: 65_536,
        done: 65_000,
        errno: 0,
        wait_ns: Some(1_000),
        service_ns: Some(250_000),
        shuffle: None,
    }
}

const SHUFFLE: Shuffle = Shuffle {
    us: 700,
    max_us: 90_000,
    rank: 5,
};

fn failed_append() -> Record {
    Record {
        direction: Direction::Write,
        append: true,
        listed: false,
        done: 0,
        errno: 28,
        issue_ns: None,
        forwarder: None,
        wait_ns: None,
        service_ns: None,
        ..read()
    }
}

fn vectors() -> Vec<(&'static str, Block)> {
    vec![
        ("header", Block::Header(header())),
        ("read", Block::Request(read())),
        ("failed-append", Block::Request(failed_append())),
        ("shuffle", Block::Shuffle(SHUFFLE)),
        (
            "name",
            Block::Name(AppId::from_name("climate"), "climate".to_string()),
        ),
        ("loss", Block::Loss(17)),
        (
            "end",
            Block::End {
                recorded: 100,
                dropped: 17,
                at_ns: 6_000_000_000,
            },
        ),
    ]
}

#[test]
fn blocks_have_the_bytes_of_the_vectors() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    for (name, block) in vectors() {
        let bytes = block.encode();
        let mut text = String::new();
        for line in format!("{block:#?}").lines() {
            let _ = writeln!(text, "# {line}");
        }
        for row in bytes.chunks(16) {
            let row: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(text, "{}", row.join(" "));
        }
        let path = folder.join(format!("{name}.hex"));
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::write(&path, &text).expect("the folder is ours");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{}", path.display());
        assert_eq!(Block::decode(&bytes), Ok(block));
    }
}

fn written() -> (Vec<u8>, Vec<Record>) {
    let with_shuffle = Record {
        shuffle: Some(SHUFFLE),
        ..failed_append()
    };
    let records = [read(), with_shuffle, read()];
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory takes it");
    writer.application("climate").expect("memory takes it");
    for record in &records {
        writer.record(record).expect("memory takes it");
    }
    writer.dropped(2).expect("memory takes it");
    (
        writer.finish().expect("memory takes it"),
        Vec::from(records),
    )
}

/// How many requests so many blocks of that hold: the header, a name, and a shuffle are none.
fn records_in(blocks: usize) -> usize {
    [0, 0, 0, 1, 1, 2].get(blocks).copied().unwrap_or(3)
}

#[test]
fn a_trace_cut_anywhere_is_read_up_to_there() {
    let (bytes, records) = written();
    for len in 0..=bytes.len() {
        let mut reader = match Reader::new(&bytes[..len], "t") {
            Ok(reader) => reader,
            Err(ReadError::NoTrace { why, .. }) => {
                assert!(len < BLOCK_LEN, "{why}");
                assert!(
                    len == 0 || why.contains(&format!("only {len} bytes")),
                    "{why}"
                );
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let read: Vec<_> = reader.by_ref().map(|one| one.expect("memory")).collect();
        assert_eq!(read, records[..records_in(len / BLOCK_LEN)]);
        let expected = match len % BLOCK_LEN {
            0 if len == bytes.len() => Ending::Closed,
            0 => Ending::Open,
            _ => Ending::Cut { at: len as u64 },
        };
        assert_eq!(*reader.ending(), expected);
        assert_eq!(expected.warning().is_some(), expected != Ending::Closed);
    }
    let mut reader = Reader::new(&bytes[..], "t").expect("it is a trace");
    assert_eq!(reader.by_ref().count(), 3);
    assert_eq!((reader.dropped(), reader.recordings()), (2, 1));
    assert_eq!(reader.ended_ns(), 5_000_000_123 + 251_000);
}

#[test]
fn a_shuffle_waits_for_its_request_and_not_for_another_recording() {
    let request = Block::Request(read());
    let read_of = |between: &[Block]| {
        let header = Block::Header(header());
        let mut blocks = vec![header, Block::Shuffle(SHUFFLE)];
        blocks.extend_from_slice(between);
        blocks.extend([request.clone(), request.clone()]);
        let bytes: Vec<u8> = blocks.iter().flat_map(Block::encode).collect();
        let reader = Reader::new(&bytes[..], "t").expect("it is a trace");
        let records = reader.map(|record| record.expect("memory").shuffle);
        records.collect::<Vec<_>>()
    };
    let name = Block::Name(AppId(1), "one".to_string());
    assert_eq!(read_of(&[Block::Loss(3), name]), [Some(SHUFFLE), None]);
    assert_eq!(read_of(&[Block::Header(header())]), [None, None]);
}

#[test]
fn a_flipped_bit_ends_the_reading_and_is_told() {
    let (bytes, _) = written();
    for bit in (BLOCK_LEN * 8)..(bytes.len() * 8) {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let mut reader = Reader::new(&bad[..], "t").expect("the header is whole");
        let count = reader.by_ref().count();
        let at = bit / 8 / BLOCK_LEN;
        assert_eq!(count, records_in(at));
        let why = BlockError::Checksum;
        let at = (at * BLOCK_LEN) as u64;
        assert_eq!(*reader.ending(), Ending::Damaged { at, why });
    }
}

#[test]
fn what_is_no_trace_is_refused_in_words() {
    let say = |bytes: &[u8]| {
        Reader::new(bytes, "t")
            .map(|_| ())
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(say(b""), "t: the file is empty");
    assert!(say(b"hello").contains("not a trace"));
    assert!(say(&[0; 200]).contains("not a trace"));
    let mut other = Block::Header(header()).encode();
    other[8] = 2;
    assert_eq!(
        say(&other),
        "t: the trace's header: the format's version is 2, and only 1 is known"
    );
}

/// A small generator of pseudo-random numbers (SplitMix64), so that a seed repeats a run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        tidegate_sched::mix64(self.0)
    }
}

#[test]
fn random_blocks_decode_to_what_encodes_to_them_or_not_at_all() {
    let mut random = Random(1);
    let mut decoded = 0;
    for round in 0..200_000u32 {
        let mut bytes: Bytes = vectors()[round as usize % 6].1.encode();
        for _ in 0..random.next() % 4 {
            bytes[random.next() as usize % 92] = random.next() as u8;
        }
        let sum = checksum(&bytes);
        bytes[92..].copy_from_slice(&sum.to_le_bytes());
        if let Ok(block) = Block::decode(&bytes) {
            assert_eq!(block.encode(), bytes);
            decoded += 1;
        }
    }
    assert!(decoded > 50_000, "{decoded}");
}

#[test]
fn a_recorder_that_comes_back_goes_on_in_its_file() {
    let (mut bytes, _) = written();
    let later = Header {
        zero_wall_ns: header().zero_wall_ns + 60_000_000_000,
        ..header()
    };
    let mut writer = Writer::new(Vec::new(), &later).expect("memory takes it");
    writer.record(&read()).expect("memory takes it");
    writer.dropped(1).expect("memory takes it");
    bytes.extend(writer.finish().expect("memory takes it"));
    let mut reader = Reader::new(&bytes[..], "t").expect("it is a trace");
    let last = reader
        .by_ref()
        .last()
        .expect("there are some")
        .expect("memory");
    assert_eq!(last.arrival_ns, read().arrival_ns + 60_000_000_000);
    assert_eq!(last.issue_ns, Some(60_000_000_000 - 77));
    assert_eq!((reader.recordings(), reader.dropped()), (2, 3));
    assert_eq!(*reader.ending(), Ending::Closed);
}

#[test]
fn merged_traces_are_in_order_of_arrival_and_count_from_one_zero() {
    let trace = |zero_s: u64, arrivals: &[u64]| {
        let header = Header {
            zero_wall_ns: 1_000_000_000 * zero_s,
            ..header()
        };
        let mut writer = Writer::new(Vec::new(), &header).expect("memory takes it");
        for arrival_ns in arrivals {
            let record = Record {
                arrival_ns: *arrival_ns,
                ..read()
            };
            writer.record(&record).expect("memory takes it");
        }
        writer.finish().expect("memory takes it")
    };
    let (one, other) = (trace(101, &[5, 3, 9]), trace(100, &[1_000_000_004, 7]));
    let open = |bytes| Reader::new(bytes, "t").expect("it is a trace");
    let merged = Merged::new(vec![open(&one[..]), open(&other[..])]);
    assert_eq!(merged.zero_wall_ns(), 100_000_000_000);
    let arrivals: Vec<_> = merged
        .map(|record| record.expect("memory").arrival_ns)
        .collect();
    let s = 1_000_000_000;
    assert_eq!(arrivals, [7, s + 3, s + 4, s + 5, s + 9]);
}
