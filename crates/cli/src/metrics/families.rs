//! The families of metrics: the name of each, what it means, and where in a forwarder's state
//! (`tidegate stat --json`) its numbers are. docs/metrics.md has the same table.

use super::busiest::{Application, Labels};
use crate::waits::{Ns, ns_of};
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_sched::Cause;

/// Metrics of one name.
pub struct Family {
    /// Without `_total`, which counters have on the page.
    pub name: &'static str,
    /// Whether it only grows while its forwarder lives.
    pub is_counter: bool,
    /// One line.
    pub help: &'static str,
    /// The labels beside `forwarder`.
    pub labels: &'static [&'static str],
    /// Where the numbers are.
    pub of: Of,
}

/// Where the numbers of a family are in a forwarder's state.
pub enum Of {
    /// A number, in the state's unit, and what to multiply it by.
    One(&'static str, f64),
    /// A number for each value of the family's label.
    Each(&'static [(&'static str, &'static str)]),
    /// 1 if this is there and not false.
    Is(&'static str),
    /// The state's text as a label, with the number 1.
    Text(&'static str),
    /// How many seats are in which state.
    Seats,
    /// 1 for each application that has a job, with the job.
    Jobs,
    /// A number of each application: for each value of `direction` (none: without), and what to
    /// multiply it by.
    Applications(&'static [(&'static str, &'static str)], f64),
    /// The time of requests for each cause, by the name of which the label is.
    Waits,
    /// The same of each application.
    WaitsOfApplications,
}

const DIRECTIONS: [&str; 2] = ["read", "write"];
const MS: f64 = 1e-3;
const NS: f64 = 1e-9;

const fn gauge(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    of: Of,
) -> Family {
    Family {
        name,
        is_counter: false,
        help,
        labels,
        of,
    }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    of: Of,
) -> Family {
    Family {
        name,
        is_counter: true,
        help,
        labels,
        of,
    }
}

/// All that are told of a forwarder that answers.
pub const FAMILIES: &[Family] = &[
    gauge(
        "tidegate_back_end_trouble",
        "1 if something is wrong with the back end",
        &[],
        Of::Is("/trouble"),
    ),
    gauge(
        "tidegate_draining",
        "1 if the forwarder takes no seats: it stops, or was told to",
        &[],
        Of::Is("/draining"),
    ),
    gauge(
        "tidegate_policy",
        "1, with the policy of the scheduler",
        &["policy"],
        Of::Text("/policy"),
    ),
    gauge(
        "tidegate_seats",
        "Seats by state; those that serve are `serving` and `grace`",
        &["state"],
        Of::Seats,
    ),
    gauge(
        "tidegate_lease_seconds",
        "How long the seats may still be served unless their lease is renewed",
        &[],
        Of::One("/lease_ms", MS),
    ),
    gauge(
        "tidegate_sessions",
        "Sessions of clients, with those that are not connected now",
        &[],
        Of::One("/counts/sessions", 1.0),
    ),
    gauge(
        "tidegate_applications",
        "Applications with requests since the forwarder's start",
        &[],
        Of::One("/counts/applications", 1.0),
    ),
    gauge(
        "tidegate_depth",
        "Batches that the scheduler lets run at once",
        &[],
        Of::One("/scheduler/depth", 1.0),
    ),
    gauge(
        "tidegate_queued_requests",
        "Requests that wait in the scheduler",
        &[],
        Of::One("/scheduler/queued", 1.0),
    ),
    gauge(
        "tidegate_held_requests",
        "Of them, those that overlap one before them, and wait for it",
        &[],
        Of::One("/scheduler/held", 1.0),
    ),
    gauge(
        "tidegate_running_batches",
        "Batches at the back end",
        &[],
        Of::One("/scheduler/running", 1.0),
    ),
    counter(
        "tidegate_scheduled_requests",
        "Requests of the scheduler by what became of them",
        &["event"],
        Of::Each(&[
            ("arrived", "/scheduler/arrived"),
            ("finished", "/scheduler/finished"),
            ("cancelled", "/scheduler/cancelled"),
            ("rejected", "/scheduler/rejected"),
        ]),
    ),
    counter(
        "tidegate_batches",
        "Batches that the scheduler gave to the back end",
        &[],
        Of::One("/scheduler/batches", 1.0),
    ),
    gauge(
        "tidegate_pool_bytes",
        "Memory with payload of clients",
        &[],
        Of::One("/pool/bytes", 1.0),
    ),
    gauge(
        "tidegate_pool_max_bytes",
        "Its bound (`pool_bytes`)",
        &[],
        Of::One("/pool/bytes_max", 1.0),
    ),
    counter(
        "tidegate_requests",
        "Requests that were answered",
        &[],
        Of::One("/requests/answered", 1.0),
    ),
    counter(
        "tidegate_request_errors",
        "Of them, those that failed; without look-ups of what is not there",
        &[],
        Of::One("/requests/errors", 1.0),
    ),
    counter(
        "tidegate_absent_lookups",
        "Of them, look-ups of names and attributes that are not there",
        &[],
        Of::One("/requests/absent", 1.0),
    ),
    counter(
        "tidegate_replayed_requests",
        "Of them, those sent again that had been executed",
        &[],
        Of::One("/requests/replays", 1.0),
    ),
    counter(
        "tidegate_data_requests",
        "Reads and writes",
        &["direction"],
        Of::Each(&[("read", "/requests/read"), ("write", "/requests/write")]),
    ),
    counter(
        "tidegate_data_bytes",
        "Bytes that they moved",
        &["direction"],
        Of::Each(&[("read", "/bytes/read"), ("write", "/bytes/write")]),
    ),
    counter(
        "tidegate_back_end_calls",
        "Calls to the back end that move data",
        &["direction"],
        Of::Each(&[("read", "/calls/read"), ("write", "/calls/write")]),
    ),
    gauge(
        "tidegate_oldest_call_seconds",
        "How long the oldest call to the back end runs",
        &[],
        Of::One("/oldest_job_ms", MS),
    ),
    gauge(
        "tidegate_capacity_bytes_per_second",
        "What the back end moves when it is busy, as measured or else by the cost model",
        &[],
        Of::One("/capacity/bytes_per_s", 1.0),
    ),
    gauge(
        "tidegate_capacity_operations_per_second",
        "The same in small operations",
        &[],
        Of::One("/capacity/operations_per_s", 1.0),
    ),
    gauge(
        "tidegate_file_descriptors",
        "Descriptors of files",
        &[],
        Of::One("/system/file_descriptors", 1.0),
    ),
    counter(
        "tidegate_socket_bytes",
        "Bytes through sockets of clients",
        &["direction"],
        Of::Each(&[
            ("received", "/system/received_bytes"),
            ("sent", "/system/sent_bytes"),
        ]),
    ),
    counter(
        "tidegate_trace_requests",
        "Requests for the trace: recorded, or dropped for lack of room",
        &["event"],
        Of::Each(&[
            ("recorded", "/trace/recorded"),
            ("dropped", "/trace/dropped"),
        ]),
    ),
    counter(
        "tidegate_device_seconds",
        "Time of the device that all applications were charged",
        &[],
        Of::One("/charged_ns", NS),
    ),
    gauge(
        "tidegate_application_job",
        "1, with the job of the batch system that named an application last",
        &["application", "uid", "job"],
        Of::Jobs,
    ),
    counter(
        "tidegate_application_requests",
        "Reads and writes of an application",
        &["application", "uid", "direction"],
        Of::Applications(
            &[("read", "read_requests"), ("write", "write_requests")],
            1.0,
        ),
    ),
    counter(
        "tidegate_application_bytes",
        "Bytes that they moved",
        &["application", "uid", "direction"],
        Of::Applications(&[("read", "read_bytes"), ("write", "write_bytes")], 1.0),
    ),
    counter(
        "tidegate_application_device_seconds",
        "Time of the device that an application was charged",
        &["application", "uid"],
        Of::Applications(&[("", "charged_ns")], NS),
    ),
    counter(
        "tidegate_wait_seconds",
        "Time of requests at the forwarder, by what it went to",
        &["cause"],
        Of::Waits,
    ),
    counter(
        "tidegate_application_wait_seconds",
        "The same of an application",
        &["application", "uid", "cause"],
        Of::WaitsOfApplications,
    ),
];

impl Family {
    /// The numbers in a forwarder's state, with their labels. A forwarder that does not have one,
    /// as that of a trace that nobody records, has none here. Of applications those in `shown`.
    pub fn numbers(&self, state: &Value, shown: &[Application]) -> Vec<(Labels, f64)> {
        let at = |pointer: &str| state.pointer(pointer);
        let number = |pointer: &str| at(pointer).and_then(Value::as_f64);
        match &self.of {
            Of::One(pointer, factor) => {
                let number = number(pointer).map(|it| (Labels::new(), it * factor));
                number.into_iter().collect()
            }
            Of::Each(pairs) => {
                let label = self.labels[0];
                let numbers = pairs.iter().filter_map(|(value, pointer)| {
                    Some((vec![(label, value.to_string())], number(pointer)?))
                });
                numbers.collect()
            }
            Of::Is(pointer) => {
                let is = at(pointer).is_some_and(|it| *it != Value::Bool(false));
                vec![(Labels::new(), f64::from(u8::from(is)))]
            }
            Of::Text(pointer) => {
                let text = at(pointer).and_then(Value::as_str).unwrap_or_default();
                vec![(vec![(self.labels[0], text.to_string())], 1.0)]
            }
            Of::Seats => self.seats(state),
            Of::Waits => match state["waits"].is_object() {
                true => self.by_cause(Labels::new(), &ns_of(&state["waits"]["ns"])),
                false => Vec::new(),
            },
            Of::WaitsOfApplications => {
                let each = shown.iter();
                let told = each.filter_map(|one| Some((one.labels(), one.waits.as_ref()?)));
                let each = told.flat_map(|(labels, waits)| self.by_cause(labels, &waits.ns));
                each.collect()
            }
            Of::Jobs => {
                let with_job = shown.iter().filter(|one| !one.job.is_empty());
                let labels = with_job.map(|one| {
                    let mut labels = one.labels();
                    labels.push(("job", one.job.clone()));
                    (labels, 1.0)
                });
                labels.collect()
            }
            Of::Applications(pairs, factor) => {
                let each = shown.iter().flat_map(|one| {
                    pairs.iter().map(move |(direction, key)| {
                        let mut labels = one.labels();
                        if DIRECTIONS.contains(direction) {
                            labels.push(("direction", direction.to_string()));
                        }
                        (labels, one.counts[*key] as f64 * factor)
                    })
                });
                each.collect()
            }
        }
    }

    fn by_cause(&self, of: Labels, ns: &Ns) -> Vec<(Labels, f64)> {
        let causes = Cause::ALL.into_iter().zip(ns);
        let numbers = causes.map(|(cause, ns)| {
            let mut labels = of.clone();
            labels.push(("cause", cause.name().to_string()));
            (labels, *ns as f64 * NS)
        });
        numbers.collect()
    }

    fn seats(&self, state: &Value) -> Vec<(Labels, f64)> {
        let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
        let seats = state["seats"].as_array().into_iter().flatten();
        for word in seats.filter_map(|seat| seat["state"].as_str()) {
            *counts.entry(word).or_default() += 1.0;
        }
        let label = self.labels[0];
        let counts = counts.into_iter();
        counts
            .map(|(word, count)| (vec![(label, word.to_string())], count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waits::Waits;
    use serde_json::json;

    #[test]
    fn what_a_forwarder_has_not_is_not_told() {
        let numbers = |name: &str, state: Value| {
            let family = FAMILIES.iter().find(|family| family.name == name);
            family.expect("it is there").numbers(&state, &[])
        };
        assert_eq!(numbers("tidegate_lease_seconds", json!({})), []);
        let half = vec![(Labels::new(), 0.5)];
        assert_eq!(
            numbers("tidegate_lease_seconds", json!({ "lease_ms": 500 })),
            half
        );
        assert_eq!(numbers("tidegate_trace_requests", json!({})), []);
        for (state, is) in [(json!({}), 0.0), (json!({ "trouble": "full" }), 1.0)] {
            let wanted = vec![(Labels::new(), is)];
            assert_eq!(numbers("tidegate_back_end_trouble", state), wanted);
        }
        let of_applications = |waits: Option<Waits>| {
            let one = Application {
                waits,
                ..Application::default()
            };
            let name = "tidegate_application_wait_seconds";
            let family = FAMILIES.iter().find(|family| family.name == name);
            let family = family.expect("it is there");
            family.numbers(&json!({}), &[one]).len()
        };
        assert_eq!(of_applications(None), 0);
        assert_eq!(of_applications(Some(Waits::default())), Cause::ALL.len());
        let seats =
            json!({ "seats": [{"state": "serving"}, {"state": "lost"}, {"state": "lost"}] });
        let [(lost, two), (serving, one)] = &numbers("tidegate_seats", seats)[..] else {
            panic!("there are two states");
        };
        assert_eq!(
            (&*lost[0].1, *two, &*serving[0].1, *one),
            ("lost", 2.0, "serving", 1.0)
        );
    }
}
