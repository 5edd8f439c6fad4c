//! How good any order of operations can be: lower bounds, the exact optimum of small cases, and
//! the orders of the literature for comparison.
//!
//! The model is *concurrent open shop*: each operation needs some time on each server, its parts
//! run independently, and the operation is complete when its last part is. A shuffle may follow a
//! part, as in a collective read: work that begins when the server is done. A server serves one
//! part at a time. The model has no seeks, no network and no merging; with merging, a run can be
//! better than these bounds say.

mod best;
mod lower;
mod orders;

pub use best::{Best, OPERATIONS_MAX as BEST_OPERATIONS_MAX};
pub use orders::Order;

use std::error::Error;
use std::fmt;

/// What one operation needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Application id, for orders that depend on it; need not be unique.
    pub app: u64,
    /// Its parts can start from this time on.
    pub released_ns: u64,
    /// The time it needs on each server; 0 where it has no part.
    pub work_ns: Vec<u64>,
    /// The shuffle after its part on each server. Empty: no shuffles. The shuffle of a server where
    /// the operation has no part does not count.
    pub shuffles_ns: Vec<u64>,
}

/// Operations that compete for servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    servers: usize,
    operations: Vec<Needs>,
}

/// Why operations are no instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstanceError {
    /// An operation does not name one time for each server.
    Servers {
        /// Which operation, from 0.
        operation: usize,
        /// How many servers the instance has.
        servers: usize,
        /// How many times the operation names.
        named: usize,
    },
    /// All times together exceed what 64 bits of nanoseconds hold (584 years).
    TooLong,
}

impl fmt::Display for InstanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstanceError::Servers {
                operation,
                servers,
                named,
            } => write!(
                f,
                "operation {operation} names {named} times for {servers} servers; \
                 give one for each, 0 where it has no part"
            ),
            InstanceError::TooLong => f.write_str(
                "the times of all operations add up to more than 2^64 ns; use smaller ones",
            ),
        }
    }
}

impl Error for InstanceError {}

/// How well an order does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The completion times of all operations, added up.
    pub sum_ns: u128,
    /// The last completion time: the makespan, when the first release is at 0.
    pub max_ns: u64,
}

impl Value {
    /// The mean completion time of this number of operations, in nanoseconds; 0 for none.
    pub fn mean_ns(&self, operations: usize) -> f64 {
        if operations == 0 {
            return 0.0;
        }
        self.sum_ns as f64 / operations as f64
    }
}

impl Instance {
    /// The instance of these operations on this number of servers.
    pub fn new(servers: usize, operations: Vec<Needs>) -> Result<Instance, InstanceError> {
        let mut total = 0u64;
        for (operation, needs) in operations.iter().enumerate() {
            let shuffles = needs.shuffles_ns.len();
            let shuffles = if shuffles == 0 { servers } else { shuffles };
            for named in [needs.work_ns.len(), shuffles] {
                if named != servers {
                    return Err(InstanceError::Servers {
                        operation,
                        servers,
                        named,
                    });
                }
            }
            let times = needs.work_ns.iter().chain(&needs.shuffles_ns);
            for time in times.chain([&needs.released_ns]) {
                total = total.checked_add(*time).ok_or(InstanceError::TooLong)?;
            }
        }
        Ok(Instance {
            servers,
            operations,
        })
    }

    /// The number of servers.
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// The operations, in the order in which they were given: indices everywhere mean these.
    pub fn operations(&self) -> &[Needs] {
        &self.operations
    }

    /// The value when every server follows the same order, without preemption. An operation that is
    /// not released yet holds up those behind it. Operations that the order does not name are left
    /// out, and an index that does not exist is ignored.
    pub fn value(&self, order: &[usize]) -> Value {
        self.value_of(std::iter::repeat_n(order, self.servers))
    }

    /// Like [`Instance::value`], when each server follows an order of its own.
    pub fn value_per_server(&self, orders: &[Vec<usize>]) -> Value {
        self.value_of(orders.iter().map(Vec::as_slice))
    }

    fn value_of<'a>(&self, orders: impl Iterator<Item = &'a [usize]>) -> Value {
        let mut completed: Vec<Option<u64>> = vec![None; self.operations.len()];
        for (server, order) in orders.take(self.servers).enumerate() {
            let mut free_ns = 0;
            for &index in order {
                let Some(needs) = self.operations.get(index) else {
                    continue;
                };
                let done = completed[index].get_or_insert(needs.released_ns);
                if needs.work_ns[server] == 0 {
                    continue;
                }
                free_ns = needs.released_ns.max(free_ns) + needs.work_ns[server];
                *done = (*done).max(free_ns + needs.shuffle_ns(server));
            }
        }
        let completed = completed.into_iter().flatten();
        Value {
            sum_ns: completed.clone().map(u128::from).sum(),
            max_ns: completed.max().unwrap_or(0),
        }
    }

    /// Lets the servers serve an operation after what they did so far; `free_ns` is when each is
    /// free. Returns the time at which the operation completes.
    fn append(&self, free_ns: &mut [u64], operation: usize) -> u64 {
        let needs = &self.operations[operation];
        let mut completed_ns = needs.released_ns;
        for (server, free_ns) in free_ns.iter_mut().enumerate() {
            if needs.work_ns[server] > 0 {
                *free_ns = needs.released_ns.max(*free_ns) + needs.work_ns[server];
                completed_ns = completed_ns.max(*free_ns + needs.shuffle_ns(server));
            }
        }
        completed_ns
    }

    fn has_shuffles(&self) -> bool {
        let mut operations = self.operations.iter();
        operations.any(|needs| (0..self.servers).any(|server| needs.shuffle_ns(server) > 0))
    }

    fn has_releases(&self) -> bool {
        let mut releases = self.operations.iter().map(|needs| needs.released_ns);
        let first = releases.next();
        releases.any(|release| Some(release) != first)
    }
}

impl Needs {
    /// The shuffle after the part on a server; 0 where there is no part.
    fn shuffle_ns(&self, server: usize) -> u64 {
        if self.work_ns[server] == 0 {
            return 0;
        }
        self.shuffles_ns.get(server).copied().unwrap_or(0)
    }

    /// When it completes if nothing else runs.
    fn alone_ns(&self) -> u64 {
        let parts = self.work_ns.iter().enumerate();
        let times = parts.map(|(server, work)| work + self.shuffle_ns(server));
        self.released_ns + times.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
