//! What is judged of a claim: whether it holds, whether it holds without the policy that it tests,
//! and what it says of the paper's number.

use tidegate_sim::result::{Reproduction, Verdict};
use tidegate_sim::runner;
use tidegate_sim::scenario::{Scenario, Tests};

const HEAD: &str = r#"
title = "Two programs on one disk"
protocol = "one-shot"
repetitions = 3
network = { preset = "gigabit-ethernet", jitter = "5 ms", overtaking = true }
forwarders = { count = 2, stripe = "64 KiB" }
device = { model = "hdd-7200" }
application = [{ workload = "ior", copies = 4, processes = 4, request = "256 KiB", requests = 4 }]
figure = { metric = "completion_mean" }
policy = [
    { policy = "fifo" },
    { policy = "window" },
    { policy = "window", label = "other", window_ms = 100, baseline = "window" },
]
"#;

fn parse(claim: &str) -> Result<Scenario, String> {
    let text = format!("{HEAD}[[claim]]\nmetric = \"completion_mean\"\n{claim}");
    Scenario::parse(&text, "test.toml", "test").map_err(|error| error.to_string())
}

/// The only claim, judged, and whether the scenario holds.
fn judged(claim: &str) -> (Verdict, bool) {
    let scenario = parse(claim).unwrap_or_else(|error| panic!("{error}"));
    let outcome = runner::run(&scenario, 2, &|_, _| {}).unwrap_or_else(|error| panic!("{error}"));
    (outcome.verdicts[0].clone(), outcome.holds())
}

#[test]
fn a_claim_that_tests_a_policy_fails_without_it() {
    let (claim, holds) = judged("policy = \"window\"\nagainst = \"fifo\"\nmax = -10\n");
    assert!(claim.holds && !claim.survives && holds, "{claim:?}");
    assert_eq!((claim.tests, claim.replaced), (Tests::Policy, Some(0.0)));
    let (low, high) = claim.interval.expect("there are three seeds");
    assert!(low < claim.ours && claim.ours < high, "{claim:?}");

    let (claim, holds) = judged("policy = \"window\"\nagainst = \"fifo\"\nmax = 10\n");
    assert!(claim.holds && claim.survives && !holds, "{claim:?}");
    let words = "policy = \"window\"\nagainst = \"fifo\"\nmax = 10\ntests = \"describes\"\n";
    let (claim, holds) = judged(words);
    assert!(claim.holds && !claim.survives && holds, "{claim:?}");
    assert_eq!(claim.replaced, None);
}

#[test]
fn a_policy_can_have_a_baseline_of_its_own() {
    let against_window = "policy = \"other\"\nagainst = \"window\"\nmin = -100\nmax = 100\n";
    let (claim, _) = judged(against_window);
    assert_eq!(claim.replaced, Some(0.0));
    let (claim, _) = judged("policy = \"other\"\nagainst = \"fifo\"\nmax = 100\n");
    assert!(
        claim.replaced.is_some_and(|value| value < -10.0),
        "{claim:?}"
    );
}

#[test]
fn a_papers_number_is_reproduced_differs_or_is_not_compared() {
    let of = |words: &str| {
        let claim = format!("policy = \"window\"\nagainst = \"fifo\"\n{words}");
        judged(&claim).0.reproduction
    };
    assert_eq!(of("max = -5\n"), None);
    let near = "min = -90\nmax = -5\npaper = -20\n";
    assert_eq!(of(near), Some(Reproduction::Reproduced));
    // How far a band with one side goes nobody knows.
    let one_sided = "max = -5\npaper = -20\nwhy = \"another disk\"\n";
    assert_eq!(of(one_sided), Some(Reproduction::Differs));
    let other = "min = -90\nmax = -5\npaper = 3\nwhy = \"another disk\"\n";
    assert_eq!(of(other), Some(Reproduction::Differs));
    let incomparable = "max = -5\npaper = 3\nnot_comparable = \"of another load\"\n";
    assert_eq!(of(incomparable), Some(Reproduction::NotComparable));
    // The claim does not hold.
    let claim =
        judged("policy = \"window\"\nagainst = \"fifo\"\nmin = -2\nmax = 0\npaper = -1\n").0;
    assert_eq!(claim.reproduction, Some(Reproduction::Differs));
}

#[test]
fn what_a_claim_must_say_is_asked_for() {
    for (claim, wanted) in [
        ("policy = \"fifo\"\nmax = 1\n", "tests = \"describes\""),
        ("policy = \"window\"\nmax = 1\npaper = 2\n", "claim[0].why"),
        (
            "policy = \"window\"\nmax = 1\nnot_comparable = \"so\"\n",
            "there is no paper's number",
        ),
        (
            "policy = \"window\"\nmax = 1\ntests = \"nothing\"\n",
            "describes",
        ),
        ("policy = \"window\"\nmax = 9\npaper = 2\n", "claim[0].why"),
        (
            "policy = \"window\"\nmax = 9\npaper = 2\nwhy = \"so\"\nnot_comparable = \"so\"\n",
            "not both",
        ),
    ] {
        let error = parse(claim).expect_err(claim);
        assert!(error.contains(wanted), "{claim}: {error}");
    }
    let of_itself = HEAD.replace("baseline = \"window\"", "baseline = \"other\"");
    let unknown = HEAD.replace("baseline = \"window\"", "baseline = \"sjf\"");
    for (text, wanted) in [
        (of_itself, "its own baseline"),
        (unknown, "no policy \"sjf\""),
    ] {
        let error = Scenario::parse(&text, "test.toml", "test").expect_err(wanted);
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

/// Beside a job with a target one that takes all that it gets, on a disk with a queue.
const DEPTHS: &str = r#"
title = "Depths of one policy"
protocol = "open loop beside a closed one"
network = { preset = "infiniband-4x" }
forwarders = { count = 1 }
device = { model = "hdd-ncq", write_cache_bytes = 0, depth = 64 }
figure = { metric = "target_kept_500ms", also = ["device_bandwidth"], promises = true }
policy = [
    { policy = "two-level", label = "all", feedback = "off" },
    { policy = "two-level", label = "one", feedback = "off", depth = 1 },
    { policy = "two-level", label = "four", feedback = "off", depth = 4 },
]
[[application]]
workload = "ior"
processes = 4
request = "64 KiB"
requests = 80
rate = "2 MB"
share = { weight = 9, latency = "100 ms" }
[[application]]
workload = "ior"
processes = 64
request = "64 KiB"
requests = 1000
measured = false
"#;

fn of_depths(claim: &str) -> Result<Verdict, String> {
    let text = format!("{DEPTHS}[[claim]]\n{claim}");
    let scenario = Scenario::parse(&text, "test.toml", "test").map_err(|it| it.to_string())?;
    let outcome = runner::run(&scenario, 2, &|_, _| {}).map_err(|it| it.to_string())?;
    Ok(outcome.verdicts[0].clone())
}

#[test]
fn the_best_of_several_depths_keeps_most_windows_and_then_moves_most() {
    let claim = |metric: &str, policy: &str, words: &str| {
        let text = format!("metric = \"{metric}\"\npolicy = \"{policy}\"\nmin = -3\n{words}");
        of_depths(&text).unwrap_or_else(|error| panic!("{error}"))
    };
    let best = "against_best = [\"one\", \"four\", \"all\"]\n";
    // One call at a time and four keep the target, all do not; four move more than one.
    let of_four = claim(
        "device_bandwidth",
        "four",
        &format!("{best}baseline = \"one\"\n"),
    );
    assert_eq!(of_four.ours, 0.0);
    assert!(
        of_four.replaced.is_some_and(|it| it < -10.0) && !of_four.survives,
        "{of_four:?}"
    );
    let of_four = claim("target_kept_500ms", "four", best);
    assert_eq!(of_four.ours, 0.0);
    assert!(
        of_four.replaced.is_some_and(|it| it < -10.0) && !of_four.survives,
        "{of_four:?}"
    );
}

#[test]
fn comparisons_with_the_best_name_policies_and_stand_alone() {
    let refused = |words: &str| {
        let text = format!("metric = \"makespan\"\npolicy = \"four\"\nmax = 9\n{words}");
        of_depths(&text).expect_err("it is refused")
    };
    let error = refused("against_best = [\"one\", \"two\"]\n");
    assert!(
        error.contains("there is no \"two\"; there are all, one, four"),
        "{error}"
    );
    let error = refused("against_best = [\"one\"]\nagainst = \"one\"\n");
    assert!(
        error.contains("without against, against_series and spread"),
        "{error}"
    );
    let error = refused("baseline = \"two\"\n");
    assert!(error.contains("claim[0].baseline"), "{error}");
    let text = DEPTHS.replace("depth = 4 }", "depth = 0 }");
    let error = Scenario::parse(&text, "test.toml", "test").expect_err("it is refused");
    assert!(error.to_string().contains("policy[2].depth"), "{error}");
}
