//! Links of two ends in one process, over each provider that runs anywhere.

use super::*;
use crate::Provider;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(20);

/// Both providers, or none where this was built without libfabric.
fn providers() -> Vec<Provider> {
    match Domain::shared(Provider::Tcp, None) {
        Ok(_) => vec![Provider::Tcp, Provider::Shm],
        Err(error) if cfg!(feature = "libfabric") => panic!("{error}"),
        Err(error) => {
            assert!(error.to_string().contains("--features fabric"), "{error}");
            Vec::new()
        }
    }
}

fn sockets(provider: Provider) -> (OwnedFd, OwnedFd) {
    if provider == Provider::Shm {
        let (one, other) = UnixStream::pair().expect("sockets");
        one.set_nonblocking(true).expect("a flag");
        other.set_nonblocking(true).expect("a flag");
        return (one.into(), other.into());
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
    let (other, _) = listener.accept().expect("a connection");
    one.set_nonblocking(true).expect("a flag");
    other.set_nonblocking(true).expect("a flag");
    (one.into(), other.into())
}

fn pair(provider: Provider) -> (Link, Link) {
    let local = Some("127.0.0.1".parse().expect("an address"));
    let domain = Domain::shared(provider, local).expect("a domain");
    let (one, other) = sockets(provider);
    (
        Link::begin(&domain, Arc::new(one)).expect("a link"),
        Link::begin(&domain, Arc::new(other)).expect("a link"),
    )
}

/// Waits as a loop does, for both links, until `done`.
fn until(links: [&Link; 2], mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "nothing happens");
        let wait = |link: &Link| match link.wait(true, true) {
            Wait::Not => Duration::ZERO,
            Wait::AtMost(wait) => wait,
            Wait::Any => LONG,
        };
        let wait = links.iter().map(|link| wait(link)).min().expect("two");
        let mut fds = Vec::new();
        for link in links {
            fds.push(PollFd::new(&link.socket, PollFlags::IN));
            // SAFETY: the link has it open.
            let queue = link.queue().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
            fds.extend(queue.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        let timeout = Timespec::try_from(wait).expect("it is short");
        poll(&mut fds, Some(&timeout)).expect("descriptors");
        links.iter().for_each(|link| link.woken());
    }
}

fn sent(link: &Link, bytes: &[u8]) -> usize {
    match link.write(&[RawBytes::from(bytes)]) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

fn read(link: &Link, into: &mut [u8]) -> usize {
    match link.read(&mut [IoSliceMut::new(into)]) {
        Ok(0) => panic!("it ended"),
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Waits for the end of a link.
fn ended(link: &Link) {
    let end = Instant::now() + LONG;
    loop {
        link.woken();
        match link.read(&mut [IoSliceMut::new(&mut [0; 8])]) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
    }
}

/// What `number` gives in a stream of bytes.
fn byte(number: usize) -> u8 {
    (number * 7 + number / 253) as u8
}

#[test]
fn bytes_arrive_in_order_both_ways_at_once() {
    for provider in providers() {
        let (one, other) = pair(provider);
        const LEN: usize = 3 << 20;
        let bytes: Vec<u8> = (0..LEN).map(byte).collect();
        let (mut out, mut back, mut there, mut here) = (0, 0, 0, 0);
        // As much as there is room for, or nothing may happen to wait for.
        let fill = |link: &Link, out: &mut usize, step: usize| {
            while *out < LEN {
                match sent(link, &bytes[*out..LEN.min(*out + 1 + *out % step)]) {
                    0 => break,
                    count => *out += count,
                }
            }
        };
        until([&one, &other], || {
            fill(&one, &mut out, 30_000);
            fill(&other, &mut back, 500_000);
            let mut into = vec![0; 1 + there % 70_000];
            let count = read(&other, &mut into);
            assert!(
                (0..count).all(|at| into[at] == byte(there + at)),
                "{provider:?}"
            );
            there += count;
            let count = read(&one, &mut into);
            assert!(
                (0..count).all(|at| into[at] == byte(here + at)),
                "{provider:?}"
            );
            here += count;
            there == LEN && here == LEN
        });
        until([&one, &other], || {
            one.is_delivered() && other.is_delivered()
        });
    }
}

/// Memory of a test, offered to the peer.
fn offered(link: &Link, len: usize) -> (Box<[u8]>, Remote) {
    let mut memory: Box<[u8]> = (0..len).map(byte).collect();
    // SAFETY: every test drops its links before its memory.
    let remote = unsafe { link.offer(memory.as_mut_ptr(), len, Box::new(())) };
    (memory, remote.expect("memory can be registered"))
}

fn local(domain: &Arc<Domain>, memory: &mut [u8]) -> Local {
    // SAFETY: as above.
    let registration = unsafe { domain.register(memory.as_mut_ptr(), memory.len()) };
    Local {
        start: memory.as_mut_ptr(),
        len: memory.len(),
        registration: registration.expect("it can be registered").map(Arc::new),
        keep: Box::new(()),
    }
}

fn up(one: &Link, other: &Link) {
    let (mut begun, mut came) = (false, false);
    until([one, other], || {
        begun = begun || sent(one, b"x") == 1;
        came = came || read(other, &mut [0]) == 1;
        came
    });
}

fn domain(provider: Provider) -> Arc<Domain> {
    let local = Some("127.0.0.1".parse().expect("an address"));
    Domain::shared(provider, local).expect("a domain")
}

#[test]
fn moves_of_every_size_reach_their_place() {
    for provider in providers() {
        let mut memory: Box<[u8]>;
        let mut own = vec![0; 8 << 20];
        {
            let (one, other) = pair(provider);
            up(&one, &other);
            let (offer, remote) = offered(&other, 9 << 20);
            memory = offer;
            for len in [1, 100, 4096, 5000, 70_000, 1 << 20, (8 << 20) - 1] {
                let bytes = &mut own[..len];
                bytes.fill(0);
                let at = Remote {
                    address: remote.address + 1000,
                    ..remote
                };
                let place = local(&domain(provider), bytes);
                // SAFETY: nobody looks until it is told.
                unsafe { one.get(place, at, 7) }.expect("it begins");
                let mut done = None;
                until([&one, &other], || {
                    done = one.moved();
                    done.is_some()
                });
                assert_eq!(done, Some((7, Ok(()))), "{provider:?} {len}");
                assert!(
                    (0..len).all(|at| own[at] == byte(1000 + at)),
                    "{provider:?} {len}"
                );
                own[..len].iter_mut().for_each(|byte| *byte = !*byte);
                let place = local(&domain(provider), &mut own[..len]);
                // SAFETY: as above.
                unsafe { one.put(place, at, 8) }.expect("it begins");
                until([&one, &other], || one.moved() == Some((8, Ok(()))));
                let mut told = 0;
                until([&one, &other], || {
                    told += if told == 0 { sent(&one, b"!") } else { 0 };
                    read(&other, &mut [0]) == 1
                });
                assert!(
                    (0..len).all(|at| memory[1000 + at] == !byte(1000 + at)),
                    "{len}"
                );
                assert_eq!(memory[1000 + len], byte(1000 + len));
                memory
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, to)| *to = byte(at));
            }
        }
        drop(memory);
    }
}

#[test]
fn many_moves_at_once_all_end() {
    for provider in providers() {
        let mut own = vec![0; 200 * 10_000];
        let (one, other) = pair(provider);
        up(&one, &other);
        let (memory, remote) = offered(&other, 200 * 10_000);
        for (number, bytes) in own.chunks_mut(10_000).enumerate() {
            let at = Remote {
                address: remote.address + number as u64 * 10_000,
                ..remote
            };
            let place = local(&domain(provider), bytes);
            // SAFETY: nobody looks until it is told.
            unsafe { one.get(place, at, number as u64) }.expect("it begins");
        }
        let mut done = 0;
        until([&one, &other], || {
            while let Some((_, result)) = one.moved() {
                result.expect("the memory is there");
                done += 1;
            }
            done == 200
        });
        drop((one, other));
        assert!(*own == *memory);
    }
}

/// What becomes of a move to or from a place that was not offered.
fn wrong_move(provider: Provider, put: bool, wrong: impl Fn(Remote) -> Remote) -> Option<String> {
    let mut own = vec![0; 4096];
    let (one, other) = pair(provider);
    up(&one, &other);
    let (memory, remote) = offered(&other, 4096);
    let place = local(&domain(provider), &mut own);
    let begun = match put {
        // SAFETY: nobody looks until it is told.
        true => unsafe { one.put(place, wrong(remote), 1) },
        // SAFETY: as above.
        false => unsafe { one.get(place, wrong(remote), 1) },
    };
    let mut result = begun.map_err(|error| error.to_string());
    // With some providers there is no answer to a wrong key: users of links bound their waits.
    let end = Instant::now() + Duration::from_millis(300);
    let mut answered = result.is_err();
    until([&one, &other], || {
        if let Some((_, moved)) = one.moved() {
            (answered, result) = (true, moved);
        }
        answered || Instant::now() > end
    });
    if !answered {
        result = Err("no answer".to_string());
    }
    // A put may be told as done when it is on its way.
    let read = one.read(&mut [IoSliceMut::new(&mut [0])]);
    let over = read.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock);
    assert_eq!(over, answered && result.is_err(), "{provider:?}");
    drop(one);
    ended(&other);
    drop(other);
    assert!((0..4096).all(|at| memory[at] == byte(at)), "{provider:?}");
    result.err()
}

#[test]
fn what_was_not_offered_cannot_be_reached() {
    for provider in providers() {
        let key = |remote: Remote| Remote {
            key: remote.key ^ 0x55,
            ..remote
        };
        let range = |remote: Remote| Remote {
            address: remote.address + 1,
            ..remote
        };
        for put in [false, true] {
            let (by_key, by_range) = (
                wrong_move(provider, put, key),
                wrong_move(provider, put, range),
            );
            println!("{provider:?} put {put}: {by_key:?}, {by_range:?}");
            assert!(
                put || (by_key.is_some() && by_range.is_some()),
                "{provider:?}"
            );
        }
    }
}

#[test]
fn the_end_of_one_is_the_end_of_the_other() {
    for provider in providers() {
        let (one, other) = pair(provider);
        up(&one, &other);
        let mut written = 0;
        until([&one, &other], || {
            written += if written == 0 {
                sent(&other, b"the last words")
            } else {
                0
            };
            written > 0 && {
                let mut into = [0; 14];
                read(&one, &mut into) == 14
            }
        });
        drop(other);
        ended(&one);
        assert!(one.write(&[RawBytes::from(&b"x"[..])]).is_err());
        assert!(one.is_delivered());
        assert_eq!(one.wait(true, true), Wait::Any);
    }
}

#[test]
fn who_greets_wrongly_is_told_apart() {
    for provider in providers() {
        for greeting in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[40, 0],
            b"\x30\x00TGFABRC1",
        ] {
            let (one, other) = sockets(provider);
            let link = Link::begin(&domain(provider), Arc::new(one)).expect("a link");
            let other = UnixStream::from(other);
            io::Write::write_all(&mut &other, greeting).expect("there is room");
            drop(other);
            let end = Instant::now() + LONG;
            let over = loop {
                match link.read(&mut [IoSliceMut::new(&mut [0; 8])]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        assert!(Instant::now() < end, "it hangs");
                    }
                    over => break over,
                }
            };
            assert!(!matches!(over, Ok(1..)), "{over:?}");
        }
    }
}

#[test]
fn what_killed_processes_left_is_removed() {
    if providers().is_empty() {
        return;
    }
    let left = |process: u32| {
        format!(
            "/dev/shm/{}{process}.0123456789abcdef",
            crate::domain::SHM_NAME
        )
    };
    let mut gone = std::process::Command::new("true")
        .spawn()
        .expect("a program");
    gone.wait().expect("it ends");
    let (gone, ours) = (left(gone.id()), left(std::process::id()));
    for name in [&gone, &ours] {
        std::fs::write(name, "").expect("there is shared memory");
    }
    crate::domain::remove_left();
    let still = |name: &String| std::path::Path::new(name).exists();
    let found = (still(&gone), still(&ours));
    std::fs::remove_file(ours).expect("it is ours");
    assert_eq!(found, (false, true));
}
