//! What a seed decides: the size of the world and its faults.

use super::network::NetworkOptions;
use crate::rng::Rng;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A forwarder's process is killed; it starts again after so many ns, or never.
    Kill {
        /// Which.
        forwarder: usize,
        /// When it is back.
        back_after: Option<u64>,
    },
    /// A forwarder's process stops for so many ns and goes on (SIGSTOP, SIGCONT).
    Pause {
        /// Which.
        forwarder: usize,
        /// For how long.
        pause: u64,
    },
    /// A connection is cut, the so-many-th of the open ones.
    Cut {
        /// Its number, modulo how many there are.
        number: u64,
    },
}

/// A world and its faults, all from one seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Number of forwarders, and of seats.
    pub forwarders: usize,
    /// Number of clients.
    pub clients: usize,
    /// Programs of each client.
    pub programs: usize,
    /// Operations of each program.
    pub steps: u32,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Bytes of the pool of each forwarder.
    pub pool_bytes: u64,
    /// Requests that a session may have unanswered.
    pub credits: u32,
    /// The policy of the schedulers.
    pub policy: &'static str,
    /// Clients join the blocks of one seat to one request.
    pub merge_blocks: bool,
    /// The network.
    pub network: NetworkOptions,
    /// Faults and their times in ns.
    pub faults: Vec<(u64, Fault)>,
}

const MS: u64 = 1_000_000;

impl Plan {
    /// Draws a plan.
    pub fn from_seed(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let forwarders = rng.between(1, 4) as usize;
        let policies = tidegate_sched::policy::NAMES;
        let mut plan = Plan {
            seed,
            forwarders,
            clients: rng.between(1, 3) as usize,
            programs: rng.between(1, 3) as usize,
            steps: rng.between(60, 300) as u32,
            stripe: 4096,
            pool_bytes: [256 << 10, 4 << 20][rng.below(2) as usize],
            credits: rng.between(2, 24) as u32,
            policy: policies[rng.below(policies.len() as u64) as usize],
            merge_blocks: rng.one_in(2),
            network: NetworkOptions {
                delay_min: 10_000,
                delay_max: [50_000, 2 * MS, 40 * MS][rng.below(3) as usize],
                stall_one_in: [0, 3_000][rng.below(2) as usize],
            },
            faults: Vec::new(),
        };
        let count = rng.below(24);
        for _ in 0..count {
            let fault = plan.draw(&mut rng);
            plan.faults.push((rng.below(3_000 * MS), fault));
        }
        // One world in four loses a forwarder for good, if another can stand in.
        if forwarders > 1 && rng.one_in(4) {
            let forwarder = rng.below(forwarders as u64) as usize;
            let fault = Fault::Kill {
                forwarder,
                back_after: None,
            };
            plan.faults.push((rng.below(2_000 * MS), fault));
        }
        plan
    }

    fn draw(&self, rng: &mut Rng) -> Fault {
        let forwarder = rng.below(self.forwarders as u64) as usize;
        match rng.below(3) {
            0 => Fault::Kill {
                forwarder,
                back_after: Some(rng.between(MS, 1_000 * MS)),
            },
            1 => Fault::Pause {
                forwarder,
                pause: rng.between(MS, 500 * MS),
            },
            _ => Fault::Cut { number: rng.draw() },
        }
    }
}
