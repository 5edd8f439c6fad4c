//! 200 worlds with faults, each from its seed. `TIDEGATE_SEED=17` runs one of them,
//! `TIDEGATE_SEEDS=1000..3000` a range.

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_sim::faults::{LoanMutant, Mutant, Plan, run};

fn seeds() -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        let seed = seed.parse().expect("TIDEGATE_SEED is a number");
        return seed..seed + 1;
    }
    let Ok(range) = std::env::var("TIDEGATE_SEEDS") else {
        return 0..200;
    };
    let (first, end) = range
        .split_once("..")
        .expect("TIDEGATE_SEEDS is FIRST..END");
    let number = |text: &str| text.parse().expect("TIDEGATE_SEEDS is FIRST..END");
    number(first)..number(end)
}

/// A kind of world, and the command that replays a seed of it.
#[derive(Clone, Copy)]
struct Kind {
    plan: fn(u64) -> Plan,
    test: &'static str,
}

const ONE_NODE: Kind = Kind {
    plan: Plan::from_seed,
    test: "every_answer_is_right_whatever_fails",
};
const SHARING: Kind = Kind {
    plan: Plan::of_sharing,
    test: "nobody_sees_an_old_name_or_size",
};
const CLUSTER: Kind = Kind {
    plan: Plan::of_cluster,
    test: "every_answer_is_right_on_several_nodes",
};

fn run_plan(plan: Plan, test: &str) -> Result<(), String> {
    let seed = plan.seed;
    let outcome = std::panic::catch_unwind(|| run(plan.clone()));
    let error = match outcome {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => "panicked".into(),
    };
    Err(format!(
        "seed {seed}: {error}\n  {plan:?}\n  \
         replay: TIDEGATE_SEED={seed} cargo test -p tidegate-sim --test faults {test}"
    ))
}

/// Runs all seeds on two threads.
fn all_hold(kind: Kind) {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(failure) = run_plan((kind.plan)(seed), kind.test) {
                        eprintln!("{failure}");
                        failures.lock().expect("no panic inside").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic inside");
    assert!(
        failures.is_empty(),
        "{} of {seeds:?} failed",
        failures.len()
    );
}

#[test]
fn every_answer_is_right_whatever_fails() {
    all_hold(ONE_NODE);
}

#[test]
fn every_answer_is_right_on_several_nodes() {
    all_hold(CLUSTER);
}

#[test]
fn nobody_sees_an_old_name_or_size() {
    all_hold(SHARING);
}

/// The rules for what is lent are there for a reason, too.
#[test]
fn without_any_rule_of_loans_somebody_sees_something_old() {
    for mutant in [
        LoanMutant::TooLong,
        LoanMutant::KeptOnRecall,
        LoanMutant::KeptInCache,
    ] {
        let sees_old = |seed: &u64| {
            let mut plan = Plan::of_sharing(*seed);
            plan.loan_mutant = Some(mutant);
            let failed = run_plan(plan, SHARING.test);
            failed.is_err_and(|error| error.contains("an old "))
        };
        let caught = (0..200).find(sees_old);
        println!("{mutant:?}: seed {caught:?}");
        assert!(caught.is_some(), "{mutant:?} goes unnoticed");
    }
}

/// Every guarantee is there for a reason: without it, some seed of the 200 fails.
#[test]
fn without_any_guarantee_some_seed_fails() {
    let mutants = [
        Mutant::NoFence,
        Mutant::NoGeneration,
        Mutant::CachedTable,
        Mutant::CachedSize,
        Mutant::CachedData,
        Mutant::NoWait,
        Mutant::CopiesTrusted,
    ];
    for mutant in mutants {
        let fails = |seed: &u64| {
            let mut plan = Plan::of_cluster(*seed);
            let cluster = plan.cluster.as_mut().expect("it has several nodes");
            cluster.mutant = Some(mutant);
            run_plan(plan, CLUSTER.test)
                .inspect_err(|error| println!("{mutant:?}: {error}"))
                .is_err()
        };
        let caught = (0..200).find(fails);
        assert!(caught.is_some(), "{mutant:?} goes unnoticed");
    }
}

#[test]
fn the_same_seed_gives_the_same_world() {
    for seed in [3, 11] {
        let report = |_| run(Plan::from_seed(seed)).expect("the world holds");
        assert_eq!(report(0), report(1), "seed {seed}");
    }
}
