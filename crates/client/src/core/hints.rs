//! What requests carry for the schedulers: time stamps corrected to the forwarders' clock, and the
//! service that the application got at other forwarders. Before the first of them that carries an
//! application's id, the client sends the forwarder the application's name.

use super::Core;
use super::requests::{Id, Pending, Place, Purpose, Target};
use super::types::{Application, Whose, whose};
use crate::wire::{Hints, NAME_MAX, Op};
use std::collections::BTreeMap;

/// Number of applications whose service the client records. Beyond it, the client drops the one
/// that was idle longest.
pub(super) const APPS_MAX: usize = 1024;

/// How far the forwarders' wall clocks are ahead of this client's.
pub(super) struct Clocks {
    offsets: Vec<Option<i64>>,
    /// The known differences, ascending.
    sorted: Vec<i64>,
}

impl Clocks {
    pub(super) fn new(forwarders: usize) -> Clocks {
        Clocks {
            offsets: vec![None; forwarders],
            sorted: Vec::new(),
        }
    }

    /// Records that a forwarder's clock showed `theirs` when this node's showed `ours`, both in ns
    /// since 1970.
    pub(super) fn measured(&mut self, forwarder: usize, ours: u64, theirs: u64) {
        let offset = theirs.wrapping_sub(ours) as i64;
        if let Some(old) = self.offsets[forwarder].replace(offset) {
            let at = self.sorted.partition_point(|known| *known < old);
            self.sorted.remove(at);
        }
        let at = self.sorted.partition_point(|known| *known < offset);
        self.sorted.insert(at, offset);
    }

    /// Converts a time of this node's clock into the forwarders' common time, ns since 1970.
    pub(super) fn corrected(&self, wall_ns: u64) -> u64 {
        wall_ns.saturating_add_signed(self.ahead())
    }

    /// How far the forwarders' clocks are ahead, in ns: the median.
    pub(super) fn ahead(&self) -> i64 {
        match self.sorted.len() {
            0 => 0,
            known => self.sorted[(known - 1) / 2],
        }
    }
}

/// Service that an application got, in each unit in which shares are counted. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) device_ns: u64,
    pub(super) bytes: u64,
    pub(super) operations: u64,
}

/// Service that an application got since its last request to a forwarder, as the hints of the next
/// one report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceDelta {
    /// Service that other forwarders gave.
    pub(super) elsewhere: Service,
    /// Device time that the forwarder itself gave in the same time, in ns.
    pub(super) here_ns: u64,
    /// Length of that time, in ms.
    pub(super) away_ms: u16,
}

impl Service {
    /// The service of a request, as forwarders count it.
    pub(super) fn of(pending: &Pending, device_ns: u64) -> Service {
        let (bytes, operations) = match pending.op.data() {
            Some((_, extents)) => (extents.bytes(), 1 + extents.rest.len() as u64),
            None => (pending.payload.iter().map(|it| it.len() as u64).sum(), 1),
        };
        Service {
            device_ns,
            bytes,
            operations,
        }
    }

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
}

impl ServiceDelta {
    pub(super) fn of_hints(hints: &Hints) -> ServiceDelta {
        ServiceDelta {
            elsewhere: Service {
                device_ns: hints.charged_elsewhere_ns,
                bytes: hints.bytes_elsewhere,
                operations: hints.operations_elsewhere.into(),
            },
            here_ns: hints.charged_here_ns,
            away_ms: hints.away_ms,
        }
    }

    pub(super) fn put_into(self, hints: &mut Hints) {
        hints.charged_elsewhere_ns = self.elsewhere.device_ns;
        hints.charged_here_ns = self.here_ns;
        hints.away_ms = self.away_ms;
        hints.bytes_elsewhere = self.elsewhere.bytes;
        let operations = u32::try_from(self.elsewhere.operations);
        hints.operations_elsewhere = operations.unwrap_or(u32::MAX);
    }
}

struct Charge {
    total: Service,
    here: Vec<Here>,
    used: u64,
}

/// What the client records of one forwarder.
#[derive(Clone, Copy, Default)]
struct Here {
    /// Service that it gave.
    own: Service,
    /// What the client last reported to it; None: the client has sent it nothing yet.
    reported: Option<Known>,
}

/// Service up to the request that reported it.
#[derive(Clone, Copy)]
struct Known {
    /// Service that other forwarders gave.
    elsewhere: Service,
    /// Device time that the forwarder gave to which the report went, ns.
    here_ns: u64,
    /// When the client sent it, ns.
    at: u64,
}

/// The service that each application got from each forwarder.
pub(super) struct Charges {
    apps: BTreeMap<Whose, Charge>,
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

    /// Adds the service of a request that the forwarder has answered.
    pub(super) fn charged(&mut self, app: Whose, forwarder: usize, service: Service) {
        let charge = self.app(app);
        charge.total = charge.total.plus(service);
        let own = &mut charge.here[forwarder].own;
        *own = own.plus(service);
    }

    /// The service since the last report to the forwarder, which counts as reported from now on.
    /// The first report is empty, since the client does not know how much the forwarder would have
    /// given in that time.
    pub(super) fn take_delta(&mut self, app: Whose, forwarder: usize, now: u64) -> ServiceDelta {
        let charge = self.app(app);
        let here = &mut charge.here[forwarder];
        let all = Known {
            elsewhere: charge.total.minus(here.own),
            here_ns: here.own.device_ns,
            at: now,
        };
        let reported = here.reported.replace(all).unwrap_or(all);
        let away_ms = now.saturating_sub(reported.at) / 1_000_000;
        ServiceDelta {
            elsewhere: all.elsewhere.minus(reported.elsewhere),
            here_ns: all.here_ns.saturating_sub(reported.here_ns),
            away_ms: u16::try_from(away_ms).unwrap_or(u16::MAX),
        }
    }

    /// Takes back a report whose request the forwarder did not serve: the next request reports it
    /// again.
    pub(super) fn give_back(&mut self, app: Whose, forwarder: usize, delta: ServiceDelta) {
        if let Some(reported) = &mut self.app(app).here[forwarder].reported {
            reported.elsewhere = reported.elsewhere.minus(delta.elsewhere);
            reported.here_ns = reported.here_ns.saturating_sub(delta.here_ns);
            reported.at = reported
                .at
                .saturating_sub(u64::from(delta.away_ms) * 1_000_000);
        }
    }

    fn app(&mut self, app: Whose) -> &mut Charge {
        if self.apps.len() >= APPS_MAX && !self.apps.contains_key(&app) {
            let oldest = self.apps.iter().min_by_key(|(_, charge)| charge.used);
            let oldest = oldest.map(|(app, _)| *app);
            oldest.and_then(|app| self.apps.remove(&app));
        }
        self.uses += 1;
        let charge = self.apps.entry(app).or_insert_with(|| Charge {
            total: Service::default(),
            here: vec![Here::default(); self.forwarders],
            used: 0,
        });
        charge.used = self.uses;
        charge
    }
}

/// The applications that the host has named.
#[derive(Default)]
pub(super) struct Applications {
    /// The application, and a number that says how recently the host has named it.
    known: BTreeMap<Whose, (Application, u64)>,
    named: u64,
}

impl Applications {
    /// Records an application, with job and project cut to what the protocol allows. Where there
    /// are too many, the core forgets the oldest: forwarders that have received its name still know
    /// it.
    fn learn(&mut self, app: Whose, mut application: Application) {
        cut(&mut application.job);
        cut(&mut application.project);
        if self.known.len() >= APPS_MAX && !self.known.contains_key(&app) {
            let oldest = self.known.iter().min_by_key(|(_, (_, named))| *named);
            let oldest = oldest.map(|(app, _)| *app);
            oldest.and_then(|app| self.known.remove(&app));
        }
        self.named += 1;
        self.known.insert(app, (application, self.named));
    }
}

fn cut(name: &mut String) {
    let mut len = name.len().min(NAME_MAX);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    name.truncate(len);
    // It may have been as long as a process's environment.
    name.shrink_to_fit();
}

impl Core {
    /// Records the application whose id is `app`.
    pub(super) fn application(&mut self, app: u64, application: Application) {
        let app = (app, application.caller.as_ref().map(|caller| caller.uid));
        let known = self.applications.known.get(&app);
        let unchanged = known.is_some_and(|(known, _)| *known == application);
        // A name that is too long for the protocol has an id all the same.
        if unchanged || application.name.len() > NAME_MAX {
            return;
        }
        self.applications.learn(app, application);
        for session in &mut self.sessions {
            session.introduced.retain(|told| told.0 != app.0);
        }
    }

    /// Sends the forwarder the name of the application whose request it is about to get. Returns
    /// false if that took the session's last credit: then the request waits for the next.
    pub(super) fn introduce(&mut self, forwarder: usize, id: Id) -> bool {
        let request = self.requests.get(&id);
        let Some((request, hints)) = request.and_then(|it| Some((it, it.hints.as_ref()?))) else {
            return true;
        };
        let app = whose(hints, request.caller.as_ref());
        let session = &mut self.sessions[forwarder];
        if session.introduced.contains(&app) {
            return true;
        }
        if session.introduced.len() >= APPS_MAX {
            session.introduced.clear();
        }
        session.introduced.insert(app);
        let known = &self.applications.known;
        let Some((application, _)) = known.get(&app).or_else(|| known.get(&(app.0, None))) else {
            return true;
        };
        let target = Target::Forwarder(forwarder);
        let op = Op::Application {
            app: app.0,
            name: application.name.as_bytes().into(),
            job: application.job.as_bytes().into(),
            project: application.project.as_bytes().into(),
        };
        let mut pending = Pending::new(op, 0, target, Purpose::Session);
        pending.caller.clone_from(&request.caller);
        let introduction = self.insert(pending);
        self.sessions[forwarder].introducing.insert(introduction);
        self.transmit(forwarder, introduction);
        let session = &mut self.sessions[forwarder];
        if session.has_credit() {
            return true;
        }
        session.queue.insert(id);
        self.put(id, Place::Queue(forwarder));
        false
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

    fn delta(elsewhere: u64, here_ns: u64) -> ServiceDelta {
        ServiceDelta {
            elsewhere: service(elsewhere),
            here_ns,
            away_ms: 0,
        }
    }

    #[test]
    fn each_forwarder_hears_once_what_the_others_charged() {
        let mut charges = Charges::new(2);
        charges.charged((7, None), 1, service(30));
        assert_eq!(
            charges.take_delta((7, None), 0, 5),
            delta(0, 0),
            "there was no request before"
        );
        charges.charged((7, None), 0, service(100));
        charges.charged((7, None), 1, service(40));
        charges.charged((8, None), 1, service(4));
        assert_eq!(charges.take_delta((7, None), 0, 5), delta(40, 100));
        assert_eq!(charges.take_delta((7, None), 0, 5), delta(0, 0));
        charges.charged((7, None), 1, service(2));
        let it = charges.take_delta((7, None), 0, 5);
        assert_eq!(it, delta(2, 0));
        charges.charged((7, None), 0, service(8));
        charges.charged((7, None), 1, service(6));
        charges.give_back((7, None), 0, it);
        assert_eq!(charges.take_delta((7, None), 0, 5), delta(8, 8));
        let away = charges.take_delta((7, None), 0, 5 + 40_000_000);
        assert_eq!(away.away_ms, 40);
        charges.give_back((7, None), 0, away);
        assert_eq!(charges.take_delta((7, None), 0, 50_000_000).away_ms, 49);
        assert_eq!(charges.take_delta((7, None), 0, u64::MAX).away_ms, u16::MAX);
    }

    #[test]
    fn counters_end_at_their_largest_number() {
        let mut charges = Charges::new(2);
        let most = Service {
            device_ns: u64::MAX,
            bytes: u64::MAX - 1,
            operations: 1 << 40,
        };
        charges.take_delta((7, None), 1, 5);
        charges.charged((7, None), 0, most);
        charges.charged((7, None), 0, service(10));
        let it = charges.take_delta((7, None), 1, 5);
        let of = it.elsewhere;
        assert_eq!((of.device_ns, of.bytes), (u64::MAX, u64::MAX));
        let mut hints = Hints::default();
        it.put_into(&mut hints);
        assert_eq!(hints.operations_elsewhere, u32::MAX);
        charges.charged((7, None), 1, service(10));
        let it = charges.take_delta((7, None), 1, 5);
        assert_eq!((it.elsewhere.device_ns, it.here_ns), (0, 10));
    }

    #[test]
    fn a_name_that_is_cut_gives_its_memory_back() {
        let mut name = "é".repeat(1 << 16);
        cut(&mut name);
        assert_eq!((name.len(), name.capacity()), (NAME_MAX - 1, NAME_MAX - 1));
    }

    #[test]
    fn the_number_of_applications_is_bounded() {
        let mut charges = Charges::new(1);
        for app in 0..3000 {
            charges.charged((app, None), 0, service(1));
        }
        assert_eq!(charges.apps.len(), APPS_MAX);
    }
}
