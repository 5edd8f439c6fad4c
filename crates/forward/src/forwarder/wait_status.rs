//! What the status says of waits: sums by cause, times, and the neighbours that caused them.
//!
//! ```text
//! "waits": {"requests": 90,                         answered since the start
//!           "ns": {"checks": 9000, "device": 5000000, "service": 7000000},     by cause
//!           "histogram_us": [[64, 80], [128, 9], [null, 1]],      requests that took less than so
//!                                                   many microseconds; null: all longer ones
//!           "neighbours": [{"app": "00000000000000ee", "name": "checkpoint", "uid": 1000,
//!                           "ns": {"device": 4000000}},
//!                          {"others": true, "ns": {"device": 90000}}]}      of other users
//! ```
//!
//! Causes without time are left out of applications, and so are neighbours beyond the busiest few:
//! what they caused is in the sums. Only applications have neighbours. Who sees only his own sees
//! of neighbours that are other users' sums only. Of many applications, those that have lost most
//! have waits.

use super::Forwarder;
use super::accounts::Moved;
use super::status::{Quoted, write_list};
use super::wait_sums::{Neighbour, OF_NEIGHBOURS, WaitSums};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use tidegate_sched::Cause;

impl Forwarder {
    /// What one of these applications must have lost for its waits to be shown, ns, so that those
    /// of `shown_max` are.
    pub(super) fn least_lost(&self, apps: &[(u64, Moved)], shown_max: usize) -> u64 {
        if apps.len() <= shown_max {
            return 0;
        }
        let accounts = apps
            .iter()
            .filter_map(|(app, _)| self.counters.applications.get(*app));
        let mut lost: Vec<u64> = accounts.map(|its| its.waits.lost_ns()).collect();
        if lost.len() <= shown_max {
            return 0;
        }
        let (_, beyond_ns, _) = lost.select_nth_unstable_by(shown_max, |a, b| b.cmp(a));
        beyond_ns.saturating_add(1)
    }

    /// The waits of all applications together.
    pub(super) fn write_all_waits(&self, out: &mut String) -> core::fmt::Result {
        let mut all = WaitSums::default();
        for (_, _, account) in self.counters.applications.iter() {
            all.add_all(&account.waits);
        }
        write_sums(out, &all, true)?;
        out.write_char('}')
    }

    /// The waits of one application, for who sees the applications of this user; None: all.
    pub(super) fn write_waits(
        &self,
        out: &mut String,
        sums: &WaitSums,
        asker: Option<u32>,
    ) -> core::fmt::Result {
        write_sums(out, sums, false)?;
        let (mut seen, mut others) = (Vec::new(), [0; OF_NEIGHBOURS.len()]);
        for neighbour in sums.neighbours() {
            match self.is_seen(neighbour, asker) {
                true => seen.push(Some(neighbour)),
                false => {
                    let pairs = others.iter_mut().zip(neighbour.ns);
                    pairs.for_each(|(sum, ns)| *sum = u64::saturating_add(*sum, ns));
                }
            }
        }
        if others != [0; OF_NEIGHBOURS.len()] {
            seen.push(None);
        }
        write_list(out, "neighbours", seen, |out, neighbour| {
            match neighbour {
                Some(neighbour) => self.write_neighbour(out, neighbour)?,
                None => out.write_str("{\"others\":true")?,
            }
            let ns = neighbour.map_or(others, |neighbour| neighbour.ns);
            write_ns(out, OF_NEIGHBOURS.into_iter().zip(ns), false)?;
            out.write_char('}')
        })?;
        out.write_char('}')
    }

    fn is_seen(&self, neighbour: &Neighbour, asker: Option<u32>) -> bool {
        let Some(uid) = asker else {
            return true;
        };
        let account = self.counters.applications.get(neighbour.app);
        account.is_some_and(|account| account.user.unwrap_or(self.config.uid) == uid)
    }

    fn write_neighbour(&self, out: &mut String, neighbour: &Neighbour) -> core::fmt::Result {
        write!(out, "{{\"app\":\"{:016x}\"", neighbour.app)?;
        let Some(known) = self.applications.get(neighbour.app) else {
            return Ok(());
        };
        let (name, uid) = (Quoted(&known.name), known.uid);
        write!(out, ",\"name\":{name},\"uid\":{uid}")
    }
}

/// All but the closing brace.
fn write_sums(out: &mut String, sums: &WaitSums, zeros: bool) -> core::fmt::Result {
    write!(out, ",\"waits\":{{\"requests\":{}", sums.requests())?;
    write_ns(out, Cause::ALL.into_iter().zip(sums.ns), zeros)?;
    write_list(
        out,
        "histogram_us",
        sums.histogram(),
        |out, (below, count)| match below {
            Some(us) => write!(out, "[{us},{count}]"),
            None => write!(out, "[null,{count}]"),
        },
    )
}

fn write_ns(
    out: &mut String,
    ns: impl Iterator<Item = (Cause, u64)>,
    zeros: bool,
) -> core::fmt::Result {
    out.write_str(",\"ns\":{")?;
    for (at, (cause, ns)) in ns.filter(|(_, ns)| zeros || *ns > 0).enumerate() {
        let comma = if at > 0 { "," } else { "" };
        write!(out, "{comma}\"{}\":{ns}", cause.name())?;
    }
    out.write_char('}')
}
