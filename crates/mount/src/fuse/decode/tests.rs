//! Every request is read back field by field, and none cut short is accepted or panics.

use super::*;
use crate::fuse::abi::valid;
use crate::fuse::request::{SetAttributes, SetTime, Timestamp, Write};
use zerocopy::IntoBytes;

fn message(opcode: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = (size_of::<abi::InHeader>() + body.len()) as u32;
    let header = abi::InHeader {
        len,
        opcode,
        unique: 8,
        node: 3,
        uid: 1000,
        gid: 100,
        pid: 42,
        ..Default::default()
    };
    [header.as_bytes(), &body].concat()
}

fn operation_of(bytes: &[u8]) -> Operation {
    match decode(bytes).expect("well formed").body {
        Body::Operation(operation, _) => operation,
        other => panic!("{other:?} is no operation"),
    }
}

fn record(opcode: u32, bytes: &[u8]) -> Vec<u8> {
    message(opcode, &[bytes])
}

fn named(opcode: u32, bytes: &[u8]) -> Vec<u8> {
    message(opcode, &[bytes, b"name\0"])
}

/// One well-formed message of every kind with a body, as few optional bytes as possible.
fn every_message() -> Vec<Vec<u8>> {
    [
        messages_with_names(),
        messages_on_files(),
        messages_of_the_session(),
    ]
    .concat()
}

fn messages_with_names() -> Vec<Vec<u8>> {
    let setxattr = abi::SetxattrIn { len: 3, flags: 1 };
    vec![
        named(opcode::LOOKUP, &[]),
        message(opcode::SYMLINK, &[b"name\0", b"to/where\0"]),
        named(opcode::MKNOD, abi::MknodIn::default().as_bytes()),
        named(opcode::MKDIR, abi::MkdirIn::default().as_bytes()),
        named(opcode::UNLINK, &[]),
        named(opcode::RMDIR, &[]),
        message(
            opcode::RENAME,
            &[abi::RenameIn::default().as_bytes(), b"a\0", b"b\0"],
        ),
        message(
            opcode::RENAME2,
            &[abi::Rename2In::default().as_bytes(), b"a\0", b"b\0"],
        ),
        named(opcode::LINK, abi::LinkIn::default().as_bytes()),
        named(opcode::CREATE, abi::CreateIn::default().as_bytes()),
        message(
            opcode::SETXATTR,
            &[setxattr.as_bytes(), b"user.a\0", b"xyz"],
        ),
        named(opcode::GETXATTR, abi::GetxattrIn::default().as_bytes()),
        named(opcode::REMOVEXATTR, &[]),
    ]
}

fn messages_on_files() -> Vec<Vec<u8>> {
    let write = abi::WriteIn {
        len: 5,
        ..Default::default()
    };
    let ioctl = abi::IoctlIn {
        in_len: 4,
        ..Default::default()
    };
    let mut all = vec![
        record(opcode::GETATTR, abi::GetattrIn::default().as_bytes()),
        record(opcode::SETATTR, abi::SetattrIn::default().as_bytes()),
        record(opcode::OPEN, abi::OpenIn::default().as_bytes()),
        record(opcode::OPENDIR, abi::OpenIn::default().as_bytes()),
        message(opcode::WRITE, &[write.as_bytes(), b"bytes"]),
        record(opcode::FLUSH, abi::FlushIn::default().as_bytes()),
        record(opcode::RELEASE, abi::ReleaseIn::default().as_bytes()),
        record(opcode::RELEASEDIR, abi::ReleaseIn::default().as_bytes()),
        record(opcode::FSYNC, abi::FsyncIn::default().as_bytes()),
        record(opcode::FSYNCDIR, abi::FsyncIn::default().as_bytes()),
        record(opcode::LISTXATTR, abi::GetxattrIn::default().as_bytes()),
        record(opcode::ACCESS, abi::AccessIn::default().as_bytes()),
        record(opcode::FALLOCATE, abi::FallocateIn::default().as_bytes()),
        record(opcode::LSEEK, abi::LseekIn::default().as_bytes()),
        record(opcode::COPY_FILE_RANGE, abi::CopyIn::default().as_bytes()),
        record(
            opcode::COPY_FILE_RANGE_64,
            abi::CopyIn::default().as_bytes(),
        ),
        message(opcode::IOCTL, &[ioctl.as_bytes(), b"four"]),
    ];
    for opcode in [opcode::READ, opcode::READDIR, opcode::READDIRPLUS] {
        all.push(record(opcode, abi::ReadIn::default().as_bytes()));
    }
    let range = abi::FileLock {
        kind: 1,
        ..Default::default()
    };
    let lock = abi::LkIn {
        lock: range,
        ..Default::default()
    };
    for opcode in [opcode::GETLK, opcode::SETLK, opcode::SETLKW] {
        all.push(record(opcode, lock.as_bytes()));
    }
    all
}

fn messages_of_the_session() -> Vec<Vec<u8>> {
    let count = abi::BatchForgetIn {
        count: 2,
        padding: 0,
    };
    let forgets = [abi::ForgetOne::default(); 2];
    vec![
        record(opcode::INIT, abi::InitIn::default().as_bytes()),
        record(opcode::INTERRUPT, abi::InterruptIn::default().as_bytes()),
        record(opcode::FORGET, abi::ForgetIn::default().as_bytes()),
        message(
            opcode::BATCH_FORGET,
            &[count.as_bytes(), forgets.as_bytes()],
        ),
    ]
}

/// Cuts the message and corrects the length in its header, so that only the body is short.
fn cut(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut cut = bytes[..len].to_vec();
    if let Some(says) = cut.get_mut(..4) {
        says.copy_from_slice((len as u32).as_bytes());
    }
    cut
}

#[test]
fn every_message_is_read_whole_and_refused_when_cut_anywhere() {
    for bytes in every_message() {
        let header = header(&bytes).expect("a header");
        let decoded = decode(&bytes).expect("well formed");
        assert!(
            !matches!(decoded.body, Body::Unknown),
            "opcode {}",
            header.opcode
        );
        for len in 0..bytes.len() {
            assert!(
                decode(&cut(&bytes, len)).is_err(),
                "opcode {} at {len}",
                header.opcode
            );
            assert!(
                decode(&bytes[..len]).is_err(),
                "length of opcode {}",
                header.opcode
            );
        }
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for bytes in every_message() {
        for _ in 0..500 {
            let mut broken = bytes.clone();
            for _ in 0..3 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // The length stays right, or every message would be refused for that alone.
                let at = 4 + (state >> 33) as usize % (broken.len() - 4);
                broken[at] ^= (state >> 24) as u8;
            }
            if let Ok(Message {
                body: Body::Operation(_, payload),
                ..
            }) = decode(&broken)
            {
                assert!(payload.end <= broken.len());
            }
        }
    }
}

#[test]
fn a_write_says_where_its_bytes_lie() {
    let flags = abi::WRITE_CACHE | abi::WRITE_KILL_SUIDGID;
    let write = abi::WriteIn {
        handle: 7,
        offset: 9,
        len: 3,
        write_flags: flags,
        ..Default::default()
    };
    let bytes = message(opcode::WRITE, &[write.as_bytes(), b"abc"]);
    let Body::Operation(Operation::Write(write), payload) = decode(&bytes).unwrap().body else {
        panic!("no write");
    };
    let expected = Write {
        handle: 7,
        offset: 9,
        flags: 0,
        from_cache: true,
        kill_suidgid: true,
    };
    assert_eq!(write, expected);
    assert_eq!(&bytes[payload], b"abc");
}

#[test]
fn names_stay_inside_their_directory() {
    for name in [&b"\0"[..], b".\0", b"..\0", b"a/b\0", b"unfinished"] {
        assert!(
            decode(&message(opcode::LOOKUP, &[name])).is_err(),
            "{name:?}"
        );
    }
    let symlink = message(opcode::SYMLINK, &[b"name\0", b"../a/b\0"]);
    assert!(
        matches!(operation_of(&symlink), Operation::Symlink { target, .. } if target == "../a/b")
    );
}

#[test]
fn only_the_attributes_that_are_marked_are_set() {
    let setattr = abi::SetattrIn {
        valid: valid::SIZE | valid::FH | valid::ATIME | valid::ATIME_NOW | valid::MTIME,
        handle: 4,
        size: 1 << 40,
        mtime: -2,
        mtime_ns: 5,
        mode: 0o777,
        ..Default::default()
    };
    let Operation::Setattr(set) = operation_of(&message(opcode::SETATTR, &[setattr.as_bytes()]))
    else {
        panic!("no setattr");
    };
    let modified = Timestamp {
        seconds: -2,
        nanoseconds: 5,
    };
    let expected = SetAttributes {
        handle: Some(4),
        size: Some(1 << 40),
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::At(modified)),
        ..Default::default()
    };
    assert_eq!(set, expected);
}

#[test]
fn a_batch_that_claims_too_many_is_refused() {
    let claim = abi::BatchForgetIn {
        count: u32::MAX,
        padding: 0,
    };
    let one = abi::ForgetOne {
        node: 5,
        lookups: 2,
    };
    let bytes = message(opcode::BATCH_FORGET, &[claim.as_bytes(), one.as_bytes()]);
    assert_eq!(
        decode(&bytes).unwrap_err(),
        Malformed::Truncated {
            opcode: opcode::BATCH_FORGET
        }
    );
}

#[test]
fn extensions_at_the_end_are_left_out() {
    let mut bytes = message(opcode::UNLINK, &[b"name\0", b"extension"]);
    // Five bytes of name and nine more: one extension of eight bytes covers all but the "e".
    let header = abi::InHeader {
        extensions_len: 1,
        ..header(&bytes).unwrap()
    };
    bytes[..size_of::<abi::InHeader>()].copy_from_slice(header.as_bytes());
    assert!(matches!(operation_of(&bytes), Operation::Unlink { name } if name == "name"));
    let header = abi::InHeader {
        extensions_len: u16::MAX,
        ..header
    };
    bytes[..size_of::<abi::InHeader>()].copy_from_slice(header.as_bytes());
    assert!(decode(&bytes).is_err());
}

#[test]
fn what_is_not_known_is_said_so() {
    assert!(matches!(
        decode(&message(51, &[b"tmpfile\0"])).unwrap().body,
        Body::Unknown
    ));
    assert!(matches!(
        decode(&message(u32::MAX, &[])).unwrap().body,
        Body::Unknown
    ));
    assert!(matches!(
        decode(&message(opcode::DESTROY, &[])).unwrap().body,
        Body::Destroy
    ));
}
