//! Several forwarders that never talk, their devices, and clients that carry what they were given.

use std::collections::BTreeMap;
use tidegate_sched::{
    AccessCost, AppId, AppShare, CostModel, Direction, FileId, Input, Options, Output, Request,
    RequestId, Scheduler, ServiceReport, Share, Shares, Time, mix64,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
/// What a request of `BYTES` costs: 50 of them are a second of a device, 50 MB/s.
pub const COST_NS: u64 = 20 * MS;
pub const BYTES: u64 = 1_000_000;

/// What an application does.
#[derive(Clone)]
pub struct Client {
    pub app: u64,
    /// Requests on their way at each forwarder of its layout.
    pub outstanding: usize,
    /// Forwarders that hold its data, with how many of its requests each gets.
    pub layout: Vec<usize>,
    /// From and until when, ns.
    pub active: (u64, u64),
    /// A request every so many ns, instead of so many outstanding.
    pub every_ns: Option<u64>,
    /// Tells the forwarders that others gave it nothing.
    pub forges: bool,
    /// Tells the forwarders that others gave it so much since each last request, ns.
    pub tells_ns: Option<u64>,
    /// Tells that this forwarder gave it so much meanwhile, ns.
    pub tells_here_ns: Option<u64>,
    /// Tells that it was away for so long, ms.
    pub tells_away_ms: Option<u16>,
    /// Its processes go from forwarder to forwarder with one request each, as those do that go
    /// through files in stripes; `outstanding` is how many they are.
    pub walks: bool,
}

impl Client {
    pub fn new(app: u64, outstanding: usize, layout: &[usize]) -> Client {
        Client {
            app,
            outstanding,
            layout: layout.to_vec(),
            active: (0, u64::MAX),
            every_ns: None,
            forges: false,
            tells_ns: None,
            tells_here_ns: None,
            tells_away_ms: None,
            walks: false,
        }
    }

    /// Nodes of an application with so many processes in all, eight each.
    pub fn walkers(app: u64, processes: usize, layout: &[usize]) -> Vec<Client> {
        let node = |first: usize| Client {
            walks: true,
            ..Client::new(app, 8.min(processes - first), layout)
        };
        (0..processes).step_by(8).map(node).collect()
    }
}

/// What is known of a request on its way.
pub struct Way {
    pub client: usize,
    pub sent: u64,
}

pub struct World {
    pub forwarders: Vec<Scheduler>,
    pub busy_until: Vec<Option<(u64, Vec<Request>)>>,
    pub clients: Vec<Client>,
    /// By client and forwarder: device time, bytes, operations that it was given, and how much of
    /// those of the others and of the forwarder's own device time it told.
    pub given: BTreeMap<(usize, usize), [u64; 3]>,
    pub told: BTreeMap<(usize, usize), [u64; 4]>,
    /// By client and forwarder: when it told last.
    pub told_at: BTreeMap<(usize, usize), u64>,
    pub ways: BTreeMap<u64, Way>,
    /// By client: when its next request comes, and where.
    pub next_at: Vec<u64>,
    pub turns: Vec<usize>,
    pub ids: u64,
    pub now: u64,
    /// By application: service as (end, device ns, forwarder, latency).
    pub served: BTreeMap<u64, Vec<(u64, u64, usize, u64)>>,
    pub busy_ns: u64,
    /// Devices take from half to one and a half times of what is expected, by chance.
    pub varies: bool,
}

pub fn cost() -> CostModel {
    let mut model = CostModel::default();
    for direction in [Direction::Read, Direction::Write] {
        for sequential in [false, true] {
            *model.access_mut(direction, sequential) = AccessCost {
                base_ns: 0,
                ns_per_mib: COST_NS * (1 << 20) / BYTES,
            };
        }
    }
    model
}

pub fn options(policy: &str, forwarders: u32, shares: &[(u64, Share)]) -> Options {
    let apps = shares.iter().map(|(app, share)| {
        let share = AppShare {
            share: *share,
            group: None,
        };
        (AppId(*app), share)
    });
    Options {
        cost: cost(),
        estimate: false,
        shares: Shares {
            forwarders,
            apps: apps.collect(),
            ..Shares::default()
        },
        ..Options::for_policy(policy)
    }
}

impl World {
    pub fn new(options: &Options, clients: &[Client]) -> World {
        let count = options.shares.forwarders as usize;
        let scheduler = |_| Scheduler::new(options).unwrap_or_else(|error| panic!("{error}"));
        World {
            forwarders: (0..count).map(scheduler).collect(),
            busy_until: (0..count).map(|_| None).collect(),
            clients: clients.to_vec(),
            given: BTreeMap::new(),
            told: BTreeMap::new(),
            told_at: BTreeMap::new(),
            ways: BTreeMap::new(),
            next_at: clients.iter().map(|client| client.active.0).collect(),
            turns: vec![0; clients.len()],
            ids: 0,
            now: 0,
            served: BTreeMap::new(),
            busy_ns: 0,
            varies: false,
        }
    }

    /// How long a batch takes.
    fn takes_ns(&self, batch: &[Request]) -> u64 {
        let expected = COST_NS * batch.len() as u64;
        match self.varies {
            true => expected / 2 + mix64(batch[0].id.0 + 7) % expected,
            false => expected,
        }
    }

    pub fn send(&mut self, client: usize, forwarder: usize) {
        let of = &self.clients[client];
        let mut others = [0; 4];
        others[3] = self.given.get(&(client, forwarder)).map_or(0, |own| own[0]);
        for other in (0..self.forwarders.len()).filter(|other| *other != forwarder) {
            let given = self
                .given
                .get(&(client, other))
                .copied()
                .unwrap_or_default();
            (0..3).for_each(|unit| others[unit] += given[unit]);
        }
        let told = self
            .told
            .insert((client, forwarder), others)
            .unwrap_or(others);
        let told_at = self.told_at.insert((client, forwarder), self.now);
        let away_ns = self.now - told_at.unwrap_or(self.now);
        let new = |unit: usize| {
            if of.forges {
                0
            } else {
                others[unit] - told[unit]
            }
        };
        self.ids += 1;
        let app = AppId(of.app);
        let place = mix64(self.ids) % (1 << 30) * BYTES;
        let request = Request {
            charged_elsewhere_ns: of.tells_ns.unwrap_or_else(|| new(0)),
            charged_here_ns: of.tells_here_ns.unwrap_or(others[3] - told[3]),
            away_ms: of
                .tells_away_ms
                .unwrap_or(u16::try_from(away_ns / MS).unwrap_or(u16::MAX)),
            bytes_elsewhere: new(1),
            operations_elsewhere: new(2) as u32,
            ..Request::new(
                RequestId(self.ids),
                app,
                FileId(of.app),
                Direction::Read,
                place,
                BYTES,
            )
        };
        self.ways.insert(
            self.ids,
            Way {
                client,
                sent: self.now,
            },
        );
        let at = Time(self.now);
        let arrived = self.forwarders[forwarder].handle(at, Input::Arrived(request));
        arrived.expect("there is room");
    }

    /// Clients that are paced, or begin.
    pub fn clients_send(&mut self) {
        for client in 0..self.clients.len() {
            while self.next_at[client] <= self.now && self.now < self.clients[client].active.1 {
                let of = self.clients[client].clone();
                match of.every_ns {
                    Some(every_ns) => {
                        self.next_at[client] += every_ns;
                        self.turns[client] += 1;
                        let forwarder = of.layout[self.turns[client] % of.layout.len()];
                        self.send(client, forwarder);
                    }
                    None => {
                        self.next_at[client] = u64::MAX;
                        for process in (0..of.outstanding).filter(|_| of.walks) {
                            self.send(client, of.layout[process % of.layout.len()]);
                        }
                        for forwarder in of.layout.into_iter().filter(|_| !of.walks) {
                            (0..of.outstanding).for_each(|_| self.send(client, forwarder));
                        }
                    }
                }
            }
        }
    }

    pub fn finish(&mut self, forwarder: usize, batch: &[Request]) {
        for request in batch {
            let at = Time(self.now);
            let done = self.forwarders[forwarder].handle(at, Input::Finished(request.id));
            done.expect("it ran");
            let way = self.ways.remove(&request.id.0).expect("it was sent");
            let given = self.given.entry((way.client, forwarder)).or_default();
            for (unit, amount) in [COST_NS, request.len, 1].into_iter().enumerate() {
                given[unit] += amount;
            }
            let of = &self.clients[way.client];
            let served = self.served.entry(of.app).or_default();
            served.push((self.now, COST_NS, forwarder, self.now - way.sent));
            if of.every_ns.is_none() && self.now < of.active.1 {
                let place = of.layout.iter().position(|it| *it == forwarder);
                let place = place.unwrap_or(0) + usize::from(of.walks);
                let next = of.layout[place % of.layout.len()];
                self.send(way.client, next);
            }
        }
    }

    pub fn tell(&mut self, from: usize, served: ServiceReport) {
        let at = Time(self.now);
        let others = self
            .forwarders
            .iter_mut()
            .enumerate()
            .filter(|(number, _)| *number != from);
        others.for_each(|(_, other)| {
            other
                .handle(at, Input::PeerService(served))
                .expect("it listens")
        });
    }

    /// Goes on until `until` ns.
    pub fn run(&mut self, until: u64) {
        let mut batch = Vec::new();
        while self.now < until {
            self.clients_send();
            let mut next = until;
            for forwarder in 0..self.forwarders.len() {
                if let Some((end, _)) = &self.busy_until[forwarder]
                    && *end <= self.now
                {
                    let (_, done) = self.busy_until[forwarder].take().expect("just seen");
                    self.finish(forwarder, &done);
                }
            }
            // Whoever was answered has asked the next one, perhaps one with a lower number.
            for forwarder in 0..self.forwarders.len() {
                if self.busy_until[forwarder].is_none() {
                    let mut output = self.forwarders[forwarder].poll(Time(self.now), &mut batch);
                    while let Output::Broadcast(served) = output {
                        self.tell(forwarder, served);
                        output = self.forwarders[forwarder].poll(Time(self.now), &mut batch);
                    }
                    match output {
                        Output::Dispatch => {
                            let end = self.now + self.takes_ns(&batch);
                            self.busy_ns += end - self.now;
                            self.busy_until[forwarder] = Some((end, batch.clone()));
                        }
                        Output::WaitUntil(time) => next = next.min(time.0),
                        Output::Idle => {}
                        Output::Broadcast(_) => unreachable!("just told"),
                    }
                }
                if let Some((end, _)) = &self.busy_until[forwarder] {
                    next = next.min(*end);
                }
            }
            for (client, at) in self.next_at.iter().enumerate() {
                if *at < self.clients[client].active.1 {
                    next = next.min((*at).max(self.now + 1));
                }
            }
            self.now = next.max(self.now + 1);
        }
    }

    /// Device time of an application between two times, at one forwarder or at all.
    pub fn share(&self, app: u64, from: u64, to: u64, at: Option<usize>) -> u64 {
        let served = self.served.get(&app).into_iter().flatten();
        let within = served.filter(|(end, _, forwarder, _)| {
            (from + 1..=to).contains(end) && at.is_none_or(|at| at == *forwarder)
        });
        within.map(|(_, ns, ..)| ns).sum()
    }

    /// The percentile of latencies between two times.
    pub fn latency(&self, app: u64, from: u64, to: u64, percentile: usize) -> u64 {
        let served = self.served.get(&app).into_iter().flatten();
        let within = served.filter(|(end, ..)| (from + 1..=to).contains(end));
        let mut latencies: Vec<u64> = within.map(|(.., latency)| *latency).collect();
        latencies.sort_unstable();
        let at = (latencies.len() * percentile).div_ceil(100).max(1) - 1;
        latencies[at]
    }
}
