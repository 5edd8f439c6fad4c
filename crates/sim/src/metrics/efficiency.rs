//! How much of a platform's time goes into computing: SysEfficiency, as defined for applications
//! that compute and do I/O by turns (Gainaru et al.; Aupy, Gainaru, Le Fevre).

use super::ratio;

/// How far one application came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The nodes (or processors) that it holds.
    pub nodes: u64,
    /// The time that it computed.
    pub worked_ns: u64,
    /// The time since it started, waits for I/O included.
    pub elapsed_ns: u64,
}

/// `(1/N) sum nodes_k * worked_k / elapsed_k` over `nodes` nodes: the share of the platform that
/// computes. An application that has not started (elapsed 0) adds nothing; without nodes it is 0.
pub fn sys_efficiency(nodes: u64, applications: &[Progress]) -> f64 {
    let working: f64 = applications
        .iter()
        .map(|app| app.nodes as f64 * ratio(app.worked_ns as f64, app.elapsed_ns as f64))
        .sum();
    ratio(working, nodes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_hand() {
        let applications = [
            // Half of its time computing, on 6 of 10 nodes.
            Progress {
                nodes: 6,
                worked_ns: 60,
                elapsed_ns: 120,
            },
            // A quarter, on 4.
            Progress {
                nodes: 4,
                worked_ns: 10,
                elapsed_ns: 40,
            },
        ];
        assert!((sys_efficiency(10, &applications) - 0.4).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_zero() {
        assert_eq!(sys_efficiency(0, &[]), 0.0);
        let idle = Progress {
            nodes: 1,
            worked_ns: 0,
            elapsed_ns: 0,
        };
        assert_eq!(sys_efficiency(1, &[idle]), 0.0);
    }
}
