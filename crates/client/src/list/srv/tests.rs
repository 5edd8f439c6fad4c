//! Answers of DNS as they come, as they should not come, and bytes of any kind.

use super::*;
use std::io;

const NAME: &str = "_tidegate._tcp.example.org";

/// What a server says to the question for `NAME`: names point to the question's, and each target
/// to its domain.
const ANSWERED: &[u8] = b"\x1a\x2b\x85\x80\x00\x01\x00\x02\x00\x00\x00\x01\
    \x09_tidegate\x04_tcp\x07example\x03org\x00\x00\x21\x00\x01\
    \xc0\x0c\x00\x21\x00\x01\x00\x00\x0e\x10\x00\x0c\x00\x0a\x00\x3c\x11\xf8\x03IO1\xc0\x1b\
    \xc0\x0c\x00\x21\x00\x01\x00\x00\x0e\x10\x00\x0c\x00\x0a\x00\x50\x11\xf9\x03io0\xc0\x1b\
    \xc0\x3e\x00\x01\x00\x01\x00\x00\x0e\x10\x00\x04\x0a\x00\x00\x01";

/// Where the answers of `ANSWERED` begin and end.
const ANSWERS: std::ops::Range<usize> = 44..92;

/// A message with so many answers and no question.
fn message(answers: u16, bytes: &[u8]) -> Vec<u8> {
    let mut message = b"\x1a\x2b\x85\x80\x00\x00".to_vec();
    message.extend(answers.to_be_bytes());
    message.extend([0; 4]);
    message.extend(bytes);
    message
}

/// An answer for the root with this priority, weight, port, and target in bytes.
fn record(numbers: [u16; 3], target: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x00\x00\x21\x00\x01\x00\x00\x0e\x10".to_vec();
    bytes.extend((6 + target.len() as u16).to_be_bytes());
    bytes.extend(numbers.into_iter().flat_map(u16::to_be_bytes));
    bytes.extend(target);
    bytes
}

fn read(message: &[u8]) -> Result<Vec<String>, ConnectError> {
    addresses(NAME, |_| Ok(message.to_vec()))
}

fn refusal(message: &[u8]) -> String {
    read(message).expect_err("it is no list").to_string()
}

#[test]
fn two_answers_with_compressed_names() {
    let list = read(ANSWERED).expect("it is right");
    assert_eq!(
        list,
        ["tcp:io0.example.org:4601", "tcp:io1.example.org:4600"]
    );
}

#[test]
fn the_order_is_by_priority_then_weight_then_name() {
    let answers = [
        record([1, 0, 4600], b"\x01d\x00"),
        record([0, 5, 4600], b"\x01c\x00"),
        record([0, 5, 4601], b"\x01b\x00"),
        record([0, 5, 4600], b"\x01b\x00"),
        record([0, 0x100, 4600], b"\x01a\x00"),
    ];
    let list = read(&message(5, &answers.concat())).expect("it is right");
    let expected = ["a:4600", "b:4600", "b:4601", "c:4600", "d:4600"];
    assert_eq!(list, expected.map(|it| format!("tcp:{it}")));
}

#[test]
fn records_of_other_kinds_are_passed_over() {
    let alias = b"\x03old\x00\x00\x05\x00\x01\x00\x00\x0e\x10\x00\x05\x03new\x00".to_vec();
    let mut chaos = record([0, 0, 1], b"\x01x\x00");
    chaos[4] = 3;
    let service = record([0, 0, 4600], b"\x03io0\x00");
    let answers = [alias.clone(), chaos, service].concat();
    let list = read(&message(3, &answers)).expect("it is right");
    assert_eq!(list, ["tcp:io0:4600"]);
    let said = refusal(&message(1, &alias));
    assert!(said.contains("@_tidegate._tcp.example.org: the name has no SRV record"));
}

#[test]
fn what_is_no_list_is_told_with_what_to_do() {
    let timed_out = || io::Error::from_raw_os_error(110);
    let silent = |silence: fn(io::Error) -> Silence| {
        let asked = addresses(NAME, |_| Err(silence(timed_out())));
        asked.expect_err("nobody answers").to_string()
    };
    for (said, words) in [
        (silent(|_| Silence::NoName), "no such name; publish an SRV"),
        (silent(|_| Silence::NoRecord), "no SRV record in DNS; publ"),
        (
            silent(Silence::NoAnswer),
            "no name server gives an answer (Connection timed out",
        ),
        (
            silent(Silence::Failed),
            "could not be asked (Connection timed out",
        ),
        (
            refusal(&message(1, &record([0, 0, 4600], b"\x00"))),
            "target \".\"",
        ),
        (
            refusal(&message(1, &record([0, 0, 0], b"\x03io0\x00"))),
            "SRV record of io0 has port 0",
        ),
        (refusal(&message(0, b"")), "no SRV record in DNS"),
    ] {
        let named = format!("forwarders: @{NAME}: ");
        assert!(said.starts_with(&named) && said.contains(words), "{said}");
    }
}

#[test]
fn what_is_no_answer_is_told() {
    let flags = |high: u8, low: u8| {
        let mut message = ANSWERED.to_vec();
        (message[2], message[3]) = (high, low);
        refusal(&message)
    };
    assert!(flags(0x05, 0x80).contains("the answer of DNS is a question; see"));
    assert!(flags(0x87, 0x80).contains("the answer of DNS was cut short; see"));
    assert!(flags(0x85, 0x82).contains("the answer of DNS has the error code 2; see"));
    for (target, words) in [
        (&b"\x03io0\x00\x00"[..], "longer or shorter than it says"),
        (b"\x03io0", "an early end"),
        (b"\x03i o\x00", "can be no name of a node"),
        (b"\x03i.o\x00", "can be no name of a node"),
        (b"\x43io0\x00", "an unknown kind of label"),
    ] {
        let said = refusal(&message(1, &record([0, 0, 4600], target)));
        assert!(
            said.contains("is damaged: ") && said.contains(words),
            "{said}"
        );
    }
}

#[test]
fn an_answer_that_ends_early_is_refused() {
    for len in 0..ANSWERS.end {
        let said = refusal(&ANSWERED[..len]);
        assert!(said.contains("an early end"), "{len}: {said}");
    }
    read(&ANSWERED[..ANSWERS.end]).expect("what follows the answers is not read");
}

#[test]
fn names_end() {
    // To itself, ahead, and to a name that leads back; the target begins at byte 29.
    for target in [
        &b"\xc0\x1d"[..],
        b"\xc0\x1f\x00",
        b"\x03io0\xc0\x1d",
        b"\xff\xff",
    ] {
        let said = refusal(&message(1, &record([0, 0, 4600], target)));
        assert!(said.contains("a name that does not end"), "{said}");
    }
    let label = |len: u8| [&[len][..], &vec![b'a'; usize::from(len)]].concat();
    let long = |last: u8| {
        let target = [label(63), label(63), label(63), label(last), vec![0]].concat();
        read(&message(1, &record([0, 0, 4600], &target)))
    };
    long(61).expect("255 bytes");
    let said = long(62).expect_err("256 bytes").to_string();
    assert!(said.contains("a name of more than 255 bytes"), "{said}");
}

/// Numbers that look random, from a seed (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A list of a message of any bytes: if there is one, of addresses that can be.
fn bear(bytes: &[u8]) -> bool {
    let list = read(bytes);
    for address in list.iter().flatten() {
        let host = address
            .strip_prefix("tcp:")
            .and_then(|it| it.rsplit_once(':'));
        let (host, port) = host.unwrap_or_else(|| panic!("{address} of {bytes:?}"));
        assert!(
            is_name(host) && port.parse() != Ok(0u16),
            "{address} of {bytes:?}"
        );
    }
    list.is_ok()
}

#[test]
fn any_bytes_are_borne() {
    let mut right = 0;
    for at in 0..ANSWERED.len() {
        let mut changed = ANSWERED.to_vec();
        for byte in 0..=255 {
            changed[at] = byte;
            right += usize::from(bear(&changed));
        }
    }
    // Such as those with another id, weight or letter.
    assert!(right > 5_000, "{right} of {}", 256 * ANSWERED.len());
    let mut random = Random(0x7469_6465_6761_7465);
    // Pointers, short labels, ends and the kind of record come often.
    let bytes = [0xc0, 0, 1, 2, 3, 12, 33, b'a', b'_', 0xff];
    for _ in 0..100_000 {
        let len = random.below(120);
        let any = |_| match random.below(4) {
            0 => random.below(256) as u8,
            _ => bytes[random.below(bytes.len())],
        };
        let body: Vec<u8> = (0..len).map(any).collect();
        let answers = random.below(4) as u16;
        bear(&body);
        bear(&message(answers, &body));
        let mut spliced = ANSWERED.to_vec();
        let at = random.below(spliced.len());
        let end = spliced.len().min(at + random.below(8));
        spliced.splice(at..end, body.into_iter().take(8));
        bear(&spliced);
    }
}

#[test]
fn a_message_full_of_pointers_is_read_to_its_end() {
    // In the data of the first answer, each pointer leads to the one before it, and the first one
    // to the root; the names of the other answers are led through all of them.
    let pointer = |to: usize| (0xc000 | to as u16).to_be_bytes();
    let first = 23;
    let last = 0x3ffe - first % 2;
    let data = std::iter::once(12).chain((first..last).step_by(2));
    let data: Vec<u8> = data.flat_map(pointer).collect();
    let mut bytes = b"\x00\x00\x10\x00\x01\x00\x00\x0e\x10".to_vec();
    bytes.extend((data.len() as u16).to_be_bytes());
    bytes.extend(data);
    let other = [&pointer(last)[..], &[0, 16, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    let others = (0xffff - 12 - bytes.len()) / other.len();
    bytes.extend(other.repeat(others));
    let said = refusal(&message(1 + others as u16, &bytes));
    assert!(said.contains("no SRV record"), "{said}");
    let said = refusal(&message(2 + others as u16, &bytes));
    assert!(said.contains("an early end"), "{said}");
}

#[test]
fn names_are_told_from_files() {
    assert_eq!(name("@_tidegate._tcp.example.org"), Some(NAME));
    for part in [
        "@/etc/tidegate/list",
        "@./_list",
        "@_lists/one",
        "@list",
        "@",
        "tcp:_a:1",
        "_a",
    ] {
        assert_eq!(name(part), None, "{part}");
    }
    let long = format!("_{}", "a".repeat(63));
    let longer = format!("_a.{}", "abc.".repeat(64));
    for right in ["_tidegate._tcp", "_t", "_t._tcp.example.org."] {
        assert!(is_name(right), "{right}");
    }
    for wrong in [
        "_a..b", "_a b", "_a.", "_a\0", "_ä.org", "_a;b", &long, &longer,
    ] {
        assert_eq!(is_name(wrong), wrong == "_a.", "{wrong}");
    }
    let never = |_: &str| -> Result<Vec<u8>, Silence> { panic!("asked for no name") };
    let said = addresses("_a b", never).expect_err("no name").to_string();
    assert!(
        said.contains("@_a b: no name of DNS") && said.contains("@./_a b"),
        "{said}"
    );
}
