//! The page of OpenMetrics: the numbers of all families at all forwarders.

use super::busiest::{Application, Labels};
use super::families::{FAMILIES, Family};
use crate::stat::health::Wrong;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// A forwarder's state, and those of its applications that have numbers of their own.
pub type Shown = (Value, Vec<Application>);

/// What is told beside the families of [`FAMILIES`]: name, labels, meaning.
const ALWAYS: [(&str, &[&str], &str); 3] = [
    (
        "tidegate_build",
        &["version"],
        "The version of this program",
    ),
    (
        "tidegate_up",
        &["address"],
        "1 if the forwarder has answered, else 0",
    ),
    (
        "tidegate_findings",
        &["kind"],
        "What `tidegate stat --check` finds wrong with forwarders and seats, by kind",
    ),
];

/// The page for these states, as `tidegate stat --json` has them, each with the applications that
/// are shown of it, and for what is wrong.
pub fn text(states: &[Shown], wrong: &[Wrong]) -> String {
    let mut findings: BTreeMap<&'static str, u64> = BTreeMap::new();
    for one in wrong {
        *findings.entry(one.kind()).or_default() += 1;
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page {
        forwarders: states
            .iter()
            .map(|(state, _)| Forwarder::of(state))
            .collect(),
        findings,
        families: FAMILIES
            .iter()
            .map(|family| numbers(family, states))
            .collect(),
    }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string cannot fail");
    text
}

/// The numbers of a family at all forwarders, each with its labels.
fn numbers(family: &Family, states: &[Shown]) -> Vec<(Labels, f64)> {
    let mut all = Vec::new();
    let answered = states
        .iter()
        .filter(|(state, _)| !state["error"].is_string());
    for (state, applications) in answered {
        let of = ("forwarder", state["forwarder"].to_string());
        for (labels, number) in family.numbers(state, applications) {
            let labels = std::iter::once(of.clone()).chain(labels).collect();
            all.push((labels, number));
        }
    }
    all
}

#[derive(Debug)]
struct Forwarder {
    labels: Labels,
    is_up: bool,
}

impl Forwarder {
    fn of(state: &Value) -> Forwarder {
        let address = state["address"].as_str().unwrap_or_default();
        Forwarder {
            labels: vec![
                ("forwarder", state["forwarder"].to_string()),
                ("address", address.to_string()),
            ],
            is_up: !state["error"].is_string(),
        }
    }
}

#[derive(Debug)]
struct Page {
    forwarders: Vec<Forwarder>,
    findings: BTreeMap<&'static str, u64>,
    /// The numbers of each family, in the order of [`FAMILIES`].
    families: Vec<Vec<(Labels, f64)>>,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let [
            (build, _, build_help),
            (up, _, up_help),
            (findings, kind, findings_help),
        ] = ALWAYS;
        encoder
            .encode_descriptor(build, build_help, None, MetricType::Info)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let mut family = encoder.encode_descriptor(up, up_help, None, MetricType::Gauge)?;
        for one in &self.forwarders {
            gauge(&mut family, &one.labels, f64::from(u8::from(one.is_up)))?;
        }
        let mut family =
            encoder.encode_descriptor(findings, findings_help, None, MetricType::Gauge)?;
        for (word, count) in &self.findings {
            let labels = vec![(kind[0], word.to_string())];
            gauge(&mut family, &labels, *count as f64)?;
        }
        for (family, numbers) in FAMILIES.iter().zip(&self.families) {
            let kind = match family.is_counter {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut encoded = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, number) in numbers {
                match family.is_counter {
                    true => {
                        let mut one = encoded.encode_family(labels)?;
                        one.encode_counter::<Labels, f64, f64>(number, None)?;
                    }
                    false => gauge(&mut encoded, labels, *number)?,
                }
            }
        }
        Ok(())
    }
}

fn gauge(family: &mut MetricEncoder<'_>, labels: &Labels, number: f64) -> fmt::Result {
    family.encode_family(labels)?.encode_gauge(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::busiest::Uses;
    use crate::stat::health;
    use serde_json::json;
    use std::path::Path;

    /// A row of the table of docs/metrics.md.
    fn row(name: &str, kind: &str, labels: &[&str], help: &str) -> String {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
    }

    #[test]
    fn the_table_of_the_documents_has_all_of_them() {
        let mut table = String::from("| name | kind | labels | meaning |\n|---|---|---|---|\n");
        let [build, up, findings] = ALWAYS;
        table += &row("tidegate_build_info", "info", build.1, build.2);
        table += &row(up.0, "gauge", &["forwarder", up.1[0]], up.2);
        table += &row(findings.0, "gauge", findings.1, findings.2);
        for family in FAMILIES {
            let labels = [&["forwarder"], family.labels].concat();
            let (name, kind) = match family.is_counter {
                true => (format!("{}_total", family.name), "counter"),
                false => (family.name.to_string(), "gauge"),
            };
            table += &row(&name, kind, &labels, family.help);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = std::fs::read_to_string(path).expect("docs/metrics.md is there");
        assert!(
            page.contains(&table),
            "docs/metrics.md needs this table:\n{table}"
        );
    }

    #[test]
    fn each_forwarder_that_answers_has_its_numbers() {
        let states = [
            json!({ "forwarder": 0, "address": "tcp:a:1", "policy": "fifo", "forwarders": 2,
                    "requests": { "answered": 7 }, "bytes": { "read": 5, "write": 6 },
                    "seats": [{ "seat": 0, "state": "serving" }, { "seat": 1, "state": "grace" }],
                    "applications": [{ "app": "0a", "name": "a\"\n\\b", "uid": 3,
                                       "charged_ns": 2_000_000_000u64 }] }),
            json!({ "forwarder": 1, "address": "tcp:b:1", "error": "no answer" }),
        ];
        let wrong = health::of_forwarders(&states);
        let applications = |state: &Value| Uses::default().look(state, 10);
        let shown = states.map(|state| (state.clone(), applications(&state)));
        let page = text(&shown, &wrong);
        for line in [
            "tidegate_build_info{version=\"",
            "tidegate_up{forwarder=\"0\",address=\"tcp:a:1\"} 1.0\n",
            "tidegate_up{forwarder=\"1\",address=\"tcp:b:1\"} 0.0\n",
            "tidegate_findings{kind=\"silent\"} 1.0\n",
            "# TYPE tidegate_requests counter\ntidegate_requests_total{forwarder=\"0\"} 7.0\n",
            "tidegate_data_bytes_total{forwarder=\"0\",direction=\"write\"} 6.0\n",
            "tidegate_seats{forwarder=\"0\",state=\"grace\"} 1.0\n",
            "tidegate_policy{forwarder=\"0\",policy=\"fifo\"} 1.0\n",
            "tidegate_application_device_seconds_total{forwarder=\"0\",\
             application=\"a\\\"\\n\\\\b\",uid=\"3\"} 2.0\n",
        ] {
            assert!(page.contains(line), "{line} is not in:\n{page}");
        }
        assert!(!page.contains("total{forwarder=\"1\""), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
    }

    #[test]
    fn nothing_is_known_of_forwarders_that_never_answered() {
        let page = text(&[], &[]);
        assert!(page.contains("tidegate_build_info"), "{page}");
        assert!(!page.contains("forwarder="), "{page}");
    }
}
