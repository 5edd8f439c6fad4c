//! Times computed by hand. The device takes 1 ms for a call and 1 us for each KiB.

use super::*;
use crate::DeviceOptions;

const KIB: u64 = 1 << 10;
const MS: u64 = 1_000_000;
const US: u64 = 1000;

fn device(depth: u64) -> Device {
    let mut options = DeviceOptions::preset("ideal").expect("it is one");
    for (name, value) in [("service_us", 1000), ("ns_per_kib", 1000), ("depth", depth)] {
        options.set(name, value).expect("it has this number");
    }
    Device::new(&options).expect("it can be built")
}

fn server(threads: u32, cache_kib: u64, dirty_kib: u64) -> Server {
    let options = ServerOptions {
        threads,
        cache_bytes: cache_kib * KIB,
        dirty_bytes: dirty_kib * KIB,
    };
    Server::new(options, device(u64::from(threads)))
}

fn access(kib: u64, len_kib: u64, write: bool) -> Access {
    Access {
        address: kib * KIB,
        len: len_kib * KIB,
        write,
    }
}

fn read(kib: u64, len_kib: u64) -> [Access; 1] {
    [access(kib, len_kib, false)]
}

fn write(kib: u64, len_kib: u64) -> [Access; 1] {
    [access(kib, len_kib, true)]
}

/// Lets the server work until nothing is left. Returns the ends of calls, by call.
fn ends(server: &mut Server) -> Vec<(u64, u64)> {
    let mut ended = Vec::new();
    while let Some(next_ns) = server.next_ns() {
        server.advance(next_ns, &mut ended);
    }
    ended.sort_unstable();
    ended
}

#[test]
fn calls_wait_for_a_thread_in_order_of_arrival() {
    let mut one = server(1, 0, 0);
    let mut two = server(2, 0, 0);
    for server in [&mut one, &mut two] {
        server.submit(0, 1, &read(0, 100));
        server.submit(0, 2, &write(0, 100));
        server.submit(500, 3, &[access(0, 50, false), access(900, 50, false)]);
    }
    let each = MS + 100 * US;
    assert_eq!(ends(&mut one), [(1, each), (2, 2 * each), (3, 3 * each)]);
    assert_eq!(ends(&mut two), [(1, each), (2, each), (3, 2 * each)]);
    assert_eq!(
        (one.busy_ns(5 * MS), two.busy_ns(5 * MS)),
        (3 * each, 2 * each)
    );
}

#[test]
fn what_was_read_is_read_again_without_the_device() {
    let mut server = server(1, 300, 0);
    server.submit(0, 1, &read(0, 100));
    let first = MS + 100 * US;
    assert_eq!(ends(&mut server), [(1, first)]);
    server.submit(2 * MS, 2, &read(20, 60));
    assert_eq!(ends(&mut server), [(2, 2 * MS)]);
    // Of these only the second half is not there.
    server.submit(3 * MS, 3, &read(50, 100));
    assert_eq!(ends(&mut server), [(3, 4 * MS + 50 * US)]);
    assert_eq!(server.busy_ns(9 * MS), first + MS + 50 * US);
}

#[test]
fn bytes_leave_the_cache_in_the_order_of_their_last_use() {
    let mut server = server(1, 200, 0);
    let mut at = 0;
    let mut taken = |server: &mut Server, kib: u64| {
        server.submit(at, at, &read(kib, 100));
        let [(_, end)] = ends(server)[..] else {
            panic!("one call")
        };
        let taken_ns = end - at;
        at = end + 1;
        taken_ns
    };
    let miss = MS + 100 * US;
    assert_eq!(taken(&mut server, 0), miss);
    assert_eq!(taken(&mut server, 1000), miss);
    assert_eq!(taken(&mut server, 0), 0);
    // Takes the place of the one that was not used again.
    assert_eq!(taken(&mut server, 2000), miss);
    assert_eq!(taken(&mut server, 0), 0);
    assert_eq!(taken(&mut server, 1000), miss);
}

#[test]
fn a_write_ends_in_the_cache_and_waits_when_that_is_full() {
    let mut server = server(1, 1000, 300);
    for call in 1..=4 {
        server.submit(0, call, &write(1000 * call, 100));
    }
    // The first is written back at once, and 3 of them are all that the cache takes.
    let back = MS + 100 * US;
    assert_eq!(ends(&mut server), [(1, 0), (2, 0), (3, 0), (4, back)]);
    assert_eq!(server.busy_ns(9 * MS), 4 * back);
    server.submit(9 * MS, 5, &read(2000, 100));
    assert_eq!(ends(&mut server), [(5, 9 * MS)]);
    // Larger than all that the cache takes of writes: it waits until nothing else is there.
    server.submit(10 * MS, 6, &write(0, 200));
    server.submit(10 * MS, 7, &write(5000, 400));
    assert_eq!(ends(&mut server), [(6, 10 * MS), (7, 11 * MS + 200 * US)]);
}

#[test]
fn what_lies_together_is_written_back_in_one_run() {
    let mut server = server(4, 10_000, 10_000);
    server.submit(0, 1, &write(5000, 100));
    // While that is written, these come in any order.
    for (call, kib) in [(2, 300), (3, 100), (4, 200), (5, 5100)] {
        server.submit(10, call, &write(kib, 100));
    }
    server.flush(20, 6);
    // First what follows the place of the last run, then from the beginning.
    let durable = 3 * MS + (100 + 100 + 300) * US;
    let all = [(1, 0), (2, 10), (3, 10), (4, 10), (5, 10), (6, durable)];
    assert_eq!(ends(&mut server), all);
    server.flush(durable, 7);
    assert_eq!(ends(&mut server), [(7, durable)]);
    assert_eq!(server.busy_ns(9 * MS), durable);
}

#[test]
fn a_flush_waits_for_what_was_written_before_it_and_no_later_write() {
    let mut server = server(2, 10_000, 10_000);
    server.submit(0, 1, &write(0, 100));
    server.submit(0, 2, &write(5000, 100));
    server.flush(10, 3);
    server.submit(20, 4, &write(9000, 1000));
    let both = 2 * (MS + 100 * US);
    assert_eq!(ends(&mut server), [(1, 0), (2, 0), (3, both), (4, 20)]);
    // Without a cache there is nothing to wait for.
    let mut plain = self::server(1, 0, 0);
    plain.flush(7, 1);
    assert_eq!(ends(&mut plain), [(1, 7)]);
}

#[test]
fn bytes_that_are_written_on_their_way_to_the_device_go_there_again() {
    let mut server = server(1, 1000, 1000);
    server.submit(0, 1, &write(0, 100));
    // In the middle of them, while they are on their way.
    server.submit(10, 2, &write(40, 20));
    server.flush(20, 3);
    let durable = MS + 100 * US + MS + 20 * US;
    assert_eq!(ends(&mut server), [(1, 0), (2, 10), (3, durable)]);
    assert_eq!(server.pages.dirty_bytes(), 0);
    server.submit(9 * MS, 4, &read(0, 100));
    assert_eq!(ends(&mut server), [(4, 9 * MS)]);
}

/// Random calls on every kind of device: each ends once and not before it came, the cache stays
/// within its bounds, and knows each byte once.
#[test]
fn calls_end_once_and_the_cache_keeps_its_bounds() {
    for seed in 0..200u64 {
        let draw = |number: u64, below: u64| crate::address::mix(seed << 32 | number) % below;
        let preset = crate::PRESETS[seed as usize % crate::PRESETS.len()];
        let device = DeviceOptions::preset(preset).expect("it is one");
        let options = ServerOptions {
            threads: 1 + draw(1, 4) as u32,
            cache_bytes: draw(2, 3) * 500 * KIB,
            dirty_bytes: draw(3, 3) * 200 * KIB,
        };
        let mut server = Server::new(options, Device::new(&device).expect("it can be built"));
        let (mut now, mut ended, mut begun) = (0, Vec::new(), Vec::new());
        for call in 0..60 {
            let number = 100 * (call + 1);
            now += draw(number, 3 * MS);
            while let Some(next_ns) = server.next_ns().filter(|at| *at <= now) {
                server.advance(next_ns, &mut ended);
            }
            begun.push(now);
            if draw(number + 1, 10) == 0 {
                server.flush(now, call);
            } else {
                let write = draw(number + 2, 2) == 0;
                let accesses: Vec<Access> = (0..1 + draw(number + 3, 3))
                    .map(|it| access(draw(number + 4 + it, 900), draw(number + 9 + it, 80), write))
                    .collect();
                server.submit(now, call, &accesses);
            }
            assert!(server.pages.dirty_bytes() <= options.dirty_bytes.max(240 * KIB));
            server.pages.check(options.cache_bytes.max(240 * KIB));
        }
        while let Some(next_ns) = server.next_ns() {
            server.advance(next_ns, &mut ended);
        }
        assert_eq!(server.pages.dirty_bytes(), 0, "seed {seed}");
        ended.sort_unstable();
        let calls: Vec<u64> = ended.iter().map(|(call, _)| *call).collect();
        assert_eq!(calls, (0..60).collect::<Vec<_>>(), "seed {seed}");
        for (call, end_ns) in ended {
            assert!(end_ns >= begun[call as usize], "seed {seed}: {call}");
        }
    }
}
