//! The algorithms of AGIOS as policies of ours.

use super::config::Config;
use std::sync::Arc;
use tidegate_sched::{Options, PolicyOptions, Prediction};

/// As many requests as AGIOS puts into one aggregation.
const AGGREGATED_MAX: u32 = 16;

/// The largest weight that our policy takes.
const WEIGHT_MAX: u64 = 65_536;

/// Our policy and its options for an algorithm of AGIOS. `queues` is the program's `max_queue_id`.
/// With a prediction, `aIOLi` waits for what is foretold, as in the paper.
pub(super) fn options(
    algorithm: &str,
    config: &Config,
    queues: u32,
    prediction: Option<&Arc<Prediction>>,
) -> Options {
    let table = PolicyOptions::default();
    let (policy, merge, table) = match algorithm {
        "MLF" => ("mlf", true, table.with("quantum_bytes", config.mlf_quantum)),
        "aIOLi" => {
            // The rule of AGIOS's code, not of its paper.
            let table = table.with("quantum", "adaptive");
            let table = table.with("quantum_bytes", config.aioli_quantum);
            let kind = if prediction.is_some() {
                "recorded"
            } else {
                "off"
            };
            ("aioli", true, table.with("prediction", kind))
        }
        "SJF" => ("sjf", true, table),
        "TO" => ("time-order", false, table),
        "TO-agg" => ("time-order", true, table),
        "SW" => {
            // Applications by ascending number, as AGIOS means it.
            let table = table.with("order", "id");
            ("window", false, table.with("window_ms", config.sw_window))
        }
        "TWINS" => {
            let table = table.with("servers", u64::from(queues.max(1)));
            ("twins", false, table.with("window_us", config.twins_window))
        }
        "WFQ" => {
            let weights = weights(&config.weights);
            let table = table.with("by", "queue").with("weights", weights.as_str());
            ("wfq", false, table)
        }
        _ => ("fifo", false, table),
    };
    Options {
        merge: Some(merge),
        queued_max: config.queued_max as u32,
        depth: config.depth as u32,
        batch_bytes_max: u64::MAX,
        batch_requests_max: AGGREGATED_MAX,
        prediction: prediction.cloned(),
        table,
        ..Options::for_policy(policy)
    }
}

/// Weights by queue as text. In AGIOS they are bytes of a turn, so they may be large; only their
/// ratio matters, and it is kept as far as the largest weight of ours allows.
fn weights(weights: &[u64]) -> String {
    let max = weights.iter().copied().max().unwrap_or(1);
    let scaled = |weight: u64| match max > WEIGHT_MAX {
        true => (u128::from(weight) * u128::from(WEIGHT_MAX) / u128::from(max)).max(1) as u64,
        false => weight,
    };
    let pair = |(queue, weight): (usize, &u64)| format!("{queue}={}", scaled(*weight));
    let pairs: Vec<String> = weights.iter().enumerate().map(pair).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use super::super::config::ALGORITHMS;
    use super::*;
    use tidegate_sched::Scheduler;

    #[test]
    fn every_algorithm_is_a_policy_with_options_that_it_takes() {
        let config = Config {
            weights: vec![3, 2, 1],
            ..Config::default()
        };
        for algorithm in ALGORITHMS {
            let options = options(algorithm, &config, 3, None);
            let made = Scheduler::new(&options).map(|_| ());
            assert_eq!(made, Ok(()), "{algorithm}");
        }
    }

    #[test]
    fn weights_keep_their_ratio() {
        assert_eq!(weights(&[3, 1]), "0=3,1=1");
        assert_eq!(weights(&[1 << 40, 1 << 39, 1]), "0=65536,1=32768,2=1");
        assert_eq!(weights(&[]), "");
    }
}
