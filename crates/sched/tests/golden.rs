//! Golden traces: inputs and outputs as text, replayed byte for byte. A change of what a policy
//! does shows as a difference that a reviewer can read.
//!
//! A file in `tests/golden/` holds a command a line; what came out follows in lines with `>`.
//! After a change that is meant, `TIDEGATE_GOLDEN=write cargo test -p tidegate-sched --test golden`
//! writes the outputs anew; the difference belongs in the commit. A new file needs no outputs.
//!
//! ```text
//! # a comment
//! policy window depth=2 wall_offset_ns=5 merge=true set.window_ms=10 set.order=id
//! 1000 arrived 1 app=7 file=3 write 0+4096 stamp=900     time, id, application, file, range
//! 1000 arrived 2 app=7 file=3 read 0+4096 shuffle=5/9/1     shuffle, longest shuffle, rank of it
//! 1000 arrived 3 app=7 file=3 read 0+4096 largest=9 elsewhere=5  of its operation; of its app
//! 1000 poll                                               until nothing more is dispatched
//! 2000 finished 1
//! 2000 finished all                                       everything that runs
//! 2000 cancelled 2
//! ```

use std::fmt::Write;
use std::path::PathBuf;
use tidegate_sched::{
    AppId, Direction, FileId, Input, Options, Output, Request, RequestId, Scheduler, Time, policies,
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn every_trace_replays_byte_for_byte() {
    let write = std::env::var("TIDEGATE_GOLDEN").is_ok_and(|word| word == "write");
    let mut policies: Vec<&str> = policies::NAMES.to_vec();
    let mut paths: Vec<_> = std::fs::read_dir(folder())
        .expect("the traces lie beside this file")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    for path in paths {
        let old = std::fs::read_to_string(&path).expect("a readable trace");
        let new = replay(&old);
        policies.retain(|name| !old.contains(&format!("policy {name}")));
        if write {
            std::fs::write(&path, new).expect("a writable trace");
        } else {
            assert_eq!(old, new, "{} differs; see tests/golden.rs", path.display());
        }
    }
    assert!(policies.is_empty(), "no golden trace for {policies:?}");
}

/// The trace with its outputs made anew.
fn replay(trace: &str) -> String {
    let mut text = String::new();
    let mut scheduler = None;
    let mut running = Vec::new();
    for line in trace.lines().filter(|line| !line.starts_with('>')) {
        writeln!(text, "{line}").expect("a string takes all");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["policy", ..] => change_policy(&mut scheduler, &words[1..]),
            [time, ..] => {
                let now = Time(number(time));
                let scheduler = scheduler.as_mut().expect("the first line names the policy");
                step(scheduler, now, &words[1..], &mut running, &mut text);
            }
        }
    }
    text
}

fn change_policy(scheduler: &mut Option<Scheduler>, words: &[&str]) {
    let mut options = Options::for_policy(words[0]);
    for word in &words[1..] {
        let (name, value) = word.split_once('=').expect("an option is name=value");
        match name {
            "depth" => options.depth = number(value) as u32,
            "queued_max" => options.queued_max = number(value) as u32,
            "wall_offset_ns" => options.wall_offset_ns = number(value),
            "batch_bytes_max" => options.batch_bytes_max = number(value),
            "merge" => options.merge = Some(value == "true"),
            _ => {
                let name = name
                    .strip_prefix("set.")
                    .expect("a policy's option begins with set.");
                match (value.parse::<u64>(), value.parse::<bool>()) {
                    (Ok(number), _) => options.table.set(name, number),
                    (_, Ok(truth)) => options.table.set(name, truth),
                    _ => options.table.set(name, value),
                }
            }
        }
    }
    match scheduler {
        Some(scheduler) => scheduler
            .set_policy(Time(0), &options)
            .expect("good options"),
        None => *scheduler = Some(Scheduler::new(&options).expect("good options")),
    }
}

fn step(
    scheduler: &mut Scheduler,
    now: Time,
    words: &[&str],
    running: &mut Vec<u64>,
    text: &mut String,
) {
    let input = match words {
        ["arrived", id, rest @ ..] => Input::Arrived(request(number(id), rest)),
        ["finished", "all"] => {
            for id in running.drain(..) {
                let finished = Input::Finished(RequestId(id));
                scheduler.handle(now, finished).expect("it runs");
            }
            return;
        }
        ["finished", id] => {
            running.retain(|running| *running != number(id));
            Input::Finished(RequestId(number(id)))
        }
        ["cancelled", id] => Input::Cancelled(RequestId(number(id))),
        ["poll"] => return poll(scheduler, now, running, text),
        _ => panic!("no such command: {words:?}"),
    };
    if let Err(rejected) = scheduler.handle(now, input) {
        writeln!(text, "> rejected: {rejected}").expect("a string takes all");
    }
}

fn poll(scheduler: &mut Scheduler, now: Time, running: &mut Vec<u64>, text: &mut String) {
    let mut batch = Vec::new();
    loop {
        let output = scheduler.poll(now, &mut batch);
        running.extend(batch.iter().map(|request| request.id.0));
        let ids: Vec<String> = batch
            .iter()
            .map(|request| request.id.0.to_string())
            .collect();
        let line = match output {
            Output::Dispatch => format!("> dispatch {}", ids.join(" ")),
            Output::Broadcast(report) => format!("> tell {} {} ns", report.app.0, report.device_ns),
            Output::WaitUntil(until) => format!("> wait until {}", until.0),
            Output::Idle => {
                format!(
                    "> idle, {} wait, {} run",
                    scheduler.queued(),
                    scheduler.running()
                )
            }
        };
        writeln!(text, "{line}").expect("a string takes all");
        if !matches!(output, Output::Dispatch | Output::Broadcast(_)) {
            return;
        }
    }
}

fn request(id: u64, words: &[&str]) -> Request {
    let mut request = Request {
        id: RequestId(id),
        mergeable: true,
        ..Request::default()
    };
    for word in words {
        if let Some((name, value)) = word.split_once('=') {
            match name {
                "app" => request.app = AppId(number(value)),
                "file" => request.file = FileId(number(value)),
                "stamp" => request.stamp_ns = number(value),
                "queue" => request.queue = number(value) as u32,
                "largest" => request.operation_bytes_max = number(value),
                "elsewhere" => request.bytes_elsewhere = number(value),
                "shuffle" => {
                    let mut parts = value.split('/').map(number);
                    request.shuffle_us = parts.next().unwrap_or(0) as u32;
                    request.shuffle_max_us = parts.next().unwrap_or(0) as u32;
                    request.shuffle_rank = parts.next().unwrap_or(0) as u16;
                }
                "seen" => request.epoch_seen = number(value),
                _ => panic!("no such field: {name}"),
            }
        } else if let Some((offset, len)) = word.split_once('+') {
            (request.offset, request.len) = (number(offset), number(len));
        } else {
            match *word {
                "read" => request.direction = Direction::Read,
                "write" => request.direction = Direction::Write,
                // As a host asks for truncate, append and the like.
                "whole" => {
                    request.direction = Direction::Write;
                    request.len = u64::MAX;
                    request.mergeable = false;
                }
                _ => panic!("no such word: {word}"),
            }
        }
    }
    request
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("not a number: {text}"))
}
