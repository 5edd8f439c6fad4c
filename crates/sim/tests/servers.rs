//! Storage servers behind the forwarders: times computed by hand, and what must hold of any load.

use tidegate_sim::result::{Metric, Outcome};
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// Ports move a byte in 10 ns, and nothing takes time on the way. A request has 166 bytes, an
/// answer 150, each beside its payload. A server's or forwarder's process takes 20 us of each
/// message, and the device 1 ms of each call.
const HEAD: &str = r#"
title = "One request"
protocol = "closed loop"
policy = [{ policy = "fifo", label = "direct", direct = true }, { policy = "fifo" }]
network = { preset = "gigabit-ethernet", latency = "0 us", bandwidth_mb_s = 100 }
forwarders = { count = 1, open_sessions = false }
servers = { count = 1 }
device = { model = "ideal" }
application = [{ workload = "ior", request = "4 KiB" }]
figure = { metric = "makespan", also = ["utilisation", "back_end_calls", "aggregation_kib"] }
"#;

fn outcome_of(text: &str, threads: usize) -> Outcome {
    let scenario = Scenario::parse(text, "t.toml", "t").expect("it is right");
    runner::run(&scenario, threads, &|_, _| {}).unwrap_or_else(|error| panic!("{error}"))
}

/// Makespans in ns, of direct and of forwarded access, with these changes of the text.
fn makespans(changes: &[(&str, &str)]) -> [u64; 2] {
    let mut text = HEAD.to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let outcome = outcome_of(&text, 2);
    [0, 1].map(|policy| (outcome.get(0, 0, policy, Metric::Makespan) * 1e6).round() as u64)
}

const REQUEST: u64 = 1660;
const PROCESS: u64 = 20_000;
const DEVICE: u64 = 1_000_000;
/// An answer with 4 KiB.
const ANSWER: u64 = 42_460;

#[test]
fn one_read_passes_ports_processes_and_the_device() {
    let direct = REQUEST + PROCESS + DEVICE + ANSWER;
    let hop = opened() + REQUEST + PROCESS + ANSWER;
    assert_eq!(makespans(&[]), [direct, direct + hop]);
}

/// The first access opens a session: one more request and its answer.
fn opened() -> u64 {
    let with = makespans(&[]);
    let without = makespans(&[("open_sessions = false", "open_sessions = true")]);
    assert_eq!(with[0], without[0]);
    with[1] - without[1]
}

#[test]
fn the_last_stripe_to_arrive_ends_a_call() {
    // Two stripes at two servers: their answers share the port of the node, and before it that of
    // the forwarder.
    let two = [
        ("4 KiB", "128 KiB"),
        ("servers = { count = 1", "servers = { count = 2"),
    ];
    let answer = (150 + 65_536) * 10;
    let direct = REQUEST + PROCESS + DEVICE + 2 * answer;
    let hop = opened() + REQUEST + PROCESS + (150 + 131_072) * 10;
    assert_eq!(makespans(&two), [direct, direct + hop]);
    // The same bytes of one server lie together there: one call in one piece.
    let one = [("4 KiB", "128 KiB")];
    let direct = REQUEST + PROCESS + DEVICE + (150 + 131_072) * 10;
    assert_eq!(makespans(&one), [direct, direct + hop]);
}

#[test]
fn ports_of_nodes_forwarders_and_servers_have_their_own_bandwidths() {
    let slow_server = [(
        "servers = { count = 1",
        "servers = { count = 1, bandwidth_mb_s = 10",
    )];
    let direct = 10 * REQUEST + PROCESS + DEVICE + 10 * ANSWER;
    let hop = opened() + REQUEST + PROCESS + ANSWER;
    assert_eq!(makespans(&slow_server), [direct, direct + hop]);
    // The session is opened before: its messages pass that port too.
    let slow_forwarder = [(
        "forwarders = { count = 1, open_sessions = false",
        "forwarders = { count = 1, bandwidth_mb_s = 10",
    )];
    let direct = REQUEST + PROCESS + DEVICE + ANSWER;
    let forwarded = 2 * (10 * REQUEST + PROCESS) + DEVICE + 2 * 10 * ANSWER;
    assert_eq!(makespans(&slow_forwarder), [direct, forwarded]);
}

#[test]
fn a_server_that_is_busy_keeps_requests_in_order_of_arrival() {
    let four = [("\"4 KiB\"", "\"4 KiB\", processes = 4")];
    let [direct, forwarded] = makespans(&four);
    assert_eq!(direct, REQUEST + PROCESS + 4 * DEVICE + ANSWER);
    assert!(forwarded > direct);
    let threads = [
        four[0],
        (
            "servers = { count = 1",
            "servers = { count = 1, threads = 2",
        ),
        ("\"ideal\"", "\"ideal\", depth = 2"),
    ];
    let [direct, _] = makespans(&threads);
    // The third begins with the end of the first, the fourth with that of the second; its answer
    // waits for that of the third.
    assert_eq!(direct, REQUEST + PROCESS + 2 * DEVICE + 2 * ANSWER);
}

#[test]
fn writes_end_in_the_page_cache_and_an_fsync_at_the_device() {
    let write = |more: &str| format!("\"4 KiB\", requests = 5, direction = \"write\"{more}");
    let cache = (
        "servers = { count = 1",
        "servers = { count = 1, cache = \"10 MiB\"",
    );
    let each = REQUEST + 40_960 + PROCESS + 1500;
    let [direct, _] = makespans(&[("\"4 KiB\"", &write("")), cache]);
    assert_eq!(direct, 5 * each);
    // The first is written back by itself, the other four lie together; then there is nothing left
    // to do but to ask and answer.
    let [direct, _] = makespans(&[("\"4 KiB\"", &write(", fsync = true")), cache]);
    let first_begins = REQUEST + 40_960 + PROCESS;
    assert_eq!(direct, first_begins + 2 * DEVICE + 1500);
    let [direct, _] = makespans(&[("\"4 KiB\"", &write(""))]);
    assert_eq!(direct, 5 * (each + DEVICE));
}

/// Many processes, all ways through forwarders and past them.
const LOAD: &str = r#"
title = "A load"
protocol = "closed loop"
policy = [
    { policy = "fifo", label = "direct", direct = true },
    { policy = "fifo" }, { policy = "window" }, { policy = "two-level" }, { policy = "aioli" },
    { policy = "round-robin" }, { policy = "wfq" },
]
network = { preset = "myrinet-10g", jitter = "1 ms" }
forwarders = { count = 3, depth = 4 }
servers = { count = 4, threads = 2 }
device = { model = "hdd-ncq" }
application = [
    { workload = "ior", processes = 12, request = "300 KiB", requests = 4,
      direction = "write", fsync = true },
    { workload = "ior", processes = 12, request = "7 KiB", requests = 10, pattern = "random" },
]
figure.metric = "makespan"
figure.also = ["utilisation", "bandwidth", "aggregation_kib", "back_end_calls"]
series = [
    { name = "plain" },
    { name = "cache", set = { "servers.cache" = "1 GiB" } },
    { name = "small cache", set = { "servers.cache" = "1 MiB" } },
    { name = "small buffers", set = { "servers.buffer" = 4096, "servers.buffers" = 1 } },
]
"#;

fn moved_kib(outcome: &Outcome, series: usize, policy: usize) -> f64 {
    let get = |metric| outcome.get(series, 0, policy, metric);
    get(Metric::AggregationKib) * get(Metric::BackEndCalls)
}

#[test]
fn a_run_is_the_same_on_any_number_of_threads_and_moves_all_bytes() {
    let (one, two) = (outcome_of(LOAD, 1), outcome_of(LOAD, 2));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    for series in 0..4 {
        for policy in 0..7 {
            let get = |metric| one.get(series, 0, policy, metric);
            let busy = get(Metric::Utilisation);
            assert!((1.0..=100.0).contains(&busy), "{series} {policy}: {busy}");
            // 14,400 KiB and 840 KiB.
            let moved = moved_kib(&one, series, policy);
            assert!((moved - 15_240.0).abs() < 0.1, "{series} {policy}: {moved}");
        }
    }
    let bandwidth = |series| one.get(series, 0, 1, Metric::Bandwidth);
    assert!(
        bandwidth(3) < bandwidth(0),
        "one small buffer a call is slow"
    );
}

#[test]
fn a_forwarder_that_dies_leaves_its_calls_at_the_servers() {
    let fault = "fault = [{ at = \"20 ms\", forwarder = 0, kind = \"dead\" }]";
    let outcome = outcome_of(&format!("{fault}\n{LOAD}"), 2);
    for policy in 1..7 {
        // What it had begun is done again by another one.
        let moved = moved_kib(&outcome, 0, policy);
        assert!((15_240.0..16_500.0).contains(&moved), "{policy}: {moved}");
    }
}

/// What went to and from the servers' devices, in KiB.
fn at_devices_kib(outcome: &Outcome, policy: usize) -> f64 {
    let get = |metric| outcome.get(0, 0, policy, metric);
    get(Metric::DeviceBandwidth) * get(Metric::Makespan) * 1000.0 / 1024.0
}

#[test]
fn what_a_cache_absorbs_is_not_moved_by_a_device() {
    let moved = |more: &str| {
        let written = format!("\"4 KiB\", requests = 5, direction = \"write\"{more}");
        let text = HEAD.replace("\"4 KiB\"", &written);
        let cache = "servers = { count = 1, cache = \"10 MiB\"";
        let text = text.replace("servers = { count = 1", cache);
        let text = text.replace("also = [", "also = [\"device_bandwidth\", ");
        let outcome = outcome_of(&text, 2);
        [0, 1].map(|policy| at_devices_kib(&outcome, policy).round() as u64)
    };
    // All is done before the first is written back.
    assert_eq!(moved(""), [0, 0]);
    assert_eq!(moved(", fsync = true"), [20, 20]);
}

#[test]
fn a_forwarder_that_dies_sends_no_more_pieces() {
    let text = r#"
title = "A large write of each of two forwarders, one of which dies"
protocol = "closed loop"
policy = [{ policy = "fifo" }]
network = { preset = "gigabit-ethernet" }
forwarders = { count = 2, stripe = "1 MiB" }
servers = { count = 1, buffer = 4096, buffers = 1 }
device = { model = "ideal" }
application = [{ workload = "ior", request = "1 MiB", requests = 2, direction = "write" }]
fault = [{ at = "40 ms", forwarder = 0, kind = "dead" }]
figure = { metric = "makespan", also = ["device_bandwidth"] }
"#;
    let moved = at_devices_kib(&outcome_of(text, 1), 0);
    // Both MiB, and of one of them what was written in 40 ms before: a piece takes 1 ms and more.
    assert!((2048.0..2048.0 + 160.0).contains(&moved), "{moved}");
}
