//! Records N requests into a ring that is never written out, so that callgrind can count what the
//! recording thread spends on one: the difference of two runs, divided by that of their N.
//!
//! `valgrind --tool=callgrind target/release/examples/record trace-record 20000`

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_trace::{AppId, Direction, Header, Record, Recorder};

/// Takes the header, and nothing more; says when it was asked for more.
struct Stalled {
    begun: bool,
    asked: Arc<AtomicBool>,
}

impl Write for Stalled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.begun {
            self.asked.store(true, Ordering::Release);
            loop {
                std::thread::park();
            }
        }
        self.begun = true;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let count = args.nth(1).and_then(|text| text.parse().ok());
    let Some(count) = count else {
        eprintln!("usage: record trace-record N");
        std::process::exit(2);
    };
    let asked = Arc::new(AtomicBool::new(false));
    let to = Stalled {
        begun: false,
        asked: asked.clone(),
    };
    // Never half full, so that nobody is woken.
    let recorder = Recorder::over(to, &Header::default(), 1 << 16, |_| ());
    let mut recorder = recorder.expect("it takes the header");
    // What the writing thread takes before it stalls must not depend on the count.
    recorder.record(&Record::default());
    while !asked.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(10));
    }
    for number in 0..count {
        let record = Record {
            arrival_ns: 1_000 * number,
            issue_ns: Some(1_000 * number as i64),
            app: AppId(number % 8),
            operation: number,
            forwarder: Some(0),
            direction: Direction::Write,
            offset: number << 16,
            len: 1 << 16,
            done: 1 << 16,
            wait_ns: Some(1_000),
            service_ns: Some(2_000),
            ..Record::default()
        };
        recorder.record(&record);
    }
    println!("{count} requests recorded");
    // The writing thread never ends.
    std::process::exit(0);
}
