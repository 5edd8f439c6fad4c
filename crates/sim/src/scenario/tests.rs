//! What a scenario must not say: each with its file, line and reason.

use super::*;
use crate::world;

const HEAD: &str = r#"title = "t"
protocol = "p"
policies = ["fifo", "window"]
network = { preset = "gigabit-ethernet" }
forwarders = { count = 1 }
device = { model = "ideal" }
application = [{ workload = "ior", request = "4 KiB", requests = 5 }]
"#;

const FIGURE: &str = "figure = { metric = \"makespan\" }\n";

const SLOW: &str = "fault = [{ at = \"1 s\", forwarder = 0, kind = \"slow\", percent = 200 }]";

fn refused(text: &str) -> String {
    match Scenario::parse(text, "t.toml", "t") {
        Ok(_) => format!("this is taken: {text}"),
        Err(error) => error.to_string(),
    }
}

/// Checks what is said of lines that follow the figure, which is line 8.
fn assert_refused(cases: &[(&str, &str)]) {
    for (lines, said) in cases {
        let error = refused(&format!("{HEAD}{FIGURE}{lines}"));
        assert!(error.starts_with(said), "{lines}\n{error}\n{said}");
    }
}

#[test]
fn a_plain_one_is_taken() {
    let text = format!("{HEAD}{FIGURE}");
    assert!(Scenario::parse(&text, "t.toml", "t").is_ok());
}

#[test]
fn wrong_keys_of_the_figure_are_found() {
    let said = refused(&format!(
        "{HEAD}[figure]\nmetric = \"makespan\"\nmetrix = 1\n"
    ));
    let expected = "t.toml:10: figure.metrix: unknown field `metrix`";
    assert!(said.starts_with(expected), "{said}");
    let said = refused(&format!("{HEAD}[figure]\nmetric = \"makespam\"\n"));
    let expected = "t.toml:9: figure.metric: unknown variant `makespam`";
    assert!(said.starts_with(expected), "{said}");
    let said = refused(HEAD);
    assert!(said.starts_with("t.toml:1: no [figure]"), "{said}");
}

#[test]
fn times_counts_and_percents_are_bounded() {
    let long = "\"18446744073709551615 ns\" is too long: at most a year";
    for (from, to, place) in [
        (
            "t\" }",
            "t\", jitter = \"18446744073709551615 ns\" }",
            "4: network.jitter",
        ),
        (
            "s = 5",
            "s = 5, start_spread = \"18446744073709551615 ns\"",
            "7: application[0].start_spread",
        ),
        (
            "count = 1",
            "count = 1, request_time = \"18446744073709551615 ns\"",
            "5: forwarders.request_time",
        ),
    ] {
        let text = format!("{HEAD}{FIGURE}").replacen(from, to, 1);
        let expected = format!("t.toml:{place}: {long}");
        assert!(refused(&text).starts_with(&expected), "{}", refused(&text));
    }
    assert_refused(&[
        (
            "clock_skew = \"18446744073709551615 ns\"",
            &format!("t.toml:9: clock_skew: {long}"),
        ),
        (
            "\nfault = [{ at = \"18446744073709551615 ns\", forwarder = 0, kind = \"dead\" }]",
            &format!("t.toml:10: fault[0].at: {long}"),
        ),
        (
            "[[fault]]\nat = \"1 s\"\nforwarder = 0\nkind = \"slow\"\npercent = 1000001\n",
            "t.toml:13: fault[0].percent: 1 to 1000000 are possible",
        ),
        (
            "repetitions = 4294967295",
            "t.toml:9: repetitions: 1 to 10000 are possible",
        ),
        ("repetitions = 0", "t.toml:9: repetitions: 1 to 10000"),
        (
            "seed = 18446744073709551615",
            "t.toml:9: seed: is too large: at most 9223372036854775807",
        ),
    ]);
}

#[test]
fn programs_are_counted_before_they_are_built() {
    for (add, said) in [
        (
            "copies = 4294967295",
            "copies: that makes 4294967295 processes of all applications; at most 1048576",
        ),
        (
            "copies = 4294967295, processes = 4294967295",
            "processes: that makes 18446744065119617025 processes of all",
        ),
        (
            "copies = 1025",
            "copies: that makes 1025 nodes of all applications; at most 1024",
        ),
        (
            "processes = 1048576",
            "processes: that makes 131072 nodes of all applications; at most 1024",
        ),
    ] {
        let add = format!("requests = 5, {add}");
        let text = format!("{HEAD}{FIGURE}").replace("requests = 5", &add);
        let expected = format!("t.toml:7: application[0].{said}");
        assert!(refused(&text).starts_with(&expected), "{}", refused(&text));
    }
}

#[test]
fn points_and_series_are_told_apart() {
    assert_refused(&[
        (
            "[vary]\nkey = \"forwarders.count\"\nvalues = []\n",
            "t.toml:11: vary.values: there is no value",
        ),
        (
            "[vary]\nkey = \"forwarders.count\"\nvalues = [1,\n 1]\n",
            "t.toml:12: vary.values[1]: there are two points at 1",
        ),
        (
            "[vary]\nkey = \"application.copies\"\nvalues = [1, 1025]\n",
            "t.toml:7: application[0].copies: that makes 1025 nodes of all applications; at most \
             1024 (x = 1025)",
        ),
        (
            "[[point]]\nx = nan\n",
            "t.toml:10: point[0].x: NaN is no place",
        ),
        (
            "[[point]]\nx = inf\n",
            "t.toml:10: point[0].x: inf is no place",
        ),
        (
            "[[point]]\nx = 2\n[[point]]\nx = 2.0\n",
            "t.toml:12: point[1].x: there are two points at 2",
        ),
        (
            "[[series]]\nname = \"a\"\n[[series]]\nname = \"a\"\n",
            "t.toml:12: series[1].name: two series are called \"a\"",
        ),
    ]);
}

#[test]
fn claims_say_something_that_can_hold() {
    let claim = "[[claim]]\npolicy = \"fifo\"\nmetric = \"makespan\"\n";
    let cases = [
        ("", "9: claim[0]: claims nothing"),
        ("paper = 3.0\n", "9: claim[0]: claims nothing"),
        (
            "min = 2.0\nmax = 1.0\n",
            "12: claim[0].min: no number is 2 at least and 1 at most",
        ),
        (
            "max = 1.0\nmean = true\nspread = true\n",
            "13: claim[0].mean: either mean or spread",
        ),
        ("max = nan\n", "12: claim[0].max: NaN is no number"),
        ("max = 1.0\nx = nan\n", "13: claim[0].x: there is no point"),
    ];
    for (lines, said) in cases {
        assert_refused(&[(&format!("{claim}{lines}"), &format!("t.toml:{said}"))]);
    }
}

#[test]
fn servers_are_whole() {
    for (keys, said) in [
        ("count = 0", "9: servers.count: 1 to 1024 are possible"),
        ("count = 1025", "9: servers.count: 1 to 1024"),
        ("stripe = 4096", "9: servers: missing field `count`"),
        (
            "count = 1, stripes = 1",
            "9: servers.stripes: unknown field `stripes`",
        ),
        (
            "count = 1, stripe = 5000",
            "9: servers.stripe: a stripe of 5000 bytes: a power of two",
        ),
        (
            "count = 1, bandwidth_mb_s = 0",
            "9: servers.bandwidth_mb_s: must be positive",
        ),
        (
            "count = 1, buffer = 4095",
            "9: servers.buffer: at least 4096 bytes",
        ),
        (
            "count = 1, buffers = 0",
            "9: servers.buffers: must be 1 to 4096",
        ),
        (
            "count = 1, threads = 0",
            "9: servers.threads: must be positive",
        ),
        (
            "count = 1, dirty = 4096",
            "9: servers.dirty: 4096 bytes of a cache of 0",
        ),
        (
            "count = 1, cache = \"2000000 GiB\"",
            "9: servers.cache: at most",
        ),
    ] {
        assert_refused(&[(
            &format!("servers = {{ {keys} }}\n"),
            &format!("t.toml:{said}"),
        )]);
    }
}

#[test]
fn what_needs_servers_has_them_and_what_they_exclude_is_refused() {
    let with = |from: &str, to: &str, more: &str| {
        let text = format!("{HEAD}{FIGURE}{more}");
        assert!(text.contains(from), "{from}");
        refused(&text.replace(from, to))
    };
    let servers = "servers = { count = 1 }\n";
    let direct = "policy = [{ policy = \"fifo\", direct = true }]";
    let policies = "policies = [\"fifo\", \"window\"]";
    for (said, expected) in [
        (
            with("{ count = 1 }", "{ count = 1, depth = 2 }", ""),
            "t.toml:5: forwarders.depth: is that of the device",
        ),
        (
            with(
                "forwarders = { count = 1 }",
                "forwarders = { count = 1, depth = 0 }",
                servers,
            ),
            "t.toml:5: forwarders.depth: 1 to 4096",
        ),
        (
            with("{ count = 1 }", "{ count = 1, bandwidth_mb_s = 0 }", ""),
            "t.toml:5: forwarders.bandwidth_mb_s: must be positive",
        ),
        (
            with(policies, direct, ""),
            "t.toml:3: policy.direct: fifo: there are no [servers]",
        ),
        (
            with(policies, &direct.replace("true", "1"), servers),
            "t.toml:3: policy[0].direct: takes true",
        ),
        (
            with(policies, &direct.replace("fifo", "window"), servers),
            "t.toml:3: policy[0].direct: nothing is scheduled",
        ),
        (
            with(" }\nservers", ", optimum = true }\nservers", servers),
            "t.toml:8: figure.optimum: is known where each forwarder has a device",
        ),
        (
            with("\nservers", &format!("\n{SLOW}\nservers"), servers),
            "t.toml:5: forwarders: a forwarder has no device that could be slow",
        ),
    ] {
        assert!(said.starts_with(expected), "{said}\n{expected}");
    }
}

#[test]
fn metrics_need_their_switches() {
    for (metric, switch) in [
        ("stretch_mean", "alone"),
        ("latency_p95", "requests"),
        ("lag_max", "requests"),
        ("optimum_distance", "optimum"),
    ] {
        let needs = format!("{metric} needs {switch} = true in [figure]");
        let as_main = FIGURE.replace("makespan", metric);
        let said = format!("t.toml:8: figure.metric: {needs}");
        assert_eq!(refused(&format!("{HEAD}{as_main}")), said);
        let also = FIGURE.replace(" }", &format!(", also = [\"events\", \"{metric}\"] }}"));
        let said = format!("t.toml:8: figure.also[1]: {needs}");
        assert_eq!(refused(&format!("{HEAD}{also}")), said);
        let claim = format!(
            "[[claim]]\npolicy = \"fifo\"\nmetric = \"{metric}\"\nmax = 1.0\n\
             tests = \"describes\"\n"
        );
        let said = format!("t.toml:11: claim[0].metric: {needs}");
        assert_eq!(refused(&format!("{HEAD}{FIGURE}{claim}")), said);
        let on = FIGURE.replace(" }", &format!(", {switch} = true }}"));
        let taken = Scenario::parse(&format!("{HEAD}{on}{claim}"), "t.toml", "t");
        assert!(taken.is_ok(), "{taken:?}");
    }
}

#[test]
fn what_a_caller_changes_is_checked_too() {
    let text = format!("{HEAD}{FIGURE}");
    let scenario = Scenario::parse(&text, "t.toml", "t").expect("it is right");
    let run = |scenario: &Scenario| match crate::runner::run(scenario, 1, &|_, _| {}) {
        Ok(_) => "fine".to_string(),
        Err(error) => error.to_string(),
    };
    let with = |repetitions, seed| Scenario {
        repetitions,
        seed,
        ..scenario.clone()
    };
    assert!(run(&with(u32::MAX, 1)).starts_with("t: repetitions: 1 to 10000"));
    assert!(run(&with(1, u64::MAX)).starts_with("t: seed: 0 to"));
    assert_eq!(run(&with(2, SEED_MAX)), "fine");
}

#[test]
fn requests_that_are_kept_are_bounded() {
    let text = format!("{HEAD}{FIGURE}");
    let scenario = Scenario::parse(&text, "t.toml", "t").expect("it is right");
    let setup = |records_max| world::Setup {
        record: true,
        records_max,
        ..scenario.series[0].points[0]
            .machine
            .setup(&scenario.policies[0], 1, None)
    };
    let outcome = world::run(setup(5)).expect("there is room for all");
    assert_eq!(outcome.records.len(), 5);
    assert_eq!(outcome.totals.accesses.count(), 5);
    let error = world::run(setup(4))
        .expect_err("there are five")
        .to_string();
    assert!(error.starts_with("more than 4 requests"), "{error}");
}
