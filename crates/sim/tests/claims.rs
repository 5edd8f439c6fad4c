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
