//! The forwarder's status as JSON (`tidegate stat --json`).
//!
//! ```text
//! {
//!   "forwarder": 0,                 index in the layout
//!   "policy": "window",             the scheduler's policy
//!   "epoch": 17,                    its current window, 0 without windows
//!   "forwarders": 4,                how many the export has
//!   "draining": false,              it takes no seats: it stops, or was told to (`tidegate drain`)
//!   "options": {"batch_bytes_max": 8388608, "batch_requests_max": 256, "cost_estimate": true,
//!               "depth": 8, "merge": false, "queued_max": 65536,
//!               "window_ms": 250},       effective; last the policy's own
//!   "cost": {"read_random_base_ns": 8000000, ...},     the effective cost model, as in its file
//!   "lease_ms": 5200,               how long the seats may still be served unless their lease is
//!                                   renewed; only where seats are held, and by leases
//!   "renewed_ms": 1200,             how long ago their lease was renewed last, which waits for the
//!                                   back end or etcd; only where seats are wanted, and by leases
//!   "ownership": {"keeper": "files", "ttl_ms": 8000, "durability": "node", "one_node": false},
//!                                   effective; a ttl_ms of null: seats are held by locks alone.
//!                                   Only of real hosts
//!   "doubled": "tcp:io9:4600",      another process that listens there says it has this index;
//!                                   only if one does
//!   "trouble": "...",               what is wrong with the back end; only if something is
//!   "seats": [{"seat": 0, "state": "serving", "generation": 3, "clients": 2}],
//!                                   "grace": served too; "taking": asked for and not had;
//!                                   "resolving": had, and not served yet; "draining", "lost":
//!                                   served no longer
//!   "sessions": [{"client": "00c0ffee00c0ffee", "name": "node1:77", "uid": 1000,
//!                 "connected": true, "connections": 1, "unanswered": 1, "opens": 4, "locks": 0}],
//!   "counts": {"sessions": 12, "connected": 11,       of all clients, seen here or not
//!              "applications": 7},                    with requests since the start
//!   "scheduler": {"depth": 1,                            batches at once, as the policy decides
//!                 "queued": 0, "queued_peak": 9, "held": 0, "running": 1, "batches": 80,
//!                 "arrived": 100, "finished": 99, "cancelled": 0, "rejected": 0},
//!   "pool": {"bytes": 4096, "bytes_peak": 1048576, "bytes_max": 67108864},
//!   "loans": {"held": 12, "lent": 400, "recalled": 9, "given_back": 8,      names and attributes
//!                "paused": 1},      that clients rely on; files that are lent to nobody for a
//!                                   while, because several clients change them in turns
//!   "requests": {"answered": 200, "errors": 3,       with an errno, but for those that are
//!                "absent": 40,                       look-ups of names and attributes not there
//!                "replays": 0, "read": 50, "write": 49},
//!   "bytes": {"read": 204800, "write": 200704},
//!   "calls": {"read": 40, "write": 39},      calls to the back end that move data
//!   "batches": 80,
//!   "charged_ns": 700,              device time that applications were charged
//!   "system": {"waits": 250, "wakes": 90,         calls of epoll; those that other threads ended
//!              "receives": 210, "receives_empty": 200, "received_bytes": 215000,
//!              "sends": 200, "sends_blocked": 0, "sent_bytes": 220000,
//!              "spliced_bytes": 0,               of them, sent as pages of a file
//!              "copied_bytes": 4096,             payload copied inside of this process
//!              "storage_reads": 40, "storage_writes": 39,        calls that move file data
//!              "storage_operations": 100,        jobs that move none
//!              "file_descriptors": 9, "files_parked": 0},        of files now; files that are open
//!                                                without one; "system" only of real hosts
//!   "oldest_job_ms": 0,             how long the oldest call to the back end runs; looked at once
//!                                   a second, and only of real hosts
//!   "storage": {"io": "direct", "engine": "uring", "why": "..."},      how data is moved
//!   "trace": {"recorded": 90, "buffered": 9, "dropped": 0},      only while requests are recorded
//!   "capacity": {"bytes_per_s": 50000000, "operations_per_s": 48,    of this forwarder's back end,
//!                "measured": true},          when it was busy; else what the cost model says
//!   "asked_policy": "window",       the one that was asked for: another while there are rules of
//!                                   shares and it keeps none
//!   "shares": "[[app]]...",         the rules of shares, as the configuration has them
//!   "shares_set_ns": 0,             when they were set, ns since 1970; 0: those of the start
//!   "applications": [{"app": "00000000000000ff",
//!                     "name": "climate", "uid": 1000, "job": "17", "project": "c",   if known;
//!                                               the name is empty for what a user did without one
//!                     "rule": "cli*", "group": "c",        from which its share follows, if any
//!                     "read_requests": 50, "read_bytes": 204800,
//!                     "write_requests": 49, "write_bytes": 200704, "charged_ns": 700,
//!                     "waits": {...}}],     what its requests waited for, see `wait_status`
//!   "waits": {...}                  and those of all applications
//! }
//! ```
//!
//! If sessions and applications do not all fit one message, the status leaves out those with the
//! least device time. Of many applications only those that have lost most have `waits`. It shows
//! the seats that the forwarder holds or waits for. Only trusted peers see ids, because a peer with
//! an id and the right user could resume the session; others see zeros. Of others' sessions and
//! applications a peer that is not trusted sees sums only:
//!
//! ```text
//!   "other_sessions": 12,           how many there are
//!   "applications": [...,           his own, then one for all others, without "app" and "name"
//!                    {"others": true, "read_requests": 50, ...}]
//! ```
//!
//! Later versions may add keys; the keys here keep their names and meaning.

use super::Forwarder;
use super::accounts::Moved;
use super::sessions::Client;
use super::standing::Standing;
use crate::host::HostCounts;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt::Write;
use tidegate_sched::{OptionValue, Time};
use tidegate_wire::{BODY_MAX, Role};

/// Bytes of a text that fit one message.
const TEXT_MAX: usize = BODY_MAX - 64;

/// How long a user who is not trusted gets the same text again, in ns: a text costs milliseconds
/// where there are thousands of sessions and applications.
const SAME_NS: u64 = 200_000_000;

/// Users whose texts are kept.
const TOLD_MAX: usize = 8;

/// The texts that users got last, and when they were written.
#[derive(Default)]
pub(super) struct TextsTold(Vec<(Standing, Time, Box<[u8]>)>);

impl Forwarder {
    /// The JSON text for a client. One that is not trusted, or has limits, sees of others only
    /// sums, and the same as its user's clients have seen a moment ago.
    pub(super) fn status(&mut self, client: u64) -> Box<[u8]> {
        let client = &self.clients[&client];
        let standing = &client.standing;
        let sees_all = !standing.is_checked() || standing.administers;
        if sees_all {
            self.charge_waits();
            return self.status_for(None);
        }
        let now = self.now;
        self.texts_told
            .0
            .retain(|(_, at, _)| now.since(*at) < SAME_NS);
        let mut told = self.texts_told.0.iter();
        let same = |of: &Standing| of.is_same_holder(standing) && of.user.uid == standing.user.uid;
        if let Some((_, _, text)) = told.find(|(of, _, _)| same(of)) {
            return text.clone();
        }
        let asker = standing.clone();
        self.charge_waits();
        let text = self.status_for(Some(&asker));
        if self.texts_told.0.len() >= TOLD_MAX {
            self.texts_told.0.remove(0);
        }
        self.texts_told.0.push((asker, now, text.clone()));
        text
    }

    fn status_for(&self, asker: Option<&Standing>) -> Box<[u8]> {
        let mut text = String::new();
        // Sessions, applications, and those of them with waits, that are shown.
        let most = usize::MAX;
        for shown_max in [
            (most, most, 64),
            (512, 512, 64),
            (64, 512, 16),
            (64, 64, 64),
            (0, 64, 16),
            (0, 0, 0),
        ] {
            text.clear();
            // Writing to a string cannot fail.
            let _ = self.write_status(&mut text, asker, shown_max);
            if text.len() <= TEXT_MAX {
                break;
            }
        }
        text.into_bytes().into()
    }

    fn write_status(
        &self,
        out: &mut String,
        asker: Option<&Standing>,
        (sessions_max, applications_max, waits_max): (usize, usize, usize),
    ) -> core::fmt::Result {
        write!(
            out,
            "{{\"forwarder\":{},\"forwarders\":{},\"policy\":{},\"epoch\":{},\"draining\":{}",
            self.config.forwarder,
            self.config.layout.seats,
            Quoted(self.scheduler.policy()),
            self.scheduler.epoch(self.now),
            self.draining || self.aside
        )?;
        self.write_options(out)?;
        self.write_cost(out)?;
        self.write_ownership(out)?;
        self.write_seats(out)?;
        self.write_sessions(out, asker, sessions_max)?;
        self.write_counts(out)?;
        let stats = self.scheduler.stats();
        write!(
            out,
            ",\"scheduler\":{{\"depth\":{},\"queued\":{},\"queued_peak\":{},\"held\":{},\
             \"running\":{},\"batches\":{},\"arrived\":{},\"finished\":{},\
             \"cancelled\":{},\"rejected\":{}}}",
            self.scheduler.depth(),
            stats.queued,
            stats.queued_peak,
            stats.held_now,
            stats.running,
            stats.batches,
            stats.arrived,
            stats.finished,
            stats.cancelled,
            stats.rejected
        )?;
        let (bytes, peak, max) = self.pool.usage();
        write!(
            out,
            ",\"pool\":{{\"bytes\":{bytes},\"bytes_peak\":{peak},\"bytes_max\":{max}}}"
        )?;
        self.write_counters(out)?;
        let uid = asker.map(|asker| asker.user.uid);
        self.write_applications(out, uid, (applications_max, waits_max))?;
        self.write_all_waits(out)?;
        out.write_str("}")
    }

    /// The scheduler's options by name, as the configuration calls them; the policy's own last.
    fn write_options(&self, out: &mut String) -> core::fmt::Result {
        let options = self.scheduler.options();
        write!(
            out,
            ",\"options\":{{\"batch_bytes_max\":{},\"batch_requests_max\":{},\
             \"cost_estimate\":{},\"depth\":{},\"merge\":{},\"queued_max\":{}",
            options.batch_bytes_max,
            options.batch_requests_max,
            options.estimate,
            options.depth,
            options.merge.unwrap_or_default(),
            options.queued_max
        )?;
        for (name, value) in options.table.iter() {
            write!(out, ",{}:", Quoted(name))?;
            match value {
                OptionValue::Integer(number) => write!(out, "{number}")?,
                OptionValue::Bool(flag) => write!(out, "{flag}")?,
                OptionValue::Text(text) => write!(out, "{}", Quoted(text))?,
            }
        }
        out.write_str("}")
    }

    /// What accesses cost, as the scheduler takes it now.
    fn write_cost(&self, out: &mut String) -> core::fmt::Result {
        let lines = self.scheduler.cost().to_string();
        let pairs = lines.lines().filter_map(|line| line.split_once(" = "));
        out.write_str(",\"cost\":{")?;
        for (at, (name, value)) in pairs.enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(out, "{comma}\"{name}\":{value}")?;
        }
        out.write_str("}")
    }

    /// How long the seats are held for sure, and what is wrong.
    fn write_ownership(&self, out: &mut String) -> core::fmt::Result {
        let holds = self.seats.iter().any(|(_, seat)| seat.has_lock());
        if let Some(until) = self.leased_until().filter(|_| holds) {
            let left_ms = until.since(self.now) / 1_000_000;
            write!(out, ",\"lease_ms\":{left_ms}")?;
        }
        if let Some(renewed) = self.last_renewal() {
            let ago_ms = self.now.since(renewed) / 1_000_000;
            write!(out, ",\"renewed_ms\":{ago_ms}")?;
        }
        if let Some(facts) = self.ownership {
            write!(out, ",\"ownership\":{{\"keeper\":{}", Quoted(facts.keeper))?;
            match facts.ttl_ms {
                Some(ttl_ms) => write!(out, ",\"ttl_ms\":{ttl_ms}")?,
                None => out.write_str(",\"ttl_ms\":null")?,
            }
            let (durability, one_node) = (Quoted(facts.durability), facts.one_node);
            write!(
                out,
                ",\"durability\":{durability},\"one_node\":{one_node}}}"
            )?;
        }
        if let Some(other) = &self.doubled {
            write!(out, ",\"doubled\":{}", Quoted(other))?;
        }
        match self.trouble() {
            Some(trouble) => write!(out, ",\"trouble\":{}", Quoted(&trouble)),
            None => Ok(()),
        }
    }

    fn write_seats(&self, out: &mut String) -> core::fmt::Result {
        let held = self.seats.iter();
        write_list(out, "seats", held, |out, (number, seat)| {
            let (state, clients) = seat.describe();
            write!(
                out,
                "{{\"seat\":{number},\"state\":\"{state}\",\"generation\":{},\
                 \"clients\":{clients}}}",
                seat.generation
            )
        })
    }

    fn write_sessions(
        &self,
        out: &mut String,
        asker: Option<&Standing>,
        shown_max: usize,
    ) -> core::fmt::Result {
        let may_see =
            |client: &&Client| asker.is_none_or(|asker| asker.is_same_holder(&client.standing));
        let clients = self.clients.values().filter(may_see);
        let hidden = self.clients.len() - clients.clone().count();
        if hidden > 0 {
            write!(out, ",\"other_sessions\":{hidden}")?;
        }
        let clients = clients.take(shown_max);
        write_list(out, "sessions", clients, |out, client| {
            write!(
                out,
                "{{\"client\":\"{:016x}\",\"name\":{},\"uid\":{},\"connected\":{},\
                 \"connections\":{},\"unanswered\":{},\"opens\":{},\"locks\":{}",
                if asker.is_none() { client.id } else { 0 },
                Quoted(&String::from_utf8_lossy(&client.name)),
                client.standing.user.uid,
                client.conn.is_some(),
                client.connections(),
                client.outstanding.len(),
                self.opens.count(client.id),
                self.locks.count(client.id)
            )?;
            let peer = client.conn.map(|conn| self.peer_of(conn));
            if let Some(grant) = peer.and_then(|peer| peer.grant.as_ref()) {
                let (role, name) = (grant.role.name(), Quoted(&grant.name));
                write!(out, ",\"secret\":{{\"role\":\"{role}\",\"name\":{name}")?;
                write_limits(out, &grant.role)?;
                out.write_char('}')?;
            }
            if client.standing.limits.is_some() {
                write!(out, ",\"refused_callers\":{}", client.refused_callers)?;
            }
            out.write_char('}')
        })
    }

    /// How many there are of what the lists may leave out.
    fn write_counts(&self, out: &mut String) -> core::fmt::Result {
        let connected = self.clients.values().filter(|it| it.conn.is_some());
        write!(
            out,
            ",\"counts\":{{\"sessions\":{},\"connected\":{},\"applications\":{}}}",
            self.clients.len(),
            connected.count(),
            self.counters.applications.iter().count()
        )
    }

    fn write_counters(&self, out: &mut String) -> core::fmt::Result {
        let (held, paused) = self.loans.counted();
        let loans = &self.loans.counts;
        write!(
            out,
            ",\"loans\":{{\"held\":{held},\"lent\":{},\"recalled\":{},\
             \"given_back\":{},\"paused\":{paused}}}",
            loans.lent, loans.recalled, loans.given_back
        )?;
        let counters = &self.counters;
        let [read, write] = counters.total.requests;
        write!(
            out,
            ",\"requests\":{{\"answered\":{},\"errors\":{},\"absent\":{},\
             \"replays\":{},\"read\":{read},\"write\":{write}}}",
            counters.answered, counters.errors, counters.absent, counters.replays
        )?;
        let [read, write] = counters.total.bytes;
        write!(out, ",\"bytes\":{{\"read\":{read},\"write\":{write}}}")?;
        let [read, write] = counters.calls;
        write!(out, ",\"calls\":{{\"read\":{read},\"write\":{write}}}")?;
        let (batches, charged_ns) = (counters.batches, counters.total.charged_ns);
        write!(out, ",\"batches\":{batches},\"charged_ns\":{charged_ns}")?;
        if let Some(counts) = &counters.host {
            write_host(out, counts)?;
        }
        if let Some(storage) = &self.storage {
            write!(
                out,
                ",\"storage\":{{\"io\":{},\"engine\":{},\"why\":{}}}",
                Quoted(storage.io),
                Quoted(storage.engine),
                Quoted(&storage.why)
            )?;
        }
        if let Some(trace) = &self.recorded {
            write!(
                out,
                ",\"trace\":{{\"recorded\":{},\"buffered\":{},\"dropped\":{}}}",
                trace.recorded, trace.buffered, trace.dropped
            )?;
        }
        Ok(())
    }

    /// What was asked for of shares, and what each application got.
    fn write_applications(
        &self,
        out: &mut String,
        asker: Option<u32>,
        (shown_max, waits_max): (usize, usize),
    ) -> core::fmt::Result {
        let capacity = self.counters.capacity.rates(&self.scheduler.cost());
        write!(
            out,
            ",\"capacity\":{{\"bytes_per_s\":{},\"operations_per_s\":{},\"measured\":{}}}",
            capacity.bytes, capacity.operations, capacity.measured
        )?;
        write!(
            out,
            ",\"asked_policy\":{},\"shares\":{},\"shares_set_ns\":{}",
            Quoted(self.shares.plain_policy()),
            Quoted(&self.shares.rules.to_string()),
            self.shares.set_at
        )?;
        let (mut apps, others) = self.applications_seen_by(asker);
        if apps.len() > shown_max {
            apps.sort_by_key(|(_, moved)| Reverse(moved.charged_ns));
            apps.truncate(shown_max);
        }
        let least_ns = self.least_lost(&apps, waits_max);
        let apps = apps.into_iter().map(|(app, moved)| (Some(app), moved));
        let apps = apps.chain(others.map(|moved| (None, moved)));
        write_list(out, "applications", apps, |out, (app, moved)| match app {
            Some(app) => {
                self.write_application(out, app, &moved)?;
                let account = self.counters.applications.get(app);
                if let Some(its) = account.filter(|its| its.waits.lost_ns() >= least_ns) {
                    self.write_waits(out, &its.waits, asker)?;
                }
                out.write_char('}')
            }
            None => {
                out.write_str("{\"others\":true")?;
                write_moved(out, &moved)?;
                out.write_char('}')
            }
        })
    }

    /// The applications that somebody sees, None being one who sees all; and the sum of the others.
    fn applications_seen_by(&self, asker: Option<u32>) -> (Vec<(u64, Moved)>, Option<Moved>) {
        let mut seen: BTreeMap<u64, Moved> = BTreeMap::new();
        let mut others = None;
        let owner = self.config.uid;
        for (app, user, account) in self.counters.applications.iter() {
            let moved = &account.moved;
            match asker {
                Some(uid) if user.unwrap_or(owner) != uid => {
                    others.get_or_insert_with(Moved::default).add_all(moved);
                }
                _ => drop(seen.insert(app, *moved)),
            }
        }
        for (app, known) in self.applications.iter() {
            // What nobody has done is no application.
            if asker.is_none_or(|uid| uid == known.uid) && !known.name.is_empty() {
                seen.entry(app).or_default();
            }
        }
        (seen.into_iter().collect(), others)
    }

    fn write_application(&self, out: &mut String, app: u64, moved: &Moved) -> core::fmt::Result {
        write!(out, "{{\"app\":\"{app:016x}\"")?;
        if let Some(known) = self.applications.get(app) {
            write!(
                out,
                ",\"name\":{},\"uid\":{},\"job\":{},\"project\":{}",
                Quoted(&known.name),
                known.uid,
                Quoted(&known.job),
                Quoted(&known.project)
            )?;
            let (rule, group) = self.shares.origin(known);
            for (key, value) in [("rule", rule), ("group", group)] {
                if let Some(value) = value {
                    write!(out, ",\"{key}\":{}", Quoted(value))?;
                }
            }
        }
        write_moved(out, moved)
    }
}

fn write_moved(out: &mut String, moved: &Moved) -> core::fmt::Result {
    let ([reads, writes], [read, write]) = (moved.requests, moved.bytes);
    write!(
        out,
        ",\"read_requests\":{reads},\"read_bytes\":{read},\
         \"write_requests\":{writes},\"write_bytes\":{write},\"charged_ns\":{}",
        moved.charged_ns
    )
}

fn write_host(out: &mut String, counts: &HostCounts) -> core::fmt::Result {
    let pairs = [
        ("waits", counts.waits),
        ("wakes", counts.wakes),
        ("receives", counts.receives),
        ("receives_empty", counts.receives_empty),
        ("received_bytes", counts.received_bytes),
        ("sends", counts.sends),
        ("sends_blocked", counts.sends_blocked),
        ("sent_bytes", counts.sent_bytes),
        ("spliced_bytes", counts.spliced_bytes),
        ("copied_bytes", counts.copied_bytes),
        ("storage_reads", counts.storage_reads),
        ("storage_writes", counts.storage_writes),
        ("storage_operations", counts.storage_operations),
        ("file_descriptors", counts.file_descriptors),
        ("files_parked", counts.files_parked),
    ];
    out.write_str(",\"system\":{")?;
    for (at, (name, value)) in pairs.into_iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        write!(out, "{comma}\"{name}\":{value}")?;
    }
    write!(out, "}},\"oldest_job_ms\":{}", counts.oldest_job_ms)
}

/// Writes for which users a mount acts, if not for all.
fn write_limits(out: &mut String, role: &Role) -> core::fmt::Result {
    let Role::Mount(limits) = role else {
        return Ok(());
    };
    if let Some(anonymous) = limits.root_squash {
        write!(out, ",\"root_squash\":\"{anonymous}\"")?;
    }
    for (key, ids) in [("uids", &limits.uids), ("gids", &limits.gids)] {
        if let Some(ids) = ids {
            write!(out, ",\"{key}\":\"{ids}\"")?;
        }
    }
    Ok(())
}

pub(super) fn write_list<T>(
    out: &mut String,
    key: &str,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut String, T) -> core::fmt::Result,
) -> core::fmt::Result {
    write!(out, ",\"{key}\":[")?;
    for (index, value) in items.into_iter().enumerate() {
        if index > 0 {
            out.write_str(",")?;
        }
        item(out, value)?;
    }
    out.write_str("]")
}

/// A JSON string.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl core::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_str("\"")
    }
}
