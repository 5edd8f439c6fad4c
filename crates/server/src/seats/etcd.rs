//! Claims seats in etcd, for back ends whose locks do not hold between nodes.
//!
//! Below PREFIX/EXPORT each seat has up to three keys: `seat.N/held` and `seat.N/wanted`, which end
//! with the lease of the forwarder that wrote them, and `seat.N/generation`, which stays. Every
//! taking is one transaction that compares the keys with what was read before. So only one of
//! several takers succeeds, and no generation is used twice. etcd's lease lasts for the whole time
//! to live. Its holder serves for three quarters of that, from the beginning of its last successful
//! renewal. So when the key is gone the holder has stopped serving, and a taker need not wait.

mod client;

pub use client::EtcdError;

use super::claims::{Claim, Claims};
use super::generations::{Generations, first_generation, generation_in};
use super::lease_record::Holder;
use super::{Seats, SeatsError};
use crate::config::EtcdOptions;
use crate::storage::Fence;
use client::{Etcd, bytes, number, text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tidegate_sched::Time;
use tidegate_wire::ExportId;

/// How many keys are read at once. etcd allows 128 operations in a transaction.
const TOGETHER: usize = 64;

/// Claims seats in etcd.
pub(super) struct EtcdClaims {
    etcd: Etcd,
    /// etcd's number of the cluster.
    cluster: String,
    /// The prefix of this export's keys.
    prefix: String,
    own: u16,
    holder: Holder,
    generations: Generations,
    fence: Fence,
    ttl: Duration,
    lease: Option<Lease>,
    /// Seats claimed here, with the revisions of their keys.
    held: BTreeMap<u16, i64>,
    /// Seats whose keys may name this process although it does not hold them, because an answer was
    /// lost. Their owners would wait as long as this process renews its lease.
    unsure: BTreeSet<u16>,
    /// Seats that this forwarder waits for.
    wants: BTreeSet<u16>,
    /// Who held the seat that was tried last.
    seen: Option<(u16, Holder)>,
}

/// A lease that etcd has granted to this process.
#[derive(Clone, Copy)]
struct Lease {
    id: i64,
    /// When the last successful renewal began.
    began: Time,
}

/// A key as it was read.
struct Key {
    revision: i64,
    lease: i64,
    value: String,
}

/// The purpose of one of the three keys.
#[derive(Clone, Copy)]
enum Part {
    Held,
    Generation,
    Wanted,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Held => "held",
            Part::Generation => "generation",
            Part::Wanted => "wanted",
        }
    }
}

impl EtcdClaims {
    /// Connects to etcd and identifies the cluster. No seat is claimed yet. Fails if no endpoint
    /// answers.
    pub(super) fn connect(
        options: &EtcdOptions,
        export: ExportId,
        seats: &Seats,
        fence: Fence,
        ttl: Duration,
    ) -> Result<EtcdClaims, SeatsError> {
        let folder = |source| SeatsError::File {
            path: seats.path.clone(),
            source,
        };
        let mut claims = EtcdClaims {
            etcd: Etcd::new(options, ttl)?,
            cluster: String::new(),
            prefix: format!("{}/{export}", options.prefix),
            own: seats.own,
            holder: Holder::own(seats.own).map_err(folder)?,
            generations: Generations::of(seats.folder.as_fd()).map_err(folder)?,
            fence,
            ttl,
            lease: None,
            held: BTreeMap::new(),
            unsure: BTreeSet::new(),
            wants: BTreeSet::new(),
            seen: None,
        };
        let key = claims.key(claims.own, Part::Held);
        let body = json!({ "key": bytes(&key) });
        let answer = claims.etcd.call("kv/range", &body)?;
        let text = answer["header"]["cluster_id"].as_str().unwrap_or_default();
        // Beyond what a signed number holds.
        let Ok(cluster) = text.parse::<u64>() else {
            let what = format!("its answer names no cluster: {answer}");
            return Err(EtcdError::Silent(what).into());
        };
        claims.etcd.stay_with(text, &key);
        claims.cluster = format!("{cluster:016x}");
        Ok(claims)
    }

    /// This process, as keys name it.
    pub(super) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// The cluster and the prefix, on which all forwarders of the export must agree.
    pub(super) fn place(&self) -> String {
        format!("etcd, cluster {}, keys {}", self.cluster, self.prefix)
    }

    fn key(&self, seat: u16, part: Part) -> String {
        format!("{}/seat.{seat}/{}", self.prefix, part.name())
    }

    /// Reads keys in one transaction, which sees what the majority of etcd's servers has.
    fn read(&mut self, keys: &[(u16, Part)]) -> Result<Vec<Option<Key>>, EtcdError> {
        let mut found = Vec::new();
        for some in keys.chunks(TOGETHER) {
            let names = some
                .iter()
                .map(|(seat, part)| bytes(&self.key(*seat, *part)));
            let asks = names.map(|key| json!({ "request_range": { "key": key } }));
            let body = json!({ "success": asks.collect::<Vec<_>>() });
            let answer = self.etcd.call("kv/txn", &body)?;
            for number in 0..some.len() {
                let key = &answer["responses"][number]["response_range"]["kvs"][0];
                found.push(Key::parse(key));
            }
        }
        Ok(found)
    }

    /// Renews the lease. None if etcd does not know it any more.
    fn keep_alive(&mut self, lease: Lease) -> Result<Option<Lease>, EtcdError> {
        let began = self.fence.now();
        let body = json!({ "ID": lease.id.to_string() });
        let answer = self.etcd.call("lease/keepalive", &body)?;
        let lives = number(&answer["TTL"]) > 0;
        self.lease = lives.then_some(Lease { began, ..lease });
        Ok(self.lease)
    }

    /// A lease that was renewed recently. Asks etcd for a new one if there is none.
    fn fresh_lease(&mut self) -> Result<Lease, EtcdError> {
        let old = self.ttl.as_nanos() as u64 / 5;
        if let Some(lease) = self.lease {
            if self.fence.now() < lease.began + old {
                return Ok(lease);
            }
            if let Some(lease) = self.keep_alive(lease)? {
                return Ok(lease);
            }
        }
        let began = self.fence.now();
        // etcd counts whole seconds. A longer lease makes others wait; a shorter one would be
        // wrong.
        let seconds = self.ttl.as_millis().div_ceil(1000) as i64;
        let body = json!({ "TTL": seconds.to_string() });
        let answer = self.etcd.call("lease/grant", &body)?;
        let lease = Lease {
            id: number(&answer["ID"]),
            began,
        };
        if number(&answer["TTL"]) < seconds || lease.id == 0 {
            let what = format!("a lease of {seconds} s was asked for, and etcd grants {answer}");
            return Err(EtcdError::Silent(what));
        }
        self.lease = Some(lease);
        Ok(lease)
    }

    /// Takes a seat, if nothing has changed since its keys were read.
    fn take(
        &mut self,
        seat: u16,
        generation: u64,
        revisions: [i64; 2],
        lease: Lease,
    ) -> Result<bool, EtcdError> {
        let key = |part| bytes(&self.key(seat, part));
        let is = |part, revision: i64| {
            // The revision of a missing key is 0.
            let revision = revision.to_string();
            json!({ "key": key(part), "target": "MOD", "mod_revision": revision })
        };
        let mut compare = vec![
            is(Part::Held, revisions[0]),
            is(Part::Generation, revisions[1]),
        ];
        let (value, id) = (self.value(generation), lease.id.to_string());
        let mut then = vec![
            json!({ "request_put": { "key": key(Part::Held), "value": value, "lease": id } }),
            json!({ "request_put": {
                "key": key(Part::Generation), "value": bytes(&generation.to_string())
            } }),
        ];
        match seat == self.own {
            true => then.push(json!({ "request_delete_range": { "key": key(Part::Wanted) } })),
            false => compare.push(is(Part::Wanted, 0)),
        }
        let body = json!({ "compare": compare, "success": then });
        // A repeated call also reports that something has changed if the first call itself has
        // changed it.
        self.unsure.insert(seat);
        let answer = self.etcd.call("kv/txn", &body)?;
        let taken = answer["succeeded"].as_bool() == Some(true);
        if taken {
            self.unsure.remove(&seat);
            self.held
                .insert(seat, number(&answer["header"]["revision"]));
        }
        Ok(taken)
    }

    /// Makes sure that one of the seats in doubt is not held in this process's name. A taking that
    /// is still under way then finds that something has changed, and fails.
    fn settle_doubt(&mut self) -> Result<(), EtcdError> {
        let Some(seat) = self.unsure.first().copied() else {
            return Ok(());
        };
        let mut read = self
            .read(&[(seat, Part::Held), (seat, Part::Generation)])?
            .into_iter();
        let (held, last) = (read.next().flatten(), read.next().flatten());
        let by = held.as_ref().and_then(|key| holder(&key.value));
        let ours = by.is_some_and(|by| by.id == self.holder.id);
        let (part, found) = match ours {
            true => (Part::Held, held),
            false => (Part::Generation, last),
        };
        let key = bytes(&self.key(seat, part));
        let revision = found.as_ref().map_or(0, |key| key.revision);
        let change = match found {
            Some(_) if ours => json!({ "request_delete_range": { "key": key } }),
            // Writes the same value again, which changes the revision.
            last => {
                let number = last.map_or_else(|| first_generation().to_string(), |key| key.value);
                json!({ "request_put": { "key": key, "value": bytes(&number) } })
            }
        };
        let revision = revision.to_string();
        let body = json!({
            "compare": [{ "key": key, "target": "MOD", "mod_revision": revision }],
            "success": [change],
        });
        let answer = self.etcd.call("kv/txn", &body)?;
        if answer["succeeded"].as_bool() == Some(true) {
            self.unsure.remove(&seat);
        }
        Ok(())
    }

    fn try_claim(&mut self, seat: u16, newest: Option<u64>) -> Result<Claim, EtcdError> {
        self.settle_doubt()?;
        let lease = self.fresh_lease()?;
        let keys = [Part::Held, Part::Generation, Part::Wanted].map(|part| (seat, part));
        let mut read = self.read(&keys)?.into_iter();
        let mut next = || read.next().flatten();
        let (held, last, wanted) = (next(), next(), next());
        let by = held.as_ref().and_then(|key| holder(&key.value));
        // A seat counts as free if this process holds it without knowing, because an answer was
        // lost, or if a dead process of this node holds it.
        let free = |by: &Holder| by.id == self.holder.id || by.is_dead();
        let busy = held.is_some() && !by.as_ref().is_some_and(free);
        self.seen = by.map(|by| (seat, by));
        if busy {
            if self.wants.contains(&seat) && wanted.is_none_or(|key| key.lease != lease.id) {
                self.put_wanted(seat, lease)?;
            }
            return Ok(Claim::Busy);
        }
        if seat != self.own && wanted.is_some() {
            return Ok(Claim::Busy);
        }
        let in_etcd = last.as_ref().and_then(|key| generation_in(&key.value));
        // Generations must not decrease, even if etcd was emptied or another keeper was used
        // before.
        let first = in_etcd.is_none().then(first_generation);
        let last_number = in_etcd.max(newest).map(|number| number + 1);
        let generation = last_number.max(first).expect("one of them is there");
        let revision = |key: &Option<Key>| key.as_ref().map_or(0, |key| key.revision);
        let revisions = [revision(&held), revision(&last)];
        if !self.take(seat, generation, revisions, lease)? {
            return Ok(Claim::Busy);
        }
        self.wants.remove(&seat);
        Ok(Claim::Ours {
            generation,
            began: lease.began,
        })
    }

    fn put_wanted(&mut self, seat: u16, lease: Lease) -> Result<(), EtcdError> {
        let body = json!({
            "key": bytes(&self.key(seat, Part::Wanted)),
            "value": self.value(0),
            "lease": lease.id.to_string(),
        });
        self.etcd.call("kv/put", &body).map(|_| ())
    }

    /// Drops a lease that has ended. It is replaced when it is needed again.
    fn forget_lease(&mut self, error: &EtcdError) {
        if error.is_no_lease() {
            self.lease = None;
        }
    }

    /// This process, as the value of a key.
    fn value(&self, generation: u64) -> String {
        let holder = &self.holder;
        let value = json!({
            "generation": generation,
            "forwarder": holder.forwarder,
            "host": holder.host,
            "id": holder.id,
            "boot": holder.boot,
            "namespace": holder.namespace,
            "pid": holder.pid,
            "began": holder.began,
        });
        bytes(&value.to_string())
    }
}

impl Claims for EtcdClaims {
    fn claim(&mut self, seat: u16) -> Result<Claim, SeatsError> {
        let newest = self.generations.of_seat(seat);
        let newest = newest.map_err(|source| SeatsError::File {
            path: format!("lease.{seat}.*").into(),
            source,
        })?;
        let claim = self.try_claim(seat, newest.leases.last().copied());
        if let Err(error) = &claim {
            self.forget_lease(error);
        }
        Ok(claim?)
    }

    /// The renewal with which the claim began determines the lease, and the fence knows its end.
    fn confirm(&mut self, _seat: u16) -> io::Result<()> {
        Ok(())
    }

    fn renew(&mut self, held: &[(u16, u64)]) -> io::Result<Vec<io::Result<Option<String>>>> {
        let ended = || Some("its lease in etcd has ended".to_owned());
        let kept = match self.lease {
            Some(lease) => self.keep_alive(lease).map_err(io::Error::other)?,
            None => None,
        };
        let Some(lease) = kept else {
            return Ok(held.iter().map(|_| Ok(ended())).collect());
        };
        let keys: Vec<_> = held.iter().map(|(seat, _)| (*seat, Part::Held)).collect();
        let read = self.read(&keys).map_err(io::Error::other)?;
        let lost = |(key, (_, generation)): (Option<Key>, &(u16, u64))| {
            let Some(key) = key else {
                return Some("its key in etcd is gone".to_owned());
            };
            let by = holder(&key.value);
            let now = generation_of(&key.value);
            let ours = by.as_ref().is_some_and(|by| by.id == self.holder.id);
            if ours && now == Some(*generation) {
                return if key.lease == lease.id { None } else { ended() };
            }
            let by = by.map_or_else(|| "somebody".to_owned(), |by| by.name());
            let now = now.unwrap_or(0);
            Some(format!("{by} has taken it with generation {now}"))
        };
        let lost = read.into_iter().zip(held).map(lost).map(Ok).collect();
        // The renewal has succeeded; the rest is tried again.
        if let Err(error) = self.settle_doubt() {
            tracing::debug!(%error, "a seat that is not held here may still be claimed");
        }
        Ok(lost)
    }

    fn release(&mut self, seat: u16) -> io::Result<()> {
        let Some(revision) = self.held.remove(&seat) else {
            return Ok(());
        };
        let key = bytes(&self.key(seat, Part::Held));
        let body = json!({
            "compare": [{ "key": key, "target": "MOD", "mod_revision": revision.to_string() }],
            "success": [{ "request_delete_range": { "key": key } }],
        });
        let released = self.etcd.call("kv/txn", &body);
        if released.is_err() {
            self.unsure.insert(seat);
        }
        released.map(|_| ()).map_err(io::Error::other)
    }

    /// Does nothing: where locks do not reach other forwarders, only the holder relies on this.
    fn settle(&mut self, _seat: u16) -> Result<(), SeatsError> {
        Ok(())
    }

    /// Writes the key at the first call only. Each claim writes the key again if it is gone;
    /// writing it at every call would cost etcd a write each time.
    fn want(&mut self, seat: u16) -> Result<(), SeatsError> {
        if !self.wants.insert(seat) {
            return Ok(());
        }
        let lease = self.fresh_lease()?;
        Ok(self.put_wanted(seat, lease)?)
    }

    fn wanted(&mut self, held: &[u16]) -> io::Result<Vec<u16>> {
        let keys: Vec<_> = held.iter().map(|seat| (*seat, Part::Wanted)).collect();
        let read = self.read(&keys).map_err(io::Error::other)?;
        let wanted = held.iter().zip(read).filter(|(_, key)| key.is_some());
        Ok(wanted.map(|(seat, _)| *seat).collect())
    }

    /// Does nothing: watching tells nothing, because the key either exists or not.
    fn look(&mut self, _seat: u16) {}

    fn double(&mut self, seat: u16) -> Option<String> {
        let (_, by) = self.seen.as_ref().filter(|(seen, _)| *seen == seat)?;
        let other = by.forwarder == seat && by.id != self.holder.id && !by.is_dead();
        other.then(|| by.name())
    }
}

impl Drop for EtcdClaims {
    /// Removes this process's keys at once, if etcd answers in time. A seat that was not released
    /// in order may have a call to the back end under way; it is free when the lease has ended.
    fn drop(&mut self) {
        if let Some(lease) = self.lease.filter(|_| self.held.is_empty()) {
            let body = json!({ "ID": lease.id.to_string() });
            let _ = self.etcd.call("lease/revoke", &body);
        }
    }
}

impl Key {
    /// None where there is none.
    fn parse(key: &Value) -> Option<Key> {
        let revision = number(&key["mod_revision"]);
        (revision > 0).then(|| Key {
            revision,
            lease: number(&key["lease"]),
            value: text(&key["value"]).unwrap_or_default(),
        })
    }
}

/// The process that wrote a key.
fn holder(value: &str) -> Option<Holder> {
    let value: Value = serde_json::from_str(value).ok()?;
    let number = |name: &str| value[name].as_u64();
    Some(Holder {
        id: number("id")?,
        forwarder: number("forwarder")?.try_into().ok()?,
        boot: number("boot")?,
        namespace: number("namespace")?,
        pid: number("pid")?.try_into().ok()?,
        began: number("began")?,
        host: value["host"].as_str()?.to_owned(),
    })
}

fn generation_of(value: &str) -> Option<u64> {
    let value: Value = serde_json::from_str(value).ok()?;
    value["generation"].as_u64()
}

#[cfg(test)]
mod tests;
