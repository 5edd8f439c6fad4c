//! 200 worlds with faults, each from its seed. `TIDEGATE_SEED=17` runs one of them,
//! `TIDEGATE_SEEDS=1000..3000` a range.

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_sim::faults::{Plan, run};

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

fn run_seed(seed: u64) -> Result<(), String> {
    let plan = Plan::from_seed(seed);
    let outcome = std::panic::catch_unwind(|| run(plan.clone()));
    let error = match outcome {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => "panicked".into(),
    };
    Err(format!(
        "seed {seed}: {error}\n  {plan:?}\n  \
         replay: TIDEGATE_SEED={seed} cargo test -p tidegate-sim --test faults"
    ))
}

#[test]
fn every_answer_is_right_whatever_fails() {
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
                    if let Err(failure) = run_seed(seed) {
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
fn the_same_seed_gives_the_same_world() {
    for seed in [3, 11] {
        let report = |_| run(Plan::from_seed(seed)).expect("the world holds");
        assert_eq!(report(0), report(1), "seed {seed}");
    }
}
