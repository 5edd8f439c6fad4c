//! The recorder: what it takes is in the file, what it cannot take is counted, nobody waits.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tidegate_trace::{Counts, Ending, Event, Header, Reader, Record, Recorder, Shuffle};

const PATIENCE: Duration = Duration::from_secs(10);

/// A file that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-recorder-{}-{number}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn read(&self) -> (Vec<u64>, Ending, u64, u64) {
        let mut reader = Reader::open(&self.0).expect("a trace");
        let operations = reader
            .by_ref()
            .map(|record| record.expect("a file").operation);
        let operations = operations.collect();
        let ending = reader.ending().clone();
        (operations, ending, reader.dropped(), reader.recordings())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn header() -> Header {
    Header {
        zero_wall_ns: 1,
        ..Header::default()
    }
}

fn numbered(operation: u64) -> Record {
    Record {
        operation,
        ..Record::default()
    }
}

fn silent(event: Event) {
    panic!("nothing is to be told: {event:?}");
}

#[test]
fn everything_recorded_is_in_the_file_and_a_second_run_goes_on_behind_it() {
    let scratch = Scratch::new();
    let mut all = Vec::new();
    for run in 0..3u64 {
        let mut recorder = Recorder::create(&scratch.0, &header(), 1 << 16, silent).expect("new");
        let other = Recorder::create(&scratch.0, &header(), 16, silent).map(|_| ());
        let other = other.expect_err("it is locked").to_string();
        assert!(other.contains("another forwarder"), "{other}");
        for number in 0..5_000 {
            all.push(run * 10_000 + number);
            recorder.record(&numbered(run * 10_000 + number));
        }
        let counts = recorder.finish(PATIENCE);
        let expected = Counts {
            recorded: 5_000,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
        // A recorder that was killed leaves part of a block.
        let mut file = std::fs::File::options()
            .append(true)
            .open(&scratch.0)
            .expect("there");
        file.write_all(&[1; 17]).expect("there is room");
    }
    let mut file = std::fs::File::options()
        .write(true)
        .open(&scratch.0)
        .expect("there");
    let len = file.metadata().expect("there").len() - 17;
    file.set_len(len).expect("ours");
    file.flush().expect("ours");
    assert_eq!(scratch.read(), (all, Ending::Closed, 0, 3));
}

#[test]
fn what_is_no_trace_is_not_written_to() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, "precious").expect("ours");
    let error = Recorder::create(&scratch.0, &header(), 16, silent).map(|_| ());
    let error = error.expect_err("refused").to_string();
    assert!(
        error.contains("not a trace") && error.contains("name another"),
        "{error}"
    );
    assert_eq!(std::fs::read(&scratch.0).expect("there"), b"precious");
    let folder = std::env::temp_dir();
    assert!(Recorder::create(&folder, &header(), 16, silent).is_err());
    assert!(Recorder::create(&folder.join("none/there"), &header(), 16, silent).is_err());
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "no {what} in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A file whose writes wait while it is shut, or fail while it is full.
#[derive(Clone, Default)]
struct Gate {
    bytes: Arc<Mutex<Vec<u8>>>,
    shut: Arc<(Mutex<bool>, Condvar)>,
    full: Arc<AtomicBool>,
    /// Writes that failed.
    refused: Arc<AtomicU64>,
}

impl Gate {
    fn set_shut(&self, shut: bool) {
        *self.shut.0.lock().expect("no panic") = shut;
        self.shut.1.notify_all();
    }
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shut = self.shut.0.lock().expect("no panic");
        while *shut {
            shut = self.shut.1.wait(shut).expect("no panic");
        }
        if self.full.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Less than asked for, and no whole block, as file systems may.
        let len = bytes.len().min(100);
        let mut all = self.bytes.lock().expect("no panic");
        all.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stalled_writer_drops_and_counts_and_stalls_nobody() {
    let gate = Gate::default();
    let mut recorder = Recorder::over(gate.clone(), &header(), 8, silent).expect("open");
    gate.set_shut(true);
    // They all return while the gate is shut.
    for number in 0..100_000 {
        recorder.record(&numbered(number));
    }
    let counts = recorder.counts();
    // Eight in the ring, and at most as many that the writer had taken.
    assert!((8..=16).contains(&counts.buffered), "{counts:?}");
    assert_eq!(counts.recorded, 0);
    assert_eq!(counts.buffered + counts.dropped, 100_000);
    gate.set_shut(false);
    let counts = recorder.finish(PATIENCE);
    assert_eq!(
        (counts.recorded + counts.dropped, counts.buffered),
        (100_000, 0)
    );
    let bytes = gate.bytes.lock().expect("no panic").clone();
    let mut reader = Reader::new(&bytes[..], "memory").expect("a trace");
    assert_eq!(reader.by_ref().count() as u64, counts.recorded);
    assert_eq!(
        (reader.dropped(), reader.ending()),
        (counts.dropped, &Ending::Closed)
    );
}

#[test]
fn a_shuffle_is_recorded_with_its_request_or_both_are_dropped() {
    let gate = Gate::default();
    let mut recorder = Recorder::over(gate.clone(), &header(), 9, silent).expect("open");
    gate.set_shut(true);
    let with_shuffle = |operation: u64| Record {
        shuffle: Some(Shuffle {
            us: operation as u32,
            max_us: 1 << 20,
            rank: 3,
        }),
        ..numbered(operation)
    };
    for number in 0..1000 {
        recorder.record(&with_shuffle(number));
    }
    assert_eq!(recorder.counts().buffered + recorder.counts().dropped, 1000);
    gate.set_shut(false);
    let counts = recorder.finish(PATIENCE);
    assert_eq!(
        (counts.recorded + counts.dropped, counts.buffered),
        (1000, 0)
    );
    assert!(counts.recorded >= 4, "{counts:?}");
    let bytes = gate.bytes.lock().expect("no panic").clone();
    let reader = Reader::new(&bytes[..], "memory").expect("a trace");
    let records: Vec<_> = reader.map(|record| record.expect("memory")).collect();
    assert_eq!(records.len() as u64, counts.recorded);
    for record in records {
        assert_eq!(record, with_shuffle(record.operation));
    }
}

#[test]
fn a_writer_that_hangs_is_left_behind() {
    let gate = Gate::default();
    let mut recorder = Recorder::over(gate.clone(), &header(), 8, silent).expect("open");
    gate.set_shut(true);
    recorder.record(&numbered(1));
    let begun = Instant::now();
    let counts = recorder.finish(Duration::from_millis(50));
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!((counts.recorded, counts.buffered), (0, 1));
    gate.set_shut(false);
}

#[test]
fn a_full_disk_is_told_once_and_recording_goes_on_when_there_is_room() {
    let (gate, told) = (Gate::default(), Arc::new(Mutex::new(Vec::new())));
    let say = told.clone();
    let tell = move |event: Event| say.lock().expect("no panic").push(format!("{event:?}"));
    let mut recorder = Recorder::over(gate.clone(), &header(), 100, tell).expect("open");
    gate.full.store(true, Ordering::SeqCst);
    for number in 0..300 {
        recorder.record(&numbered(number));
    }
    until("a third try", || gate.refused.load(Ordering::SeqCst) >= 3);
    let counts = recorder.counts();
    assert_eq!(
        (counts.recorded, counts.buffered + counts.dropped),
        (0, 300)
    );
    gate.full.store(false, Ordering::SeqCst);
    until("recording", || recorder.counts().recorded > 0);
    recorder.record(&numbered(300));
    let counts = recorder.finish(PATIENCE);
    assert_eq!(counts.recorded + counts.dropped, 301);
    let bytes = gate.bytes.lock().expect("no panic").clone();
    let mut reader = Reader::new(&bytes[..], "memory").expect("a trace");
    let operations: Vec<_> = reader
        .by_ref()
        .map(|one| one.expect("memory").operation)
        .collect();
    assert_eq!(operations.len() as u64, counts.recorded);
    assert_eq!(operations.last(), Some(&300));
    assert_eq!(
        (reader.dropped(), reader.ending()),
        (counts.dropped, &Ending::Closed)
    );
    let told = told.lock().expect("no panic").clone();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("Failed") && told[1] == "WentOn",
        "{told:?}"
    );
}

#[test]
fn a_disk_that_stays_full_does_not_hold_up_the_end() {
    let (gate, told) = (Gate::default(), Arc::new(AtomicU64::new(0)));
    let say = told.clone();
    let tell = move |_| {
        say.fetch_add(1, Ordering::SeqCst);
    };
    let mut recorder = Recorder::over(gate.clone(), &header(), 100, tell).expect("open");
    gate.full.store(true, Ordering::SeqCst);
    recorder.record(&numbered(1));
    let begun = Instant::now();
    let counts = recorder.finish(Duration::from_millis(300));
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(
        (counts.recorded, counts.buffered, counts.dropped),
        (0, 0, 1)
    );
    assert_eq!(told.load(Ordering::SeqCst), 1);
}
