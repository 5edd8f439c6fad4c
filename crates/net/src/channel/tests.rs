//! Channels over a wire that divides, loses and changes what is sent.

use super::cipher::REKEY_RECORDS;
use super::receiving::IN_PLACE_MIN;
use super::sending::LONG;
use super::*;
use std::collections::VecDeque;
use std::io::ErrorKind;

/// Two ends of a channel.
fn pair(encryption: Encryption) -> (Channel, Channel) {
    let (one, other) = ([1; 32], [2; 32]);
    let made = |ours, theirs| Channel::new(encryption, ours, theirs).expect("it is protected");
    (made(&one, &other), made(&other, &one))
}

/// What is on its way, and takes and gives only so many bytes in one call.
struct Wire {
    bytes: VecDeque<u8>,
    step: usize,
    room: usize,
}

impl Wire {
    fn new(step: usize) -> Wire {
        Wire {
            bytes: VecDeque::new(),
            step,
            room: usize::MAX,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.step).min(self.room);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.room -= count;
        self.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    fn write_all_of(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        self.write(&all)
    }

    fn read(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        let count = room.min(self.step).min(self.bytes.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let into = pieces.iter_mut().flat_map(|piece| piece.iter_mut());
        for (byte, came) in into.zip(self.bytes.drain(..count)) {
            *byte = came;
        }
        Ok(count)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Sends all bytes, of which some are already sent; false if there was no room.
fn send(channel: &Channel, bytes: &[u8], sent: &mut usize, wire: &mut Wire) -> bool {
    while *sent < bytes.len() {
        let left = &bytes[*sent..];
        match channel.send(&[RawBytes::from(left)], |records| wire.write(records)) {
            Ok(count) => *sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}

/// Receives into pieces of these lengths until nothing is left.
fn receive(channel: &Channel, wire: &mut Wire, lens: [usize; 2]) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (mut first, mut second) = (vec![0; lens[0]], vec![0; lens[1]]);
        let pieces = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        match channel.receive(pieces, |into| wire.read(into)) {
            Ok(0) => return Ok(all),
            Ok(count) => all.extend(first.iter().chain(&second).take(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(!channel.has_more());
                return Ok(all);
            }
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn bytes_arrive_as_they_were_sent_however_they_are_divided() {
    for encryption in [Encryption::Integrity, Encryption::On] {
        let (here, there) = pair(encryption);
        for len in [1, 63, 64 << 10, (64 << 10) + 1, 300_000] {
            let bytes = pattern(len);
            for (step, lens) in [
                (1 << 20, [1 << 20, 1]),
                (997, [64, 8192]),
                (70_000, [1, 100]),
            ] {
                let mut wire = Wire::new(step);
                assert!(send(&here, &bytes, &mut 0, &mut wire));
                let is_readable = wire.bytes.iter().take(64).eq(bytes.iter().take(64));
                assert!(!is_readable);
                let received = receive(&there, &mut wire, lens).expect("nothing was changed");
                assert!(received == bytes, "{encryption:?} {len} {step}");
            }
        }
    }
}

#[test]
fn only_encryption_hides_bytes() {
    for (encryption, shown) in [(Encryption::Integrity, true), (Encryption::On, false)] {
        let mut wire = Wire::new(1 << 20);
        let word = b"a word that can be read";
        assert!(send(&pair(encryption).0, word, &mut 0, &mut wire));
        let bytes: Vec<u8> = wire.bytes.into();
        assert_eq!(bytes.windows(word.len()).any(|it| it == word), shown);
    }
}

#[test]
fn bytes_count_as_sent_when_all_that_was_made_with_them_is_out() {
    let (here, there) = pair(Encryption::On);
    let (bytes, mut sent, mut wire) = (pattern(200_000), 0, Wire::new(1 << 20));
    let mut arrived = Vec::new();
    for room in [0, 1, 3, 50_000, 20_000, 60_000, 5, 200_000] {
        wire.room = room;
        let done = send(&here, &bytes, &mut sent, &mut wire);
        arrived.extend(receive(&there, &mut wire, [4096, 1]).expect("nothing was changed"));
        assert!(
            arrived.len() >= sent && bytes.starts_with(&arrived),
            "{room}"
        );
        assert_eq!(done, sent == bytes.len());
    }
    assert!(arrived == bytes);
}

#[test]
fn what_was_changed_left_out_repeated_or_moved_is_refused() {
    for encryption in [Encryption::Integrity, Encryption::On] {
        let record = |number: u8| LENGTH_LEN + TAG_LEN + usize::from(number);
        let sent = || {
            let (here, there) = pair(encryption);
            let mut wire = Wire::new(1 << 20);
            for number in 1..=3 {
                assert!(send(&here, &vec![number; number.into()], &mut 0, &mut wire));
            }
            (there, Vec::from(wire.bytes))
        };
        let refuses = |bytes: Vec<u8>, there: &Channel| {
            let mut wire = Wire::new(1 << 20);
            wire.bytes = bytes.into();
            receive(there, &mut wire, [100, 1]).is_err()
        };
        let (there, bytes) = sent();
        assert!(!refuses(bytes.clone(), &there));
        for at in 0..bytes.len() {
            let (there, mut bytes) = sent();
            bytes[at] ^= 1 << (at % 8);
            let mut wire = Wire::new(1 << 20);
            wire.bytes = bytes.into();
            let mut word = [0; 100];
            let mut received = Vec::new();
            while let Ok(count) =
                there.receive(&mut [IoSliceMut::new(&mut word)], |into| wire.read(into))
            {
                received.extend_from_slice(&word[..count]);
            }
            // What was sent before the change, and nothing of what came after it.
            assert!([&[][..], &[1], &[1, 2, 2]].contains(&&received[..]), "{at}");
        }
        let (there, bytes) = sent();
        assert!(refuses(bytes[record(1)..].to_vec(), &there), "left out");
        let (there, bytes) = sent();
        let twice = [&bytes[..record(1)], &bytes].concat();
        assert!(refuses(twice, &there), "repeated");
        let (there, bytes) = sent();
        let (first, rest) = bytes.split_at(record(1));
        let (second, third) = rest.split_at(record(2));
        assert!(refuses([second, first, third].concat(), &there), "moved");
    }
}

#[test]
fn a_record_of_an_impossible_length_is_refused_at_once() {
    for len in [0, TAG_LEN, CONTENT_MAX + TAG_LEN + 1, u32::MAX as usize] {
        let (_, there) = pair(Encryption::On);
        let mut wire = Wire::new(1 << 20);
        wire.bytes.extend((len as u32).to_le_bytes());
        assert!(receive(&there, &mut wire, [100, 1]).is_err(), "{len}");
    }
}

#[test]
fn the_end_amid_a_record_is_an_error_and_no_end_of_the_stream() {
    let (here, there) = pair(Encryption::On);
    let mut wire = Wire::new(1 << 20);
    assert!(send(&here, &[7; 100], &mut 0, &mut wire));
    wire.bytes.pop_back();
    let mut into = [0; 200];
    let mut ended = |into: &mut [IoSliceMut<'_>]| match wire.read(into) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        read => read,
    };
    let pieces = &mut [IoSliceMut::new(&mut into)];
    let error = there.receive(pieces, &mut ended).expect_err("it is cut");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_new_key_is_made_after_many_records() {
    let (here, there) = pair(Encryption::On);
    for channel in [&here, &there] {
        lock(&channel.sending).cipher.number = REKEY_RECORDS - 1;
        lock(&channel.receiving).cipher.number = REKEY_RECORDS - 1;
    }
    let mut wire = Wire::new(1 << 20);
    for number in 0..3 {
        assert!(send(&here, &[number; 10], &mut 0, &mut wire));
    }
    // The second record is under the new key.
    let (_, other) = pair(Encryption::On);
    lock(&other.receiving).cipher.number = REKEY_RECORDS + 1;
    let mut second = Wire::new(1 << 20);
    second.bytes = wire.bytes.iter().skip(30).take(30).copied().collect();
    assert!(receive(&other, &mut second, [100, 1]).is_err());
    let received = receive(&there, &mut wire, [100, 1]).expect("both have the new key");
    assert_eq!(received.len(), 30);
}

#[test]
fn a_channel_without_a_begun_record_has_no_buffer() {
    let (here, there) = pair(Encryption::On);
    let mut wire = Wire::new(1 << 20);
    assert!(send(&here, &pattern(100_000), &mut 0, &mut wire));
    receive(&there, &mut wire, [100, 1]).expect("nothing was changed");
    assert_eq!(lock(&here.sending).buffer.capacity(), 0);
    assert_eq!(lock(&there.receiving).buffer.capacity(), 0);
}

#[test]
fn a_record_that_was_changed_gives_nothing() {
    for encryption in [Encryption::Integrity, Encryption::On] {
        for (len, step) in [(10, 1 << 20), (CONTENT_MAX, 1 << 20), (CONTENT_MAX, 1000)] {
            let (here, there) = pair(encryption);
            let mut wire = Wire::new(step);
            assert!(send(&here, &vec![7; len], &mut 0, &mut wire));
            *wire.bytes.back_mut().expect("its tag") ^= 1;
            let mut place = vec![0; len];
            let pieces = &mut [IoSliceMut::new(&mut place)];
            let error = there.receive(pieces, |into| wire.read(into));
            let error = error.expect_err("it was changed");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
    }
}

#[test]
fn a_long_record_arrives_in_its_place() {
    let (here, there) = pair(Encryption::On);
    let (mut wire, bytes) = (Wire::new(1000), pattern(CONTENT_MAX + IN_PLACE_MIN));
    assert!(send(&here, &bytes, &mut 0, &mut wire));
    let mut place = vec![0; bytes.len()];
    let (mut given, mut reads) = (0, 0);
    while given < bytes.len() {
        let received = there.receive(&mut [IoSliceMut::new(&mut place[given..])], |into| {
            // Every third read finds nothing.
            reads += 1;
            match reads % 3 {
                0 => Err(ErrorKind::WouldBlock.into()),
                _ => wire.read(into),
            }
        });
        match received {
            Ok(count) => given += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                assert!(there.is_amid_record());
            }
        }
    }
    assert!(place == bytes && !there.is_amid_record());
}

#[test]
fn other_memory_amid_a_record_ends_the_stream() {
    let (here, there) = pair(Encryption::On);
    let (mut wire, bytes) = (Wire::new(40_000), pattern(CONTENT_MAX));
    assert!(send(&here, &bytes, &mut 0, &mut wire));
    wire.bytes.truncate(50_000);
    let (mut place, mut other) = (vec![0; CONTENT_MAX], vec![0; CONTENT_MAX]);
    for (place, kind) in [
        (&mut place, ErrorKind::WouldBlock),
        (&mut other, ErrorKind::Other),
    ] {
        let received = there.receive(&mut [IoSliceMut::new(place)], |into| wire.read(into));
        assert_eq!(received.expect_err("it is not whole").kind(), kind);
    }
}

#[test]
fn bytes_that_become_records_in_place_arrive_though_there_is_little_room() {
    for encryption in [Encryption::Integrity, Encryption::On] {
        let (here, there) = pair(encryption);
        let bytes = pattern(5 * CONTENT_MAX + 1);
        let (mut mine, mut wire, mut received) = (bytes.clone(), Wire::new(30_000), Vec::new());
        let mut sent = 0;
        while sent < mine.len() {
            wire.room = 50_000;
            match here.send_in_place(&mut mine[sent..], |records| wire.write_all_of(records)) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            received.extend(receive(&there, &mut wire, [20_000, 1]).expect("as sent"));
        }
        assert!(received == bytes, "{encryption:?}");
        // Short ones behind them.
        wire.room = usize::MAX;
        assert!(send(&here, &bytes[..10], &mut 0, &mut wire));
        let last = receive(&there, &mut wire, [20_000, 1]).expect("as sent");
        assert_eq!(last, bytes[..10]);
    }
}

#[test]
fn other_memory_amid_sending_is_an_error() {
    let (here, _) = pair(Encryption::On);
    let (mut wire, mut one, mut other) = (Wire::new(100), pattern(9000), pattern(9000));
    wire.room = 100;
    let blocked = here.send_in_place(&mut one, |records| wire.write_all_of(records));
    let kind = blocked.expect_err("there is little room").kind();
    assert_eq!(kind, ErrorKind::WouldBlock);
    wire.room = usize::MAX;
    assert!(here.send(&[RawBytes::from(&other[..])], |_| Ok(1)).is_err());
    let sent = here.send_in_place(&mut other, |records| wire.write_all_of(records));
    assert_eq!(sent.expect_err("it is another").kind(), ErrorKind::Other);
    let sent = here.send_in_place(&mut one, |records| wire.write_all_of(records));
    assert_eq!(sent.expect("there is room"), 9000);
}

#[test]
fn long_pieces_have_records_of_their_own_and_short_ones_share_one() {
    let (here, there) = pair(Encryption::On);
    let (short, long) = (pattern(100), pattern(CONTENT_MAX + LONG));
    let pieces = [&short, &short, &long, &short, &short].map(|piece| RawBytes::from(&piece[..]));
    let mut wire = Wire::new(1 << 20);
    let sent = here.send(&pieces, |records| wire.write(records));
    assert_eq!(sent.expect("there is room"), 400 + CONTENT_MAX + LONG);
    let (mut lens, mut at) = (Vec::new(), 0);
    while at < wire.bytes.len() {
        let length: Vec<u8> = wire.bytes.range(at..at + LENGTH_LEN).copied().collect();
        let len = u32::from_le_bytes(length.try_into().expect("four")) as usize;
        lens.push(len - TAG_LEN);
        at += LENGTH_LEN + len;
    }
    assert_eq!(lens, [200, CONTENT_MAX, LONG, 200]);
    let received = receive(&there, &mut wire, [200, CONTENT_MAX]);
    let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    assert!(received.expect("nothing was changed") == all);
}
