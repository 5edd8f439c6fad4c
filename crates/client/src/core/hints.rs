//! What the client tells the schedulers: corrected time stamps, and what others have charged.

use crate::wire::Hints;
use std::collections::BTreeMap;

/// Applications whose charges are kept; the one that was quiet longest is forgotten first.
pub(super) const APPS_MAX: usize = 1024;

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

/// What an application was given, in each unit that shares are counted in. Sums end at their
/// largest number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) device_ns: u64,
    pub(super) bytes: u64,
    pub(super) operations: u64,
}

impl Service {
    fn plus(self, other: Service) -> Service {
        Service {
            device_ns: self.device_ns.saturating_add(other.device_ns),
            bytes: self.bytes.saturating_add(other.bytes),
            operations: self.operations.saturating_add(other.operations),
        }
    }

    fn minus(self, other: Service) -> Service {
        Service {
            device_ns: self.device_ns.saturating_sub(other.device_ns),
            bytes: self.bytes.saturating_sub(other.bytes),
            operations: self.operations.saturating_sub(other.operations),
        }
    }

    /// What hints say of other forwarders.
    pub(super) fn of_hints(hints: &Hints) -> Service {
        Service {
            device_ns: hints.charged_elsewhere_ns,
            bytes: hints.bytes_elsewhere,
            operations: hints.operations_elsewhere.into(),
        }
    }

    pub(super) fn put_into(self, hints: &mut Hints) {
        hints.charged_elsewhere_ns = self.device_ns;
        hints.bytes_elsewhere = self.bytes;
        hints.operations_elsewhere = u32::try_from(self.operations).unwrap_or(u32::MAX);
    }
}

struct Charge {
    total: Service,
    /// By forwarder: what it gave, and what it was told of the others.
    here: Vec<(Service, Service)>,
    used: u64,
}

/// What each application was given, by forwarder.
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

    /// A reply came to a request that was served.
    pub(super) fn charged(&mut self, app: u64, forwarder: usize, service: Service) {
        let charge = self.app(app);
        charge.total = charge.total.plus(service);
        let (own, _) = &mut charge.here[forwarder];
        *own = own.plus(service);
    }

    /// What other forwarders have given since this one was told last; now it is told.
    pub(super) fn elsewhere(&mut self, app: u64, forwarder: usize) -> Service {
        let charge = self.app(app);
        let (own, told) = &mut charge.here[forwarder];
        let others = charge.total.minus(*own);
        others.minus(std::mem::replace(told, others))
    }

    /// The forwarder did not serve the request that told it so.
    pub(super) fn unheard(&mut self, app: u64, forwarder: usize, service: Service) {
        let (_, told) = &mut self.app(app).here[forwarder];
        *told = told.minus(service);
    }

    fn app(&mut self, app: u64) -> &mut Charge {
        if self.apps.len() >= APPS_MAX && !self.apps.contains_key(&app) {
            let oldest = self.apps.iter().min_by_key(|(_, charge)| charge.used);
            let oldest = oldest.map(|(app, _)| *app);
            oldest.and_then(|app| self.apps.remove(&app));
        }
        self.uses += 1;
        let charge = self.apps.entry(app).or_insert_with(|| Charge {
            total: Service::default(),
            here: vec![Default::default(); self.forwarders],
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

    fn service(device_ns: u64) -> Service {
        Service {
            device_ns,
            bytes: device_ns * 4096,
            operations: device_ns / 2,
        }
    }

    #[test]
    fn each_forwarder_hears_once_what_the_others_charged() {
        let mut charges = Charges::new(2);
        charges.charged(7, 0, service(100));
        charges.charged(7, 1, service(30));
        charges.charged(8, 1, service(4));
        assert_eq!(charges.elsewhere(7, 0), service(30));
        assert_eq!(charges.elsewhere(7, 0), service(0));
        assert_eq!(charges.elsewhere(7, 1), service(100));
        charges.charged(7, 1, service(2));
        let told = charges.elsewhere(7, 0);
        assert_eq!(told, service(2));
        charges.charged(7, 1, service(6));
        charges.unheard(7, 0, told);
        assert_eq!(charges.elsewhere(7, 0), service(8));
    }

    #[test]
    fn counters_end_at_their_largest_number() {
        let mut charges = Charges::new(2);
        let most = Service {
            device_ns: u64::MAX,
            bytes: u64::MAX - 1,
            operations: 1 << 40,
        };
        charges.charged(7, 0, most);
        charges.charged(7, 0, service(10));
        let told = charges.elsewhere(7, 1);
        assert_eq!((told.device_ns, told.bytes), (u64::MAX, u64::MAX));
        let mut hints = Hints::default();
        told.put_into(&mut hints);
        assert_eq!(hints.operations_elsewhere, u32::MAX);
        charges.charged(7, 1, service(10));
        assert_eq!(charges.elsewhere(7, 1).device_ns, 0);
    }

    #[test]
    fn the_number_of_applications_is_bounded() {
        let mut charges = Charges::new(1);
        for app in 0..3000 {
            charges.charged(app, 0, service(1));
        }
        assert_eq!(charges.apps.len(), APPS_MAX);
    }
}
