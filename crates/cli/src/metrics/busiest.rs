//! Which applications have numbers of their own: those that have used a forwarder's device most of
//! late. Who used it long ago leaves the places to those who use it now.

use crate::stat::COUNTS;
use crate::waits::{Waits, is_told};
use serde_json::Value;
use std::collections::BTreeMap;

/// Labels of one number, by name.
pub type Labels = Vec<(&'static str, String)>;

/// What is left of a use after each further look, as a part of it.
const LEFT: f64 = 0.9;

/// Name and user.
type Key = (String, String);

/// What an application has done since the forwarder's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Application {
    /// As its clients have told it; its id where the name is not known.
    pub name: String,
    /// Its user; empty if that is not known.
    pub uid: String,
    /// The job that named it last; empty if it has none.
    pub job: String,
    /// By the key of the state.
    pub counts: BTreeMap<&'static str, u64>,
    /// What its requests waited for; None if the forwarder does not tell all of it.
    pub waits: Option<Waits>,
}

impl Application {
    /// Its labels beside `forwarder`.
    pub fn labels(&self) -> Labels {
        vec![
            ("application", self.name.clone()),
            ("uid", self.uid.clone()),
        ]
    }

    fn charged_ns(&self) -> u64 {
        self.counts.get("charged_ns").copied().unwrap_or(0)
    }
}

/// How much each application has used the device of one forwarder of late.
#[derive(Debug, Default)]
pub struct Uses(BTreeMap<Key, Use>);

#[derive(Debug)]
struct Use {
    charged_ns: u64,
    of_late: f64,
}

impl Uses {
    /// Notes what the applications of a state have used since the last look, and returns the `max`
    /// that used most; at the first look, since the start.
    pub fn look(&mut self, state: &Value, max: usize) -> Vec<Application> {
        let mut before = std::mem::take(&mut self.0);
        let mut all = Vec::new();
        for one in applications(state) {
            let key = (one.name.clone(), one.uid.clone());
            let known = before.remove(&key);
            let (charged_ns, of_late) = known.map_or((0, 0.0), |it| (it.charged_ns, it.of_late));
            // Less than before: the forwarder was started again.
            let used = one
                .charged_ns()
                .checked_sub(charged_ns)
                .unwrap_or(one.charged_ns());
            let of_late = of_late * LEFT + used as f64;
            let charged_ns = one.charged_ns();
            self.0.insert(
                key,
                Use {
                    charged_ns,
                    of_late,
                },
            );
            all.push((of_late, one));
        }
        all.sort_by(|(a, one), (b, other)| {
            b.total_cmp(a)
                .then(other.charged_ns().cmp(&one.charged_ns()))
        });
        all.into_iter().map(|(_, one)| one).take(max).collect()
    }
}

/// The applications of a state; those of one name and user together.
fn applications(state: &Value) -> Vec<Application> {
    let mut sums: BTreeMap<Key, Application> = BTreeMap::new();
    let mut untold = Vec::new();
    for one in state["applications"].as_array().into_iter().flatten() {
        let text = |key: &str| one[key].as_str().map(str::to_string);
        let Some(name) = text("name").or_else(|| text("app")) else {
            continue;
        };
        let uid = one["uid"].as_u64();
        let uid = uid.map_or(String::new(), |uid| uid.to_string());
        let sum = sums.entry((name.clone(), uid.clone())).or_default();
        (sum.name, sum.uid) = (name, uid);
        if let Some(job) = text("job") {
            sum.job = job;
        }
        if one["waits"].is_object() {
            sum.waits.get_or_insert_default().add(&Waits::of(one));
        }
        if !is_told(one) {
            untold.push((sum.name.clone(), sum.uid.clone()));
        }
        for key in COUNTS {
            let counted = sum.counts.entry(key).or_default();
            *counted = counted.saturating_add(one[key].as_u64().unwrap_or(0));
        }
    }
    // A sum that a part comes into and goes out of again is no counter.
    for key in untold {
        sums.entry(key).and_modify(|sum| sum.waits = None);
    }
    sums.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(of: &[(&str, u64)]) -> Value {
        let one = |(name, ns): &(&str, u64)| {
            let (app, uid) = ("0a", 7);
            json!({ "app": app, "name": name, "uid": uid, "charged_ns": ns })
        };
        json!({ "applications": of.iter().map(one).collect::<Vec<_>>() })
    }

    fn names(shown: &[Application]) -> Vec<&str> {
        shown.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn those_of_one_name_and_user_are_one() {
        let two = json!({ "applications": [
            { "app": "0a", "name": "x", "uid": 7, "job": "17", "charged_ns": 3 },
            { "app": "0c", "name": "x", "uid": 7, "charged_ns": 4 },
            { "app": "0b", "uid": 8, "charged_ns": 5 }, { "others": true, "charged_ns": 9 },
        ]});
        let shown = Uses::default().look(&two, 9);
        assert_eq!(names(&shown), ["x", "0b"]);
        assert_eq!(
            (shown[0].counts["charged_ns"], shown[0].job.as_str()),
            (7, "17")
        );
    }

    #[test]
    fn waits_are_known_if_those_of_all_ids_are() {
        let told = json!({ "app": "0a", "name": "x", "read_requests": 5,
                           "waits": { "ns": { "device": 7 } } });
        let untold = json!({ "app": "0b", "name": "x", "read_requests": 1 });
        let idle = json!({ "app": "0c", "name": "x", "read_requests": 0 });
        let waits = |list: &[&Value]| {
            let shown = Uses::default().look(&json!({ "applications": list }), 9);
            shown[0].waits.as_ref().map(Waits::all_ns)
        };
        assert_eq!(waits(&[&told, &idle]), Some(7));
        assert_eq!(waits(&[&told, &untold]), None);
        assert_eq!(waits(&[&untold, &told]), None);
        assert_eq!(waits(&[&untold]), None);
        assert_eq!(waits(&[&idle]), None);
    }

    #[test]
    fn who_uses_the_device_now_is_shown_before_who_used_it_more() {
        let mut uses = Uses::default();
        assert_eq!(
            names(&uses.look(&state(&[("old", 900), ("new", 1)]), 1)),
            ["old"]
        );
        // It ends, and the other one begins: after some looks that is seen.
        let looks = (1..30).map(|look| state(&[("old", 900), ("new", 1 + 50 * look)]));
        let shown: Vec<_> = looks
            .map(|state| uses.look(&state, 1)[0].name.clone())
            .collect();
        assert_eq!((shown[0].as_str(), shown[28].as_str()), ("old", "new"));
        // One that is gone takes no room.
        uses.look(&state(&[("new", 2000)]), 1);
        assert_eq!(uses.0.len(), 1);
        // The forwarder was started again.
        assert_eq!(
            names(&uses.look(&state(&[("new", 1), ("other", 5000)]), 1)),
            ["other"]
        );
    }
}
