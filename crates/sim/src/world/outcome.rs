//! The result of a run, and how the simulator records it during the run.

use super::follow::{Depth, Follow, Follows, Timeline};
use super::host::{Host, Work};
use super::node::Answered;
use super::operation::Operation;
use super::process::App;
use super::totals::Totals;
use super::{SetupError, World};
use crate::metrics::Promises;
use std::collections::BTreeMap;
use tidegate_forward::Served;
use tidegate_sched::{AppId, FileId, Time};
use tidegate_trace::{Record, Shuffle};

/// Largest number of requests that a scenario's run records ([`super::Setup::record`]): 2 GiB of
/// them.
pub const RECORDS_MAX: usize = 1 << 24;

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What the accesses add up to.
    pub totals: Totals,
    /// Accesses, in the order of their ends, if [`super::Setup::keep_accesses`].
    pub accesses: Vec<Operation>,
    /// Operations of whole applications ([`super::Step::Begin`]), in the order of their ends, if
    /// [`super::Setup::keep_accesses`].
    pub operations: Vec<Operation>,
    /// Whether promises were kept, and how deep queues were, if [`super::Setup::promises`].
    pub promises: Option<(Promises, Depth)>,
    /// The course of the run over time, if [`super::Setup::timeline_ns`].
    pub timeline: Option<Timeline>,
    /// Requests as forwarders served them, if [`super::Setup::record`]; time zero is the start of
    /// the programs.
    pub records: Vec<Record>,
    /// When each application's last process ended.
    pub ends_ns: Vec<u64>,
    /// What each forwarder did; without forwarders, what all clients asked of servers.
    pub work: Vec<Work>,
    /// What each server did. Empty if there are none.
    pub servers: Vec<Work>,
    /// When the last program ended.
    pub end_ns: u64,
    /// Events that were simulated.
    pub events: u64,
    /// Accesses that failed, and the first reason.
    pub failures: (u64, Option<String>),
}

struct Group {
    begun_ns: u64,
    ended: u32,
    bytes_before: u64,
    io_before_ns: u64,
}

/// Records a run.
pub(super) struct Recorder {
    pub(super) opens_sessions: bool,
    keeps_accesses: bool,
    follows: Follows,
    follow: Option<Follow>,
    /// When the programs started; None: they have not.
    begun_ns: Option<u64>,
    pub(super) events: u64,
    totals: Totals,
    accesses: Vec<Operation>,
    operations: Vec<Operation>,
    groups: BTreeMap<(u32, u64), Group>,
    ends_ns: BTreeMap<u32, u64>,
    records: Vec<Record>,
    pub(super) records_max: usize,
    wall_ns: u64,
    failures: (u64, Option<String>),
}

impl Recorder {
    /// `wall_ns`: the forwarders' wall clock at virtual time 0.
    pub(super) fn new(
        opens_sessions: bool,
        keeps_accesses: bool,
        records_max: usize,
        follows: Follows,
        wall_ns: u64,
    ) -> Recorder {
        Recorder {
            opens_sessions,
            keeps_accesses,
            follows,
            follow: None,
            begun_ns: None,
            events: 0,
            totals: Totals::default(),
            accesses: Vec::new(),
            operations: Vec::new(),
            groups: BTreeMap::new(),
            ends_ns: BTreeMap::new(),
            records: Vec::new(),
            records_max,
            wall_ns,
            failures: (0, None),
        }
    }

    /// Begins a load; drops the records of the load before.
    pub(super) fn begin(&mut self, now: u64, apps: &[App]) {
        self.begun_ns = Some(now);
        self.events = 0;
        self.totals = Totals::new(apps.iter().map(|app| !app.background));
        self.follow = self.follows.begin(apps);
        self.accesses.clear();
        self.operations.clear();
        self.groups.clear();
        self.ends_ns.clear();
        self.records.clear();
    }

    /// When the programs started.
    pub(super) fn begun_ns(&self) -> u64 {
        self.begun_ns.unwrap_or(0)
    }

    pub(super) fn fails(&mut self, reason: String) {
        self.failures.0 += 1;
        self.failures.1.get_or_insert(reason);
    }

    pub(super) fn access_begins(&mut self, app: u32, now: u64) {
        self.totals.access_begins(app, now);
        if let Some(follow) = &mut self.follow {
            follow.begins(app, now - self.begun_ns.unwrap_or(0));
        }
    }

    /// Records that a forwarder lets this number of calls run at once.
    pub(super) fn depth_is(&mut self, forwarder: usize, now: u64, depth: impl FnOnce() -> u32) {
        if let Some(follow) = &mut self.follow {
            let now = now - self.begun_ns.unwrap_or(0);
            follow.depth_is(forwarder, depth(), now);
        }
    }

    pub(super) fn sync_begins(&mut self, app: u32, now: u64) {
        self.totals.access_begins(app, now);
    }

    pub(super) fn sync_ends(&mut self, app: u32, now: u64) {
        self.totals.sync_ends(app, now);
    }

    pub(super) fn access_ends(&mut self, app: u32, process: u32, answered: &Answered, now: u64) {
        let begun = self.begun_ns();
        let asked = &answered.asked;
        let access = Operation {
            app,
            process,
            issued_ns: asked.at - begun,
            completed_ns: now - begun,
            bytes: asked.bytes,
        };
        let served = answered.served.iter().map(|served| served.at_ns - begun);
        self.totals.access_ends(&access, now, served);
        if let Some(follow) = &mut self.follow {
            let took_ns = access.completed_ns - access.issued_ns;
            follow.ends(app, access.completed_ns, took_ns, access.bytes);
        }
        if self.keeps_accesses {
            self.accesses.push(access);
        }
    }

    fn bytes_of(&self, app: u32) -> u64 {
        self.totals.applications[app as usize].bytes
    }

    pub(super) fn operation_begins(&mut self, app: u32, operation: u64, now: u64) {
        let bytes_before = self.bytes_of(app);
        let io_before_ns = self.totals.applications[app as usize].io_until(now);
        self.groups.entry((app, operation)).or_insert(Group {
            begun_ns: now,
            ended: 0,
            bytes_before,
            io_before_ns,
        });
    }

    /// Records an operation. Its bytes are those that the application moved while it ran.
    pub(super) fn operation_ends(&mut self, app: u32, operation: u64, now: u64, processes: u32) {
        let begun = self.begun_ns();
        let Some(group) = self.groups.get_mut(&(app, operation)) else {
            return;
        };
        group.ended += 1;
        if group.ended < processes {
            return;
        }
        let (begun_ns, bytes_before) = (group.begun_ns, group.bytes_before);
        let io_before_ns = group.io_before_ns;
        self.groups.remove(&(app, operation));
        if self.totals.applications[app as usize].background {
            return;
        }
        self.totals.operations.add(now - begun_ns);
        let io_ns = self.totals.applications[app as usize].io_until(now) - io_before_ns;
        let (shuffled_ns, operations_ns) = &mut self.totals.shuffled_ns;
        *shuffled_ns += (now - begun_ns).saturating_sub(io_ns);
        *operations_ns += now - begun_ns;
        if self.keeps_accesses {
            self.operations.push(Operation {
                app,
                process: 0,
                issued_ns: begun_ns - begun,
                completed_ns: now - begun,
                bytes: self.bytes_of(app) - bytes_before,
            });
        }
    }

    /// Records a request that a forwarder has served.
    pub(super) fn served(&mut self, forwarder: u16, served: &Served) {
        let begun = self.begun_ns();
        let since = |from: Time, to: Option<Time>| to.map(|to| to.since(from));
        let zero_wall = self.wall_ns.saturating_add(begun);
        let (us, max_us, rank) = served.shuffle;
        self.records.push(Record {
            arrival_ns: served.arrived.0.saturating_sub(begun),
            issue_ns: (served.stamp_ns != 0)
                .then(|| served.stamp_ns.wrapping_sub(zero_wall) as i64),
            app: AppId(served.app),
            operation: served.operation,
            file: FileId(served.file),
            client: served.client as u32,
            forwarder: Some(forwarder),
            direction: served.direction,
            append: served.append,
            listed: served.listed,
            offset: served.offset,
            len: served.len,
            done: served.done,
            errno: served.errno,
            wait_ns: since(served.arrived, served.dispatched),
            service_ns: served
                .dispatched
                .and_then(|from| since(from, served.finished)),
            shuffle: Shuffle::told(us, max_us, rank),
        });
    }

    /// Whether the run has recorded more requests than it may.
    pub(super) fn is_full(&self) -> bool {
        self.records.len() > self.records_max
    }

    pub(super) fn process_ends(&mut self, app: u32, now: u64) {
        let begun = self.begun_ns();
        self.ends_ns.insert(app, now - begun);
    }
}

impl World {
    /// Why a run came to no end.
    pub(super) fn stuck(&self, why: &str) -> SetupError {
        SetupError(format!(
            "the run came to no end: {why} after {:.3} s and {} events, with {} processes \
             running{}",
            self.now().saturating_sub(self.recorder.begun_ns()) as f64 / 1e9,
            self.recorder.events,
            self.running,
            match &self.recorder.failures.1 {
                Some(reason) => format!("; {reason}"),
                None => String::new(),
            }
        ))
    }

    pub(super) fn into_outcome(self) -> Outcome {
        let end_ns = self.now() - self.recorder.begun_ns();
        let (now, servers) = (self.now(), self.servers.as_ref());
        let work = match self.direct {
            true => vec![self.direct_work],
            false => self.hosts.iter().map(Host::work).collect(),
        };
        let mut recorder = self.recorder;
        let followed = recorder.follow.take().map(|follow| follow.finish(end_ns));
        let (promises, timeline) = match followed {
            Some((promises, depth, timeline)) => {
                let wanted = recorder.follows.promises;
                (wanted.then_some((promises, depth)), timeline)
            }
            None => (None, None),
        };
        let ends = (0..self.apps.len() as u32).map(|app| recorder.ends_ns.get(&app).copied());
        Outcome {
            ends_ns: ends.map(|end| end.unwrap_or(0)).collect(),
            totals: recorder.totals,
            accesses: recorder.accesses,
            operations: recorder.operations,
            records: recorder.records,
            promises,
            timeline,
            work,
            servers: servers.map_or(Vec::new(), |servers| servers.work(now)),
            end_ns,
            events: recorder.events,
            failures: recorder.failures,
        }
    }
}
