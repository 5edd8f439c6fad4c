//! What is shown of a scenario's runs, and that it can be written and read again.

mod document;

use super::tables::number;
use super::*;
use crate::chart::Kind;

const SCENARIO: &str = r#"
title = "Reads | of two"
paper = "A paper"
protocol = "one-shot"
policies = ["fifo", "window"]
network = { preset = "gigabit-ethernet" }
forwarders = { count = 2 }
device = { model = "hdd-7200" }
application = [{ workload = "ior", copies = 3, request = "256 KiB", requests = 2 }]
vary = { key = "forwarders.count", values = [1, 2] }
notes = "First\nline.\n\nSecond."
[figure]
metric = "completion_mean"
also = ["latency_p95", "wait_mean", "lag_max", "efficiency", "optimum_distance", "optimum_bound_ms"]
requests = true
optimum = true
x_label = "forwarders"
[[claim]]
metric = "completion_mean"
policy = "window"
against = "fifo"
paper = -10.0
min = -1000.0
max = 1000.0
why = "Other\ndisks."
tests = "describes"
[[claim]]
metric = "makespan"
policy = "window"
x = 2.0
paper = 3.0
max = 0.5
not_comparable = "Of another day."
"#;

fn findings(text: &str) -> Findings {
    let scenario = Scenario::parse(text, "t.toml", "t").expect("it is right");
    let outcome = tidegate_sim::runner::run(&scenario, 2, &|_, _| {}).expect("it ends");
    Findings::of(&scenario, &outcome)
}

#[test]
fn findings_can_be_read_again() {
    let text = SCENARIO.replace("optimum = true", "");
    let text = text.replace(", \"optimum_distance\", \"optimum_bound_ms\"", "");
    let findings = findings(&text);
    let json = serde_json::to_string(&findings).expect("it can be written");
    assert!(json.contains("\"optimum_distance\":null"), "{json}");
    let again: Findings = serde_json::from_str(&json).expect("it can be read");
    assert_eq!(serde_json::to_string(&again).ok().as_ref(), Some(&json));
    assert_eq!(again.markdown(), findings.markdown());
    assert_eq!(again.figures(), findings.figures());
}

#[test]
fn requests_and_the_optimum_are_measured() {
    let findings = findings(SCENARIO);
    let point = &findings.series[0].points[1];
    for policy in ["fifo", "window"] {
        let get = |metric| findings.get(point, policy, metric);
        assert!(get(Metric::LatencyP50) > get(Metric::WaitMean).min(1.0));
        assert!(get(Metric::LatencyP99) >= get(Metric::LatencyP95));
        assert!(get(Metric::LagMax) > 0.0);
        let bound = get(Metric::OptimumBoundMs);
        let completion = get(Metric::ApplicationCompletionMean);
        assert!(bound > 0.0 && bound < completion, "{bound} {completion}");
        let distance = 100.0 * (completion / bound - 1.0);
        assert!((get(Metric::OptimumDistance) - distance).abs() < 1e-9);
    }
    assert_eq!(findings.get(point, "fifo", Metric::Efficiency), 1.0);
}

#[test]
fn figures_have_the_papers_numbers() {
    let figures = findings(SCENARIO).figures();
    let labels: Vec<_> = figures.iter().map(|it| it.y_label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "mean completion, ms",
            "mean completion, ms: change against fifo, %",
            "makespan, ms"
        ]
    );
    let published = |number: usize| {
        let series: &Vec<_> = &figures[number].series;
        let mut published = series.iter().filter(|series| series.from_paper);
        published.next().map(|series| series.points.clone())
    };
    assert_eq!(published(0), None);
    assert_eq!(published(1), Some(vec![(1.0, -10.0), (2.0, -10.0)]));
    assert_eq!(published(2), Some(vec![(2.0, 3.0)]));
    assert_eq!(figures[0].series.len(), 2);

    let one = SCENARIO
        .replace("vary =", "# vary =")
        .replace("x = 2.0", "");
    let bars = findings(&one).figures();
    assert_eq!(
        bars[0].kind,
        Kind::Bars {
            groups: vec![String::new()]
        }
    );
    assert_eq!(bars[1].series[1].points, [(0.0, -10.0)]);
}

#[test]
fn markdown_says_what_holds_and_why() {
    let text = findings(SCENARIO).markdown();
    assert!(text.starts_with("## t: Reads \\| of two\n\n- Paper: A paper.\n- Protocol"));
    assert!(text.contains("\n| forwarders | fifo | window | window vs fifo |\n| --- | ---: |"));
    assert!(
        text.contains(" reproduced |") && text.contains(" DOES NOT HOLD |"),
        "{text}"
    );
    let tested = SCENARIO.replace("tests = \"describes\"", "");
    let tested = findings(&tested).markdown();
    assert!(tested.contains(" HOLDS WITHOUT THE POLICY |"), "{tested}");
    assert!(text.contains(", at 1: Other disks.\n"), "{text}");
    assert!(text.ends_with("\nFirst line.\n\nSecond.\n\n"), "{text}");
}

#[test]
fn claims_are_counted_and_those_that_say_nothing_are_named() {
    let tested = SCENARIO.replace("tests = \"describes\"", "");
    let all = [findings(SCENARIO), findings(&tested)];
    let lines = counts(all.iter());
    assert_eq!(
        lines[..2],
        [
            "Numbers of papers: 6 (4 reproduced, 0 differ, 2 not comparable).",
            "Claims: 6 (4 test a policy, 2 describe); 2 do not hold; 2 that test a policy hold as \
             well when it is replaced by its baseline."
        ]
    );
    let named = |words: &str| lines[2..].iter().filter(|it| it.ends_with(words)).count();
    assert_eq!(named(": does not hold."), 2, "{lines:?}");
    assert_eq!(named(": holds without the policy."), 2, "{lines:?}");
    assert!(counts([].into_iter()).is_empty());
}

#[test]
fn numbers_are_short() {
    let cases = [
        (0.0, "0"),
        (12.0, "12"),
        (0.12341, "0.1234"),
        (1.005, "1.00"),
        (123.45, "123.5"),
        (98765.4, "98765"),
        (f64::NAN, "-"),
        (f64::INFINITY, "-"),
    ];
    for (value, text) in cases {
        assert_eq!(number(value), text);
    }
}
