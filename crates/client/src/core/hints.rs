//! What the client tells the schedulers: corrected time stamps, and what others have charged.

use std::collections::BTreeMap;

/// Applications whose charges are kept; the one that was quiet longest is forgotten first.
const APPS_MAX: usize = 1024;

/// How far the forwarders' wall clocks are ahead of the client's.
pub(super) struct Clocks {
    offsets: Vec<Option<i64>>,
    /// Those that are known, ascending.
    sorted: Vec<i64>,
}

impl Clocks {
    pub(super) fn new(forwarders: usize) -> Clocks {
        Clocks {
            offsets: vec![None; forwarders],
            sorted: Vec::new(),
        }
    }

    /// A forwarder's clock said `theirs` when ours said `ours`.
    pub(super) fn measured(&mut self, forwarder: usize, ours: u64, theirs: u64) {
        let offset = theirs.wrapping_sub(ours) as i64;
        if let Some(old) = self.offsets[forwarder].replace(offset) {
            let at = self.sorted.partition_point(|known| *known < old);
            self.sorted.remove(at);
        }
        let at = self.sorted.partition_point(|known| *known < offset);
        self.sorted.insert(at, offset);
    }

    /// The forwarders' common time for a time of our clock.
    pub(super) fn corrected(&self, wall_ns: u64) -> u64 {
        let median = match self.sorted.len() {
            0 => 0,
            known => self.sorted[(known - 1) / 2],
        };
        wall_ns.saturating_add_signed(median)
    }
}

struct Charge {
    total: u64,
    /// By forwarder: what it charged, and what it was told of the others.
    here: Vec<(u64, u64)>,
    used: u64,
}

/// Device time charged to each application, by forwarder.
pub(super) struct Charges {
    apps: BTreeMap<u64, Charge>,
    forwarders: usize,
    uses: u64,
}

impl Charges {
    pub(super) fn new(forwarders: usize) -> Charges {
        Charges {
            apps: BTreeMap::new(),
            forwarders,
            uses: 0,
        }
    }

    /// A reply said what its request cost.
    pub(super) fn charged(&mut self, app: u64, forwarder: usize, ns: u64) {
        let charge = self.app(app);
        charge.total = charge.total.saturating_add(ns);
        charge.here[forwarder].0 = charge.here[forwarder].0.saturating_add(ns);
    }

    /// What other forwarders have charged since this one was told last; now it is told.
    pub(super) fn elsewhere(&mut self, app: u64, forwarder: usize) -> u64 {
        let charge = self.app(app);
        let (own, told) = &mut charge.here[forwarder];
        let others = charge.total - *own;
        others - std::mem::replace(told, others)
    }

    fn app(&mut self, app: u64) -> &mut Charge {
        if self.apps.len() >= APPS_MAX && !self.apps.contains_key(&app) {
            let oldest = self.apps.iter().min_by_key(|(_, charge)| charge.used);
            let oldest = oldest.map(|(app, _)| *app);
            oldest.and_then(|app| self.apps.remove(&app));
        }
        self.uses += 1;
        let charge = self.apps.entry(app).or_insert_with(|| Charge {
            total: 0,
            here: vec![(0, 0); self.forwarders],
            used: 0,
        });
        charge.used = self.uses;
        charge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_follow_the_median_clock() {
        let mut clocks = Clocks::new(3);
        assert_eq!(clocks.corrected(100), 100);
        clocks.measured(0, 1000, 1010);
        clocks.measured(1, 1000, 9000);
        clocks.measured(2, 1000, 1020);
        assert_eq!(clocks.corrected(2000), 2020);
        clocks.measured(1, 1000, 1000);
        assert_eq!(clocks.corrected(2000), 2010);
    }

    #[test]
    fn each_forwarder_hears_once_what_the_others_charged() {
        let mut charges = Charges::new(2);
        charges.charged(7, 0, 100);
        charges.charged(7, 1, 30);
        charges.charged(8, 1, 5);
        assert_eq!(charges.elsewhere(7, 0), 30);
        assert_eq!(charges.elsewhere(7, 0), 0);
        assert_eq!(charges.elsewhere(7, 1), 100);
        charges.charged(7, 1, 2);
        assert_eq!(charges.elsewhere(7, 0), 2);
    }

    #[test]
    fn the_number_of_applications_is_bounded() {
        let mut charges = Charges::new(1);
        for app in 0..3000 {
            charges.charged(app, 0, 1);
        }
        assert_eq!(charges.apps.len(), APPS_MAX);
    }
}
