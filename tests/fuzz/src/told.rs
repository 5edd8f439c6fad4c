//! What forwarders tell each other through files of the hidden folder, and instances of `tidegate
//! check` through those of a folder of theirs: reports of what applications were given, and trials
//! of the file system. What is read says itself again, nothing lies outside of a trial's folder,
//! and a scheduler takes all that others have given.

use crate::{Draw, folder::Folder};
use std::fs::File;
use std::os::unix::fs::symlink;
use tidegate_sched::{
    AppId, Input, Options, Output, PolicyOptions, Request, RequestId, Scheduler, ServiceReport,
    Time,
};
use tidegate_server::backend::heard::{Executor, answer, message, operation, series};
use tidegate_server::reports::{Heard, file_of};

/// Files that are read in a run.
const FILES_MAX: u8 = 12;
/// Operations of a run.
const OPS_MAX: u8 = 40;

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    match draw.u8() % 4 {
        0 => reports(&mut draw),
        1 => lines(&mut draw),
        2 => trials(&mut draw),
        _ => operations(&mut draw),
    }
}

/// A text with the mark at its end by which a reader knows that it is whole.
fn marked(text: &str) -> String {
    let mark = AppId::from_name(text).0;
    format!("{text}end {mark:016x}\n")
}

/// Reports of two other forwarders.
fn reports(draw: &mut Draw<'_>) {
    let sync = draw.of(&["total", "threshold"]);
    let options = Options {
        table: PolicyOptions::default().with("sync", sync),
        ..Options::for_policy("dsfq")
    };
    let mut scheduler = Scheduler::new(&options).expect("sound options");
    let mut heard = Heard::default();
    for now in 0..u64::from(draw.u8() % FILES_MAX) {
        let other = draw.u16() % 2;
        let life = u64::from(draw.u8() % 2);
        let file = match draw.one_in(4) {
            true => {
                let text = String::from_utf8_lossy(draw.some_bytes());
                marked(&format!("tidegate-given 2 {life:016x}\n{text}"))
            }
            false => {
                let given = (0..draw.u8() % 4).map(|_| report(draw));
                file_of(life, given.collect::<Vec<_>>())
            }
        };
        let told = heard.take(other, file.as_bytes());
        assert!(told.len() <= file.len() / 8, "more than the file says");
        // The same file says nothing new.
        assert!(heard.take(other, file.as_bytes()).is_empty());
        for report in told {
            assert!(report.operations > 0, "nothing was given");
            let taken = scheduler.handle(Time(now), Input::PeerService(report));
            taken.expect("no report is refused");
        }
        serve(draw, &mut scheduler, now);
    }
}

/// An application asks for something, and the scheduler says whose turn it is.
fn serve(draw: &mut Draw<'_>, scheduler: &mut Scheduler, now: u64) {
    let request = Request {
        id: RequestId(now),
        app: AppId(draw.u8().into()),
        len: draw.u16().into(),
        ..Request::default()
    };
    let arrived = scheduler.handle(Time(now), Input::Arrived(request));
    arrived.expect("there is room");
    let mut batch = Vec::new();
    if let Output::Dispatch = scheduler.poll(Time(now), &mut batch) {
        for request in batch {
            let done = scheduler.handle(Time(now + 1), Input::Finished(request.id));
            done.expect("it runs");
        }
    }
}

fn report(draw: &mut Draw<'_>) -> ServiceReport {
    ServiceReport {
        app: AppId(draw.u8().into()),
        device_ns: draw.size(),
        bytes: draw.size(),
        operations: draw.size(),
    }
}

/// Any texts in the places of messages, operations and answers.
fn lines(draw: &mut Draw<'_>) {
    let kind = draw.u8() % 3;
    let text = String::from_utf8_lossy(draw.rest());
    let (text, again) = match kind {
        0 => {
            let text = marked(&format!("tidegate-probe 1 {text}\n"));
            let again = message(&text);
            (text, again)
        }
        1 => (text.to_string(), operation(&text)),
        _ => (text.to_string(), answer(&text)),
    };
    if let Some(again) = again {
        assert_eq!(again, text);
        let plain = |c: char| c == '\n' || !c.is_control();
        assert!(again.chars().all(plain), "it moves the cursor: {again:?}");
    }
}

/// Trials with sides that answer anything.
fn trials(draw: &mut Draw<'_>) {
    let short = draw.yes();
    let mut say = |op: &str| {
        // Each time that a closed lock stays, the trial waits.
        let closed = op.starts_with("lock") && op.contains(" - - 6 ");
        Some(match draw.u8() % 16 {
            0 => return None,
            1 => String::from_utf8_lossy(draw.some_bytes()).into_owned(),
            2..=4 => format!("{} 0 0 0", draw.u8()),
            _ if closed => "0 1 0 0".to_owned(),
            _ => {
                let number = draw.of(&[0, 1, 100, 4096, 6000, 8192, 9000, (1 << 60) - 1]);
                let number = if draw.one_in(8) { draw.size() } else { number };
                let other = draw.of(&[0, 1, 2, 3, 256, (1_u64 << 60) - 1]);
                let name = op.split(' ').nth(2).unwrap_or_default();
                let names = if draw.one_in(4) {
                    format!("|{name}")
                } else {
                    String::new()
                };
                format!("0 {number} {other} {}{names}", draw.size())
            }
        })
    };
    if let Some(findings) = series(&mut say, short) {
        for finding in findings.iter() {
            assert!(finding.seen.len() < 4096, "{}", finding.property.name);
        }
    }
}

const VERBS: [&str; 23] = [
    "make",
    "open",
    "close",
    "write",
    "read",
    "forget",
    "sync",
    "truncate",
    "stat",
    "stat-open",
    "link",
    "rename",
    "unlink",
    "list",
    "lock",
    "unlock",
    "locked",
    "flock",
    "mapped",
    "churn",
    "watch",
    "append",
    "bye",
];

/// Carries out what another side may say, in a folder in which there is more than trials make.
fn operations(draw: &mut Draw<'_>) {
    let folder = Folder::new();
    let inside = folder.path().join("inside");
    std::fs::create_dir(&inside).expect("there is room");
    for path in [folder.path().join("t-x"), inside.join("seat.0")] {
        std::fs::write(path, "kept").expect("there is room");
    }
    symlink("../t-x", inside.join("t-out")).expect("there is room");
    let opened = File::open(&inside).expect("it is there");
    let mut executor = Executor::new(opened.into());
    for _ in 0..draw.u8() % OPS_MAX {
        let verb = draw.of(&VERBS);
        let mut name = || match draw.u8() % 16 {
            0 => String::from_utf8_lossy(draw.some_bytes()).into_owned(),
            1 => "seat.0".to_owned(),
            2 => "t-out".to_owned(),
            3 => "../t-x".to_owned(),
            4 => "-".to_owned(),
            number => format!("t-{}", number % 4),
        };
        let (name, to) = (name(), name());
        let (at, len) = match verb {
            // What takes a while takes as long as it is told.
            "churn" | "watch" => (draw.size(), u64::from(draw.u8() % 2)),
            "append" => (u64::from(draw.u8()), u64::from(draw.u8())),
            _ if draw.one_in(8) => (draw.size(), draw.size()),
            _ => (u64::from(draw.u16()), u64::from(draw.u16())),
        };
        let (file, fill) = (draw.u8() % 4, draw.u8());
        let line = format!("{verb} {file} {name} {to} {at} {len} {fill}");
        if let Some(said) = executor.execute(&line) {
            assert!(said.len() <= 64 * 300, "it answers too much");
        }
    }
    drop(executor);
    for path in [folder.path().join("t-x"), inside.join("seat.0")] {
        let left = std::fs::read(&path).expect("it is nobody's to take");
        assert_eq!(left, b"kept", "{}", path.display());
    }
    let names = std::fs::read_dir(&inside).expect("it is there").flatten();
    for entry in names {
        let name = entry.file_name();
        let known = name == "seat.0" || name.as_encoded_bytes().starts_with(b"t-");
        assert!(known, "{}", name.display());
    }
    let count = std::fs::read_dir(folder.path())
        .expect("it is there")
        .count();
    assert_eq!(count, 2, "a file lies outside of the folder");
}
