//! What a queue and a write cache change: times of calls, and who waits for whom.

use crate::{Access, Device, DeviceOptions};
use std::collections::VecDeque;
use std::vec::Vec;

fn options() -> DeviceOptions {
    DeviceOptions::preset("hdd-ncq").unwrap()
}

fn disk(options: &DeviceOptions) -> Device {
    Device::new(options).unwrap()
}

/// A fixed sequence of numbers that look random.
fn random(i: u64) -> u64 {
    crate::address::mix(i + 1)
}

fn read(address: u64, len: u64) -> Access {
    Access {
        address,
        len,
        write: false,
    }
}

fn write(address: u64, len: u64) -> Access {
    Access {
        address,
        len,
        write: true,
    }
}

/// Times of `count` calls of one access each, `depth` of them running at any time, and when the
/// last one ends, in ns.
fn times(
    device: &mut Device,
    count: u64,
    depth: u64,
    access: impl Fn(u64) -> Access,
) -> (Vec<u64>, u64) {
    let (mut times, mut ended, mut now_ns) = (Vec::new(), Vec::new(), 0);
    let mut begun = VecDeque::new();
    for call in 0..depth.min(count) {
        begun.push_back(now_ns);
        assert_eq!(device.submit(now_ns, call, &[access(call)]), None);
    }
    while (times.len() as u64) < count {
        now_ns = device.next_ns().expect("calls are left");
        device.advance(now_ns, &mut ended);
        for (call, at) in ended.drain(..) {
            assert_eq!(at, now_ns);
            times.push(at - begun[call as usize]);
            let next = begun.len() as u64;
            if next < count {
                begun.push_back(now_ns);
                device.submit(now_ns, next, &[access(next)]);
            }
        }
    }
    (times, now_ns)
}

#[test]
fn random_reads_gain_by_depth_and_none_waits_for_ever() {
    let rate = |depth| {
        let (times, end_ns) = times(&mut disk(&options()), 4000, depth, |i| {
            read(random(i) % 3_900_000_000_000 / 4096 * 4096, 4096)
        });
        let longest_ms = times.iter().max().unwrap() / 1_000_000;
        // The age, and as many as can have got as old.
        assert!(longest_ms < 1000 + 13 * depth + 30, "{depth}: {longest_ms}");
        4000 * 1_000_000_000 / end_ns
    };
    let rates: Vec<u64> = [1, 4, 8, 32].map(rate).into();
    assert!((72..84).contains(&rates[0]), "{rates:?}");
    assert!(
        rates.windows(2).all(|pair| pair[0] * 110 / 100 < pair[1]),
        "{rates:?}"
    );
    assert!((150..300).contains(&rates[3]), "{rates:?}");
    // More than the queue has waits in order of arrival.
    let deeper = rate(64);
    assert!(
        deeper.abs_diff(rates[3]) * 20 < rates[3],
        "{rates:?} {deeper}"
    );
}

#[test]
fn streams_run_at_the_rate_of_the_platters() {
    let mb_s = |device: &mut Device, access: &dyn Fn(u64) -> Access, depth| {
        let (_, end_ns) = times(device, 1024, depth, access);
        1024 * 64 * 1024 * 1000 / end_ns
    };
    for depth in [1, 8] {
        let rate = mb_s(
            &mut disk(&options()),
            &|i| read((1 << 35) + i * 65_536, 65_536),
            depth,
        );
        assert!((160..=190).contains(&rate), "{depth}: {rate}");
    }
    // Writes of 64 MiB that the cache takes come at the rate of the interface; behind them the
    // platters decide.
    let mut device = disk(&options());
    let rate = mb_s(&mut device, &|i| write((1 << 35) + i * 65_536, 65_536), 1);
    assert!(rate > 300, "{rate}");
    let mut small = options();
    small.set("write_cache_bytes", 2 << 20).unwrap();
    let rate = mb_s(
        &mut disk(&small),
        &|i| write((1 << 35) + i * 65_536, 65_536),
        4,
    );
    assert!((150..=195).contains(&rate), "{rate}");
}

#[test]
fn the_buffer_keeps_several_streams() {
    let alternating = |segments| {
        let mut options = options();
        options.set("segments", segments).unwrap();
        options.set("queue", 32).unwrap();
        // Eight streams in turns of 64 KiB, with pauses in which the head reads on.
        let (mut device, mut now_ns) = (disk(&options), 0);
        for i in 0..512 {
            let at = (i % 8) * (100 << 30) + i / 8 * 65_536;
            now_ns = device.serve(now_ns, &[read(at, 65_536)]) + 5_000_000;
        }
        now_ns - 512 * 5_000_000
    };
    let (one, many) = (alternating(1), alternating(16));
    assert!(many * 3 < one, "{many} {one}");
}

#[test]
fn a_flush_waits_for_what_the_cache_has_and_for_no_later_write() {
    let mut device = disk(&options());
    let mut ended = Vec::new();
    let mut now_ns = 0;
    for i in 0..100 {
        let begun_ns = now_ns;
        now_ns = device.serve(now_ns, &[write(random(i) % (1 << 41), 4096)]);
        assert!(now_ns - begun_ns < 200_000, "{i}");
    }
    assert_eq!(device.flush(now_ns, 7), None);
    // Later writes keep the cache from ever being empty.
    let mut later = 1000;
    let flushed_ns = loop {
        let next_ns = device.next_ns().expect("the flush is left");
        device.advance(next_ns, &mut ended);
        if let Some((_, at)) = ended.iter().find(|(call, _)| *call == 7) {
            break *at - now_ns;
        }
        if later < 1400 {
            device.submit(next_ns, later, &[write(random(later) % (1 << 41), 4096)]);
            later += 1;
        }
    };
    // 100 positionings of which the nearest of 32 is taken.
    assert!(
        (300_000_000..1_000_000_000).contains(&flushed_ns),
        "{flushed_ns}"
    );
    let mut clean = disk(&options());
    clean.flush(5, 1);
    clean.advance(1_000_000, &mut ended);
    assert_eq!(ended.last(), Some(&(1, 50_005)));
}

#[test]
fn neither_a_flush_nor_a_write_without_room_waits_for_all_reads_of_others() {
    let mut options = options();
    options.set("write_cache_bytes", 1 << 20).unwrap();
    for depth in [1, 2, 8] {
        let mut device = disk(&options);
        let (mut ended, mut reads) = (Vec::new(), 0);
        let mut read_on = |device: &mut Device, now_ns, count| {
            for _ in 0..count {
                let at = (1 << 40) + reads * 65_536;
                device.submit(now_ns, 1000 + reads, &[read(at, 65_536)]);
                reads += 1;
            }
        };
        read_on(&mut device, 0, depth);
        // The first fills the cache.
        for call in 0..4 {
            device.submit(0, call, &[write(call << 30, 1 << 20)]);
        }
        device.flush(0, 4);
        let mut left = 5;
        while left > 0 {
            let now_ns = device.next_ns().expect("calls are left");
            device.advance(now_ns, &mut ended);
            for (call, _) in ended.drain(..) {
                match call < 1000 {
                    true => left -= 1,
                    false => read_on(&mut device, now_ns, 1),
                }
            }
            assert!(now_ns < 5_000_000_000, "depth {depth}: {left} are left");
        }
    }
}

#[test]
fn what_is_written_again_is_no_more_durable_for_it() {
    let mut device = disk(&options());
    let mut ended = Vec::new();
    let blocks = |calls: std::ops::Range<u64>, device: &mut Device| {
        for call in calls {
            device.submit(0, call, &[write(random(call % 100) % (1 << 41), 4096)]);
        }
    };
    blocks(0..100, &mut device);
    device.flush(0, 1000);
    blocks(100..200, &mut device);
    while !ended.iter().any(|(call, _)| *call == 1000) {
        let next_ns = device.next_ns().expect("the flush is left");
        device.advance(next_ns, &mut ended);
    }
    let (_, flushed_ns) = ended.iter().find(|(call, _)| *call == 1000).expect("seen");
    assert!(*flushed_ns > 200_000_000, "{flushed_ns}");
}

#[test]
fn reads_pass_the_cache_and_see_what_it_has() {
    let mut device = disk(&options());
    let mut ended = Vec::new();
    for i in 0..1000 {
        device.submit(0, i, &[write(random(i) % (1 << 41), 4096)]);
    }
    device.advance(20_000_000, &mut ended);
    assert_eq!(ended.len(), 1000);
    // What the cache has is read from it, anything else after one write of the arm at most.
    let cached_ns = device.serve(20_000_000, &[read(random(990) % (1 << 41), 4096)]) - 20_000_000;
    assert!(cached_ns < 100_000, "{cached_ns}");
    let taken_ns = device.serve(30_000_000, &[read(1 << 33, 4096)]) - 30_000_000;
    assert!(taken_ns < 60_000_000, "{taken_ns}");
}

#[test]
fn a_full_cache_makes_writes_wait() {
    let mut options = options();
    options.set("write_cache_bytes", 1 << 20).unwrap();
    let (times, _) = times(&mut disk(&options), 1000, 1, |i| {
        write(random(i) % (1 << 41), 16_384)
    });
    assert!(times[..60].iter().all(|time| *time < 200_000));
    let late_ms = times[500..].iter().sum::<u64>() / 500_000_000;
    assert!((2..8).contains(&late_ms), "{late_ms}");
}

#[test]
fn a_call_ends_with_its_last_extent() {
    let mut device = disk(&options());
    let extents: Vec<Access> = (0..20).map(|i| read(random(i) % (1 << 41), 4096)).collect();
    let together_ns = device.serve(0, &extents);
    let mut one_by_one = disk(&options());
    let apart_ns = extents
        .iter()
        .fold(0, |now, one| one_by_one.serve(now, &[*one]));
    assert!(together_ns * 3 < apart_ns * 2, "{together_ns} {apart_ns}");
    assert!(device.serve(together_ns, &[]) > together_ns);
    // A write beyond the cache goes straight to the platters.
    let large_ns = device.serve(together_ns, &[write(0, 128 << 20)]) - together_ns;
    assert!(large_ns > 600_000_000, "{large_ns}");
}
