//! The workload of one measurement's clients, and its results.

use crate::bench::Access;
use serde::{Deserialize, Serialize};

/// Clients at once, at most: each has a file of its own.
pub const CLIENTS_MAX: usize = 8;
/// Bytes of a small access.
pub const SMALL: usize = 4 << 10;
/// Bytes of a large access.
pub const LARGE: usize = 1 << 20;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Read or write.
    pub access: Access,
    /// Bytes of one access; small ones at random places, others one after another.
    pub len: usize,
    /// Number of clients, each on its own file.
    pub clients: usize,
    /// Accesses that each of them has in flight.
    pub in_flight: usize,
}

/// The results of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Accesses per second, of all clients together.
    pub per_second: f64,
    /// Processor time of one access, us: client, mount and forwarders.
    pub processor_us: f64,
    /// Processor time that the forwarders used while one second passed, s: cores in use.
    pub forwarder_cores: f64,
    /// Time that half of the accesses took at most, us.
    pub p50_us: f64,
    /// Time that 99 of 100 accesses took at most, us.
    pub p99_us: f64,
}

impl Workload {
    /// Alone, and in company.
    pub fn waiting(len: usize) -> [Workload; 4] {
        let of = |access, clients| Workload {
            access,
            len,
            clients,
            in_flight: 1,
        };
        [
            of(Access::Read, 1),
            of(Access::Read, CLIENTS_MAX),
            of(Access::Write, 1),
            of(Access::Write, CLIENTS_MAX),
        ]
    }

    /// One client with several accesses in flight: 32 small ones, 8 others.
    pub fn in_flight(len: usize) -> [Workload; 2] {
        [Access::Read, Access::Write].map(|access| Workload {
            access,
            len,
            clients: 1,
            in_flight: if len == SMALL { 32 } else { 8 },
        })
    }

    /// All of one size.
    pub fn of_size(len: usize) -> impl Iterator<Item = Workload> {
        Workload::waiting(len)
            .into_iter()
            .chain(Workload::in_flight(len))
    }

    /// Whether reports show the times of single accesses.
    pub fn is_small(&self) -> bool {
        self.len == SMALL
    }

    /// In words.
    pub fn words(&self) -> String {
        let size = match self.len >> 20 {
            0 => format!("{} KiB", self.len >> 10),
            mib => format!("{mib} MiB"),
        };
        let access = self.access.name();
        let at_once = match (self.clients, self.in_flight) {
            (1, 1) => "1 client".to_string(),
            (1, depth) => format!("{depth} in flight"),
            (clients, 1) => format!("{clients} clients"),
            (clients, depth) => format!("{clients} clients, {depth} in flight"),
        };
        format!("{size} {access}, {at_once}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_named_apart() {
        let sizes = [SMALL, LARGE].into_iter();
        let names: Vec<_> = sizes
            .flat_map(Workload::of_size)
            .map(|workload| workload.words())
            .collect();
        assert_eq!(names.len(), 12);
        assert_eq!(names[0], "4 KiB read, 1 client");
        assert_eq!(names[4], "4 KiB read, 32 in flight");
        assert_eq!(names[9], "1 MiB write, 8 clients");
        assert_eq!(names[11], "1 MiB write, 8 in flight");
    }
}
