//! What fits an export, what does not, and what is said of it.

use super::*;
use crate::Errno;
use crate::wire::{Attr, Listed, Pipeline};

const EXPORT: ExportId = ExportId(0xe0);

fn reply(index: u16, seats: u16) -> HelloReply {
    HelloReply {
        version: VERSION,
        forwarder: index,
        seats,
        stripe: 4096,
        payload_max: 8192,
        pipeline: Pipeline::default(),
        credits: 1,
        connections: 1,
        reply_slots: 1,
        fresh: true,
        lease_ms: 1,
        loan_ms: 0,
        wall_ns: 1,
        host: 1,
        boot: 1,
        export: EXPORT,
        process: 100 + u64::from(index),
        forwarders: Box::default(),
        held: Box::default(),
        root: Attr::default(),
    }
}

fn tells(address: &str, hello: HelloReply) -> Candidate {
    Candidate {
        address: address.to_string(),
        member: Member::Known(Box::new(hello)),
        refused: false,
        trouble: String::new(),
    }
}

fn down(address: &str) -> Candidate {
    Candidate {
        address: address.to_string(),
        member: Member::Unreachable,
        refused: false,
        trouble: "Connection refused".to_string(),
    }
}

/// What forwarders of these addresses tell of each other.
fn listing(of: &[(u16, &[&str])]) -> Box<[Listed]> {
    let one = |(index, addresses): &(u16, &[&str])| Listed {
        index: *index,
        addresses: addresses.iter().map(|it| Box::from(*it)).collect(),
    };
    of.iter().map(one).collect()
}

/// The whole list from what was asked, where nothing else answers.
fn list(asked: &[Candidate]) -> Result<Vec<String>, ConnectError> {
    Ok(check(asked)?.complete(&[])?.forwarders)
}

fn refusal(asked: &[Candidate]) -> String {
    list(asked).expect_err("it does not fit").to_string()
}

#[test]
fn the_order_is_the_layouts() {
    let list = list(&[
        tells("c", reply(2, 3)),
        tells("a", reply(0, 3)),
        tells("b", reply(1, 3)),
    ]);
    assert_eq!(list.expect("it fits"), ["a", "b", "c"]);
}

#[test]
fn one_that_is_down_keeps_its_place() {
    let ordered = [tells("a", reply(0, 3)), down("b"), tells("c", reply(2, 3))];
    assert_eq!(list(&ordered).expect("it fits"), ["a", "b", "c"]);
    let shuffled = [down("b"), tells("c", reply(2, 3)), tells("a", reply(0, 3))];
    assert_eq!(list(&shuffled).expect("it fits"), ["a", "b", "c"]);
    // Two of an unordered list have the places that others tell.
    let hello = HelloReply {
        forwarders: listing(&[(1, &["b"]), (2, &["c"])]),
        ..reply(0, 3)
    };
    let two = [down("c"), down("b"), tells("a", hello)];
    assert_eq!(list(&two).expect("it fits"), ["a", "b", "c"]);
}

#[test]
fn one_address_is_enough_where_the_others_are_told() {
    let hello = HelloReply {
        forwarders: listing(&[
            (0, &["unix:/run/f0", "tcp:io0:4600"]),
            (1, &["tcp:io1:4600"]),
            (2, &["unix:/run/f2", "tcp:io2:4600"]),
        ]),
        ..reply(1, 3)
    };
    let asked = [tells("tcp:10.0.0.2:4600", hello)];
    let checked = check(&asked).expect("it fits");
    // A path is of use on its own node only.
    let of = |address: &str| vec![address.to_string()];
    let missing = checked.missing();
    assert_eq!(missing, [(0, of("tcp:io0:4600")), (2, of("tcp:io2:4600"))]);
    // One of them is down.
    let learned = [down("tcp:io0:4600"), tells("tcp:io2:4600", reply(2, 3))];
    let list = checked.complete(&learned).expect("it is whole");
    assert_eq!(list.left_out, [""; 0]);
    assert_eq!(
        list.forwarders,
        ["tcp:io0:4600", "tcp:10.0.0.2:4600", "tcp:io2:4600"]
    );
}

#[test]
fn of_several_addresses_the_one_that_answers_is_taken() {
    let hello = HelloReply {
        forwarders: listing(&[(1, &["tcp:old:1", "tcp:new:1"])]),
        ..reply(0, 2)
    };
    let checked = check(&[tells("tcp:a:1", hello)]).expect("it fits");
    let stranger = HelloReply {
        export: ExportId(9),
        ..reply(1, 2)
    };
    let learned = [
        tells("tcp:old:1", stranger),
        tells("tcp:new:1", reply(1, 2)),
    ];
    assert_eq!(
        checked.complete(&learned).expect("whole").forwarders,
        ["tcp:a:1", "tcp:new:1"]
    );
}

#[test]
fn a_wrong_address_is_told_and_takes_nobodys_place() {
    let hello = || HelloReply {
        forwarders: listing(&[(0, &["tcp:a:1"]), (1, &["tcp:b:1"])]),
        ..reply(0, 2)
    };
    // In the place of forwarder 1, and in that of forwarder 0.
    for asked in [
        [tells("tcp:a:1", hello()), down("tcp:wrong:1")],
        [down("tcp:wrong:1"), tells("tcp:a:1", hello())],
    ] {
        let checked = check(&asked).expect("it fits");
        assert_eq!(checked.missing(), [(1, vec!["tcp:b:1".to_string()])]);
        let learned = [tells("tcp:b:1", reply(1, 2))];
        let whole = checked.complete(&learned).expect("it is whole");
        assert_eq!(whole.forwarders, ["tcp:a:1", "tcp:b:1"]);
        let [line] = &whole.left_out[..] else {
            panic!("one line: {whole:?}");
        };
        let words = [
            "tcp:wrong:1 is named",
            "Connection refused",
            "1 at tcp:b:1",
            "correct the",
        ];
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    // Where forwarder 1 does not answer either, the address may be another name of it.
    let asked = [tells("tcp:a:1", hello()), down("tcp:alias:1")];
    let whole = check(&asked).and_then(|it| it.complete(&[down("tcp:b:1")]));
    let whole = whole.expect("it is whole");
    assert_eq!(whole.forwarders, ["tcp:a:1", "tcp:alias:1"]);
    assert_eq!(whole.left_out, [""; 0]);
}

#[test]
fn a_list_that_cannot_be_completed_says_who_is_missing() {
    let said = refusal(&[tells("a", reply(1, 3))]);
    assert!(said.contains("the export has 3 forwarders"), "{said}");
    assert!(said.contains("forwarder 0, 2 listens"), "{said}");
    assert!(said.contains("name all 3 addresses"), "{said}");
}

#[test]
fn a_list_that_is_too_long_says_which_to_take_out() {
    let said = refusal(&[tells("a", reply(0, 2)), tells("b", reply(1, 2)), down("c")]);
    assert!(said.contains("3 addresses are named"), "{said}");
    assert!(said.contains("has 2 forwarders"), "{said}");
    assert!(said.contains("(c does not answer)"), "{said}");
}

#[test]
fn one_index_at_two_addresses_is_told_by_name() {
    let said = refusal(&[tells("a", reply(1, 2)), tells("b", reply(1, 2))]);
    assert!(said.contains("a and b are one forwarder, 1 of 2"), "{said}");
    let other = HelloReply {
        process: 5,
        ..reply(1, 2)
    };
    let said = refusal(&[tells("a", reply(1, 2)), tells("b", other)]);
    assert!(
        said.contains("a and b are two forwarders that both say `forwarder = 1`"),
        "{said}"
    );
    assert!(said.contains("correct the configuration"), "{said}");
}

#[test]
fn a_stranger_is_told_by_name() {
    let other = HelloReply {
        export: ExportId(0xf),
        ..reply(1, 2)
    };
    let said = refusal(&[tells("a", reply(0, 2)), tells("b", other)]);
    assert!(
        said.contains("b serves another export (forwarder 1"),
        "{said}"
    );
    assert!(said.contains("name forwarders of one export"), "{said}");
    let wide = HelloReply {
        stripe: 8192,
        ..reply(1, 2)
    };
    let said = refusal(&[tells("a", reply(0, 2)), tells("b", wide)]);
    assert!(
        said.contains("b has a layout of 2 seats and stripes of 8192"),
        "{said}"
    );
    let new = HelloReply {
        version: VERSION + 1,
        ..reply(1, 2)
    };
    let said = refusal(&[tells("a", reply(0, 2)), tells("b", new)]);
    assert!(
        said.contains("b speaks version") && said.contains("same release"),
        "{said}"
    );
}

#[test]
fn one_that_refuses_is_told_and_one_that_is_full_is_as_good_as_down() {
    let refuses = |errno| Candidate {
        member: Member::Refused(Errno(errno)),
        refused: true,
        trouble: Errno(errno).to_string(),
        ..down("b")
    };
    let said = refusal(&[tells("a", reply(0, 2)), refuses(13)]);
    assert!(
        said.contains("b refused the session: Permission denied"),
        "{said}"
    );
    let full = [tells("a", reply(0, 2)), refuses(87)];
    assert_eq!(list(&full).expect("it fits"), ["a", "b"]);
}

#[test]
fn what_is_unproved_keeps_nobody_from_those_that_are_here() {
    let unproved = |address| Candidate {
        refused: true,
        trouble: "it does not prove that it is a forwarder of this site".to_string(),
        ..down(address)
    };
    let asked = [tells("a", reply(0, 2)), unproved("b")];
    assert_eq!(list(&asked).expect("it is as good as down"), ["a", "b"]);
    let hello = HelloReply {
        forwarders: listing(&[(0, &["tcp:a:1"]), (1, &["tcp:b:1"])]),
        ..reply(0, 2)
    };
    let checked = check(&[tells("tcp:a:1", hello), unproved("tcp:x:1")]).expect("it fits");
    let whole = checked.complete(&[tells("tcp:b:1", reply(1, 2))]);
    let whole = whole.expect("it is whole");
    assert_eq!(whole.forwarders, ["tcp:a:1", "tcp:b:1"]);
    let [line] = &whole.left_out[..] else {
        panic!("one line: {whole:?}");
    };
    let words = "tcp:x:1 is named and left out (it does not prove";
    assert!(line.starts_with(words), "{line}");
    // Where nobody else is here, the reason is what the client ends with.
    let said = refusal(&[down("a"), unproved("b")]);
    assert!(
        said.contains("b refused the session: it does not"),
        "{said}"
    );
}

#[test]
fn a_file_has_one_address_a_line() {
    let path = std::env::temp_dir().join(format!("tidegate-list-{}", std::process::id()));
    let text = "# the I/O nodes\ntcp:io1:4600\n\n  tcp:io0:4600 # first\n";
    std::fs::write(&path, text).expect("it can be written");
    let named = [format!("@{}", path.display()), "unix:/run/f".to_string()];
    let addresses = read(&named).expect("a good list");
    assert_eq!(addresses, ["tcp:io1:4600", "tcp:io0:4600", "unix:/run/f"]);
    let twice = read(&[named[0].clone(), "tcp:io1:4600".to_string()]);
    let said = twice.expect_err("twice").to_string();
    assert!(said.contains("tcp:io1:4600 is named twice"), "{said}");
    for (text, expected) in [
        ("tcp:a:1 tcp:b:1\n", "line 1: one address"),
        ("#\n", "no address"),
    ] {
        std::fs::write(&path, text).expect("it can be written");
        let said = read(&named[..1]).expect_err(text).to_string();
        assert!(
            said.contains(expected) && said.contains("tidegate-list"),
            "{said}"
        );
    }
    std::fs::remove_file(&path).expect("it is there");
    let said = read(&named[..1]).expect_err("it is gone").to_string();
    assert!(said.contains("No such file"), "{said}");
}

/// An answer of DNS with one SRV record: node `io`, port 4600.
const IN_DNS: &[u8] =
    b"\0\0\x85\x80\0\0\0\x01\0\0\0\0\0\0\x21\0\x01\0\0\0\0\0\x0a\0\0\0\0\x11\xf8\x02io\0";

#[test]
fn a_list_in_dns_stands_alone() {
    let asked = |parts: &[&str]| {
        let parts: Vec<String> = parts.iter().map(|it| it.to_string()).collect();
        read_asking(&parts, |name| match name {
            "_t._tcp.org" => Ok(IN_DNS.to_vec()),
            _ => panic!("asked for {name}"),
        })
    };
    let folder = std::env::temp_dir().join(format!("tidegate-list.{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    let file = folder.join("_list");
    let listed = format!("@{}", file.display());
    std::fs::write(&file, "# in DNS\n@_t._tcp.org\n").expect("written");
    for parts in [&["@_t._tcp.org"][..], &[&listed]] {
        assert_eq!(asked(parts).expect("one address"), ["tcp:io:4600"]);
    }
    let named = "forwarders: @_t._tcp.org stands beside others; name it alone, or";
    for parts in [
        &["@_t._tcp.org", "tcp:io:4600"][..],
        &["tcp:io:4600", "@_t._tcp.org"],
        &["@_t._tcp.org", "@_t._tcp.org"],
        &["tcp:io:4600", &listed],
    ] {
        let said = asked(parts).expect_err("mixed").to_string();
        assert!(said.starts_with(named), "{said}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn a_forwarder_may_tell_of_as_many_as_there_can_be() {
    let asked = [tells("a", reply(0, u16::MAX))];
    let missing = check(&asked).expect("it fits").missing();
    assert_eq!(missing.len(), usize::from(u16::MAX) - 1);
    assert_eq!(missing.last().map(|(index, _)| *index), Some(u16::MAX - 1));
    assert!(list(&asked).is_err(), "the others are not known");
}
