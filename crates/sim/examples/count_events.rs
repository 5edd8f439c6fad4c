//! Simulates so many requests of a small load like Song's figure 7, for counting instructions:
//! tools/instructions divides them by the events that it prints.

use std::process::ExitCode;
use tidegate_sim::result::Metric;
use tidegate_sim::runner;
use tidegate_sim::scenario::Scenario;

/// Requests of one round: ten programs of eight processes, each call over two forwarders.
const ROUND: u64 = 160;

fn scenario(policy: &str, requests: u64) -> String {
    let rounds = (requests / ROUND).max(1);
    format!(
        r#"
title = "Ten programs read in rounds"
protocol = "closed loop"
policies = ["{policy}"]
network = {{ preset = "gigabit-ethernet" }}
forwarders = {{ count = 8, stripe = "64 KiB" }}
device = {{ model = "hdd-7200" }}
application = [
    {{ workload = "ior", copies = 10, processes = 8, request = "128 KiB", requests = {rounds},
       barrier = true }},
]
figure = {{ metric = "events" }}
"#
    )
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let requests = arguments.get(1).and_then(|count| count.parse().ok());
    let (Some(policy), Some(requests)) = (arguments.first(), requests) else {
        eprintln!("usage: count_events POLICY N");
        return ExitCode::FAILURE;
    };
    let scenario = Scenario::parse(&scenario(policy, requests), "count_events", "count");
    let outcome = scenario.and_then(|scenario| runner::run(&scenario, 1, &|_, _| {}));
    match outcome {
        Ok(outcome) => {
            let events = outcome.get(0, 0, 0, Metric::Events);
            println!("{events} events of {requests} requests");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("count_events: {error}");
            ExitCode::FAILURE
        }
    }
}
