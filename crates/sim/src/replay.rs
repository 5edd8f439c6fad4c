//! Traces as a load: what was recorded is asked for again, at the recorded times or as fast as
//! answers come.

use crate::rng::Rng;
use crate::units::Bytes;
use crate::world::{Access, CALL_BYTES_MAX, Program, Step};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_trace::{Direction, Merged, Record};
use tidegate_wire::Extent;

/// The keys of an application whose workload is `trace`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayOptions {
    /// Traces of one application's run; those of several forwarders belong together.
    pub files: Vec<PathBuf>,
    /// When accesses are made.
    #[serde(default)]
    pub pace: ReplayPace,
    /// Recorded times pass so much faster.
    #[serde(default = "one")]
    pub speed: f64,
    /// With `pace = "closed"`: accesses that a client keeps unanswered.
    #[serde(default = "one_access")]
    pub in_flight: u32,
    /// Accesses larger than this are made in pieces.
    #[serde(default = "piece")]
    pub request_max: Bytes,
}

fn one() -> f64 {
    1.0
}
fn one_access() -> u32 {
    1
}
fn piece() -> Bytes {
    Bytes(CALL_BYTES_MAX)
}

/// When a replay's accesses are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayPace {
    /// At the recorded times, whatever the answers do (open loop).
    #[default]
    Recorded,
    /// When an earlier one of the same client is answered (closed loop).
    Closed,
}

/// A trace in memory: an application's clients, each with its accesses.
#[derive(Clone, Debug)]
pub struct Replay {
    options: ReplayOptions,
    /// By application, in order of their ids: name, and clients.
    apps: Vec<(String, Vec<Arc<[Timed]>>)>,
}

/// An access and when it was made, ns after the trace's first.
#[derive(Clone, Debug)]
struct Timed {
    at_ns: u64,
    access: Access,
}

impl Replay {
    /// Reads traces. `folder`: where relative names begin. The error names the key and the reason.
    pub fn read(mut options: ReplayOptions, folder: &Path) -> Result<Replay, (String, String)> {
        let wrong = |key: &str, reason: String| Err((key.to_string(), reason));
        if options.files.is_empty() {
            return wrong("files", "name at least one trace".into());
        }
        if !(options.speed.is_finite() && options.speed > 0.0) {
            return wrong("speed", format!("{} is no positive number", options.speed));
        }
        if options.in_flight == 0 {
            return wrong("in_flight", "must be positive".into());
        }
        if !(1..=CALL_BYTES_MAX).contains(&options.request_max.0) {
            return wrong(
                "request_max",
                format!("must be 1 to {CALL_BYTES_MAX} bytes"),
            );
        }
        for file in &mut options.files {
            *file = folder.join(&*file);
        }
        let mut traces = Merged::open(&options.files)
            .map_err(|error| ("files".to_string(), error.to_string()))?;
        let mut apps: BTreeMap<u64, BTreeMap<u32, Vec<Timed>>> = BTreeMap::new();
        let mut zero = None;
        for record in traces.by_ref() {
            let record = record.map_err(|error| ("files".to_string(), error.to_string()))?;
            let at = made_at(&record);
            let zero = *zero.get_or_insert(at);
            let clients = apps.entry(record.app.0).or_default();
            let accesses = clients.entry(record.client).or_default();
            let since = u64::try_from(at.saturating_sub(zero)).unwrap_or(0);
            let at_ns = (since as f64 / options.speed) as u64;
            add(accesses, at_ns, &record, options.request_max.0);
        }
        let names = traces.names();
        let named = |(app, clients): (u64, BTreeMap<u32, Vec<Timed>>)| {
            let name = names.get(&app).cloned();
            let name = name.unwrap_or_else(|| format!("app-{app:016x}"));
            let clients = clients.into_values().map(|mut accesses| {
                // Requests of one operation can come in another order than they were made.
                accesses.sort_by_key(|it| it.at_ns);
                Arc::from(accesses)
            });
            (name, clients.collect())
        };
        let apps: Vec<_> = apps.into_iter().map(named).collect();
        if apps.is_empty() {
            return wrong("files", "there is no request in these traces".into());
        }
        Ok(Replay { options, apps })
    }

    /// Names of the applications.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(|(name, _)| name.as_str())
    }

    /// How many clients each application has.
    pub fn clients(&self) -> impl Iterator<Item = u32> {
        self.apps.iter().map(|(_, clients)| clients.len() as u32)
    }

    /// The programs of an application's clients, each started `start_ns` after the run. Files are
    /// numbered as recorded.
    pub fn programs(&self, app: usize, start_ns: u64) -> Vec<Box<dyn Program>> {
        let program = |accesses: &Arc<[Timed]>| -> Box<dyn Program> {
            Box::new(Replayed {
                accesses: accesses.clone(),
                next: 0,
                start_ns,
                in_flight: match self.options.pace {
                    ReplayPace::Recorded => None,
                    ReplayPace::Closed => Some(self.options.in_flight),
                },
                turn: false,
            })
        };
        self.apps[app].1.iter().map(program).collect()
    }
}

/// When an access was made: by the client's clock if that is known, as forwarders saw it else.
fn made_at(record: &Record) -> i64 {
    let arrival = i64::try_from(record.arrival_ns).unwrap_or(i64::MAX);
    record.issue_ns.unwrap_or(arrival)
}

fn add(accesses: &mut Vec<Timed>, at_ns: u64, record: &Record, request_max: u64) {
    if let Some(last) = accesses.last_mut()
        && record.listed
        && joins(&last.access, record)
        && last.access.extents.bytes() + record.len <= request_max
    {
        last.access
            .extents
            .rest
            .push(extent(record.offset, record.len));
        return;
    }
    let (mut offset, mut left) = (record.offset, record.len);
    while left > 0 {
        let len = left.min(request_max);
        accesses.push(Timed {
            at_ns,
            access: Access {
                file: record.file.0,
                direction: record.direction,
                extents: extent(offset, len).into(),
            },
        });
        (offset, left) = (offset.saturating_add(len), left - len);
    }
}

fn extent(offset: u64, len: u64) -> Extent {
    Extent { offset, len }
}

/// A further extent of one request (list I/O).
fn joins(access: &Access, record: &Record) -> bool {
    let last = access.extents.iter().last();
    let end = last.map_or(0, |extent| extent.offset.saturating_add(extent.len));
    let alike: (u64, Direction) = (access.file, access.direction);
    alike == (record.file.0, record.direction) && record.offset >= end && record.len > 0
}

/// One client's accesses.
struct Replayed {
    accesses: Arc<[Timed]>,
    next: usize,
    start_ns: u64,
    /// None: at the recorded times.
    in_flight: Option<u32>,
    /// The waiting before the next access is over.
    turn: bool,
}

impl Program for Replayed {
    fn next(&mut self, _: &mut Rng) -> Step {
        let Some(timed) = self.accesses.get(self.next) else {
            return Step::Exit;
        };
        if !std::mem::replace(&mut self.turn, true) {
            return match self.in_flight {
                None => Step::Until(self.start_ns + timed.at_ns),
                Some(in_flight) => Step::Drain(in_flight - 1),
            };
        }
        self.turn = false;
        self.next += 1;
        Step::Issue(timed.access.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_trace::{Header, Writer};

    fn steps(options: ReplayOptions, records: &[Record]) -> Vec<Step> {
        let folder = std::env::temp_dir().join(format!("tidegate-replay-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut writer = Writer::new(Vec::new(), &Header::default()).expect("memory");
        let app = writer.application("job").expect("memory");
        for record in records {
            writer.record(&Record { app, ..*record }).expect("memory");
        }
        std::fs::write(folder.join("t"), writer.finish().expect("memory")).expect("room");
        let replay = Replay::read(options, &folder).expect("it is right");
        std::fs::remove_dir_all(&folder).expect("it was made above");
        assert_eq!(replay.names().collect::<Vec<_>>(), ["job"]);
        let mut programs = replay.programs(0, 1000);
        let mut rng = Rng::new(1);
        std::iter::repeat_with(|| programs[0].next(&mut rng))
            .take_while(|step| *step != Step::Exit)
            .collect()
    }

    fn options() -> ReplayOptions {
        ReplayOptions {
            files: vec!["t".into()],
            pace: ReplayPace::Recorded,
            speed: 2.0,
            in_flight: 2,
            request_max: Bytes(100),
        }
    }

    fn record(arrival_ns: u64, offset: u64, len: u64, listed: bool) -> Record {
        Record {
            arrival_ns,
            offset,
            len,
            listed,
            ..Record::default()
        }
    }

    #[test]
    fn accesses_come_at_their_times_or_as_answers_come() {
        let records = [
            record(50, 0, 10, false),
            record(50, 20, 10, true),
            record(70, 0, 250, false),
        ];
        let issue = |ranges: &[(u64, u64)]| {
            let mut extents = ranges.iter().map(|(offset, len)| extent(*offset, *len));
            let first = extents.next().expect("one");
            let rest = extents.collect();
            Step::Issue(Access {
                file: 0,
                direction: Direction::Read,
                extents: tidegate_wire::Extents { first, rest },
            })
        };
        let made = [
            issue(&[(0, 10), (20, 10)]),
            issue(&[(0, 100)]),
            issue(&[(100, 100)]),
            issue(&[(200, 50)]),
        ];
        let times = [0, 10, 10, 10];
        let open = made.iter().zip(times);
        let open: Vec<Step> = open
            .flat_map(|(step, at)| [Step::Until(1000 + at), step.clone()])
            .collect();
        assert_eq!(steps(options(), &records), open);
        let closed = ReplayOptions {
            pace: ReplayPace::Closed,
            ..options()
        };
        let pairs = made.iter().flat_map(|step| [Step::Drain(1), step.clone()]);
        assert_eq!(steps(closed, &records), pairs.collect::<Vec<_>>());
    }

    #[test]
    fn what_cannot_be_replayed_is_named() {
        let read = |options| Replay::read(options, Path::new("/nowhere")).err();
        let key = |options| read(options).expect("it is wrong").0;
        assert_eq!(key(options()), "files");
        assert_eq!(
            key(ReplayOptions {
                speed: 0.0,
                ..options()
            }),
            "speed"
        );
        assert_eq!(
            key(ReplayOptions {
                in_flight: 0,
                ..options()
            }),
            "in_flight"
        );
        assert_eq!(
            key(ReplayOptions {
                files: vec![],
                ..options()
            }),
            "files"
        );
    }
}
