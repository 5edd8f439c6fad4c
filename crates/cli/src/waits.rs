//! What applications waited for, as the forwarders' states tell it.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidegate_sched::Cause;

/// Time by cause, ns.
pub type Ns = [u64; Cause::COUNT];

/// Who caused a wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Neighbour {
    /// Requests of the same application.
    Own,
    /// An application whose name the forwarder tells, or whose id it does: name or id, user, and
    /// whether it is a name.
    Application(String, Option<u64>, bool),
    /// Applications of users that the asker may not see.
    Others,
}

impl Neighbour {
    fn of(value: &Value, own: &str) -> Option<Neighbour> {
        if value["others"] == true {
            return Some(Neighbour::Others);
        }
        let app = value["app"].as_str()?;
        if app == own {
            return Some(Neighbour::Own);
        }
        let name = value["name"].as_str();
        let shown = name.unwrap_or(app).to_string();
        Some(Neighbour::Application(
            shown,
            value["uid"].as_u64(),
            name.is_some(),
        ))
    }

    /// As people read it.
    pub fn words(&self) -> String {
        match self {
            Neighbour::Own => "its own requests".to_string(),
            Neighbour::Application(name, _, _) if name.is_empty() => {
                "what a user did without a name".to_string()
            }
            Neighbour::Application(name, _, _) => format!("`{name}`"),
            Neighbour::Others => "another user's application".to_string(),
        }
    }

    /// As programs read it.
    pub fn json(&self) -> Value {
        match self {
            Neighbour::Own => json!({ "own": true }),
            Neighbour::Application(name, uid, true) => json!({ "name": name, "uid": uid }),
            Neighbour::Application(app, uid, false) => json!({ "app": app, "uid": uid }),
            Neighbour::Others => json!({ "others": true }),
        }
    }
}

/// What requests waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Requests that were answered.
    pub requests: u64,
    /// By cause.
    pub ns: Ns,
    /// What neighbours caused of it.
    pub neighbours: BTreeMap<Neighbour, Ns>,
}

impl Waits {
    /// What an application's object in a state tells.
    pub fn of(application: &Value) -> Waits {
        let own = application["app"].as_str().unwrap_or_default();
        let waits = &application["waits"];
        let mut all = Waits {
            requests: waits["requests"].as_u64().unwrap_or(0),
            ns: ns_of(&waits["ns"]),
            neighbours: BTreeMap::new(),
        };
        for value in waits["neighbours"].as_array().into_iter().flatten() {
            if let Some(neighbour) = Neighbour::of(value, own) {
                let sum = all.neighbours.entry(neighbour).or_default();
                add(sum, &ns_of(&value["ns"]));
            }
        }
        all
    }

    /// Adds those of another forwarder or application.
    pub fn add(&mut self, other: &Waits) {
        self.requests = self.requests.saturating_add(other.requests);
        add(&mut self.ns, &other.ns);
        for (neighbour, ns) in &other.neighbours {
            add(self.neighbours.entry(neighbour.clone()).or_default(), ns);
        }
    }

    /// What came to it since an earlier look; all of it if the forwarder was started again.
    pub fn since(&self, before: &Waits) -> Waits {
        let pairs = self.ns.iter().zip(&before.ns);
        if self.requests < before.requests || pairs.clone().any(|(now, then)| now < then) {
            return self.clone();
        }
        let mut since = self.clone();
        since.requests -= before.requests;
        subtract(&mut since.ns, &before.ns);
        for (neighbour, ns) in &mut since.neighbours {
            if let Some(then) = before.neighbours.get(neighbour) {
                subtract(ns, then);
            }
        }
        since
    }

    /// All time at the forwarders.
    pub fn all_ns(&self) -> u64 {
        self.ns.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    /// The time in which the back end did not work for it.
    pub fn lost_ns(&self) -> u64 {
        self.all_ns()
            .saturating_sub(self.ns[Cause::Service as usize])
    }

    /// What most of the lost time went to, if any was lost.
    pub fn most(&self) -> Option<(Cause, u64)> {
        let causes = Cause::ALL.into_iter().zip(self.ns);
        let lost = causes.filter(|(cause, ns)| *cause != Cause::Service && *ns > 0);
        lost.max_by_key(|(_, ns)| *ns)
    }

    /// Who caused most of a cause's time, that with most first, with how much of it.
    pub fn of_cause(&self, cause: Cause) -> Vec<(&Neighbour, u64)> {
        let all = self.neighbours.iter();
        let mut all: Vec<_> = all
            .map(|(one, ns)| (one, ns[cause as usize].min(self.ns[cause as usize])))
            .filter(|(_, ns)| *ns > 0)
            .collect();
        all.sort_by_key(|(_, ns)| u64::MAX - ns);
        all
    }
}

/// Whether a forwarder tells what an application's requests waited for, or has had none.
pub fn is_told(application: &Value) -> bool {
    let count = |key: &str| application[key].as_u64().unwrap_or(0);
    application["waits"].is_object() || count("read_requests") + count("write_requests") == 0
}

/// The whole percentage that a part is.
pub fn percent(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => ((u128::from(part) * 100 + u128::from(whole / 2)) / u128::from(whole)) as u64,
    }
}

/// Times by cause, from an object of a state.
pub fn ns_of(value: &Value) -> Ns {
    Cause::ALL.map(|cause| value[cause.name()].as_u64().unwrap_or(0))
}

fn add(sum: &mut Ns, more: &Ns) {
    let pairs = sum.iter_mut().zip(more);
    pairs.for_each(|(sum, ns)| *sum = sum.saturating_add(*ns));
}

fn subtract(now: &mut Ns, then: &Ns) {
    let pairs = now.iter_mut().zip(then);
    pairs.for_each(|(now, then)| *now = now.saturating_sub(*then));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(requests: u64, device: u64) -> Waits {
        Waits::of(&json!({ "app": "0a", "waits": {
            "requests": requests, "ns": { "device": device, "service": 9 },
            "neighbours": [
                { "app": "0b", "name": "b", "uid": 7, "ns": { "device": device / 2 } },
                { "app": "0a", "name": "a", "uid": 7, "ns": { "device": 1 } },
                { "others": true, "ns": { "device": 2 } },
            ],
        }}))
    }

    #[test]
    fn an_interval_is_the_difference_of_two_looks() {
        let (before, now) = (told(5, 100), told(8, 400));
        let since = now.since(&before);
        assert_eq!(
            (since.requests, since.lost_ns(), since.all_ns()),
            (3, 300, 300)
        );
        let b = Neighbour::Application("b".into(), Some(7), true);
        assert_eq!(since.of_cause(Cause::Device), [(&b, 150)]);
        assert_eq!(since.most(), Some((Cause::Device, 300)));
        // The forwarder was started again.
        assert_eq!(before.since(&now), before);
        let of_both = [&Neighbour::Others, &Neighbour::Own];
        let his = now.of_cause(Cause::Device);
        assert_eq!([his[1].0, his[2].0], of_both);
        assert_eq!(Waits::default().most(), None);
        assert_eq!((percent(1, 3), percent(2, 3), percent(0, 0)), (33, 67, 0));
    }
}
