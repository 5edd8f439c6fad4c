//! The plan of a run: the size of the world and its faults, drawn from a seed.

use super::clock::Clock;
use super::network::NetworkOptions;
use crate::rng::Rng;
use tidegate_forward::model::BackEnd;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The test kills a forwarder's process; it starts again after this time in ns, or never.
    Kill {
        /// Index of the forwarder.
        forwarder: usize,
        /// Time until it is back, ns; None: never.
        back_after: Option<u64>,
    },
    /// A forwarder's process stops for this time in ns and goes on (SIGSTOP, SIGCONT).
    Pause {
        /// Index of the forwarder.
        forwarder: usize,
        /// Length, ns.
        pause: u64,
    },
    /// The test cuts a connection, by its number among the open ones.
    Cut {
        /// Its number, modulo how many there are.
        number: u64,
    },
    /// A forwarder's node cannot reach the back end for this time in ns, and its calls hang.
    /// Clients still reach the forwarder.
    Partition {
        /// Index of the forwarder.
        forwarder: usize,
        /// Length, ns.
        pause: u64,
    },
    /// The back end loses the lock of a seat, by its number among those that are held.
    LoseLock {
        /// Its number, modulo how many there are.
        number: u64,
    },
    /// A forwarder's node dies with everything that it has not made stable; it is back after this
    /// time in ns, or never.
    NodeDeath {
        /// Index of the forwarder.
        forwarder: usize,
        /// Time until it is back, ns; None: never.
        back_after: Option<u64>,
    },
}

/// A guarantee that a test takes away, to show that the test notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The host does not tell a holder that its lease has ended, and jobs check no fence.
    NoFence,
    /// Taking a seat does not increase its generation.
    NoGeneration,
    /// The new holder reads the reply table from its node's cache.
    CachedTable,
    /// An append writes at the end of the file that the node's cached attributes give.
    CachedSize,
    /// Reads are served from the node's page cache.
    CachedData,
    /// A stand-in takes a seat as soon as it has its lock.
    NoWait,
    /// A forwarder trusts one copy of a file on whether an append was done (GlusterFS).
    CopiesTrusted,
}

/// What a test takes away of the rules for names and attributes that are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanMutant {
    /// Clients believe that loans last ten times as long.
    TooLong,
    /// Clients give back what is recalled, and use it all the same.
    KeptOnRecall,
    /// Clients say that they have cleared their caches, and have not.
    KeptInCache,
}

/// Forwarders on nodes of their own, over a back end on other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// How the back end caches, and what it does to a node that it has lost.
    pub back_end: BackEnd,
    /// Time to live of the leases, ns.
    pub ttl_ns: u64,
    /// Time after which the back end gives up a node that it cannot reach, ns.
    pub limit_ns: u64,
    /// The clock of each forwarder.
    pub clocks: Vec<Clock>,
    /// The guarantee that the test takes away.
    pub mutant: Option<Mutant>,
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
    /// Whether clients send the blocks of one seat in one request.
    pub merge_blocks: bool,
    /// The network.
    pub network: NetworkOptions,
    /// Faults and their times in ns.
    pub faults: Vec<(u64, Fault)>,
    /// The nodes and the back end; None: everything is on one node.
    pub cluster: Option<Cluster>,
    /// How long what forwarders lend lasts, ns.
    pub loan_ns: u64,
    /// Whether programs change and look at the same names most of the time.
    pub shares: bool,
    /// What the test takes away.
    pub loan_mutant: Option<LoanMutant>,
}

const MS: u64 = 1_000_000;

impl Plan {
    /// Draws a plan.
    pub fn from_seed(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let forwarders = rng.between(1, 4) as usize;
        let policies = tidegate_sched::policies::NAMES;
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
            cluster: None,
            loan_ns: 300 * MS,
            shares: false,
            loan_mutant: None,
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

    /// Draws a plan of several clients that change and look at the same names, through one
    /// forwarder, which lends.
    pub fn of_sharing(seed: u64) -> Plan {
        let mut plan = Plan::from_seed(seed);
        let mut rng = Rng::new(seed ^ 0x10a2_5eed);
        plan.forwarders = 1;
        plan.clients = rng.between(2, 4) as usize;
        plan.shares = true;
        plan.loan_ns = rng.between(20, 400) * MS;
        plan.network.stall_one_in = [0, 1_000, 4_000][rng.below(3) as usize];
        plan.faults.clear();
        for _ in 0..rng.below(12) {
            let fault = match rng.below(3) {
                // It is back while what it lent before may still be believed.
                0 => Fault::Kill {
                    forwarder: 0,
                    back_after: Some(rng.between(MS, plan.loan_ns / 4)),
                },
                _ => plan.draw(&mut rng),
            };
            plan.faults.push((rng.below(3_000 * MS), fault));
        }
        plan
    }

    /// Draws a plan of forwarders on several nodes.
    pub fn of_cluster(seed: u64) -> Plan {
        let mut plan = Plan::from_seed(seed);
        let mut rng = Rng::new(seed ^ 0xc105_7e12);
        let forwarders = rng.between(2, 4) as usize;
        let ttl_ns = rng.between(100, 500) * MS;
        let back_ends = [BackEnd::Nfs, BackEnd::Gluster, BackEnd::Ceph];
        let clock = |rng: &mut Rng| Clock {
            per_mille: rng.between(900, 1100),
            offset_ns: rng.below(1_000_000 * MS),
        };
        plan.forwarders = forwarders;
        plan.cluster = Some(Cluster {
            back_end: back_ends[rng.below(3) as usize],
            ttl_ns,
            // Longer than a holder's lease, or jobs would fail while their seat is served.
            limit_ns: ttl_ns * rng.between(12, 40) / 10,
            clocks: (0..forwarders).map(|_| clock(&mut rng)).collect(),
            mutant: None,
        });
        plan.steps = rng.between(80, 250) as u32;
        plan.faults.clear();
        for _ in 0..rng.between(1, 16) {
            let fault = plan.draw_of_cluster(&mut rng);
            let at = rng.below(5_000 * MS);
            plan.faults.push((at, fault));
            // Clients that are cut off at such a moment look for another holder, with requests that
            // have no answer yet.
            for _ in 0..rng.below(4) {
                let number = rng.draw();
                let near = at + rng.below(60 * MS);
                plan.faults.push((near, Fault::Cut { number }));
            }
        }
        plan
    }

    fn draw_of_cluster(&self, rng: &mut Rng) -> Fault {
        let forwarder = rng.below(self.forwarders as u64) as usize;
        match rng.below(9) {
            0..3 => Fault::Partition {
                forwarder,
                pause: rng.between(MS, 2_500 * MS),
            },
            3 | 4 => Fault::LoseLock { number: rng.draw() },
            5 => Fault::NodeDeath {
                forwarder,
                back_after: Some(rng.between(10 * MS, 3_000 * MS)),
            },
            _ => self.draw(rng),
        }
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
