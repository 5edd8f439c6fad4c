//! Tests of when calls are made, and of what programs cost before they run.

use super::*;

#[test]
fn think_time_is_between_calls() {
    let text = "request = 1\nrequests = 3\nthink = '1 ms'\nthink_max = '2 ms'";
    let steps = all_steps(&workload("ior", text, 1), 1, 3);
    let [
        Step::Call(_),
        Step::Think(a),
        Step::Call(_),
        Step::Think(b),
        Step::Call(_),
    ] = steps[0][..]
    else {
        panic!("{:?}", steps[0]);
    };
    assert!(a != b && (1_000_000..=2_000_000).contains(&a) && (1_000_000..=2_000_000).contains(&b));
}

#[test]
fn calls_come_at_their_times_whatever_the_answers_do() {
    // 4 processes ask for 8 calls of 1 MB: one each 0.5 ms, faster than the network carries them.
    let text = "request = '1 MB'\nrequests = 2\nrate = '2 GB'\non = '2 ms'\noff = '10 ms'";
    let outcome = run(&workload("ior", text, 4), 4, 50_000_000);
    let mut times: Vec<u64> = outcome.accesses.iter().map(|call| call.issued_ns).collect();
    times.sort_unstable();
    let expected: Vec<u64> = (0..8u64)
        .map(|call| 50_000_000 + call * 500_000 + call / 4 * 10_000_000)
        .collect();
    assert_eq!(times, expected);
    let text = "request = 1\nrequests = 20\ninterval = '1 ms'\njitter = '300 us'";
    let outcome = run(&workload("ior", text, 1), 1, 0);
    let mut late: Vec<u64> = outcome.accesses.iter().map(|call| call.issued_ns).collect();
    late.sort_unstable();
    let late = (0..).zip(late).map(|(call, at)| at - call * 1_000_000);
    assert!(late.clone().all(|late| late <= 300_000) && late.collect::<BTreeSet<_>>().len() > 10);
}

#[test]
fn who_waits_for_answers_makes_no_call_too_late() {
    // A process asks each 2 ms for what the devices do in 10 ms: ten blocks each.
    let text =
        "request = '80 KiB'\nrequests = 30\ninterval = '2 ms'\nwaits = true\ndirection = 'write'";
    let outcome = run(&workload("ior", text, 1), 1, 3_000_000);
    let calls = &outcome.accesses;
    assert!((4..=10).contains(&calls.len()), "{} calls", calls.len());
    for two in calls.windows(2) {
        assert!(two[0].completed_ns <= two[1].issued_ns, "one at a time");
    }
    let last = calls.last().expect("there are some").issued_ns;
    assert!(last < 3_000_000 + 30 * 2_000_000, "the last at {last}");
    // Nothing is left out when there is time.
    let text =
        "request = 1\nrequests = 20\ninterval = '5 ms'\nwaits = true\non = '20 ms'\noff = '1 s'";
    let outcome = run(&workload("ior", text, 2), 2, 0);
    assert_eq!(outcome.accesses.len(), 40);
    let late = |call: &world::Operation| call.issued_ns % 1_020_000_000;
    assert!(outcome.accesses.iter().all(|call| late(call) < 20_000_000));
}

#[test]
fn after_the_stonewall_no_call_is_made() {
    let text = "request = '40 KiB'\nrequests = 100\nstonewall = '50 ms'";
    let outcome = run(&workload("ior", text, 2), 2, 1_000_000);
    let issued = outcome.accesses.iter().map(|call| call.issued_ns);
    assert!(issued.clone().count() > 4 && issued.clone().all(|at| at < 51_000_000));
    let last = issued.max().unwrap_or(0);
    assert!(last > 20_000_000 && outcome.end_ns < 150_000_000, "{last}");
}

#[test]
fn many_processes_cost_little() {
    let text = "direction = 'write'\nrequest = '1 MiB'\nrequests = 100\nbarrier = true";
    let ior = workload("ior", text, 10_000);
    let programs = ior.programs(10_000, 10, place(), &mut Rng::new(1));
    let bytes = programs.iter().map(|program| size_of_val(&**program));
    assert!(bytes.sum::<usize>() < 10_000 * 128);
    let text = "class = 'B'\nsteps = 1\ncollective = true\naggregators = 64";
    let btio = workload("btio", text, 10_000);
    let programs = btio.programs(10_000, 10, place(), &mut Rng::new(1));
    let bytes = programs.iter().map(|program| size_of_val(&**program));
    assert!(bytes.sum::<usize>() < 10_000 * 128);
}
