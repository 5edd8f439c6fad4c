//! The shuffle that follows an aggregator's access of a collective read, and what the client's
//! hints say of it.
//!
//! The processes carry the shuffle itself out, with messages over the modelled network. This file
//! predicts it: as HIO's equation (1) does, or as one port sends messages one after the other. A
//! scenario can also ask for further work of an aggregator between its access and its messages.

use super::keys::{Impossible, Keys, require};
use crate::units::Duration;
use crate::world::NetworkOptions;
use tidegate_sched::mix64;
use tidegate_wire::{Handle, Layout};

/// The most different times in `shuffle_each`.
const EACH_MAX: usize = 16;

/// How clients predict shuffles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Foretold {
    /// Requests carry no shuffles, and each has a stamp of its own.
    #[default]
    Not,
    /// HIO's equation (1): the longest message alone, within the node or to others.
    Messages,
    /// All messages within the node one after the other, and all to others.
    Port,
}

/// The shuffles of collective reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shuffles {
    /// What hints say.
    pub told: Foretold,
    /// An aggregator works so long after its access,
    pub work: Duration,
    /// or, by chance, between that and this,
    pub work_max: Option<Duration>,
    /// or the time of its number in this list, which is gone through again and again.
    each: [Duration; EACH_MAX],
    each_len: u8,
    turned: Turned,
}

/// Who has the first time of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Turned {
    /// The first aggregator.
    #[default]
    Not,
    /// One that is drawn for each application.
    Drawn,
    /// The one whose domain begins at the first server; for each further copy of the application,
    /// at the next server.
    Servers,
}

/// Where the processes of an application run, and what lies between them.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Ranks that follow each other on a node.
    pub per_node: u32,
    /// Megabytes per second between two of a node.
    pub memory_mb_s: u64,
    /// The network between nodes.
    pub network: NetworkOptions,
    /// The forwarders' seats.
    pub layout: Layout,
    /// The number of this copy of the application, from 0.
    pub copy: u32,
}

/// An aggregator's access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accessed {
    pub(super) aggregator: u32,
    pub(super) operation: u64,
    pub(super) file: u64,
    /// First byte.
    pub(super) offset: u64,
}

impl Shuffles {
    pub(super) const KEYS: [&str; 5] = [
        "shuffles",
        "shuffle",
        "shuffle_max",
        "shuffle_each",
        "shuffle_turned",
    ];

    /// The keys, and which of them were there.
    pub(super) fn read(keys: &mut Keys) -> (Shuffles, [bool; 5]) {
        let told = keys.optional("shuffles");
        let work = keys.optional("shuffle");
        let work_max = keys.optional("shuffle_max");
        let listed: Option<Vec<Duration>> = keys.optional("shuffle_each");
        let turned = keys.optional("shuffle_turned");
        let there = [
            told.is_some(),
            work.is_some(),
            work_max.is_some(),
            listed.is_some(),
            turned.is_some(),
        ];
        let listed = listed.unwrap_or_default();
        if listed.is_empty() && there[3] {
            keys.fails("shuffle_each: at least one time is needed".into());
        }
        if there[4] && !there[3] {
            keys.fails("shuffle_turned: nothing is turned without shuffle_each".into());
        }
        if listed.len() > EACH_MAX {
            keys.fails(format!(
                "shuffle_each: at most {EACH_MAX} times are possible"
            ));
        }
        if !listed.is_empty() && (there[1] || there[2]) {
            keys.fails("shuffle_each: stands for shuffle and shuffle_max".into());
        }
        let mut each = [Duration(0); EACH_MAX];
        for (to, time) in each.iter_mut().zip(&listed) {
            *to = *time;
        }
        let shuffles = Shuffles {
            told: told.unwrap_or_default(),
            work: work.unwrap_or_default(),
            work_max,
            each,
            each_len: listed.len().min(EACH_MAX) as u8,
            turned: turned.unwrap_or_default(),
        };
        (shuffles, there)
    }

    pub(super) fn check(&self) -> Result<(), Impossible> {
        let ordered = self.work_max.is_none_or(|most| most >= self.work);
        require(ordered, "shuffle_max", || "is less than shuffle".into())
    }

    /// How long an aggregator works between its access and its messages, ns. `seed` is the
    /// application's.
    pub(super) fn work_ns(&self, accessed: &Accessed, place: &Place, seed: u64) -> u64 {
        let Accessed {
            aggregator,
            operation,
            file,
            offset,
        } = *accessed;
        if self.each_len > 0 {
            let at = match self.turned {
                Turned::Not => u64::from(aggregator),
                Turned::Drawn => mix64(seed) % 1024 + u64::from(aggregator),
                Turned::Servers => {
                    let handle = Handle {
                        inode: file,
                        birth: 1,
                    };
                    let server = u64::from(place.layout.seat_of_byte(handle, offset));
                    let servers = u64::from(place.layout.seats);
                    (server + servers - u64::from(place.copy) % servers) % servers
                }
            };
            return self.each[(at % u64::from(self.each_len)) as usize].0;
        }
        let drawn = mix64(seed ^ mix64(operation ^ mix64(u64::from(aggregator))));
        match self.work_max {
            Some(most) => self.work.0 + drawn % (most.0 - self.work.0 + 1),
            None => self.work.0,
        }
    }
}

/// The shuffle of one aggregator, message by message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Messages {
    inside: (u64, u64),
    outside: (u64, u64),
}

impl Messages {
    /// Adds a message of one rank to another.
    pub(super) fn add(&mut self, place: &Place, from: u32, to: u32, bytes: u64) {
        let inside = from / place.per_node == to / place.per_node;
        let (longest, all) = match inside {
            true => &mut self.inside,
            false => &mut self.outside,
        };
        *longest = bytes.max(*longest);
        *all = all.saturating_add(bytes);
    }

    /// How long they take by a model, ns.
    pub(super) fn ns(&self, place: &Place, told: Foretold) -> u64 {
        let (inside, outside) = match told {
            Foretold::Not => return 0,
            Foretold::Messages => (self.inside.0, self.outside.0),
            Foretold::Port => (self.inside.1, self.outside.1),
        };
        if inside + outside == 0 {
            return 0;
        }
        let inside_ns = inside.saturating_mul(1000) / place.memory_mb_s;
        let outside_ns = place.network.wire_ns(outside);
        inside_ns.max(outside_ns) + place.network.latency_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            per_node: 2,
            memory_mb_s: 1000,
            network: NetworkOptions {
                latency_ns: 7,
                jitter_ns: 0,
                mb_s: 100,
                overtaking: false,
            },
            layout: Layout {
                seats: 6,
                stripe: 4096,
            },
            copy: 0,
        }
    }

    #[test]
    fn equation_one_has_the_longest_message_and_the_port_has_all() {
        let place = place();
        let mut messages = Messages::default();
        assert_eq!(messages.ns(&place, Foretold::Port), 0);
        for (to, bytes) in [(1, 9000), (2, 300), (3, 200), (5, 100)] {
            messages.add(&place, 0, to, bytes);
        }
        // 9000 bytes within the node at 1 ns each, 300 to others at 10 ns each.
        assert_eq!(messages.ns(&place, Foretold::Messages), 9000 + 7);
        messages.add(&place, 0, 4, 500);
        assert_eq!(messages.ns(&place, Foretold::Messages), 9000 + 7);
        assert_eq!(messages.ns(&place, Foretold::Port), 11_000 + 7);
        assert_eq!(messages.ns(&place, Foretold::Not), 0);
    }

    #[test]
    fn work_is_listed_or_drawn() {
        let mut shuffles = Shuffles {
            work: Duration(10),
            work_max: Some(Duration(20)),
            ..Shuffles::default()
        };
        let mut place = place();
        let of = |aggregator| Accessed {
            aggregator,
            operation: 3,
            file: 7,
            offset: u64::from(aggregator) * 4096,
        };
        let drawn: Vec<u64> = (0..100)
            .map(|at| shuffles.work_ns(&of(at), &place, 5))
            .collect();
        assert!(drawn.iter().all(|ns| (10..=20).contains(ns)));
        assert!((10..=20).all(|ns| drawn.contains(&ns)), "{drawn:?}");
        (shuffles.each[0], shuffles.each[1], shuffles.each_len) = (Duration(1), Duration(2), 2);
        assert_eq!(
            [0, 1, 2].map(|at| shuffles.work_ns(&of(at), &place, 1)),
            [1, 2, 1]
        );
        shuffles.turned = Turned::Drawn;
        let firsts = (0..20).map(|seed| shuffles.work_ns(&of(0), &place, seed));
        let firsts: Vec<u64> = firsts.collect();
        assert!(firsts.contains(&1) && firsts.contains(&2));
        // Six copies: each server is the first of one.
        (shuffles.turned, shuffles.each_len) = (Turned::Servers, 6);
        let mut servers: Vec<u32> = Vec::new();
        for copy in 0..6 {
            place.copy = copy;
            servers.extend((0..6).filter(|at| shuffles.work_ns(&of(*at), &place, 1) == 1));
        }
        servers.sort_unstable();
        assert_eq!(servers, [0, 1, 2, 3, 4, 5]);
    }
}
